//! SentencePiece BPE: neighbours are joined as long as their concatenation is a piece, the best score first
//! and the leftmost of equal ones (Kudo and Richardson 2018; the order is llama.cpp's).
//!
//! It is written out here because it ranks by the score of the result at run time, which a table of ranked
//! pairs cannot say where scores are equal.

use super::vocab::{Fields, Kind, Vocab};
use foretoken_spec::Token;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// What stands for a space in pieces.
pub(super) const SPACE: &str = "\u{2581}";

#[derive(Debug)]
pub(super) struct Spm {
    pieces: HashMap<Box<str>, Piece>,
    /// Length of the longest piece in bytes.
    longest: usize,
    /// What a byte becomes that belongs to no piece.
    bytes: [Token; 256],
    space_prefix: bool,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    token: Token,
    /// Ordered like the score.
    rank: i32,
}

/// A part of the text, linked to its neighbours; `len` is 0 once it has been joined to the one before.
struct Symbol {
    start: usize,
    len: usize,
    previous: usize,
    next: usize,
}

const NONE: usize = usize::MAX;

/// Two neighbours that make a piece: rank, left symbol (lowest first), length of both.
type Pair = (i32, Reverse<usize>, usize);

impl Spm {
    pub fn new(fields: &Fields, vocab: &Vocab) -> Result<Self, String> {
        let scores = fields.scores.ok_or("tokenizer.ggml.scores is missing")?;
        let mut pieces = HashMap::with_capacity(vocab.len());
        let mut longest = 0;
        for ((token, piece, kind), &score) in vocab.iter().zip(scores) {
            if score.is_nan() {
                return Err(format!("the score of token {token} is not a number"));
            }
            // Text never becomes a control token by joining.
            if piece.is_empty() || matches!(kind, Kind::Control | Kind::Unknown) {
                continue;
            }
            longest = longest.max(piece.len());
            pieces.insert(
                piece.into(),
                Piece {
                    token,
                    rank: rank(score),
                },
            );
        }
        let unknown = vocab.unknown.filter(|&token| vocab.kind(token) == Kind::Unknown);
        let mut bytes = [0; 256];
        for (byte, token) in (0..=u8::MAX).zip(&mut bytes) {
            let piece = |name: &str| pieces.get(name).map(|piece| piece.token);
            *token = piece(&format!("<0x{byte:02X}>"))
                .or_else(|| {
                    byte.is_ascii()
                        .then(|| piece((byte as char).encode_utf8(&mut [0; 4])))?
                })
                .or(unknown)
                .ok_or_else(|| format!("there is no token for byte 0x{byte:02X}, and no unknown token"))?;
        }
        Ok(Self {
            pieces,
            longest,
            bytes,
            space_prefix: fields.add_space_prefix.unwrap_or(true),
        })
    }

    /// Appends the tokens of `text`, which is not empty. `after_special`: at the start, or after a special token.
    pub fn encode(&self, text: &str, after_special: bool, tokens: &mut Vec<Token>) {
        let mut escaped = String::with_capacity(text.len() + text.len() / 2);
        if self.space_prefix && after_special {
            escaped.push_str(SPACE);
        }
        for (i, word) in text.split(' ').enumerate() {
            if i > 0 {
                escaped.push_str(SPACE);
            }
            escaped.push_str(word);
        }
        let text = escaped.as_str();

        let mut symbols: Vec<Symbol> = text
            .char_indices()
            .enumerate()
            .map(|(i, (start, c))| Symbol {
                start,
                len: c.len_utf8(),
                previous: i.checked_sub(1).unwrap_or(NONE),
                next: i + 1,
            })
            .collect();
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }
        let mut pairs: BinaryHeap<Pair> = (0..symbols.len())
            .filter_map(|left| self.pair(text, &symbols, left))
            .collect();
        while let Some((_, Reverse(left), len)) = pairs.pop() {
            let right = symbols[left].next;
            // Joined elsewhere since the pair was found?
            if symbols[left].len == 0 || right == NONE || symbols[left].len + symbols[right].len != len {
                continue;
            }
            let next = symbols[right].next;
            symbols[right].len = 0;
            symbols[left].len = len;
            symbols[left].next = next;
            if next != NONE {
                symbols[next].previous = left;
            }
            let previous = symbols[left].previous;
            if previous != NONE {
                pairs.extend(self.pair(text, &symbols, previous));
            }
            pairs.extend(self.pair(text, &symbols, left));
        }
        for symbol in symbols.iter().filter(|symbol| symbol.len > 0) {
            let part = &text[symbol.start..symbol.start + symbol.len];
            match self.pieces.get(part) {
                Some(piece) => tokens.push(piece.token),
                None => tokens.extend(part.bytes().map(|byte| self.bytes[byte as usize])),
            }
        }
    }

    /// The pair of `left` and its right neighbour, if it makes a piece.
    fn pair(&self, text: &str, symbols: &[Symbol], left: usize) -> Option<Pair> {
        let Symbol { start, len, next, .. } = symbols[left];
        let len = len + symbols.get(next)?.len;
        if len > self.longest {
            return None;
        }
        let piece = self.pieces.get(&text[start..start + len])?;
        Some((piece.rank, Reverse(left), len))
    }
}

/// An integer with the order of `score`; -0 equals 0.
fn rank(score: f32) -> i32 {
    let bits = (score + 0.0).to_bits() as i32;
    // Negative floats order backwards as integers.
    bits ^ (((bits >> 31) as u32) >> 1) as i32
}
