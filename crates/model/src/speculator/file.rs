//! Files of speculators: our GGUF, and the directories in which speculators are published.
//!
//! Opening reads headers and checks that every tensor is there and has its shape; weights are read later.
use super::SpeculatorInfo;
use super::config::ARCHITECTURE;
use super::layout::{PREFIX, Part, Stored};
use super::shards::{Entry, Shards, error, read_small};
use crate::LoadError;
use crate::weights::{Loader, check_dims, format_of, tensor_error};
use foretoken_gguf::Gguf;
use foretoken_kernels::{Arena, Compute, Matrix, Quantizer};
use foretoken_spec::Token;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// An open speculator.
#[derive(Debug)]
pub struct SpeculatorFile {
    path: PathBuf,
    info: SpeculatorInfo,
    tensors: Vec<Stored>,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Gguf(Gguf),
    /// A published directory, and where each tensor is.
    Directory(Shards, Vec<Entry>),
}

/// Weights that are read at once, about.
pub(super) const CHUNK: usize = 1 << 20;

impl SpeculatorFile {
    /// Whether this is a speculator and not a language model: a directory with a `config.json`, or a GGUF file that says so.
    pub fn is_one(path: impl AsRef<Path>) -> bool {
        let path = path.as_ref();
        path.join("config.json").is_file()
            || path.is_file() && Gguf::open(path).is_ok_and(|gguf| is_speculator(&gguf))
    }

