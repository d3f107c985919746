//! What a computation runs on: an instruction set and a pool.
//!
//! An [`Isa`] proves by its existence that this machine has it: the variants beyond `Scalar` carry a token
//! that only detection hands out, so that safe code can never reach an instruction that is not there.
use crate::Pool;

/// Proof that this machine has AVX2, FMA and F16C. Where it does not, no value of this type exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx2(());

impl Avx2 {
    /// The proof, if this machine has the features. The answer never changes while a program runs.
    pub fn new() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
        {
            return Some(Self(()));
        }
        None
    }
}

/// An instruction set that kernels exist for and that this machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Portable code: the reference that the others equal bit by bit.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2(Avx2),
}

impl Isa {
    /// The best instruction set of this machine.
    pub fn detect() -> Self {
        Avx2::new().map_or(Self::Scalar, Self::Avx2)
    }

    /// All that this machine has, the portable one first.
    pub fn available() -> Vec<Self> {
        std::iter::once(Self::Scalar)
            .chain(Avx2::new().map(Self::Avx2))
            .collect()
    }

    /// `scalar`, `avx2`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2(_) => "avx2",
        }
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
        Self::with_isa(Isa::detect(), threads)
    }

    /// A given instruction set.
    pub fn with_isa(isa: Isa, threads: usize) -> Self {
        Self {
            isa,
            pool: Pool::new(threads),
        }
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
