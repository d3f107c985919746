//! Rounds of draft, verify and commit over many sequences.
#![forbid(unsafe_code)]
