//! Rankings of tokens, and the files that hold them: `FTRANK1` and a newline, the fingerprint of the vocabulary (8 bytes,
//! little-endian), then the ids, most frequent first, each in LEB128 (seven bits a byte, low ones first, the high bit
//! set in all but the last byte).
//!
//! `assets/README.md` says what they were counted over, `examples/ranking.rs` makes them.

use std::collections::HashSet;

use foretoken_spec::Token;

const MAGIC: &[u8; 8] = b"FTRANK1\n";

/// What is shipped.
const SHIPPED: [&[u8]; 2] = [
    include_bytes!("../../assets/qwen2.ranking"),
    include_bytes!("../../assets/smollm2.ranking"),
];

/// The most frequent tokens of a vocabulary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranking {
    /// Which vocabulary: [`Tokenizer::vocabulary_fingerprint`](foretoken_model::Tokenizer::vocabulary_fingerprint).
    pub vocabulary: u64,
    /// Distinct tokens, most frequent first.
    pub tokens: Vec<Token>,
}

/// Why bytes are no ranking.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RankingError {
    /// They do not begin as one does.
    #[error("not a ranking")]
    Magic,
    /// They end within a number, or a number is no token id.
    #[error("number {0} of the ranking is no token id")]
    Number(usize),
    /// A token stands there twice.
    #[error("token {0} is ranked twice")]
    Twice(Token),
}

impl Ranking {
    /// The ranking that is shipped for a vocabulary, if one is.
    pub fn shipped(vocabulary: u64) -> Option<Self> {
        let is_it = |bytes: &&&[u8]| bytes.get(8..16) == Some(vocabulary.to_le_bytes().as_slice());
        let bytes = SHIPPED.iter().find(is_it)?;
        Some(Self::from_bytes(bytes).expect("what is shipped is well-formed"))
    }

    /// As it stands in a file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.vocabulary.to_le_bytes());
        for &token in &self.tokens {
            let mut rest = token;
            while rest >= 0x80 {
                bytes.push(rest as u8 | 0x80);
                rest >>= 7;
            }
            bytes.push(rest as u8);
        }
        bytes
    }

    /// Reads what [`to_bytes`](Self::to_bytes) wrote.
    ///
    /// # Errors
    /// If the bytes are anything else.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, RankingError> {
        let (vocabulary, numbers) = bytes
            .strip_prefix(MAGIC)
            .and_then(|rest| rest.split_first_chunk())
            .ok_or(RankingError::Magic)?;
        let mut tokens = Vec::new();
        let mut known = HashSet::new();
        for number in numbers.split_inclusive(|byte| byte & 0x80 == 0) {
            let ends = number.last().is_some_and(|byte| byte & 0x80 == 0);
            // Four times seven bits are enough for any vocabulary.
            if !ends || number.len() > 4 {
                return Err(RankingError::Number(tokens.len()));
            }
            let high_first = number.iter().rev();
            let token = high_first.fold(0, |id, byte| id << 7 | Token::from(byte & 0x7f));
            if !known.insert(token) {
                return Err(RankingError::Twice(token));
            }
            tokens.push(token);
        }
        Ok(Self {
            vocabulary: u64::from_le_bytes(*vocabulary),
            tokens,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rankings_are_read_as_they_were_written() {
        for tokens in [
            vec![],
            vec![0],
            vec![127, 128, 0, 16_383, 16_384, 151_935, (1 << 28) - 1],
        ] {
            let ranking = Ranking {
                vocabulary: 0x0123_4567_89ab_cdef,
                tokens,
            };
            assert_eq!(Ranking::from_bytes(&ranking.to_bytes()), Ok(ranking));
        }
    }

    #[test]
    fn what_is_no_ranking_is_an_error() {
        let with = |numbers: &[u8]| Ranking::from_bytes(&[MAGIC, [0; 8].as_slice(), numbers].concat());
        assert_eq!(Ranking::from_bytes(b""), Err(RankingError::Magic));
        assert_eq!(Ranking::from_bytes(MAGIC), Err(RankingError::Magic));
        assert_eq!(
            Ranking::from_bytes(b"GGUF and something"),
            Err(RankingError::Magic)
        );
        assert_eq!(with(&[1, 0x80]), Err(RankingError::Number(1)));
        assert_eq!(with(&[0x80, 0x80, 0x80, 0x80, 1]), Err(RankingError::Number(0)));
        assert_eq!(with(&[7, 8, 7]), Err(RankingError::Twice(7)));
        // A long way to write 7.
        assert_eq!(with(&[0x87, 0, 7]), Err(RankingError::Twice(7)));
    }

    #[test]
    fn what_is_shipped_is_found() {
        for bytes in SHIPPED {
            let ranking = Ranking::from_bytes(bytes).unwrap();
            assert!(bytes.len() < 100_000 && ranking.tokens.len() > 20_000);
            assert_eq!(Ranking::shipped(ranking.vocabulary), Some(ranking));
        }
        assert_eq!(Ranking::shipped(0), None);
    }
}
