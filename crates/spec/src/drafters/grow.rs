//! Best-first growth of a token tree from guesses at single places.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::{Node, NodeId, Proposal, Request, Source, Token};

/// What a drafter without a model knows of the text at a place.
pub(super) trait Guesser {
    /// What it remembers of the text up to a place.
    type Place: Clone;

    /// The place after one token more.
    fn advance(&self, place: &Self::Place, token: Token) -> Self::Place;

    /// Appends what may follow, likeliest first, with the probability of each.
    fn guess(&self, place: &Self::Place, guesses: &mut Vec<Proposal>);
}

/// A guess that waits to become a node: the likeliest path is the greatest.
pub(super) struct Candidate<P> {
    /// Of the path that ends in it.
    pub probability: f32,
    pub node: Node,
    pub depth: usize,
    /// What its drafter knows of the place that it leads to, or that it follows.
    pub place: P,
}

impl<P> Ord for Candidate<P> {
    fn cmp(&self, other: &Self) -> Ordering {
        // Of equals the one that goes on from the earlier node.
        self.probability
            .total_cmp(&other.probability)
            .then(other.node.parent.cmp(&self.node.parent))
            .then(other.node.rank.cmp(&self.node.rank))
    }
}

impl<P> PartialOrd for Candidate<P> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<P> PartialEq for Candidate<P> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<P> Eq for Candidate<P> {}

/// If drafters of this kind may draft, extends the request's tree from its root and from every node that it has, the likeliest paths first, as far as the
/// budget goes. Nothing is proposed that ends the generation: it would gain no token.
pub(super) fn grow<G: Guesser>(
    guesser: &G,
    source: Source,
    end_of_generation: &[Token],
    root: G::Place,
    request: &mut Request<'_>,
) {
    let mut heap = BinaryHeap::new();
    let mut guesses = Vec::new();
    let budget = request.budget;
    if !budget.sources.contains(source) {
        return;
    }
    let room = request.position_limit.saturating_sub(request.tokens.len());
    let most_depth = budget.max_depth.min(room);
    let mut expand = |heap: &mut BinaryHeap<_>,
                      parent: Option<NodeId>,
                      place: &G::Place,
                      probability: f32,
                      depth: usize| {
        if depth >= most_depth {
            return;
        }
        guesses.clear();
        guesser.guess(place, &mut guesses);
        request.sampler.rank(&mut guesses, depth);
        for (rank, guess) in guesses.iter().take(budget.max_branches).enumerate() {
            if guess.confidence < budget.min_confidence || end_of_generation.contains(&guess.token) {
                continue;
            }
            heap.push(Candidate {
                probability: probability * guess.confidence,
                node: Node {
                    token: guess.token,
                    parent,
                    confidence: guess.confidence,
                    source,
                    rank: rank as u16,
                },
                depth: depth + 1,
                place: guesser.advance(place, guess.token),
            });
        }
    };

    let mut held: Vec<(G::Place, f32, usize)> = Vec::with_capacity(request.tree.len());
    for node in request.tree.nodes() {
        let (place, probability, depth) = match node.parent {
            Some(parent) => &held[parent as usize],
            None => &(root.clone(), 1.0, 0),
        };
        held.push((
            guesser.advance(place, node.token),
            probability * node.confidence,
            depth + 1,
        ));
    }
    expand(&mut heap, None, &root, 1.0, 0);
    for (id, (place, probability, depth)) in held.iter().enumerate() {
        expand(&mut heap, Some(id as NodeId), place, *probability, *depth);
    }
    let mut added = 0;
    while added < budget.max_nodes {
        let Some(best) = heap
            .pop()
            .filter(|best| best.probability >= budget.min_path_probability)
        else {
            break;
        };
        let before = request.tree.len();
        let id = request.tree.push(best.node);
        if request.tree.len() == before {
            // Another drafter's node, which was expanded above.
            continue;
        }
        added += 1;
        expand(&mut heap, Some(id), &best.place, best.probability, best.depth);
    }
}
