//! The token tree: what one round proposes for one sequence. A chain is a tree of width one.

use crate::Token;

/// The index of a node within its [`TokenTree`].
pub type NodeId = u32;

/// Which kind of drafter proposed a node. Statistics are kept by source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Source {
    /// A separate draft model.
    Model,
    /// A speculator: an MLP that reads the target's hidden state.
    Mlp,
    /// What followed the same words before, in the sequence itself or in a corpus.
    Suffix,
    /// What the target thought before might follow a token.
    Recycling,
    /// What the request says that the answer will be.
    Prediction,
    /// Text that the request's grammar leaves no choice about.
    Grammar,
    /// Something a test or a measurement made up.
    Scripted,
}

impl Source {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Model,
        Self::Mlp,
        Self::Suffix,
        Self::Recycling,
        Self::Prediction,
        Self::Grammar,
        Self::Scripted,
    ];

    /// A name for reports and options: that of its drafter.
    pub fn name(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Mlp => "mlp",
            Self::Suffix => "suffix",
            Self::Recycling => "recycling",
            Self::Prediction => "prediction",
            Self::Grammar => "grammar",
            Self::Scripted => "scripted",
        }
    }
}

/// Kinds of drafters: which of them may propose something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sources(u8);

impl Sources {
    /// Any that there is.
    pub const ALL: Self = Self(u8::MAX);
    /// None: plain decoding.
    pub const NONE: Self = Self(0);

    /// This kind alone.
    pub fn only(source: Source) -> Self {
        Self(1 << source as u8)
    }

    /// All of these but one kind.
    pub fn without(self, source: Source) -> Self {
        Self(self.0 & !(1 << source as u8))
    }

    /// The kind that is alone among them.
    pub fn single(self) -> Option<Source> {
        let mut all = Source::ALL.into_iter();
        let first = all.find(|&source| self.contains(source))?;
        all.all(|source| !self.contains(source)).then_some(first)
    }

    /// Whether this kind is among them.
    pub fn contains(self, source: Source) -> bool {
        self.0 & (1 << source as u8) != 0
    }
}

impl Default for Sources {
    fn default() -> Self {
        Self::ALL
    }
}

/// One proposed token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Node {
    /// The token.
    pub token: Token,
    /// The node that it follows; `None` if it follows the last committed token.
    pub parent: Option<NodeId>,
    /// The drafter's estimate, in 0…1, that the token is accepted given that its parent was.
    pub confidence: f32,
    /// Who proposed it.
    pub source: Source,
    /// 0 for the drafter's first choice at this place, 1 for its second, …
    pub rank: u16,
}

/// Proposed continuations of a sequence's last committed token, which is the root and no node itself.
/// Nodes stand after their parents; siblings hold distinct tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenTree {
    nodes: Vec<Node>,
}

impl TokenTree {
    /// Removes all nodes; keeps the memory.
    pub fn clear(&mut self) {
        self.nodes.clear();
    }

    /// Appends a node, or returns the sibling that already holds its token, so that two drafters may
    /// propose the same continuation; the surer of the two then speaks for it.
    ///
    /// # Panics
    /// If the parent is not in the tree.
    pub fn push(&mut self, node: Node) -> NodeId {
        if let Some(parent) = node.parent {
            assert!(
                (parent as usize) < self.nodes.len(),
                "a node's parent stands before it"
            );
        }
        if let Some(existing) = self.child(node.parent, node.token) {
            let before = &mut self.nodes[existing as usize];
            if node.confidence > before.confidence {
                *before = node;
            }
            return existing;
        }
        self.nodes.push(node);
        (self.nodes.len() - 1) as NodeId
    }

    /// The node after `parent` that holds `token`.
    pub fn child(&self, parent: Option<NodeId>, token: Token) -> Option<NodeId> {
        self.children(parent)
            .find(|&node| self.nodes[node as usize].token == token)
    }

    /// The nodes after `parent`, in the order proposed.
    pub fn children(&self, parent: Option<NodeId>) -> impl Iterator<Item = NodeId> {
        let first = parent.map_or(0, |p| p + 1);
        (first..self.nodes.len() as NodeId).filter(move |&node| self.nodes[node as usize].parent == parent)
    }

    /// The nodes, parents before children.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether nothing is proposed.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The depth of a node: 1 for one that follows the root.
    pub fn depth(&self, node: NodeId) -> usize {
        std::iter::successors(Some(node), |&n| self.nodes[n as usize].parent).count()
    }

