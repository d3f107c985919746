//! Tokenizers from GGUF metadata.
use crate::LoadError;
use foretoken_gguf::Gguf;
use foretoken_spec::Token;

/// What to do with the text of special tokens in an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// `<|im_end|>` becomes the control token: templates and raw prompts.
    Parse,
    /// It stays text: what a user wrote.
    Text,
}

/// A tokenizer.
#[derive(Debug)]
pub struct Tokenizer {}

impl Tokenizer {
    /// Builds the tokenizer that the file describes.
    pub fn from_gguf(_gguf: &Gguf) -> Result<Self, LoadError> {
        todo!()
    }
    /// Tokens of a text. No token is added in front; see [`bos`](Self::bos).
    pub fn encode(&self, _text: &str, _special: Special) -> Vec<Token> {
        todo!()
    }
    /// The token that a prompt starts with, if the file wants one.
    pub fn bos(&self) -> Option<Token> {
        todo!()
    }
    /// Tokens that end a generation, ascending.
    pub fn end_of_generation(&self) -> &[Token] {
        todo!()
    }
    /// The bytes that a token stands for in generated text; empty for control tokens. Not always UTF-8.
    pub fn bytes(&self, _token: Token) -> &[u8] {
        todo!()
    }
    /// The token's name in the vocabulary, for people: `<|im_end|>`, `Ġthe`.
    pub fn piece(&self, _token: Token) -> &str {
        todo!()
    }
    /// Entries of the vocabulary, padding included.
    pub fn vocab_size(&self) -> usize {
        todo!()
    }
    /// Whether a draft model with tokenizer `draft` can serve this one: sizes may differ by padding. The
    /// error names the first token that differs.
    pub fn check_draft(&self, _draft: &Tokenizer) -> Result<(), String> {
        todo!()
    }
    /// A hash of everything that decides ids.
    pub fn fingerprint(&self) -> u64 {
        todo!()
    }
}
