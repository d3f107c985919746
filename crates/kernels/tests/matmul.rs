//! Products: the same bits for every number of rows, threads and instruction set; and the right ones.
mod common;
use common::{Random, Weights, multiply, same, weights};
use foretoken_kernels::{Arena, Compute, Format, Isa, Matrix, Product, Scratch, matmul};

/// Inputs that share a scale where activations are quantised; `None` for float weights.
fn activation_block(format: Format) -> Option<usize> {
    (format.block_len() > 1).then(|| format.block_len())
}

/// The activations as the kernels must see them.
fn quantized(format: Format, row: &[f32]) -> Vec<f64> {
    let Some(block) = activation_block(format) else {
        return row.iter().map(|&x| f64::from(x)).collect();
    };
    row.chunks_exact(block)
        .flat_map(|x| {
            let d = x.iter().fold(0f32, |max, x| max.max(x.abs())) / 127.0;
            x.iter().map(move |x| {
                if d == 0.0 {
                    0.0
                } else {
                    f64::from((x * (1.0 / d)).round_ties_even()) * f64::from(d)
                }
            })
        })
        .collect()
}

/// Outputs in f64 from the dequantised weights, and Σ|w·a| of each.
fn reference(matrix: &Matrix, activations: &[f64]) -> Vec<(f64, f64)> {
    let mut weights = vec![0.0; matrix.cols()];
    (0..matrix.rows())
        .map(|row| {
            matrix.dequantize_row(row, &mut weights);
            let products = weights.iter().zip(activations).map(|(&w, a)| f64::from(w) * a);
            products.fold((0.0, 0.0), |(sum, abs), p| (sum + p, abs + p.abs()))
        })
        .collect()
}

/// Activations whose quantised codes are all ±127.
fn extreme(len: usize, random: &mut Random) -> Vec<f32> {
    (0..len)
        .map(|_| {
            if random.bits().is_multiple_of(2) {
                3.5
            } else {
                -3.5
            }
        })
        .collect()
}

