//! The packed layout: tiles of sixteen rows, interleaved so that each SIMD lane is one row.
//!
//! A *tile* is [`LANES`] consecutive rows of the matrix (the last one filled up with rows of zeros). A tile of
//! a quantised format is two planes, each at a multiple of 64 bytes:
//!
//! - the *meta plane*, for each block: `d` of the rows in f16, then (where the format has mins) `dmin` or `m`
//!   likewise; then for each two groups (2p, 2p+1) their scales `[row][group 2p, group 2p+1]`, a byte each, then
//!   likewise their mins. Q2_K keeps scale and min in one byte as in the file.
//! - the *code plane*, for each chunk of 32 weights as many *vectors* `[row][4]` of bytes as a code has bits. A
//!   *step* is four consecutive weights of all rows. With b bits a code, as many steps as there are
//!   vectors are the low b bits of one each; the bits above them hold the other steps, as [`pieces`] says.
//!
//! A tile of a float format is `[column][row]`.
//!
//! Weights are only moved: codes, scales and mins keep their values, and no format grows by more than 5 %.
use crate::block::Block;
use crate::format::{Format, Mins, Scales, Spec};

/// Rows of a tile.
pub(crate) const LANES: usize = 16;
/// Weights of a chunk.
pub(crate) const CHUNK: usize = 32;
/// Steps of a chunk.
pub(crate) const STEPS: usize = CHUNK / 4;
/// Bytes of a vector of the code plane.
pub(crate) const VECTOR: usize = 4 * LANES;
/// What the planes of a tile are aligned to, in bytes.
pub(crate) const ALIGN: usize = 64;

/// Bits `to…` of a step's codes, found from bit `bit` on in each byte of a vector.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub vector: usize,
    pub bit: usize,
    /// How many; a step's unused pieces have none.
    pub len: usize,
    pub to: usize,
}

/// Pieces of a step at most.
pub(crate) const PIECES: usize = 3;

/// Of what each step of a chunk is put together, for codes of `bits`. Together they are every bit of the
/// vectors once.
pub(crate) const fn pieces(bits: usize) -> [[Piece; PIECES]; STEPS] {
    const fn piece(vector: usize, bit: usize, len: usize, to: usize) -> Piece {
        Piece { vector, bit, len, to }
    }
    const fn step(first: Piece) -> [Piece; PIECES] {
        [first, NONE, NONE]
    }
    const NONE: Piece = piece(0, 0, 0, 0);
    let mut table = [[NONE; PIECES]; STEPS];
    let mut s = 0;
    while s < STEPS {
        table[s] = match bits {
            2 | 4 | 8 => step(piece(s * bits / 8, s * bits % 8, bits, 0)),
            3 => match s {
                0..3 => step(piece(s, 0, 3, 0)),
                3..6 => step(piece(s - 3, 3, 3, 0)),
                _ => [piece(s - 6, 6, 2, 0), piece(2, s, 1, 2), NONE],
            },
            5 => match s {
                0..5 => step(piece(s, 0, 5, 0)),
                5 | 6 => [piece(s - 5, 5, 3, 0), piece(s - 2, 5, 2, 3), NONE],
                _ => [piece(2, 5, 3, 0), piece(3, 7, 1, 3), piece(4, 7, 1, 4)],
            },
            6 => match s {
                0..3 => step(piece(s, 0, 6, 0)),
                4..7 => step(piece(s - 1, 0, 6, 0)),
                3 => [piece(0, 6, 2, 0), piece(1, 6, 2, 2), piece(2, 6, 2, 4)],
                _ => [piece(3, 6, 2, 0), piece(4, 6, 2, 2), piece(5, 6, 2, 4)],
            },
            _ => panic!("no format has codes of so many bits"),
        };
        s += 1;
    }
    table
}

impl Spec {
    /// Bytes of one block of a tile in the meta plane.
    pub const fn meta_bytes(&self) -> usize {
        self.mins_at()
            + match (self.scales, self.mins) {
                (Scales::Bytes, Mins::PerGroup) => self.groups() * LANES,
                _ => 0,
            }
    }

