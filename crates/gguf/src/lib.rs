//! GGUF files, versions 2 and 3: memory-mapped reading and writing. Every malformed file is an error that
//! names file and field, never a panic and never an allocation beyond the file's own size.
//!
//! Not here: what tensors and keys mean.
//!
//! ```
//! use foretoken_gguf::{Gguf, TensorType, Writer};
//! # let path = std::env::temp_dir().join(format!("foretoken-doc-{}.gguf", std::process::id()));
//! let mut writer = Writer::new();
//! writer.metadata("general.architecture", "llama".into());
//! writer.tensor("output_norm.weight", &[2], TensorType::F32, [1f32, 2.0].map(f32::to_le_bytes).concat())?;
//! writer.write(&path)?;
//!
//! let file = Gguf::open(&path)?;
//! assert_eq!(file.require_string("general.architecture")?, "llama");
//! let tensor = file.tensor("output_norm.weight").unwrap();
//! assert_eq!(file.map(tensor)?.len(), 8);
//! # std::fs::remove_file(path).unwrap();
//! # Ok::<(), foretoken_gguf::Error>(())
//! ```
#![deny(unsafe_code)]

mod cursor;
mod error;
mod file;
mod header;
mod mmap;
#[cfg(feature = "testing")]
pub mod testing;
mod types;
mod value;
mod writer;

pub use error::Error;
pub use file::{Gguf, SplitName, TensorBytes, TensorInfo};
pub use header::{Header, parse_header};
pub use types::TensorType;
pub use value::{Array, Value};
pub use writer::Writer;
