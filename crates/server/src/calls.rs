//! Tool calls found in an answer's text, as it comes.
//!
//! The grammar of [`crate::tools`] sees to the form: `<tool_call>`, an object with name and arguments, `</tool_call>`. What is
//! found depends on the text alone, not on how it was cut into pieces.

use foretoken_model::{CALL_CLOSE, CALL_OPEN};

/// How a call begins.
pub(crate) const HEAD: &str = "{\"name\": \"";
/// What stands between its name and its arguments.
pub(crate) const MIDDLE: &str = "\", \"arguments\": ";
/// What ends it, before [`CALL_CLOSE`].
pub(crate) const TAIL: &str = "}";

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Content(String),
    /// A call begins; calls are counted from 0.
    Call {
        index: usize,
        name: String,
    },
    /// More of the arguments of a call.
    Arguments {
        index: usize,
        text: String,
    },
}

/// Where the text stands.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum State {
    #[default]
    Text,
    Name,
    /// Within the JSON of the arguments.
    Arguments {
        depth: usize,
        in_string: bool,
        escaped: bool,
    },
    Close,
}

/// Takes an answer apart.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallParser {
    state: State,
    /// What cannot be told yet.
    held: String,
    calls: usize,
}

impl CallParser {
    /// Whether there are calls, and the last is whole.
    pub fn called(&self) -> bool {
        self.calls > 0 && self.state == State::Text
    }

    /// Takes in more text.
    pub fn push(&mut self, text: &str, pieces: &mut Vec<Piece>) {
        self.held.push_str(text);
        while self.step(pieces) {}
    }

    /// There is no more: an unfinished call stays as it is.
    pub fn finish(&mut self, pieces: &mut Vec<Piece>) {
        let held = std::mem::take(&mut self.held);
        if self.state == State::Text && (self.calls == 0 || !held.trim().is_empty()) {
            content(pieces, held);
        }
    }

    /// Goes on by one state; `false` if more text is needed for that.
    fn step(&mut self, pieces: &mut Vec<Piece>) -> bool {
        match self.state {
            State::Text => match self.held.find(CALL_OPEN) {
                Some(at) => {
                    let before = self.held[..at].trim_end().to_string();
                    self.held.drain(..at + CALL_OPEN.len());
                    content(pieces, before);
                    self.state = State::Name;
                    true
                }
                None => {
                    let sure = self.held.len() - unsure(&self.held);
                    content(pieces, self.held.drain(..sure).collect());
                    false
                }
            },
            State::Name => {
                let Some(rest) = self.held.strip_prefix(HEAD) else {
                    return !HEAD.starts_with(&self.held) && self.no_call();
                };
                let Some(length) = rest.find(MIDDLE) else {
                    return false;
                };
                pieces.push(Piece::Call {
                    index: self.calls,
                    name: rest[..length].to_string(),
                });
                self.calls += 1;
                self.held.drain(..HEAD.len() + length + MIDDLE.len());
                self.state = State::Arguments {
                    depth: 0,
                    in_string: false,
                    escaped: false,
                };
                true
            }
            State::Arguments {
                mut depth,
                mut in_string,
                mut escaped,
            } => {
                let end = self.held.char_indices().find_map(|(at, c)| {
                    match c {
                        _ if escaped => escaped = false,
                        '\\' if in_string => escaped = true,
                        '"' => in_string = !in_string,
                        '{' | '[' if !in_string => depth += 1,
                        '}' | ']' if !in_string => {
                            depth = depth.saturating_sub(1);
                            return (depth == 0).then_some(at + 1);
                        }
                        _ => {}
                    }
                    None
                });
                let text: String = self.held.drain(..end.unwrap_or(self.held.len())).collect();
                let index = self.calls - 1;
                match pieces.last_mut() {
                    _ if text.is_empty() => {}
                    Some(Piece::Arguments { text: before, .. }) => before.push_str(&text),
                    _ => pieces.push(Piece::Arguments { index, text }),
                }
                self.state = match end {
                    Some(_) => State::Close,
                    None => State::Arguments {
                        depth,
                        in_string,
                        escaped,
                    },
                };
                end.is_some()
            }
            State::Close => {
                let close = [TAIL, CALL_CLOSE].concat();
                if let Some(rest) = self.held.strip_prefix(&close) {
                    self.held = rest.to_string();
                    self.state = State::Text;
                    return true;
                }
                !close.starts_with(&self.held) && self.no_call()
            }
        }
    }

