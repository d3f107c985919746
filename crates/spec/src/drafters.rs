//! The drafters that need nothing but this crate.

mod lookup;
mod model;

pub use lookup::{LookupDrafter, LookupParams};
pub use model::ModelDrafter;
