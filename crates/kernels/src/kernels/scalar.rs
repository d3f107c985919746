//! The reference in portable code.
use super::{FLOAT_RUN, TileOut};
use crate::Format;
use crate::activation::{block_32, block_256};
use crate::block::{Block, MAX_BLOCK};
use crate::format::{Mins, Scales, Spec};
use crate::matrix::{Tile, bf16_at, f16_at, f32_at};
use crate::packed::{LANES, unpack_block};
use half::f16;

/// `out[r][lane]` for every row of the sweep `x`.
pub(super) fn product(format: Format, tile: Tile<'_>, x: &[u32], out: &mut TileOut) {
    out.fill([0.0; LANES]);
    match format {
        Format::F32 => float(|at| f32_at(tile.codes, at), tile.cols, x, out),
        Format::F16 => float(|at| f16_at(tile.codes, at), tile.cols, x, out),
        Format::BF16 => float(|at| bf16_at(tile.codes, at), tile.cols, x, out),
        _ => quantized(&format.spec().expect("not a float format"), tile, x, out),
    }
}

fn float(weight: impl Fn(usize) -> f32, cols: usize, x: &[u32], out: &mut TileOut) {
    let n = out.len();
    for start in (0..cols).step_by(FLOAT_RUN) {
        for (i, acc) in out.iter_mut().enumerate() {
            for (lane, acc) in acc.iter_mut().enumerate() {
                let part = (start..cols.min(start + FLOAT_RUN)).fold(0.0, |part, k| {
                    weight(k * LANES + lane).mul_add(f32::from_bits(x[k * n + i]), part)
                });
                *acc += part;
            }
        }
    }
}

fn quantized(spec: &Spec, tile: Tile<'_>, x: &[u32], out: &mut TileOut) {
    let n = out.len();
    let words = if spec.block == 32 {
        block_32::WORDS
    } else {
        block_256::WORDS
    };
    let metas = tile.meta.chunks_exact(spec.meta_bytes());
    let codes = tile.codes.chunks_exact(spec.code_bytes());
    let mut block = Block::ZERO;
    for ((meta, codes), x) in metas.zip(codes).zip(x.chunks_exact(words * n)) {
        for lane in 0..LANES {
            unpack_block(spec, meta, codes, lane, &mut block);
            for (i, acc) in out.iter_mut().enumerate() {
                add_block(spec, &block, x, n, i, &mut acc[lane]);
            }
        }
    }
}

/// Adds the product of one block of weights and of row `i`'s activations.
fn add_block(spec: &Spec, block: &Block, x: &[u32], n: usize, i: usize, acc: &mut f32) {
    let mut activations = [0i8; MAX_BLOCK];
    for (step, codes) in activations[..spec.block].chunks_exact_mut(4).enumerate() {
        codes.copy_from_slice(&x[step * n + i].to_le_bytes().map(|byte| byte as i8));
    }
    let float = |at: usize| f32::from_bits(x[at * n + i]);
    let (d, m) = (f16::from_bits(block.d).to_f32(), f16::from_bits(block.m).to_f32());

    let (mut dot, mut mins) = (0i32, 0i32);
    let groups = block
        .codes
        .chunks_exact(spec.group)
        .zip(activations[..spec.block].chunks_exact(spec.group));
    for (g, (codes, activations)) in groups.enumerate() {
        let scale = if spec.scales == Scales::None {
            1
        } else {
            i32::from(block.scales[g])
        };
        let sum: i32 = codes
            .iter()
            .zip(activations)
            .map(|(&c, &a)| spec.value(c) * i32::from(a))
            .sum();
        dot += scale * sum;
        mins += i32::from(block.mins[g]) * activations.iter().map(|&a| i32::from(a)).sum::<i32>();
    }
    let d_a = float(if spec.block == 32 {
        block_32::D
    } else {
        block_256::D
    });
    *acc = (d * d_a).mul_add(dot as f32, *acc);
    match spec.mins {
        Mins::None => {}
        Mins::PerBlock => *acc = m.mul_add(float(block_32::S), *acc),
        Mins::PerGroup => *acc = (-(m * d_a)).mul_add(mins as f32, *acc),
    }
}
