//! AVX2, FMA and F16C: one lane of a vector is one row of a tile, so that no sum ever runs across lanes.
//!
//! Each kernel is a template over the number of rows in a sweep, instantiated for one to four: a step
//! of weights is unpacked once and multiplied with every row, the sums stay in registers.
mod float;
mod quantized;
mod signed;

pub(crate) mod activation;
pub(crate) mod ceiling;

use super::TileKernel;
use crate::activation::MAX_SWEEP;
use crate::{Avx2, Format};
use quantized::{Q2_K, Q3_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K};

/// A kernel for each number of rows.
macro_rules! for_each_sweep {
    ($function:ident, $format:ty) => {{
        const KERNELS: [TileKernel; MAX_SWEEP] = [
            $function::<$format, 1>,
            $function::<$format, 2>,
            $function::<$format, 3>,
            $function::<$format, 4>,
        ];
        &KERNELS
    }};
}

/// The kernel for a format and a number of rows, one to four.
pub(super) fn kernel(_: Avx2, format: Format, rows: usize) -> TileKernel {
    use {float::product as float, quantized::product as quantized, signed::product as signed};
    let kernels: &[TileKernel; MAX_SWEEP] = match format {
        Format::F32 => for_each_sweep!(float, float::F32),
        Format::F16 => for_each_sweep!(float, float::F16),
        Format::BF16 => for_each_sweep!(float, float::BF16),
        Format::Q4_0 => for_each_sweep!(quantized, Q4_0),
        Format::Q4_1 => for_each_sweep!(quantized, Q4_1),
        Format::Q5_0 => for_each_sweep!(quantized, Q5_0),
        Format::Q5_1 => for_each_sweep!(quantized, Q5_1),
        Format::Q8_0 => for_each_sweep!(signed, signed::Q8_0),
        Format::Q2_K => for_each_sweep!(quantized, Q2_K),
        Format::Q3_K => for_each_sweep!(quantized, Q3_K),
        Format::Q4_K => for_each_sweep!(quantized, Q4_K),
        Format::Q5_K => for_each_sweep!(quantized, Q5_K),
        Format::Q6_K => for_each_sweep!(quantized, Q6_K),
    };
    kernels[rows - 1]
}
