//! Quantisation of activations; the same results as the portable code has.
use crate::activation::{Scale, block_32, block_256};
use std::arch::x86_64::*;

/// Writes one row's blocks of 32 as row `i` of the `n` of a sweep: `out` is the sweep's blocks.
#[target_feature(enable = "avx2")]
pub(crate) fn blocks_of_32(x: &[f32], n: usize, i: usize, out: &mut [u32]) {
    for (x, out) in x
        .as_chunks::<32>()
        .0
        .iter()
        .zip(out.chunks_exact_mut(block_32::WORDS * n))
    {
        let scale = Scale::of(absmax_bits(x));
        let codes = codes_of_32(x, scale);
        scatter(codes, n, i, out);
        let (first, second) = half_sums_of_16(codes);
        let halves = _mm_add_epi16(first, second);
        let biases = _mm_mullo_epi16(halves, _mm_set1_epi16(block_32::BIAS));
        out[block_32::BIASES * n + i] = _mm_cvtsi128_si32(biases) as u32;
        let sum = _mm_cvtsi128_si32(_mm_madd_epi16(halves, _mm_set1_epi16(1)));
        out[block_32::D * n + i] = scale.d.to_bits();
        out[block_32::S * n + i] = (scale.d * sum as f32).to_bits();
    }
}

/// Writes one row's blocks of 256 as row `i` of the `n` of a sweep: `out` is the sweep's blocks.
#[target_feature(enable = "avx2")]
pub(crate) fn blocks_of_256(x: &[f32], n: usize, i: usize, out: &mut [u32]) {
    let ones = _mm_set1_epi16(1);
    for (x, out) in x
        .as_chunks::<256>()
        .0
        .iter()
        .zip(out.chunks_exact_mut(block_256::WORDS * n))
    {
        let scale = Scale::of(absmax_bits(x));
        let mut sum_before = 0;
        for (c, x) in x.as_chunks::<32>().0.iter().enumerate() {
            let codes = codes_of_32(x, scale);
            scatter(codes, n, i, &mut out[8 * c * n..]);
            let (first, second) = half_sums_of_16(codes);
            let bias = _mm_set1_epi16(block_256::BIAS);
            let biases =
                [first, second].map(|halves| _mm_cvtsi128_si32(_mm_mullo_epi16(halves, bias)) as u32);
            out[(block_256::BIASES + 2 * c) * n + i] = biases[0];
            out[(block_256::BIASES + 2 * c + 1) * n + i] = biases[1];
            let sum = _mm_cvtsi128_si32(_mm_madd_epi16(_mm_add_epi16(first, second), ones)) as u32;
            if c % 2 == 0 {
                sum_before = sum & 0xffff;
            } else {
                out[(block_256::SUMS + c / 2) * n + i] = sum_before | sum << 16;
            }
        }
        out[block_256::D * n + i] = scale.d.to_bits();
    }
}

/// The largest |x| as bits; `x` is a multiple of eight long.
#[inline]
#[target_feature(enable = "avx2")]
fn absmax_bits(x: &[f32]) -> u32 {
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

/// The codes of 32 inputs, in order.
#[inline]
#[target_feature(enable = "avx2")]
fn codes_of_32(x: &[f32; 32], scale: Scale) -> __m256i {
    let Some(inverse) = scale.inverse else {
        return _mm256_setzero_si256();
    };
    let inverse = _mm256_set1_ps(inverse);
    let words = |at: usize| {
        // SAFETY: eight of the 32 floats.
        let x = unsafe { _mm256_loadu_ps(x[at..at + 8].as_ptr()) };
        _mm256_cvtps_epi32(_mm256_mul_ps(x, inverse))
    };
    let first = _mm256_packs_epi32(words(0), words(8));
    let second = _mm256_packs_epi32(words(16), words(24));
    // Packing goes lane by lane: words 0 4 1 5 2 6 3 7 are in order.
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_permutevar8x32_epi32(_mm256_packs_epi16(first, second), order)
}

/// Writes eight words of codes, each to its step.
#[inline]
#[target_feature(enable = "avx2")]
fn scatter(codes: __m256i, n: usize, i: usize, out: &mut [u32]) {
    let mut words = [0u32; 8];
    // SAFETY: 32 bytes.
    unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), codes) };
    let out = &mut out[..8 * n];
    for (step, word) in words.into_iter().enumerate() {
        out[step * n + i] = word;
    }
}

/// For each half of 32 codes, in every word of a vector: the sums of those whose index is 0 or 1 modulo 4,
/// and of the others.
#[inline]
#[target_feature(enable = "avx2")]
fn half_sums_of_16(codes: __m256i) -> (__m128i, __m128i) {
    let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), codes);
    let sums = _mm256_add_epi16(pairs, _mm256_shuffle_epi32::<0b10_11_00_01>(pairs));
    let sums = _mm256_add_epi16(sums, _mm256_shuffle_epi32::<0b01_00_11_10>(sums));
    (_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums))
}
