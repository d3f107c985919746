//! What training needs of a target: its chat template around what a user says, texts cut to its context, and what its rows are of.

use std::path::{Path, PathBuf};

use foretoken_gguf::Gguf;
use foretoken_model::{Message, PromptEncoder, PromptError, Special, Tokenizer};
use foretoken_spec::Token;
use foretoken_train::Frame;

use crate::session::SessionError;

/// Tokens of a text that are one sequence.
const TEXT: usize = 512;

/// What the chat template puts before and after what a user says; for a model without one, nothing but a beginning.
///
/// # Errors
/// What [`PromptEncoder::chat`] finds wrong with the template.
pub fn frame(prompts: &PromptEncoder) -> Result<Frame, PromptError> {
    if !prompts.has_template() {
        let mut before = prompts.plain("")?;
        if before.is_empty() {
            before = prompts.plain("\n")?;
        }
        let after = prompts.text("\n")?;
        return Ok(Frame { before, after });
    }
    // What is the same whatever the user says.
    let [one, other] = ["Why?", "So be it."].map(|text| prompts.chat(&[Message::new("user", text)]));
    let (one, other) = (one?, other?);
    let same = |a: &mut dyn Iterator<Item = (Token, Token)>| a.take_while(|(a, b)| a == b).count();
    let before = same(&mut one.iter().copied().zip(other.iter().copied()));
    let after = same(&mut one.iter().rev().copied().zip(other.iter().rev().copied()));
    Ok(Frame {
        before: one[..before].to_vec(),
        after: one[one.len() - after..].to_vec(),
    })
}

/// Texts as sequences of at most 512 tokens each, or fewer where the context is shorter.
///
/// # Errors
/// If a file cannot be read or is no text.
pub fn texts(
    paths: &[PathBuf],
    tokenizer: &Tokenizer,
    context: usize,
) -> Result<Vec<Vec<Token>>, SessionError> {
    let mut sequences = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(path).map_err(|error| SessionError::Corpus {
            path: path.clone(),
            problem: error.to_string(),
        })?;
        let tokens = tokenizer.encode(&text, Special::Text);
        sequences.extend(tokens.chunks(TEXT.min(context)).map(<[Token]>::to_vec));
    }
    Ok(sequences)
}

/// Tells a target from others: its name, its tokenizer, and its size.
pub fn identity(path: &Path, gguf: &Gguf, tokenizer: &Tokenizer) -> String {
    let bytes: u64 = gguf.tensors().iter().map(|tensor| tensor.len).sum();
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    format!(
        "{file}, {bytes} bytes of tensors, tokenizer {:016x}",
        tokenizer.fingerprint()
    )
}
