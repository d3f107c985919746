//! Formats of unsigned codes, 2 to 6 bits.
//!
//! `vpmaddubsw` multiplies unsigned codes with signed activations and adds pairs, 16 bits a lane and two
//! lanes a row. A tile's sixteen rows are two vectors, *halves*, which share each load of activations. All steps of a
//! group are summed in 16 bits before a single `vpmaddwd` applies the group's integer scale and widens: per row and step one multiplication and one addition. For 5 and 6 bits that sum
//! would not fit, but the sum with the codes' centre subtracted does (2·8·16·127 and 2·4·32·127 are both
//! 32,512), and 16-bit addition wraps: starting from minus centre times the sum of the activations, which
//! is known ahead, the end is exact whatever happens on the way.
use super::{Fetch, HALVES, Sums, store};
use crate::activation::{block_32, block_256};
use crate::format::{Format, Mins, Scales, Spec};
use crate::kernels::TileOut;
use crate::matrix::Tile;
use crate::packed::{CHUNK, PIECES, Piece, STEPS, VECTOR, pieces};
use std::arch::x86_64::*;

/// A format as a type.
pub(in crate::kernels) trait Quant {
    const SPEC: Spec;
    /// Subtracted from codes before 16-bit sums; a power of two, or 0.
    const CENTRE: i32 = match (Self::SPEC.offset, Self::SPEC.bits) {
        (0, 5) => 16,
        (offset, _) => offset as i32,
    };
    /// What the activations' biases, of the largest centre, must be shifted right by for this one.
    const BIAS_SHIFT: i32 = match Self::CENTRE {
        0 => 0,
        centre => {
            let bias = if Self::SPEC.block == 32 {
                block_32::BIAS
            } else {
                block_256::BIAS
            };
            (-bias as i32 / centre).ilog2() as i32
        }
    };
    const PIECES: [[Piece; PIECES]; STEPS] = pieces(Self::SPEC.bits);
    /// The centre was subtracted though codes of it are not zero: it must be added again.
    const RESTORE: bool = Self::CENTRE != Self::SPEC.offset as i32;
}

macro_rules! quants {
    ($($name:ident)*) => {$(
        #[allow(non_camel_case_types)]
        pub(in crate::kernels) struct $name;
        impl Quant for $name {
            const SPEC: Spec = Format::$name.spec().unwrap();
        }
    )*};
}
quants!(Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K);

/// `out[r][lane]` for every row of the sweep `x`.
///
/// # Safety
/// As `TileKernel` says, for `F` and `N`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn product<F: Quant, const N: usize>(
    tile: Tile<'_>,
    x: &[u32],
    fetch: bool,
    out: &mut TileOut,
) {
    let mut acc = [[_mm256_setzero_ps(); N]; HALVES];
    let blocks = tile.cols / F::SPEC.block;
    let (meta_bytes, code_bytes) = (F::SPEC.meta_bytes(), F::SPEC.code_bytes());
    let words = if F::SPEC.block == 32 {
        block_32::WORDS
    } else {
        block_256::WORDS
    };
    let (mut meta, mut codes, mut x) = (tile.meta.as_ptr(), tile.codes.as_ptr(), x.as_ptr());
    let mut fetch = Fetch::new(fetch, codes, (meta_bytes + code_bytes) / F::SPEC.groups());
    for _ in 0..blocks {
        // SAFETY: the planes and the sweep have `blocks` blocks of these sizes.
        unsafe {
            if F::SPEC.block == 32 {
                block_of_32::<F, N>(meta, codes, x, &mut fetch, &mut acc);
            } else {
                block_of_256::<F, N>(meta, codes, x, &mut fetch, &mut acc);
            }
            meta = meta.add(meta_bytes);
            codes = codes.add(code_bytes);
            x = x.add(words * N);
        }
    }
    // SAFETY: by this function's own promise.
    unsafe { store(&acc, out) };
}

