//! Prompts: the tokens of conversations, of texts as they stand, and of texts with a gap.
//!
//! Not here: what a template is ([`crate::chat`]), what becomes of the tokens.

use std::sync::Arc;

use foretoken_spec::Token;
use serde_json::Value;

use crate::{ChatTemplate, Message, Special, Tokenizer};

/// Makes the tokens of prompts for one model.
#[derive(Debug)]
pub struct PromptEncoder {
    tokenizer: Arc<Tokenizer>,
    template: Option<ChatTemplate>,
    context_length: usize,
    /// The most bytes of text that could come into the context.
    max_bytes: usize,
}

/// Why a text cannot be made a prompt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PromptError {
    /// The model has no chat template.
    #[error("the model has no chat template")]
    NoTemplate,
    /// The chat template refused the messages, or failed.
    #[error("chat template: {0}")]
    Template(String),
    /// The model knows no gaps.
    #[error("the model has no tokens for filling in the middle")]
    NoGaps,
    /// A text is so long that no tokens of the model could hold it in its context: it is not even tokenized.
    #[error("a prompt of {bytes} bytes has no room in a context of {context_length} tokens")]
    TooLong {
        /// Bytes of the text.
        bytes: usize,
        /// Tokens that a sequence can hold.
        context_length: usize,
    },
}

impl PromptEncoder {
    /// Prompts for a model with this tokenizer, and this template if it has one, and so many positions.
    pub fn new(tokenizer: Arc<Tokenizer>, template: Option<ChatTemplate>, context_length: usize) -> Self {
        Self {
            max_bytes: context_length.saturating_mul(tokenizer.max_token_bytes()),
            tokenizer,
            template,
            context_length,
        }
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// Whether the model has a chat template.
    pub fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// The tokens of a conversation that the model is to go on with. Text inside a message never becomes a control token.
    ///
    /// # Errors
    /// [`PromptError::NoTemplate`], [`PromptError::Template`], [`PromptError::TooLong`].
    pub fn chat(&self, messages: &[Message]) -> Result<Vec<Token>, PromptError> {
        self.chat_with_tools(messages, &[])
    }

    /// The same with functions that the model may call, in the form of OpenAI's API. A model whose template knows none is told
    /// of them in words.
    ///
    /// # Errors
    /// As [`chat`](Self::chat).
    pub fn chat_with_tools(&self, messages: &[Message], tools: &[Value]) -> Result<Vec<Token>, PromptError> {
        let template = self.template.as_ref().ok_or(PromptError::NoTemplate)?;
        let text = messages.iter().map(|m| m.content.len()).sum::<usize>();
        let calls = messages.iter().flat_map(|m| &m.tool_calls);
        let calls = calls.map(|call| call.arguments.to_string().len()).sum::<usize>();
        let tools_text = tools.iter().map(|tool| tool.to_string().len()).sum::<usize>();
        self.check_length(text + calls + tools_text)?;
        template
            .encode(&self.tokenizer, messages, tools)
            .map_err(PromptError::Template)
    }

    /// The tokens of a prompt as it stands, names of special tokens parsed. The token that the model wants in front is added
    /// unless the text begins with it.
    ///
    /// # Errors
    /// [`PromptError::TooLong`].
    pub fn raw(&self, text: &str) -> Result<Vec<Token>, PromptError> {
        self.check_length(text.len())?;
        let mut tokens = self.tokenizer.encode(text, Special::Parse);
        if let Some(bos) = self.tokenizer.bos().filter(|bos| tokens.first() != Some(bos)) {
            tokens.insert(0, bos);
        }
        Ok(tokens)
    }

    /// The tokens of a plain text for a model without a template: no text becomes a control token.
    ///
    /// # Errors
    /// [`PromptError::TooLong`].
    pub fn plain(&self, text: &str) -> Result<Vec<Token>, PromptError> {
        let tokens = self.text(text)?;
        Ok(self.tokenizer.bos().into_iter().chain(tokens).collect())
    }

    /// The tokens of a text within an answer.
    ///
    /// # Errors
    /// [`PromptError::TooLong`].
    pub fn text(&self, text: &str) -> Result<Vec<Token>, PromptError> {
        self.check_length(text.len())?;
        Ok(self.tokenizer.encode(text, Special::Text))
    }

    /// The tokens of a text with a gap between `prefix` and `suffix`, which the model is to fill. No text becomes a control
    /// token.
    ///
    /// # Errors
    /// [`PromptError::NoGaps`], [`PromptError::TooLong`].
    pub fn fill_in_the_middle(&self, prefix: &str, suffix: &str) -> Result<Vec<Token>, PromptError> {
        self.check_length(prefix.len().saturating_add(suffix.len()))?;
        self.tokenizer
            .encode_gap(prefix, suffix)
            .ok_or(PromptError::NoGaps)
    }

    /// Refuses a text that no tokens could bring into the context, before time goes into tokenizing it.
    fn check_length(&self, bytes: usize) -> Result<(), PromptError> {
        if bytes > self.max_bytes {
            return Err(PromptError::TooLong {
                bytes,
                context_length: self.context_length,
            });
        }
        Ok(())
    }
}
