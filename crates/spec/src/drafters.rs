//! The drafters that need nothing but this crate.

mod grow;
mod model;
mod network;
mod prediction;
mod propose;
mod recycling;
mod speculator;
mod suffix;

pub use model::ModelDrafter;
pub use network::{Network, embedding_weight};
pub use prediction::PredictionDrafter;
pub use recycling::RecyclingDrafter;
pub(crate) use speculator::ROWS as SPECULATOR_ROWS;
pub use speculator::SpeculatorDrafter;
pub use suffix::{Corpus, SuffixDrafter};