/// # Safety
/// The machine has AVX2, FMA and F16C. The pointers are to one block of the meta plane, the code plane, and the sweep.
#[inline(always)]
unsafe fn block_of_32<F: Quant, const N: usize>(
    meta: *const u8,
    codes: *const u8,
    x: *const u32,
    fetch: &mut Fetch,
    acc: &mut Sums<__m256, N>,
) {
    // SAFETY: all reads are within the block, by the layout that `packed` and `activation` describe.
    unsafe {
        fetch.next();
        let biases = x.add(block_32::BIASES * N);
        let sums = group::<F, N, 0>(codes, x, biases);
        for h in 0..HALVES {
            let d = half(meta.add(16 * h));
            for n in 0..N {
                let mut dot = _mm256_madd_epi16(sums[h][n], _mm256_set1_epi16(1));
                if F::RESTORE {
                    dot = _mm256_sub_epi32(
                        dot,
                        _mm256_madd_epi16(bias::<F, N>(biases.add(n)), _mm256_set1_epi16(1)),
                    );
                }
                let scale = _mm256_mul_ps(d, float(x.add(block_32::D * N + n)));
                acc[h][n] = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(dot), acc[h][n]);
            }
            if const { matches!(F::SPEC.mins, Mins::PerBlock) } {
                let m = half(meta.add(32 + 16 * h));
                for n in 0..N {
                    acc[h][n] = _mm256_fmadd_ps(m, float(x.add(block_32::S * N + n)), acc[h][n]);
                }
            }
        }
    }
}

/// # Safety
/// The machine has AVX2, FMA and F16C. The pointers are to one block of the meta plane, the code plane, and the sweep.
#[inline(always)]
unsafe fn block_of_256<F: Quant, const N: usize>(
    meta: *const u8,
    codes: *const u8,
    x: *const u32,
    fetch: &mut Fetch,
    acc: &mut Sums<__m256, N>,
) {
    let has_mins = const { matches!(F::SPEC.mins, Mins::PerGroup) };
    let pairs = F::SPEC.groups() / 2;
    // SAFETY: all reads are within the block, by the layout that `packed` and `activation` describe.
    unsafe {
        let zero = _mm256_setzero_si256();
        let (mut dots, mut mins) = ([[zero; N]; HALVES], [[zero; N]; HALVES]);
        let biases = |group: usize| x.add((block_256::BIASES + group * F::SPEC.group / 16) * N);
        for pair in 0..pairs {
            let scale: [_; HALVES] = [scales::<F>(meta, pair, 0), scales::<F>(meta, pair, 1)];
            let codes = codes.add(2 * pair * F::SPEC.group / CHUNK * F::SPEC.chunk_bytes());
            let x = x.add(2 * pair * F::SPEC.group / 4 * N);
            fetch.next();
            let sums = group::<F, N, 0>(codes, x, biases(2 * pair));
            for h in 0..HALVES {
                add_products(&mut dots[h], &sums[h], both_even(scale[h]));
            }
            let x = x.add(F::SPEC.group / 4 * N);
            fetch.next();
            let sums = if F::SPEC.group == 32 {
                group::<F, N, 0>(codes.add(F::SPEC.chunk_bytes()), x, biases(2 * pair + 1))
            } else {
                group::<F, N, 4>(codes, x, biases(2 * pair + 1))
            };
            for h in 0..HALVES {
                add_products(&mut dots[h], &sums[h], both_odd(scale[h]));
            }
        }
        for h in 0..HALVES {
            // What is left of a pair of groups needs only the sums of activations.
            if F::RESTORE || has_mins {
                for pair in 0..pairs {
                    let min = group_mins::<F>(meta, pair, h);
                    if F::SPEC.group == 32 {
                        let centred = _mm256_slli_epi16::<4>(scales::<F>(meta, pair, h));
                        let sums = x.add((block_256::SUMS + pair) * N);
                        for n in 0..N {
                            let sums = word(sums.add(n));
                            if F::RESTORE {
                                dots[h][n] = _mm256_add_epi32(dots[h][n], _mm256_madd_epi16(centred, sums));
                            }
                            mins[h][n] = _mm256_add_epi32(mins[h][n], _mm256_madd_epi16(min, sums));
                        }
                    } else {
                        for (min, biases) in [
                            (both_even(min), biases(2 * pair)),
                            (both_odd(min), biases(2 * pair + 1)),
                        ] {
                            for n in 0..N {
                                let sums = word(biases.add(n));
                                mins[h][n] = _mm256_add_epi32(mins[h][n], _mm256_madd_epi16(min, sums));
                            }
                        }
                    }
                }
            }
            let d = half(meta.add(16 * h));
            for n in 0..N {
                let d_a = float(x.add(block_256::D * N + n));
                acc[h][n] = _mm256_fmadd_ps(_mm256_mul_ps(d, d_a), _mm256_cvtepi32_ps(dots[h][n]), acc[h][n]);
                if has_mins {
                    let m = _mm256_mul_ps(half(meta.add(32 + 16 * h)), d_a);
                    let min = if F::SPEC.group == 16 {
                        unbiased(mins[h][n])
                    } else {
                        mins[h][n]
                    };
                    acc[h][n] = _mm256_fnmadd_ps(m, _mm256_cvtepi32_ps(min), acc[h][n]);
                }
            }
        }
    }
}

