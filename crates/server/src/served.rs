//! What is served: the model as requests see it.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use foretoken_engine::Engine;
use foretoken_grammar::{CompileError, Grammars};
use foretoken_model::PromptEncoder;
use foretoken_spec::{ModelInfo, Source, TargetModel};

use crate::error::ApiError;
use axum::http::StatusCode;

/// A loaded model, ready to serve.
pub struct Loaded<M> {
    /// The engine, with its drafters.
    pub engine: Engine<M>,
    /// Makes prompts.
    pub prompts: Arc<PromptEncoder>,
    /// What the model is called.
    pub name: String,
    /// What decides which tokens an answer has: `system_fingerprint`.
    pub fingerprint: String,
    /// Drafters that a request may choose.
    pub drafters: Vec<Source>,
    /// Whether drafts are promised to change no token.
    pub lossless: bool,
    /// How long the models took to load: target, and draft if there is one.
    pub load: [Duration; 2],
    /// Rows, and the seconds of a pass over so many without context, as measured at start; none where nothing was measured.
    pub pass_seconds: Vec<(usize, f64)>,
}

/// What requests need to know of it.
#[derive(Debug)]
pub(crate) struct Served {
    pub prompts: Arc<PromptEncoder>,
    pub name: String,
    pub fingerprint: String,
    pub lossless: bool,
    pub load: [Duration; 2],
    pub pass_seconds: Vec<(usize, f64)>,
    /// Seconds since 1970.
    pub created: u64,
    info: ModelInfo,
    drafters: Vec<Source>,
    /// Made when one is first asked for.
    grammars: OnceLock<Result<Grammars, CompileError>>,
}

impl Served {
    /// Parts what the engine's thread needs from what requests do.
    pub fn new<M: TargetModel>(loaded: Loaded<M>) -> (Self, Engine<M>) {
        let served = Self {
            prompts: loaded.prompts,
            name: loaded.name,
            fingerprint: loaded.fingerprint,
            lossless: loaded.lossless,
            load: loaded.load,
            pass_seconds: loaded.pass_seconds,
            created: now(),
            info: loaded.engine.model().info().clone(),
            drafters: loaded.drafters,
            grammars: OnceLock::new(),
        };
        (served, loaded.engine)
    }

    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    pub fn drafters(&self) -> &[Source] {
        &self.drafters
    }

    /// Compiles grammars for the model.
    pub fn grammars(&self) -> Result<&Grammars, ApiError> {
        let made = || Grammars::new(self.prompts.tokenizer(), self.info.vocab_size);
        self.grammars
            .get_or_init(made)
            .as_ref()
            .map_err(|error| ApiError::internal(format!("no grammars for this model: {error}")))
    }

    /// Whether a request means this model.
    pub fn is_called(&self, name: &str) -> bool {
        name == self.name || name.strip_suffix(".gguf") == Some(&self.name)
    }

    /// The error of a request for another model.
    pub fn unknown(&self, name: &str) -> ApiError {
        let message = format!("model: there is no {name:?} here, but {:?}", self.name);
        ApiError::refused(StatusCode::NOT_FOUND, message).code("model_not_found")
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |time| time.as_secs())
}
