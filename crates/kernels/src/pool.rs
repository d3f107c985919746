//! The thread pool: spin, then park. The caller is worker 0.

/// Threads that run the tasks of one region at a time.
#[derive(Debug)]
pub struct Pool {}

impl Pool {
    /// A pool of `threads` workers, the caller included; 0 counts as 1.
    pub fn new(_threads: usize) -> Self {
        todo!()
    }
    /// Workers, the caller included.
    pub fn threads(&self) -> usize {
        todo!()
    }
    /// Runs `task(i)` for every i in 0…tasks, on all workers, and returns when all are done. A panic in a
    /// task is raised again here. Nested and concurrent calls run on the calling thread alone.
    pub fn run(&self, _tasks: usize, _task: impl Fn(usize) + Sync) {
        todo!()
    }
}
