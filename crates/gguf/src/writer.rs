//! Writing files.
use crate::{Error, TensorType, Value};
use std::path::Path;

/// Builds a GGUF version 3 file.
#[derive(Debug, Default)]
pub struct Writer {}

impl Writer {
    /// An empty file.
    pub fn new() -> Self {
        todo!()
    }
    /// Adds a key; a key given twice keeps the last value.
    pub fn metadata(&mut self, _key: &str, _value: Value) -> &mut Self {
        todo!()
    }
    /// Adds a tensor. `dims` fastest first. An error if `data` has another length than type and dims say.
    pub fn tensor(&mut self, _name: &str, _dims: &[u64], _ty: TensorType, _data: Vec<u8>) -> Result<&mut Self, Error> {
        todo!()
    }
    /// Writes the file.
    pub fn write(&self, _path: impl AsRef<Path>) -> Result<(), Error> {
        todo!()
    }
}
