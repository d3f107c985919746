//! Cutting a text at its special tokens.
//!
//! The rule is llama.cpp's: the longest special token is cut out first, wherever it stands, then the next
//! one in what is left. That is not leftmost-longest: of two that overlap, the longer wins even where the
//! shorter starts earlier.

use super::vocab::{Kind, Vocab};
use aho_corasick::AhoCorasick;
use foretoken_spec::Token;
use std::ops::Range;

/// A part of a text; ranges are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fragment {
    Text(Range<usize>),
    Token(Token, Range<usize>),
}

/// Finds special tokens.
#[derive(Debug)]
pub(super) struct Matcher {
    /// Longest first; of one length, lowest id first.
    tokens: Vec<Entry>,
    /// Which of them a text contains at all: few do of thousands. Patterns are indices of `tokens`.
    automaton: AhoCorasick,
    /// Whether white space is part of the text of a control token.
    pub control_has_space: bool,
}

#[derive(Debug)]
struct Entry {
    token: Token,
    piece: Box<str>,
    /// Always cut out, not only where special tokens are parsed.
    user_defined: bool,
}

impl Matcher {
    pub fn new(vocab: &Vocab) -> Result<Self, String> {
        let mut tokens: Vec<Entry> = vocab
            .iter()
            .filter(|(_, piece, kind)| {
                !piece.is_empty() && matches!(kind, Kind::Control | Kind::Unknown | Kind::UserDefined)
            })
            .map(|(token, piece, kind)| Entry {
                token,
                piece: piece.into(),
                user_defined: kind == Kind::UserDefined,
            })
            .collect();
        tokens.sort_by_key(|entry| std::cmp::Reverse(entry.piece.len()));
        let automaton = AhoCorasick::new(tokens.iter().map(|entry| entry.piece.as_bytes()))
            .map_err(|error| format!("special tokens: {error}"))?;
        let control_has_space = tokens
            .iter()
            .any(|entry| !entry.user_defined && entry.piece.contains(char::is_whitespace));
        Ok(Self {
            tokens,
            automaton,
            control_has_space,
        })
    }

    /// The parts of `text`, none empty. Where control and unknown tokens overlap one of the `literal` ranges
    /// (ascending, disjoint), they stay text, and so do those user-defined tokens that are `markup` (ascending).
    pub fn cut(&self, text: &str, literal: &[Range<usize>], markup: &[Token]) -> Vec<Fragment> {
        let mut present = Vec::new();
        let mut seen = vec![false; self.tokens.len()];
        for found in self.automaton.find_overlapping_iter(text) {
            let index = found.pattern().as_usize();
            if !std::mem::replace(&mut seen[index], true) {
                present.push(index);
            }
        }
        present.sort_unstable();
        let mut fragments = Vec::new();
        if !text.is_empty() {
            fragments.push(Fragment::Text(0..text.len()));
        }
        for index in present {
            let entry = &self.tokens[index];
            let always = entry.user_defined && markup.binary_search(&entry.token).is_err();
            let allowed = |found: &Range<usize>| always || !overlaps(literal, found);
            let mut cut = Vec::with_capacity(fragments.len());
            for fragment in fragments {
                match fragment {
                    Fragment::Text(range) => entry.cut(text, range, allowed, &mut cut),
                    token => cut.push(token),
                }
            }
            fragments = cut;
        }
        fragments
    }

    /// User-defined tokens that serve a template as control tokens, ascending: those it writes in its own text,
    /// which is any of `own` outside of the ranges, and those in bars. White space and single characters, which
    /// some vocabularies list as user-defined, are never among them.
    pub fn markup(&self, own: &[(&str, &[Range<usize>])]) -> Vec<Token> {
        let written = own.iter().flat_map(|&(text, literal)| {
            let found = self.automaton.find_overlapping_iter(text);
            found
                .filter(|found| !overlaps(literal, &found.range()))
                .map(|found| &self.tokens[found.pattern().as_usize()])
        });
        let in_bars = self
            .tokens
            .iter()
            .filter(|entry| super::vocab::in_bars(&entry.piece));
        let mut tokens: Vec<Token> = written
            .chain(in_bars)
            .filter(|entry| entry.user_defined && entry.is_tag())
            .map(|entry| entry.token)
            .collect();
        tokens.sort_unstable();
        tokens.dedup();
        tokens
    }
}

impl Entry {
    /// Whether the piece is more than one character, and more than white space.
    fn is_tag(&self) -> bool {
        let blank = |c: char| c.is_whitespace() || super::spm::SPACE.contains(c);
        self.piece.chars().nth(1).is_some() && !self.piece.chars().all(blank)
    }

    fn cut(
        &self,
        text: &str,
        Range { mut start, end }: Range<usize>,
        allowed: impl Fn(&Range<usize>) -> bool,
        fragments: &mut Vec<Fragment>,
    ) {
        let mut from = start;
        while let Some(offset) = text[from..end].find(&*self.piece) {
            let found = from + offset..from + offset + self.piece.len();
            if !allowed(&found) {
                from = found.start + text[found.start..].chars().next().map_or(1, char::len_utf8);
                continue;
            }
            if start < found.start {
                fragments.push(Fragment::Text(start..found.start));
            }
            start = found.end;
            from = found.end;
            fragments.push(Fragment::Token(self.token, found));
        }
        if start < end {
            fragments.push(Fragment::Text(start..end));
        }
    }
}

fn overlaps(ranges: &[Range<usize>], range: &Range<usize>) -> bool {
    let first = ranges.partition_point(|other| other.end <= range.start);
    ranges.get(first).is_some_and(|other| other.start < range.end)
}