    /// Where the scales stand in a block of the meta plane.
    pub const fn scales_at(&self) -> usize {
        match self.mins {
            Mins::None => 2 * LANES,
            Mins::PerBlock | Mins::PerGroup => 4 * LANES,
        }
    }

    /// Where the mins of the groups stand in a block of the meta plane.
    pub const fn mins_at(&self) -> usize {
        self.scales_at()
            + match self.scales {
                Scales::None => 0,
                Scales::Bytes | Scales::Nibbles => self.groups() * LANES,
            }
    }

    /// Bytes of one chunk of a tile in the code plane.
    pub const fn chunk_bytes(&self) -> usize {
        self.bits * VECTOR
    }

    /// Bytes of one block of a tile in the code plane.
    pub const fn code_bytes(&self) -> usize {
        self.block / CHUNK * self.chunk_bytes()
    }
}

/// Where the parts of a tile lie, in bytes from its start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TileShape {
    /// Length of the meta plane.
    pub meta: usize,
    /// Begin of the code plane.
    pub codes_at: usize,
    /// Length of the code plane.
    pub codes: usize,
    /// Distance to the next tile.
    pub stride: usize,
}

impl TileShape {
    /// The shape of a tile of `cols` columns, which are whole blocks.
    pub fn new(format: Format, cols: usize) -> Self {
        let (meta, codes) = match format.spec() {
            None => (0, cols * LANES * format.block_bytes()),
            Some(spec) => (
                cols / spec.block * spec.meta_bytes(),
                cols / spec.block * spec.code_bytes(),
            ),
        };
        let codes_at = meta.next_multiple_of(ALIGN);
        Self {
            meta,
            codes_at,
            codes,
            stride: (codes_at + codes).next_multiple_of(ALIGN),
        }
    }
}

/// Packs up to sixteen rows, each the bytes of a file's row, into a zeroed tile.
pub(crate) fn pack_tile<'a>(
    format: Format,
    rows: impl Iterator<Item = &'a [u8]>,
    shape: TileShape,
    tile: &mut [u8],
) {
    let (meta, codes) = tile.split_at_mut(shape.codes_at);
    let Some(spec) = format.spec() else {
        return match format {
            Format::F32 => pack_floats::<4>(rows, codes),
            _ => pack_floats::<2>(rows, codes),
        };
    };
    let mut block = Block::ZERO;
    for (lane, row) in rows.enumerate() {
        let metas = meta.chunks_exact_mut(spec.meta_bytes());
        let codes = codes.chunks_exact_mut(spec.code_bytes());
        for ((bytes, meta), codes) in row.chunks_exact(format.block_bytes()).zip(metas).zip(codes) {
            block.decode(format, bytes);
            pack_meta(&spec, &block, lane, meta);
            pack_codes(&spec, &block, lane, codes);
        }
    }
}

fn pack_floats<'a, const BYTES: usize>(rows: impl Iterator<Item = &'a [u8]>, codes: &mut [u8]) {
    for (lane, row) in rows.enumerate() {
        let columns = codes.as_chunks_mut::<BYTES>().0.chunks_exact_mut(LANES);
        columns
            .zip(row.as_chunks::<BYTES>().0)
            .for_each(|(column, &weight)| column[lane] = weight);
    }
}

fn pack_meta(spec: &Spec, block: &Block, lane: usize, meta: &mut [u8]) {
    meta[2 * lane..][..2].copy_from_slice(&block.d.to_le_bytes());
    if spec.mins != Mins::None {
        meta[2 * (LANES + lane)..][..2].copy_from_slice(&block.m.to_le_bytes());
    }
    if spec.scales == Scales::None {
        return;
    }
    for g in 0..spec.groups() {
        let at = group_at(g, lane);
        let scale = block.scales[g] as u8;
        meta[spec.scales_at() + at] = match spec.scales {
            Scales::Nibbles => scale | block.mins[g] << 4,
            _ => scale,
        };
        if spec.scales == Scales::Bytes && spec.mins == Mins::PerGroup {
            meta[spec.mins_at() + at] = block.mins[g];
        }
    }
}

