//! Attention of a few rows over a paged cache in f16.
//!
//! Per row and query head this is the online softmax (Milakov and Gimelshein 2018) over blocks of [`PAGE`]
//! positions, counted from position 0 of the row's own path. Per block: scores, each one chain of fused
//! multiply-adds over the head; their maximum; the running sum and the accumulated values rescaled;
//! weights; values added in order of position. So the bits of a row depend on its query and on the keys
//! and values along its path alone: not on the other rows, the threads, or where in memory they lie.
//!
//! For speed, the rows of a sequence and the query heads that share a key head go through a block together:
//! it is read and widened to f32 once for all of them.
//!
//! Not here: which slot belongs to whom (that is the cache's bookkeeping), windows, score caps.
mod block;
mod layout;
#[cfg(test)]
mod tests;

use crate::Compute;
use crate::memory::Disjoint;
use crate::vector::lanes::dispatch;
use block::Worker;
pub use layout::{KvLayout, KvPages};
use std::{ops::Range, sync::Mutex};

/// Positions in a page of the cache, and in a block of the softmax: a page that a row has whole is a block.
pub const PAGE: usize = 32;

/// Most (row, query head) pairs that go through a sequence's keys together: their state stays in the
/// second-level cache, and what a block costs to widen is spread thin by then.
const TASK_ITEMS: usize = 64;

/// Sizes of one attention layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Multiplies the scores.
    pub scale: f32,
}

impl AttentionShape {
    /// How this layer's keys and values are stored.
    pub fn layout(self) -> KvLayout {
        KvLayout {
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
        }
    }
}

/// Where the keys of one row lie, in order of position, its own the last.
#[derive(Clone, Copy, Debug)]
pub struct RowPath<'a> {
    /// The sequence's pages: the same slice for all its rows, which says that they belong together.
    pub pages: &'a [u32],
    /// So many leading positions are in place: position p in slot `pages[p / PAGE] * PAGE + p % PAGE`.
    pub prefix: usize,
    /// The slots of the positions after those: ancestors that a tree keeps elsewhere, and the row itself.
    pub tail: &'a [u32],
}

impl RowPath<'_> {
    /// Positions of the row's path: one more than its own position.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.prefix + self.tail.len()
    }

    /// Whether the first `end` positions are in place.
    fn in_place(&self, end: usize) -> bool {
        self.prefix >= end
    }
}

/// Buffers that attention reuses from call to call.
#[derive(Debug, Default)]
pub struct AttentionScratch {
    tasks: Vec<Task>,
    workers: Vec<Mutex<Worker>>,
}

/// What one worker does in one go. An item is a row and one of the query heads that share a key head:
/// item `row * group + i` of the task's key head.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Task {
    kv_head: usize,
    items: Range<usize>,
}

/// What all tasks of a call share.
#[derive(Clone, Copy, Debug)]
struct Job<'a> {
    shape: AttentionShape,
    /// Query heads to a key head.
    group: usize,
    kv: KvPages<'a>,
    q: &'a [f32],
    rows: &'a [RowPath<'a>],
}

impl Job<'_> {
    /// Where an item's query and output begin.
    fn offset(&self, kv_head: usize, item: usize) -> usize {
        let head = kv_head * self.group + item % self.group;
        (item / self.group * self.shape.heads + head) * self.shape.head_dim
    }
}

/// `out[r] = softmax(q[r]·Kᵀ·scale)·V` per head; `q` and `out` are `[rows][heads][head_dim]`. Consecutive
/// rows with the same slice of pages read them together. Values that are not finite propagate.
///
/// # Panics
/// If lengths do not fit the shape, or a path leads outside the pages.
pub fn attention(
    compute: &Compute,
    scratch: &mut AttentionScratch,
    shape: AttentionShape,
    kv: KvPages<'_>,
    q: &[f32],
    rows: &[RowPath<'_>],
    out: &mut [f32],
) {
    if rows.is_empty() {
        return;
    }
    assert!(
        shape.kv_heads > 0 && shape.heads.is_multiple_of(shape.kv_heads),
        "query heads share key heads evenly"
    );
    assert!(
        q.len() == rows.len() * shape.heads * shape.head_dim && out.len() == q.len(),
        "[rows][heads][head_dim]"
    );
    let (isa, threads) = (compute.isa(), compute.pool().threads());
    let group = shape.heads / shape.kv_heads;
    plan(&mut scratch.tasks, rows, group, shape.kv_heads, threads);
    scratch
        .workers
        .resize_with(threads.max(scratch.workers.len()), Default::default);

    let job = Job {
        shape,
        group,
        kv,
        q,
        rows,
    };
    let (job, tasks, workers) = (&job, &scratch.tasks, &scratch.workers);
    let out = Disjoint::new(out);
    compute.pool().run(tasks.len(), |index| {
        let task = &tasks[index];
        let mut free = workers.iter().find_map(|worker| match worker.try_lock() {
            Ok(worker) => Some(worker),
            Err(std::sync::TryLockError::Poisoned(worker)) => Some(worker.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        });
        let worker = free.as_mut().expect("as many buffers as threads");
        run(isa, job, task, worker);
        for (item, result) in task.items.clone().zip(worker.results(shape.head_dim)) {
            let start = job.offset(task.kv_head, item);
            // SAFETY: no two tasks have an item of a key head in common, and different items have different
            // heads of `out`.
            unsafe { out.part(start..start + shape.head_dim) }.copy_from_slice(result);
        }
    });
}

fn run(isa: crate::Isa, job: &Job<'_>, task: &Task, worker: &mut Worker) {
    dispatch!(isa, block::run, job: &Job<'_>, task: &Task, worker: &mut Worker)
}

/// Cuts the work into tasks: as few as keep the threads evenly busy, since each reads its keys anew. Rows
/// of one sequence stand at the end of the longer paths first, so that the last tasks are short.
fn plan(tasks: &mut Vec<Task>, rows: &[RowPath<'_>], group: usize, kv_heads: usize, threads: usize) {
    let same = |a: &RowPath<'_>, b: &RowPath<'_>| std::ptr::eq(a.pages, b.pages);
    let count = |finer: usize| -> usize {
        rows.chunk_by(same)
            .map(|rows| parts(rows.len() * group, finer) * kv_heads)
            .sum()
    };
    let enough = |&finer: &usize| {
        let count = count(finer);
        count.is_multiple_of(threads) || count >= 4 * threads
    };
    let most = rows
        .chunk_by(same)
        .map(|rows| rows.len() * group)
        .max()
        .unwrap_or(1);
    let finer = (1..=most.min(2 * threads))
        .find(enough)
        .unwrap_or(most.min(2 * threads));

    tasks.clear();
    let mut first = 0;
    for rows in rows.chunk_by(same) {
        let items = rows.len() * group;
        let parts = parts(items, finer);
        for part in (0..parts).rev() {
            let items = first + part * items / parts..first + (part + 1) * items / parts;
            tasks.extend((0..kv_heads).map(|kv_head| Task {
                kv_head,
                items: items.clone(),
            }));
        }
        first += items;
    }
}

/// Parts that the items of one sequence are cut into.
fn parts(items: usize, finer: usize) -> usize {
    (items.div_ceil(TASK_ITEMS) * finer).min(items)
}
