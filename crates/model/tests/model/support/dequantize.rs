//! The weights that blocks of each tensor type stand for, in f64, after the definition of the formats and
//! not after the kernels.
use foretoken_gguf::TensorType;
use half::{bf16, f16};

/// Inputs that share a scale when a row is multiplied with weights of this type; `None`: left as they are.
pub fn activation_block(ty: TensorType) -> Option<usize> {
    match ty.block_len() {
        1 => None,
        len => Some(len as usize),
    }
}

/// One row of a matrix.
pub fn row(ty: TensorType, bytes: &[u8]) -> Vec<f64> {
    bytes
        .chunks_exact(ty.block_bytes() as usize)
        .flat_map(|bytes| block(ty, bytes))
        .collect()
}

fn half_at(bytes: &[u8], at: usize) -> f64 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f64()
}

fn block(ty: TensorType, b: &[u8]) -> Vec<f64> {
    use TensorType::*;
    let d = |at| half_at(b, at);
    // Codes of four bits: the first half of a block in the low halves of the bytes, the second in the high.
    let nibble = |at: usize, i: usize| {
        f64::from(if i < 16 {
            b[at + i] & 15
        } else {
            b[at + i - 16] >> 4
        })
    };
    let fifth = |at: usize, i: usize| f64::from((b[at + i / 8] >> (i % 8)) & 1) * 16.0;
    match ty {
        F32 => vec![f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]]))],
        F16 => vec![d(0)],
        BF16 => vec![bf16::from_le_bytes([b[0], b[1]]).to_f64()],
        Q4_0 => (0..32).map(|i| d(0) * (nibble(2, i) - 8.0)).collect(),
        Q4_1 => (0..32).map(|i| d(0) * nibble(4, i) + d(2)).collect(),
        Q5_0 => (0..32)
            .map(|i| d(0) * (nibble(6, i) + fifth(2, i) - 16.0))
            .collect(),
        Q5_1 => (0..32)
            .map(|i| d(0) * (nibble(8, i) + fifth(4, i)) + d(2))
            .collect(),
        Q8_0 => (0..32).map(|i| d(0) * f64::from(b[2 + i] as i8)).collect(),
        Q2_K => (0..256)
            .map(|i| {
                let scale = b[i / 16];
                let code = (b[16 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3;
                d(80) * f64::from(scale & 15) * f64::from(code) - d(82) * f64::from(scale >> 4)
            })
            .collect(),
        Q3_K => (0..256)
            .map(|i| {
                let low = (b[32 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3;
                let high = (b[i % 32] >> (i / 32)) & 1;
                let group = i / 16;
                let scale_low = if group < 8 {
                    b[96 + group] & 15
                } else {
                    b[96 + group - 8] >> 4
                };
                let scale_high = (b[104 + group % 4] >> (group / 4 * 2)) & 3;
                let scale = f64::from(scale_low | (scale_high << 4)) - 32.0;
                d(108) * scale * (f64::from(low | (high << 2)) - 4.0)
            })
            .collect(),
        Q4_K | Q5_K => (0..256)
            .map(|i| {
                let (scale, min) = scale_and_min(&b[4..16], i / 32);
                let codes = if ty == Q4_K { 16 } else { 48 };
                let byte = b[codes + i / 64 * 32 + i % 32];
                let low = if i % 64 < 32 { byte & 15 } else { byte >> 4 };
                let high = if ty == Q4_K {
                    0
                } else {
                    (b[16 + i % 32] >> (i / 32)) & 1
                };
                d(0) * scale * f64::from(low | (high << 4)) - d(2) * min
            })
            .collect(),
        Q6_K => (0..256)
            .map(|i| {
                let (half, within) = (i / 128, i % 128);
                let byte = b[half * 64 + within % 64];
                let low = if within < 64 { byte & 15 } else { byte >> 4 };
                let high = (b[128 + half * 32 + within % 32] >> (within / 32 * 2)) & 3;
                let scale = f64::from(b[192 + i / 16] as i8);
                d(208) * scale * (f64::from(low | (high << 4)) - 32.0)
            })
            .collect(),
        other => panic!("{other}"),
    }
}

/// Scales and minima of six bits each, eight pairs in twelve bytes.
fn scale_and_min(b: &[u8], group: usize) -> (f64, f64) {
    let (scale, min) = if group < 4 {
        (b[group] & 63, b[group + 4] & 63)
    } else {
        (
            (b[group + 4] & 15) | (b[group - 4] >> 6 << 4),
            (b[group + 4] >> 4) | (b[group] >> 6 << 4),
        )
    };
    (f64::from(scale), f64::from(min))
}
