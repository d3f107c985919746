//! Quantisation of activations; the same results as the portable code has.
use std::arch::x86_64::*;

/// The largest |x| as bits; `x` is a multiple of eight long.
#[target_feature(enable = "avx2")]
pub(crate) fn absmax_bits(x: &[f32]) -> u32 {
    let mask = _mm256_set1_epi32(0x7fff_ffff);
    let mut max = _mm256_setzero_si256();
    for x in x.as_chunks::<8>().0 {
        // SAFETY: eight floats.
        let bits = unsafe { _mm256_loadu_si256(x.as_ptr().cast()) };
        max = _mm256_max_epi32(max, _mm256_and_si256(bits, mask));
    }
    let max = _mm_max_epi32(_mm256_castsi256_si128(max), _mm256_extracti128_si256::<1>(max));
    let max = _mm_max_epi32(max, _mm_shuffle_epi32::<0b01_00_11_10>(max));
    let max = _mm_max_epi32(max, _mm_shuffle_epi32::<0b10_11_00_01>(max));
    _mm_cvtsi128_si32(max) as u32
}

/// `codes = round(x · inverse)`, all within −127…127; both a multiple of eight long.
#[target_feature(enable = "avx2")]
pub(crate) fn round(x: &[f32], inverse: f32, codes: &mut [i8]) {
    let inverse = _mm256_set1_ps(inverse);
    for (x, codes) in x.as_chunks::<8>().0.iter().zip(codes.as_chunks_mut::<8>().0) {
        // SAFETY: eight floats.
        let x = unsafe { _mm256_loadu_ps(x.as_ptr()) };
        let words = _mm256_cvtps_epi32(_mm256_mul_ps(x, inverse));
        let halves = _mm_packs_epi32(
            _mm256_castsi256_si128(words),
            _mm256_extracti128_si256::<1>(words),
        );
        // SAFETY: eight bytes.
        unsafe { _mm_storel_epi64(codes.as_mut_ptr().cast(), _mm_packs_epi16(halves, halves)) };
    }
}
