//! A suffix automaton that counts what followed each context.
//!
//! The smallest automaton that knows every stretch of a text (Blumer et al. 1985), built token by token in amortised
//! constant time. A *state* stands for contexts that have ended at the same places so far, the longest of them `len`
//! tokens; its *link* leads to the longest shorter context that has also ended elsewhere. So the chain of links from a state
//! is everything that the text knows of its own end, longest first. Each edge counts how often its token followed.
//!
//! States are at most twice, edges three times as many as tokens. Not here: what the counts mean.

use std::collections::HashMap;

use smallvec::SmallVec;

use crate::Token;

/// The state of the empty context.
const ROOT: u32 = 0;
const NONE: u32 = u32::MAX;
/// So many contexts of a token, the longest that were seen before, count it. A text of one repeated token has as many
/// contexts as tokens.
const COUNTED: usize = 32;
/// The first edges of a state are the most frequent, in order.
const FRONT: usize = 8;
/// From so many edges on, a state has a table of them.
const WIDE: usize = 16;

/// Everything that stands in a text.
#[derive(Clone, Debug)]
pub(super) struct Automaton {
    states: Vec<State>,
    /// The state of the whole text.
    last: u32,
    tokens: usize,
}

#[derive(Clone, Debug)]
struct State {
    link: u32,
    len: u32,
    /// Sum of the edges' counts.
    total: u32,
    edges: SmallVec<[Edge; 1]>,
    /// Where each token's edge stands; only a state with many has it, and most have not even a table's size.
    #[allow(clippy::box_collection)]
    index: Option<Box<HashMap<Token, u32>>>,
}

/// A token that followed a context.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edge {
    pub token: Token,
    pub count: u32,
    to: u32,
}

/// The longest end of some text that an automaton knows, `len` tokens long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cursor {
    state: u32,
    len: u32,
}

impl Cursor {
    /// Nothing is known.
    pub const EMPTY: Self = Self { state: ROOT, len: 0 };
}

/// A context and what followed it: the most frequent first, as far as eight go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context<'a> {
    pub len: u32,
    pub total: u32,
    pub edges: &'a [Edge],
}

impl State {
    fn new(link: u32, len: u32) -> Self {
        Self {
            link,
            len,
            total: 0,
            edges: SmallVec::new(),
            index: None,
        }
    }

    fn find(&self, token: Token) -> Option<usize> {
        match &self.index {
            Some(index) => index.get(&token).map(|&at| at as usize),
            None => self.edges.iter().position(|edge| edge.token == token),
        }
    }

    fn add(&mut self, token: Token, to: u32) {
        let at = self.edges.len() as u32;
        self.edges.push(Edge { token, count: 1, to });
        self.total += 1;
        if let Some(index) = &mut self.index {
            index.insert(token, at);
        } else if self.edges.len() > WIDE {
            let edges = self.edges.iter().map(|edge| edge.token);
            self.index = Some(Box::new(edges.zip(0..).collect()));
        }
        self.rise(at as usize);
    }

    fn count(&mut self, at: usize) {
        self.edges[at].count += 1;
        self.total += 1;
        self.rise(at);
    }

    /// Moves an edge whose count grew to its place among the most frequent; of equals the latest comes first.
    fn rise(&mut self, mut at: usize) {
        if at >= FRONT && self.edges[at].count >= self.edges[FRONT - 1].count {
            self.swap(at, FRONT - 1);
            at = FRONT - 1;
        }
        while (1..FRONT).contains(&at) && self.edges[at].count >= self.edges[at - 1].count {
            self.swap(at, at - 1);
            at -= 1;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.edges.swap(a, b);
        if let Some(index) = &mut self.index {
            for at in [a, b] {
                index.insert(self.edges[at].token, at as u32);
            }
        }
    }
}

impl Default for Automaton {
    fn default() -> Self {
        Self {
            states: vec![State::new(NONE, 0)],
            last: ROOT,
            tokens: 0,
        }
    }
}

impl Automaton {
    /// Tokens of the text.
    pub fn len(&self) -> usize {
        self.tokens
    }

    /// Appends a token to the text.
    ///
    /// # Panics
    /// From 2³¹ tokens on.
    pub fn push(&mut self, token: Token) {
        self.tokens += 1;
        let current = self.states.len() as u32;
        assert!(current < NONE / 2, "a text that can be counted");
        let len = self.states[self.last as usize].len + 1;
        self.states.push(State::new(ROOT, len));
        let mut at = self.last;
        self.last = current;
        // Contexts that no token of this kind followed so far: the longest ones.
        let found = loop {
            if at == NONE {
                return;
            }
            match self.states[at as usize].find(token) {
                Some(edge) => break self.states[at as usize].edges[edge].to,
                None => self.states[at as usize].add(token, current),
            }
            at = self.states[at as usize].link;
        };
        let len = self.states[at as usize].len + 1;
        let link = if self.states[found as usize].len == len {
            found
        } else {
            self.split(found, len, at, token)
        };
        self.states[current as usize].link = link;
        for _ in 0..COUNTED {
            if at == NONE {
                break;
            }
            let state = &mut self.states[at as usize];
            let edge = state
                .find(token)
                .expect("shorter contexts know what longer ones do");
            state.count(edge);
            at = state.link;
        }
    }

