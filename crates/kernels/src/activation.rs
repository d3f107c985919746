//! Activations as the kernels read them: rows grouped into sweeps, quantised where the weights are.
//!
//! Each row is quantised by itself, per block of 256 inputs for K-quants and of 32 for the other quantised
//! formats, into codes −127…127 and an f32 scale: `d = absmax / 127`, `code = round(x · (1/d))`, ties to even.
//! A block whose scale would be subnormal becomes zero; a block with a value that is not finite gets the
//! scale NaN, so that whatever is computed from it is NaN. Float weights take the activations as they are.
//!
//! A *sweep* is one to eight rows that a kernel multiplies with a tile at once. Its activations are
//! interleaved by row, in words of 32 bits, so that a kernel reaches all of them at constant distances from one
//! pointer. Of a block of N rows, each array `[…][N]`:
//!
//! | 32 | 256 | holds |
//! |---|---|---|
//! | `codes[8]` | `codes[64]` | four codes, consecutive inputs |
//! | `halves[1]` | `halves[16]` | per 32 or 16 inputs two i16: the sum of codes whose index is 0 or 1 modulo 4, and of the others |
//! | | `sums[4]` | per 64 inputs two i16: the sums of the first and the second 32 codes |
//! | `d` | `d` | f32 |
//! | `s` | | f32, `d` times the sum of the codes |
#[cfg(target_arch = "x86_64")]
use crate::kernels::avx2::activation as avx2;
use crate::memory::Disjoint;
use crate::{Format, Isa, Pool};
use std::ops::Range;

/// Most rows of a sweep.
pub(crate) const MAX_SWEEP: usize = 8;

/// Positions of a block of 32's arrays, in words per row.
pub(crate) mod block_32 {
    pub const HALVES: usize = 8;
    pub const D: usize = 9;
    pub const S: usize = 10;
    pub const WORDS: usize = 11;
}

/// Positions of a block of 256's arrays, in words per row.
pub(crate) mod block_256 {
    pub const HALVES: usize = 64;
    pub const SUMS: usize = 80;
    pub const D: usize = 84;
    pub const WORDS: usize = 85;
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

/// Inputs below which it does not pay to share the quantisation among threads.
const PARALLEL: usize = 1 << 14;

/// Writes all sweeps of `x`, `[rows][cols]`, as `scheme` says: `out` is `[rows · row_words]`.
pub(crate) fn prepare(
    isa: Isa,
    pool: &Pool,
    scheme: Scheme,
    x: &[f32],
    sweeps: Sweeps,
    cols: usize,
    out: &mut [u32],
) {
    let row_words = scheme.row_words(cols);
    let out = Disjoint::new(out);
    let sweep = |index: usize| {
        let rows = sweeps.rows(index);
        // SAFETY: sweeps do not overlap, and each is written by one task.
        let out = unsafe { out.part(rows.start * row_words..rows.end * row_words) };
        let n = rows.len();
        for (i, row) in rows.enumerate() {
            prepare_row(isa, scheme, &x[row * cols..][..cols], n, i, out);
        }
    };
    if x.len() < PARALLEL {
        (0..sweeps.count()).for_each(sweep);
    } else {
        pool.run(sweeps.count(), sweep);
    }
}

/// Writes row `i` of the `n` rows of a sweep.
fn prepare_row(isa: Isa, scheme: Scheme, x: &[f32], n: usize, i: usize, out: &mut [u32]) {
    let (inputs, words) = scheme.block();
    match scheme {
        Scheme::Float => x
            .iter()
            .zip(out.iter_mut().skip(i).step_by(n))
            .for_each(|(x, out)| *out = x.to_bits()),
        Scheme::Block32 | Scheme::Block256 => {
            for (x, out) in x.chunks_exact(inputs).zip(out.chunks_exact_mut(words * n)) {
                let mut codes = [0; 256];
                let d = quantize(isa, x, &mut codes[..inputs]);
                write_block(scheme, &codes[..inputs], d, n, i, out);
            }
        }
    }
}

/// Quantises one block and returns its scale.
fn quantize(isa: Isa, x: &[f32], codes: &mut [i8]) -> f32 {
    let absmax = absmax_bits(isa, x);
    let d = f32::from_bits(absmax) / 127.0;
    if absmax >= f32::INFINITY.to_bits() || d < f32::MIN_POSITIVE {
        codes.fill(0);
        return if d < f32::MIN_POSITIVE { 0.0 } else { f32::NAN };
    }
    round(isa, x, 1.0 / d, codes);
    d
}

/// The largest |x| as bits: as integers they are in the order of the values, infinities and NaN last.
fn absmax_bits(isa: Isa, x: &[f32]) -> u32 {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `isa` proves that the machine has the instructions.
        Isa::Avx2(_) => unsafe { avx2::absmax_bits(x) },
        _ => x.iter().fold(0, |max, x| max.max(x.to_bits() & 0x7fff_ffff)),
    }
}

/// `codes = round(x · inverse)`.
fn round(isa: Isa, x: &[f32], inverse: f32, codes: &mut [i8]) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `isa` proves that the machine has the instructions.
        Isa::Avx2(_) => unsafe { avx2::round(x, inverse, codes) },
        _ => codes
            .iter_mut()
            .zip(x)
            .for_each(|(code, x)| *code = (x * inverse).round_ties_even() as i8),
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
        out[block_32::HALVES * n + i] = pair(a, b);
        out[block_32::D * n + i] = d.to_bits();
        out[block_32::S * n + i] = (d * f32::from(a + b)).to_bits();
        return;
    }
    let mut sums = [0i16; 8];
    for (g, group) in codes.chunks_exact(16).enumerate() {
        let (a, b) = halves(group);
        out[(block_256::HALVES + g) * n + i] = pair(a, b);
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
            assert_eq!(sweeps.count(), rows.div_ceil(8));
            let lengths: Vec<_> = (0..sweeps.count()).map(|i| sweeps.rows(i).len()).collect();
            assert!(
                lengths.iter().all(|&n| (1..=8).contains(&n)),
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
