//! The packed layout: tiles of eight rows, interleaved so that each SIMD lane is one row.
//!
//! A *tile* is [`LANES`] consecutive rows of the matrix (the last one filled up with rows of zeros). A tile of
//! a quantised format is two planes, each at a multiple of 64 bytes:
//!
//! - the *meta plane*, for each block: `d` of the eight rows in f16, then (where the format has mins)
//!   `dmin` or `m` likewise; then for each two groups (2p, 2p+1) their scales, sixteen bytes
//!   `[row][group 2p, group 2p+1]`, then likewise their mins. Q2_K keeps scale and min in one byte as in the file.
//! - the *code plane*, for each chunk of 32 weights: the chunk's low bits, then its high bits. A *step* is four
//!   consecutive weights of the eight rows, 32 bytes `[row][4]`, and each plane packs the eight steps of a
//!   chunk by one rule: with b bits a code, step s lies in vector `s / (8/b)` at bit `s % (8/b) · b` of each
//!   byte.
//!
//! A tile of a float format is `[column][row]`.
//!
//! Weights are only moved: codes, scales and mins keep their values, and no format grows by more than 5 %.
use crate::block::Block;
use crate::format::{Format, Mins, Scales, Spec};

/// Rows of a tile.
pub(crate) const LANES: usize = 8;
/// Weights of a chunk.
pub(crate) const CHUNK: usize = 32;
/// Steps of a chunk.
pub(crate) const STEPS: usize = CHUNK / 4;
/// What the planes of a tile are aligned to, in bytes.
pub(crate) const ALIGN: usize = 64;

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
        (self.low + self.high) * CHUNK * LANES / 8
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

/// Packs up to eight rows, each the bytes of a file's row, into a zeroed tile.
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
    let chunks = block.codes[..spec.block]
        .chunks_exact(CHUNK)
        .zip(codes.chunks_exact_mut(spec.chunk_bytes()));
    for (chunk, packed) in chunks {
        let mut words = [0u32; STEPS];
        for (word, bytes) in words.iter_mut().zip(chunk.chunks_exact(4)) {
            *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        let (low, high) = packed.split_at_mut(spec.low * CHUNK);
        pack_plane(spec.low, &words, lane, low);
        if spec.high > 0 {
            pack_plane(
                spec.high,
                &words.map(|w| (w >> spec.low) & 0x0303_0303),
                lane,
                high,
            );
        }
    }
}

/// Packs the low `bits` of the bytes of eight words, the steps of one row.
fn pack_plane(bits: usize, words: &[u32; STEPS], lane: usize, plane: &mut [u8]) {
    let per_vector = 8 / bits;
    let mask = (0xff >> (8 - bits)) * 0x0101_0101u32;
    for (steps, vector) in words
        .chunks_exact(per_vector)
        .zip(plane.chunks_exact_mut(4 * LANES))
    {
        let word = steps
            .iter()
            .rev()
            .fold(0u32, |packed, &word| packed << bits | word & mask);
        vector[4 * lane..][..4].copy_from_slice(&word.to_le_bytes());
    }
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
    let chunks = block.codes[..spec.block]
        .chunks_exact_mut(CHUNK)
        .zip(codes.chunks_exact(spec.chunk_bytes()));
    for (chunk, packed) in chunks {
        let (low, high) = packed.split_at(spec.low * CHUNK);
        for (step, codes) in chunk.chunks_exact_mut(4).enumerate() {
            let mut word = step_of(spec.low, low, lane, step);
            if spec.high > 0 {
                word |= step_of(spec.high, high, lane, step) << spec.low;
            }
            codes.copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// The four codes of one row and step of a plane.
fn step_of(bits: usize, plane: &[u8], lane: usize, step: usize) -> u32 {
    let per_vector = 8 / bits;
    let at = step / per_vector * (4 * LANES) + 4 * lane;
    let word = u32::from_le_bytes([plane[at], plane[at + 1], plane[at + 2], plane[at + 3]]);
    (word >> (step % per_vector * bits)) & ((0xff >> (8 - bits)) * 0x0101_0101)
}
