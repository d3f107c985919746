//! Chat templates from GGUF metadata.
use crate::{LoadError, Tokenizer};
use foretoken_gguf::Gguf;
use foretoken_spec::Token;

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Message {
    /// `system`, `user`, `assistant`.
    pub role: String,
    /// Its text.
    pub content: String,
}

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {}

impl ChatTemplate {
    /// The template of the file; `None` if it has none.
    pub fn from_gguf(_gguf: &Gguf) -> Result<Option<Self>, LoadError> {
        todo!()
    }
    /// The tokens of a prompt that asks the model to answer `messages`. Special tokens come from the
    /// template alone: text inside a message is never parsed as control tokens.
    pub fn encode(&self, _tokenizer: &Tokenizer, _messages: &[Message]) -> Result<Vec<Token>, String> {
        todo!()
    }
}
