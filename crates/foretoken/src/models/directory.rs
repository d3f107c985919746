//! The directory where models are kept, and what a name means.

use std::fs;
use std::path::{Path, PathBuf};

use foretoken_gguf::{Gguf, SplitName};
use foretoken_model::Architecture;

use super::{KnownModel, ModelError};
use crate::cache;

/// The directory where models are kept.
#[derive(Clone, Debug)]
pub struct Models(PathBuf);

/// A model in the directory.
#[derive(Debug)]
pub struct Entry {
    /// What it can be called on the command line.
    pub name: String,
    /// Its file; of a split model, the first part.
    pub path: PathBuf,
    /// The length of all its parts.
    pub bytes: u64,
    /// What its header says, or why it cannot be read.
    pub header: Result<Header, foretoken_gguf::Error>,
}

/// What the header of a model file says.
#[derive(Debug)]
pub struct Header {
    /// Its architecture.
    pub architecture: String,
    /// Whether foretoken knows the architecture.
    pub is_supported: bool,
    /// The type that most bytes of the weights have.
    pub weights: Option<&'static str>,
}

/// A download that did not come to its end.
#[derive(Debug)]
pub struct Unfinished {
    /// What it will be called.
    pub name: String,
    /// How many bytes are there.
    pub bytes: u64,
}

impl Models {
    /// A directory; it need not exist yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// `$FORETOKEN_MODELS`, or `foretoken/models` in the user's data directory.
    ///
    /// # Errors
    /// If the system names neither.
    pub fn from_env() -> Result<Self, ModelError> {
        let problem = |problem: &str| ModelError::Setting {
            variable: "FORETOKEN_MODELS",
            problem: problem.to_string(),
        };
        let directory = cache::first_of([
            ("FORETOKEN_MODELS", ""),
            ("XDG_DATA_HOME", "foretoken/models"),
            ("HOME", ".local/share/foretoken/models"),
        ]);
        let directory = directory.ok_or_else(|| problem("is not set, and there is no home directory"))?;
        Ok(Self(
            std::path::absolute(directory).map_err(|error| problem(&error.to_string()))?,
        ))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The file of this name, with or without `.gguf`, if it is there.
    pub fn get(&self, name: &str) -> Option<PathBuf> {
        let files = [name.to_string(), format!("{name}.gguf")];
        files
            .into_iter()
            .map(|file| self.0.join(file))
            .find(|path| path.is_file())
    }

    /// What is there, by name. Headers are read, weights are not.
    ///
    /// # Errors
    /// If the directory cannot be read; one that does not exist is empty.
    pub fn list(&self) -> Result<(Vec<Entry>, Vec<Unfinished>), ModelError> {
        let (mut entries, mut unfinished) = (Vec::new(), Vec::new());
        let files = match fs::read_dir(&self.0) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok((entries, unfinished)),
            files => files.map_err(ModelError::file(&self.0))?,
        };
        for file in files {
            let path = file.map_err(ModelError::file(&self.0))?.path();
            let Ok(about) = fs::metadata(&path) else { continue };
            let Some(file) = path.file_name().and_then(|name| name.to_str()) else {
                continue;
            };
            if !about.is_file() || file.starts_with('.') {
                continue;
            }
            if let Some(name) = file.strip_suffix(".gguf.part") {
                if about.len() == 0 {
                    continue;
                }
                unfinished.push(Unfinished {
                    name: name.to_string(),
                    bytes: about.len(),
                });
            } else if let Some(name) = file.strip_suffix(".gguf")
                && SplitName::parse(&path).is_none_or(|split| split.number == 1)
            {
                entries.push(Entry::read(name.to_string(), &path, about.len()));
            }
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        unfinished.sort_by(|a, b| a.name.cmp(&b.name));
        Ok((entries, unfinished))
    }
}

impl Entry {
    fn read(name: String, path: &Path, file_bytes: u64) -> Self {
        let gguf = Gguf::open(path);
        Self {
            name,
            path: path.to_owned(),
            bytes: gguf.as_ref().map_or(file_bytes, Gguf::file_len),
            header: gguf.and_then(|gguf| Header::read(&gguf)),
        }
    }
}

impl Header {
    fn read(gguf: &Gguf) -> Result<Self, foretoken_gguf::Error> {
        let architecture = gguf.require_string("general.architecture")?.to_string();
        let mut bytes_by_type: Vec<(&'static str, u64)> = Vec::new();
        for tensor in gguf.tensors() {
            let name = tensor.ty.name();
            match bytes_by_type.iter_mut().find(|(known, _)| *known == name) {
                Some((_, bytes)) => *bytes += tensor.len,
                None => bytes_by_type.push((name, tensor.len)),
            }
        }
        let most = bytes_by_type.into_iter().max_by_key(|(_, bytes)| *bytes);
        Ok(Self {
            is_supported: Architecture::from_name(&architecture).is_ok(),
            weights: most.map(|(name, _)| name),
            architecture,
        })
    }
}

/// The file that is meant: one at this path, or a model of this name in the directory of models.
///
/// # Errors
/// [`ModelError::NotFound`], which says how a known model can be had, or [`ModelError::Setting`].
pub fn find(typed: &Path) -> Result<PathBuf, ModelError> {
    // A directory is no model, and may well be called like one. What may not be looked at fails when it is opened.
    if typed.try_exists().unwrap_or(true) && !typed.is_dir() {
        return Ok(typed.to_owned());
    }
    let nothing = if typed.is_dir() {
        "is a directory"
    } else {
        "no such file"
    };
    let not_found = |problem: String| ModelError::NotFound {
        typed: typed.display().to_string(),
        problem,
    };
    let name = typed
        .to_str()
        .filter(|name| Path::new(name).file_name() == Some(typed.as_os_str()));
    let Some(name) = name else {
        return Err(not_found(nothing.to_string()));
    };
    let models = Models::from_env()?;
    if let Some(path) = models.get(name) {
        return Ok(path);
    }
    let known = name.strip_suffix(".gguf").unwrap_or(name);
    let hint = match KnownModel::named(known) {
        Some(model) => format!("; `foretoken pull {}` fetches it", model.name),
        None => String::new(),
    };
    Err(not_found(format!(
        "{nothing}, and no such model in {}{hint}",
        models.path().display()
    )))
}