    /// The nodes whose way from the root passes through `node`, itself not among them.
    pub fn below(&self, node: NodeId) -> impl Iterator<Item = NodeId> {
        let ancestors = |of| std::iter::successors(Some(of), |&n: &NodeId| self.nodes[n as usize].parent);
        (node + 1..self.nodes.len() as NodeId).filter(move |&other| ancestors(other).any(|n| n == node))
    }

    /// The tokens from the root to a node, its own the last.
    pub fn path(&self, node: NodeId) -> Vec<Token> {
        let up = std::iter::successors(Some(node), |&n| self.nodes[n as usize].parent);
        let mut tokens: Vec<Token> = up.map(|n| self.nodes[n as usize].token).collect();
        tokens.reverse();
        tokens
    }

    /// The product of the confidences on the way to a node: the estimate that it is accepted.
    pub fn path_probability(&self, node: NodeId) -> f32 {
        std::iter::successors(Some(node), |&n| self.nodes[n as usize].parent)
            .map(|n| self.nodes[n as usize].confidence)
            .product()
    }

    /// Keeps the nodes for which `keep` holds and whose ancestors are all kept; the order stays.
    pub fn retain(&mut self, mut keep: impl FnMut(NodeId, &Node) -> bool) {
        let mut moved: Vec<Option<NodeId>> = Vec::with_capacity(self.nodes.len());
        let mut kept = 0;
        for at in 0..self.nodes.len() {
            let mut node = self.nodes[at];
            let parent = node.parent.map(|p| moved[p as usize]);
            if parent == Some(None) || !keep(at as NodeId, &node) {
                moved.push(None);
                continue;
            }
            node.parent = parent.flatten();
            self.nodes[kept] = node;
            moved.push(Some(kept as NodeId));
            kept += 1;
        }
        self.nodes.truncate(kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(parent: Option<NodeId>, token: Token, confidence: f32) -> Node {
        Node {
            token,
            parent,
            confidence,
            source: Source::Scripted,
            rank: 0,
        }
    }

    fn sample() -> TokenTree {
        let mut tree = TokenTree::default();
        for (parent, token, confidence) in [
            (None, 5, 0.5),
            (None, 6, 0.25),
            (Some(0), 6, 0.5),
            (Some(1), 6, 1.0),
            (Some(2), 7, 0.5),
            (Some(2), 8, 0.25),
        ] {
            tree.push(node(parent, token, confidence));
        }
        tree
    }

    #[test]
    fn siblings_hold_distinct_tokens() {
        let mut tree = sample();
        assert_eq!(tree.len(), 6);
        assert_eq!(tree.push(node(Some(0), 6, 0.9)), 2);
        assert_eq!(tree.push(node(None, 6, 0.1)), 1);
        // The surer one counts.
        assert_eq!((tree.len(), tree.nodes()[2].confidence), (6, 0.9));
        assert_eq!(tree.nodes()[1].confidence, 0.25);
        assert_eq!(tree.push(node(Some(1), 7, 0.9)), 6);
        assert_eq!(tree.child(Some(2), 8), Some(5));
        assert_eq!(tree.child(Some(2), 6), None);
        assert_eq!(tree.children(None).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(tree.children(Some(2)).collect::<Vec<_>>(), [4, 5]);
        assert_eq!(tree.children(Some(5)).count(), 0);
    }

    #[test]
    fn depth_path_and_probability_go_up_to_the_root() {
        let tree = sample();
        assert_eq!((tree.depth(1), tree.depth(4)), (1, 3));
        assert_eq!(tree.path(4), [5, 6, 7]);
        assert_eq!(tree.path_probability(4), 0.125);
    }

    #[test]
    fn what_hangs_on_a_dropped_node_is_dropped() {
        let mut tree = sample();
        tree.retain(|id, _| id != 0);
        let left: Vec<_> = tree.nodes().iter().map(|n| (n.parent, n.token)).collect();
        assert_eq!(left, [(None, 6), (Some(0), 6)]);
        let mut tree = sample();
        tree.retain(|id, node| id != 1 && node.token != 7);
        let left: Vec<_> = tree.nodes().iter().map(|n| (n.parent, n.token)).collect();
        assert_eq!(left, [(None, 5), (Some(0), 6), (Some(1), 8)]);
    }
}