    /// The text is none that the grammar allows: it is shown as it is.
    fn no_call(&mut self) -> bool {
        self.state = State::Text;
        true
    }
}

/// How much of a text's end may belong to the beginning of a call: white space is dropped before one.
fn unsure(text: &str) -> usize {
    let whole = |length: &usize| text.ends_with(&CALL_OPEN[..*length]);
    let tag = (0..CALL_OPEN.len()).rev().find(whole).unwrap_or(0);
    text.len() - text[..text.len() - tag].trim_end().len()
}

fn content(pieces: &mut Vec<Piece>, text: String) {
    match pieces.last_mut() {
        _ if text.is_empty() => {}
        Some(Piece::Content(before)) => before.push_str(&text),
        _ => pieces.push(Piece::Content(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All pieces, those of a kind that follow each other joined.
    fn parse<'t>(chunks: impl Iterator<Item = &'t str>) -> (Vec<Piece>, bool) {
        let mut parser = CallParser::default();
        let mut all: Vec<Piece> = Vec::new();
        let mut add = |pieces: Vec<Piece>| {
            for piece in pieces {
                match (all.last_mut(), piece) {
                    (Some(Piece::Content(before)), Piece::Content(text)) => before.push_str(&text),
                    (Some(Piece::Arguments { text: before, .. }), Piece::Arguments { text, .. }) => {
                        before.push_str(&text);
                    }
                    (_, piece) => all.push(piece),
                }
            }
        };
        for chunk in chunks {
            let mut pieces = Vec::new();
            parser.push(chunk, &mut pieces);
            add(pieces);
        }
        let mut pieces = Vec::new();
        parser.finish(&mut pieces);
        add(pieces);
        (all, parser.called())
    }

    fn check(text: &str, want: &[Piece]) {
        let whole = parse(std::iter::once(text));
        assert_eq!(whole.0, want, "{text}");
        // However it is cut.
        for size in 1..=text.chars().count().min(25) {
            let chars: Vec<char> = text.chars().collect();
            let chunks: Vec<String> = chars.chunks(size).map(|c| c.iter().collect()).collect();
            assert_eq!(
                parse(chunks.iter().map(String::as_str)),
                whole,
                "{text} by {size}"
            );
        }
    }

    fn said(text: &str) -> Piece {
        Piece::Content(text.into())
    }

    fn call(index: usize, name: &str) -> Piece {
        Piece::Call {
            index,
            name: name.into(),
        }
    }

    fn arguments(index: usize, text: &str) -> Piece {
        Piece::Arguments {
            index,
            text: text.into(),
        }
    }

    #[test]
    fn calls_are_found_however_the_text_is_cut() {
        check("Hello, <tool> you.\n", &[said("Hello, <tool> you.\n")]);
        check("", &[]);
        check(
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"}\\\"<tool_call>\\n\", \"b\": [{}]}}\n</tool_call>",
            &[
                call(0, "f"),
                arguments(0, "{\"a\": \"}\\\"<tool_call>\\n\", \"b\": [{}]}"),
            ],
        );
        check(
            "Wait.\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"gé\", \"arguments\": {\"ü\": 1}}\n</tool_call>\n",
            &[
                said("Wait."),
                call(0, "f"),
                arguments(0, "{}"),
                call(1, "gé"),
                arguments(1, "{\"ü\": 1}"),
            ],
        );
    }

    #[test]
    fn what_was_cut_short_stays_as_it_is() {
        check(
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, ",
            &[call(0, "f"), arguments(0, "{\"a\": [1, ")],
        );
        check("A <tool_call>\n{\"name\": \"f", &[said("A")]);
        check("A <tool_ca", &[said("A <tool_ca")]);
        check("<tool_call>\n{\"other\": 1}", &[said("{\"other\": 1}")]);
    }
}
