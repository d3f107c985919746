//! The server as clients see it: over sockets, with a tiny model of random weights.

mod access;
mod answers;
mod forms;
mod lifetime;
mod speculator;
#[path = "../speculators/mod.rs"]
mod speculators;
mod support;
