//! The subject of foretoken, without a model: what passes between a drafter, a target model and the
//! verifier, and the rules by which a draft is kept.
//!
//! One round of speculative decoding runs in this order, and the modules follow it:
//!
//! - [`drafter`]: a [`Drafter`] *extends* the [`TokenTree`] ([`tree`]) of each sequence;
//! - [`target`]: a [`TargetModel`] scores every row of every tree in one [`Batch`];
//! - [`sampler`]: the [`Sampler`] says what the target itself would have said at a row;
//! - [`mod@verify`]: the walk down the tree that keeps exactly that.
//!
//! The drafters that need no network are in [`drafters`]; the [`controller`] makes one of several of them and lets it draft
//! only while that pays, by what passes [`cost`]; `examples/tiny_spec.rs` shows the whole round on
//! one page.
//!
//! Not here: how a model computes, files, threads, text. Logits and hidden states are plain `&[f32]`.
#![forbid(unsafe_code)]

pub mod controller;
pub mod cost;
pub mod drafter;
pub mod drafters;
pub mod grammar;
pub mod logprobs;
pub mod math;
pub mod noise;
pub mod sampler;
pub mod target;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod theory;
pub mod tree;
pub mod verify;

pub use controller::{
    ControlledDrafter, ControllerParams, CostlyDrafter, CostlyKind, Forecast, PassTime, PlainReason,
};
pub use cost::{CostModel, CostPoint};
pub use drafter::{
    Budget, Committed, DraftError, DraftTimes, Drafter, HiddenNeed, Needs, Request, VerifiedRow,
};
pub use grammar::{Grammar, GrammarError};
pub use logprobs::LogProbs;
pub use sampler::{
    Flow, LogitError, ParamError, Proposal, Sampler, SamplerParams, SamplerSnapshot, top_logits,
};
pub use target::{
    Batch, Cancel, Capabilities, ModelError, ModelInfo, OutOfPages, Output, Pages, Row, RowId, Scores,
    SequenceId, TargetModel, Token,
};
pub use tree::{Node, NodeId, Source, Sources, TokenTree};
pub use verify::{ForcedAcceptance, Verdict, verify, verify_forced};
