//! What a pass over n rows costs next to a pass over one.
//!
//! For each format, matrices of 8960 x 1536 that together exceed any cache are multiplied in turn, as the
//! layers of a model are. `cargo bench -p foretoken-kernels --bench matmul [-- FORMAT… threads=T]`.
use foretoken_kernels::{Compute, Format, Matrix, Product, Scratch, matmul};
use std::time::Instant;

const ROWS: usize = 8960;
const COLS: usize = 1536;
const COUNTS: [usize; 9] = [1, 2, 3, 4, 5, 6, 8, 16, 128];
/// Bytes of all matrices of one format.
const TOTAL: usize = 200 << 20;
/// Passes over all matrices; the fastest product of each count is reported.
const PASSES: usize = 7;

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with("--"))
        .collect();
    let threads = arguments
        .iter()
        .find_map(|a| a.strip_prefix("threads=")?.parse().ok())
        .unwrap_or(2);
    let chosen = |format: &Format| {
        let mut names = arguments.iter().filter(|a| !a.contains('=')).peekable();
        names.peek().is_none() || names.any(|name| name.eq_ignore_ascii_case(format.name()))
    };
    let compute = Compute::new(threads);
    println!(
        "{ROWS} x {COLS}, {threads} threads, {}; ms a matrix",
        compute.isa().name()
    );
    println!(
        "{:6} {:>4} {:>8} {:>8} {:>8} {:>8}",
        "format", "n", "ms", "/T(1)", "GB/s", "GMAC/s"
    );
    for format in Format::ALL.into_iter().filter(chosen) {
        bench(&compute, format);
    }
}

fn bench(compute: &Compute, format: Format) {
    let bytes = ROWS * COLS / format.block_len() * format.block_bytes();
    // Small numbers of any format: no NaN in the scales, and codes that vary.
    let file: Vec<u8> = (0..bytes)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8 & 0x3b)
        .collect();
    let matrices: Vec<Matrix> = (0..TOTAL.div_ceil(bytes))
        .map(|_| Matrix::pack(compute, format, ROWS, COLS, &file).expect("the sizes fit"))
        .collect();
    let mut scratch = Scratch::default();
    let most = COUNTS[COUNTS.len() - 1];
    let x: Vec<f32> = (0..most * COLS)
        .map(|i| ((i * 37 % 1001) as f32 - 500.0) / 500.0)
        .collect();
    let mut out = vec![0.0; most * ROWS];

    let mut best = [f64::INFINITY; COUNTS.len()];
    // Turn about, so that a disturbance does not hit one count alone.
    for _ in 0..PASSES {
        for (best, n) in best.iter_mut().zip(COUNTS) {
            let matrices = if n > 16 { &matrices[..2] } else { &matrices[..] };
            for matrix in matrices {
                let out = &mut out[..n * ROWS];
                let start = Instant::now();
                matmul(
                    compute,
                    &mut scratch,
                    &x[..n * COLS],
                    n,
                    &mut [Product { matrix, out }],
                );
                *best = best.min(start.elapsed().as_secs_f64());
            }
        }
    }
    for (seconds, n) in best.into_iter().zip(COUNTS) {
        let gigabytes = matrices[0].packed_bytes() as f64 / seconds / 1e9;
        let macs = (n * ROWS * COLS) as f64 / seconds / 1e9;
        let (name, ms, ratio) = (format.name(), seconds * 1e3, seconds / best[0]);
        println!("{name:6} {n:4} {ms:8.3} {ratio:8.2} {gigabytes:8.1} {macs:8.1}");
    }
}
