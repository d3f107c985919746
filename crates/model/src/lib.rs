//! Language models from GGUF files: architectures, weights in kernel layout, tokenizer, chat template,
//! paged KV cache, and the pass itself. [`CpuModel`] is a [`foretoken_spec::TargetModel`].
//!
//! Not here: HTTP, scheduling, drafting.
#![forbid(unsafe_code)]

pub mod chat;
mod config;
mod cpu;
mod error;
mod kv;
mod pass;
mod prompt;
mod speculator;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod tokenizer;
mod weights;

pub use chat::{CALL_CLOSE, CALL_OPEN, ChatTemplate, Message, ToolCall};
pub use config::{Architecture, Config};
pub use cpu::{CpuModel, LoadOptions};
pub use error::LoadError;
pub use prompt::{PromptEncoder, PromptError};
pub use speculator::{
    Speculator, SpeculatorConfig, SpeculatorFile, SpeculatorInfo, SpeculatorTensor, SpeculatorType, Written,
    export_speculator, write_speculator,
};
pub use tokenizer::{Special, Tokenizer};
pub use weights::{PassCost, embedding_rows};
