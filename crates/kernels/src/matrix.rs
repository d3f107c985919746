//! Packed matrices. The layout is private to this crate.
use crate::block::Block;
use crate::memory::{Arena, ArenaBytes, Disjoint};
use crate::packed::{LANES, TileShape, pack_tile, unpack_block};
use crate::{Compute, Format};
use half::{bf16, f16};

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
        /// Bytes needed (`usize::MAX` if that cannot be counted).
        expected: usize,
        /// Bytes given.
        got: usize,
    },
    /// The system has no memory for it.
    #[error("no memory for {bytes} bytes of weights")]
    Memory {
        /// Bytes asked for.
        bytes: usize,
    },
}

/// A weight matrix, `rows` outputs by `cols` inputs, in the kernels' own layout: re-laid out, never
/// requantised.
#[derive(Debug)]
pub struct Matrix {
    format: Format,
    rows: usize,
    cols: usize,
    shape: TileShape,
    tiles: ArenaBytes,
}

/// Bytes of a file that one task of packing takes at least.
const PACK_TASK: usize = 1 << 18;

impl Matrix {
    /// Packs row-major blocks as they stand in a GGUF file into `arena`.
    ///
    /// # Errors
    /// If `cols` is no multiple of [`Format::block_len`], `bytes` of another length than `rows` rows have, or the
    /// system out of memory.
    pub fn pack(
        compute: &Compute,
        arena: &mut Arena,
        format: Format,
        rows: usize,
        cols: usize,
        bytes: &[u8],
    ) -> Result<Self, PackError> {
        let block = format.block_len();
        if !cols.is_multiple_of(block) {
            return Err(PackError::Columns { cols, block, format });
        }
        let row_bytes = (cols / block).checked_mul(format.block_bytes());
        let expected = row_bytes.and_then(|b| b.checked_mul(rows)).unwrap_or(usize::MAX);
        if bytes.len() != expected {
            return Err(PackError::Length {
                rows,
                cols,
                format,
                expected,
                got: bytes.len(),
            });
        }
        let row_bytes = row_bytes.unwrap_or(0);
        let shape = TileShape::new(format, cols);
        // Without weights there is nothing to store, whatever `rows` claims.
        let tiles = if row_bytes == 0 { 0 } else { rows.div_ceil(LANES) };
        let packed = arena.fill(tiles * shape.stride, |packed| {
            let per_task = (PACK_TASK / (LANES * row_bytes).max(1)).max(1);
            let target = Disjoint::new(packed);
            compute.pool().run(tiles.div_ceil(per_task), |task| {
                for tile in task * per_task..tiles.min((task + 1) * per_task) {
                    let end = rows.min((tile + 1) * LANES);
                    let rows = bytes[tile * LANES * row_bytes..end * row_bytes].chunks_exact(row_bytes);
                    // SAFETY: each tile is packed by one task, once.
                    let tile = unsafe { target.part(tile * shape.stride..(tile + 1) * shape.stride) };
                    pack_tile(format, rows, shape, tile);
                }
            });
        });
        Ok(Self {
            format,
            rows,
            cols,
            shape,
            tiles: packed.map_err(|_| PackError::Memory {
                bytes: tiles * shape.stride,
            })?,
        })
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The file's format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Bytes that one sweep reads.
    pub fn packed_bytes(&self) -> usize {
        self.tiles.len()
    }

    /// Writes the weights of one row as f32: `out` is `[cols]`. Looks up a token's embedding. The values are
    /// those of ggml's `dequantize_row_*`, to the bit.
    ///
    /// # Panics
    /// If `row` is not below [`rows`](Self::rows) or `out` of another length.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        assert_eq!(out.len(), self.cols);
        let lane = row % LANES;
        let tile = self.tile(row / LANES);
        let weight = |k: usize| k * LANES + lane;
        match self.format {
            Format::F32 => {
                (out.iter_mut().enumerate()).for_each(|(k, out)| *out = f32_at(tile.codes, weight(k)))
            }
            Format::F16 => {
                (out.iter_mut().enumerate()).for_each(|(k, out)| *out = f16_at(tile.codes, weight(k)))
            }
            Format::BF16 => {
                (out.iter_mut().enumerate()).for_each(|(k, out)| *out = bf16_at(tile.codes, weight(k)))
            }
            _ => {
                let spec = self.format.spec().expect("not a float format");
                let mut block = Block::ZERO;
                let metas = tile.meta.chunks_exact(spec.meta_bytes());
                let codes = tile.codes.chunks_exact(spec.code_bytes());
                for ((out, meta), codes) in out.chunks_exact_mut(spec.block).zip(metas).zip(codes) {
                    unpack_block(&spec, meta, codes, lane, &mut block);
                    block.dequantize(&spec, out);
                }
            }
        }
    }

    /// Tiles of sixteen rows, the last one perhaps filled up.
    pub(crate) fn tiles(&self) -> usize {
        self.rows.div_ceil(LANES)
    }

    /// Bytes from one tile to the next.
    pub(crate) fn tile_stride(&self) -> usize {
        self.shape.stride
    }

    pub(crate) fn tile(&self, tile: usize) -> Tile<'_> {
        let shape = self.shape;
        let bytes = &self.tiles[tile * shape.stride..][..shape.stride];
        Tile {
            cols: self.cols,
            meta: &bytes[..shape.meta],
            codes: &bytes[shape.codes_at..][..shape.codes],
        }
    }
}

/// Sixteen rows of a packed matrix.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tile<'a> {
    pub cols: usize,
    pub meta: &'a [u8],
    pub codes: &'a [u8],
}

/// Element `at` of little-endian f32.
pub(crate) fn f32_at(bytes: &[u8], at: usize) -> f32 {
    f32::from_le_bytes([
        bytes[4 * at],
        bytes[4 * at + 1],
        bytes[4 * at + 2],
        bytes[4 * at + 3],
    ])
}

/// Element `at` of little-endian f16.
pub(crate) fn f16_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]]).to_f32()
}

/// Element `at` of little-endian bf16.
pub(crate) fn bf16_at(bytes: &[u8], at: usize) -> f32 {
    bf16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]]).to_f32()
}
