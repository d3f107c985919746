//! Text of a growing token sequence: never a broken character, never a stop string.
//!
//! Bytes go in token by token; what can no longer change comes out. Held back are an incomplete UTF-8
//! character and a tail that may yet become a stop string. The text that came out in the end is
//! [`String::from_utf8_lossy`] of all bytes before the first stop string.
//!
//! Not here: which bytes a token stands for ([`TokenBytes`]), ids that end a generation.

use foretoken_spec::{Flow, Source, Token};

/// The bytes that a token adds to a text.
pub trait TokenBytes {
    /// Empty for control tokens; not always UTF-8.
    fn bytes(&self, token: Token) -> &[u8];
}

impl<T: TokenBytes + ?Sized> TokenBytes for std::sync::Arc<T> {
    fn bytes(&self, token: Token) -> &[u8] {
        (**self).bytes(token)
    }
}

/// A piece of text and where its tokens came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// The text, at least one character.
    pub text: String,
    /// The drafter whose accepted token it is; `None` for the target's own. A character made of several
    /// tokens' bytes belongs to the last.
    pub source: Option<Source>,
}

/// Bytes in, text out.
#[derive(Clone, Debug)]
pub(crate) struct TextStream {
    stops: Vec<Vec<u8>>,
    /// Bytes that did not come out yet.
    held: Vec<u8>,
    /// The source of each held byte.
    sources: Vec<Option<Source>>,
}

impl TextStream {
    /// A stream that ends before the first of `stops`, none of which is empty.
    pub fn new(stops: &[String]) -> Self {
        debug_assert!(stops.iter().all(|s| !s.is_empty()));
        let stops = stops.iter().map(|s| s.as_bytes().to_vec()).collect();
        Self {
            stops,
            held: Vec::new(),
            sources: Vec::new(),
        }
    }

    /// Adds a token's bytes. On [`Flow::Stop`] a stop string is complete, and all text before it is out.
    pub fn push(&mut self, bytes: &[u8], source: Option<Source>, out: &mut Vec<Fragment>) -> Flow {
        self.held.extend_from_slice(bytes);
        self.sources.resize(self.held.len(), source);
        if let Some(start) = self.stops.iter().filter_map(|stop| find(&self.held, stop)).min() {
            self.held.truncate(start);
            self.finish(out);
            return Flow::Stop;
        }
        let maybe_stop = self
            .stops
            .iter()
            .map(|stop| overlap(&self.held, stop))
            .max()
            .unwrap_or(0);
        self.release(self.held.len() - maybe_stop, false, out);
        Flow::Continue
    }

    /// Lets out what is held: no stop string came of it. An incomplete character becomes U+FFFD.
    pub fn finish(&mut self, out: &mut Vec<Fragment>) {
        self.release(self.held.len(), true, out);
    }

    /// Lets out the first `len` held bytes, less an incomplete character at their end unless `last`.
    fn release(&mut self, len: usize, last: bool, out: &mut Vec<Fragment>) {
        let mut done = 0;
        for chunk in self.held[..len].utf8_chunks() {
            for character in chunk.valid().chars() {
                done += character.len_utf8();
                append(out, character, self.sources[done - 1]);
            }
            let invalid = chunk.invalid();
            let incomplete = done + invalid.len() == len && is_incomplete(invalid);
            if !invalid.is_empty() && (last || !incomplete) {
                done += invalid.len();
                append(out, char::REPLACEMENT_CHARACTER, self.sources[done - 1]);
            }
        }
        self.held.drain(..done);
        self.sources.drain(..done);
    }
}

/// Whether more bytes could make a character of `bytes`.
fn is_incomplete(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|e| e.valid_up_to() == 0 && e.error_len().is_none())
}

fn append(out: &mut Vec<Fragment>, character: char, source: Option<Source>) {
    match out.last_mut() {
        Some(last) if last.source == source => last.text.push(character),
        _ => out.push(Fragment {
            text: character.to_string(),
            source,
        }),
    }
}

/// Where `needle` first stands in `haystack`.
fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

