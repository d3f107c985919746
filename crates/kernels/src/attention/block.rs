//! The inner part of attention: the items of one task through all blocks of their paths.
use super::layout::place;
use super::{Job, PAGE, RowPath, Task};
use crate::vector::lanes::{LANES, Lanes};
use crate::vector::{exp, from_f16_lanes};

/// Vectors in a block's row of scores.
const WIDTH: usize = PAGE / LANES;
/// Up to so many items share each key that is loaded, and widen it in registers.
const TOGETHER: usize = 3;

/// The scores of one item over a block, then their weights.
type Scores = [[f32; LANES]; WIDTH];
/// One element of the keys of a block, for all positions.
type Column<E> = [[E; LANES]; WIDTH];

/// A stored element that can be widened as it is loaded; widening is exact.
trait Element: Copy {
    fn load<L: Lanes>(l: L, x: &[Self; LANES]) -> L::V;
}

impl Element for f32 {
    #[inline(always)]
    fn load<L: Lanes>(l: L, x: &[f32; LANES]) -> L::V {
        l.load(x)
    }
}

impl Element for u16 {
    #[inline(always)]
    fn load<L: Lanes>(l: L, x: &[u16; LANES]) -> L::V {
        l.load_f16(x)
    }
}

/// Where the softmax of an item stands.
#[derive(Clone, Copy, Debug)]
struct Running {
    max: f32,
    sum: f32,
    /// What the last block's new maximum multiplies older weights with.
    rescale: f32,
}

/// One thread's buffers.
#[derive(Debug, Default)]
pub(super) struct Worker {
    /// A block in f32: keys `[head_dim][PAGE]`, values `[PAGE][head_dim]`.
    wide: Buffer<f32>,
    /// A block gathered from slots all over: the same, with the head padded to whole vectors.
    gathered: Buffer<u16>,
    running: Vec<Running>,
    scores: Vec<Scores>,
    /// `[item][head_dim padded to whole vectors]`.
    sums: Buffer<f32>,
}

/// Memory that begins at a cache line.
#[derive(Debug, Default)]
struct Buffer<T>(Vec<T>);

impl<T: Copy + Default> Buffer<T> {
    fn slice(&mut self, len: usize) -> &mut [T] {
        const LINE: usize = 64;
        let padding = LINE / size_of::<T>();
        if self.0.len() < len + padding {
            self.0.resize(len + padding, T::default());
        }
        let start = self.0.as_ptr().align_offset(LINE).min(padding);
        &mut self.0[start..start + len]
    }
}

impl Worker {
    /// The finished items of the last task, `[head_dim]` each.
    pub(super) fn results(&mut self, head_dim: usize) -> impl Iterator<Item = &[f32]> {
        let padded = head_dim.next_multiple_of(LANES);
        self.sums
            .slice(self.running.len() * padded)
            .chunks_exact(padded)
            .map(move |sums| &sums[..head_dim])
    }
}

/// The items of a task that go through a block together.
struct Run<'a> {
    job: &'a Job<'a>,
    kv_head: usize,
    /// The first of them.
    first: usize,
    running: &'a mut [Running],
    scores: &'a mut [Scores],
    sums: &'a mut [[f32; LANES]],
}

