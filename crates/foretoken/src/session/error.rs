//! What can go wrong in a session.

use std::path::{Path, PathBuf};

use foretoken_engine::{RequestError, SequenceError};
use foretoken_grammar::CompileError;
use foretoken_model::{LoadError, PromptError};
use foretoken_spec::{ModelError, Source};

/// Why a session could not do what it was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// A model could not be loaded.
    #[error("{}: {source}", path.display())]
    Load {
        /// The model's file.
        path: PathBuf,
        /// Why.
        source: LoadError,
    },
    /// A file could not be read.
    #[error(transparent)]
    Gguf(#[from] foretoken_gguf::Error),
    /// The draft model cannot draft for the target.
    #[error("{} cannot draft for {}: {problem}", draft.display(), target.display())]
    Vocabulary {
        /// The draft model's file.
        draft: PathBuf,
        /// The target model's file.
        target: PathBuf,
        /// The first token that differs.
        problem: String,
    },
    /// A pass to measure a model's costs failed.
    #[error("{}: {source}", path.display())]
    Costs {
        /// The model's file.
        path: PathBuf,
        /// Why.
        source: ModelError,
    },
    /// A drafter was asked for without the draft model or the speculator that it needs.
    #[error("the drafter `{}` needs {}", drafter.name(), needed(*drafter))]
    NoDraft {
        /// The drafter.
        drafter: Source,
    },
    /// It was asked for with the other of the two.
    #[error("{}: the drafter `{}` needs {}; this is {}", path.display(), drafter.name(), needed(*drafter), needed(*found))]
    OtherDraft {
        /// The file.
        path: PathBuf,
        /// The drafter.
        drafter: Source,
        /// The drafter that the file is for.
        found: Source,
    },
    /// A text to draft from cannot be used.
    #[error("{}: {problem}", path.display())]
    Corpus {
        /// Its file.
        path: PathBuf,
        /// Why.
        problem: String,
    },
    /// The cache holds less than one context.
    #[error("the KV cache would hold {positions} positions, less than one context of {context_length}")]
    KvTooSmall {
        /// Positions of the cache.
        positions: usize,
        /// Positions of a sequence.
        context_length: usize,
    },
    /// A text cannot be made a prompt.
    #[error("{}: {source}", path.display())]
    Prompt {
        /// The model's file.
        path: PathBuf,
        /// Why.
        source: PromptError,
    },
    /// The model's vocabulary cannot be used with grammars.
    #[error("{}: {source}", path.display())]
    Grammar {
        /// The model's file.
        path: PathBuf,
        /// Why.
        source: CompileError,
    },
    /// The request was refused.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The generation failed.
    #[error("{}: {source}", path.display())]
    Sequence {
        /// The target model's file.
        path: PathBuf,
        /// Why.
        source: SequenceError,
    },
}

impl SessionError {
    /// Names the file once.
    pub(crate) fn load(path: &Path, source: LoadError) -> Self {
        match source {
            LoadError::Gguf(error) => Self::Gguf(error),
            source => Self::Load {
                path: path.to_path_buf(),
                source,
            },
        }
    }
}

/// What a drafter with a network is made of.
fn needed(drafter: Source) -> &'static str {
    match drafter {
        Source::Mlp => "a speculator",
        _ => "a draft model",
    }
}