/// Where the byte of a lane's group stands among the scales, or the mins, of a block.
const fn group_at(group: usize, lane: usize) -> usize {
    group / 2 * (2 * LANES) + 2 * lane + group % 2
}

fn pack_codes(spec: &Spec, block: &Block, lane: usize, codes: &mut [u8]) {
    let table = pieces(spec.bits);
    let chunks = block.codes[..spec.block]
        .as_chunks::<CHUNK>()
        .0
        .iter()
        .zip(codes.chunks_exact_mut(spec.chunk_bytes()));
    for (chunk, packed) in chunks {
        let mut words = [0u32; STEPS];
        for (step, pieces) in chunk.as_chunks::<4>().0.iter().zip(&table) {
            let step = u32::from_le_bytes(*step);
            for piece in pieces {
                words[piece.vector] |= (step >> piece.to & in_all_bytes(piece.len)) << piece.bit;
            }
        }
        for (word, vector) in words.iter().zip(packed.chunks_exact_mut(VECTOR)) {
            vector[4 * lane..][..4].copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// The low `bits` of each byte.
const fn in_all_bytes(bits: usize) -> u32 {
    ((1 << bits) - 1) * 0x0101_0101
}

/// Reads back one row's block from the planes: what [`pack_tile`] was given.
pub(crate) fn unpack_block(spec: &Spec, meta: &[u8], codes: &[u8], lane: usize, block: &mut Block) {
    let half = |at: usize| u16::from_le_bytes([meta[2 * at], meta[2 * at + 1]]);
    block.d = half(lane);
    block.m = if spec.mins == Mins::None {
        0
    } else {
        half(LANES + lane)
    };
    if spec.scales != Scales::None {
        for g in 0..spec.groups() {
            let at = group_at(g, lane);
            let byte = meta[spec.scales_at() + at];
            (block.scales[g], block.mins[g]) = match (spec.scales, spec.mins) {
                (Scales::Nibbles, _) => ((byte & 15) as i8, byte >> 4),
                (_, Mins::PerGroup) => (byte as i8, meta[spec.mins_at() + at]),
                _ => (byte as i8, 0),
            };
        }
    }
    let table = pieces(spec.bits);
    let chunks = block.codes[..spec.block]
        .chunks_exact_mut(CHUNK)
        .zip(codes.chunks_exact(spec.chunk_bytes()));
    for (chunk, packed) in chunks {
        let vector = |at: usize| {
            let at = at * VECTOR + 4 * lane;
            u32::from_le_bytes([packed[at], packed[at + 1], packed[at + 2], packed[at + 3]])
        };
        for (codes, pieces) in chunk.chunks_exact_mut(4).zip(&table) {
            let step = pieces.iter().fold(0, |step, piece| {
                step | (vector(piece.vector) >> piece.bit & in_all_bytes(piece.len)) << piece.to
            });
            codes.copy_from_slice(&step.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_every_bit_once() {
        for bits in [2, 3, 4, 5, 6, 8] {
            let mut vectors = [0u8; STEPS];
            for step in pieces(bits) {
                let mut code = 0;
                for piece in step.iter().filter(|piece| piece.len > 0) {
                    let taken = (((1u32 << piece.len) - 1) << piece.bit) as u8;
                    assert_eq!(vectors[piece.vector] & taken, 0, "{bits} bits: {piece:?}");
                    vectors[piece.vector] |= taken;
                    assert_eq!(piece.to, code, "{bits} bits: {piece:?}");
                    code += piece.len;
                }
                assert_eq!(code, bits);
            }
            assert!(vectors[..bits].iter().all(|&v| v == 0xff) && vectors[bits..].iter().all(|&v| v == 0));
        }
    }
}
