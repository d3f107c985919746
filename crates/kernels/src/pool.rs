//! The thread pool: spin, then park. The caller is worker 0.
//!
//! A pass of a model is a few hundred parallel regions of some tens of microseconds each, so what counts is
//! what it costs to hand over a region. Protocol:
//!
//! - One atomic word, the *gate*, says everything: the number of the region (its epoch), whether it is
//!   open, and how many workers are inside. The caller writes the job and the spans while the gate is
//!   closed and nobody is inside, then opens it under a new epoch. A worker that sees a new epoch enters by
//!   counting itself in, which succeeds only while the gate is open; inside, it takes tasks until none are
//!   left, and counts itself out.
//! - Each worker has a *span* of consecutive tasks, so that what it reads is consecutive too and memory that is
//!   fetched ahead is its own. It takes them from the front; when there are no more, it takes the last ones of
//!   the others' spans.
//! - The caller works too. When the tasks run out it closes the gate and waits for those *inside*, never
//!   for a worker that has yet to wake up: a sleeping or descheduled thread costs its help, not its delay.
//! - A worker without a region spins for [`SPINS`] rounds, then says that it sleeps, looks at the gate once
//!   more and parks. The caller opens the gate, then looks who sleeps. Both sides write before they read,
//!   sequentially consistent, so that one of the two always sees the other.
//! - One region at a time: a call that finds the pool busy, nested or from another thread, does its tasks
//!   itself, one after the other.
//!
//! Not here: what the tasks are, and how many threads there should be.
use std::{
    any::Any,
    cell::UnsafeCell,
    hint,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
};

/// Looks at the gate before a worker parks: some 40 µs, which outlasts the serial stretches between the
/// regions of one pass, but not the pause between two passes.
const SPINS: usize = 2_000;
/// Looks at the gate before a caller that waits for the last worker gives its time slice away.
const SPINS_BEFORE_YIELD: usize = 10_000;

const EPOCH: u64 = 1 << 32;
const OPEN: u64 = 1 << 31;
const INSIDE: u64 = OPEN - 1;

/// Threads that run the tasks of one region at a time.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

/// Keeps what different threads write on different cache lines (two, since they are fetched in pairs).
#[derive(Debug, Default)]
#[repr(align(128))]
struct Padded<T>(T);

#[derive(Debug)]
struct Shared {
    gate: Padded<AtomicU64>,
    /// Of each worker, the caller first: what is left of its tasks.
    spans: Box<[Span]>,
    job: UnsafeCell<Job>,
    /// The payload of the first task that panicked in this region.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    busy: AtomicBool,
    closing: AtomicBool,
    /// One flag a worker: it is about to park, or has.
    asleep: Box<[Padded<AtomicBool>]>,
}

/// A borrowed `impl Fn(usize) + Sync` without its type and lifetime.
#[derive(Clone, Copy, Debug)]
struct Job {
    task: *const (),
    /// # Safety
    /// The first argument must be `task` of the same job, and its closure must still be alive.
    call: unsafe fn(*const (), usize),
}

/// A range of tasks that nobody has taken: its begin in the low half of the word, its end in the high one.
#[derive(Debug, Default)]
struct Span(Padded<AtomicU64>);

impl Span {
    fn set(&self, start: u32, end: u32) {
        self.0
            .0
            .store(u64::from(start) | u64::from(end) << 32, Ordering::Relaxed);
    }

    fn take_first(&self) -> Option<usize> {
        self.take(|start, end| (start, (start + 1, end)))
    }

    fn take_last(&self) -> Option<usize> {
        self.take(|start, end| (end - 1, (start, end - 1)))
    }

    /// Takes a task, leaving another range; the closure gets none that is empty.
    fn take(&self, split: impl Fn(u32, u32) -> (u32, (u32, u32))) -> Option<usize> {
        let mut word = self.0.0.load(Ordering::Relaxed);
        loop {
            let (start, end) = (word as u32, (word >> 32) as u32);
            if start >= end {
                return None;
            }
            let (task, (start, end)) = split(start, end);
            let left = u64::from(start) | u64::from(end) << 32;
            match self
                .0
                .0
                .compare_exchange_weak(word, left, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return Some(task as usize),
                Err(now) => word = now,
            }
        }
    }
}

