//! The drafters that need nothing but this crate.

mod grow;
mod model;
mod prediction;
mod recycling;
mod suffix;

pub use model::ModelDrafter;
pub use prediction::PredictionDrafter;
pub use recycling::RecyclingDrafter;
pub use suffix::{Corpus, SuffixDrafter};
