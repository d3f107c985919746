//! Rotary position embeddings (Su et al. 2021, RoFormer).
use super::lanes::{LANES, Lanes, dispatch};
use crate::Isa;
use std::collections::TryReserveError;

/// Which elements of a head form a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// (0, 1), (2, 3), …: Llama files.
    Interleaved,
    /// (0, n/2), (1, n/2 + 1), …: Qwen files ("neox").
    Halves,
}

/// Sines and cosines by position, computed in f64 and rounded once: 4 · `dims` bytes a position.
#[derive(Debug)]
pub struct RopeTable {
    dims: usize,
    /// `[position]`: dims/2 cosines, then dims/2 sines.
    table: Vec<f32>,
}

impl RopeTable {
    /// For positions below `positions` and heads whose first `dims` elements are rotated: pair i turns by
    /// `position / scale · freq_base^(−2i/dims) / factors[i]`. `factors`, of length dims/2, divide the
    /// frequencies (Llama 3); `scale` divides the position (linear scaling).
    ///
    /// The table takes `4 · dims · positions` bytes.
    ///
    /// # Errors
    /// If there is no such memory.
    ///
    /// # Panics
    /// If `dims` is odd or `factors` of another length.
    pub fn new(
        dims: usize,
        freq_base: f64,
        factors: Option<&[f32]>,
        scale: f64,
        positions: usize,
    ) -> Result<Self, TryReserveError> {
        assert!(dims.is_multiple_of(2), "dimensions are rotated in pairs");
        let half = dims / 2;
        assert!(
            factors.is_none_or(|f| f.len() == half),
            "one frequency factor a pair"
        );
        let frequencies: Vec<f64> = (0..half)
            .map(|i| {
                let factor = factors.map_or(1.0, |f| f64::from(f[i]));
                freq_base.powf(-2.0 * i as f64 / dims as f64) / factor / scale
            })
            .collect();
        let mut table = Vec::new();
        table.try_reserve_exact(positions.saturating_mul(dims))?;
        for position in 0..positions {
            let angles = frequencies.iter().map(|f| position as f64 * f);
            table.extend(angles.clone().map(|a| a.cos() as f32));
            table.extend(angles.map(|a| a.sin() as f32));
        }
        Ok(Self { dims, table })
    }

    /// Rotates `x`, `[heads][head_dim]`, in place.
    ///
    /// # Panics
    /// If the position is not in the table, or a head is shorter than the rotated part.
    pub fn apply(&self, isa: Isa, style: RopeStyle, position: usize, x: &mut [f32], head_dim: usize) {
        if self.dims == 0 || x.is_empty() {
            return;
        }
        assert!(
            self.dims <= head_dim && x.len().is_multiple_of(head_dim),
            "whole heads"
        );
        let (cos, sin) = self.table[position * self.dims..][..self.dims].split_at(self.dims / 2);
        dispatch!(isa, rotate, style: RopeStyle, cos: &[f32], sin: &[f32], x: &mut [f32], head_dim: usize)
    }
}

#[inline(always)]
fn rotate<L: Lanes>(l: L, style: RopeStyle, cos: &[f32], sin: &[f32], x: &mut [f32], head_dim: usize) {
    let half = cos.len();
    for head in x.chunks_exact_mut(head_dim) {
        match style {
            RopeStyle::Interleaved => rotate_interleaved(l, cos, sin, &mut head[..2 * half]),
            RopeStyle::Halves => {
                let (a, b) = head[..2 * half].split_at_mut(half);
                rotate_halves(l, cos, sin, a, b);
            }
        }
    }
}

/// a, b = a·cos − b·sin, b·cos + a·sin; the second product is rounded, the first fused.
#[inline(always)]
fn rotate_halves<L: Lanes>(l: L, cos: &[f32], sin: &[f32], a: &mut [f32], b: &mut [f32]) {
    let mut at = 0;
    while at < a.len() {
        let n = LANES.min(a.len() - at);
        let [c, s, x, y] = [&cos[at..], &sin[at..], &a[at..], &b[at..]].map(|from| window(l, from, n));
        let mut both = [[0.0; LANES]; 2];
        l.store(l.mul_add(x, c, l.sub(l.splat(-0.0), l.mul(y, s))), &mut both[0]);
        l.store(l.mul_add(y, c, l.mul(x, s)), &mut both[1]);
        a[at..at + n].copy_from_slice(&both[0][..n]);
        b[at..at + n].copy_from_slice(&both[1][..n]);
        at += n;
    }
}

/// The same arithmetic, pair by pair.
#[inline(always)]
fn rotate_interleaved<L: Lanes>(l: L, cos: &[f32], sin: &[f32], x: &mut [f32]) {
    for ((x, cos), sin) in x
        .chunks_mut(LANES)
        .zip(cos.chunks(LANES / 2))
        .zip(sin.chunks(LANES / 2))
    {
        let [mut c, mut s] = [[0.0; LANES / 2]; 2];
        c[..cos.len()].copy_from_slice(cos);
        s[..sin.len()].copy_from_slice(sin);
        let n = x.len();
        let v = window(l, x, n);
        let mut both = [0.0; LANES];
        let crossed = l.mul(l.swap_pairs(v), l.load_doubled(&s));
        l.store(l.mul_sub_add(v, l.load_doubled(&c), crossed), &mut both);
        x.copy_from_slice(&both[..n]);
    }
}

/// The first `n` elements, padded with zeros.
#[inline(always)]
fn window<L: Lanes>(l: L, from: &[f32], n: usize) -> L::V {
    if let Some(whole) = from.first_chunk::<LANES>().filter(|_| n == LANES) {
        return l.load(whole);
    }
    let mut last = [0.0; LANES];
    last[..n].copy_from_slice(&from[..n]);
    l.load(&last)
}
