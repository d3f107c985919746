//! An OpenAI-compatible HTTP server over an [`Engine`](foretoken_engine::Engine).
//!
//! - [`serve`]: connections, loading, shutting down;
//! - `guard`: who may call;
//! - `fields`, `params`, `messages`, `tools`, `completions`, `info`: from bodies to requests, nothing left over;
//! - `generation`, `worker`: the queue, and the thread of the engine;
//! - `calls`, `shape`, `stream`, `error`: answers;
//! - `metrics`: counters;
//! - `page`: the page at `/`, for people.
//!
//! Not here: how a model computes, which one it is, the command line.
#![forbid(unsafe_code)]

mod calls;
mod completions;
mod error;
mod fields;
mod generation;
mod guard;
mod info;
mod messages;
mod metrics;
mod options;
mod page;
mod params;
mod served;
mod server;
mod shape;
mod state;
mod stream;
mod tools;
mod worker;

pub use options::{ApiKey, ServerOptions};
pub use served::Loaded;
pub use server::{ServeError, serve};