// SAFETY: `job` is written by the caller that holds `busy` while the gate is closed with nobody inside, and
// read only by threads inside an open gate (or that caller); opening and entering synchronise. The closure
// that it points to is `Sync` and outlives the region, since `run` returns after all have left.
unsafe impl Sync for Shared {}
// SAFETY: as above; nothing in it belongs to a thread.
unsafe impl Send for Shared {}

impl Pool {
    /// A pool of `threads` workers, the caller included; 0 counts as 1. Should the system refuse a thread,
    /// the pool is smaller.
    pub fn new(threads: usize) -> Self {
        let spawned = threads.max(1) - 1;
        let shared = Arc::new(Shared {
            gate: Padded(AtomicU64::new(0)),
            spans: (0..=spawned).map(|_| Span::default()).collect(),
            job: UnsafeCell::new(Job {
                task: std::ptr::null(),
                call: |_, _| (),
            }),
            panic: Mutex::new(None),
            busy: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            asleep: (0..spawned).map(|_| Padded::default()).collect(),
        });
        let workers = (0..spawned)
            .map_while(|worker| {
                let shared = Arc::clone(&shared);
                thread::Builder::new()
                    .name(format!("kernel-{}", worker + 1))
                    .spawn(move || shared.serve(worker))
                    .ok()
            })
            .collect();
        Self { shared, workers }
    }

    /// Workers, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `task(i)` for every i in 0…tasks, on all workers, and returns when all are done. A panic in a
    /// task is raised again here (tasks that nobody has begun by then are left out). Nested and concurrent
    /// calls run on the calling thread alone.
    ///
    /// # Panics
    /// If there are more than 2³² − 1 tasks.
    pub fn run<F: Fn(usize) + Sync>(&self, tasks: usize, task: F) {
        let shared = &*self.shared;
        let count = u32::try_from(tasks).expect("tasks that can be counted");
        if tasks <= 1 || self.workers.is_empty() || shared.busy.swap(true, Ordering::Acquire) {
            return (0..tasks).for_each(task);
        }
        /// # Safety
        /// `task` must point to a living `F`.
        unsafe fn call<F: Fn(usize)>(task: *const (), index: usize) {
            // SAFETY: the caller's promise.
            unsafe { (*task.cast::<F>())(index) }
        }
        // SAFETY: `busy` was free, so the last region is over: the gate is closed and nobody is inside.
        unsafe {
            *shared.job.get() = Job {
                task: (&raw const task).cast(),
                call: call::<F>,
            }
        };
        // With fewer tasks than threads those that are woken first get one each.
        let workers = self.threads().min(tasks) as u64;
        let bound = |worker: u64| (u64::from(count) * worker.min(workers) / workers) as u32;
        for (worker, span) in (0..).zip(&shared.spans) {
            span.set(bound(worker), bound(worker + 1));
        }
        let epoch = shared.gate.0.load(Ordering::Relaxed) & !(OPEN | INSIDE);
        shared
            .gate
            .0
            .store(epoch.wrapping_add(EPOCH) | OPEN, Ordering::SeqCst);
        self.wake(tasks - 1);

        // SAFETY: the gate is open, and stays so until this thread closes it.
        unsafe { shared.work(0) };

        shared.gate.0.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0;
        while shared.gate.0.load(Ordering::Acquire) & INSIDE != 0 {
            spins += 1;
            if spins < SPINS_BEFORE_YIELD {
                hint::spin_loop()
            } else {
                thread::yield_now()
            }
        }
        let panic = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        shared.busy.store(false, Ordering::Release);
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }

