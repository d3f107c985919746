//! Products of packed matrices with a few rows.
//!
//! The rows are split into sweeps of at most four, and a tile of weights is unpacked once a sweep. A task
//! is a run of consecutive tiles, small enough for the cache: all sweeps go over it before the next run is
//! fetched. Threads have consecutive runs; which of them another one takes over is
//! left to chance and changes no result.
use crate::activation::{MAX_SWEEP, Scheme, Sweeps, prepare};
use crate::kernels::Kernel;
use crate::memory::Disjoint;
use crate::packed::LANES;
use crate::{Compute, Matrix};

/// Buffers that products reuse from pass to pass (quantised activations).
#[derive(Debug, Default)]
pub struct Scratch {
    /// One a scheme.
    activations: [Vec<u32>; Scheme::ALL.len()],
}

/// One matrix to multiply with and where the result goes.
#[derive(Debug)]
pub struct Product<'a> {
    /// The weights.
    pub matrix: &'a Matrix,
    /// `[rows of x][matrix.rows()]`.
    pub out: &'a mut [f32],
}

/// Bytes of weights that one task reads, about: large against a hand-over, small against a core's cache.
const TASK_BYTES: usize = 1 << 16;

/// Most products of one parallel region.
const REGION: usize = 8;

/// Multiplies `x`, `[rows][cols]`, with every product's matrix (all of the same `cols`) in one parallel
/// region (per eight of them): `out[r][i] = Σ_k w[i][k] · x[r][k]`, the operations and their order are
/// those that `kernels/mod.rs` defines.
///
/// A row of `x` that holds a value which is not finite gives outputs that are not.
///
/// # Panics
/// If the length of `x` or of an output does not fit its sizes.
pub fn matmul(
    compute: &Compute,
    scratch: &mut Scratch,
    x: &[f32],
    rows: usize,
    products: &mut [Product<'_>],
) {
    let Some(cols) = products.first().map(|p| p.matrix.cols()) else {
        return;
    };
    assert_eq!(x.len(), rows * cols, "activations of {rows} rows of {cols}");
    for product in &*products {
        assert_eq!(product.matrix.cols(), cols, "products of one input");
        assert_eq!(
            product.out.len(),
            rows * product.matrix.rows(),
            "outputs of {rows} rows"
        );
    }
    if rows == 0 {
        return;
    }
    let sweeps = Sweeps::new(rows);
    for scheme in Scheme::ALL {
        if products.iter().any(|p| Scheme::of(p.matrix.format()) == scheme) {
            let words = rows * scheme.row_words(cols);
            let buffer = &mut scratch.activations[scheme as usize];
            if buffer.len() < words {
                buffer.resize(words, 0);
            }
            prepare(compute, scheme, x, sweeps, cols, &mut buffer[..words]);
        }
    }

    for products in products.chunks_mut(REGION) {
        multiply(compute, &scratch.activations, sweeps, products);
    }
}

/// Multiplies the prepared activations with all of up to [`REGION`] products.
fn multiply(
    compute: &Compute,
    activations: &[Vec<u32>; Scheme::ALL.len()],
    sweeps: Sweeps,
    products: &mut [Product<'_>],
) {
    let runs = |matrix: &Matrix| matrix.tiles().div_ceil(tiles_per_task(matrix));
    let tasks = products.iter().map(|p| runs(p.matrix)).sum();
    let mut products = products
        .iter_mut()
        .map(|p| (p.matrix, Disjoint::new(&mut *p.out)));
    let products: [_; REGION] = std::array::from_fn(|_| products.next());
    compute.pool().run(tasks, |task| {
        let mut run = task;
        for (matrix, out) in products.iter().flatten() {
            if run < runs(matrix) {
                let x = &activations[Scheme::of(matrix.format()) as usize];
                // SAFETY: every run of every product is one task's, and no other task writes its tiles' columns.
                return unsafe { multiply_run(compute, matrix, run, sweeps, x, out) };
            }
            run -= runs(matrix);
        }
    });
}

fn tiles_per_task(matrix: &Matrix) -> usize {
    (TASK_BYTES / matrix.tile_stride().max(1)).max(1)
}

/// Multiplies one run of tiles with all sweeps.
///
/// # Safety
/// Nobody else may use the run's columns of `out` meanwhile.
unsafe fn multiply_run(
    compute: &Compute,
    matrix: &Matrix,
    run: usize,
    sweeps: Sweeps,
    x: &[u32],
    out: &Disjoint<'_, f32>,
) {
    let row_words = Scheme::of(matrix.format()).row_words(matrix.cols());
    let per_task = tiles_per_task(matrix);
    let tiles = run * per_task..matrix.tiles().min((run + 1) * per_task);
    let mut results = [[0.0; LANES]; MAX_SWEEP];
    for sweep in 0..sweeps.count() {
        let rows = sweeps.rows(sweep);
        let kernel = Kernel::new(compute.isa(), matrix.format(), rows.len());
        let x = &x[rows.start * row_words..rows.end * row_words];
        // What further sweeps read is in the cache.
        let fetch = sweep == 0;
        for tile in tiles.clone() {
            let results = &mut results[..rows.len()];
            kernel.run(matrix.tile(tile), x, fetch, results);
            let column = tile * LANES;
            let lanes = LANES.min(matrix.rows() - column);
            for (row, result) in rows.clone().zip(results) {
                let at = row * matrix.rows() + column;
                // SAFETY: columns of this run, by the caller's promise nobody else's.
                unsafe { out.part(at..at + lanes) }.copy_from_slice(&result[..lanes]);
            }
        }
    }
}
