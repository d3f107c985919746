//! Weights brought into blocks and read back.
mod common;
use common::Random;
use foretoken_kernels::{Arena, Compute, Format, Matrix, Quantizer};
use half::f16;
use proptest::prelude::*;

/// What is left of `weights` after a trip through the format.
fn through(quantizer: Quantizer, weights: &[f32], cols: usize) -> Vec<f32> {
    let compute = Compute::new(2);
    let mut bytes = Vec::new();
    quantizer.quantize(&compute, weights, &mut bytes);
    assert_eq!(bytes.len(), quantizer.bytes(weights.len()));
    assert!(quantizer.format().is_finite(&bytes));
    let rows = weights.len() / cols;
    let format = quantizer.format();
    let matrix = Matrix::pack(&compute, &mut Arena::new(), format, rows, cols, &bytes).unwrap();
    let mut out = vec![f32::NAN; weights.len()];
    for (row, out) in out.chunks_exact_mut(cols).enumerate() {
        matrix.dequantize_row(row, out);
    }
    out
}

fn root_mean_square(values: impl Iterator<Item = f32>) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0);
    for value in values {
        sum += f64::from(value) * f64::from(value);
        count += 1.0;
    }
    f64::sqrt(sum / count)
}

fn error(got: &[f32], wanted: &[f32]) -> f64 {
    root_mean_square(got.iter().zip(wanted).map(|(got, wanted)| got - wanted))
}

/// Codes spread evenly between the least and the largest weight of each 32, with scale and min in f32: finer than a file could
/// store them, but not sought.
fn even_spread(weights: &[f32]) -> Vec<f32> {
    let group = |group: &[f32]| {
        let low = group.iter().copied().fold(0.0, f32::min);
        let high = group.iter().copied().fold(low, f32::max);
        let scale = (high - low) / 15.0;
        let nearest = move |w: &f32| ((w - low) / scale).round() * scale + low;
        group.iter().map(nearest).collect::<Vec<_>>()
    };
    weights.chunks_exact(32).flat_map(group).collect()
}

/// About normal: weights of a trained matrix.
fn normal(random: &mut Random, len: usize) -> Vec<f32> {
    (0..len)
        .map(|_| (0..6).map(|_| random.signed()).sum::<f32>() * 0.03)
        .collect()
}

#[test]
fn a_searched_scale_is_better_than_the_range() {
    let weights = normal(&mut Random(7), 256 * 64);
    let of = |quantizer| error(&through(quantizer, &weights, 256), &weights);
    let (f16, q8_0, q4_k) = (of(Quantizer::F16), of(Quantizer::Q8_0), of(Quantizer::Q4_K));
    let even = error(&even_spread(&weights), &weights);
    let size = root_mean_square(weights.iter().copied());
    assert!(f16 < 0.0003 * size, "{f16} of {size}");
    assert!(q8_0 < 0.006 * size, "{q8_0} of {size}");
    // Sixteen levels against 255, at scales that fit half as many weights: about twenty times.
    assert!(q4_k < 20.0 * q8_0, "{q4_k} and {q8_0}");
    assert!(q4_k < 0.95 * even, "{q4_k}, {even} without a search");
}

#[test]
fn weights_that_a_format_has_are_kept() {
    // Steps of 63/128 and a min of 63/32: f16 has both, divided by the largest scale.
    let ramp: Vec<f32> = (0..256)
        .map(|k| 63.0 * ((k % 16) as f32 / 128.0 - 0.03125))
        .collect();
    assert_eq!(through(Quantizer::Q4_K, &ramp, 256), ramp);
    let whole: Vec<f32> = (0..64)
        .map(|k| if k % 32 == 0 { 127.0 } else { k as f32 })
        .collect();
    assert_eq!(through(Quantizer::Q8_0, &whole, 32), whole);
    for quantizer in Quantizer::ALL {
        assert_eq!(through(quantizer, &[0.0; 512], 256), [0.0; 512], "{quantizer:?}");
    }
}

#[test]
fn formats_fall_back_where_rows_are_no_whole_blocks() {
    use Quantizer::*;
    for (asked, cols, got) in [
        (Q4_K, 512, Q4_K),
        (Q4_K, 96, Q8_0),
        (Q4_K, 40, F16),
        (Q8_0, 96, Q8_0),
        (Q8_0, 40, F16),
        (F16, 1, F16),
    ] {
        assert_eq!(asked.for_cols(cols), got, "{asked:?} {cols}");
    }
}

#[test]
fn what_is_not_finite_is_seen_in_every_format() {
    for format in Format::ALL {
        let blocks = 3 * format.block_bytes();
        assert!(format.is_finite(&vec![0; blocks]), "{format:?}");
        // Bits all set are a NaN in every float type.
        assert!(!format.is_finite(&vec![0xff; blocks]), "{format:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// No weight is further off than half a step of a scale that spans its block, and the rounding of that.
    #[test]
    fn errors_are_bounded(seed: u64, exponent in -20i32..15, shift in -2.0f32..2.0) {
        let size = 2f32.powi(exponent);
        let mut random = Random(seed);
        let weights: Vec<f32> = (0..512).map(|_| size * (random.signed() + shift)).collect();
        let largest = weights.iter().fold(0.0f32, |largest, w| largest.max(w.abs()));
        // Scales below f16's normal numbers are steps of 2⁻²⁴.
        let tiny = 2f32.powi(-24);
        for quantizer in Quantizer::ALL {
            let bound = match quantizer {
                Quantizer::F16 => largest / 1024.0 + tiny,
                Quantizer::Q8_0 => largest / 127.0 * 0.51 + 127.0 * tiny,
                Quantizer::Q4_K => largest * 0.16 + 63.0 * 16.0 * tiny,
            };
            for (got, wanted) in through(quantizer, &weights, 256).iter().zip(&weights) {
                prop_assert!((got - wanted).abs() <= bound, "{:?}: {} for {}", quantizer, got, wanted);
            }
        }
    }

    /// Quantising what was read back changes nothing.
    #[test]
    fn f16_and_q8_0_are_stable(seed: u64) {
        let mut random = Random(seed);
        let weights = normal(&mut random, 256);
        for quantizer in [Quantizer::F16, Quantizer::Q8_0] {
            let once = through(quantizer, &weights, 256);
            let twice = through(quantizer, &once, 256);
            prop_assert!(error(&twice, &once) <= 1e-3 * root_mean_square(once.iter().copied()));
        }
    }

    /// Threads change no byte, and a task's edge none either.
    #[test]
    fn threads_change_nothing(seed: u64, blocks in 1usize..200) {
        let weights = normal(&mut Random(seed), 256 * blocks);
        for quantizer in Quantizer::ALL {
            let bytes = |threads| {
                let mut bytes = vec![1];
                quantizer.quantize(&Compute::new(threads), &weights, &mut bytes);
                bytes
            };
            let alone = bytes(1);
            prop_assert_eq!(&bytes(3), &alone);
            prop_assert_eq!(alone[0], 1);
        }
        let halves: Vec<u8> = weights.iter().flat_map(|&w| f16::from_f32(w).to_le_bytes()).collect();
        let mut bytes = Vec::new();
        Quantizer::F16.quantize(&Compute::new(2), &weights, &mut bytes);
        prop_assert_eq!(bytes, halves);
    }
}