/// Adds the sums of a group times its scale.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn add_products<const N: usize>(dots: &mut [__m256i; N], sums: &[__m256i; N], scale: __m256i) {
    for n in 0..N {
        // SAFETY: the caller's promise.
        dots[n] = unsafe { _mm256_add_epi32(dots[n], _mm256_madd_epi16(sums[n], scale)) };
    }
}

/// Sums of `(code − centre) · activation` of one group, two 16-bit lanes a row: steps `FIRST`… of a chunk.
///
/// # Safety
/// The machine has AVX2, FMA and F16C. `chunk` points to a chunk of the code plane; `x` to the group's codes; `biases` to its biases.
#[inline(always)]
unsafe fn group<F: Quant, const N: usize, const FIRST: usize>(
    chunk: *const u8,
    x: *const u32,
    biases: *const u32,
) -> Sums<__m256i, N> {
    // SAFETY: as above.
    unsafe {
        let mut sums = [[_mm256_setzero_si256(); N]; HALVES];
        if F::CENTRE != 0 {
            for n in 0..N {
                let bias = bias::<F, N>(biases.add(n));
                // As a loop over both halves it costs up to 4 % more instructions.
                sums = sums.map(|mut half| {
                    half[n] = bias;
                    half
                });
            }
        }
        macro_rules! steps {
            ($($step:literal)*) => {$(
                let weights = [unpack::<F>(chunk, FIRST + $step, 0), unpack::<F>(chunk, FIRST + $step, 1)];
                for n in 0..N {
                    let x = word(x.add($step * N + n));
                    for h in 0..HALVES {
                        sums[h][n] = if F::CENTRE == 0 && $step == 0 {
                            _mm256_maddubs_epi16(weights[h], x)
                        } else {
                            multiply_add(sums[h][n], weights[h], x)
                        };
                    }
                }
            )*};
        }
        steps!(0 1 2 3);
        if F::SPEC.group == 32 {
            steps!(4 5 6 7);
        }
        sums
    }
}

/// Minus the centre times the half sums of one row's activations in a group.
///
/// # Safety
/// `biases` points to the row's word of the group's biases.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn bias<F: Quant, const N: usize>(biases: *const u32) -> __m256i {
    // SAFETY: the caller's promise; a group of 32 in a block of 256 has the biases of two groups of 16.
    unsafe {
        let bias = shift_right(word(biases), F::BIAS_SHIFT);
        if F::SPEC.block == 256 && F::SPEC.group == 32 {
            _mm256_add_epi16(bias, shift_right(word(biases.add(N)), F::BIAS_SHIFT))
        } else {
            bias
        }
    }
}

/// Sums of activations from sums of their biases (of 256).
#[inline]
#[target_feature(enable = "avx2")]
fn unbiased(sums: __m256i) -> __m256i {
    const { assert!(block_256::BIAS == -32) };
    _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_srai_epi32::<5>(sums))
}

/// Shifts signed 16-bit lanes by 0 to 3 bits; the amount is a constant wherever this is inlined.
#[inline]
#[target_feature(enable = "avx2")]
fn shift_right(v: __m256i, by: i32) -> __m256i {
    match by {
        0 => v,
        1 => _mm256_srai_epi16::<1>(v),
        2 => _mm256_srai_epi16::<2>(v),
        3 => _mm256_srai_epi16::<3>(v),
        _ => unreachable!("no centre is 1/{by} of the largest"),
    }
}

