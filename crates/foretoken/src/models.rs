//! Model files by name: which are known, where they are kept, and how they are fetched over HTTP.
//!
//! A [`Source`] says where a file comes from, a [`Client`] asks servers for it, and [`Models`] is the directory that it goes
//! to: [`Models::pull`] puts it there whole or not at all, [`Models::list`] says what is there, and [`find`] is what a name on
//! the command line means.
//!
//! Not here: what is in a file (`gguf`), and what is printed.

mod checksum;
mod client;
mod directory;
mod download;
mod error;
mod known;
mod part;
mod source;

pub use checksum::Checksum;
pub use client::{Client, Patience};
pub use directory::{Entry, Header, Models, Unfinished, find};
pub use download::{Event, Pulled};
pub use error::ModelError;
pub use known::{KNOWN, KnownModel};
pub use source::Source;