    /// Opens a GGUF file or a published directory.
    ///
    /// # Errors
    /// What of it is missing, wrong or not supported.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, LoadError> {
        let path = path.as_ref();
        match path.is_dir() {
            true => Self::open_directory(path),
            false => Self::open_gguf(path),
        }
    }

    /// Opens it if it [is one](Self::is_one); `None` is something else, or nothing.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_if_one(path: impl AsRef<Path>) -> Result<Option<Self>, LoadError> {
        let path = path.as_ref();
        if path.join("config.json").is_file() {
            return Self::open_directory(path).map(Some);
        }
        match path.is_file().then(|| Gguf::open(path)) {
            Some(Ok(gguf)) if is_speculator(&gguf) => Self::from_gguf(path, gguf).map(Some),
            _ => Ok(None),
        }
    }

    fn open_gguf(path: &Path) -> Result<Self, LoadError> {
        let gguf = Gguf::open(path)?;
        match is_speculator(&gguf) {
            true => Self::from_gguf(path, gguf),
            false => Err(LoadError::Architecture {
                found: gguf.require_string("general.architecture")?.to_owned(),
                known: ARCHITECTURE.to_owned(),
            }),
        }
    }

    fn from_gguf(path: &Path, gguf: Gguf) -> Result<Self, LoadError> {
        let info = SpeculatorInfo::from_gguf(&gguf)?;
        let tensors = info.stored();
        let mut known = Vec::with_capacity(tensors.len());
        for tensor in &tensors {
            let name = format!("{PREFIX}{}", tensor.name);
            let Some(found) = gguf.tensor(&name) else {
                return Err(tensor_error(&name, "is missing"));
            };
            let dims: Vec<usize> = tensor.dims.iter().rev().copied().collect();
            check_dims(found, &dims)?;
            format_of(found)?;
            known.push(name);
        }
        if let Some(extra) = gguf.tensors().iter().find(|tensor| !known.contains(&tensor.name)) {
            return Err(tensor_error(&extra.name, "is not part of such a speculator"));
        }
        Ok(Self {
            path: path.to_owned(),
            info,
            tensors,
            source: Source::Gguf(gguf),
        })
    }

    fn open_directory(path: &Path) -> Result<Self, LoadError> {
        let config = path.join("config.json");
        let info =
            SpeculatorInfo::from_json(&read_small(&config)?).map_err(|problem| error(&config, problem))?;
        let shards = Shards::open(path)?;
        let mut entries = Vec::new();
        let tensors = info.stored();
        for tensor in &tensors {
            let names = names_of(&info, tensor);
            let Some((name, entry)) = names.iter().find_map(|name| Some((name, shards.get(name)?))) else {
                return Err(tensor_error(&tensor.name, "is missing"));
            };
            entry
                .check_type()
                .map_err(|problem| tensor_error(name, problem))?;
            if entry.shape != tensor.dims {
                let problem = format!("is {:?}; {:?} is needed", entry.shape, tensor.dims);
                return Err(tensor_error(name, problem));
            }
            entries.push(entry.clone());
        }
        let known: Vec<String> = tensors
            .iter()
            .flat_map(|tensor| names_of(&info, tensor))
            .collect();
        let mut unknown: Vec<&str> = shards
            .names()
            .filter(|&name| known.iter().all(|k| k != name))
            .collect();
        unknown.sort_unstable();
        if let Some(name) = unknown.first() {
            return Err(tensor_error(name, "is not part of such a speculator"));
        }
        Ok(Self {
            path: path.to_owned(),
            info,
            tensors,
            source: Source::Directory(shards, entries),
        })
    }

    /// What the file says of the speculator.
    pub fn info(&self) -> &SpeculatorInfo {
        &self.info
    }

    /// The path given to [`open`](Self::open).
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is a published directory, which [`convert`](Self::convert) makes a GGUF file of.
    pub fn is_directory(&self) -> bool {
        matches!(self.source, Source::Directory(..))
    }

    /// Reads some elements of tensor `at` of a directory.
    pub(super) fn read(
        &self,
        at: usize,
        elements: Range<usize>,
        out: &mut Vec<f32>,
    ) -> Result<(), LoadError> {
        match &self.source {
            Source::Directory(shards, entries) => shards.read(&entries[at], elements, out),
            Source::Gguf(_) => Err(error(&self.path, "is a GGUF file already")),
        }
    }

    /// A matrix, packed: of a GGUF file as it is stored, of a directory in Q8_0 (or F16, where rows are no whole blocks). With
    /// `tokens`, the rows of these alone.
    pub(super) fn matrix(
        &self,
        compute: &Compute,
        arena: &mut Arena,
        part: Part,
        head: usize,
        tokens: Option<&[Token]>,
    ) -> Result<Matrix, LoadError> {
        let (at, tensor) = self.find(part, head);
        let (rows, cols) = (tensor.rows(), tensor.cols());
        let gguf = match &self.source {
            Source::Gguf(gguf) => gguf,
            Source::Directory(..) => return self.quantized(compute, arena, at, tokens),
        };
        let name = format!("{PREFIX}{}", tensor.name);
        let mut quiet = |_, _| ();
        let mut loader = Loader::new(gguf, compute, &mut quiet);
        loader.check_finite(&name)?;
        match tokens {
            None => loader.matrix(&name, rows, cols),
            Some(tokens) => loader.rows_of_tokens(&name, rows, cols, tokens),
        }
    }

    /// Tensor `at` of a directory, quantised row by row.
    fn quantized(
        &self,
        compute: &Compute,
        arena: &mut Arena,
        at: usize,
        tokens: Option<&[Token]>,
    ) -> Result<Matrix, LoadError> {
        let tensor = &self.tensors[at];
        let cols = tensor.cols();
        let quantizer = Quantizer::Q8_0.for_cols(cols);
        let rows = tokens.map_or(tensor.rows(), <[Token]>::len);
        let (mut values, mut bytes) = (Vec::new(), Vec::with_capacity(quantizer.bytes(rows * cols)));
        let mut add = |rows: Range<usize>| -> Result<(), LoadError> {
            self.read(at, rows.start * cols..rows.end * cols, &mut values)?;
            check_weights(&tensor.name, &values)?;
            quantizer.quantize(compute, &values, &mut bytes);
            Ok(())
        };
        match tokens {
            None => chunks(rows, cols).try_for_each(add)?,
            Some(tokens) => {
                (tokens.iter().map(|&token| token as usize)).try_for_each(|token| add(token..token + 1))?
            }
        }
        Matrix::pack(compute, arena, quantizer.format(), rows, cols, &bytes)
            .map_err(|problem| tensor_error(&tensor.name, problem.to_string()))
    }

    /// A norm's weights or biases.
    pub(super) fn vector(&self, compute: &Compute, part: Part, head: usize) -> Result<Vec<f32>, LoadError> {
        let (at, tensor) = self.find(part, head);
        let mut values = Vec::new();
        match &self.source {
            Source::Gguf(gguf) => {
                let name = format!("{PREFIX}{}", tensor.name);
                values = Loader::new(gguf, compute, &mut |_, _| ()).vector(&name, tensor.cols())?;
            }
            Source::Directory(..) => self.read(at, 0..tensor.cols(), &mut values)?,
        }
        check_weights(&tensor.name, &values)?;
        Ok(values)
    }

    /// The tensor that serves as a head's part.
    fn find(&self, part: Part, head: usize) -> (usize, &Stored) {
        let head = self.info.owner(part, head);
        let same = |tensor: &&Stored| tensor.part == part && tensor.head == head;
        let found = self.tensors.iter().enumerate().find(|(_, tensor)| same(tensor));
        found.expect("opening found all tensors of all heads")
    }
}

fn is_speculator(gguf: &Gguf) -> bool {
    matches!(gguf.string("general.architecture"), Ok(Some(ARCHITECTURE)))
}

/// The names under which a tensor may be published: of tied ones, any of those that share it may have been kept.
fn names_of(info: &SpeculatorInfo, tensor: &Stored) -> Vec<String> {
    let sharing = (0..info.config.heads).filter(|&head| info.owner(tensor.part, head) == tensor.head);
    sharing
        .map(|head| tensor.part.name(head, info.factored))
        .collect()
}

/// Runs of rows, each of about [`CHUNK`] weights.
pub(super) fn chunks(rows: usize, cols: usize) -> impl Iterator<Item = Range<usize>> {
    let step = (CHUNK / cols).max(1);
    (0..rows)
        .step_by(step)
        .map(move |start| start..rows.min(start + step))
}

/// Whether weights are numbers that all formats can hold.
pub(super) fn check_weights(name: &str, values: &[f32]) -> Result<(), LoadError> {
    let fits = |value: &f32| value.abs() <= Quantizer::MAX_WEIGHT;
    match values.iter().position(|value| !fits(value)) {
        None => Ok(()),
        Some(at) => Err(tensor_error(
            name,
            format!("holds {}, which is no weight", values[at]),
        )),
    }
}
