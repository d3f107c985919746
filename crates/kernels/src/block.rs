//! Blocks of the quantised GGUF types, decoded to integers.
//!
//! The bit layouts are those of ggml (`ggml-common.h`, and the `dequantize_row_*` functions of
//! `ggml-quants.c`). Here and where weights are quantised (`quantize`) alone they are known; whatever follows works on a decoded
//! [`Block`].
use crate::format::{Format, Mins, Scales, Spec};
use half::{bf16, f16};

/// Most weights in a block.
pub(crate) const MAX_BLOCK: usize = 256;

/// One block of one row, as [`Format`] says it, in integers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    /// Codes as stored (two's complement where the format is signed); what is beyond the block is unused.
    pub codes: [u8; MAX_BLOCK],
    /// A scale a group.
    pub scales: [i8; 16],
    /// A min a group.
    pub mins: [u8; 16],
    /// `d`, f16 bits.
    pub d: u16,
    /// `dmin` or `m`, f16 bits.
    pub m: u16,
}

impl Block {
    /// A block of weights that are all zero.
    pub const ZERO: Self = Self {
        codes: [0; MAX_BLOCK],
        scales: [0; 16],
        mins: [0; 16],
        d: 0,
        m: 0,
    };

    /// Decodes one block of `format`; `bytes` are [`Format::block_bytes`] many.
    pub fn decode(&mut self, format: Format, bytes: &[u8]) {
        assert_eq!(bytes.len(), format.block_bytes());
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        match format {
            Format::F32 | Format::F16 | Format::BF16 => unreachable!("{format:?} has no blocks"),
            Format::Q4_0 => {
                self.d = half(0);
                nibble_halves(&bytes[2..18], &mut self.codes);
            }
            Format::Q4_1 => {
                (self.d, self.m) = (half(0), half(2));
                nibble_halves(&bytes[4..20], &mut self.codes);
            }
            Format::Q5_0 => {
                self.d = half(0);
                nibble_halves(&bytes[6..22], &mut self.codes);
                fifth_bits(&bytes[2..6], &mut self.codes);
            }
            Format::Q5_1 => {
                (self.d, self.m) = (half(0), half(2));
                nibble_halves(&bytes[8..24], &mut self.codes);
                fifth_bits(&bytes[4..8], &mut self.codes);
            }
            Format::Q8_0 => {
                self.d = half(0);
                self.codes[..32].copy_from_slice(&bytes[2..34]);
            }
            Format::Q2_K => {
                (self.d, self.m) = (half(80), half(82));
                for (g, &byte) in bytes[..16].iter().enumerate() {
                    self.scales[g] = (byte & 15) as i8;
                    self.mins[g] = byte >> 4;
                }
                crumbs(&bytes[16..80], &mut self.codes);
            }
            Format::Q3_K => {
                self.d = half(108);
                let (mask, scales) = (&bytes[..32], &bytes[96..108]);
                for g in 0..16 {
                    let low = (scales[g % 8] >> (4 * (g / 8))) & 15;
                    let high = (scales[8 + g % 4] >> (2 * (g / 4))) & 3;
                    self.scales[g] = (low | high << 4) as i8 - 32;
                }
                crumbs(&bytes[32..96], &mut self.codes);
                for (j, chunk) in self.codes.chunks_exact_mut(32).enumerate() {
                    chunk
                        .iter_mut()
                        .zip(mask)
                        .for_each(|(code, &m)| *code |= ((m >> j) & 1) << 2);
                }
            }
            Format::Q4_K => {
                (self.d, self.m) = (half(0), half(2));
                self.six_bit_scales(&bytes[4..16]);
                nibble_chunks(&bytes[16..144], &mut self.codes);
            }
            Format::Q5_K => {
                (self.d, self.m) = (half(0), half(2));
                self.six_bit_scales(&bytes[4..16]);
                nibble_chunks(&bytes[48..176], &mut self.codes);
                for (j, chunk) in self.codes.chunks_exact_mut(32).enumerate() {
                    chunk
                        .iter_mut()
                        .zip(&bytes[16..48])
                        .for_each(|(code, &h)| *code |= ((h >> j) & 1) << 4);
                }
            }
            Format::Q6_K => {
                self.d = half(208);
                let (low, high) = (&bytes[..128], &bytes[128..192]);
                for (scale, &byte) in self.scales.iter_mut().zip(&bytes[192..208]) {
                    *scale = byte as i8;
                }
                for (j, chunk) in self.codes.chunks_exact_mut(32).enumerate() {
                    let low = &low[64 * (j / 4) + 32 * (j % 2)..][..32];
                    let high = &high[32 * (j / 4)..][..32];
                    for ((code, &l), &h) in chunk.iter_mut().zip(low).zip(high) {
                        *code = (l >> (4 * (j / 2 % 2))) & 15 | ((h >> (2 * (j % 4))) & 3) << 4;
                    }
                }
            }
        }
    }

