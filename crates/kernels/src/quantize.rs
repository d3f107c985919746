//! Weights into blocks as they stand in a GGUF file.
//!
//! Not here: packing ([`Matrix`](crate::Matrix)), reading blocks (`block`, which tells their layout).
use crate::memory::Disjoint;
use crate::{Compute, Format};
use half::f16;

/// A format that weights can be brought into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, non_camel_case_types)]
pub enum Quantizer {
    F16,
    Q8_0,
    Q4_K,
}

/// Weights that one task quantises, about.
const TASK: usize = 1 << 14;
/// Weights of a Q4_K block with a scale and a min of their own.
const GROUP: usize = 32;
/// The largest code of Q4_K.
const MAX_CODE: f32 = 15.0;
/// The largest scale and min of a Q4_K group.
const MAX_SCALE: f32 = 63.0;

impl Quantizer {
    /// All of them, the most exact first.
    pub const ALL: [Self; 3] = [Self::F16, Self::Q8_0, Self::Q4_K];

    /// The largest weight that every format can hold.
    pub const MAX_WEIGHT: f32 = 65504.0;

    /// The format that it makes.
    pub const fn format(self) -> Format {
        match self {
            Self::F16 => Format::F16,
            Self::Q8_0 => Format::Q8_0,
            Self::Q4_K => Format::Q4_K,
        }
    }

    /// This one if rows of `cols` weights are whole blocks of it, otherwise the next more exact one whose blocks fit.
    pub const fn for_cols(self, cols: usize) -> Self {
        match self {
            Self::Q4_K if !cols.is_multiple_of(256) => Self::Q8_0.for_cols(cols),
            Self::Q8_0 if !cols.is_multiple_of(32) => Self::F16,
            fitting => fitting,
        }
    }

    /// Bytes that `weights` many weights take; these are whole blocks.
    pub const fn bytes(self, weights: usize) -> usize {
        weights / self.format().block_len() * self.format().block_bytes()
    }

    /// Appends the blocks of `weights`, whole rows one after the other. Weights are to be finite and of no larger
    /// magnitude than [`MAX_WEIGHT`](Self::MAX_WEIGHT).
    ///
    /// # Panics
    /// If the weights are not whole blocks.
    pub fn quantize(self, compute: &Compute, weights: &[f32], out: &mut Vec<u8>) {
        let (len, bytes) = (self.format().block_len(), self.format().block_bytes());
        assert!(
            weights.len().is_multiple_of(len),
            "{} weights in blocks of {len}",
            weights.len()
        );
        let start = out.len();
        out.resize(start + self.bytes(weights.len()), 0);
        let target = Disjoint::new(&mut out[start..]);
        compute.pool().run(weights.len().div_ceil(TASK), |task| {
            let weights = &weights[task * TASK..weights.len().min((task + 1) * TASK)];
            let first = task * TASK / len * bytes;
            // SAFETY: whole blocks, of one task each.
            let out = unsafe { target.part(first..first + weights.len() / len * bytes) };
            for (block, out) in weights.chunks_exact(len).zip(out.chunks_exact_mut(bytes)) {
                match self {
                    Self::F16 => out.copy_from_slice(&f16::from_f32(block[0]).to_le_bytes()),
                    Self::Q8_0 => q8_0(block, out),
                    Self::Q4_K => q4_k(block, out),
                }
            }
        });
    }
}

/// `d`, then the codes.
fn q8_0(weights: &[f32], out: &mut [u8]) {
    let largest = weights.iter().fold(0.0f32, |largest, w| largest.max(w.abs()));
    let (d, inverse) = scale_in_f16(largest / 127.0);
    out[..2].copy_from_slice(&d.to_le_bytes());
    for (out, w) in out[2..].iter_mut().zip(weights) {
        *out = (w * inverse).round().clamp(-127.0, 127.0) as i8 as u8;
    }
}

/// A scale as it is stored, and what to multiply with to divide by that: 0 where it is too small for f16.
fn scale_in_f16(scale: f32) -> (f16, f32) {
    let stored = f16::from_f32(scale);
    let value = stored.to_f32();
    (stored, if value > 0.0 { 1.0 / value } else { 0.0 })
}

