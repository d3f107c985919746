//! Eight lanes in one AVX2 register.
use super::lanes::{LANES, Lanes, MAGIC_BITS};
use crate::Avx2;
use std::arch::x86_64::*;

/// The intrinsics below need AVX2, FMA or F16C, which `self` proves; loads and stores are unaligned and
/// within the array that the reference points to.
macro_rules! intrinsic {
    ($e:expr) => {
        // SAFETY: `self` is the proof, as said above; memory is reached through references only.
        unsafe { $e }
    };
}

impl Lanes for Avx2 {
    type V = __m256;

    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        intrinsic!(_mm256_set1_ps(x))
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> __m256 {
        intrinsic!(_mm256_loadu_ps(x.as_ptr()))
    }
    #[inline(always)]
    fn load_f16(self, x: &[u16; LANES]) -> __m256 {
        intrinsic!(_mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().cast())))
    }
    #[inline(always)]
    fn store(self, v: __m256, out: &mut [f32; LANES]) {
        intrinsic!(_mm256_storeu_ps(out.as_mut_ptr(), v))
    }
    #[inline(always)]
    fn store_f16(self, v: __m256, out: &mut [u16; LANES]) {
        intrinsic!(_mm_storeu_si128(
            out.as_mut_ptr().cast(),
            _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)
        ))
    }
    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        intrinsic!(_mm256_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        intrinsic!(_mm256_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        intrinsic!(_mm256_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        intrinsic!(_mm256_div_ps(a, b))
    }
    #[inline(always)]
    fn mul_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        intrinsic!(_mm256_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn mul_sub_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        intrinsic!(_mm256_fmaddsub_ps(a, b, c))
    }
    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        intrinsic!(_mm256_max_ps(a, b))
    }
    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> __m256 {
        intrinsic!(_mm256_min_ps(a, b))
    }
    #[inline(always)]
    fn swap_pairs(self, v: __m256) -> __m256 {
        intrinsic!(_mm256_permute_ps::<0b10_11_00_01>(v))
    }
    #[inline(always)]
    fn load_doubled(self, x: &[f32; LANES / 2]) -> __m256 {
        intrinsic!({
            let four = _mm_loadu_ps(x.as_ptr());
            _mm256_set_m128(_mm_unpackhi_ps(four, four), _mm_unpacklo_ps(four, four))
        })
    }
    #[inline(always)]
    fn exp2_parts(self, t: __m256) -> (__m256, __m256) {
        intrinsic!({
            let n = _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(MAGIC_BITS));
            let first = _mm256_srai_epi32::<1>(n);
            let second = _mm256_sub_epi32(n, first);
            let bias = _mm256_set1_epi32(127);
            (
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(first, bias))),
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(second, bias))),
            )
        })
    }
    #[inline(always)]
    fn sum(self, v: __m256) -> f32 {
        intrinsic!({
            let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        })
    }
    #[inline(always)]
    fn max_across(self, v: __m256) -> f32 {
        intrinsic!({
            let four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        })
    }
}
