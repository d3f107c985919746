//! Byte-level BPE: words are written in an alphabet with one letter per byte and joined by ranked merges
//! (Radford et al. 2019). The merging itself is the `tokenizers` crate's.

use super::split::{Rules, Splitter};
use super::vocab::{Fields, Ids, Kind, Vocab};
use foretoken_spec::Token;
use std::sync::LazyLock;
use tokenizers::Model as _;
use tokenizers::models::bpe::{self, BPE};

pub(super) struct ByteLevel {
    rules: &'static Rules,
    splitter: Splitter,
    bpe: BPE,
    /// Bytes that have a token. Those that do not occur in UTF-8 often have none.
    known: [bool; 256],
}

impl ByteLevel {
    pub fn new(fields: &Fields, vocab: &Vocab, ids: &Ids, rules: &'static Rules) -> Result<Self, String> {
        let merges = fields.merges.ok_or("tokenizer.ggml.merges is missing")?;
        let mut pairs = Vec::with_capacity(merges.len());
        let mut joined = String::new();
        for (number, merge) in merges.iter().enumerate() {
            let merge = std::str::from_utf8(merge).map_err(|_| format!("merge {number} is not UTF-8"))?;
            let (left, right) = merge
                .split_once(' ')
                .ok_or_else(|| format!("merge {number} ({merge:?}) is not two pieces"))?;
            joined.clear();
            joined.push_str(left);
            joined.push_str(right);
            let token = ids
                .get(joined.as_str())
                .ok_or_else(|| format!("merge {number} ({merge:?}) makes {joined:?}, which is no token"))?;
            // Text never becomes a control token by merging.
            if is_text(vocab, *token) {
                pairs.push((left.to_owned(), right.to_owned()));
            }
        }
        let mut pieces = bpe::Vocab::with_capacity(ids.len());
        pieces.extend(
            ids.iter()
                .filter(|&(_, &token)| is_text(vocab, token))
                .map(|(&piece, &token)| (piece.to_owned(), token)),
        );
        let mut known = [false; 256];
        for (byte, known) in known.iter_mut().enumerate() {
            *known = pieces.contains_key(ALPHABET.letters[byte].encode_utf8(&mut [0; 4]) as &str);
        }
        // That the pieces of a merge are tokens too is checked here.
        let bpe = BPE::builder()
            .vocab_and_merges(pieces, pairs)
            .ignore_merges(rules.whole_words)
            .build()
            .map_err(|error| format!("merges: {error}"))?;
        Ok(Self {
            rules,
            splitter: Splitter::new(rules)?,
            bpe,
            known,
        })
    }

    pub fn rules(&self) -> &'static Rules {
        self.rules
    }

    /// Appends the tokens of `text`. A byte that the vocabulary has no token for is left out, as in llama.cpp:
    /// some have none for a few control characters.
    pub fn encode(&self, text: &str, tokens: &mut Vec<Token>) {
        let mut letters = String::new();
        self.splitter.split(text, |word| {
            // Merging must not reach over a byte that is left out.
            for part in word.as_bytes().split(|&byte| !self.known[byte as usize]) {
                letters.clear();
                letters.extend(part.iter().map(|&byte| ALPHABET.letters[byte as usize]));
                if !letters.is_empty() {
                    let merged = self.bpe.tokenize(&letters);
                    tokens.extend(merged.iter().flatten().map(|token| token.id));
                }
            }
        });
    }
}

fn is_text(vocab: &Vocab, token: Token) -> bool {
    !matches!(vocab.kind(token), Kind::Control | Kind::Unknown)
}

/// Appends the bytes that a piece is written for. Letters outside the alphabet stand for themselves.
pub(super) fn decode(piece: &str, bytes: &mut Vec<u8>) {
    for letter in piece.chars() {
        match ALPHABET.bytes.get(letter as usize) {
            Some(Some(byte)) => bytes.push(*byte),
            _ => bytes.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

/// The alphabet, by byte.
#[cfg(test)]
pub(super) fn letters() -> impl Iterator<Item = char> {
    ALPHABET.letters.into_iter()
}

/// GPT-2's alphabet: printable Latin-1 characters stand for themselves, the other bytes, in order, for the
/// characters from U+0100.
struct Alphabet {
    letters: [char; 256],
    /// By code point.
    bytes: [Option<u8>; 512],
}

static ALPHABET: LazyLock<Alphabet> = LazyLock::new(|| {
    let mut alphabet = Alphabet {
        letters: ['\0'; 256],
        bytes: [None; 512],
    };
    let mut others = '\u{100}'..;
    for byte in 0..=u8::MAX {
        let printable = matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
        let letter = if printable {
            byte as char
        } else {
            others.next().unwrap_or_default()
        };
        alphabet.letters[byte as usize] = letter;
        alphabet.bytes[letter as usize] = Some(byte);
    }
    alphabet
});
