//! Developer and newcomer commands of foretoken.
#![forbid(unsafe_code)]

fn main() {}