#[test]
fn outputs_are_right_to_a_hundred_thousandth() {
    for format in Format::ALL {
        for kind in [Weights::Ordinary, Weights::AllOnes, Weights::HighBits] {
            for (rows, cols) in [(1, 256), (8, 512), (13, 1536), (21, 8960)] {
                let random = &mut Random(rows as u64);
                let bytes = weights(format, kind, rows, cols, random);
                let inputs = [
                    random.activations(cols),
                    extreme(cols, random),
                    vec![-1.0; cols],
                    vec![0.0; cols],
                ];
                for isa in Isa::available() {
                    let compute = Compute::with_isa(isa, 1);
                    let matrix =
                        Matrix::pack(&compute, &mut Arena::new(), format, rows, cols, &bytes).unwrap();
                    let mut unquantised = (0.0, 0.0);
                    for (i, x) in inputs.iter().enumerate() {
                        let out = multiply(&compute, &matrix, x, 1);
                        let exact: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
                        let references = reference(&matrix, &quantized(format, x));
                        for ((&got, (want, scale)), (float, _)) in
                            out.iter().zip(references).zip(reference(&matrix, &exact))
                        {
                            let error = (f64::from(got) - want).abs();
                            assert!(
                                error <= 1e-5 * scale,
                                "{format:?} {kind:?} {rows}x{cols} {} input {i}: {got} not {want}, Σ|wa| {scale}",
                                isa.name()
                            );
                            unquantised = (
                                unquantised.0 + (f64::from(got) - float).powi(2),
                                unquantised.1 + float * float,
                            );
                        }
                    }
                    if kind == Weights::Ordinary && cols == 8960 {
                        let relative = (unquantised.0 / unquantised.1).sqrt();
                        println!(
                            "{format:?} {}: {relative:.2e} from unquantised activations (RMS)",
                            isa.name()
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn each_row_has_the_bits_of_the_one_row_product() {
    let cols = 512;
    let counts: Vec<usize> = (1..=33).chain([128]).collect();
    for format in Format::ALL {
        for (kind, rows) in [
            (Weights::Ordinary, 13),
            (Weights::AllOnes, 16),
            (Weights::HighBits, 31),
            (Weights::Anything, 17),
        ] {
            let random = &mut Random(7);
            let bytes = weights(format, kind, rows, cols, random);
            let mut x = random.activations(128 * cols);
            x[2 * cols..3 * cols].copy_from_slice(&extreme(cols, random));
            x[5 * cols..6 * cols].fill(0.0);
            x[7 * cols + 3] = f32::NAN;
            x[9 * cols + 300] = f32::NEG_INFINITY;
            x[11 * cols..12 * cols].iter_mut().for_each(|x| *x *= 1e-38);
            x[13 * cols..14 * cols].iter_mut().for_each(|x| *x *= 2e37);

            let scalar = Compute::with_isa(Isa::Scalar, 1);
            let matrix = Matrix::pack(&scalar, &mut Arena::new(), format, rows, cols, &bytes).unwrap();
            let expected: Vec<f32> = x
                .chunks_exact(cols)
                .flat_map(|x| multiply(&scalar, &matrix, x, 1))
                .collect();
            for isa in Isa::available() {
                for threads in [1, 2] {
                    let compute = Compute::with_isa(isa, threads);
                    let matrix =
                        Matrix::pack(&compute, &mut Arena::new(), format, rows, cols, &bytes).unwrap();
                    for &n in &counts {
                        let out = multiply(&compute, &matrix, &x[..n * cols], n);
                        for (r, (got, want)) in out.chunks(rows).zip(expected.chunks(rows)).enumerate() {
                            assert!(
                                same(got, want),
                                "{format:?} {kind:?} {} {threads} threads, row {r} of {n}: {got:?} not {want:?}",
                                isa.name()
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn what_is_not_finite_stays_so() {
    for format in Format::ALL {
        let (rows, cols) = (5, 512);
        let bytes = weights(format, Weights::Ordinary, rows, cols, &mut Random(11));
        for isa in Isa::available() {
            let compute = Compute::with_isa(isa, 1);
            let matrix = Matrix::pack(&compute, &mut Arena::new(), format, rows, cols, &bytes).unwrap();
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x = vec![0.5; 2 * cols];
                x[cols + 400] = bad;
                let out = multiply(&compute, &matrix, &x, 2);
                assert!(out[..rows].iter().all(|x| x.is_finite()), "{format:?} {bad}");
                assert!(
                    out[rows..].iter().all(|x| !x.is_finite()),
                    "{format:?} {bad}: {:?}",
                    &out[rows..]
                );
            }
        }
    }
}

#[test]
fn several_products_of_one_input() {
    let cols = 768;
    let compute = Compute::new(2);
    let mut scratch = Scratch::default();
    let random = &mut Random(5);
    let sizes = [
        (Format::Q4_K, 40),
        (Format::Q8_0, 7),
        (Format::F16, 300),
        (Format::Q6_K, 0),
        (Format::Q6_K, 1001),
        (Format::Q5_0, 16),
        (Format::Q4_1, 9),
        (Format::F32, 1),
        (Format::Q4_K, 24),
        (Format::BF16, 8),
    ];
    // Together in one arena, beside the same each alone.
    let mut arena = Arena::new();
    let matrices = sizes.map(|(format, rows)| {
        let bytes = weights(format, Weights::Ordinary, rows, cols, random);
        let pack = |arena: &mut Arena| Matrix::pack(&compute, arena, format, rows, cols, &bytes).unwrap();
        (pack(&mut arena), pack(&mut Arena::new()))
    });
    drop(arena);
    let (matrices, alone): (Vec<_>, Vec<_>) = matrices.into_iter().unzip();
    for n in [3, 20, 0, 1] {
        let x = random.activations(n * cols);
        let mut outs: Vec<Vec<f32>> = matrices.iter().map(|m| vec![7e33; n * m.rows()]).collect();
        let mut products: Vec<_> = matrices
            .iter()
            .zip(&mut outs)
            .map(|(matrix, out)| Product { matrix, out })
            .collect();
        matmul(&compute, &mut scratch, &x, n, &mut products);
        for (matrix, out) in alone.iter().zip(&outs) {
            assert!(
                same(out, &multiply(&compute, matrix, &x, n)),
                "{:?}, {n} rows",
                matrix.format()
            );
        }
    }
    matmul(&compute, &mut scratch, &[], 3, &mut []);
}

#[test]
fn float_weights_of_any_width() {
    let compute = Compute::new(2);
    for format in [Format::F32, Format::F16, Format::BF16] {
        for cols in [0, 1, 15, 16, 17, 100] {
            let random = &mut Random(cols as u64);
            let rows = 9;
            let bytes = weights(format, Weights::Ordinary, rows, cols, random);
            let matrix = Matrix::pack(&compute, &mut Arena::new(), format, rows, cols, &bytes).unwrap();
            let x = random.activations(cols);
            let exact: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
            for (got, (want, scale)) in multiply(&compute, &matrix, &x, 1)
                .iter()
                .zip(reference(&matrix, &exact))
            {
                assert!(
                    (f64::from(*got) - want).abs() <= 1e-5 * scale,
                    "{format:?} {cols}: {got} not {want}"
                );
            }
        }
    }
}
