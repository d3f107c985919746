//! What a machine can do at most: bytes read and int8 multiply-adds a second. Every pass has to pay both, so that
//! `max(bytes / read rate, multiply-adds / int8 rate)` is the floor of its time.
//!
//! One call is one measurement of some milliseconds. A machine that others share drifts: measure again and
//! again, among what is to be compared with it, and take medians.
use crate::activation::MAX_SWEEP;
use crate::memory::{Arena, ArenaBytes, Disjoint};
use crate::packed::VECTOR;
use crate::vector::lanes::{LANES, Lanes, dispatch};
use crate::{Compute, Isa};
use std::hint::black_box;
use std::time::Instant;

/// Bytes that are read: several times the last-level cache that a few cores can use.
const MEMORY: usize = 256 << 20;
/// Bytes of a task: as many as one of `matmul` has.
const READ_TASK: usize = 1 << 16;
/// Steps of a tile in one task: some hundred microseconds.
const STEPS: usize = 1 << 15;

/// Measures the ceilings.
#[derive(Debug)]
pub struct Ceilings {
    memory: ArenaBytes,
}

impl Ceilings {
    /// Takes the memory to read, 256 MiB.
    ///
    /// # Errors
    /// If the system does not have it.
    pub fn new(compute: &Compute) -> std::io::Result<Self> {
        let memory = Arena::new().fill(MEMORY, |bytes| {
            let bytes = Disjoint::new(bytes);
            // Untouched pages would all be one page of zeros, in the cache.
            compute.pool().run(MEMORY / READ_TASK, |task| {
                // SAFETY: each part is one task's.
                unsafe { bytes.part(task * READ_TASK..(task + 1) * READ_TASK) }.fill(0x3c)
            });
        })?;
        Ok(Self { memory })
    }

    /// Bytes a second that all threads of the pool together read from memory.
    pub fn read_rate(&self, compute: &Compute) -> f64 {
        let start = Instant::now();
        compute.pool().run(MEMORY / READ_TASK, |task| {
            let bytes = &self.memory[task * READ_TASK..(task + 1) * READ_TASK];
            let mut sum = 0.0;
            read(compute.isa(), bytes, &mut sum);
            black_box(sum);
        });
        MEMORY as f64 / start.elapsed().as_secs_f64()
    }

    /// Multiply-adds a second of unsigned with signed bytes, summed exactly, that all threads of the pool
    /// together do on operands from the nearest cache.
    pub fn int8_rate(&self, compute: &Compute) -> f64 {
        let tasks = 16 * compute.pool().threads();
        let start = Instant::now();
        compute.pool().run(tasks, |_| match compute.isa() {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(proof) => crate::kernels::avx2::ceiling::multiply_adds(proof, STEPS),
            _ => multiply_adds(STEPS),
        });
        (tasks * STEPS * MAX_SWEEP * VECTOR) as f64 / start.elapsed().as_secs_f64()
    }
}

/// Sums floats, with more sums at a time than the addition takes cycles.
fn read(isa: Isa, bytes: &[u8], sum: &mut f32) {
    // SAFETY: all bits are floats; the bytes begin at a multiple of 64.
    let (_, floats, _) = unsafe { bytes.align_to::<[[f32; LANES]; 8]>() };
    dispatch!(isa, read_lanes, floats: &[[[f32; LANES]; 8]], sum: &mut f32)
}

#[inline(always)]
fn read_lanes<L: Lanes>(l: L, floats: &[[[f32; LANES]; 8]], sum: &mut f32) {
    let mut sums = [l.splat(0.0); 8];
    for block in floats {
        for (sum, x) in sums.iter_mut().zip(block) {
            *sum = l.add(*sum, l.load(x));
        }
    }
    *sum = sums.into_iter().map(|s| l.sum(s)).sum();
}

/// The portable form of the steps.
fn multiply_adds(steps: usize) {
    let (weights, x): ([u8; VECTOR], [[i8; 4]; MAX_SWEEP]) = black_box(([3; VECTOR], [[-7; 4]; MAX_SWEEP]));
    let mut sums = [[0i32; VECTOR / 4]; MAX_SWEEP];
    for _ in 0..steps {
        for (sums, x) in sums.iter_mut().zip(&x) {
            for (sum, w) in sums.iter_mut().zip(weights.chunks(4)) {
                *sum += w
                    .iter()
                    .zip(x)
                    .map(|(&w, &x)| i32::from(w) * i32::from(x))
                    .sum::<i32>();
            }
        }
        black_box(&mut sums);
    }
}
