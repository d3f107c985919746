//! The command line, run as its users run it: over a tiny model of random weights, whose text is noise but
//! which has all that a real one has, and over SmolLM2 where it is there.

mod answers;
mod chat;
mod convert;
mod speculator;
#[path = "../speculators/mod.rs"]
mod speculators;
