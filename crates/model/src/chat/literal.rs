//! Telling text of messages from text of the template after the template has mixed them.
//!
//! Two private characters that occur nowhere else enclose each character of a message that must stay text.
//! The template carries them along when it trims, joins, cuts or changes case, and they are taken out of
//! what it writes: what they enclosed is literal. White space at the ends of a message is not enclosed, so
//! that trimming works.

use std::collections::HashSet;
use std::ops::Range;

/// Roles that templates have words for. They are part of the template's language, not a user's text: some
/// write `<|` + role + `|>`.
const ROLES: [&str; 10] = [
    "system",
    "developer",
    "user",
    "assistant",
    "model",
    "tool",
    "function",
    "ipython",
    "observation",
    "context",
];

pub(super) fn is_role(role: &str) -> bool {
    ROLES.contains(&role)
}

/// The range of a text without the white space at its ends, unless `space` counts too.
pub(super) fn inside(text: &str, space: bool) -> Range<usize> {
    if space {
        return 0..text.len();
    }
    let start = text.len() - text.trim_start().len();
    start..start + text.trim().len()
}

/// The enclosing characters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marks {
    open: char,
    close: char,
}

impl Marks {
    /// Two private characters that do not occur in the texts.
    pub fn unused_in<'t>(texts: impl Iterator<Item = &'t str>) -> Option<Self> {
        let private = |c: &char| matches!(c, '\u{E000}'..='\u{F8FF}' | '\u{F0000}'..='\u{10FFFF}');
        let used: HashSet<char> = texts.flat_map(str::chars).filter(private).collect();
        let mut unused = ('\u{E000}'..='\u{10FFFF}')
            .filter(private)
            .filter(|c| !used.contains(c));
        Some(Self {
            open: unused.next()?,
            close: unused.next()?,
        })
    }

    /// Encloses each character in `ranges`: ascending, disjoint, in bytes.
    pub fn mark(self, text: &str, ranges: &[Range<usize>]) -> String {
        let inside: usize = ranges.iter().map(ExactSizeIterator::len).sum();
        let mut marked = String::with_capacity(text.len() + inside * 6);
        let mut end = 0;
        for range in ranges {
            marked.push_str(&text[end..range.start]);
            for c in text[range.clone()].chars() {
                marked.extend([self.open, c, self.close]);
            }
            end = range.end;
        }
        marked.push_str(&text[end..]);
        marked
    }

    /// Takes the marks out, and tells the ranges that were enclosed: ascending, disjoint, in bytes. A mark
    /// whose partner the template cut off encloses its neighbour.
    pub fn remove(self, marked: &str) -> (String, Vec<Range<usize>>) {
        /// What the last mark was, as long as it waits for something.
        enum Seen {
            Nothing,
            Open,
            Enclosed,
        }
        let mut text = String::with_capacity(marked.len());
        let mut ranges: Vec<Range<usize>> = Vec::new();
        let mut seen = Seen::Nothing;
        let mut last = 0;
        for c in marked.chars() {
            if c == self.open {
                seen = Seen::Open;
                continue;
            }
            let enclosed = if c == self.close {
                matches!(seen, Seen::Nothing)
            } else {
                last = text.len();
                text.push(c);
                matches!(seen, Seen::Open)
            };
            seen = if enclosed && c != self.close {
                Seen::Enclosed
            } else {
                Seen::Nothing
            };
            if !enclosed || last == text.len() {
                continue;
            }
            match ranges.last_mut() {
                Some(range) if range.end >= last => range.end = text.len(),
                _ => ranges.push(last..text.len()),
            }
        }
        (text, ranges)
    }
}
