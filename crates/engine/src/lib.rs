//! Rounds of draft, verify and commit over many sequences at once.
//!
//! [`Engine::add`] takes a [`GenerationRequest`]; each [`Engine::step`] is one round for all active sequences
//! and returns what happened as [`Event`]s. For the same request the tokens are the same whatever the
//! drafter, the draft's length, the other sequences and the way that the prompt was cut into chunks.
//!
//! - [`engine`](Engine): requests come and go;
//! - `round`: memory, drafts, one target pass, verification, commit;
//! - `prefixes`: what sequences begin with alike is computed once;
//! - [`pace`](PromptPace): how much of a prompt goes into a round;
//! - [`policy`](DraftPolicy): how long drafts may be;
//! - [`text`](TokenBytes): streamed text without broken characters or stop strings;
//! - [`stats`](Stats): what it cost; [`report`](Timings) shapes that for machines.
//!
//! Not here: tokenizers, HTTP, how a model computes.
#![forbid(unsafe_code)]

mod engine;
mod pace;
mod policy;
mod prefixes;
mod report;
mod request;
mod round;
mod sequence;
mod stats;
mod text;

pub use engine::{Engine, EngineOptions};
pub use pace::PromptPace;
pub use policy::{DraftLimits, DraftPolicy};
pub use report::{ModelTimings, NO_DRAFTER, RoundFigures, SpeculationReport, Timings};
pub use request::{
    Event, FinishReason, GenerationRequest, MAX_STOP_BYTES, MAX_STOPS, OutputToken, Progress, RequestError,
    RequestId, SequenceError,
};
pub use stats::{Passes, RoundReport, SourceCount, Speculation, Stats, TargetTimes, Totals};
pub use text::{Fragment, TokenBytes};
