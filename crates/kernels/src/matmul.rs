//! Products of packed matrices with a few rows.
use crate::{Compute, Matrix};

/// Buffers that products reuse from pass to pass (quantised activations).
#[derive(Debug, Default)]
pub struct Scratch {}

/// One matrix to multiply with and where the result goes.
#[derive(Debug)]
pub struct Product<'a> {
    /// The weights.
    pub matrix: &'a Matrix,
    /// `[rows of x][matrix.rows()]`.
    pub out: &'a mut [f32],
}

/// Multiplies `x`, `[rows][cols]`, with every product's matrix (all of the same `cols`) in one parallel
/// region: `out[r][i] = Σ_k w[i][k] · x[r][k]`.
pub fn matmul(
    _compute: &Compute,
    _scratch: &mut Scratch,
    _x: &[f32],
    _rows: usize,
    _products: &mut [Product<'_>],
) {
    todo!()
}
