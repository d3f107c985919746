//! How much may be drafted: the bounds that a request or a user sets.
//!
//! Not here: costs and observed acceptance. The controller, which knows them, is a drafter and decides within these
//! bounds.

use foretoken_spec::{Budget, ModelInfo, Sources, TokenTree};

/// Tokens that may be tried in one place.
const BRANCHES: usize = 4;

/// Bounds of the length of drafts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DraftPolicy {
    /// Most draft tokens of a round.
    pub max: usize,
    /// Drafts of fewer tokens than this are dropped.
    pub min: usize,
    /// Exactly so many draft tokens, as far as limits allow: the other settings then do not count.
    pub fixed: Option<usize>,
    /// A draft ends before a token of less confidence than this.
    pub p_min: f32,
}

impl Default for DraftPolicy {
    fn default() -> Self {
        Self {
            max: 15,
            min: 0,
            fixed: None,
            p_min: 0.0,
        }
    }
}

/// What one request asks of its drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftLimits {
    /// Who may draft; with none it is decoded plainly.
    pub sources: Sources,
    /// Most draft tokens of a round.
    pub max: usize,
}

impl Default for DraftLimits {
    fn default() -> Self {
        Self {
            sources: Sources::ALL,
            max: usize::MAX,
        }
    }
}

impl DraftLimits {
    /// Whether they leave anything to draft.
    pub fn any(&self) -> bool {
        self.sources != Sources::NONE && self.max > 0
    }
}

impl DraftPolicy {
    /// What the next draft of a sequence may be, where `room` tokens may precede the last one that the
    /// sequence can hold, and its request asked for no more than `limits`.
    pub fn budget(&self, room: usize, limits: &DraftLimits) -> Budget {
        let (most, max_branches, min_confidence) = match self.fixed {
            Some(exactly) => (exactly, 1, 0.0),
            None => (self.max, BRANCHES, self.p_min),
        };
        let most = most.min(room).min(limits.max);
        Budget {
            sources: limits.sources,
            max_nodes: most,
            max_depth: most,
            max_branches,
            max_read: usize::MAX,
            min_path_probability: 0.0,
            min_confidence,
        }
    }

    /// Whether a draft of this depth is worth verifying.
    pub fn keeps(&self, depth: usize) -> bool {
        self.fixed.is_some() || depth >= self.min
    }
}

/// Cuts a tree down to what was asked for, whatever the drafter made of it, and returns its depth.
pub(crate) fn fit(tree: &mut TokenTree, budget: &Budget, info: &ModelInfo) -> usize {
    let mut depths: Vec<usize> = Vec::with_capacity(tree.len());
    for node in tree.nodes() {
        depths.push(node.parent.map_or(1, |parent| depths[parent as usize] + 1));
    }
    let (mut kept, mut deepest, mut tip) = (0, 0, None);
    tree.retain(|id, node| {
        let depth = depths[id as usize];
        let fits = kept < budget.max_nodes
            && depth <= budget.max_depth
            && (node.token as usize) < info.vocab_size
            && (info.capabilities.trees || node.parent == tip);
        if fits {
            kept += 1;
            deepest = deepest.max(depth);
            tip = Some(id);
        }
        fits
    });
    deepest
}
