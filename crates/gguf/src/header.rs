//! Parsing of the part before the tensor data.
use crate::{Error, TensorType, Value};
use std::path::Path;

/// Everything before the tensor data.
#[derive(Clone, Debug)]
pub struct Header {
    /// 2 or 3.
    pub version: u32,
    /// Alignment of tensor data in bytes: a power of two.
    pub alignment: u64,
    /// Key-value pairs in file order.
    pub metadata: Vec<(String, Value)>,
    /// The tensor table in file order.
    pub tensors: Vec<HeaderTensor>,
    /// Where tensor data start, in bytes from the start of the file.
    pub data_start: u64,
}

/// One entry of the tensor table.
#[derive(Clone, Debug)]
pub struct HeaderTensor {
    /// Its name.
    pub name: String,
    /// Elements in each dimension, fastest first.
    pub dims: Vec<u64>,
    /// How elements are stored.
    pub ty: TensorType,
    /// Bytes from `data_start`.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

/// Parses and checks a header. `bytes` is the file's beginning (or all of it), `file_len` its length.
pub fn parse_header(_path: &Path, _bytes: &[u8], _file_len: u64) -> Result<Header, Error> {
    todo!()
}
