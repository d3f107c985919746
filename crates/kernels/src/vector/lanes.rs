//! Eight f32 lanes: the vocabulary that norms, rope, activations and attention are written in, once for
//! every instruction set.
//!
//! Every operation is IEEE 754 single precision, rounded once, and the order of operations is part of the
//! code that uses them: so all implementations agree in every bit (payloads of NaNs excepted).
//!
//! Not here: the quantised products, whose integer instructions differ from set to set.
use half::f16;

/// Lanes of a vector.
pub(crate) const LANES: usize = 8;

/// Operations on eight f32. A value of the implementing type proves that the machine has the instructions.
///
/// Implementations and everything generic over them are `#[inline(always)]`, so that the code ends up in
/// the one function that [`dispatch!`] compiles with the instruction set enabled.
pub(crate) trait Lanes: Copy {
    /// Eight f32.
    type V: Copy;

    fn splat(self, x: f32) -> Self::V;
    fn load(self, x: &[f32; LANES]) -> Self::V;
    fn load_f16(self, x: &[u16; LANES]) -> Self::V;
    fn store(self, v: Self::V, out: &mut [f32; LANES]);
    /// Rounds to nearest even.
    fn store_f16(self, v: Self::V, out: &mut [u16; LANES]);
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a · b + c`, rounded once.
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `a · b − c` in even lanes, `a · b + c` in odd ones, rounded once.
    fn mul_sub_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `a > b ? a : b`: b if one of them is NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a < b ? a : b`: b if one of them is NaN.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// Lanes 1, 0, 3, 2, 5, 4, 7, 6.
    fn swap_pairs(self, v: Self::V) -> Self::V;
    /// Elements 0, 0, 1, 1, 2, 2, 3, 3.
    fn load_doubled(self, x: &[f32; LANES / 2]) -> Self::V;
    /// For `t = n + 1.5·2²³` with a whole n in −252…254: two powers of two whose product is 2ⁿ. Two,
    /// because one would leave the range of f32 where the product with a number near 1 does not. Any
    /// other `t` gives any numbers.
    fn exp2_parts(self, t: Self::V) -> (Self::V, Self::V);
    /// Lanes i and i + 4 are added, then 0 and 2, 1 and 3, then the two.
    fn sum(self, v: Self::V) -> f32;
    /// In the order of [`sum`](Self::sum), with [`max`](Self::max) for the addition.
    fn max_across(self, v: Self::V) -> f32;
}

/// The bits of 1.5·2²³.
pub(crate) const MAGIC_BITS: i32 = 0x4B40_0000;

/// The reference: portable, and slow where the machine has no fused multiply-add.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scalar;

#[inline(always)]
fn lanes(f: impl Fn(usize) -> f32) -> [f32; LANES] {
    std::array::from_fn(f)
}

#[inline(always)]
fn fold(v: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> f32 {
    let four: [f32; 4] = std::array::from_fn(|i| f(v[i], v[i + 4]));
    f(f(four[0], four[2]), f(four[1], four[3]))
}

impl Lanes for Scalar {
    type V = [f32; LANES];

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; LANES]
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::V {
        *x
    }
    #[inline(always)]
    fn load_f16(self, x: &[u16; LANES]) -> Self::V {
        lanes(|i| f16::from_bits(x[i]).to_f32())
    }
    #[inline(always)]
    fn store(self, v: Self::V, out: &mut [f32; LANES]) {
        *out = v;
    }
    #[inline(always)]
    fn store_f16(self, v: Self::V, out: &mut [u16; LANES]) {
        *out = v.map(|x| f16::from_f32(x).to_bits());
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        lanes(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        lanes(|i| a[i] - b[i])
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        lanes(|i| a[i] * b[i])
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        lanes(|i| a[i] / b[i])
    }
    #[inline(always)]
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        lanes(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn mul_sub_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        lanes(|i| a[i].mul_add(b[i], if i % 2 == 0 { -c[i] } else { c[i] }))
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        lanes(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        lanes(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn swap_pairs(self, v: Self::V) -> Self::V {
        lanes(|i| v[i ^ 1])
    }
    #[inline(always)]
    fn load_doubled(self, x: &[f32; LANES / 2]) -> Self::V {
        lanes(|i| x[i / 2])
    }
    #[inline(always)]
    fn exp2_parts(self, t: Self::V) -> (Self::V, Self::V) {
        let n = t.map(|t| (t.to_bits() as i32).wrapping_sub(MAGIC_BITS));
        let power = |n: i32| f32::from_bits((n.wrapping_add(127) << 23) as u32);
        (
            lanes(|i| power(n[i] >> 1)),
            lanes(|i| power(n[i].wrapping_sub(n[i] >> 1))),
        )
    }
    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        fold(v, |a, b| a + b)
    }
    #[inline(always)]
    fn max_across(self, v: Self::V) -> f32 {
        fold(v, |a, b| if a > b { a } else { b })
    }
}

/// Calls `$f(lanes, …)` with the lanes of `$isa`, compiled for that instruction set.
macro_rules! dispatch {
    ($isa:expr, $f:path $([$op:ident: $bound:ident])?, $($arg:ident: $t:ty),* $(,)?) => {{
        match $isa {
            #[cfg(target_arch = "x86_64")]
            $crate::Isa::Avx2(lanes) => {
                #[target_feature(enable = "avx2,fma,f16c")]
                #[allow(clippy::too_many_arguments)]
                fn with_avx2 $(<$op: $bound>)? (lanes: $crate::Avx2, $($arg: $t),*) {
                    $f(lanes, $($arg),*)
                }
                // SAFETY: an `Avx2` proves that the machine has the three features.
                unsafe { with_avx2(lanes, $($arg),*) }
            }
            _ => $f($crate::vector::lanes::Scalar, $($arg),*),
        }
    }};
}
pub(crate) use dispatch;
