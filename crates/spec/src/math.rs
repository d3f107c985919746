//! Logarithm and exponential from basic operations alone, so that a draw does not depend on the platform's
//! mathematics library. IEEE 754 fixes the result of every addition, multiplication and division; Rust
//! never contracts two of them into one. Not here: anything vectorised by hand.

use std::f64::consts::{LN_2, SQRT_2};

/// The natural logarithm of a positive normal number; relative error below 1e-15 away from 1 and absolute
/// error below 1e-15 near it.
///
/// x = 2^e · m with m in (√½, √2]; ln m = 2·artanh((m−1)/(m+1)), whose series is cut where its terms fall
/// below 2^-60.
pub(crate) fn ln(x: f64) -> f64 {
    const MANTISSA: u64 = (1 << 52) - 1;
    let bits = x.to_bits();
    let mut exponent = (bits >> 52) as i32 - 1023;
    let mut m = f64::from_bits(bits & MANTISSA | 1023 << 52);
    if m > SQRT_2 {
        m *= 0.5;
        exponent += 1;
    }
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    let series = (0..12)
        .rev()
        .fold(0.0, |sum, n| sum * z + 1.0 / f64::from(2 * n + 1));
    f64::from(exponent) * LN_2 + 2.0 * s * series
}

/// e^x for x ≤ 0; relative error below 3e-7. Below −87 it is e^-87, which is nothing beside e^0. Free of
/// branches, so that compilers vectorise loops over it.
#[inline]
pub fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 · 2^23: adding it rounds to a whole number
    const LN_2_HIGH: f32 = 0.693_359_4; // nine bits: its product with a whole number below 2^15 is exact
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let x = if x > -87.0 { x } else { -87.0 };
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = (x - n * LN_2_HIGH) - n * LN_2_LOW;
    let mut y = 1.0 / 5040.0;
    y = y * r + 1.0 / 720.0;
    y = y * r + 1.0 / 120.0;
    y = y * r + 1.0 / 24.0;
    y = y * r + 1.0 / 6.0;
    y = y * r + 0.5;
    y = y * r + 1.0;
    y = y * r + 1.0;
    // The low bits of `rounded` hold n; moved into the exponent's place they make 2^n.
    y * f32::from_bits(rounded.to_bits().wrapping_add(127) << 23)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ln_is_accurate() {
        let mut x = 1e-18_f64;
        while x < 1e6 {
            let (ours, theirs) = (ln(x), x.ln());
            assert!(
                (ours - theirs).abs() <= 2e-15 * theirs.abs().max(0.5),
                "ln({x}) = {ours}, not {theirs}"
            );
            x *= 1.000_37;
        }
        for k in 1..=53 {
            let w = 2f64.powi(-k);
            let (ours, exact) = (ln(1.0 - w), (-w).ln_1p());
            assert!(((ours - exact) / exact).abs() < 4e-15, "ln(1 - 2^-{k})");
        }
        assert_eq!(ln(1.0), 0.0);
    }

    #[test]
    fn exp_is_accurate() {
        let mut x = -87.0_f32;
        while x <= 0.0 {
            let exact = f64::from(x).exp();
            assert!((f64::from(exp(x)) / exact - 1.0).abs() < 3e-7, "exp({x})");
            x += 0.001_7;
        }
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NEG_INFINITY) < 2e-38);
        assert!(exp(-1e30) < 2e-38);
    }
}
