//! Why a model could not be loaded.
use std::path::PathBuf;

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The file itself, or a metadata value that makes no sense.
    #[error(transparent)]
    Gguf(#[from] foretoken_gguf::Error),
    /// The architecture is not one of those known.
    #[error("architecture {found:?} is not supported; known: {known}")]
    Architecture {
        /// What the file says.
        found: String,
        /// Those known, separated by commas.
        known: String,
    },
    /// A tensor is missing, superfluous, or of another shape or type than the architecture needs.
    #[error("tensor {name:?}: {problem}")]
    Tensor {
        /// Its name.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// A speculator that is none, or does not go with the target.
    #[error("{}: {problem}", path.display())]
    Speculator {
        /// The file or directory at fault.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The context asked for cannot be had.
    #[error("a context of {asked} positions was asked for; the model has 1 to {most}")]
    Context {
        /// Positions asked for.
        asked: usize,
        /// The model's own context length.
        most: usize,
    },
    /// The tokens that are to get logits are not a list that a head can have.
    #[error("tokens of the head: {0}")]
    HeadTokens(String),
    /// The cache asked for cannot be had.
    #[error("{0}")]
    Cache(String),
    /// The tokenizer cannot be built.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// The chat template cannot be compiled.
    #[error("chat template: {0}")]
    ChatTemplate(String),
}
