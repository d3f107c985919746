//! A scripted model, test drafters, and plain decoding to compare with: for the tests of this crate and of
//! those above it. Behind the feature `testing`.

mod counters;
mod drafters;
mod grammar;
mod model;
mod network;
mod run;

pub use counters::Counters;
pub use drafters::{AlwaysWrongDrafter, FailingDrafter, OracleDrafter, OwnNoiseDrafter, RandomDrafter};
pub use grammar::FixedText;
pub use model::{Evaluation, ScriptedModel};
pub use network::ScriptedNetwork;
pub use run::{Run, Task, decode_drafted, decode_plain, open_params, token_law};
