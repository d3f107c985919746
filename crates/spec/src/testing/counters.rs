//! What the rounds of the loops in this module add up to, node by node.
//!
//! Not here: what an engine tells its users; its own statistics say where the output ended.

use crate::{TokenTree, Verdict};

/// Counts of drafts. What stood after a cut was not accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Rounds, those without a draft too.
    pub rounds: u64,
    /// Tokens gained.
    pub tokens: u64,
    /// Draft tokens: nodes of all trees, those behind a cut too.
    pub drafted: u64,
    /// Draft tokens that were accepted.
    pub accepted: u64,
    /// Draft tokens that the target agreed with, but that stood after a cut.
    pub discarded_by_cut: u64,
    /// Nodes by depth; the first entry is depth 1.
    pub drafted_at_depth: Vec<u64>,
    /// Accepted nodes by depth; the first entry is depth 1. As long as `drafted_at_depth`.
    pub accepted_at_depth: Vec<u64>,
}

impl Counters {
    /// Takes in a round of one sequence.
    pub fn record(&mut self, tree: &TokenTree, verdict: &Verdict) {
        self.rounds += 1;
        self.tokens += verdict.tokens.len() as u64;
        self.drafted += tree.len() as u64;
        self.accepted += verdict.accepted.len() as u64;
        self.discarded_by_cut += verdict.discarded_by_cut as u64;
        for node in 0..tree.len() {
            self.at_depth(tree.depth(node as u32));
            self.drafted_at_depth[tree.depth(node as u32) - 1] += 1;
        }
        for (at, _) in verdict.accepted.iter().enumerate() {
            self.accepted_at_depth[at] += 1;
        }
    }

    /// Adds another run's counts.
    pub fn add(&mut self, other: &Counters) {
        self.rounds += other.rounds;
        self.tokens += other.tokens;
        self.drafted += other.drafted;
        self.accepted += other.accepted;
        self.discarded_by_cut += other.discarded_by_cut;
        self.at_depth(other.drafted_at_depth.len());
        let depths = other.drafted_at_depth.iter().zip(&other.accepted_at_depth);
        for (at, (drafted, accepted)) in depths.enumerate() {
            self.drafted_at_depth[at] += drafted;
            self.accepted_at_depth[at] += accepted;
        }
    }

    /// Accepted over all draft tokens; `None` before the first draft.
    pub fn acceptance_rate(&self) -> Option<f64> {
        (self.drafted > 0).then(|| self.accepted as f64 / self.drafted as f64)
    }

    /// Tokens gained a round; `None` before the first.
    pub fn tokens_per_round(&self) -> Option<f64> {
        (self.rounds > 0).then(|| self.tokens as f64 / self.rounds as f64)
    }

    fn at_depth(&mut self, depth: usize) {
        let length = depth.max(self.drafted_at_depth.len());
        self.drafted_at_depth.resize(length, 0);
        self.accepted_at_depth.resize(length, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Node, Source};

    fn tree(parents: &[Option<u32>]) -> TokenTree {
        let mut tree = TokenTree::default();
        for (token, &parent) in (0..).zip(parents) {
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

    #[test]
    fn a_hand_computed_run() {
        let mut counters = Counters::default();
        assert_eq!(
            (counters.acceptance_rate(), counters.tokens_per_round()),
            (None, None)
        );
        // A round without a draft; a chain of three, two accepted; a tree of five, one accepted; a chain of
        // two that ended the generation with its first, the second of which was right.
        let round = |tokens: &[u32], accepted: &[u32], discarded| Verdict {
            tokens: tokens.to_vec(),
            accepted: accepted.to_vec(),
            discarded_by_cut: discarded,
        };
        counters.record(&tree(&[]), &round(&[7], &[], 0));
        assert_eq!(
            (counters.acceptance_rate(), counters.tokens_per_round()),
            (None, Some(1.0))
        );
        counters.record(&tree(&[None, Some(0), Some(1)]), &round(&[0, 1, 9], &[0, 1], 0));
        counters.record(
            &tree(&[None, None, Some(0), Some(1), Some(3)]),
            &round(&[1, 9], &[1], 0),
        );
        counters.record(&tree(&[None, Some(0)]), &round(&[0], &[0], 1));
        let expected = Counters {
            rounds: 4,
            tokens: 7,
            drafted: 10,
            accepted: 4,
            discarded_by_cut: 1,
            drafted_at_depth: vec![4, 4, 2],
            accepted_at_depth: vec![3, 1, 0],
        };
        assert_eq!(counters, expected);
        assert_eq!(
            (counters.acceptance_rate(), counters.tokens_per_round()),
            (Some(0.4), Some(1.75))
        );

        let mut twice = Counters::default();
        twice.add(&expected);
        twice.add(&expected);
        assert_eq!((twice.rounds, twice.accepted_at_depth), (8, vec![6, 2, 0]));
    }
}
