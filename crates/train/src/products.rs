//! Products of row-major matrices, by `faer`: the safe face of the `gemm` family of crates.
//!
//! An output is cut into blocks of a constant size, each computed on one thread: threads change no bit, and one that others keep from running keeps
//! nobody waiting at a barrier.
//!
//! Measured on two cores of an AMD EPYC (AVX2) that others were using too, the best of six runs of [512 x 1536] x [1536 x 16384]: `faer` 59 GFLOPS on
//! one thread and 92 on two of its own, `gemm` 59 and 100, `matrixmultiply` 53 and 63. With three others at work, a whole step of
//! `examples/step.rs` came to 16 GFLOPS on two of its own threads, which wait for each other, and to 45 by blocks.

use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};
use rayon::prelude::*;

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
    let b = MatRef::from_row_major_slice(b, n, k);
    product(
        into,
        out,
        MatRef::from_row_major_slice(a, r, k),
        b.transpose(),
        factor,
    );
}

/// `out` [r, n] of `a` [r, k] · `b` [k, n].
pub(crate) fn ab(into: Into, out: &mut [f32], a: &[f32], b: &[f32], k: usize) {
    let (r, n) = (a.len() / k, b.len() / k);
    let b = MatRef::from_row_major_slice(b, k, n);
    product(into, out, MatRef::from_row_major_slice(a, r, k), b, 1.0);
}

/// `out` [r, n] of `factor` · `a` [k, r]ᵀ · `b` [k, n], where `k` is the number of rows of both.
pub(crate) fn atb(into: Into, out: &mut [f32], a: &[f32], b: &[f32], k: usize, factor: f32) {
    let (r, n) = (a.len() / k, b.len() / k);
    let a = MatRef::from_row_major_slice(a, k, r);
    product(
        into,
        out,
        a.transpose(),
        MatRef::from_row_major_slice(b, k, n),
        factor,
    );
}

fn product(into: Into, out: &mut [f32], a: MatRef<'_, f32>, b: MatRef<'_, f32>, factor: f32) {
    let out = MatMut::from_row_major_slice_mut(out, a.nrows(), b.ncols());
    let accum = match into {
        Into::Place => Accum::Replace,
        Into::Sum => Accum::Add,
    };
    let rows = out.par_row_chunks_mut(ROWS).zip(a.par_row_chunks(ROWS));
    rows.for_each(|(out, a)| {
        let columns = out.par_col_chunks_mut(COLUMNS).zip(b.par_col_chunks(COLUMNS));
        columns.for_each(|(out, b)| matmul(out, accum, a, b, factor, Par::Seq));
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