/// The length of the longest end of `text` that is a beginning of `stop`, but not all of it.
fn overlap(text: &[u8], stop: &[u8]) -> usize {
    let most = text.len().min(stop.len() - 1);
    (1..=most)
        .rev()
        .find(|&n| text.ends_with(&stop[..n]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The text of all fragments after each push, and whether and where a stop string came.
    fn stream(chunks: &[Vec<u8>], stops: &[String]) -> (String, Option<usize>) {
        let mut stream = TextStream::new(stops);
        let mut out = Vec::new();
        for (at, chunk) in chunks.iter().enumerate() {
            let source = (at % 2 == 1).then_some(Source::Model);
            if stream.push(chunk, source, &mut out) == Flow::Stop {
                return (concat(&out), Some(at));
            }
        }
        stream.finish(&mut out);
        (concat(&out), None)
    }

    fn concat(fragments: &[Fragment]) -> String {
        fragments.iter().map(|f| f.text.as_str()).collect()
    }

    /// What [`stream`] must give: search all bytes so far after each chunk.
    fn naive(chunks: &[Vec<u8>], stops: &[String]) -> (String, Option<usize>) {
        let mut all = Vec::new();
        for (at, chunk) in chunks.iter().enumerate() {
            all.extend_from_slice(chunk);
            let start = (0..all.len()).find(|&i| stops.iter().any(|s| all[i..].starts_with(s.as_bytes())));
            if let Some(start) = start {
                return (String::from_utf8_lossy(&all[..start]).into_owned(), Some(at));
            }
        }
        (String::from_utf8_lossy(&all).into_owned(), None)
    }

    #[test]
    fn a_stop_string_is_found_at_every_split() {
        let text = "Grüße, 世界! END of it";
        for stop in ["END", "界!", " ", "ü", "of it", "G"] {
            for first in 0..=text.len() {
                for second in first..=text.len() {
                    let bytes = text.as_bytes();
                    let chunks =
                        [&bytes[..first], &bytes[first..second], &bytes[second..]].map(<[u8]>::to_vec);
                    let (got, at) = stream(&chunks, &[stop.to_string()]);
                    assert_eq!(
                        got,
                        text[..text.find(stop).unwrap()],
                        "{stop:?} split at {first}, {second}"
                    );
                    assert!(at.is_some());
                }
            }
        }
    }

    #[test]
    fn text_comes_out_as_soon_as_it_is_certain() {
        let mut stream = TextStream::new(&["STOP".to_string(), "STxx".to_string()]);
        let mut check = |bytes: &[u8], expected: &str| {
            let mut out = Vec::new();
            assert_eq!(stream.push(bytes, None, &mut out), Flow::Continue);
            assert_eq!(concat(&out), expected);
        };
        check(b"abc", "abc");
        check(b"dST", "d");
        check(b"x", "");
        check(b"y", "STxy");
        check("é".as_bytes().split_at(1).0, "");
        check("é".as_bytes().split_at(1).1, "é");
        check(b"\xff", "\u{fffd}");
        check(b"S", "");
        check(b"S", "S");
    }

    #[test]
    fn a_character_belongs_to_the_token_that_completed_it() {
        let mut stream = TextStream::new(&[]);
        let mut out = Vec::new();
        let bytes = "a€b".as_bytes();
        assert_eq!(stream.push(&bytes[..2], None, &mut out), Flow::Continue);
        assert_eq!(
            stream.push(&bytes[2..], Some(Source::Suffix), &mut out),
            Flow::Continue
        );
        let expected = [("a", None), ("€b", Some(Source::Suffix))];
        assert_eq!(
            out.iter()
                .map(|f| (f.text.as_str(), f.source))
                .collect::<Vec<_>>(),
            expected
        );
    }

    fn chunks() -> impl Strategy<Value = Vec<Vec<u8>>> {
        // Few distinct bytes, so that stop strings, broken and whole characters are all frequent.
        let byte = prop::sample::select(&b"aab\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xff"[..]);
        prop::collection::vec(prop::collection::vec(byte, 0..4), 0..24)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn any_chunking_of_any_bytes_is_the_lossy_text(chunks in chunks()) {
            prop_assert_eq!(stream(&chunks, &[]), naive(&chunks, &[]));
        }

        #[test]
        fn stops_are_those_of_a_naive_search(
            chunks in chunks(),
            stops in prop::collection::vec("[abé€]{1,4}", 1..4),
        ) {
            prop_assert_eq!(stream(&chunks, &stops), naive(&chunks, &stops));
        }
    }
}
