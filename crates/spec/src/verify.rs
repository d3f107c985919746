//! The walk down a token tree that keeps exactly what the target itself would have said.

use crate::{Flow, NodeId, NonFiniteLogit, Sampler, Token, TokenTree};

/// The outcome of one round for one sequence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// Tokens gained, at least one: the accepted path's tokens and, unless a stop cut it, the target's own.
    pub tokens: Vec<Token>,
    /// Accepted nodes in path order: `tokens.len() - 1` of them, or `tokens.len()` if the last accepted
    /// token ended the generation.
    pub accepted: Vec<NodeId>,
    /// Accepted draft tokens that stood after the cut.
    pub discarded_by_cut: usize,
}

/// Walks `tree` from its root. `logits(None)` are the root's, `logits(Some(node))` a node's. Each token is
/// drawn by the sequence's own sampler, accepted into it and shown to `cut` (end of generation, stop
/// strings, limits); the first token that `cut` stops at is the last one kept.
pub fn verify<'a>(
    _tree: &TokenTree,
    _sampler: &mut Sampler,
    _logits: impl Fn(Option<NodeId>) -> &'a [f32],
    _cut: impl FnMut(Token) -> Flow,
) -> Result<Verdict, NonFiniteLogit> {
    todo!()
}
