//! Norms, activation functions, conversions and rope of single rows.
//!
//! Each function is written once over eight lanes (`lanes.rs`), its tail is the same code over lanes padded
//! with zeros, and its order of operations is fixed: results are equal in every bit on all instruction sets
//! and for every split of a row's elements over calls (but for [`rms_norm`], which needs the row whole).
//!
//! Not here: products with matrices, attention.
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
pub(crate) mod lanes;
mod rope;
#[cfg(test)]
pub(crate) mod tests;

use crate::Isa;
use lanes::{LANES, Lanes, dispatch};
pub use rope::{RopeStyle, RopeTable};

/// Accumulators of eight lanes in a sum over a row: element i goes to lane i mod 32.
const ACCUMULATORS: usize = 4;

/// `out = x / sqrt(mean(x²) + eps) · weight`; all of one length.
///
/// # Panics
/// If the lengths differ.
pub fn rms_norm(isa: Isa, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert!(
        x.len() == weight.len() && x.len() == out.len(),
        "rows of one length"
    );
    dispatch!(isa, rms_norm_lanes, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32])
}

#[inline(always)]
fn rms_norm_lanes<L: Lanes>(l: L, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let mut sums = [l.splat(0.0); ACCUMULATORS];
    let (body, tail) = x.as_chunks::<LANES>();
    let (blocks, rest) = body.as_chunks::<ACCUMULATORS>();
    for block in blocks {
        for (sum, x) in sums.iter_mut().zip(block) {
            let x = l.load(x);
            *sum = l.mul_add(x, x, *sum);
        }
    }
    for (sum, x) in sums.iter_mut().zip(rest.iter().copied().chain([padded(tail)])) {
        let x = l.load(&x);
        *sum = l.mul_add(x, x, *sum);
    }
    let sum = l.sum(l.add(l.add(sums[0], sums[1]), l.add(sums[2], sums[3])));
    let scale = l.splat(1.0 / (sum / x.len() as f32 + eps).sqrt());
    let (out_body, out_tail) = out.as_chunks_mut::<LANES>();
    let (weight_body, weight_tail) = weight.as_chunks::<LANES>();
    for ((out, x), weight) in out_body.iter_mut().zip(body).zip(weight_body) {
        l.store(l.mul(l.mul(l.load(x), scale), l.load(weight)), out);
    }
    let mut last = [0.0; LANES];
    l.store(
        l.mul(l.mul(l.load(&padded(tail)), scale), l.load(&padded(weight_tail))),
        &mut last,
    );
    out_tail.copy_from_slice(&last[..tail.len()]);
}

/// `gate = silu(gate) · up`, where silu(x) = x / (1 + exp(−x)).
///
/// # Panics
/// If the lengths differ.
pub fn swiglu_in_place(isa: Isa, gate: &mut [f32], up: &[f32]) {
    zip_in_place(SwiGlu, isa, gate, up);
}

/// `x += y`.
///
/// # Panics
/// If the lengths differ.
pub fn add_in_place(isa: Isa, x: &mut [f32], y: &[f32]) {
    zip_in_place(Add, isa, x, y);
}

/// Rounds to f16 (nearest even), as bits.
///
/// # Panics
/// If the lengths differ.
pub fn to_f16(isa: Isa, x: &[f32], out: &mut [u16]) {
    assert_eq!(x.len(), out.len(), "rows of one length");
    dispatch!(isa, to_f16_lanes, x: &[f32], out: &mut [u16])
}

#[inline(always)]
pub(crate) fn to_f16_lanes<L: Lanes>(l: L, x: &[f32], out: &mut [u16]) {
    let ((body, tail), (out_body, out_tail)) = (x.as_chunks::<LANES>(), out.as_chunks_mut::<LANES>());
    for (out, x) in out_body.iter_mut().zip(body) {
        l.store_f16(l.load(x), out);
    }
    let mut last = [0; LANES];
    l.store_f16(l.load(&padded(tail)), &mut last);
    out_tail.copy_from_slice(&last[..tail.len()]);
}

