//! Q8_0: signed codes of 8 bits.
//!
//! `vpmaddubsw` wants one side unsigned: it gets |w|, and the activations take w's sign. Two products of
//! 128·127 just fit 16 bits, so that each step is widened by itself.
use super::quantized::{float, half, load, word};
use super::{Fetch, HALVES, Sums, store};
use crate::activation::block_32;
use crate::format::{Format, Spec};
use crate::kernels::TileOut;
use crate::matrix::Tile;
use crate::packed::{STEPS, VECTOR};
use std::arch::x86_64::*;

/// A format as a type.
pub(super) trait Signed {
    const SPEC: Spec;
}

#[allow(non_camel_case_types)]
pub(super) struct Q8_0;

impl Signed for Q8_0 {
    const SPEC: Spec = Format::Q8_0.spec().unwrap();
}

/// `out[r][lane]` for every row of the sweep `x`.
///
/// # Safety
/// As `TileKernel` says, for `F` and `N`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn product<F: Signed, const N: usize>(
    tile: Tile<'_>,
    x: &[u32],
    fetch: bool,
    out: &mut TileOut,
) {
    let ones = _mm256_set1_epi16(1);
    let mut acc: Sums<__m256, N> = [[_mm256_setzero_ps(); N]; HALVES];
    let (mut meta, mut codes, mut x) = (tile.meta.as_ptr(), tile.codes.as_ptr(), x.as_ptr());
    let (meta_bytes, code_bytes) = (F::SPEC.meta_bytes(), F::SPEC.code_bytes());
    let mut fetch = Fetch::new(fetch, codes, meta_bytes + code_bytes);
    for _ in 0..tile.cols / F::SPEC.block {
        fetch.next();
        let mut dots = [[_mm256_setzero_si256(); N]; HALVES];
        // SAFETY: the planes and the sweep have so many blocks of these sizes.
        unsafe {
            for step in 0..STEPS {
                let codes = codes.add(VECTOR * step);
                let weights: [_; HALVES] = [load(codes), load(codes.add(32))];
                let magnitudes = weights.map(|w| _mm256_abs_epi8(w));
                for n in 0..N {
                    let x = word(x.add(step * N + n));
                    for h in 0..HALVES {
                        let activations = _mm256_sign_epi8(x, weights[h]);
                        dots[h][n] = multiply_add(dots[h][n], magnitudes[h], activations, ones);
                    }
                }
            }
            for h in 0..HALVES {
                let d = half(meta.add(16 * h));
                for n in 0..N {
                    let scale = _mm256_mul_ps(d, float(x.add(block_32::D * N + n)));
                    acc[h][n] = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(dots[h][n]), acc[h][n]);
                }
            }
            meta = meta.add(meta_bytes);
            codes = codes.add(code_bytes);
            x = x.add(block_32::WORDS * N);
        }
    }
    // SAFETY: by this function's own promise.
    unsafe { store(&acc, out) };
}

/// `sums + magnitudes · activations`, four products a lane; in assembly for the reason that the unsigned
/// kernels have.
#[inline]
#[target_feature(enable = "avx2")]
fn multiply_add(mut sums: __m256i, magnitudes: __m256i, activations: __m256i, ones: __m256i) -> __m256i {
    // SAFETY: three AVX2 instructions on registers.
    unsafe {
        std::arch::asm!(
            "vpmaddubsw {x}, {w}, {x}",
            "vpmaddwd {x}, {x}, {ones}",
            "vpaddd {s}, {s}, {x}",
            s = inout(ymm_reg) sums,
            w = in(ymm_reg) magnitudes,
            ones = in(ymm_reg) ones,
            x = inout(ymm_reg) activations => _,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sums
}
