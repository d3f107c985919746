//! Products of each format with 1 to 128 rows: `cargo bench -p foretoken-kernels --bench matmul -- Q4_K`.
//!
//! Matrices of 8960 x 1536 that together exceed any cache are multiplied in turn, as the layers of a model
//! are. Throughput counts multiply-adds. `THREADS` sets the threads (2).
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use foretoken_kernels::{Arena, Compute, Format, Matrix, Product, Scratch, matmul};
use std::cell::LazyCell;
use std::time::Duration;

const ROWS: usize = 8960;
const COLS: usize = 1536;
const COUNTS: [usize; 8] = [1, 2, 3, 4, 6, 8, 16, 128];
/// Bytes of all matrices of one format.
const TOTAL: usize = 200 << 20;

fn bench(criterion: &mut Criterion) {
    let threads = std::env::var("THREADS").map_or(2, |n| n.parse().expect("THREADS is a number"));
    let compute = Compute::new(threads);
    let x: Vec<f32> = (0..COUNTS[COUNTS.len() - 1] * COLS)
        .map(|i| ((i * 37 % 1001) as f32 - 500.0) / 500.0)
        .collect();
    let mut out = vec![0.0; COUNTS[COUNTS.len() - 1] * ROWS];
    let mut scratch = Scratch::default();
    for format in Format::ALL {
        // Only for what is asked for.
        let matrices = LazyCell::new(|| matrices(&compute, format));
        let mut group = criterion.benchmark_group(format.name());
        for n in COUNTS {
            group.throughput(Throughput::Elements((n * ROWS * COLS) as u64));
            group.bench_function(BenchmarkId::from_parameter(n), |bencher| {
                let mut matrices = matrices.iter().cycle();
                let (x, out) = (&x[..n * COLS], &mut out[..n * ROWS]);
                bencher.iter(|| {
                    let matrix = matrices.next().expect("there are some");
                    let product = Product {
                        matrix,
                        out: &mut *out,
                    };
                    matmul(&compute, &mut scratch, x, n, &mut [product]);
                });
            });
        }
        group.finish();
    }
}

fn matrices(compute: &Compute, format: Format) -> Vec<Matrix> {
    let bytes = ROWS * COLS / format.block_len() * format.block_bytes();
    // Small numbers of any format: no NaN in the scales, and codes that vary.
    let file: Vec<u8> = (0..bytes)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8 & 0x3b)
        .collect();
    (0..TOTAL.div_ceil(bytes))
        .map(|_| Matrix::pack(compute, &mut Arena::new(), format, ROWS, COLS, &file).expect("the sizes fit"))
        .collect()
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1)).sample_size(20);
    targets = bench
}
criterion_main!(benches);