    /// Unparks up to `most` sleeping workers.
    fn wake(&self, most: usize) {
        for (worker, asleep) in self.workers.iter().zip(&self.shared.asleep).take(most) {
            if asleep.0.load(Ordering::SeqCst) && asleep.0.swap(false, Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        self.shared.gate.0.fetch_add(EPOCH, Ordering::SeqCst);
        self.wake(usize::MAX);
        for worker in self.workers.drain(..) {
            // A worker catches every panic of its tasks; there is nothing that it could return.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// The life of a worker.
    fn serve(&self, worker: usize) {
        let mut seen = 0;
        loop {
            let mut gate = self.await_epoch(worker, seen);
            if self.closing.load(Ordering::SeqCst) {
                return;
            }
            while gate & OPEN != 0 {
                match self
                    .gate
                    .0
                    .compare_exchange_weak(gate, gate + 1, Ordering::AcqRel, Ordering::Acquire)
                {
                    Ok(_) => {
                        // SAFETY: this thread is counted inside an open gate.
                        unsafe { self.work(worker + 1) };
                        self.gate.0.fetch_sub(1, Ordering::AcqRel);
                        break;
                    }
                    Err(now) => gate = now,
                }
            }
            seen = gate / EPOCH;
        }
    }

    /// Waits until the gate's epoch is another than `seen`, spinning first and then parked.
    fn await_epoch(&self, worker: usize, seen: u64) -> u64 {
        for _ in 0..SPINS {
            let gate = self.gate.0.load(Ordering::Acquire);
            if gate / EPOCH != seen {
                return gate;
            }
            hint::spin_loop();
        }
        let asleep = &self.asleep[worker].0;
        loop {
            asleep.store(true, Ordering::SeqCst);
            let gate = self.gate.0.load(Ordering::SeqCst);
            if gate / EPOCH != seen {
                asleep.store(false, Ordering::SeqCst);
                return gate;
            }
            thread::park();
        }
    }

    /// Takes tasks until none are left.
    ///
    /// # Safety
    /// The calling thread is inside an open gate, or is the one that opened it.
    unsafe fn work(&self, worker: usize) {
        // SAFETY: nobody writes the job while the gate is open or anyone inside.
        let job = unsafe { *self.job.get() };
        let (before, own) = self.spans.split_at(worker);
        let (own, after) = own.split_first().expect("a span for each worker");
        let others = || after.iter().chain(before).find_map(Span::take_last);
        while let Some(task) = own.take_first().or_else(others) {
            // SAFETY: `run` does not return, and so the closure lives, before this thread has left.
            let outcome = catch_unwind(AssertUnwindSafe(|| unsafe { (job.call)(job.task, task) }));
            if let Err(payload) = outcome {
                self.spans.iter().for_each(|span| span.set(0, 0));
                let mut first = self.panic.lock().unwrap_or_else(PoisonError::into_inner);
                match &*first {
                    None => *first = Some(payload),
                    // To drop it could panic again, here where the region must go on.
                    Some(_) => std::mem::forget(payload),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::atomic::AtomicUsize, time::Duration};

    fn each_once(pool: &Pool, tasks: usize) {
        let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
        pool.run(tasks, |i| _ = counts[i].fetch_add(1, Ordering::Relaxed));
        assert!(
            counts.iter().all(|c| c.load(Ordering::Relaxed) == 1),
            "{tasks} tasks on {} threads",
            pool.threads()
        );
    }

    #[test]
    fn every_task_runs_once() {
        for threads in [0, 1, 2, 3, 8] {
            let pool = Pool::new(threads);
            assert_eq!(pool.threads(), threads.max(1));
            for tasks in [0, 1, 2, 3, 7, 64, 1000] {
                each_once(&pool, tasks);
            }
        }
    }

    #[test]
    fn a_worker_takes_its_span_in_order_and_others_from_behind() {
        let span = Span::default();
        assert_eq!((span.take_first(), span.take_last()), (None, None));
        span.set(3, 7);
        let taken = [
            span.take_first(),
            span.take_last(),
            span.take_first(),
            span.take_last(),
        ];
        assert_eq!(taken, [Some(3), Some(6), Some(4), Some(5)]);
        assert_eq!((span.take_first(), span.take_last()), (None, None));
    }

    #[test]
    fn one_thread_does_all_while_the_others_are_busy() {
        let pool = Pool::new(3);
        let (done, entered) = (AtomicUsize::new(0), AtomicUsize::new(0));
        // The first task of each other worker's span waits until all the others are done.
        let (first, second) = (30 / 3, 30 / 3 * 2);
        pool.run(30, |task| {
            if task == first || task == second {
                entered.fetch_add(1, Ordering::SeqCst);
                while done.load(Ordering::SeqCst) < 28 {
                    thread::yield_now();
                }
            } else {
                done.fetch_add(1, Ordering::SeqCst);
            }
        });
        assert_eq!((done.into_inner(), entered.into_inner()), (28, 2));
    }

    #[test]
    fn many_tiny_regions() {
        let pool = Pool::new(3);
        let total = AtomicUsize::new(0);
        for _ in 0..20_000 {
            pool.run(4, |i| _ = total.fetch_add(i, Ordering::Relaxed));
        }
        assert_eq!(total.into_inner(), 20_000 * 6);
    }

    #[test]
    fn regions_after_a_pause_wake_the_workers() {
        let pool = Pool::new(2);
        for _ in 0..20 {
            thread::sleep(Duration::from_millis(2));
            let threads = Mutex::new(std::collections::HashSet::new());
            // Each task waits for the other, so that the region ends only if both threads come.
            let met = AtomicUsize::new(0);
            pool.run(2, |_| {
                threads.lock().unwrap().insert(thread::current().id());
                met.fetch_add(1, Ordering::SeqCst);
                while met.load(Ordering::SeqCst) < 2 {
                    thread::yield_now();
                }
            });
            assert_eq!(threads.into_inner().unwrap().len(), 2);
        }
    }

    #[test]
    fn a_panic_is_raised_in_the_caller_and_the_pool_goes_on() {
        for threads in [1, 2, 4] {
            let pool = Pool::new(threads);
            for at in [0, 5, 99] {
                let caught = catch_unwind(AssertUnwindSafe(|| {
                    pool.run(100, |i| assert!(i != at, "task {i}"));
                }));
                let message = *caught.unwrap_err().downcast::<String>().unwrap();
                assert!(message.ends_with(&format!("task {at}")), "{message}");
                each_once(&pool, 50);
            }
        }
    }

    #[test]
    fn a_second_panic_that_cannot_even_be_dropped_changes_nothing() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                if !thread::panicking() {
                    panic!("dropped");
                }
            }
        }
        let pool = Pool::new(2);
        for _ in 0..20 {
            let met = AtomicUsize::new(0);
            let caught = catch_unwind(AssertUnwindSafe(|| {
                pool.run(2, |_| {
                    // Both panic, so that one of the payloads is left over.
                    met.fetch_add(1, Ordering::SeqCst);
                    while met.load(Ordering::SeqCst) < 2 {
                        thread::yield_now();
                    }
                    resume_unwind(Box::new(Bomb));
                });
            }));
            std::mem::forget(caught.unwrap_err());
            each_once(&pool, 50);
        }
    }

    #[test]
    fn more_tasks_than_can_be_counted_leave_the_pool_whole() {
        let pool = Pool::new(2);
        assert!(catch_unwind(AssertUnwindSafe(|| pool.run(1 << 33, |_| ()))).is_err());
        assert!(!pool.shared.busy.load(Ordering::SeqCst));
    }

    #[test]
    fn a_nested_call_runs_on_its_own_thread() {
        let pool = Pool::new(3);
        let total = AtomicUsize::new(0);
        pool.run(8, |_| {
            let me = thread::current().id();
            pool.run(8, |i| {
                assert_eq!(thread::current().id(), me);
                total.fetch_add(i, Ordering::Relaxed);
            });
        });
        assert_eq!(total.into_inner(), 8 * 28);
    }

    #[test]
    fn concurrent_callers_share_a_pool() {
        let pool = Pool::new(2);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..500).for_each(|n| each_once(&pool, n % 17)));
            }
        });
    }

    #[test]
    fn a_pool_is_dropped_awake_or_parked() {
        for pause in [0, 5] {
            for _ in 0..20 {
                let pool = Pool::new(4);
                each_once(&pool, 9);
                thread::sleep(Duration::from_millis(pause));
                drop(pool);
            }
        }
    }
}
