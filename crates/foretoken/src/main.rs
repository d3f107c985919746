//! The command line `foretoken`.
#![forbid(unsafe_code)]

fn main() {}
