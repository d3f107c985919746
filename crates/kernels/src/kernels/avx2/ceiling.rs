//! The least that exact int8 products take: see [`crate::ceilings`].
use super::HALVES;
use super::quantized::{multiply_add, word};
use crate::Avx2;
use crate::activation::MAX_SWEEP;
use crate::packed::STEPS;
use std::arch::x86_64::*;
use std::hint::black_box;

/// Multiplies `steps` times a tile's step of unsigned codes, in registers, with each row of a sweep: one load, and for
/// each half of the tile one multiplication and one addition, and one widening for every eight of them.
pub(crate) fn multiply_adds(_: Avx2, steps: usize) {
    // SAFETY: an `Avx2` proves that the machine has the features.
    unsafe { run(steps) }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn run(steps: usize) {
    let weights = black_box([_mm256_set1_epi8(3), _mm256_set1_epi8(4)]);
    let scale = _mm256_set1_epi16(black_box(5));
    let x = [[0x0403_fe05u32; MAX_SWEEP]; STEPS];
    let mut dots = [_mm256_setzero_si256(); HALVES * MAX_SWEEP];
    for _ in 0..steps / STEPS {
        let mut sums = [_mm256_setzero_si256(); HALVES * MAX_SWEEP];
        // Opaque, or the compiler would see that each round sums the same.
        for x in black_box(&x) {
            for (sums, x) in sums.chunks_exact_mut(HALVES).zip(x) {
                // SAFETY: a reference can be read.
                let x = unsafe { word(x) };
                for (sum, &weights) in sums.iter_mut().zip(&weights) {
                    *sum = multiply_add(*sum, weights, x);
                }
            }
        }
        for (dot, sum) in dots.iter_mut().zip(sums) {
            *dot = _mm256_add_epi32(*dot, _mm256_madd_epi16(sum, scale));
        }
    }
    black_box(dots);
}
