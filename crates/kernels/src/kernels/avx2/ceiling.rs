//! The least that exact int8 products take: see [`crate::ceilings`].
use super::quantized::{multiply_add, word};
use crate::Avx2;
use crate::ceilings::ROWS;
use std::arch::x86_64::*;
use std::hint::black_box;

/// Multiplies `steps` times 32 unsigned codes, in a register, with each of eight rows: one load, one
/// multiplication and one addition each, and one widening for every eight of them.
pub(crate) fn multiply_adds(_: Avx2, steps: usize) {
    // SAFETY: an `Avx2` proves that the machine has the features.
    unsafe { run(steps) }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn run(steps: usize) {
    let weights = _mm256_set1_epi8(black_box(3));
    let scale = _mm256_set1_epi16(black_box(5));
    let x = [[0x0403_fe05u32; ROWS]; 8];
    let mut dots = [_mm256_setzero_si256(); ROWS];
    for _ in 0..steps / 8 {
        let mut sums = [_mm256_setzero_si256(); ROWS];
        // Opaque, or the compiler would see that each round sums the same.
        for x in black_box(&x) {
            for (sum, x) in sums.iter_mut().zip(x) {
                // SAFETY: a reference can be read.
                *sum = multiply_add(*sum, weights, unsafe { word(x) });
            }
        }
        for (dot, sum) in dots.iter_mut().zip(sums) {
            *dot = _mm256_add_epi32(*dot, _mm256_madd_epi16(sum, scale));
        }
    }
    black_box(dots);
}
