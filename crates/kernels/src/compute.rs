//! What a computation runs on: an instruction set and a pool.
use crate::Pool;

/// An instruction set that kernels exist for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Portable code.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
}

impl Isa {
    /// The best instruction set of this machine.
    pub fn detect() -> Self {
        todo!()
    }
    /// `scalar`, `avx2`.
    pub fn name(self) -> &'static str {
        todo!()
    }
}

/// An instruction set and the threads to use. Shared by target and draft.
#[derive(Debug)]
pub struct Compute {
    isa: Isa,
    pool: Pool,
}

impl Compute {
    /// The best instruction set of this machine and `threads` threads.
    pub fn new(threads: usize) -> Self {
        Self { isa: Isa::detect(), pool: Pool::new(threads) }
    }
    /// A given instruction set; `None` if this machine does not have it.
    pub fn with_isa(_isa: Isa, _threads: usize) -> Option<Self> {
        todo!()
    }
    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }
    /// The pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }
}