    /// Gives the contexts of `state` that are at most `len` tokens long a state of their own: they end somewhere that
    /// the others do not. Such are those that `token` leads to from `from` and from what that links to.
    fn split(&mut self, state: u32, len: u32, mut from: u32, token: Token) -> u32 {
        let shorter = self.states.len() as u32;
        let mut copy = self.states[state as usize].clone();
        copy.len = len;
        self.states.push(copy);
        self.states[state as usize].link = shorter;
        while from != NONE {
            let context = &mut self.states[from as usize];
            let at = context
                .find(token)
                .expect("shorter contexts know what longer ones do");
            if context.edges[at].to != state {
                break;
            }
            context.edges[at].to = shorter;
            from = context.link;
        }
        shorter
    }

    /// The longest end of the text that stands elsewhere in it too.
    pub fn end(&self) -> Cursor {
        let link = self.states[self.last as usize].link;
        match link {
            NONE => Cursor::EMPTY,
            state => Cursor {
                state,
                len: self.states[state as usize].len,
            },
        }
    }

    /// The longest end of a text of which `cursor` was that, after one token more.
    pub fn advance(&self, cursor: Cursor, token: Token) -> Cursor {
        let Cursor { mut state, mut len } = cursor;
        loop {
            let at = &self.states[state as usize];
            if let Some(edge) = at.find(token) {
                let state = at.edges[edge].to;
                return Cursor { state, len: len + 1 };
            }
            if state == ROOT {
                return Cursor::EMPTY;
            }
            state = at.link;
            len = self.states[state as usize].len;
        }
    }

    /// The contexts that the text ends with, the longest first; the empty one is not among them.
    pub fn contexts(&self, cursor: Cursor) -> impl Iterator<Item = Context<'_>> {
        let link = |at: &Cursor| {
            let state = self.states[at.state as usize].link;
            (state != NONE).then(|| Cursor {
                state,
                len: self.states[state as usize].len,
            })
        };
        let chain = std::iter::successors(Some(cursor), link);
        chain.take_while(|at| at.state != ROOT).map(|at| {
            let State { edges, total, .. } = &self.states[at.state as usize];
            Context {
                len: at.len,
                total: *total,
                edges: &edges[..edges.len().min(FRONT)],
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn automaton(text: &[Token]) -> Automaton {
        let mut automaton = Automaton::default();
        text.iter().for_each(|&token| automaton.push(token));
        automaton
    }

    /// The longest end of `end` that stands in `text`, apart from the place where `text` ends if `earlier`.
    fn longest(text: &[Token], end: &[Token], earlier: bool) -> usize {
        let known = |n: &usize| {
            let places = text.len() + 1 - usize::from(earlier);
            *n == 0 || (*n..places).any(|at| text[..at].ends_with(&end[end.len() - n..]))
        };
        (0..=end.len().min(text.len())).rev().find(known).unwrap_or(0)
    }

    /// How often each token followed a context.
    fn followers(text: &[Token], context: &[Token]) -> HashMap<Token, u32> {
        let mut counts = HashMap::new();
        for window in text.windows(context.len() + 1).filter(|w| w.starts_with(context)) {
            *counts.entry(window[context.len()]).or_insert(0) += 1;
        }
        counts
    }

    proptest! {
        #[test]
        fn it_knows_what_the_text_knows(text in prop::collection::vec(0u32..4, 0..COUNTED)) {
            let automaton = automaton(&text);
            let cursor = automaton.end();
            prop_assert_eq!(cursor.len as usize, longest(&text, &text, true));
            prop_assert!(automaton.states.len() <= 2 * text.len().max(1));
            let edges: usize = automaton.states.iter().map(|s| s.edges.len()).sum();
            prop_assert!(edges <= 3 * text.len());
            for context in automaton.contexts(cursor) {
                let expected = followers(&text, &text[text.len() - context.len as usize..]);
                prop_assert_eq!(context.total, expected.values().sum::<u32>());
                for edge in context.edges {
                    prop_assert_eq!(Some(&edge.count), expected.get(&edge.token));
                }
                prop_assert!(context.edges.is_sorted_by(|a, b| a.count >= b.count));
            }
        }

        #[test]
        fn another_text_is_followed_through_it(
            text in prop::collection::vec(0u32..3, 0..40),
            other in prop::collection::vec(0u32..4, 0..40),
        ) {
            let automaton = automaton(&text);
            let mut cursor = Cursor::EMPTY;
            for (at, &token) in other.iter().enumerate() {
                cursor = automaton.advance(cursor, token);
                prop_assert_eq!(cursor.len as usize, longest(&text, &other[..=at], false));
            }
        }
    }

    #[test]
    fn the_most_frequent_come_first_and_of_equals_the_latest() {
        // After token 0: 40 tokens once each, then token 20 again, then 21.
        let mut text: Vec<Token> = (1..=40).flat_map(|t| [0, t]).collect();
        text.extend([0, 20, 0, 21, 0]);
        let automaton = automaton(&text);
        let context = automaton.contexts(automaton.end()).last().unwrap();
        assert_eq!((context.len, context.total, context.edges.len()), (1, 42, FRONT));
        let first: Vec<_> = context.edges.iter().take(3).map(|e| (e.token, e.count)).collect();
        assert_eq!(first[..2], [(21, 2), (20, 2)]);
        assert_eq!(first[2].1, 1);
    }

    #[test]
    fn one_token_repeated_takes_linear_time() {
        let automaton = automaton(&vec![7; 200_000]);
        assert_eq!((automaton.len(), automaton.end().len), (200_000, 199_999));
    }
}
