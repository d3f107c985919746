use super::*;
use crate::Isa;
#[cfg(target_arch = "x86_64")]
use lanes::Scalar;

/// A deterministic mix of magnitudes and signs.
pub(crate) fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..n)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let unit = (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5;
            unit * [0.01, 1.0, 8.0, 300.0][(state >> 20) as usize % 4]
        })
        .collect()
}

/// Bits, with every NaN as one.
pub(crate) fn bits(x: &[f32]) -> Vec<u32> {
    x.iter()
        .map(|x| {
            if x.is_nan() {
                f32::NAN.to_bits()
            } else {
                x.to_bits()
            }
        })
        .collect()
}

const LENGTHS: [usize; 17] = [0, 1, 2, 7, 8, 9, 15, 16, 31, 32, 33, 40, 63, 64, 65, 576, 1537];

/// Runs `f` on both instruction sets and expects the same bits; returns them.
#[track_caller]
fn check(what: &str, f: impl Fn(Isa) -> Vec<f32>) -> Vec<f32> {
    let scalar = f(Isa::Scalar);
    for isa in Isa::available() {
        assert_eq!(bits(&scalar), bits(&f(isa)), "{what} on {}", isa.name());
    }
    scalar
}

#[test]
fn rms_norm_is_right_and_equal_on_all_isas() {
    for n in LENGTHS.into_iter().filter(|&n| n > 0) {
        let (x, w) = (noise(n, 1), noise(n, 2));
        let got = check(&format!("rms_norm of {n}"), |isa| {
            let mut out = vec![0.0; n];
            rms_norm(isa, &x, &w, 1e-5, &mut out);
            out
        });
        let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / n as f64;
        for i in 0..n {
            let want = f64::from(x[i]) / (mean + 1e-5).sqrt() * f64::from(w[i]);
            assert!(
                (f64::from(got[i]) - want).abs() <= 1e-6 * want.abs(),
                "{n}, {i}: {} for {want}",
                got[i]
            );
        }
    }
}

