//! The arguments about model files: which one is meant, and which to fetch.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use clap::Args;
use foretoken::model::SpeculatorFile;
use foretoken::models::{self, Checksum, ModelError, Source};

/// A model on the command line: a file, or the name of one that was pulled. Only [`file`](Self::file) gives a path, so that
/// no command can take the one for the other.
#[derive(Clone, Debug)]
pub struct ModelArg(PathBuf);

impl ModelArg {
    /// The file that is meant.
    ///
    /// # Errors
    /// If there is none.
    pub fn file(&self) -> Result<PathBuf, ModelError> {
        models::find(&self.0)
    }

    /// As [`file`](Self::file), for what drafts: a speculator may be a directory too.
    ///
    /// # Errors
    /// If there is none.
    pub fn draft_file(&self) -> Result<PathBuf, ModelError> {
        match self.0.is_dir() && SpeculatorFile::is_one(&self.0) {
            true => Ok(self.0.clone()),
            false => self.file(),
        }
    }
}

impl From<OsString> for ModelArg {
    fn from(typed: OsString) -> Self {
        Self(typed.into())
    }
}

/// As it was typed.
impl fmt::Display for ModelArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "The file goes to $FORETOKEN_MODELS, or to foretoken/models in the user's data directory, and its path to standard \
                  output. A download that broke off goes on where it ended.\n\nHF_TOKEN is a token for the hub, HF_ENDPOINT the \
                  address of a mirror (default: https://huggingface.co).\n\nExit status: 0 the file is there, 1 failed, 2 wrong usage."
)]
pub struct PullArgs {
    /// A known model (see foretoken models), hf:OWNER/REPOSITORY/FILE.gguf, or a URL
    #[arg(value_name = "NAME")]
    pub source: Source,
    /// Refuse a file of another SHA-256 sum
    #[arg(long, value_name = "HEX")]
    pub sha256: Option<Checksum>,
    /// Call the model so [default: NAME, or as the file is called]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
}

impl PullArgs {
    /// What is to be pulled: more than one file if the model is split.
    ///
    /// # Errors
    /// If the options do not fit the source.
    pub fn sources(&self) -> Result<Vec<Source>, ModelError> {
        let mut source = self.source.clone();
        if let Some(name) = &self.name {
            source = source.named(name)?;
        }
        if let Some(sha256) = self.sha256 {
            source = source.expecting(sha256)?;
        }
        source.check_name()?;
        Ok(source.parts())
    }
}

#[derive(Debug, Args)]
pub struct ModelsArgs {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}
