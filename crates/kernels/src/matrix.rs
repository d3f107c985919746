//! Packed matrices. The layout is private to this crate.
use crate::{Compute, Format};

/// Why bytes could not be packed into a matrix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    /// Columns are no multiple of the format's block.
    #[error("{cols} columns are no multiple of the block of {block} that {format:?} has")]
    Columns {
        /// Columns of the matrix.
        cols: usize,
        /// Block length of the format.
        block: usize,
        /// The format.
        format: Format,
    },
    /// The bytes are of another length than rows, columns and format say.
    #[error("{got} bytes where {rows} x {cols} in {format:?} take {expected}")]
    Length {
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        cols: usize,
        /// The format.
        format: Format,
        /// Bytes needed.
        expected: usize,
        /// Bytes given.
        got: usize,
    },
}

/// A weight matrix, `rows` outputs by `cols` inputs, in the kernels' own layout: re-laid out, never
/// requantised.
#[derive(Debug)]
pub struct Matrix {}

impl Matrix {
    /// Packs row-major blocks as they stand in a GGUF file.
    pub fn pack(
        _compute: &Compute,
        _format: Format,
        _rows: usize,
        _cols: usize,
        _bytes: &[u8],
    ) -> Result<Self, PackError> {
        todo!()
    }
    /// Outputs.
    pub fn rows(&self) -> usize {
        todo!()
    }
    /// Inputs.
    pub fn cols(&self) -> usize {
        todo!()
    }
    /// The file's format.
    pub fn format(&self) -> Format {
        todo!()
    }
    /// Bytes that one sweep reads.
    pub fn packed_bytes(&self) -> usize {
        todo!()
    }
    /// Writes the weights of one row as f32: `out` is `[cols]`. Looks up a token's embedding.
    pub fn dequantize_row(&self, _row: usize, _out: &mut [f32]) {
        todo!()
    }
}
