//! F32, F16 and BF16 weights with activations as they are.
use super::quantized::{float, half};
use crate::kernels::{FLOAT_RUN, TileOut};
use crate::matrix::Tile;
use crate::packed::LANES;
use std::arch::x86_64::*;

/// A format as a type.
pub(super) trait Float {
    /// Bytes of a weight.
    const BYTES: usize;
    /// Loads eight weights.
    ///
    /// # Safety
    /// They can be read, and the machine has AVX2 and F16C.
    unsafe fn load(p: *const u8) -> __m256;
}

pub(super) struct F32;
pub(super) struct F16;
pub(super) struct BF16;

impl Float for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load(p: *const u8) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe { _mm256_loadu_ps(p.cast()) }
    }
}

impl Float for F16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load(p: *const u8) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe { half(p) }
    }
}

impl Float for BF16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load(p: *const u8) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe {
            let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
        }
    }
}

/// `out[r][lane]` for every row of the sweep `x`.
///
/// # Safety
/// As `TileKernel` says, for `F` and `N`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn product<F: Float, const N: usize>(tile: Tile<'_>, x: &[u32], out: &mut TileOut) {
    let mut acc = [_mm256_setzero_ps(); N];
    let (mut weights, mut x) = (tile.codes.as_ptr(), x.as_ptr());
    let mut add = |run: usize| {
        let mut parts = [_mm256_setzero_ps(); N];
        for _ in 0..run {
            // SAFETY: the tile has `cols` times eight weights, the sweep `cols` times N activations.
            unsafe {
                let w = F::load(weights);
                for (n, part) in parts.iter_mut().enumerate() {
                    *part = _mm256_fmadd_ps(w, float(x.add(n)), *part);
                }
                weights = weights.add(F::BYTES * LANES);
                x = x.add(N);
            }
        }
        for (acc, part) in acc.iter_mut().zip(parts) {
            *acc = _mm256_add_ps(*acc, part);
        }
    };
    for _ in 0..tile.cols / FLOAT_RUN {
        add(FLOAT_RUN);
    }
    if !tile.cols.is_multiple_of(FLOAT_RUN) {
        add(tile.cols % FLOAT_RUN);
    }
    for (out, acc) in out.iter_mut().zip(acc) {
        // SAFETY: a row of `out` is eight floats.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), acc) };
    }
}
