//! Why a model could not be found or fetched.

use std::io;
use std::path::{Path, PathBuf};

use indicatif::DecimalBytes;

use super::Checksum;

/// Why a model could not be found or fetched. Each says in one line what it is about.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// Neither a file nor a model in the directory of models.
    #[error("{typed}: {problem}")]
    NotFound {
        /// What was asked for.
        typed: String,
        /// Where it was looked for, and what would help.
        problem: String,
    },
    /// What was to be pulled is no source.
    #[error("{text}: {problem}")]
    Source {
        /// What was given.
        text: String,
        /// What is wrong with it.
        problem: String,
    },
    /// An environment variable is not what it should be.
    #[error("{variable}: {problem}")]
    Setting {
        /// Its name.
        variable: &'static str,
        /// What is wrong with it; never its value if that is secret.
        problem: String,
    },
    /// The operating system said no.
    #[error("{}: {source}", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// The file would not fit.
    #[error("{}: {} are still to come, and {} are free", directory.display(), DecimalBytes(*needed), DecimalBytes(*free))]
    Space {
        /// Where it was to go.
        directory: PathBuf,
        /// Bytes that are needed.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// There is a file of that name, and it is not the one asked for.
    #[error("{} is another file: {problem}; remove it, or give --name for the new one", path.display())]
    Occupied {
        /// The file.
        path: PathBuf,
        /// In what it differs.
        problem: String,
    },
    /// No answer, or one that broke off.
    #[error("{url}: {problem}")]
    Connection {
        /// What was asked for, without its query.
        url: String,
        /// What happened.
        problem: String,
        /// Whether it may go better a moment later.
        passing: bool,
    },
    /// The server answered that there is no file to be had.
    #[error("{url}: {problem} (HTTP status {status})")]
    Refused {
        /// What was asked for, without its query.
        url: String,
        /// The answer.
        status: u16,
        /// What that means.
        problem: String,
    },
    /// The server sent us on to a place where we do not go.
    #[error("{url}: redirected {problem}")]
    Redirect {
        /// What was asked for, without its query.
        url: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The file has not the length that it should have.
    #[error("{url}: {problem}")]
    Length {
        /// What was asked for, without its query.
        url: String,
        /// How lengths differ.
        problem: String,
    },
    /// The file has not the checksum that it should have.
    #[error("{url}: the SHA-256 sum is {found} instead of {expected}")]
    Checksum {
        /// What was asked for, without its query.
        url: String,
        /// What it has.
        found: Checksum,
        /// What it should have.
        expected: Checksum,
    },
    /// The file is something else than a model.
    #[error("{url}: not a GGUF file: it begins with {begins:?}")]
    NotGguf {
        /// What was asked for, without its query.
        url: String,
        /// Its first bytes.
        begins: String,
    },
}

impl ModelError {
    pub(super) fn file(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { path, source }
    }

    /// Whether it may go better a moment later: cut connections, and servers that are in trouble.
    pub(super) fn is_passing(&self) -> bool {
        match self {
            Self::Connection { passing, .. } => *passing,
            Self::Refused { status, .. } => *status >= 500,
            _ => false,
        }
    }
}