#[test]
fn elementwise_functions_are_right_and_equal_on_all_isas() {
    type Function = (&'static str, fn(Isa, &mut [f32], &[f32]), fn(f64, f64) -> f64);
    let functions: [Function; 2] = [
        ("add", add_in_place, |x, y| x + y),
        ("swiglu", swiglu_in_place, |x, y| x / (1.0 + (-x).exp()) * y),
    ];
    for (name, f, want) in functions {
        for n in LENGTHS {
            let (x, y) = (noise(n, 3), noise(n, 4));
            let got = check(&format!("{name} of {n}"), |isa| {
                let mut x = x.clone();
                f(isa, &mut x, &y);
                x
            });
            for i in 0..n {
                let want = want(f64::from(x[i]), f64::from(y[i]));
                if want.abs() > f64::from(f32::MAX) {
                    assert!(got[i].is_infinite(), "{name}({}, {}) = {}", x[i], y[i], got[i]);
                } else {
                    let error = (f64::from(got[i]) - want).abs();
                    assert!(
                        error <= 4e-7 * want.abs() + 1e-34,
                        "{name}({}, {}) = {}",
                        x[i],
                        y[i],
                        got[i]
                    );
                }
            }
        }
    }
}

#[test]
fn elements_do_not_depend_on_where_a_row_is_cut() {
    let (x, y) = (noise(100, 5), noise(100, 6));
    for isa in Isa::available() {
        let mut whole = x.clone();
        swiglu_in_place(isa, &mut whole, &y);
        for cut in [1, 5, 8, 13, 99] {
            let mut parts = x.clone();
            let (a, b) = parts.split_at_mut(cut);
            swiglu_in_place(isa, a, &y[..cut]);
            swiglu_in_place(isa, b, &y[cut..]);
            assert_eq!(bits(&whole), bits(&parts), "cut at {cut}");
        }
    }
}

#[test]
fn exp_is_within_one_unit_in_the_last_place_everywhere() {
    // Every 997th f32, of either sign, and all specials.
    let mut worst = (0.0, 0.0);
    let specials = [
        0.0,
        -0.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        f32::MAX,
        f32::MIN,
        88.722_84,
        -87.336_55,
        -103.972_08,
    ];
    let all: Vec<f32> = (0..=u32::MAX)
        .step_by(997)
        .map(f32::from_bits)
        .chain(specials)
        .collect();
    let got = check("exp", |isa| {
        let mut x = all.clone();
        exp_in_place(isa, &mut x);
        x
    });
    for (&x, &y) in all.iter().zip(&got) {
        let want = f64::from(x).exp();
        if x.is_nan() {
            assert!(y.is_nan());
        } else if want as f32 == f32::INFINITY {
            assert_eq!(y, f32::INFINITY, "exp({x})");
        } else {
            let nearest = (want as f32).max(f32::MIN_POSITIVE);
            let ulp = f64::from(f32::from_bits(nearest.to_bits() + 1)) - f64::from(nearest);
            let error = (f64::from(y) - want).abs() / ulp;
            if error > worst.0 {
                worst = (error, x);
            }
        }
    }
    assert!(
        worst.0 <= 1.0,
        "exp({}) is off by {} units in the last place",
        worst.1,
        worst.0
    );
}

fn exp_in_place(isa: Isa, x: &mut [f32]) {
    #[inline(always)]
    fn over<L: Lanes>(l: L, x: &mut [f32]) {
        for x in x.chunks_mut(LANES) {
            let mut lanes = padded(x);
            l.store(exp(l, l.load(&lanes)), &mut lanes);
            x.copy_from_slice(&lanes[..x.len()]);
        }
    }
    dispatch!(isa, over, x: &mut [f32])
}

fn from_f16(isa: Isa, x: &[u16], out: &mut [f32]) {
    dispatch!(isa, from_f16_lanes, x: &[u16], out: &mut [f32])
}

#[test]
fn f16_conversions_agree_for_all_bits() {
    let halves: Vec<u16> = (0..=u16::MAX).collect();
    let widened = check("f16 to f32", |isa| {
        let mut out = vec![0.0; halves.len()];
        from_f16(isa, &halves, &mut out);
        out
    });
    let narrow = |isa, x: &[f32]| {
        let mut out = vec![0; x.len()];
        to_f16(isa, x, &mut out);
        out
    };
    let not_nan = |bits: &u16| !half::f16::from_bits(*bits).is_nan();
    for isa in Isa::available() {
        for (&h, back) in halves.iter().zip(narrow(isa, &widened)) {
            assert!(h == back || !not_nan(&h), "{h:#x} became {back:#x}");
        }
    }
    let all: Vec<f32> = (0..=u32::MAX).step_by(991).map(f32::from_bits).collect();
    for ((x, a), b) in all
        .iter()
        .zip(narrow(Isa::Scalar, &all))
        .zip(narrow(Isa::detect(), &all))
    {
        assert!(
            a == b || x.is_nan() && !not_nan(&a) && !not_nan(&b),
            "{x}: {a:#x} and {b:#x}"
        );
    }
    for n in LENGTHS {
        let x = noise(n, 7);
        assert_eq!(narrow(Isa::Scalar, &x), narrow(Isa::detect(), &x));
    }
}

#[test]
fn rope_turns_pairs_by_their_angle() {
    let factors: Vec<f32> = (0..32).map(|i| 1.0 + i as f32 / 8.0).collect();
    struct Case {
        dims: usize,
        head_dim: usize,
        factors: bool,
        scale: f64,
    }
    let cases = [
        Case {
            dims: 64,
            head_dim: 64,
            factors: false,
            scale: 1.0,
        },
        Case {
            dims: 64,
            head_dim: 64,
            factors: true,
            scale: 1.0,
        },
        Case {
            dims: 128,
            head_dim: 128,
            factors: false,
            scale: 4.0,
        },
        Case {
            dims: 32,
            head_dim: 80,
            factors: false,
            scale: 1.0,
        },
        Case {
            dims: 10,
            head_dim: 10,
            factors: false,
            scale: 1.0,
        },
        Case {
            dims: 2,
            head_dim: 6,
            factors: false,
            scale: 1.0,
        },
    ];
    for Case {
        dims,
        head_dim,
        factors: with_factors,
        scale,
    } in cases
    {
        let factors = with_factors.then_some(factors.as_slice());
        let table = RopeTable::new(dims, 10_000.0, factors, scale, 2050).unwrap();
        let half = dims / 2;
        for style in [RopeStyle::Interleaved, RopeStyle::Halves] {
            for position in [0, 1, 31, 2049] {
                let x = noise(3 * head_dim, 8);
                let got = check(&format!("rope of {dims} in {head_dim}, {style:?}"), |isa| {
                    let mut x = x.clone();
                    table.apply(isa, style, position, &mut x, head_dim);
                    x
                });
                let mut want: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
                for head in want.chunks_mut(head_dim) {
                    for i in 0..half {
                        let (a, b) = match style {
                            RopeStyle::Interleaved => (2 * i, 2 * i + 1),
                            RopeStyle::Halves => (i, i + half),
                        };
                        let frequency = 10_000f64.powf(-2.0 * i as f64 / dims as f64);
                        let angle =
                            position as f64 / scale * frequency / factors.map_or(1.0, |f| f64::from(f[i]));
                        let (s, c) = angle.sin_cos();
                        (head[a], head[b]) = (head[a] * c - head[b] * s, head[b] * c + head[a] * s);
                    }
                }
                for (got, want) in got.iter().zip(&want) {
                    assert!(
                        (f64::from(*got) - want).abs() <= 6e-5,
                        "{style:?} at {position}: {got} for {want}"
                    );
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn lanes_agree_on_specials() {
    let values = [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        0.0,
        -0.0,
        1.0,
        -1.0,
        f32::MIN_POSITIVE,
    ];
    let Some(avx2) = crate::Avx2::new() else {
        // Not eprintln, which the test harness swallows when a test passes.
        let _ = std::io::Write::write_all(&mut std::io::stderr(), b"LEFT OUT: this machine has no AVX2\n");
        return;
    };
    fn all<L: Lanes>(l: L, a: &[f32; 8], b: &[f32; 8]) -> Vec<f32> {
        let (x, y) = (l.load(a), l.load(b));
        let mut out = Vec::new();
        for v in [
            l.add(x, y),
            l.sub(x, y),
            l.mul(x, y),
            l.div(x, y),
            l.max(x, y),
            l.min(x, y),
            l.swap_pairs(x),
        ] {
            let mut lanes = [0.0; 8];
            l.store(v, &mut lanes);
            out.extend(lanes);
        }
        out.extend([l.sum(x), l.max_across(x)]);
        out
    }
    for turn in 0..8 {
        let mut b = values;
        b.rotate_left(turn);
        assert_eq!(bits(&all(Scalar, &values, &b)), bits(&all(avx2, &values, &b)));
        assert_eq!(bits(&all(Scalar, &b, &values)), bits(&all(avx2, &b, &values)));
    }
}
