//! Files, also split ones.
use crate::{Array, Error, TensorType, Value};
use std::path::Path;

/// An open GGUF model: one file, or all the parts of a split one.
#[derive(Debug)]
pub struct Gguf {}

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
    /// Which part of a split file holds it.
    pub part: usize,
    /// Bytes from the start of that part.
    pub offset: u64,
}

/// The bytes of one tensor, mapped; unmapped when dropped, so that a loader that repacks tensor by tensor
/// never holds the whole file in memory.
#[derive(Debug)]
pub struct TensorBytes {}

impl std::ops::Deref for TensorBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        todo!()
    }
}

impl Gguf {
    /// Opens a file; if its name ends in `-00001-of-0000N.gguf`, all its parts.
    pub fn open(_path: impl AsRef<Path>) -> Result<Self, Error> {
        todo!()
    }
    /// The path given to [`open`](Self::open).
    pub fn path(&self) -> &Path {
        todo!()
    }
    /// 2 or 3.
    pub fn version(&self) -> u32 {
        todo!()
    }
    /// The length of all parts in bytes.
    pub fn file_len(&self) -> u64 {
        todo!()
    }
    /// All metadata, in file order.
    pub fn metadata(&self) -> &[(String, Value)] {
        todo!()
    }
    /// A metadata value.
    pub fn get(&self, _key: &str) -> Option<&Value> {
        todo!()
    }
    /// An unsigned number of any integer type; `None` if absent, an error if negative or no integer.
    pub fn uint(&self, _key: &str) -> Result<Option<u64>, Error> {
        todo!()
    }
    /// Like [`uint`](Self::uint), and an error if absent.
    pub fn require_uint(&self, _key: &str) -> Result<u64, Error> {
        todo!()
    }
    /// A float of either width.
    pub fn float(&self, _key: &str) -> Result<Option<f64>, Error> {
        todo!()
    }
    /// Like [`float`](Self::float), and an error if absent.
    pub fn require_float(&self, _key: &str) -> Result<f64, Error> {
        todo!()
    }
    /// A boolean.
    pub fn bool(&self, _key: &str) -> Result<Option<bool>, Error> {
        todo!()
    }
    /// A string; an error if it is not UTF-8.
    pub fn string(&self, _key: &str) -> Result<Option<&str>, Error> {
        todo!()
    }
    /// Like [`string`](Self::string), and an error if absent.
    pub fn require_string(&self, _key: &str) -> Result<&str, Error> {
        todo!()
    }
    /// An array.
    pub fn array(&self, _key: &str) -> Result<Option<&Array>, Error> {
        todo!()
    }
    /// An error about a metadata key of this file, for callers that check meaning.
    pub fn metadata_error(&self, _key: &str, _problem: impl Into<String>) -> Error {
        todo!()
    }
    /// All tensors, in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        todo!()
    }
    /// A tensor by name.
    pub fn tensor(&self, _name: &str) -> Option<&TensorInfo> {
        todo!()
    }
    /// Maps a tensor's bytes.
    pub fn map(&self, _tensor: &TensorInfo) -> Result<TensorBytes, Error> {
        todo!()
    }
}
