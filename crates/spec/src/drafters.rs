//! The drafters that need nothing but this crate.

mod grow;
mod model;
mod network;
mod prediction;
mod recycling;
mod suffix;

pub use model::ModelDrafter;
pub use network::Network;
pub use prediction::PredictionDrafter;
pub use recycling::RecyclingDrafter;
pub use suffix::{Corpus, SuffixDrafter};
