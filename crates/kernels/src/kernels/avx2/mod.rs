//! AVX2, FMA and F16C: one lane of a vector is one row of a tile, so that no sum ever runs across lanes.
//!
//! Each kernel is a template over the number of rows in a sweep, instantiated for one to four: a step
//! of weights is unpacked once and multiplied with every row, the sums stay in registers.
//!
//! What a kernel is made of is `inline(always)` and takes the instructions from the one function with `target_feature` that
//! it ends up in: with that attribute of their own, the parts would be inlined only if they are small.
// `n` counts rows of a sweep and `h` halves of a tile, in several arrays at once.
#![allow(clippy::needless_range_loop)]

mod float;
mod quantized;
mod signed;

pub(crate) mod activation;
pub(crate) mod ceiling;

use super::{TileKernel, TileOut};
use crate::activation::MAX_SWEEP;
use crate::{Avx2, Format};
use quantized::{Q2_K, Q3_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K};
use std::arch::x86_64::{__m256, _MM_HINT_T1, _mm_prefetch, _mm256_storeu_ps};

/// A kernel for each number of rows.
macro_rules! for_each_sweep {
    ($function:ident, $format:ty) => {{
        const KERNELS: [TileKernel; MAX_SWEEP] = [
            $function::<$format, 1>,
            $function::<$format, 2>,
            $function::<$format, 3>,
            $function::<$format, 4>,
        ];
        &KERNELS
    }};
}

/// The kernel for a format and a number of rows, one to four.
pub(super) fn kernel(_: Avx2, format: Format, rows: usize) -> TileKernel {
    use {float::product as float, quantized::product as quantized, signed::product as signed};
    let kernels: &[TileKernel; MAX_SWEEP] = match format {
        Format::F32 => for_each_sweep!(float, float::F32),
        Format::F16 => for_each_sweep!(float, float::F16),
        Format::BF16 => for_each_sweep!(float, float::BF16),
        Format::Q4_0 => for_each_sweep!(quantized, Q4_0),
        Format::Q4_1 => for_each_sweep!(quantized, Q4_1),
        Format::Q5_0 => for_each_sweep!(quantized, Q5_0),
        Format::Q5_1 => for_each_sweep!(quantized, Q5_1),
        Format::Q8_0 => for_each_sweep!(signed, signed::Q8_0),
        Format::Q2_K => for_each_sweep!(quantized, Q2_K),
        Format::Q3_K => for_each_sweep!(quantized, Q3_K),
        Format::Q4_K => for_each_sweep!(quantized, Q4_K),
        Format::Q5_K => for_each_sweep!(quantized, Q5_K),
        Format::Q6_K => for_each_sweep!(quantized, Q6_K),
    };
    kernels[rows - 1]
}

/// How far ahead a kernel fetches, in bytes: what the memory delivers in the time that it takes to answer.
const AHEAD: usize = 4096;

/// What a kernel fetches into the second cache while it works, group by group, for the memory never to be idle. It goes
/// through a tile's bytes from ahead of its codes on, and so through the next tile's meta plane as well.
struct Fetch {
    on: bool,
    at: *const u8,
    /// Bytes from one group to the next.
    group: usize,
}

impl Fetch {
    /// For a tile whose codes begin at `codes`, with `group` bytes of both planes for each group; nothing at all unless
    /// `on`.
    #[inline(always)]
    fn new(on: bool, codes: *const u8, group: usize) -> Self {
        Self {
            on,
            at: codes.wrapping_add(AHEAD),
            group,
        }
    }

    /// Goes on by a group.
    #[inline(always)]
    fn next(&mut self) {
        if self.on {
            for line in 0..self.group.div_ceil(64) {
                // SAFETY: whatever the address, a fetch reads nothing that a program could see.
                unsafe { _mm_prefetch::<_MM_HINT_T1>(self.at.wrapping_add(64 * line).cast()) };
            }
            self.at = self.at.wrapping_add(self.group);
        }
    }
}

/// Half of a tile's rows: what fits a vector.
const HALVES: usize = 2;

/// Sums of a tile with the rows of a sweep, `[half][row]`.
type Sums<V, const N: usize> = [[V; N]; HALVES];

/// Writes the results of a tile.
///
/// # Safety
/// The machine has AVX; `out` has N rows.
#[inline(always)]
unsafe fn store<const N: usize>(acc: &Sums<__m256, N>, out: &mut TileOut) {
    for (n, out) in out.iter_mut().enumerate() {
        for h in 0..HALVES {
            // SAFETY: a row of `out` is two times eight floats.
            unsafe { _mm256_storeu_ps(out.as_mut_ptr().add(8 * h), acc[h][n]) };
        }
    }
}
