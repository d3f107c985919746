//! What a drafter's confidence is worth: the share of its tokens that come true.
//!
//! Nodes are counted by source, by being a first choice or not, by depth and by confidence; the share of each kind is that
//! of nodes whose parent was accepted. A kind that was seldom seen leans on the same source and confidence at any depth,
//! and that on the confidence itself. One sequence's text may repeat itself where another's does not: what it did itself
//! counts first, what all did serves as its prior.

use std::collections::HashMap;

use crate::{Node, NodeId, Source, TokenTree};

/// How many observations a prior counts for.
const PRIOR: f32 = 6.0;
/// What remains of an observation after the next one of its kind.
const DECAY: f32 = 0.98;
/// Upper bounds of the classes of confidence.
const CLASSES: [f32; 9] = [0.04, 0.08, 0.15, 0.25, 0.4, 0.6, 0.8, 0.93, 1.0];
/// Depths from here on are alike.
const DEEP: usize = 4;
/// How many standard deviations the lower bound lies below the estimate.
const CAUTION: f32 = 0.5;

/// An estimate of how likely a node is accepted if its parent is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Chance {
    pub mean: f32,
    /// What can be relied upon.
    pub lower: f32,
}

/// Discounted counts of one kind of node.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    seen: f32,
    accepted: f32,
}

impl Count {
    fn add(&mut self, accepted: bool) {
        self.seen = self.seen * DECAY + 1.0;
        self.accepted = self.accepted * DECAY + f32::from(u8::from(accepted));
    }

    fn mean(&self, prior: f32) -> f32 {
        (self.accepted + PRIOR * prior) / (self.seen + PRIOR)
    }
}

/// A kind of node: its source, whether it is a first choice, its class of confidence, and, for the finer kinds, depth.
type Kind = (Source, bool, u8, Option<u8>);

/// Counts of all kinds.
#[derive(Clone, Debug, Default)]
pub(super) struct Calibration {
    counts: HashMap<Kind, Count>,
}

impl Calibration {
    fn kinds(node: &Node, depth: usize) -> [Kind; 2] {
        let class = CLASSES
            .iter()
            .position(|&bound| node.confidence <= bound)
            .unwrap_or(CLASSES.len() - 1);
        let kind = |depth| (node.source, node.rank == 0, class as u8, depth);
        [kind(None), kind(Some(depth.min(DEEP) as u8))]
    }

    fn count(&self, kind: &Kind) -> Count {
        self.counts.get(kind).copied().unwrap_or_default()
    }

    /// The chance of a node at `depth`, 1 for one that follows the root, of a sequence that has counts of its own.
    pub fn chance(&self, of_sequence: &Self, node: &Node, depth: usize) -> Chance {
        let kinds = Self::kinds(node, depth);
        let prior = kinds
            .iter()
            .fold(node.confidence, |prior, kind| self.count(kind).mean(prior));
        let own = of_sequence.count(&kinds[0]);
        let mean = own.mean(prior);
        let seen = own.seen + self.count(&kinds[0]).seen.min(4.0 * PRIOR) + PRIOR;
        let deviation = (mean * (1.0 - mean) / seen).max(0.0).sqrt();
        Chance {
            mean,
            lower: (mean - CAUTION * deviation).max(0.0),
        }
    }

    /// Counts the nodes of a verified tree whose parents were accepted.
    pub fn observe(&mut self, tree: &TokenTree, accepted: &[NodeId]) {
        let mut depths: Vec<usize> = Vec::with_capacity(tree.len());
        for (id, node) in (0..).zip(tree.nodes()) {
            let depth = node.parent.map_or(1, |parent| depths[parent as usize] + 1);
            depths.push(depth);
            if node.parent.is_none_or(|parent| accepted.contains(&parent)) {
                for kind in Self::kinds(node, depth) {
                    self.counts.entry(kind).or_default().add(accepted.contains(&id));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(confidence: f32) -> Node {
        Node {
            token: 1,
            parent: None,
            confidence,
            source: Source::Suffix,
            rank: 0,
        }
    }

    fn after(confidence: f32, outcomes: &[bool]) -> Calibration {
        let mut calibration = Calibration::default();
        for &accepted in outcomes {
            let mut tree = TokenTree::default();
            tree.push(node(confidence));
            calibration.observe(&tree, if accepted { &[0] } else { &[] });
        }
        calibration
    }

    #[test]
    fn nothing_seen_leaves_the_confidence() {
        let none = Calibration::default();
        for confidence in [0.0, 0.3, 0.9, 1.0] {
            let chance = none.chance(&none, &node(confidence), 1);
            assert!((chance.mean - confidence).abs() < 1e-6 && chance.lower <= chance.mean);
        }
    }

    #[test]
    fn what_was_seen_overrules_it() {
        let none = Calibration::default();
        let never = after(0.9, &[false; 60]);
        assert!(never.chance(&none, &node(0.9), 1).mean < 0.1);
        // Another class of confidence knows nothing of it, another depth does.
        assert!(never.chance(&none, &node(0.3), 1).mean > 0.25);
        assert!(never.chance(&none, &node(0.9), 3).mean < 0.2);
        // A sequence's own experience counts before that of all.
        let always = after(0.9, &[true; 60]);
        assert!(never.chance(&always, &node(0.9), 1).mean > 0.8);
        // Late observations count more.
        let turned = after(0.9, &[[false; 100], [true; 100]].concat());
        assert!(turned.chance(&none, &node(0.9), 1).mean > 0.8);
    }

    #[test]
    fn only_what_was_decided_counts() {
        let mut tree = TokenTree::default();
        let first = tree.push(node(0.9));
        tree.push(Node {
            parent: Some(first),
            ..node(0.3)
        });
        let mut calibration = Calibration::default();
        for _ in 0..50 {
            calibration.observe(&tree, &[]);
        }
        let none = Calibration::default();
        assert!(calibration.chance(&none, &node(0.9), 1).mean < 0.2);
        assert!(calibration.chance(&none, &node(0.3), 2).mean > 0.29);
    }
}
