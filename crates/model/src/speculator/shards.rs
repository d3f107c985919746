//! The tensors of a published directory: one safetensors file, or several with an index.
//!
//! They are read piece by piece: a published speculator is larger than what it becomes.
use crate::LoadError;
use half::{bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::Metadata;
use serde_json::{Map, Value as Json};
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

pub(crate) const WHOLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Headers and indices beyond this many bytes are refused: a speculator has at most a few hundred tensors.
const MAX_HEADER: u64 = 1 << 20;

/// A directory's files.
#[derive(Debug)]
pub(crate) struct Shards {
    files: Vec<(PathBuf, File)>,
    tensors: HashMap<String, Entry>,
}

/// One tensor.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    file: usize,
    dtype: Dtype,
    pub shape: Vec<usize>,
    /// Bytes from the start of the file.
    start: u64,
}

impl Shards {
    /// Opens all files and reads their headers.
    pub fn open(directory: &Path) -> Result<Self, LoadError> {
        let mut this = Self {
            files: Vec::new(),
            tensors: HashMap::new(),
        };
        let (whole, index) = (directory.join(WHOLE), directory.join(INDEX));
        if whole.exists() {
            this.add(whole)?;
        } else if index.exists() {
            for name in shard_names(&index)? {
                this.add(directory.join(name))?;
            }
        } else {
            let is_pickle = |name: &str| directory.join(name).exists();
            let problem = match ["pytorch_model.bin", "pytorch_model.bin.index.json"]
                .into_iter()
                .any(is_pickle)
            {
                true => format!(
                    "its weights are in pytorch_model.bin, which only Python can read; convert it to {WHOLE}"
                ),
                false => format!("holds neither {WHOLE} nor {INDEX}"),
            };
            return Err(error(directory, problem));
        }
        Ok(this)
    }

    /// Adds a file's tensors, under their names without prefix.
    fn add(&mut self, path: PathBuf) -> Result<(), LoadError> {
        let (mut file, len) = open(&path)?;
        let io = |source| unreadable(&path, source);
        if len < 8 {
            return Err(error(
                &path,
                format!("has {len} bytes; a safetensors file begins with 8 for its header's length"),
            ));
        }
        let mut start = [0; 8];
        file.read_exact(&mut start).map_err(io)?;
        let header_len = u64::from_le_bytes(start);
        if header_len > MAX_HEADER.min(len - 8) {
            let problem =
                format!("a header of {header_len} bytes, in a file of {len}; at most {MAX_HEADER} is read");
            return Err(error(&path, problem));
        }
        let mut header = vec![0; header_len as usize];
        file.read_exact(&mut header).map_err(io)?;
        // Checks that the tensors follow each other and are as long as their shapes say.
        let header: Metadata =
            serde_json::from_slice(&header).map_err(|e| error(&path, format!("header: {e}")))?;
        let data = 8 + header_len;
        if header.data_len() as u64 != len - data {
            let problem = format!(
                "{} bytes of tensors where the header has {}",
                len - data,
                header.data_len()
            );
            return Err(error(&path, problem));
        }
        for (name, info) in header.tensors() {
            let entry = Entry {
                file: self.files.len(),
                dtype: info.dtype,
                shape: info.shape.clone(),
                start: data + info.data_offsets.0 as u64,
            };
            let bare = name.strip_prefix("speculator.").unwrap_or(&name);
            if self.tensors.insert(bare.to_owned(), entry).is_some() {
                return Err(error(&path, format!("tensor {name:?} is there twice")));
            }
        }
        self.files.push((path, file));
        Ok(())
    }

    /// All names, without prefix.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// A tensor by its name without prefix.
    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.tensors.get(name)
    }

    /// Reads some of a tensor's elements, in row-major order, into `out`.
    pub fn read(&self, entry: &Entry, elements: Range<usize>, out: &mut Vec<f32>) -> Result<(), LoadError> {
        let (path, file) = &self.files[entry.file];
        let bytes_each = entry.dtype.bitsize() / 8;
        let mut bytes = vec![0; elements.len() * bytes_each];
        let mut file: &File = file;
        file.seek(SeekFrom::Start(
            entry.start + (elements.start * bytes_each) as u64,
        ))
        .and_then(|_| file.read_exact(&mut bytes))
        .map_err(|source| unreadable(path, source))?;
        out.clear();
        match entry.dtype {
            Dtype::F32 => out.extend(bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b))),
            Dtype::F16 => out.extend(
                bytes
                    .as_chunks()
                    .0
                    .iter()
                    .map(|&b| f16::from_le_bytes(b).to_f32()),
            ),
            Dtype::BF16 => out.extend(
                bytes
                    .as_chunks()
                    .0
                    .iter()
                    .map(|&b| bf16::from_le_bytes(b).to_f32()),
            ),
            other => unreachable!("{other:?} is refused when the file is opened"),
        }
        Ok(())
    }
}

impl Entry {
    /// Says what is wrong with the type, if it is none that can be read.
    pub fn check_type(&self) -> Result<(), String> {
        match self.dtype {
            Dtype::F32 | Dtype::F16 | Dtype::BF16 => Ok(()),
            other => Err(format!("is {other:?}; F32, F16 or BF16 is needed")),
        }
    }
}

/// The files that an index names, each once.
fn shard_names(index: &Path) -> Result<BTreeSet<String>, LoadError> {
    let text = read_small(index)?;
    let json: Map<String, Json> = serde_json::from_slice(&text).map_err(|e| error(index, e.to_string()))?;
    let Some(map) = json.get("weight_map").and_then(Json::as_object) else {
        return Err(error(index, "weight_map is missing"));
    };
    let mut names = BTreeSet::new();
    for (tensor, name) in map {
        // A name, not a path: files of other directories are none of a speculator's.
        match name.as_str() {
            Some(name) if Path::new(name).file_name().is_some_and(|file| file == name) => {
                names.insert(name.to_owned());
            }
            _ => {
                return Err(error(
                    index,
                    format!("weight_map has {name} for {tensor:?}; a file's name is needed"),
                ));
            }
        }
    }
    match names.is_empty() {
        true => Err(error(index, "weight_map is empty")),
        false => Ok(names),
    }
}

/// All of a file that is to be small.
pub(crate) fn read_small(path: &Path) -> Result<Vec<u8>, LoadError> {
    let (file, len) = open(path)?;
    if len > MAX_HEADER {
        return Err(error(
            path,
            format!("has {len} bytes; at most {MAX_HEADER} is read"),
        ));
    }
    let mut text = Vec::new();
    file.take(MAX_HEADER)
        .read_to_end(&mut text)
        .map_err(|source| unreadable(path, source))?;
    Ok(text)
}

/// A regular file and its length.
fn open(path: &Path) -> Result<(File, u64), LoadError> {
    let io = |source| unreadable(path, source);
    // Asked of the path, since opening a pipe would wait for its writer.
    if !std::fs::metadata(path).map_err(io)?.is_file() {
        return Err(error(path, "is not a regular file"));
    }
    let file = File::open(path).map_err(io)?;
    let len = file.metadata().map_err(io)?.len();
    Ok((file, len))
}

fn unreadable(path: &Path, source: io::Error) -> LoadError {
    error(path, source.to_string())
}

/// An error about a file of a speculator.
pub(crate) fn error(path: &Path, problem: impl Into<String>) -> LoadError {
    LoadError::Speculator {
        path: path.to_owned(),
        problem: problem.into(),
    }
}
