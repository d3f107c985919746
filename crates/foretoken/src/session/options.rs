//! What a session is loaded by.

use std::path::PathBuf;
use std::time::Duration;

use foretoken_engine::DraftPolicy;
use foretoken_model::Config;
use foretoken_spec::{ControllerParams, Source};

use super::SessionError;
use crate::drafting::DraftFile;
use crate::vocabulary::DEFAULT_DRAFT_VOCAB;

/// Where drafts may come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Drafting {
    /// From all that there is, whatever pays best in each round.
    #[default]
    Auto,
    /// From what followed the same words before.
    Suffix,
    /// From what the target thought before.
    Recycling,
    /// From a smaller model of the same vocabulary.
    Model,
    /// From a speculator, a small network that reads the target's hidden states.
    Mlp,
    /// Nowhere: plain decoding.
    None,
}

impl Drafting {
    /// The drafter with a network that alone may draft, if that is what was chosen.
    pub(crate) fn network(self) -> Option<Source> {
        match self {
            Self::Model => Some(Source::Model),
            Self::Mlp => Some(Source::Mlp),
            Self::Auto | Self::Suffix | Self::Recycling | Self::None => None,
        }
    }

    /// Checks that the draft file is of the kind that was chosen.
    pub(super) fn check(self, draft: Option<&DraftFile<'_>>) -> Result<(), SessionError> {
        match (self.network(), draft) {
            (None, _) => Ok(()),
            (Some(drafter), None) => Err(SessionError::NoDraft { drafter }),
            (Some(drafter), Some(file)) => file.check(drafter),
        }
    }
}

/// The size of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvSize {
    /// So many contexts.
    Sequences(usize),
    /// So many bytes of keys and values of the target; a draft model's cache holds as many positions.
    Bytes(u64),
}

impl KvSize {
    /// Positions that it holds, of sequences of up to `context` positions.
    pub(super) fn positions(self, config: &Config, context: usize) -> usize {
        match self {
            Self::Sequences(sequences) => sequences.saturating_mul(context),
            Self::Bytes(bytes) => (bytes / config.kv_bytes() as u64) as usize,
        }
    }
}

/// What to load and how to run it.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// The target model's file.
    pub model: PathBuf,
    /// Where drafts may come from.
    pub drafting: Drafting,
    /// What drafts besides the text: a smaller model of the same vocabulary, for [`Drafting::Auto`] and [`Drafting::Model`], or a
    /// speculator (a file, or a directory as they are published), for [`Drafting::Auto`] and [`Drafting::Mlp`].
    pub draft_model: Option<PathBuf>,
    /// So many tokens, the most frequent ones, are what it may say; 0 is its whole vocabulary. A speculator that was made for a part
    /// of the vocabulary keeps to that.
    pub draft_vocab: usize,
    /// Whether which tokens are frequent depends on earlier requests too, and [`Session::generate`](crate::Session::generate) keeps on disk which ones
    /// each held. Where the draft model has its whole vocabulary, nothing is kept.
    pub learn: bool,
    /// Texts to draft from besides the sequence's own.
    pub corpus: Vec<PathBuf>,
    /// Bounds of the length of drafts; with [`fixed`](DraftPolicy::fixed) drafts are made always, whether that pays or not.
    pub policy: DraftPolicy,
    /// The share of plain decoding's time that drafts may lose.
    pub loss_budget: f64,
    /// Threads; `None` takes all that the system offers.
    pub threads: Option<usize>,
    /// Positions of a sequence; `None` is the model's own, at most 4096.
    pub context: Option<usize>,
    /// What all sequences together may hold; `None` is one context.
    pub kv: Option<KvSize>,
    /// Keeps passes that read prompts below this, for the sake of what else there is to do.
    pub max_stall: Option<Duration>,
    /// See [`EngineOptions::prefixes`](foretoken_engine::EngineOptions::prefixes).
    pub prefixes: usize,
    /// See [`EngineOptions::force_accept`](foretoken_engine::EngineOptions::force_accept).
    pub force_accept: Option<f64>,
}

impl SessionOptions {
    /// The defaults for a model file: all threads, drafts as far as they pay.
    pub fn new(model: impl Into<PathBuf>) -> Self {
        Self {
            model: model.into(),
            drafting: Drafting::default(),
            draft_model: None,
            draft_vocab: DEFAULT_DRAFT_VOCAB,
            learn: true,
            corpus: Vec::new(),
            policy: DraftPolicy::default(),
            loss_budget: ControllerParams::default().loss_budget,
            threads: None,
            context: None,
            kv: None,
            max_stall: None,
            prefixes: 0,
            force_accept: None,
        }
    }
}
