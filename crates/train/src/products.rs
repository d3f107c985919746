//! Products of row-major matrices, by `ndarray`: the safe face of `matrixmultiply`.
//!
//! An output is cut into blocks of a constant size, each computed on one thread: threads change no bit, and one that others keep from running keeps
//! nobody waiting at a barrier.
//!
//! Measured on two cores of an AMD EPYC (AVX2) that others were using too, the best of six runs of [512 x 1536] x [1536 x 16384] on one thread:
//! `matrixmultiply` 53 GFLOPS, `gemm` and `faer` 59. These bring dozens of crates along.

use ndarray::linalg::general_mat_mul;
use ndarray::parallel::prelude::*;
use ndarray::{ArrayView2, ArrayViewMut2, Axis};

/// Rows and columns of a block.
const ROWS: usize = 256;
const COLUMNS: usize = 1024;

/// What becomes of what the output held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Into {
    /// It is written over.
    Place,
    /// The product is added to it.
    Sum,
}

/// `out` [r, n] of `factor` · `a` [r, k] · `b` [n, k]ᵀ, where `k` is the length of a row of both.
pub(crate) fn abt(into: Into, out: &mut [f32], a: &[f32], b: &[f32], k: usize, factor: f32) {
    let (r, n) = (a.len() / k, b.len() / k);
    product(into, out, view(a, r, k), view(b, n, k).reversed_axes(), factor);
}

/// `out` [r, n] of `a` [r, k] · `b` [k, n].
pub(crate) fn ab(into: Into, out: &mut [f32], a: &[f32], b: &[f32], k: usize) {
    let (r, n) = (a.len() / k, b.len() / k);
    product(into, out, view(a, r, k), view(b, k, n), 1.0);
}

/// `out` [r, n] of `factor` · `a` [k, r]ᵀ · `b` [k, n], where `k` is the number of rows of both.
pub(crate) fn atb(into: Into, out: &mut [f32], a: &[f32], b: &[f32], k: usize, factor: f32) {
    let (r, n) = (a.len() / k, b.len() / k);
    product(into, out, view(a, k, r).reversed_axes(), view(b, k, n), factor);
}

fn view(values: &[f32], rows: usize, columns: usize) -> ArrayView2<'_, f32> {
    ArrayView2::from_shape((rows, columns), values).expect("a matrix of this size")
}

fn product(into: Into, out: &mut [f32], a: ArrayView2<'_, f32>, b: ArrayView2<'_, f32>, factor: f32) {
    let size = (a.nrows(), b.ncols());
    let mut out = ArrayViewMut2::from_shape(size, out).expect("a matrix of this size");
    let before = match into {
        Into::Place => 0.0,
        Into::Sum => 1.0,
    };
    let rows = out
        .axis_chunks_iter_mut(Axis(0), ROWS)
        .into_par_iter()
        .zip(a.axis_chunks_iter(Axis(0), ROWS));
    rows.for_each(|(mut out, a)| {
        let columns = out
            .axis_chunks_iter_mut(Axis(1), COLUMNS)
            .into_par_iter()
            .zip(b.axis_chunks_iter(Axis(1), COLUMNS));
        columns.for_each(|(mut out, b)| general_mat_mul(factor, &a, &b, before, &mut out));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_change_no_bit() {
        let mut rng = fastrand::Rng::with_seed(3);
        for (r, k, n) in [
            (37, 129, 65),
            (512, 576, 1152),
            (64, 1500, 3001),
            (1152, 512, 576),
        ] {
            let mut random = |count| (0..count).map(|_| rng.f32() - 0.5).collect::<Vec<_>>();
            let (a, b) = (random(r * k), random(n * k));
            let product = |threads| {
                let pool = rayon::ThreadPoolBuilder::new()
                    .num_threads(threads)
                    .build()
                    .unwrap();
                let mut outs = [vec![0.0; r * n], vec![1.0; r * n], vec![0.0; r * n]];
                pool.install(|| {
                    abt(Into::Place, &mut outs[0], &a, &b, k, 0.5);
                    ab(Into::Sum, &mut outs[1], &a, &b, k);
                    atb(Into::Place, &mut outs[2], &a, &b, k, 1.0);
                });
                outs
            };
            let one = product(1);
            assert!(one == product(2) && one == product(3), "{r} x {k} x {n}");
            let expected: f32 = (0..k).map(|at| a[at] * b[k + at]).sum::<f32>() * 0.5;
            assert!((one[0][1] - expected).abs() < 1e-3);
        }
    }
}