/// Widens f16 bits to f32, exactly.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
pub(crate) fn from_f16_lanes<L: Lanes>(l: L, x: &[u16], out: &mut [f32]) {
    let ((body, tail), (out_body, out_tail)) = (x.as_chunks::<LANES>(), out.as_chunks_mut::<LANES>());
    // By index: this ends up in the middle of attention, where an iterator's `next` may stay a call.
    for i in 0..body.len() {
        l.store(l.load_f16(&body[i]), &mut out_body[i]);
    }
    let (mut half, mut last) = ([0; LANES], [0.0; LANES]);
    half[..tail.len()].copy_from_slice(tail);
    l.store(l.load_f16(&half), &mut last);
    out_tail.copy_from_slice(&last[..tail.len()]);
}

/// Up to seven elements and zeros.
#[inline(always)]
fn padded(tail: &[f32]) -> [f32; LANES] {
    let mut last = [0.0; LANES];
    last[..tail.len()].copy_from_slice(tail);
    last
}

/// A function of one element and a constant, or of two elements.
trait Op {
    fn apply<L: Lanes>(l: L, x: L::V, y: L::V) -> L::V;
}

struct Add;
impl Op for Add {
    #[inline(always)]
    fn apply<L: Lanes>(l: L, x: L::V, y: L::V) -> L::V {
        l.add(x, y)
    }
}

struct SwiGlu;
impl Op for SwiGlu {
    #[inline(always)]
    fn apply<L: Lanes>(l: L, gate: L::V, up: L::V) -> L::V {
        let e = exp(l, l.sub(l.splat(0.0), gate));
        l.mul(l.div(gate, l.add(l.splat(1.0), e)), up)
    }
}

fn zip_in_place<O: Op>(op: O, isa: Isa, x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "rows of one length");
    dispatch!(isa, zip_lanes[O: Op], op: O, x: &mut [f32], y: &[f32])
}

#[inline(always)]
fn zip_lanes<L: Lanes, O: Op>(l: L, _: O, x: &mut [f32], y: &[f32]) {
    let ((body, tail), (y_body, y_tail)) = (x.as_chunks_mut::<LANES>(), y.as_chunks::<LANES>());
    for (x, y) in body.iter_mut().zip(y_body) {
        l.store(O::apply(l, l.load(x), l.load(y)), x);
    }
    let mut last = padded(tail);
    l.store(O::apply(l, l.load(&last), l.load(&padded(y_tail))), &mut last);
    tail.copy_from_slice(&last[..tail.len()]);
}

/// eˣ: 2ⁿ · eʳ with n = x / ln 2 rounded and |r| ≤ ln 2 / 2 (Cody and Waite), eʳ = 1 + r + r²·P(r) with
/// the P of degree 4 that makes the greatest relative error least (3.1e-9, by Remez' exchange). Off by at most one
/// in the last place; underflows gradually to 0, overflows to infinity.
#[inline(always)]
pub(crate) fn exp<L: Lanes>(l: L, x: L::V) -> L::V {
    const MAGIC: f32 = 12_582_912.0; // 1.5 · 2²³: adding it rounds to a whole number
    const LN_2_HIGH: f32 = std::f32::consts::LN_2;
    const LN_2_LOW: f32 = -1.904_654_2e-9; // ln 2 − LN_2_HIGH
    const P: [f32; 5] = [
        0.001_381_454,
        0.008_368_745,
        0.041_668_39,
        0.166_665_21,
        0.499_999_94,
    ];
    // Beyond these bounds the result is 0 or infinite anyway. The order of arguments keeps a NaN.
    let x = l.min(l.splat(89.0), l.max(l.splat(-104.0), x));
    let t = l.mul_add(x, l.splat(std::f32::consts::LOG2_E), l.splat(MAGIC));
    let n = l.sub(t, l.splat(MAGIC));
    let r = l.mul_add(n, l.splat(-LN_2_LOW), l.mul_add(n, l.splat(-LN_2_HIGH), x));
    let mut p = l.splat(P[0]);
    for &coefficient in &P[1..] {
        p = l.mul_add(p, r, l.splat(coefficient));
    }
    let e = l.add(l.mul_add(l.mul(r, r), p, r), l.splat(1.0));
    let (first, second) = l.exp2_parts(t);
    l.mul(l.mul(e, first), second)
}
