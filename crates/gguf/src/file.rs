//! Files, also split ones.
use crate::header::HeaderTensor;
use crate::mmap::map_range;
use crate::{Array, Error, Header, TensorType, Value, parse_header};
use memmap2::Mmap;
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

/// A header beyond this many bytes is refused. The largest vocabularies take some 20 MB.
const MAX_HEADER: u64 = 256 << 20;

/// An open GGUF model: one file, or all the parts of a split one.
///
/// Opening reads and checks the header of each part and maps nothing else; [`map`](Self::map) maps one tensor. The
/// files must not be changed in place meanwhile (replacing them by rename is fine): as with every mapped file,
/// cutting one short would end the process.
#[derive(Debug)]
pub struct Gguf {
    parts: Vec<Part>,
    version: u32,
    metadata: Vec<(String, Value)>,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
}

/// One file. It stays open, so that tensors come from the file whose header was checked.
#[derive(Debug)]
struct Part {
    path: PathBuf,
    file: File,
    len: u64,
}

/// One tensor of an open file.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Elements in each dimension, fastest first: `[cols, rows]` for a matrix.
    pub dims: Vec<u64>,
    /// How elements are stored.
    pub ty: TensorType,
    /// Length in bytes.
    pub len: u64,
    /// Which part of a split file holds it, from 0.
    pub part: usize,
    /// Bytes from the start of that part.
    pub offset: u64,
}

/// The bytes of one tensor, mapped; unmapped when dropped, so that a loader that repacks tensor by tensor
/// never holds the whole file in memory.
#[derive(Debug)]
pub struct TensorBytes(Mmap);

