//! Microseconds of one layer's attention, and how fast the cache is read: `cargo bench -p
//! foretoken-kernels --bench attention [THREADS]`.
//!
//! Rows are the last of their sequence, as in the verification of a chain; keys and values of a context are
//! read from memory that other contexts have pushed out of the nearer caches.
use foretoken_kernels::attention::{AttentionScratch, AttentionShape, KvPages, PAGE, RowPath, attention};
use foretoken_kernels::{Compute, Isa};
use std::time::{Duration, Instant};

/// Copies of the cache that calls go through in turn, so that each finds its own cold.
const BYTES: usize = 96 << 20;

fn main() {
    let threads = std::env::args().find_map(|arg| arg.parse().ok()).unwrap_or(2);
    let compute = Compute::new(threads);
    println!("{} threads, {}", compute.pool().threads(), Isa::detect().name());
    println!(
        "{:<24} {:>7} {:>5} {:>10} {:>10} {:>8} {:>9}",
        "shape", "context", "rows", "µs", "KiB", "GB/s", "G fma/s"
    );
    for (name, heads, kv_heads, head_dim) in [
        ("Qwen2.5 1.5B 12/2 x 128", 12, 2, 128),
        ("SmolLM2 135M 9/3 x 64", 9, 3, 64),
        ("Llama 2 7B 32/32 x 128", 32, 32, 128),
    ] {
        let shape = AttentionShape {
            heads,
            kv_heads,
            head_dim,
            scale: (head_dim as f32).powf(-0.5),
        };
        for context in [0, 1024, 4096] {
            for rows in [1, 2, 4, 8, 128] {
                measure(&compute, name, shape, context, rows);
            }
        }
    }
}

fn measure(compute: &Compute, name: &str, shape: AttentionShape, context: usize, rows: usize) {
    let pages = (context + rows).div_ceil(PAGE);
    let page_len = shape.layout().page_len();
    let bytes = 4 * page_len * pages;
    let copies = (BYTES / bytes).clamp(1, 64);
    // Halves between 1 and 2, and their negatives.
    let store: Vec<u16> = (0..copies * pages * page_len)
        .map(|i| 0x3c00 | (i.wrapping_mul(40_503) >> 7 & 0x83ff) as u16)
        .collect();
    let q: Vec<f32> = (0..rows * shape.heads * shape.head_dim)
        .map(|i| (i * 37 % 101) as f32 / 101.0 - 0.5)
        .collect();
    let mut out = vec![0.0; q.len()];
    let mut scratch = AttentionScratch::default();
    let tables: Vec<Vec<u32>> = (0..copies)
        .map(|copy| {
            (0..pages as u32)
                .rev()
                .map(|page| (copy * pages) as u32 + page)
                .collect()
        })
        .collect();
    let kv = KvPages {
        keys: &store,
        values: &store,
    };

    let mut best = Duration::MAX;
    let started = Instant::now();
    let mut call = 0;
    while call < 10 || started.elapsed() < Duration::from_millis(60) {
        let pages = &tables[call % copies];
        let paths: Vec<RowPath<'_>> = (1..=rows)
            .map(|n| RowPath {
                pages,
                prefix: context + n,
                tail: &[],
            })
            .collect();
        let start = Instant::now();
        attention(compute, &mut scratch, shape, kv, &q, &paths, &mut out);
        best = best.min(start.elapsed());
        call += 1;
    }
    let positions: usize = (1..=rows).map(|n| context + n).sum();
    let (seconds, products) = (best.as_secs_f64(), 2 * positions * shape.heads * shape.head_dim);
    println!(
        "{name:<24} {context:>7} {rows:>5} {:>10.1} {:>10.1} {:>8.1} {:>9.1}",
        seconds * 1e6,
        bytes as f64 / 1024.0,
        bytes as f64 / seconds / 1e9,
        products as f64 / seconds / 1e9
    );
}