/// Takes the items of `task` through all their blocks and leaves the results in `worker`.
#[inline(always)]
pub(super) fn run<L: Lanes>(l: L, job: &Job<'_>, task: &Task, worker: &mut Worker) {
    let head_dim = job.shape.head_dim;
    let padded = head_dim.next_multiple_of(LANES);
    let vectors = padded / LANES;
    let items = task.items.clone();
    let Worker {
        wide,
        gathered,
        running,
        scores,
        sums,
    } = worker;
    let (wide_keys, wide_values) = wide.slice(2 * PAGE * padded).split_at_mut(PAGE * padded);
    let (gathered_keys, gathered_values) = gathered.slice(2 * PAGE * padded).split_at_mut(PAGE * padded);
    running.clear();
    running.resize(
        items.len(),
        Running {
            max: f32::NEG_INFINITY,
            sum: 0.0,
            rescale: 0.0,
        },
    );
    scores.resize(items.len(), [[0.0; LANES]; WIDTH]);
    let sums = sums.slice(items.len() * padded);
    sums.fill(0.0);
    let sums = sums.as_chunks_mut::<LANES>().0;

    let rows = &job.rows[items.start / job.group..items.end.div_ceil(job.group)];
    let longest = rows.iter().map(RowPath::len).max().unwrap_or(0);
    for block in 0..longest.div_ceil(PAGE) {
        let mut widened = false;
        let mut first = items.start;
        while first < items.end {
            let row = &job.rows[first / job.group];
            let n = row.len().saturating_sub(block * PAGE).min(PAGE);
            let in_place = row.in_place(block * PAGE + n);
            // Rows that have the same positions of the block, in place, go together.
            let mut next = first / job.group + 1;
            let alike = |row: &RowPath<'_>| {
                in_place
                    && row.in_place(block * PAGE + n)
                    && row.len().saturating_sub(block * PAGE).min(PAGE) == n
            };
            while next * job.group < items.end && alike(&job.rows[next]) {
                next += 1;
            }
            let end = (next * job.group).min(items.end);
            let range = first - items.start..end - items.start;
            let run = Run {
                job,
                kv_head: task.kv_head,
                first,
                running: &mut running[range.clone()],
                scores: &mut scores[range.clone()],
                sums: &mut sums[range.start * vectors..range.end * vectors],
            };
            first = end;
            if n == 0 {
                continue;
            }
            if !in_place || head_dim != padded {
                gather(job, task.kv_head, row, block, n, gathered_keys, gathered_values);
                attend(l, run, &gathered_keys[..PAGE * head_dim], gathered_values, n);
                continue;
            }
            let at = job
                .shape
                .layout()
                .head_page(row.pages[block] as usize, task.kv_head);
            let (keys, values) = (
                &job.kv.keys[at..][..PAGE * head_dim],
                &job.kv.values[at..][..PAGE * head_dim],
            );
            if items.len() <= TOGETHER {
                attend(l, run, keys, values, n);
                continue;
            }
            if !widened {
                from_f16_lanes(l, keys, wide_keys);
                from_f16_lanes(l, values, wide_values);
                widened = true;
            }
            attend(l, run, wide_keys, wide_values, n);
        }
    }
    for (running, sums) in running.iter().zip(sums.chunks_exact_mut(vectors)) {
        let factor = l.splat(1.0 / running.sum);
        for sum in sums {
            l.store(l.mul(l.load(sum), factor), sum);
        }
    }
}

/// Copies the first `n` positions of a block of a row's path: keys `[head_dim][PAGE]`, values
/// `[PAGE][head_dim padded to whole vectors]`. What stands beyond them is left as it was.
fn gather(
    job: &Job<'_>,
    kv_head: usize,
    row: &RowPath<'_>,
    block: usize,
    n: usize,
    keys: &mut [u16],
    values: &mut [u16],
) {
    let layout = job.shape.layout();
    let head_dim = layout.head_dim;
    let padded = head_dim.next_multiple_of(LANES);
    let in_place = row.prefix.saturating_sub(block * PAGE).min(n);
    if in_place > 0 {
        let at = layout.head_page(row.pages[block] as usize, kv_head);
        keys[..PAGE * head_dim].copy_from_slice(&job.kv.keys[at..][..PAGE * head_dim]);
        let stored = job.kv.values[at..][..in_place * head_dim].chunks_exact(head_dim);
        for (value, stored) in values.chunks_exact_mut(padded).zip(stored) {
            value[..head_dim].copy_from_slice(stored);
        }
    }
    for position in in_place..n {
        let (page, offset) = place(row.tail[block * PAGE + position - row.prefix]);
        let at = layout.head_page(page, kv_head);
        let columns = job.kv.keys[at..][..PAGE * head_dim].chunks_exact(PAGE);
        for (key, column) in keys.chunks_exact_mut(PAGE).zip(columns) {
            key[position] = column[offset];
        }
        values[position * padded..][..head_dim]
            .copy_from_slice(&job.kv.values[at + offset * head_dim..][..head_dim]);
    }
}

/// A run through the first `n` positions of a block.
#[inline(always)]
fn attend<L: Lanes, E: Element>(l: L, run: Run<'_>, keys: &[E], values: &[E], n: usize) {
    let keys = keys.as_chunks::<LANES>().0.as_chunks::<WIDTH>().0;
    let values = values.as_chunks::<LANES>().0;
    let head_dim = run.job.shape.head_dim;
    let count = run.running.len();
    let query = |i: usize| &run.job.q[run.job.offset(run.kv_head, run.first + i)..][..head_dim];

    let mut i = 0;
    while i < count {
        match in_next(count - i) {
            1 => scores::<L, E, 1>(l, keys, [query(i)], &mut run.scores[i..]),
            2 => scores::<L, E, 2>(l, keys, [query(i), query(i + 1)], &mut run.scores[i..]),
            _ => scores::<L, E, 3>(
                l,
                keys,
                [query(i), query(i + 1), query(i + 2)],
                &mut run.scores[i..],
            ),
        }
        i += in_next(count - i);
    }
    for (running, scores) in run.running.iter_mut().zip(run.scores.iter_mut()) {
        weights(l, running, scores, n, run.job.shape.scale);
    }
    let vectors = head_dim.div_ceil(LANES);
    let mut i = 0;
    while i < count {
        let step = in_next(count - i);
        let (running, scores) = (&run.running[i..i + step], &run.scores[i..i + step]);
        let sums = &mut run.sums[i * vectors..(i + step) * vectors];
        match step {
            1 => accumulate_head::<L, E, 1, 8>(l, values, n, running, scores, sums),
            2 => accumulate_head::<L, E, 2, 4>(l, values, n, running, scores, sums),
            _ => accumulate_head::<L, E, 3, 4>(l, values, n, running, scores, sums),
        }
        i += step;
    }
}

