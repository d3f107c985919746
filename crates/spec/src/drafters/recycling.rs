//! Token recycling: what the target last thought might follow a token is a guess for the next time (Luo et al.,
//! "Turning Trash into Treasure", 2024).
//!
//! Every verified row, a rejected one too, shows the target's best logits after one token. The latest of them are kept for
//! each token and strung together to small trees. Each sequence has its own: what one text taught must not be timed through
//! another's drafts.

use std::collections::HashMap;

use super::grow::{Guesser, grow};
use crate::{
    Committed, DraftError, Drafter, Needs, NodeId, Proposal, Request, SequenceId, Source, Token, TokenTree,
};

/// How often what the target thought after a token in one place is what it thinks in another: a first guess, which the
/// controller corrects.
const CONSTANCY: f32 = 0.25;

/// Successors that are kept of each token.
const SUCCESSORS: usize = 8;

/// The logits of a token's successors, best first, relative to the best.
#[derive(Clone, Copy, Debug)]
struct Successors {
    best: [(Token, f32); SUCCESSORS],
    len: u8,
}

/// Drafts from the target's earlier rows: 72 bytes for each token of a sequence that one of them followed.
#[derive(Debug, Default)]
pub struct RecyclingDrafter {
    end_of_generation: Vec<Token>,
    sequences: HashMap<SequenceId, Sequence>,
}

#[derive(Debug, Default)]
struct Sequence {
    successors: HashMap<Token, Successors>,
    /// What is being verified: the last committed token, and those of the tree.
    root: Option<Token>,
    nodes: Vec<Token>,
}

impl RecyclingDrafter {
    /// It proposes none of the tokens in `end_of_generation`.
    pub fn new(end_of_generation: Vec<Token>) -> Self {
        Self {
            end_of_generation,
            ..Self::default()
        }
    }
}

/// Successors at a sampler's temperature.
struct Table<'a> {
    successors: &'a HashMap<Token, Successors>,
    temperature: f32,
}

impl Guesser for Table<'_> {
    type Place = Option<Token>;

    fn advance(&self, _: &Option<Token>, token: Token) -> Option<Token> {
        Some(token)
    }

    fn guess(&self, place: &Option<Token>, guesses: &mut Vec<Proposal>) {
        let Some(known) = place.and_then(|token| self.successors.get(&token)) else {
            return;
        };
        let known = &known.best[..known.len as usize];
        let weight = |logit: f32| (logit / self.temperature).exp();
        let total: f32 = known.iter().map(|&(_, logit)| weight(logit)).sum();
        guesses.extend(known.iter().map(|&(token, logit)| Proposal {
            token,
            confidence: CONSTANCY * weight(logit) / total,
        }));
    }
}

impl Drafter for RecyclingDrafter {
    fn name(&self) -> &str {
        "recycling"
    }

    fn needs(&self) -> Needs {
        Needs {
            top_logits: SUCCESSORS,
            ..Needs::default()
        }
    }

    fn begin(&mut self, sequence: SequenceId, prompt: &[Token]) -> Result<(), DraftError> {
        let begun = Sequence {
            root: prompt.last().copied(),
            ..Sequence::default()
        };
        self.sequences.insert(sequence, begun);
        Ok(())
    }

    fn draft(&mut self, requests: &mut [Request<'_>]) -> Result<(), DraftError> {
        for request in requests {
            let Some(Sequence { successors, .. }) = self.sequences.get(&request.sequence) else {
                continue;
            };
            let temperature = request.sampler.params().temperature;
            let table = Table {
                successors,
                // At temperature 0 the confidence is the model's own probability.
                temperature: if temperature > 0.0 { temperature } else { 1.0 },
            };
            let root = request.tokens.last().copied();
            grow(&table, Source::Recycling, &self.end_of_generation, root, request);
        }
        Ok(())
    }

    fn submitted(&mut self, sequence: SequenceId, tree: &TokenTree) {
        if let Some(Sequence { nodes, .. }) = self.sequences.get_mut(&sequence) {
            nodes.clear();
            nodes.extend(tree.nodes().iter().map(|node| node.token));
        }
    }

    fn observe(&mut self, sequence: SequenceId, committed: &Committed) {
        let Some(Sequence {
            successors,
            root,
            nodes,
        }) = self.sequences.get_mut(&sequence)
        else {
            return;
        };
        let token = |node: Option<NodeId>| match node {
            Some(node) => nodes.get(node as usize).copied(),
            None => *root,
        };
        for row in &committed.rows {
            let (Some(token), Some(&(_, greatest))) = (token(row.node), row.top_logits.first()) else {
                continue;
            };
            let len = row.top_logits.len().min(SUCCESSORS);
            let mut best = [(0, 0.0); SUCCESSORS];
            for (best, &(token, logit)) in best.iter_mut().zip(&row.top_logits) {
                *best = (token, logit - greatest);
            }
            let len = len as u8;
            successors.insert(token, Successors { best, len });
        }
        *root = committed.tokens.last().copied().or(*root);
        nodes.clear();
    }

    fn end(&mut self, sequence: SequenceId) {
        self.sequences.remove(&sequence);
    }
}
