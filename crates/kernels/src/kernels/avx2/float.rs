//! F32, F16 and BF16 weights with activations as they are.
use super::quantized::{float, half};
use super::{Fetch, HALVES, Sums, store};
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
pub(super) unsafe fn product<F: Float, const N: usize>(
    tile: Tile<'_>,
    x: &[u32],
    fetch: bool,
    out: &mut TileOut,
) {
    let mut acc = [[_mm256_setzero_ps(); N]; HALVES];
    let (mut weights, mut x) = (tile.codes.as_ptr(), x.as_ptr());
    let mut cols = tile.cols;
    let mut fetch = Fetch::new(fetch, weights, FLOAT_RUN * F::BYTES * LANES);
    while cols >= FLOAT_RUN {
        fetch.next();
        // SAFETY: the tile has `cols` times sixteen weights more, the sweep `cols` times N activations.
        unsafe {
            add_run::<F, N>(FLOAT_RUN, weights, x, &mut acc);
            weights = weights.add(FLOAT_RUN * F::BYTES * LANES);
            x = x.add(FLOAT_RUN * N);
        }
        cols -= FLOAT_RUN;
    }
    if cols > 0 {
        // SAFETY: as above.
        unsafe { add_run::<F, N>(cols, weights, x, &mut acc) };
    }
    // SAFETY: by this function's own promise.
    unsafe { store(&acc, out) };
}

/// Adds the products of `run` columns.
///
/// # Safety
/// The pointers are to so many columns of the tile and the sweep, and the machine has AVX2, FMA and F16C.
#[inline(always)]
unsafe fn add_run<F: Float, const N: usize>(
    run: usize,
    weights: *const u8,
    x: *const u32,
    acc: &mut Sums<__m256, N>,
) {
    let bytes = F::BYTES * LANES;
    // SAFETY: the caller's promise.
    unsafe {
        let mut parts = [[_mm256_setzero_ps(); N]; HALVES];
        for k in 0..run {
            let weights = weights.add(k * bytes);
            let w: [_; HALVES] = [F::load(weights), F::load(weights.add(bytes / 2))];
            for n in 0..N {
                let x = float(x.add(k * N + n));
                for h in 0..HALVES {
                    parts[h][n] = _mm256_fmadd_ps(w[h], x, parts[h][n]);
                }
            }
        }
        for h in 0..HALVES {
            for n in 0..N {
                acc[h][n] = _mm256_add_ps(acc[h][n], parts[h][n]);
            }
        }
    }
}
