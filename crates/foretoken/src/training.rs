//! What training needs of a target: its chat template around what a user says, texts cut to its context, and what its rows are of.

use std::path::{Path, PathBuf};

use foretoken_gguf::Gguf;
use foretoken_model::{Message, PromptEncoder, PromptError, Special, Tokenizer};
use foretoken_spec::Token;
use foretoken_train::{CaptureOptions, Dataset, DatasetError, Frame, Rows, is_held_out};
use sha2::{Digest, Sha256};

use crate::session::SessionError;
use crate::vocabulary::Seen;

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
    if before == 0 || before + after >= one.len().min(other.len()) {
        let problem = "it does not put what a user says between other tokens";
        return Err(PromptError::Template(problem.to_owned()));
    }
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

/// Tells a target from others: its file's name, its tokenizer, and its tensors, of whose data the beginnings count.
///
/// # Errors
/// If the file cannot be read.
pub fn identity(path: &Path, gguf: &Gguf, tokenizer: &Tokenizer) -> Result<String, SessionError> {
    const BEGINNING: usize = 4096;
    let mut hash = Sha256::new();
    for tensor in gguf.tensors() {
        hash.update(format!("{} {:?} {:?};", tensor.name, tensor.dims, tensor.ty));
        let data = gguf.map(tensor)?;
        hash.update(&data[..data.len().min(BEGINNING)]);
    }
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let (tensors, tokens) = (hex(hash), tokenizer.fingerprint());
    Ok(format!("{file}, tensors {tensors}, tokenizer {tokens:016x}"))
}

fn hex(hash: Sha256) -> String {
    let digest = hash.finalize();
    digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect()
}

/// The name that a model's file gives it, or the file's.
pub fn name(path: &Path, gguf: &Gguf) -> String {
    let name = gguf.string("general.name").ok().flatten();
    let file = || {
        path.file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    };
    name.map_or_else(file, str::to_owned)
}

/// What decides which sequences are captured, besides the target.
pub fn recipe(options: &CaptureOptions, frame: &Frame, texts: &[Vec<Token>]) -> String {
    let CaptureOptions {
        question,
        answer,
        seed,
        ..
    } = options;
    let mut hash = Sha256::new();
    for tokens in [&frame.before, &frame.after].into_iter().chain(texts) {
        hash.update((tokens.len() as u64).to_le_bytes());
        tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
    }
    let (texts, hash) = (texts.len(), hex(hash));
    format!(
        "seed {seed}, questions of {question} tokens, answers of {answer}, {texts} texts, template and texts {hash}"
    )
}

/// In how many sequences each token stands, of those that are learned from.
///
/// # Errors
/// If the dataset cannot be read.
pub fn seen(dataset: &Dataset, held_out: usize) -> Result<Seen, DatasetError> {
    let mut seen = Seen::new();
    let mut rows = Rows::default();
    let sequences = dataset.sequences().iter().enumerate();
    for (_, sequence) in sequences.filter(|(at, _)| !is_held_out(*at, held_out)) {
        rows.clear();
        dataset.read(sequence.first, sequence.rows as usize, &mut rows)?;
        rows.tokens.sort_unstable();
        rows.tokens.dedup();
        for &token in &rows.tokens {
            *seen.entry(token).or_insert(0) += 1;
        }
    }
    Ok(seen)
}
