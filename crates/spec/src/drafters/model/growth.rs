//! The growth of one request's tree: which tokens are worth an evaluation, and which stay leaves.

use std::collections::BinaryHeap;

use super::lines::Sequence;
use crate::drafters::grow::Candidate;
use crate::drafters::propose::ROW;
use crate::{ModelInfo, Node, NodeId, Request, Source, TargetModel, Token, TokenTree};

/// Tokens of one tree that a pass of the draft model evaluates at most.
const FRONTIER: usize = 4;
/// Branches that are evaluated at most; each takes a page or two of the draft model's cache.
const LINES: usize = 8;

/// A place whose logits are known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    node: Option<NodeId>,
    /// A line that it is on, and how many of its tokens lead there.
    line: usize,
    len: usize,
    depth: usize,
    probability: f32,
}

/// The tree of a request as it grows.
#[derive(Default)]
pub(super) struct Growth {
    /// Each with the place that it follows.
    candidates: BinaryHeap<Candidate<Place>>,
    /// Nodes that were added.
    nodes: usize,
}

impl Growth {
    fn push(&mut self, request: &mut Request<'_>, candidate: &Candidate<Place>) -> NodeId {
        let before = request.tree.len();
        let id = request.tree.push(candidate.node);
        self.nodes += request.tree.len() - before;
        id
    }

    /// The place before the first draft token: the end of the first line.
    pub fn root(&mut self, request: &Request<'_>, sequence: &Sequence, info: &ModelInfo) {
        let place = Place {
            node: None,
            line: 0,
            len: request.tokens.len() - sequence.start,
            depth: 0,
            probability: 1.0,
        };
        self.reach(request, sequence, info, place);
    }

    /// Takes in what is proposed after a place. Nothing that ends the generation is: it would gain no token.
    pub fn reach(&mut self, request: &Request<'_>, sequence: &Sequence, info: &ModelInfo, place: Place) {
        let proposals = sequence.lines[place.line]
            .proposals(place.len)
            .unwrap_or_default();
        for (rank, &proposal) in proposals.iter().take(request.budget.max_branches).enumerate() {
            if proposal.confidence >= request.budget.min_confidence
                && !info.is_end_of_generation(proposal.token)
            {
                self.candidates.push(Candidate {
                    probability: place.probability * proposal.confidence,
                    node: Node {
                        token: proposal.token,
                        parent: place.node,
                        confidence: proposal.confidence,
                        source: Source::Model,
                        rank: rank as u16,
                    },
                    depth: place.depth + 1,
                    place,
                });
            }
        }
    }

    /// Adds the nodes that are worth a step and returns those to evaluate for it: on which line, and the place that it then
    /// reaches. None when the draft is done.
    pub fn step<M: TargetModel>(
        &mut self,
        request: &mut Request<'_>,
        sequence: &mut Sequence,
        model: &mut M,
    ) -> Vec<(Token, Place)> {
        let budget = request.budget;
        let mut frontier: Vec<(Token, Place)> = Vec::new();
        let mut leaves = Vec::new();
        while frontier.len() < FRONTIER
            && let Some(best) = self.candidates.pop()
        {
            let least = if frontier.is_empty() { 1.0 } else { ROW } * budget.min_path_probability;
            if best.probability < least || self.nodes + 1 >= budget.max_nodes {
                leaves.push(best);
                break;
            }
            let (token, Place { line, len, .. }) = (best.node.token, best.place);
            let place = Place {
                node: None,
                line,
                len: len + 1,
                depth: best.depth,
                probability: best.probability,
            };
            if !goes_on(request, sequence, model.info(), place.depth, token) {
                leaves.push(best);
                continue;
            }
            let on = &sequence.lines[line];
            match on.cached.get(len) {
                // It was drafted before, and not verified.
                Some(&next) if next == token && on.proposals(len + 1).is_some() => {
                    let node = Some(self.push(request, &best));
                    self.reach(request, sequence, model.info(), Place { node, ..place });
                    continue;
                }
                None if frontier.iter().all(|(_, other)| other.line != line) => {
                    let node = Some(self.push(request, &best));
                    frontier.push((token, Place { node, ..place }));
                }
                _ if sequence.lines.len() < LINES => {
                    let branch = on.branch(model, len);
                    sequence.lines.push(branch);
                    let (line, node) = (sequence.lines.len() - 1, Some(self.push(request, &best)));
                    frontier.push((token, Place { node, line, ..place }));
                }
                _ => leaves.push(best),
            }
        }
        self.candidates.extend(leaves);
        frontier
    }

    /// Adds what is worth a row of the target, though no step: the rest of the draft.
    pub fn finish(&mut self, request: &mut Request<'_>) {
        let budget = request.budget;
        while self.nodes < budget.max_nodes
            && let Some(best) = self.candidates.pop()
            && best.probability >= ROW * budget.min_path_probability
        {
            if best.depth <= budget.max_depth && request.tokens.len() + best.depth <= request.position_limit {
                self.push(request, &best);
            }
        }
    }
}

/// The likeliest path of a request's tree, of so many tokens at most, as far as something can follow it.
pub(super) fn likeliest(
    request: &Request<'_>,
    sequence: &Sequence,
    info: &ModelInfo,
    most: usize,
) -> Vec<Token> {
    let tree: &TokenTree = request.tree;
    let confidence = |node: &NodeId| tree.nodes()[*node as usize].confidence;
    let best = |node| {
        tree.children(node)
            .max_by(|a, b| confidence(a).total_cmp(&confidence(b)))
    };
    let path = std::iter::successors(best(None), |&node| best(Some(node)));
    let tokens = path.map(|node| tree.nodes()[node as usize].token);
    (1..)
        .zip(tokens.take(most))
        .take_while(|&(depth, token)| goes_on(request, sequence, info, depth, token))
        .map(|(_, token)| token)
        .collect()
}

/// Whether anything can follow the place that a token leads to.
fn goes_on(request: &Request<'_>, sequence: &Sequence, info: &ModelInfo, depth: usize, token: Token) -> bool {
    let length = request.tokens.len() + depth;
    depth < request.budget.max_depth
        && length < request.position_limit
        && length - sequence.start <= info.context_length
        && !info.is_end_of_generation(token)
}

impl Place {
    /// The line on which the place is reached.
    pub fn line(&self) -> usize {
        self.line
    }

    /// The tokens of the draft up to the place.
    pub fn path(&self, request: &Request<'_>) -> Vec<Token> {
        self.node.map_or_else(Vec::new, |node| request.tree.path(node))
    }
}
