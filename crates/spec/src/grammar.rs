//! What a text must look like: a grammar that the sampler walks with the tokens, and what it makes of drafts.
//!
//! A grammar can change a draft's worth, never a token beyond what it says itself: the sampler asks it at each row, along
//! that row's own path, which tokens may come next. Drafts are cut where it forbids their next token, and where only one
//! text can follow, that text is a draft that costs nothing.
//!
//! Not here: languages that grammars are written in.

use std::fmt::Debug;

use crate::{Budget, Node, NodeId, Source, Token, TokenTree};

/// What the tokens of an answer must be. Its state is the tokens accepted so far.
pub trait Grammar: Debug + Send {
    /// The tokens that may come next: token `t` is bit `t % 32` of word `t / 32`. After a token that ends the generation
    /// none may.
    ///
    /// # Errors
    /// If that takes more time or memory than the grammar may have.
    fn allowed(&mut self) -> Result<&[u32], GrammarError>;

    /// Takes a token in; `false`, and nothing changes, if it may not come next.
    fn accept(&mut self, token: Token) -> bool;

    /// Takes the last `n` accepted tokens back.
    fn rollback(&mut self, n: usize);

    /// Tokens of the text that must come next, as the tokenizer writes it; empty where there is a choice.
    fn forced(&mut self) -> Vec<Token>;

    /// A grammar of its own in the same state.
    fn boxed(&self) -> Box<dyn Grammar>;
}

impl Clone for Box<dyn Grammar> {
    fn clone(&self) -> Self {
        self.boxed()
    }
}

/// A grammar cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the grammar cannot go on: {0}")]
pub struct GrammarError(
    /// Why.
    pub String,
);

/// Confidence in a token of a forced text: there may be other tokens that spell it.
const FORCED: f32 = 0.95;

/// Cuts a draft where the grammar forbids its next token, and lets forced text follow where it ends, as far as the budget
/// goes. The grammar stays as it was.
pub fn apply(grammar: &mut dyn Grammar, tree: &mut TokenTree, budget: &Budget) {
    let mut walk = Walk {
        grammar,
        tree,
        legal: Vec::new(),
        forced: Vec::new(),
    };
    walk.legal.resize(walk.tree.len(), false);
    let forces = budget.sources.contains(Source::Grammar) && budget.max_nodes > 0;
    walk.below(None, 0, if forces { budget.max_depth } else { 0 });
    let Walk { legal, forced, .. } = walk;
    // Appended first: what they follow keeps its id.
    let before = tree.len();
    for (leaf, tokens) in forced {
        let mut parent = leaf;
        for token in tokens {
            if tree.len() - before >= budget.max_nodes {
                break;
            }
            parent = Some(tree.push(Node {
                token,
                parent,
                confidence: FORCED,
                source: Source::Grammar,
                rank: 0,
            }));
        }
    }
    tree.retain(|node, _| legal.get(node as usize).copied().unwrap_or(true));
}

struct Walk<'a> {
    grammar: &'a mut dyn Grammar,
    tree: &'a TokenTree,
    legal: Vec<bool>,
    /// Leaves and the text that must follow them.
    forced: Vec<(Option<NodeId>, Vec<Token>)>,
}

impl Walk<'_> {
    fn below(&mut self, parent: Option<NodeId>, depth: usize, most_depth: usize) {
        let mut leaf = true;
        for child in self.tree.children(parent) {
            if self.grammar.accept(self.tree.nodes()[child as usize].token) {
                leaf = false;
                self.legal[child as usize] = true;
                self.below(Some(child), depth + 1, most_depth);
                self.grammar.rollback(1);
            }
        }
        if leaf && depth < most_depth {
            let mut tokens = self.grammar.forced();
            tokens.truncate(most_depth - depth);
            if !tokens.is_empty() {
                self.forced.push((parent, tokens));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::FixedText;
    use crate::{Sources, TokenTree};

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

    fn budget(nodes: usize, depth: usize, sources: Sources) -> Budget {
        Budget {
            sources,
            max_nodes: nodes,
            max_depth: depth,
            max_branches: 4,
            max_read: usize::MAX,
            min_path_probability: 0.0,
            min_confidence: 0.0,
        }
    }

    #[test]
    fn drafts_are_cut_and_forced_text_follows() {
        // Five, then six or seven, then eight, nine.
        let grammar = || FixedText::new(&[&[5], &[6, 7], &[8], &[9]], 2);
        let check = |nodes: &[(Option<NodeId>, Token)], budget: &Budget, want: &[(Option<NodeId>, Token)]| {
            let mut grammar = grammar();
            let mut got = tree(nodes);
            apply(&mut grammar, &mut got, budget);
            let got: Vec<_> = got.nodes().iter().map(|n| (n.parent, n.token)).collect();
            assert_eq!(got, want);
            assert!(grammar.accept(5), "it stayed as it was");
        };
        let all = budget(15, 15, Sources::ALL);
        check(&[], &all, &[(None, 5)]);
        check(&[(None, 5)], &all, &[(None, 5)]);
        check(&[(None, 6), (Some(0), 5)], &all, &[(None, 5)]);
        check(
            &[(None, 5), (Some(0), 7), (Some(1), 7)],
            &all,
            &[(None, 5), (Some(0), 7), (Some(1), 8), (Some(2), 9)],
        );
        check(
            &[(None, 5), (Some(0), 7), (Some(0), 4), (Some(0), 6), (Some(2), 8)],
            &all,
            &[
                (None, 5),
                (Some(0), 7),
                (Some(0), 6),
                (Some(1), 8),
                (Some(3), 9),
                (Some(2), 8),
                (Some(5), 9),
            ],
        );
        check(
            &[(None, 5), (Some(0), 7)],
            &budget(1, 15, Sources::ALL),
            &[(None, 5), (Some(0), 7), (Some(1), 8)],
        );
        check(
            &[(None, 5), (Some(0), 7)],
            &budget(15, 3, Sources::ALL),
            &[(None, 5), (Some(0), 7), (Some(1), 8)],
        );
        check(&[], &budget(15, 15, Sources::only(Source::Suffix)), &[]);
    }
}
