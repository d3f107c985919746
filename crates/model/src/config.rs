//! Architectures and their hyperparameters from metadata.

/// A supported architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Llama 2 and 3, CodeLlama, TinyLlama, SmolLM2, Granite 7B.
    Llama,
    /// Qwen 2 and 2.5.
    Qwen2,
}

/// Hyperparameters.
#[derive(Clone, Debug)]
pub struct Config {}
