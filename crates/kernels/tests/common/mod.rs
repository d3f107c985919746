//! Weights and activations for the tests.
#![allow(dead_code)]
use foretoken_kernels::{Compute, Format, Matrix, Product, Scratch, matmul};
use half::{bf16, f16};

/// SplitMix64: the same numbers on every machine.
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in −1…1.
    pub fn signed(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub fn activations(&mut self, len: usize) -> Vec<f32> {
        // A few large ones among many small, as in transformers.
        (0..len)
            .map(|_| self.signed() * if self.bits().is_multiple_of(50) { 12.0 } else { 1.0 })
            .collect()
    }
}

/// What the bytes of a matrix are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Weights {
    /// Random codes, ordinary scales.
    Ordinary,
    /// Every code and integer scale has all bits set, the float scales are as large as f16 allows.
    AllOnes,
    /// Every code and integer scale has just its highest bit set (Q8_0: −128), float scales likewise.
    HighBits,
    /// Random bytes, scales too: NaN, infinities, anything.
    Anything,
}

/// Where f16 scales stand in a block of each format.
fn scales_at(format: Format) -> &'static [usize] {
    match format {
        Format::F32 | Format::F16 | Format::BF16 => &[],
        Format::Q4_0 | Format::Q5_0 | Format::Q8_0 => &[0],
        Format::Q4_1 | Format::Q5_1 | Format::Q4_K | Format::Q5_K => &[0, 2],
        Format::Q2_K => &[80, 82],
        Format::Q3_K => &[108],
        Format::Q6_K => &[208],
    }
}

/// The bytes of a matrix as a file holds them.
pub fn weights(format: Format, kind: Weights, rows: usize, cols: usize, random: &mut Random) -> Vec<u8> {
    let blocks = rows * cols / format.block_len();
    let mut bytes: Vec<u8> = (0..blocks * format.block_bytes())
        .map(|_| random.bits() as u8)
        .collect();
    if kind == Weights::Anything {
        return bytes;
    }
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        match format {
            Format::F32 => block.copy_from_slice(&random.signed().to_le_bytes()),
            Format::F16 => block.copy_from_slice(&f16::from_f32(random.signed()).to_le_bytes()),
            Format::BF16 => block.copy_from_slice(&bf16::from_f32(random.signed()).to_le_bytes()),
            _ => {
                match kind {
                    Weights::AllOnes => block.fill(0xff),
                    Weights::HighBits => block.fill(if format == Format::Q8_0 { 0x80 } else { 0x88 }),
                    _ => {}
                }
                for &at in scales_at(format) {
                    let scale = if kind == Weights::Ordinary {
                        random.signed() * 0.02
                    } else {
                        f16::MAX.to_f32()
                    };
                    block[at..at + 2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
                }
            }
        }
    }
    bytes
}

pub fn multiply(compute: &Compute, matrix: &Matrix, x: &[f32], rows: usize) -> Vec<f32> {
    // Not zero, so that an output nobody writes is noticed.
    let mut out = vec![7e33; rows * matrix.rows()];
    matmul(
        compute,
        &mut Scratch::default(),
        x,
        rows,
        &mut [Product {
            matrix,
            out: &mut out,
        }],
    );
    out
}

/// Equal to the bit, or both NaN.
pub fn same(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len()
        && a.iter()
            .zip(b)
            .all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan())
}
