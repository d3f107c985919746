//! Activations as the kernels read them: rows grouped into sweeps, quantised where the weights are.
//!
//! Each row is quantised by itself, per block of 256 inputs for K-quants and of 32 for the other quantised
//! formats, into codes −127…127 and an f32 scale: `d = absmax / 127`, `code = round(x · (1/d))`, ties to even.
//! A block whose scale would be subnormal becomes zero; a block with a value that is not finite gets the
//! scale NaN, so that whatever is computed from it is NaN. Float weights take the activations as they are.
//!
//! A *sweep* is one to four rows that a kernel multiplies with a tile at once. Its activations are
//! interleaved by row, in words of 32 bits, so that a kernel reaches all of them at constant distances from one
//! pointer. Of a block of N rows, each array `[…][N]`:
//!
//! | 32 | 256 | holds |
//! |---|---|---|
//! | `codes[8]` | `codes[64]` | four codes, consecutive inputs |
//! | `biases[1]` | `biases[16]` | per 32 or 16 inputs two i16: the sum of the codes whose index is 0 or 1 modulo 4, and of the others, times [`block_32::BIAS`] or [`block_256::BIAS`]: what codes of weights are shifted by |
//! | | `sums[4]` | per 64 inputs two i16: the sums of the first and the second 32 codes |
//! | `d` | `d` | f32 |
//! | `s` | | f32, `d` times the sum of the codes |
#[cfg(target_arch = "x86_64")]
use crate::kernels::avx2::activation as avx2;
use crate::memory::Disjoint;
use crate::{Compute, Format, Isa};
use std::ops::Range;

/// Most rows of a sweep: their sums with a tile just fit the registers of AVX2.
pub(crate) const MAX_SWEEP: usize = 4;

/// Positions of a block of 32's arrays, in words per row.
pub(crate) mod block_32 {
    pub const BIASES: usize = 8;
    pub const D: usize = 9;
    pub const S: usize = 10;
    pub const WORDS: usize = 11;
    /// The largest centre of unsigned codes, negated; 16 · 127 times it fits 16 bits.
    pub const BIAS: i16 = -16;
}

/// Positions of a block of 256's arrays, in words per row.
pub(crate) mod block_256 {
    pub const BIASES: usize = 64;
    pub const SUMS: usize = 80;
    pub const D: usize = 84;
    pub const WORDS: usize = 85;
    /// The largest centre of unsigned codes, negated; 8 · 127 times it fits 16 bits.
    pub const BIAS: i16 = -32;
}

/// How activations are given to a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// As f32, `[input][N]`.
    Float,
    /// Quantised per 32.
    Block32,
    /// Quantised per 256.
    Block256,
}

impl Scheme {
    pub const ALL: [Self; 3] = [Self::Float, Self::Block32, Self::Block256];

    /// The scheme that goes with weights of `format`.
    pub const fn of(format: Format) -> Self {
        match format.block_len() {
            1 => Self::Float,
            32 => Self::Block32,
            _ => Self::Block256,
        }
    }

    /// Inputs and words per row of one block.
    const fn block(self) -> (usize, usize) {
        match self {
            Self::Float => (1, 1),
            Self::Block32 => (32, block_32::WORDS),
            Self::Block256 => (256, block_256::WORDS),
        }
    }

    /// Words that one row of `cols` inputs takes.
    pub const fn row_words(self, cols: usize) -> usize {
        let (inputs, words) = self.block();
        cols / inputs * words
    }
}

/// A split of rows into the fewest sweeps, as even as can be: no step in the cost of a row more than needed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sweeps {
    rows: usize,
    count: usize,
}

impl Sweeps {
    pub fn new(rows: usize) -> Self {
        Self {
            rows,
            count: rows.div_ceil(MAX_SWEEP),
        }
    }

    pub fn count(self) -> usize {
        self.count
    }

    /// The rows of sweep `index`.
    pub fn rows(self, index: usize) -> Range<usize> {
        let (least, longer) = (self.rows / self.count, self.rows % self.count);
        let start = |i: usize| i * least + i.min(longer);
        start(index)..start(index + 1)
    }
}

/// Inputs that a task quantises, about: some microseconds' work. With one task the caller does it all.
const TASK_INPUTS: usize = 1 << 14;

/// Writes all sweeps of `x`, `[rows][cols]`, as `scheme` says: `out` is `[rows · row_words]`.
pub(crate) fn prepare(
    compute: &Compute,
    scheme: Scheme,
    x: &[f32],
    sweeps: Sweeps,
    cols: usize,
    out: &mut [u32],
) {
    let (inputs, words) = scheme.block();
    let blocks = cols / inputs;
    // A task has some blocks of all rows of a sweep, which lie together.
    let task_blocks = (TASK_INPUTS / (sweeps.rows(0).len() * inputs)).max(1);
    let tasks_per_sweep = blocks.div_ceil(task_blocks);
    let out = Disjoint::new(out);
    compute.pool().run(sweeps.count() * tasks_per_sweep, |task| {
        let rows = sweeps.rows(task / tasks_per_sweep);
        let first = task % tasks_per_sweep * task_blocks;
        let range = first..blocks.min(first + task_blocks);
        let n = rows.len();
        let sweep = rows.start * blocks * words;
        // SAFETY: neither sweeps nor the blocks within one overlap, and each is written by one task.
        let out = unsafe { out.part(sweep + range.start * words * n..sweep + range.end * words * n) };
        for (i, row) in rows.enumerate() {
            let x = &x[row * cols + range.start * inputs..row * cols + range.end * inputs];
            write_row(compute.isa(), scheme, x, n, i, out);
        }
    });
}