/// Items to take together when `left` are left: pairs, and one triple rather than a single at the end.
#[inline(always)]
fn in_next(left: usize) -> usize {
    if left == 3 || left == 1 { left } else { 2 }
}

/// The dot products of N queries with all keys of a block: element after element, fused.
///
/// Here and in [`accumulate`], loops count by index: chains of iterators are not inlined reliably in a
/// function of this size, and the accumulators must stay in registers.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
fn scores<L: Lanes, E: Element, const N: usize>(
    l: L,
    keys: &[Column<E>],
    q: [&[f32]; N],
    out: &mut [Scores],
) {
    let mut sums = [[l.splat(0.0); WIDTH]; N];
    for d in 0..keys.len() {
        let mut key = [l.splat(0.0); WIDTH];
        for v in 0..WIDTH {
            key[v] = E::load(l, &keys[d][v]);
        }
        for i in 0..N {
            let q = l.splat(q[i][d]);
            for v in 0..WIDTH {
                sums[i][v] = l.mul_add(q, key[v], sums[i][v]);
            }
        }
    }
    for i in 0..N {
        for v in 0..WIDTH {
            l.store(sums[i][v], &mut out[i][v]);
        }
    }
}

/// Turns scores into weights relative to the running maximum, and brings that and the sum up to date. The
/// positions from `n` on weigh nothing.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
fn weights<L: Lanes>(l: L, running: &mut Running, scores: &mut Scores, n: usize, scale: f32) {
    let mut x = [l.splat(scale); WIDTH];
    for v in 0..WIDTH {
        x[v] = l.mul(l.load(&scores[v]), x[v]);
    }
    if n < PAGE {
        for v in 0..WIDTH {
            l.store(x[v], &mut scores[v]);
        }
        scores.as_flattened_mut()[n..].fill(f32::NEG_INFINITY);
        for v in 0..WIDTH {
            x[v] = l.load(&scores[v]);
        }
    }
    let block_max = l.max_across(l.max(l.max(x[0], x[1]), l.max(x[2], x[3])));
    let max = if block_max > running.max {
        block_max
    } else {
        running.max
    };
    for v in 0..WIDTH {
        x[v] = exp(l, l.sub(x[v], l.splat(max)));
        l.store(x[v], &mut scores[v]);
    }
    let sum = l.sum(l.add(l.add(x[0], x[1]), l.add(x[2], x[3])));
    let mut rescale = [0.0; LANES];
    l.store(exp(l, l.splat(running.max - max)), &mut rescale);
    *running = Running {
        max,
        sum: running.sum.mul_add(rescale[0], sum),
        rescale: rescale[0],
    };
}

/// Adds the weighted values of N items: W vectors of the head at a time, the rest one by one.
#[inline(always)]
fn accumulate_head<L: Lanes, E: Element, const N: usize, const W: usize>(
    l: L,
    values: &[[E; LANES]],
    n: usize,
    running: &[Running],
    weights: &[Scores],
    sums: &mut [[f32; LANES]],
) {
    let vectors = sums.len() / N;
    let mut at = 0;
    while at + W <= vectors {
        accumulate::<L, E, N, W>(l, values, n, running, weights, sums, at);
        at += W;
    }
    while at < vectors {
        accumulate::<L, E, N, 1>(l, values, n, running, weights, sums, at);
        at += 1;
    }
}

/// `sums = sums · rescale`, then `+ weight · value` for each position in order, fused.
#[inline(always)]
#[allow(clippy::needless_range_loop, clippy::too_many_arguments)]
fn accumulate<L: Lanes, E: Element, const N: usize, const W: usize>(
    l: L,
    values: &[[E; LANES]],
    n: usize,
    running: &[Running],
    weights: &[Scores],
    sums: &mut [[f32; LANES]],
    at: usize,
) {
    let vectors = sums.len() / N;
    let mut acc = [[l.splat(0.0); W]; N];
    for i in 0..N {
        let rescale = l.splat(running[i].rescale);
        for w in 0..W {
            acc[i][w] = l.mul(l.load(&sums[i * vectors + at + w]), rescale);
        }
    }
    for position in 0..n {
        let stored = &values[position * vectors + at..][..W];
        let mut value = [l.splat(0.0); W];
        for w in 0..W {
            value[w] = E::load(l, &stored[w]);
        }
        for i in 0..N {
            let weight = l.splat(weights[i][position / LANES][position % LANES]);
            for w in 0..W {
                acc[i][w] = l.mul_add(weight, value[w], acc[i][w]);
            }
        }
    }
    for i in 0..N {
        for w in 0..W {
            l.store(acc[i][w], &mut sums[i * vectors + at + w]);
        }
    }
}
