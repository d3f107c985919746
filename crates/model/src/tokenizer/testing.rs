//! Small tokenizers for tests.

use super::Tokenizer;
use super::vocab::{Fields, Kind};
use foretoken_spec::Token;

/// An entry of a vocabulary.
pub(crate) struct Piece {
    text: &'static str,
    kind: Kind,
}

impl Piece {
    pub fn control(text: &'static str) -> Self {
        Self {
            text,
            kind: Kind::Control,
        }
    }

    pub fn user_defined(text: &'static str) -> Self {
        Self {
            text,
            kind: Kind::UserDefined,
        }
    }
}

pub(crate) fn is_control(tokenizer: &Tokenizer, token: Token) -> bool {
    tokenizer.vocab.kind(token) == Kind::Control
}

/// `gpt-2` rules, a token for each byte, a few merges, and then `pieces`.
pub(crate) fn byte_level(pieces: &[Piece]) -> Tokenizer {
    build(pieces, None)
}

/// Likewise, with prompts that start with `bos`.
pub(crate) fn byte_level_with_bos(pieces: &[Piece], bos: &str) -> Tokenizer {
    build(pieces, Some(bos))
}

fn build(pieces: &[Piece], bos: Option<&str>) -> Tokenizer {
    let merges =
        ["h e", "l l", "he ll", "i m", "e n", "en d", "< |", "| >"].map(|merge| merge.as_bytes().to_vec());
    let mut tokens: Vec<Vec<u8>> = super::byte_level::letters()
        .map(|letter| letter.to_string().into_bytes())
        .collect();
    tokens.extend(
        merges
            .iter()
            .map(|merge| merge.iter().copied().filter(|&byte| byte != b' ').collect()),
    );
    let mut types = vec![Kind::Normal as i32; tokens.len()];
    for piece in pieces {
        tokens.push(piece.text.as_bytes().to_vec());
        types.push(piece.kind as i32);
    }
    // In the byte alphabet "@" is a letter of its own; a control token of that name replaces it.
    if let Some(at) = pieces.iter().position(|piece| piece.text == "@") {
        let letter = tokens.iter().position(|token| token == b"@").unwrap();
        tokens[letter] = b"unused".to_vec();
        debug_assert!(tokens[264 + at] == b"@");
    }
    let id = |text: &str| {
        tokens
            .iter()
            .position(|token| token == text.as_bytes())
            .map(|id| id as u64)
    };
    let fields = Fields {
        model: "gpt2",
        pre: Some("gpt-2"),
        bos: bos.and_then(id).or(id("<s>")),
        eos: id("</s>"),
        add_bos: Some(bos.is_some()),
        tokens: &tokens,
        types: Some(types.into()),
        merges: Some(&merges),
        ..Fields::default()
    };
    Tokenizer::from_fields(&fields).unwrap()
}