/// `sums + weights · activations`, pairs added, wrapping in 16 bits.
///
/// In assembly because the compiler would take a chain of integer additions apart and sum it as a tree, with
/// more products alive at a time than there are registers.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn multiply_add(mut sums: __m256i, weights: __m256i, activations: __m256i) -> __m256i {
    // SAFETY: two AVX2 instructions on registers.
    unsafe {
        std::arch::asm!(
            "vpmaddubsw {t}, {w}, {x}",
            "vpaddw {s}, {s}, {t}",
            s = inout(ymm_reg) sums,
            w = in(ymm_reg) weights,
            x = in(ymm_reg) activations,
            t = lateout(ymm_reg) _,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sums
}

/// The codes of one step: four of each row of half a tile.
///
/// # Safety
/// The machine has AVX2, FMA and F16C. `chunk` points to a chunk of the code plane.
#[inline(always)]
unsafe fn unpack<F: Quant>(chunk: *const u8, step: usize, half: usize) -> __m256i {
    // SAFETY: a chunk has the vectors of its pieces.
    let piece = |piece: Piece| unsafe {
        let vector = load(chunk.add(piece.vector * VECTOR + 32 * half));
        // All of this is known where it is inlined: a shift by a constant, or none.
        let shifted = _mm256_srl_epi16(vector, _mm_cvtsi32_si128((piece.bit - piece.to) as i32));
        let mask = ((1u32 << piece.len) - 1) << piece.to;
        _mm256_and_si256(shifted, _mm256_set1_epi8(mask as i8))
    };
    let [first, second, third] = F::PIECES[step];
    let mut codes = piece(first);
    for more in [second, third] {
        if more.len > 0 {
            // SAFETY: the caller has AVX2.
            codes = unsafe { _mm256_or_si256(codes, piece(more)) };
        }
    }
    codes
}

/// Scales of two groups in 16 bits, `[row][2]` of half a tile.
///
/// # Safety
/// `meta` points to a block of the meta plane that has such a pair.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn scales<F: Quant>(meta: *const u8, pair: usize, half: usize) -> __m256i {
    let at = F::SPEC.scales_at() + 32 * pair + 16 * half;
    // SAFETY: sixteen bytes within the block.
    let bytes = unsafe { _mm_loadu_si128(meta.add(at).cast()) };
    if const { matches!(F::SPEC.scales, Scales::Nibbles) } {
        _mm256_and_si256(_mm256_cvtepu8_epi16(bytes), _mm256_set1_epi16(15))
    } else {
        _mm256_cvtepi8_epi16(bytes)
    }
}

/// Mins of two groups in 16 bits, `[row][2]` of half a tile.
///
/// # Safety
/// `meta` points to a block of the meta plane that has such a pair.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn group_mins<F: Quant>(meta: *const u8, pair: usize, half: usize) -> __m256i {
    let nibbles = const { matches!(F::SPEC.scales, Scales::Nibbles) };
    let at = if nibbles {
        F::SPEC.scales_at()
    } else {
        F::SPEC.mins_at()
    };
    // SAFETY: sixteen bytes within the block.
    let mins = unsafe { _mm256_cvtepu8_epi16(_mm_loadu_si128(meta.add(at + 32 * pair + 16 * half).cast())) };
    if nibbles {
        _mm256_srli_epi16::<4>(mins)
    } else {
        mins
    }
}

/// The first of each pair of 16-bit lanes, twice.
#[inline]
#[target_feature(enable = "avx2")]
fn both_even(v: __m256i) -> __m256i {
    _mm256_shufflehi_epi16::<0b10_10_00_00>(_mm256_shufflelo_epi16::<0b10_10_00_00>(v))
}

/// The second of each pair of 16-bit lanes, twice.
#[inline]
#[target_feature(enable = "avx2")]
fn both_odd(v: __m256i) -> __m256i {
    _mm256_shufflehi_epi16::<0b11_11_01_01>(_mm256_shufflelo_epi16::<0b11_11_01_01>(v))
}

/// # Safety
/// 32 bytes can be read.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn load(p: *const u8) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe { _mm256_loadu_si256(p.cast()) }
}

/// A word in all lanes.
///
/// # Safety
/// It can be read.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn word(p: *const u32) -> __m256i {
    // SAFETY: the caller's promise.
    _mm256_set1_epi32(unsafe { *p } as i32)
}

/// A float in all lanes.
///
/// # Safety
/// It can be read.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn float(p: *const u32) -> __m256 {
    // SAFETY: the caller's promise.
    _mm256_set1_ps(f32::from_bits(unsafe { *p }))
}

/// Eight f16 as f32.
///
/// # Safety
/// 16 bytes can be read.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) unsafe fn half(p: *const u8) -> __m256 {
    // SAFETY: the caller's promise.
    _mm256_cvtph_ps(unsafe { _mm_loadu_si128(p.cast()) })
}
