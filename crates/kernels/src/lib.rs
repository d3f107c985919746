//! Arithmetic of a transformer pass over a few rows: packed quantised matrices and their products,
//! attention over a paged cache, norms, rope, activations, and the thread pool beneath them.
//!
//! The rule that everything here obeys: each output element is computed by the same sequence of
//! floating-point operations whatever the number of rows, the other rows, or the threads.
//!
//! Not here: models, files. This is the only crate with `unsafe` arithmetic.

mod activation;
pub mod attention;
mod block;
pub mod ceilings;
mod compute;
mod format;
mod kernels;
mod matmul;
mod matrix;
mod memory;
mod packed;
mod pool;
mod quantize;
pub mod vector;

pub use compute::{Avx2, Compute, Isa};
pub use format::Format;
pub use matmul::{Product, Scratch, matmul};
pub use matrix::{Matrix, PackError};
pub use memory::Arena;
pub use pool::Pool;
pub use quantize::Quantizer;
