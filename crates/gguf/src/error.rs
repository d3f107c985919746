//! Why a file was refused.
use std::path::{Path, PathBuf};

/// Why a GGUF file was refused or could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system said no.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's words.
        source: std::io::Error,
    },
    /// The bytes are not a well-formed GGUF file.
    #[error("{}: {field}: {problem}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The field at fault, such as `metadata key 3` or `tensor "blk.0.attn_q.weight" offset`.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A [`Writer`](crate::Writer) was given something that a file cannot hold.
    #[error("{field}: {problem}")]
    Unwritable {
        /// The key or tensor.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A metadata key that the caller requires is missing or of another type.
    #[error("{}: metadata {key}: {problem}", path.display())]
    Metadata {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// What is wrong with it.
        problem: String,
    },
}

impl Error {
    pub(crate) fn io(path: &Path, source: std::io::Error) -> Self {
        Error::Io {
            path: path.to_owned(),
            source,
        }
    }
}