/// `d`, `dmin`, twelve bytes of scales and mins, nibbles.
///
/// A scale and a min of each group are sought with the least square error; these are rounded to the steps that `d` and
/// `dmin` leave, and then each pair tries its neighbours.
fn q4_k(weights: &[f32], out: &mut [u8]) {
    let groups = weights.as_chunks::<GROUP>().0;
    let mut lines = [Line::default(); 8];
    for (line, group) in lines.iter_mut().zip(groups) {
        *line = Line::fit(group);
    }
    let largest = |value: fn(&Line) -> f32| lines.iter().map(value).fold(0.0, f32::max);
    let (d, to_scale) = scale_in_f16(largest(|line| line.scale) / MAX_SCALE);
    let (dmin, to_min) = scale_in_f16(largest(|line| line.min) / MAX_SCALE);
    out[..2].copy_from_slice(&d.to_le_bytes());
    out[2..4].copy_from_slice(&dmin.to_le_bytes());

    let (head, nibbles) = out.split_at_mut(16);
    let packed = &mut head[4..];
    let nibbles = nibbles.as_chunks_mut::<GROUP>().0;
    for (at, (line, group)) in lines.iter().zip(groups).enumerate() {
        let rounded = |value: f32| value.round().clamp(0.0, MAX_SCALE);
        let (scale, min) = (rounded(line.scale * to_scale), rounded(line.min * to_min));
        let line = |scale: f32, min: f32| Line {
            scale: d.to_f32() * scale,
            min: dmin.to_f32() * min,
        };
        let mut best = (scale, min);
        let mut least = line(scale, min).error(group);
        for near in [-1.0, 0.0, 1.0].map(|step| rounded(scale + step)) {
            for min in [-1.0, 0.0, 1.0].map(|step| rounded(min + step)) {
                let error = line(near, min).error(group);
                if error < least {
                    (best, least) = ((near, min), error);
                }
            }
        }
        pack_six_bits(packed, at, best.0 as u8, best.1 as u8);
        let shift = 4 * (at % 2);
        let codes = line(best.0, best.1).codes(group);
        for (out, code) in nibbles[at / 2].iter_mut().zip(codes) {
            *out |= (code as u8) << shift;
        }
    }
}

/// Six bits each of a group's scale and min: the first four groups have them whole, the others' two high bits lie above
/// those.
fn pack_six_bits(packed: &mut [u8], group: usize, scale: u8, min: u8) {
    match group {
        0..4 => {
            packed[group] |= scale;
            packed[group + 4] |= min;
        }
        _ => {
            packed[group + 4] = scale & 15 | (min & 15) << 4;
            packed[group - 4] |= scale >> 4 << 6;
            packed[group] |= min >> 4 << 6;
        }
    }
}

/// What codes stand for: `scale · code − min`, neither of them negative.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    scale: f32,
    min: f32,
}

impl Line {
    /// The best of several. Each start spreads a little more or less than all codes over the weights' range; from there codes and line
    /// are fitted to each other in turn.
    fn fit(weights: &[f32; GROUP]) -> Self {
        let low = weights.iter().copied().fold(0.0, f32::min);
        let high = weights.iter().copied().fold(low, f32::max);
        let mut best = Self {
            scale: (high - low) / MAX_CODE,
            min: -low,
        };
        if best.scale == 0.0 {
            return best;
        }
        let mut least = best.error(weights);
        for step in 0..10 {
            let codes = MAX_CODE - 2.0 + 0.4 * step as f32;
            let mut line = Self {
                scale: (high - low) / codes,
                min: -low,
            };
            for _ in 0..2 {
                line = match Self::through(weights, &line.codes(weights)) {
                    Some(line) => line,
                    None => break,
                };
                let error = line.error(weights);
                if error < least {
                    (best, least) = (line, error);
                }
            }
        }
        best
    }

    /// The line with the least square error for given codes; `None` if they decide none.
    fn through(weights: &[f32; GROUP], codes: &[f32; GROUP]) -> Option<Self> {
        let n = GROUP as f32;
        let (mut q, mut qq, mut w, mut qw) = (0.0, 0.0, 0.0, 0.0);
        for (&weight, &code) in weights.iter().zip(codes) {
            q += code;
            qq += code * code;
            w += weight;
            qw += code * weight;
        }
        let spread = n * qq - q * q;
        let scale = (n * qw - q * w) / spread;
        let min = (scale * q - w) / n;
        let line = match min >= 0.0 {
            true => Self { scale, min },
            // Codes cannot be shifted upwards: through zero then.
            false => Self {
                scale: qw / qq,
                min: 0.0,
            },
        };
        (spread > 0.0 && line.scale > 0.0).then_some(line)
    }

    /// The nearest code of each weight.
    #[inline]
    fn codes(self, weights: &[f32; GROUP]) -> [f32; GROUP] {
        let inverse = if self.scale > 0.0 { 1.0 / self.scale } else { 0.0 };
        // Half up: what `round` does to negative numbers is of no interest here, and takes longer.
        weights.map(|weight| ((weight + self.min) * inverse + 0.5).floor().clamp(0.0, MAX_CODE))
    }

    /// The sum of squared errors with the nearest codes.
    #[inline]
    fn error(self, weights: &[f32; GROUP]) -> f32 {
        let codes = self.codes(weights);
        let square = |(weight, code): (&f32, f32)| {
            let error = self.scale * code - self.min - weight;
            error * error
        };
        weights.iter().zip(codes).map(square).sum()
    }
}
