//! One layer's attention: `cargo bench -p foretoken-kernels --bench attention -- 4096`.
//!
//! Rows are the last of their sequence, as in the verification of a chain; keys and values of a context are
//! read from memory that other contexts have pushed out of the nearer caches. Throughput counts the bytes of
//! keys and values, each once. `THREADS` sets the threads (2).
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use foretoken_kernels::Compute;
use foretoken_kernels::attention::{AttentionScratch, AttentionShape, KvPages, PAGE, RowPath, attention};
use std::time::Duration;

/// Copies of the cache that calls go through in turn, so that each finds its own cold.
const BYTES: usize = 96 << 20;

fn bench(criterion: &mut Criterion) {
    let threads = std::env::var("THREADS").map_or(2, |n| n.parse().expect("THREADS is a number"));
    let compute = Compute::new(threads);
    for (name, heads, kv_heads, head_dim) in [
        ("12 of 2 x 128", 12, 2, 128),
        ("9 of 3 x 64", 9, 3, 64),
        ("32 of 32 x 128", 32, 32, 128),
    ] {
        let shape = AttentionShape {
            heads,
            kv_heads,
            head_dim,
            scale: (head_dim as f32).powf(-0.5),
        };
        let mut group = criterion.benchmark_group(name);
        for context in [0usize, 1024, 4096] {
            for rows in [1usize, 2, 4, 8, 128] {
                let pages = (context + rows).div_ceil(PAGE);
                let bytes = 4 * shape.layout().page_len() * pages;
                group.throughput(Throughput::Bytes(bytes as u64));
                group.bench_function(BenchmarkId::new(format!("after {context}"), rows), |bencher| {
                    let copies = (BYTES / bytes).clamp(1, 64);
                    let mut cache = Cache::new(shape, copies, pages, rows);
                    let mut scratch = AttentionScratch::default();
                    let mut copy = 0;
                    bencher.iter(|| {
                        copy = (copy + 1) % copies;
                        cache.attend(&compute, &mut scratch, shape, copy, context);
                    });
                });
            }
        }
        group.finish();
    }
}

struct Cache {
    store: Vec<u16>,
    tables: Vec<Vec<u32>>,
    q: Vec<f32>,
    out: Vec<f32>,
    rows: usize,
}

impl Cache {
    fn new(shape: AttentionShape, copies: usize, pages: usize, rows: usize) -> Self {
        let q: Vec<f32> = (0..rows * shape.heads * shape.head_dim)
            .map(|i| (i * 37 % 101) as f32 / 101.0 - 0.5)
            .collect();
        Self {
            // Halves between 1 and 2, and their negatives.
            store: (0..copies * pages * shape.layout().page_len())
                .map(|i| 0x3c00 | (i.wrapping_mul(40_503) >> 7 & 0x83ff) as u16)
                .collect(),
            tables: (0..copies)
                .map(|copy| {
                    (0..pages)
                        .rev()
                        .map(|page| (copy * pages + page) as u32)
                        .collect()
                })
                .collect(),
            out: vec![0.0; q.len()],
            q,
            rows,
        }
    }

    fn attend(
        &mut self,
        compute: &Compute,
        scratch: &mut AttentionScratch,
        shape: AttentionShape,
        copy: usize,
        context: usize,
    ) {
        let pages = &self.tables[copy];
        let paths: Vec<RowPath<'_>> = (1..=self.rows)
            .map(|n| RowPath {
                pages,
                prefix: context + n,
                tail: &[],
            })
            .collect();
        let kv = KvPages {
            keys: &self.store,
            values: &self.store,
        };
        attention(compute, scratch, shape, kv, &self.q, &paths, &mut self.out);
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_millis(600)).sample_size(20);
    targets = bench
}
criterion_main!(benches);
