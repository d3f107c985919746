//! GGUF files, versions 2 and 3: memory-mapped reading and writing. Every malformed file is an error that
//! names file and field, never a panic and never an allocation beyond the file's own size.
//!
//! Not here: what tensors and keys mean.

mod error;
mod file;
mod header;
mod types;
mod value;
mod writer;

pub use error::Error;
pub use file::{Gguf, TensorBytes, TensorInfo};
pub use header::{Header, parse_header};
pub use types::TensorType;
pub use value::{Array, Value};
pub use writer::Writer;