    /// The twelve bytes that hold eight 6-bit scales and eight 6-bit mins (Q4_K, Q5_K).
    fn six_bit_scales(&mut self, bytes: &[u8]) {
        for g in 0..4 {
            let (a, b, c) = (bytes[g], bytes[g + 4], bytes[g + 8]);
            self.scales[g] = (a & 63) as i8;
            self.mins[g] = b & 63;
            self.scales[g + 4] = (c & 15 | a >> 6 << 4) as i8;
            self.mins[g + 4] = c >> 4 | b >> 6 << 4;
        }
    }

    /// The weights as f32, by the same operations as ggml's `dequantize_row_*`.
    pub fn dequantize(&self, spec: &Spec, out: &mut [f32]) {
        let (d, m) = (f16::from_bits(self.d).to_f32(), f16::from_bits(self.m).to_f32());
        let groups = out
            .chunks_exact_mut(spec.group)
            .zip(self.codes.chunks_exact(spec.group))
            .enumerate();
        for (g, (out, codes)) in groups {
            let scale = if spec.scales == Scales::None {
                d
            } else {
                d * f32::from(self.scales[g])
            };
            let min = match spec.mins {
                Mins::None => 0.0,
                Mins::PerBlock => -m,
                Mins::PerGroup => m * f32::from(self.mins[g]),
            };
            for (out, &code) in out.iter_mut().zip(codes) {
                let product = scale * spec.value(code) as f32;
                *out = if spec.mins == Mins::None {
                    product
                } else {
                    product - min
                };
            }
        }
    }
}

impl Format {
    /// Whether all weights of these blocks are finite, whatever their codes are.
    ///
    /// # Panics
    /// If `bytes` are not whole blocks.
    pub fn is_finite(self, bytes: &[u8]) -> bool {
        assert!(bytes.len().is_multiple_of(self.block_bytes()), "whole blocks");
        let half = |b: &[u8]| f16::from_le_bytes([b[0], b[1]]).is_finite();
        let all = |scales: &[usize]| {
            let mut blocks = bytes.chunks_exact(self.block_bytes());
            blocks.all(|block| scales.iter().all(|&at| half(&block[at..])))
        };
        match self {
            Self::F32 => (bytes.as_chunks().0.iter()).all(|&b| f32::from_le_bytes(b).is_finite()),
            Self::BF16 => (bytes.as_chunks().0.iter()).all(|&b| bf16::from_le_bytes(b).is_finite()),
            Self::F16 | Self::Q4_0 | Self::Q5_0 | Self::Q8_0 => all(&[0]),
            Self::Q4_1 | Self::Q5_1 | Self::Q4_K | Self::Q5_K => all(&[0, 2]),
            Self::Q2_K => all(&[80, 82]),
            Self::Q3_K => all(&[108]),
            Self::Q6_K => all(&[208]),
        }
    }
}

impl Spec {
    /// The integer that a code stands for, without scale.
    pub fn value(&self, code: u8) -> i32 {
        if self.signed {
            i32::from(code as i8)
        } else {
            i32::from(code) - i32::from(self.offset)
        }
    }
}

/// Sixteen bytes: low nibbles are the first half of a block of 32, high ones the second.
fn nibble_halves(bytes: &[u8], codes: &mut [u8; MAX_BLOCK]) {
    nibble_chunks_of(16, bytes, codes);
}

/// For each 32 bytes: low nibbles are 32 codes, high ones the 32 after.
fn nibble_chunks(bytes: &[u8], codes: &mut [u8; MAX_BLOCK]) {
    nibble_chunks_of(32, bytes, codes);
}

fn nibble_chunks_of(len: usize, bytes: &[u8], codes: &mut [u8; MAX_BLOCK]) {
    for (bytes, codes) in bytes.chunks_exact(len).zip(codes.chunks_exact_mut(2 * len)) {
        let (low, high) = codes.split_at_mut(len);
        for ((low, high), &byte) in low.iter_mut().zip(high).zip(bytes) {
            (*low, *high) = (byte & 15, byte >> 4);
        }
    }
}

/// Bit k of four bytes is the fifth bit of code k.
fn fifth_bits(bytes: &[u8], codes: &mut [u8; MAX_BLOCK]) {
    let bits = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    for (k, code) in codes[..32].iter_mut().enumerate() {
        *code |= ((bits >> k) as u8 & 1) << 4;
    }
}

/// For each 32 bytes: two bits at a time, 4 x 32 codes.
fn crumbs(bytes: &[u8], codes: &mut [u8; MAX_BLOCK]) {
    for (j, chunk) in codes.chunks_exact_mut(32).enumerate() {
        let bytes = &bytes[32 * (j / 4)..][..32];
        chunk
            .iter_mut()
            .zip(bytes)
            .for_each(|(code, &byte)| *code = (byte >> (2 * (j % 4))) & 3);
    }
}
