//! Q8_0: signed codes of 8 bits.
//!
//! `vpmaddubsw` wants one side unsigned: it gets |w|, and the activations take w's sign. Two products of
//! 128·127 just fit 16 bits, so that each step is widened by itself.
use super::quantized::{float, half, word};
use crate::activation::block_32;
use crate::format::{Format, Spec};
use crate::kernels::TileOut;
use crate::matrix::Tile;
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
pub(super) unsafe fn product<F: Signed, const N: usize>(tile: Tile<'_>, x: &[u32], out: &mut TileOut) {
    let ones = _mm256_set1_epi16(1);
    let mut acc = [_mm256_setzero_ps(); N];
    let (mut meta, mut codes, mut x) = (tile.meta.as_ptr(), tile.codes.as_ptr(), x.as_ptr());
    for _ in 0..tile.cols / F::SPEC.block {
        let mut dots = [_mm256_setzero_si256(); N];
        // SAFETY: the planes and the sweep have so many blocks of these sizes.
        unsafe {
            for step in 0..8 {
                let weights = _mm256_loadu_si256(codes.add(32 * step).cast());
                let magnitudes = _mm256_abs_epi8(weights);
                for (n, dot) in dots.iter_mut().enumerate() {
                    let activations = _mm256_sign_epi8(word(x.add(step * N + n)), weights);
                    *dot = multiply_add(*dot, magnitudes, activations, ones);
                }
            }
            let d = half(meta);
            for n in 0..N {
                let scale = _mm256_mul_ps(d, float(x.add(block_32::D * N + n)));
                acc[n] = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(dots[n]), acc[n]);
            }
            meta = meta.add(F::SPEC.meta_bytes());
            codes = codes.add(F::SPEC.code_bytes());
            x = x.add(block_32::WORDS * N);
        }
    }
    for (out, acc) in out.iter_mut().zip(acc) {
        // SAFETY: a row of `out` is eight floats.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), acc) };
    }
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
