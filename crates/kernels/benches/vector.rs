//! Norm, activation, addition and rope of one row, and the hand-over of an empty region to the pool:
//! `cargo bench -p foretoken-kernels --bench vector`. Throughput counts elements.
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use foretoken_kernels::vector::{RopeStyle, RopeTable, add_in_place, rms_norm, swiglu_in_place};
use foretoken_kernels::{Isa, Pool};
use std::time::Duration;

const WIDTH: usize = 1536;
const HEAD: usize = 128;

fn bench(criterion: &mut Criterion) {
    let isa = Isa::detect();
    let y: Vec<f32> = (0..WIDTH).map(|i| (i * 37 % 101) as f32 / 101.0 - 0.5).collect();
    let mut x = y.clone();
    let mut group = criterion.benchmark_group("vector");
    group.throughput(Throughput::Elements(WIDTH as u64));
    group.bench_function("rms_norm", |b| b.iter(|| rms_norm(isa, &y, &y, 1e-6, &mut x)));
    group.bench_function("add", |b| {
        b.iter(|| {
            x.fill(0.0);
            add_in_place(isa, &mut x, &y);
        })
    });
    group.bench_function("swiglu", |b| {
        b.iter(|| {
            x.fill(0.5);
            swiglu_in_place(isa, &mut x, &y);
        })
    });
    let rope = RopeTable::new(HEAD, 1e6, None, 1.0, 64).expect("memory");
    x.copy_from_slice(&y);
    group.bench_function("rope", |b| {
        b.iter(|| rope.apply(isa, RopeStyle::Halves, 63, &mut x, HEAD))
    });
    group.finish();

    let mut group = criterion.benchmark_group("pool");
    for threads in [2, 4] {
        let pool = Pool::new(threads);
        group.bench_function(format!("empty region, {threads} threads"), |b| {
            b.iter(|| pool.run(threads, |_| ()))
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_millis(600)).sample_size(20);
    targets = bench
}
criterion_main!(benches);
