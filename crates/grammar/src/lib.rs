//! Grammars over a model's tokens: what answers must look like.
//!
//! llguidance knows what may come next; here it gets a model's tokens, bounds, and the form in which the sampler asks
//! ([`foretoken_spec::Grammar`]).
//!
//! JSON is written in one way, `", "` between items and `": "` after keys: no model loses itself in white space, and what
//! stands between values is forced, which makes it a draft that costs nothing.
//!
//! Not here: what tool calls look like, requests.
#![forbid(unsafe_code)]

mod matcher;
mod schema;
mod tokens;

use std::sync::Arc;

use foretoken_model::Tokenizer;
use foretoken_spec::Grammar;
use llguidance::api::TopLevelGrammar;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{InferenceCapabilities, TokEnv};
use llguidance::{Matcher, ParserFactory};
use serde_json::Value;

use matcher::Matched;
pub use schema::MAX_DEPTH;
use tokens::Tokens;

/// Most bytes of a grammar or schema.
pub const MAX_BYTES: usize = 256 << 10;

/// Address space for the stack of the compiler; only what is used becomes memory.
const STACK: usize = 1 << 28;

/// Compiles grammars for one model's tokens.
pub struct Grammars {
    factory: ParserFactory,
    tokenizer: Arc<Tokenizer>,
}

/// Why a grammar cannot be compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// It is longer than [`MAX_BYTES`].
    #[error("{bytes} bytes are more than the {MAX_BYTES} that are supported")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// It is nested more deeply than [`MAX_DEPTH`].
    #[error("it is nested more deeply than {MAX_DEPTH} levels")]
    TooDeep,
    /// It is wrong, uses what is not supported, or is too costly.
    #[error("{0}")]
    Refused(String),
}

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammars").finish_non_exhaustive()
    }
}

impl Grammars {
    /// For a model with this tokenizer and so many logits. Takes a moment: it sorts the vocabulary.
    ///
    /// # Errors
    /// If the vocabulary cannot be used, for instance because no token ends a generation.
    pub fn new(tokenizer: &Arc<Tokenizer>, vocab_size: usize) -> Result<Self, CompileError> {
        let tokens = Tokens::new(tokenizer, vocab_size)?;
        let tokens: TokEnv = Arc::new(tokens);
        let mut factory = ParserFactory::new(
            &tokens,
            InferenceCapabilities {
                ff_tokens: true,
                ..InferenceCapabilities::default()
            },
            &SlicedBiasComputer::json_slices(),
        )
        .map_err(refused)?;
        factory.quiet();
        let limits = factory.limits_mut();
        // Of a step: some tens of milliseconds at most. Of all: some tens of megabytes.
        limits.initial_lexer_fuel = 500_000;
        limits.max_lexer_states = 20_000;
        limits.max_grammar_size = 200_000;
        limits.verbose_errors = false;
        Ok(Self {
            factory,
            tokenizer: Arc::clone(tokenizer),
        })
    }

    /// Any JSON object.
    ///
    /// # Errors
    /// [`CompileError`].
    pub fn json_object(&self) -> Result<Box<dyn Grammar>, CompileError> {
        self.json_schema(&serde_json::json!({"type": "object"}))
    }

    /// What a JSON schema describes.
    ///
    /// # Errors
    /// [`CompileError`]: what is not supported is refused, never left out.
    pub fn json_schema(&self, schema: &Value) -> Result<Box<dyn Grammar>, CompileError> {
        let schema = schema::prepare(schema)?;
        self.compile(TopLevelGrammar::from_json_schema(schema))
    }

    /// What a grammar in Lark's notation describes, schemas in it as [`embed_schema`] writes them.
    ///
    /// # Errors
    /// [`CompileError`].
    pub fn lark(&self, grammar: String) -> Result<Box<dyn Grammar>, CompileError> {
        check_length(grammar.len())?;
        self.compile(TopLevelGrammar::from_lark(grammar))
    }

    fn compile(&self, grammar: TopLevelGrammar) -> Result<Box<dyn Grammar>, CompileError> {
        // The compiler recurses along what the schema refers to.
        let parser = std::thread::scope(|scope| {
            std::thread::Builder::new()
                .name("grammar".into())
                .stack_size(STACK)
                .spawn_scoped(scope, || self.factory.create_parser(grammar).map_err(refused))
                .map_err(refused)?
                .join()
                .unwrap_or_else(|_| Err(CompileError::Refused("it made the compiler panic".into())))
        })?;
        let mut matcher = Matcher::new(Ok(parser));
        if let Some(error) = matcher.get_error() {
            return Err(CompileError::Refused(error));
        }
        // What is left out of a grammar would be let through.
        if let Some(warning) = matcher.grammar_warnings().into_iter().next() {
            return Err(CompileError::Refused(warning));
        }
        Ok(Box::new(Matched::new(
            matcher,
            self.tokenizer.end_of_generation().to_vec(),
        )))
    }
}

/// A schema as a part of a grammar in Lark's notation.
///
/// # Errors
/// [`CompileError`].
pub fn embed_schema(schema: &Value) -> Result<String, CompileError> {
    Ok(format!("%json {}", schema::prepare(schema)?))
}

fn check_length(bytes: usize) -> Result<(), CompileError> {
    if bytes > MAX_BYTES {
        return Err(CompileError::TooLong { bytes });
    }
    Ok(())
}

/// The first line says what is wrong; what follows is for the library's own authors.
fn refused(error: impl std::fmt::Display) -> CompileError {
    let error = error.to_string();
    CompileError::Refused(error.lines().next().unwrap_or_default().to_string())
}

#[cfg(test)]
mod tests;
