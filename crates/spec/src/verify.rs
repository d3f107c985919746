//! The walk down a token tree that keeps exactly what the target itself would have said.
//!
//! At each row the sequence's own sampler draws from the target's logits; if the tree holds that token
//! there, the walk goes on from its row, else it ends with it. Noise, penalties and filters are those of
//! plain decoding because the same sampler walks the same tokens, so that the outcome does not depend on the
//! tree. With noise shared by target and drafter this accepts nearly as often as any rule can (Daliri,
//! Musco, Suresh 2024); no probabilities of the draft are needed.
//!
//! Not here: which ends there are; the caller's `cut` knows them.

use crate::noise::Noise;
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
///
/// # Errors
/// If the root's logits are not finite; the sampler and `cut` have then seen nothing. Where those of a later
/// row are not, the walk ends with that row's own token, as if the draft had not held it, and the next round
/// meets the row as its root: the tokens before a fault are those of plain decoding.
pub fn verify<'a>(
    tree: &TokenTree,
    sampler: &mut Sampler,
    logits: impl Fn(Option<NodeId>) -> &'a [f32],
    cut: impl FnMut(Token) -> Flow,
) -> Result<Verdict, NonFiniteLogit> {
    let draw = |sampler: &mut Sampler, at| {
        let token = sampler.sample(logits(at))?;
        Ok((token, tree.child(at, token)))
    };
    walk(sampler, draw, cut)
}

/// Acceptance by decree, to measure the machinery apart from the models. What comes out is not the model's
/// text; whoever shows it must say so.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ForcedAcceptance {
    /// The probability that a draft token is accepted given that its parent was.
    pub probability: f64,
    /// Seeds the decisions, one a position.
    pub key: u64,
}

impl ForcedAcceptance {
    /// Whether the draft token at this absolute position is accepted.
    pub fn accepts(&self, position: u64) -> bool {
        let uniform = (Noise::at(self.key, position).bits(0) >> 11) as f64 / (1u64 << 53) as f64;
        uniform < self.probability
    }
}

/// Like [`verify`], but a decree says whether the first child of each row is taken as what the target said.
/// Where it is not, the draft ends there with the target's own token. Every row is sampled all the same, so
/// that the costs are the real ones.
pub fn verify_forced<'a>(
    tree: &TokenTree,
    sampler: &mut Sampler,
    logits: impl Fn(Option<NodeId>) -> &'a [f32],
    cut: impl FnMut(Token) -> Flow,
    forced: ForcedAcceptance,
) -> Result<Verdict, NonFiniteLogit> {
    let draw = |sampler: &mut Sampler, at| {
        let own = sampler.sample(logits(at))?;
        let first = tree
            .children(at)
            .next()
            .filter(|_| forced.accepts(sampler.position()));
        Ok(first.map_or((own, None), |node| {
            (tree.nodes()[node as usize].token, Some(node))
        }))
    };
    walk(sampler, draw, cut)
}

/// Walks on while `draw` names the node that holds its token.
fn walk(
    sampler: &mut Sampler,
    draw: impl Fn(&mut Sampler, Option<NodeId>) -> Result<(Token, Option<NodeId>), NonFiniteLogit>,
    mut cut: impl FnMut(Token) -> Flow,
) -> Result<Verdict, NonFiniteLogit> {
    let mut verdict = Verdict::default();
    let mut at = None;
    loop {
        let (token, node) = match draw(sampler, at) {
            Ok(drawn) => drawn,
            Err(error) if verdict.tokens.is_empty() => return Err(error),
            Err(_) => {
                verdict.accepted.pop();
                return Ok(verdict);
            }
        };
        verdict.tokens.push(token);
        verdict.accepted.extend(node);
        let stops = (sampler.accept(token), cut(token)) != (Flow::Continue, Flow::Continue);
        match node {
            Some(node) if stops => {
                verdict.discarded_by_cut = agreement(sampler, draw, node);
                return Ok(verdict);
            }
            Some(node) => at = Some(node),
            None => return Ok(verdict),
        }
    }
}

/// How many nodes below `node` the target agrees with. Leaves the sampler as it was.
fn agreement(
    sampler: &mut Sampler,
    draw: impl Fn(&mut Sampler, Option<NodeId>) -> Result<(Token, Option<NodeId>), NonFiniteLogit>,
    mut node: NodeId,
) -> usize {
    let mut depth = 0;
    while let Ok((token, Some(next))) = draw(sampler, Some(node)) {
        sampler.accept(token);
        node = next;
        depth += 1;
    }
    sampler.rollback(depth);
    depth
}
