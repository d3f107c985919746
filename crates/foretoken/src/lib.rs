//! foretoken runs large language models from GGUF files and makes them answer sooner by speculative
//! decoding, without changing a single token of the answer.
//!
//! ```no_run
//! use foretoken::{GenerationRequest, Message, Session, SessionOptions};
//!
//! # fn main() -> Result<(), foretoken::SessionError> {
//! let mut session = Session::load(&SessionOptions::new("model.gguf"))?;
//! let prompt = session.chat(&[Message::new("user", "Why is the sky blue?")])?;
//! let answer = session.generate(GenerationRequest { prompt, ..Default::default() }, |_| ())?;
//! println!("{}", answer.text);
//! # Ok(())
//! # }
//! ```
//!
//! [`Session`] answers one request at a time; for many at once use its [`Engine`]. The crates beneath are
//! re-exported whole: [`engine`], [`gguf`], [`kernels`], [`model`], [`spec`], [`train`].
#![forbid(unsafe_code)]

mod cache;
mod costs;
mod drafting;
pub mod models;
mod session;
pub mod training;
mod vocabulary;

pub use foretoken_engine as engine;
pub use foretoken_gguf as gguf;
pub use foretoken_kernels as kernels;
pub use foretoken_model as model;
pub use foretoken_spec as spec;
pub use foretoken_train as train;

pub use cache::directory as cache_directory;
pub use costs::{pass_costs, pass_seconds};
pub use foretoken_engine::{DraftPolicy, Engine, FinishReason, Fragment, GenerationRequest, Progress, Stats};
pub use foretoken_model::{ChatTemplate, CpuModel, Message, Special, Tokenizer};
pub use foretoken_spec::{Cancel, Sampler, SamplerParams, Token};
pub use session::{
    Drafting, Generation, KvSize, LoadReport, LoadedModel, Loading, Session, SessionError, SessionOptions,
    TokenText, available_threads, load_model,
};
pub use vocabulary::{DEFAULT_DRAFT_VOCAB, Ranking, RankingError, Seen, draft_vocabulary};
