//! Products of one tile with one sweep, per instruction set.
//!
//! What they compute is defined by `scalar`, and every other kernel equals it bit by bit. For each output:
//!
//! - *Quantised weights*: blocks in the order of k; per block an exact integer sum over the weights,
//!   `isum = Σ_g scale[g] · Σ_k (code[k] − offset) · a[k]`, then
//!   `acc = fma(d_w · d_a, isum as f32, acc)`; after that, where the format has them, per-block mins
//!   `acc = fma(m, s_a, acc)`, or group mins `acc = fma(−(dmin · d_a), (Σ_g min[g] · Σ_k a[k]) as f32, acc)`.
//! - *Float weights*: for each 16 inputs in the order of k, `part = fma(w, x, part)` from 0, then `acc += part`.
//!
//! Nothing in this depends on the other rows, on how many there are, or on threads.
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
mod scalar;

use crate::activation::Scheme;
use crate::matrix::Tile;
use crate::packed::{LANES, TileShape};
use crate::{Format, Isa};

/// Inputs whose products with float weights are summed before they are added to the rest.
const FLOAT_RUN: usize = 16;

/// The outputs of one tile for the rows of a sweep.
pub(crate) type TileOut = [[f32; LANES]];

/// Multiplies a tile with a sweep. `fetch` says that the tiles come from memory, and that those that follow are to be
/// fetched meanwhile.
///
/// # Safety
/// The machine has the kernel's instructions; the tile is one of its format; `x` and `out` are a sweep of its number
/// of rows, `x` in the format's scheme with the tile's columns.
type TileKernel = unsafe fn(Tile<'_>, &[u32], fetch: bool, &mut TileOut);

/// The kernel for a format and a number of rows.
#[derive(Clone, Copy)]
pub(crate) struct Kernel {
    format: Format,
    rows: usize,
    /// One that this machine has the instructions for; the reference where there is none.
    native: Option<TileKernel>,
}

impl Kernel {
    /// The kernel of `isa` for sweeps of `rows`, one to four.
    pub fn new(isa: Isa, format: Format, rows: usize) -> Self {
        let native = match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(proof) => Some(avx2::kernel(proof, format, rows)),
            _ => None,
        };
        Self { format, rows, native }
    }

    /// Multiplies a tile of the format with a sweep of its scheme.
    pub fn run(self, tile: Tile<'_>, x: &[u32], fetch: bool, out: &mut TileOut) {
        let shape = TileShape::new(self.format, tile.cols);
        assert_eq!((tile.meta.len(), tile.codes.len()), (shape.meta, shape.codes));
        assert_eq!(x.len(), self.rows * Scheme::of(self.format).row_words(tile.cols));
        assert_eq!(out.len(), self.rows);
        match self.native {
            // SAFETY: `new` had the proof of the instruction set, and the sizes are as they must be.
            Some(kernel) => unsafe { kernel(tile, x, fetch, out) },
            None => scalar::product(self.format, tile, x, out),
        }
    }
}