/// Writes row `i` of the `n` of a sweep: `out` are the sweep's blocks of these inputs.
fn write_row(isa: Isa, scheme: Scheme, x: &[f32], n: usize, i: usize, out: &mut [u32]) {
    match (scheme, isa) {
        (Scheme::Float, _) => {
            x.iter()
                .zip(out.chunks_exact_mut(n))
                .for_each(|(x, out)| out[i] = x.to_bits());
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `isa` proves that the machine has the instructions.
        (Scheme::Block32, Isa::Avx2(_)) => unsafe { avx2::blocks_of_32(x, n, i, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `isa` proves that the machine has the instructions.
        (Scheme::Block256, Isa::Avx2(_)) => unsafe { avx2::blocks_of_256(x, n, i, out) },
        _ => {
            let (inputs, words) = scheme.block();
            for (x, out) in x.chunks_exact(inputs).zip(out.chunks_exact_mut(words * n)) {
                let scale = Scale::of(x.iter().fold(0, |max, x| max.max(x.to_bits() & 0x7fff_ffff)));
                let mut codes = [0; 256];
                if let Some(inverse) = scale.inverse {
                    let codes = codes.iter_mut().zip(x);
                    codes.for_each(|(code, x)| *code = (x * inverse).round_ties_even() as i8);
                }
                write_block(scheme, &codes[..inputs], scale.d, n, i, out);
            }
        }
    }
}

/// The scale of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    pub d: f32,
    /// What inputs are multiplied by; all codes are zero where there is none.
    pub inverse: Option<f32>,
}

impl Scale {
    /// From the largest |x| of the block as bits: as integers these have the order of the values, with infinities
    /// and NaN last.
    #[inline]
    pub fn of(absmax: u32) -> Self {
        let d = f32::from_bits(absmax) / 127.0;
        if absmax >= f32::INFINITY.to_bits() {
            Self {
                d: f32::NAN,
                inverse: None,
            }
        } else if d < f32::MIN_POSITIVE {
            Self {
                d: 0.0,
                inverse: None,
            }
        } else {
            Self {
                d,
                inverse: Some(1.0 / d),
            }
        }
    }
}

/// Writes a quantised block as row `i` of `n`.
fn write_block(scheme: Scheme, codes: &[i8], d: f32, n: usize, i: usize, out: &mut [u32]) {
    let pair = |a: i16, b: i16| u32::from(a as u16) | u32::from(b as u16) << 16;
    for (step, c) in codes.chunks_exact(4).enumerate() {
        out[step * n + i] = u32::from_le_bytes([c[0] as u8, c[1] as u8, c[2] as u8, c[3] as u8]);
    }
    let halves = |codes: &[i8]| {
        codes.chunks_exact(4).fold((0i16, 0i16), |(a, b), c| {
            (
                a + i16::from(c[0]) + i16::from(c[1]),
                b + i16::from(c[2]) + i16::from(c[3]),
            )
        })
    };
    if scheme == Scheme::Block32 {
        let (a, b) = halves(codes);
        out[block_32::BIASES * n + i] = pair(block_32::BIAS * a, block_32::BIAS * b);
        out[block_32::D * n + i] = d.to_bits();
        out[block_32::S * n + i] = (d * f32::from(a + b)).to_bits();
        return;
    }
    let mut sums = [0i16; 8];
    for (g, group) in codes.chunks_exact(16).enumerate() {
        let (a, b) = halves(group);
        out[(block_256::BIASES + g) * n + i] = pair(block_256::BIAS * a, block_256::BIAS * b);
        sums[g / 2] += a + b;
    }
    for (p, sums) in sums.chunks_exact(2).enumerate() {
        out[(block_256::SUMS + p) * n + i] = pair(sums[0], sums[1]);
    }
    out[block_256::D * n + i] = d.to_bits();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweeps_are_few_and_even() {
        for rows in 1..200 {
            let sweeps = Sweeps::new(rows);
            assert_eq!(sweeps.count(), rows.div_ceil(MAX_SWEEP));
            let lengths: Vec<_> = (0..sweeps.count()).map(|i| sweeps.rows(i).len()).collect();
            assert!(
                lengths.iter().all(|&n| (1..=MAX_SWEEP).contains(&n)),
                "{rows} rows: {lengths:?}"
            );
            assert!(
                lengths.iter().max().unwrap() - lengths.iter().min().unwrap() <= 1,
                "{rows} rows: {lengths:?}"
            );
            assert!((1..sweeps.count()).all(|i| sweeps.rows(i - 1).end == sweeps.rows(i).start));
            assert_eq!(sweeps.rows(sweeps.count() - 1).end, rows);
        }
    }
}
