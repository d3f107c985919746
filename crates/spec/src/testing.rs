//! A scripted model and test drafters.
