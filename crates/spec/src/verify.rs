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
use crate::{Flow, LogitError, NodeId, Sampler, Token, TokenTree};

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
) -> Result<Verdict, LogitError> {
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
) -> Result<Verdict, LogitError> {
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
    draw: impl Fn(&mut Sampler, Option<NodeId>) -> Result<(Token, Option<NodeId>), LogitError>,
    mut cut: impl FnMut(Token) -> Flow,
) -> Result<Verdict, LogitError> {
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
    draw: impl Fn(&mut Sampler, Option<NodeId>) -> Result<(Token, Option<NodeId>), LogitError>,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Node, SamplerParams, Source};

    const STOP: Token = 2;

    /// A tree from (parent, token).
    fn tree(nodes: &[(Option<NodeId>, Token)]) -> TokenTree {
        let mut tree = TokenTree::default();
        for &(parent, token) in nodes {
            tree.push(Node {
                token,
                parent,
                confidence: 0.5,
                source: Source::Scripted,
                rank: 0,
            });
        }
        tree
    }

    fn chain(tokens: &[Token]) -> TokenTree {
        let nodes: Vec<_> = (0..)
            .map(|i: NodeId| i.checked_sub(1))
            .zip(tokens.iter().copied())
            .collect();
        tree(&nodes)
    }

    /// Rows that say the given tokens, the root's first; `None` is a row of NaN.
    fn rows(says: &[Option<Token>]) -> Vec<Vec<f32>> {
        let row = |say: &Option<Token>| {
            let mut row = vec![if say.is_some() { 0.0 } else { f32::NAN }; 32];
            say.iter().for_each(|&token| row[token as usize] = 50.0);
            row
        };
        says.iter().map(row).collect()
    }

    /// Verifies greedily with these rows: tokens, accepted nodes, discarded.
    fn check(
        tree: &TokenTree,
        says: &[Option<Token>],
        expected: Result<(&[Token], &[NodeId], usize), LogitError>,
    ) {
        let rows = rows(says);
        let params = SamplerParams {
            temperature: 0.0,
            presence_penalty: 0.1,
            ..Default::default()
        };
        let mut sampler = Sampler::new(params, 0, &[1]);
        let logits = |node: Option<NodeId>| &rows[node.map_or(0, |n| n as usize + 1)][..];
        let mut shown = Vec::new();
        let cut = |token| {
            shown.push(token);
            if token == STOP { Flow::Stop } else { Flow::Continue }
        };
        let verdict = verify(tree, &mut sampler, logits, cut);
        let gained = verdict.as_ref().map_or(0, |v| v.tokens.len());
        assert_eq!(sampler.position(), 1 + gained as u64);
        assert_eq!(shown, verdict.as_ref().map_or(&[][..], |v| &v.tokens));
        let verdict = verdict
            .as_ref()
            .map(|v| (&v.tokens[..], &v.accepted[..], v.discarded_by_cut));
        assert_eq!(verdict, expected.as_ref().map(|v| *v));
    }

    #[test]
    fn k_accepted_tokens_gain_k_plus_one() {
        check(&chain(&[]), &[Some(7)], Ok((&[7], &[], 0)));
        check(
            &chain(&[10, 11]),
            &[Some(9), Some(9), Some(9)],
            Ok((&[9], &[], 0)),
        );
        check(
            &chain(&[10, 11]),
            &[Some(10), Some(9), Some(9)],
            Ok((&[10, 9], &[0], 0)),
        );
        check(
            &chain(&[10, 11]),
            &[Some(10), Some(11), Some(9)],
            Ok((&[10, 11, 9], &[0, 1], 0)),
        );
    }

    #[test]
    fn a_tree_is_left_where_the_target_leaves_it() {
        let tree = tree(&[
            (None, 10),
            (None, 20),
            (Some(1), 10),
            (Some(1), 21),
            (Some(0), 21),
            (Some(3), 22),
        ]);
        let says = |root, after_20, after_21, after_22| {
            [
                Some(root),
                Some(9),
                Some(after_20),
                Some(9),
                Some(after_21),
                Some(9),
                Some(after_22),
            ]
        };
        check(
            &tree,
            &says(20, 21, 22, 23),
            Ok((&[20, 21, 22, 23], &[1, 3, 5], 0)),
        );
        check(&tree, &says(20, 21, 5, 0), Ok((&[20, 21, 5], &[1, 3], 0)));
        check(&tree, &says(20, 10, 0, 0), Ok((&[20, 10, 9], &[1, 2], 0)));
        check(&tree, &says(21, 0, 0, 0), Ok((&[21], &[], 0)));
    }

    #[test]
    fn the_first_stop_ends_the_run() {
        let says = [Some(10), Some(11), Some(STOP), Some(20), Some(21)];
        check(
            &chain(&[10, 11, STOP, 20]),
            &says,
            Ok((&[10, 11, STOP], &[0, 1, 2], 1)),
        );
        check(
            &chain(&[10, 11, STOP, 5]),
            &says,
            Ok((&[10, 11, STOP], &[0, 1, 2], 0)),
        );
        check(&chain(&[10, 11]), &says, Ok((&[10, 11, STOP], &[0, 1], 0)));
        check(
            &chain(&[10, 11, STOP]),
            &says,
            Ok((&[10, 11, STOP], &[0, 1, 2], 0)),
        );
        check(
            &chain(&[STOP, STOP]),
            &[Some(STOP), Some(STOP), Some(1)],
            Ok((&[STOP], &[0], 1)),
        );
    }

    #[test]
    fn a_row_that_is_no_number_fails_only_as_a_root() {
        check(
            &chain(&[10]),
            &[None, Some(3)],
            Err(LogitError::NotFinite { token: 0 }),
        );
        check(&chain(&[10, 11]), &[Some(10), None, None], Ok((&[10], &[], 0)));
        check(
            &chain(&[10, 11]),
            &[Some(10), Some(11), None],
            Ok((&[10, 11], &[0], 0)),
        );
        // Rows that are not reached do not matter, nor those after a cut.
        check(&chain(&[10, 11]), &[Some(9), None, None], Ok((&[9], &[], 0)));
        check(
            &chain(&[STOP, 11]),
            &[Some(STOP), None, None],
            Ok((&[STOP], &[0], 0)),
        );
    }

    #[test]
    fn penalties_follow_the_path() {
        // Each token costs its own repetition 60 nats: the target says 10 once, and then its second choice.
        let params = SamplerParams {
            temperature: 0.0,
            presence_penalty: 60.0,
            ..Default::default()
        };
        let mut row = vec![0.0; 32];
        row[10] = 50.0;
        row[11] = 20.0;
        let draft = chain(&[10, 11, 0]);
        let verdict = verify(
            &draft,
            &mut Sampler::new(params, 0, &[10, 11]),
            |_| &row,
            |_| Flow::Continue,
        )
        .unwrap();
        assert_eq!(verdict.tokens, [10, 11, 0, 1]);
        assert_eq!(verdict.accepted, [0, 1, 2]);
    }

    #[test]
    fn forced_acceptance_has_its_probability_and_nothing_else() {
        let row = vec![0.0; 32];
        let run = |probability: f64| {
            let mut sampler = Sampler::new(
                SamplerParams {
                    temperature: 0.0,
                    ..Default::default()
                },
                0,
                &[1],
            );
            let forced = ForcedAcceptance { probability, key: 5 };
            let (mut accepted, mut rounds) = (0, 0);
            while sampler.position() < 20_000 {
                // The target itself says 0, which the draft holds too.
                let draft = chain(&[0, 9, 0, 9]);
                let verdict =
                    verify_forced(&draft, &mut sampler, |_| &row, |_| Flow::Continue, forced).unwrap();
                assert_eq!(verdict.tokens.len(), verdict.accepted.len() + 1);
                accepted += verdict.accepted.len();
                rounds += 1;
            }
            accepted as f64 / f64::from(rounds)
        };
        assert_eq!(run(0.0), 0.0);
        assert_eq!(run(1.0), 4.0);
        // p + p² + p³ + p⁴
        let expected = 0.6 + 0.36 + 0.216 + 0.1296;
        assert!(
            (run(0.6) - expected).abs() < 0.05,
            "{} accepted, not {expected}",
            run(0.6)
        );
    }
}
