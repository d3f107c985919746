//! The drafters that need nothing but this crate.