impl std::ops::Deref for TensorBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Gguf {
    /// Opens a file; if its name ends in `-00001-of-0000N.gguf`, all its parts.
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::Malformed`] for everything that [`parse_header`] refuses, headers beyond
    /// 256 MiB, and parts that are missing or do not fit together.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let (part, header) = Part::open(path)?;
        let (part_count, split_tensors) = split_keys(path, &header, 0)?;
        let name = SplitName::parse(path);
        if let Some(name) = &name
            && (name.number, name.count) != (1, part_count)
        {
            let problem = format!(
                "{part_count}, but the file's name says {} of {}",
                name.number, name.count
            );
            return Err(malformed(path, "metadata split.count", problem));
        }
        let mut this = Self {
            parts: vec![part],
            version: header.version,
            metadata: header.metadata,
            tensors: Vec::new(),
            by_name: HashMap::new(),
        };
        this.add_tensors(0, header.tensors, header.data_start)?;
        if part_count > 1 {
            let Some(name) = name else {
                let problem = format!(
                    "{part_count}, but the file's name does not end in -00001-of-{part_count:05}.gguf"
                );
                return Err(malformed(path, "metadata split.count", problem));
            };
            for index in 1..part_count {
                this.add_part(&name.sibling(index + 1), index, part_count, split_tensors)?;
            }
        }
        match split_tensors {
            Some(expected) if expected != this.tensors.len() as u64 => {
                let problem = format!("{expected}, but the parts hold {}", this.tensors.len());
                Err(malformed(path, "metadata split.tensors.count", problem))
            }
            _ => Ok(this),
        }
    }

    fn add_part(
        &mut self,
        path: &Path,
        index: u64,
        count: u64,
        split_tensors: Option<u64>,
    ) -> Result<(), Error> {
        let (part, header) = Part::open(path).map_err(|error| match error {
            Error::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => malformed(
                self.path(),
                "split file",
                format!("part {} of {count}, {}, is missing", index + 1, path.display()),
            ),
            other => other,
        })?;
        let keys = split_keys(path, &header, index)?;
        if keys != (count, split_tensors) {
            return Err(malformed(
                path,
                "metadata split.*",
                "the keys are not those of the first part",
            ));
        }
        self.parts.push(part);
        self.add_tensors(self.parts.len() - 1, header.tensors, header.data_start)
    }

    fn add_tensors(&mut self, part: usize, tensors: Vec<HeaderTensor>, data_start: u64) -> Result<(), Error> {
        for HeaderTensor {
            name,
            dims,
            ty,
            offset,
            len,
        } in tensors
        {
            if self.by_name.insert(name.clone(), self.tensors.len()).is_some() {
                let problem = "the name occurs in another part too";
                return Err(malformed(
                    &self.parts[part].path,
                    &format!("tensor {name:?}"),
                    problem,
                ));
            }
            self.tensors.push(TensorInfo {
                name,
                dims,
                ty,
                len,
                part,
                offset: data_start + offset,
            });
        }
        Ok(())
    }

    /// The path given to [`open`](Self::open).
    pub fn path(&self) -> &Path {
        &self.parts[0].path
    }

    /// 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The length of all parts in bytes.
    pub fn file_len(&self) -> u64 {
        self.parts.iter().map(|part| part.len).sum()
    }

    /// All metadata, in file order; of a split file, the first part's.
    pub fn metadata(&self) -> &[(String, Value)] {
        &self.metadata
    }

    /// A metadata value.
    pub fn get(&self, key: &str) -> Option<&Value> {
        get(&self.metadata, key)
    }

    /// An unsigned number of any integer type; `None` if absent, an error if negative or no integer.
    pub fn uint(&self, key: &str) -> Result<Option<u64>, Error> {
        uint(self.path(), &self.metadata, key)
    }

    /// Like [`uint`](Self::uint), and an error if absent.
    pub fn require_uint(&self, key: &str) -> Result<u64, Error> {
        self.require(key, self.uint(key)?)
    }

    /// A float of either width.
    pub fn float(&self, key: &str) -> Result<Option<f64>, Error> {
        self.typed(key, "a float", |value| match *value {
            Value::F32(v) => Some(v.into()),
            Value::F64(v) => Some(v),
            _ => None,
        })
    }

    /// Like [`float`](Self::float), and an error if absent.
    pub fn require_float(&self, key: &str) -> Result<f64, Error> {
        self.require(key, self.float(key)?)
    }

    /// A boolean.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, Error> {
        self.typed(key, "a bool", |value| match *value {
            Value::Bool(v) => Some(v),
            _ => None,
        })
    }

    /// A string; an error if it is not UTF-8.
    pub fn string(&self, key: &str) -> Result<Option<&str>, Error> {
        let bytes = self.typed(key, "a string", |value| match value {
            Value::String(v) => Some(v),
            _ => None,
        })?;
        bytes
            .map(|bytes| std::str::from_utf8(bytes).map_err(|_| self.metadata_error(key, "is not UTF-8")))
            .transpose()
    }

    /// Like [`string`](Self::string), and an error if absent.
    pub fn require_string(&self, key: &str) -> Result<&str, Error> {
        self.require(key, self.string(key)?)
    }

    /// An array.
    pub fn array(&self, key: &str) -> Result<Option<&Array>, Error> {
        self.typed(key, "an array", |value| match value {
            Value::Array(v) => Some(v),
            _ => None,
        })
    }

    /// An error about a metadata key of this file, for callers that check meaning.
    pub fn metadata_error(&self, key: &str, problem: impl Into<String>) -> Error {
        metadata_error(self.path(), key, problem)
    }

    /// All tensors, in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// A tensor by name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&index| &self.tensors[index])
    }

    /// Maps a tensor's bytes.
    ///
    /// # Errors
    /// [`Error::Malformed`] if the tensor is not within this file (another file's, or the file has shrunk since it
    /// was opened); [`Error::Io`].
    pub fn map(&self, tensor: &TensorInfo) -> Result<TensorBytes, Error> {
        let field = || format!("tensor {:?} data", tensor.name);
        let Some(part) = self.parts.get(tensor.part) else {
            let problem = format!(
                "in part {}, but the file has {}",
                tensor.part + 1,
                self.parts.len()
            );
            return Err(malformed(self.path(), &field(), problem));
        };
        let io = |source| Error::io(&part.path, source);
        let len = part.file.metadata().map_err(io)?.len();
        match tensor.offset.checked_add(tensor.len) {
            Some(end) if end <= len => map_range(&part.file, tensor.offset, tensor.len)
                .map(TensorBytes)
                .map_err(io),
            _ => Err(malformed(
                &part.path,
                &field(),
                format!("ends beyond the {len} bytes that the file now has"),
            )),
        }
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match read(value) {
            None => Err(self.metadata_error(key, format!("is {}, expected {expected}", value.type_name()))),
            some => Ok(some),
        }
    }

    fn require<T>(&self, key: &str, value: Option<T>) -> Result<T, Error> {
        value.ok_or_else(|| self.metadata_error(key, "is missing"))
    }
}

impl Part {
    fn open(path: &Path) -> Result<(Self, Header), Error> {
        let io = |source| Error::io(path, source);
        // Asked of the path, since opening a pipe would wait for its writer.
        if !std::fs::metadata(path).map_err(io)?.is_file() {
            return Err(malformed(path, "file", "is not a regular file"));
        }
        let file = File::open(path).map_err(io)?;
        let len = file.metadata().map_err(io)?.len();
        let header = match len.min(MAX_HEADER) {
            0 => parse_header(path, &[], 0)?,
            header_len => parse_header(path, &map_range(&file, 0, header_len).map_err(io)?, len)?,
        };
        Ok((
            Self {
                path: path.to_owned(),
                file,
                len,
            },
            header,
        ))
    }
}

/// Number of parts and of tensors in all parts, as this header says; checks that it is part `index`.
fn split_keys(path: &Path, header: &Header, index: u64) -> Result<(u64, Option<u64>), Error> {
    let number = |key| uint(path, &header.metadata, key);
    let count = number("split.count")?.unwrap_or(1).max(1);
    let found = number("split.no")?.unwrap_or(0);
    if found != index {
        let hint = if index == 0 { "; open the first part" } else { "" };
        let problem = format!("is {found}, expected {index}{hint}");
        return Err(metadata_error(path, "split.no", problem));
    }
    Ok((count, number("split.tensors.count")?))
}

/// A path that ends in `-{number}-of-{count}.gguf`, both of five digits: a part of a split file.
#[derive(Clone, Debug)]
pub struct SplitName {
    stem: String,
    parent: PathBuf,
    /// Which part it is, from 1.
    pub number: u64,
    /// How many there are.
    pub count: u64,
}

impl SplitName {
    /// Reads it off a path; `None` if the path is no part's.
    pub fn parse(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let (rest, count) = name.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let digits = |text: &str| match text.len() {
            5 if text.bytes().all(|b| b.is_ascii_digit()) => text.parse().ok(),
            _ => None,
        };
        Some(Self {
            stem: stem.to_owned(),
            parent: path.parent()?.to_owned(),
            number: digits(number)?,
            count: digits(count)?,
        })
    }

    fn sibling(&self, number: u64) -> PathBuf {
        self.parent
            .join(format!("{}-{number:05}-of-{:05}.gguf", self.stem, self.count))
    }
}

fn get<'a>(metadata: &'a [(String, Value)], key: &str) -> Option<&'a Value> {
    metadata
        .iter()
        .find(|(known, _)| known == key)
        .map(|(_, value)| value)
}

fn uint(path: &Path, metadata: &[(String, Value)], key: &str) -> Result<Option<u64>, Error> {
    let Some(value) = get(metadata, key) else {
        return Ok(None);
    };
    let Some(integer) = value.as_integer() else {
        return Err(metadata_error(
            path,
            key,
            format!("is {}, expected an integer", value.type_name()),
        ));
    };
    match u64::try_from(integer) {
        Ok(number) => Ok(Some(number)),
        Err(_) => Err(metadata_error(path, key, format!("is negative: {integer}"))),
    }
}

fn metadata_error(path: &Path, key: &str, problem: impl Into<String>) -> Error {
    Error::Metadata {
        path: path.to_owned(),
        key: key.to_owned(),
        problem: problem.into(),
    }
}

fn malformed(path: &Path, field: &str, problem: impl Into<String>) -> Error {
    Error::Malformed {
        path: path.to_owned(),
        field: field.to_owned(),
        problem: problem.into(),
    }
}
