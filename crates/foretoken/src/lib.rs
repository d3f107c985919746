//! The facade of foretoken: what a user of the library needs, re-exported.
#![forbid(unsafe_code)]
