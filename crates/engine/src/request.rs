//! What goes into the engine and what comes out.

use foretoken_spec::{
    Cancel, Grammar, LogProbs, LogitError, ModelError, ModelInfo, OutOfPages, ParamError, SamplerParams,
    Source, Token,
};

use crate::{DraftLimits, Fragment, RoundReport, Stats};

/// Most stop strings of a request.
pub const MAX_STOPS: usize = 64;
/// Most bytes of a stop string.
pub const MAX_STOP_BYTES: usize = 1024;

/// A text to go on with, and how.
#[derive(Clone, Debug, Default)]
pub struct GenerationRequest {
    /// The prompt's tokens, at least one.
    pub prompt: Vec<Token>,
    /// How tokens are drawn.
    pub sampler: SamplerParams,
    /// Seeds the noise: see [`Sampler::key`](foretoken_spec::Sampler::key).
    pub key: u64,
    /// Most tokens to generate, at least one; `None` goes on until the context is full.
    pub max_tokens: Option<usize>,
    /// Texts that end the generation. They are no part of the output; the token that completes one counts.
    pub stops: Vec<String>,
    /// What the answer must look like.
    pub grammar: Option<Box<dyn Grammar>>,
    /// What the answer will mostly be, such as the file that it is to edit: more to draft from.
    pub prediction: Vec<Token>,
    /// What may be drafted for it.
    pub drafts: DraftLimits,
    /// Give each token's log-probability, and those of so many of the likeliest.
    pub logprobs: Option<usize>,
    /// Ends the generation from any thread, also between two layers of a pass that serves it alone.
    pub cancel: Cancel,
}

impl GenerationRequest {
    /// Refuses a request that a model cannot serve; [`Engine::add`](crate::Engine::add) does so too.
    ///
    /// # Errors
    /// What of it cannot be served.
    pub fn check(&self, info: &ModelInfo) -> Result<(), RequestError> {
        let GenerationRequest {
            prompt,
            sampler,
            max_tokens,
            stops,
            ..
        } = self;
        if prompt.is_empty() {
            return Err(RequestError::EmptyPrompt);
        }
        if prompt.len() >= info.context_length {
            return Err(RequestError::PromptTooLong {
                len: prompt.len(),
                context_length: info.context_length,
            });
        }
        if *max_tokens == Some(0) {
            return Err(RequestError::NoTokens);
        }
        if let Some(&token) = prompt.iter().find(|&&token| token as usize >= info.vocab_size) {
            return Err(RequestError::TokenOutOfRange {
                token,
                vocab_size: info.vocab_size,
            });
        }
        sampler.validate(info.vocab_size)?;
        if stops.len() > MAX_STOPS {
            return Err(RequestError::Stop(format!(
                "{} strings are more than {MAX_STOPS}",
                stops.len()
            )));
        }
        if stops.iter().any(String::is_empty) {
            return Err(RequestError::Stop("a string is empty".into()));
        }
        if let Some(long) = stops.iter().find(|stop| stop.len() > MAX_STOP_BYTES) {
            return Err(RequestError::Stop(format!(
                "a string of {} bytes is longer than {MAX_STOP_BYTES}",
                long.len()
            )));
        }
        Ok(())
    }
}

/// The engine's name for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(crate) u64);

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// There is nothing to go on with.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// The prompt leaves no room for an answer.
    #[error("the prompt of {len} tokens leaves no room in a context of {context_length}")]
    PromptTooLong {
        /// Tokens of the prompt.
        len: usize,
        /// Tokens that a sequence can hold.
        context_length: usize,
    },
    /// Nothing was asked for.
    #[error("max_tokens must be at least 1")]
    NoTokens,
    /// A token of the prompt is not in the vocabulary.
    #[error("the prompt has token {token}, which is outside the vocabulary of {vocab_size}")]
    TokenOutOfRange {
        /// The offending id.
        token: Token,
        /// The size of the vocabulary.
        vocab_size: usize,
    },
    /// A sampling parameter cannot be honoured.
    #[error(transparent)]
    Sampler(#[from] ParamError),
    /// A stop string is empty or too long, or there are too many.
    #[error("stop: {0}")]
    Stop(String),
}

/// Why a sequence ended before its time.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SequenceError {
    /// The model computed nonsense, or the request bans every token.
    #[error(transparent)]
    Logits(#[from] LogitError),
    /// No room for even one more row, though no other sequence holds any.
    #[error(transparent)]
    OutOfPages(#[from] OutOfPages),
    /// The pass failed.
    #[error("the model's pass failed: {0}")]
    Model(#[from] ModelError),
}

/// Why a generation is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A token that ends a generation, or a stop string.
    Stop,
    /// As many tokens as asked for.
    Length,
    /// The context is full.
    Context,
    /// [`Cancel`] was set.
    Cancelled,
}

impl FinishReason {
    /// `stop`, `length`, `context` or `cancelled`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Context => "context",
            Self::Cancelled => "cancelled",
        }
    }
}

/// A generated token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputToken {
    /// Its id.
    pub token: Token,
    /// The drafter whose accepted token it is; `None` for the target's own.
    pub source: Option<Source>,
}

/// What one round adds to a sequence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    /// The tokens.
    pub tokens: Vec<OutputToken>,
    /// How likely each token was, if the request asked for it; else empty.
    pub logprobs: Vec<LogProbs>,
    /// The text that became certain; it may lag behind the tokens.
    pub text: Vec<Fragment>,
    /// Draft tokens that the target did not want, in tree order.
    pub rejected: Vec<Token>,
    /// How the round went; `None` for the one that ended the prompt.
    pub round: Option<RoundReport>,
}

/// Something that happened to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// It grew.
    Progress {
        /// Which one.
        id: RequestId,
        /// By what.
        progress: Progress,
    },
    /// The drafter failed; the sequence goes on without drafts, with the same tokens.
    DraftingOff {
        /// Which one.
        id: RequestId,
        /// Why.
        reason: String,
    },
    /// It is over, and the engine has forgotten it.
    Finished {
        /// Which one.
        id: RequestId,
        /// How it ended.
        outcome: Result<FinishReason, SequenceError>,
        /// What it cost.
        stats: Box<Stats>,
    },
}
