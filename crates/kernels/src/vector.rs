//! Norms, rope, activation functions and conversions of single rows.
use crate::Isa;

/// `out = x / sqrt(mean(x²) + eps) · weight`.
pub fn rms_norm(_isa: Isa, _x: &[f32], _weight: &[f32], _eps: f32, _out: &mut [f32]) {
    todo!()
}
/// `out = silu(gate) · up`; may be given the same buffer for `gate` and `out` by [`swiglu_in_place`].
pub fn swiglu_in_place(_isa: Isa, _gate: &mut [f32], _up: &[f32]) {
    todo!()
}
/// `x += y`.
pub fn add_in_place(_isa: Isa, _x: &mut [f32], _y: &[f32]) {
    todo!()
}
/// Rounds to f16 (nearest even), as bits.
pub fn to_f16(_isa: Isa, _x: &[f32], _out: &mut [u16]) {
    todo!()
}

/// Which elements of a head form a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// (0, 1), (2, 3), …: Llama files.
    Interleaved,
    /// (0, n/2), (1, n/2 + 1), …: Qwen files ("neox").
    Halves,
}

/// Sines and cosines by position.
#[derive(Debug)]
pub struct RopeTable {}

impl RopeTable {
    /// For positions below `positions` and heads whose first `dims` elements are rotated. `factors`, of
    /// length dims/2, divide the frequencies (Llama 3); `scale` divides the position (linear scaling).
    pub fn new(_dims: usize, _freq_base: f64, _factors: Option<&[f32]>, _scale: f64, _positions: usize) -> Self {
        todo!()
    }
    /// Rotates `x`, `[heads][head_dim]`, in place.
    pub fn apply(&self, _isa: Isa, _style: RopeStyle, _position: usize, _x: &mut [f32], _head_dim: usize) {
        todo!()
    }
}
