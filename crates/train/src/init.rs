//! Parameters before the first step.
//!
//! *Regression*: since GELU(x) − GELU(−x) = x, a head whose inner states hold each value with both signs can be linear. proj = [A; −A] and
//! P = [B; −B] make z a guess of the target's next hidden state and its negative, where A and B come from a ridge regression over training
//! rows, and O = [I, −I] takes the guess out again: the head begins as the target's own output head over that guess. The norm in between
//! takes the guess's length, which no argmax depends on; O gives back the mean one. Later heads read the guess before them by
//! [I, −I] in the same way. Inner values beyond 2 d begin small and random, and unheard by O.

use std::f32::consts::TAU;

use rayon::prelude::*;

use crate::network::{Batch, Network};
use crate::products::{Into, abt, atb};
use crate::samples::Samples;
use crate::shape::NetworkShape;
use crate::trainer::{Tables, TrainError, TrainOptions};

/// Rows that a fit reads at a time.
const BLOCK: usize = 2048;
/// The most rows of a fit, or so many for each value of its input where that is more.
const FIT_ROWS: usize = 1 << 16;
const FIT_ROWS_PER_INPUT: usize = 24;
/// What is added to the diagonal of a fit's normal equations, as a share of it.
const RIDGE: f64 = 1e-3;

/// Normally distributed values.
fn fill(rng: &mut fastrand::Rng, values: &mut [f32], deviation: f32) {
    for value in values {
        let radius = (-2.0 * (1.0 - rng.f32()).max(f32::MIN_POSITIVE).ln()).sqrt();
        *value = deviation * radius * (TAU * rng.f32()).cos();
    }
}

/// As published speculators begin: what enters z has a deviation of 1/√m by the embedding; logits begin small.
pub(crate) fn random(network: &mut Network, tables: &Tables<'_>, seed: u64) {
    let NetworkShape {
        hidden_size: d,
        inner_size: m,
        ..
    } = network.shape;
    let mut rng = fastrand::Rng::with_seed(seed);
    let embedding = embedding_rms(tables, d);
    let head = rms(tables.head);
    let (layout, parameters) = (&network.layout, &mut network.parameters);
    let inner = 1.0 / (m as f32).sqrt();
    for tensor in &layout.tensors {
        let values = &mut parameters[tensor.range.clone()];
        match tensor.name.split('.').nth(1) {
            Some("proj") => fill(&mut rng, values, inner),
            Some("emb_proj") => fill(&mut rng, values, inner / (embedding * (d as f32).sqrt())),
            // Logits then begin with a deviation of about that of s'.
            Some("head_proj") => fill(&mut rng, values, inner / (head * (d as f32).sqrt())),
            _ => values.fill(if tensor.name.ends_with("weight") { 1.0 } else { 0.0 }),
        }
    }
}

/// Fits head after head, each over what those before it make of the rows.
pub(crate) fn regression(
    network: &mut Network,
    tables: &Tables<'_>,
    samples: &mut Samples,
    options: &TrainOptions,
) -> Result<(), TrainError> {
    let shape = network.shape;
    let NetworkShape {
        hidden_size: d,
        inner_size: m,
        heads,
        tied,
        ..
    } = shape;
    random(network, tables, options.seed);
    let rest = network.layout.heads.clone();
    for at in &rest {
        let parameters = &mut network.parameters;
        parameters[at.output.clone()].fill(0.0);
    }
    let count = samples
        .training
        .len()
        .min(FIT_ROWS.max(FIT_ROWS_PER_INPUT * 2 * d));
    let rows = samples.of_step(0, count);
    let mut guess_size = 1.0;
    for i in 0..heads.min(if tied { 2 } else { heads }) {
        let alone = tied && i > 0;
        let at = network.layout.heads[i].clone();
        let fitted = if alone { d } else { 2 * d };
        let mut fit = Fit::new(fitted, d);
        let mut batch = Batch::default();
        let mut targets = Vec::new();
        for rows in rows.chunks(BLOCK) {
            samples.read(rows, tables, options, &mut batch)?;
            samples.read_states(rows, i + 1, &mut targets)?;
            network.forward(&batch, i);
            let state = network.state(i);
            let states = state
                .chunks_exact(shape.state_size(i))
                .flat_map(|s| (0..d).map(move |j| if i == 0 { s[j] } else { s[j] - s[d + j] }));
            if alone {
                // The embedding's part is the first head's: what is left over is fitted.
                let b = &network.parameters[at.embedding.clone()][..d * d];
                let factor = -shape.alpha() * guess_size;
                abt(Into::Sum, &mut targets, &batch.embeddings[i], b, d, factor);
                fit.add(&states.collect::<Vec<_>>(), &targets);
            } else {
                let states: Vec<f32> = states.collect();
                let inputs: Vec<f32> = states
                    .chunks_exact(d)
                    .zip(batch.embeddings[i].chunks_exact(d))
                    .flat_map(|(s, e)| s.iter().chain(e).copied())
                    .collect();
                fit.add(&inputs, &targets);
            }
        }
        let (solution, size) = fit.solve().ok_or_else(|| {
            TrainError::Data(format!("rows from which no regression for head {i} can be made"))
        })?;
        if !alone {
            guess_size = size.max(1e-6);
        }
        let parameters = &mut network.parameters;
        let proj = &mut parameters[at.proj];
        let width = shape.state_size(i);
        for r in 0..d {
            let (upper, lower) = proj.split_at_mut(d * width);
            let (upper, lower) = (&mut upper[r * width..][..width], &mut lower[r * width..][..width]);
            upper.fill(0.0);
            for j in 0..d {
                let a = solution[r * fitted + j] as f32 / guess_size;
                upper[j] = a;
                if i > 0 {
                    upper[d + j] = -a;
                }
            }
            lower
                .iter_mut()
                .zip(upper)
                .for_each(|(lower, upper)| *lower = -*upper);
        }
        if alone {
            continue;
        }
        let factor = 1.0 / (guess_size * shape.alpha());
        for r in 0..d {
            for j in 0..d {
                let b = solution[r * fitted + d + j] as f32 * factor;
                parameters[at.embedding.start + r * d + j] = b;
                parameters[at.embedding.start + (d + r) * d + j] = -b;
            }
            parameters[at.output.start + r * m + r] = guess_size;
            parameters[at.output.start + r * m + d + r] = -guess_size;
        }
    }
    Ok(())
}

/// A ridge regression by its normal equations.
struct Fit {
    inputs: usize,
    outputs: usize,
    rows: usize,
    gram: Vec<f64>,
    cross: Vec<f64>,
    block: Vec<f32>,
}

impl Fit {
    fn new(inputs: usize, outputs: usize) -> Self {
        let (gram, cross) = (vec![0.0; inputs * inputs], vec![0.0; inputs * outputs]);
        Self {
            inputs,
            outputs,
            rows: 0,
            gram,
            cross,
            block: Vec::new(),
        }
    }

    fn add(&mut self, x: &[f32], y: &[f32]) {
        let rows = x.len() / self.inputs;
        self.rows += rows;
        for (sums, with) in [(&mut self.gram, x), (&mut self.cross, y)] {
            self.block.resize(sums.len(), 0.0);
            atb(Into::Place, &mut self.block, x, with, rows, 1.0);
            sums.iter_mut()
                .zip(&self.block)
                .for_each(|(sum, &x)| *sum += f64::from(x));
        }
    }

    /// The weights [outputs, inputs] and the root of the mean square of what they foretell.
    fn solve(mut self) -> Option<(Vec<f64>, f32)> {
        let n = self.inputs;
        let trace = (0..n).map(|j| self.gram[j * n + j]).sum::<f64>();
        for j in 0..n {
            let own = &mut self.gram[j * n + j];
            *own += RIDGE * *own + 1e-6 * trace / n as f64;
        }
        if !factor(&mut self.gram, n) {
            return None;
        }
        let outputs = self.outputs;
        let column = |j: usize| self.cross.iter().skip(j).step_by(outputs);
        let mut solution: Vec<f64> = (0..outputs).flat_map(column).copied().collect();
        solution
            .par_chunks_mut(n)
            .for_each(|x| substitute(&self.gram, n, x));
        let square: f64 = (0..outputs)
            .map(|j| column(j).zip(&solution[j * n..]).map(|(c, x)| c * x).sum::<f64>())
            .sum();
        let size = (square / (self.rows * outputs) as f64).sqrt();
        size.is_finite().then_some((solution, size as f32))
    }
}

/// Cholesky: the lower triangle of a symmetric `matrix` [n, n] becomes L, with L · Lᵀ the matrix. `false` if it is not positive definite.
fn factor(matrix: &mut [f64], n: usize) -> bool {
    for i in 0..n {
        let (before, rest) = matrix.split_at_mut(i * n);
        let row = &mut rest[..=i];
        for j in 0..i {
            let other = &before[j * n..][..=j];
            row[j] = (row[j] - dot(&row[..j], &other[..j])) / other[j];
        }
        let own = row[i] - dot(&row[..i], &row[..i]);
        if !(own > 0.0 && own.is_finite()) {
            return false;
        }
        row[i] = own.sqrt();
    }
    true
}

/// Replaces `x` by the solution of L · Lᵀ · y = x.
fn substitute(lower: &[f64], n: usize, x: &mut [f64]) {
    for i in 0..n {
        let row = &lower[i * n..][..=i];
        x[i] = (x[i] - dot(&row[..i], &x[..i])) / row[i];
    }
    for i in (0..n).rev() {
        let row = &lower[i * n..][..=i];
        x[i] /= row[i];
        let (before, own) = x.split_at_mut(i);
        before.iter_mut().zip(row).for_each(|(x, l)| *x -= l * own[0]);
    }
}

/// In one order of additions that suits vectors.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let (a, rest_a) = a.as_chunks::<8>();
    let (b, rest_b) = b.as_chunks::<8>();
    let mut lanes = [0.0; 8];
    for (a, b) in a.iter().zip(b) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += a * b;
        }
    }
    let rest: f64 = rest_a.iter().zip(rest_b).map(|(a, b)| a * b).sum();
    lanes.iter().sum::<f64>() + rest
}

fn rms(x: &[f32]) -> f32 {
    let sum: f64 = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    ((sum / x.len() as f64).sqrt() as f32).max(1e-12)
}

/// Of the draft vocabulary's rows.
fn embedding_rms(tables: &Tables<'_>, d: usize) -> f32 {
    let mut rows = vec![0.0; tables.draft_vocabulary.len().min(4096) * d];
    for (row, &token) in rows.chunks_exact_mut(d).zip(tables.draft_vocabulary) {
        (tables.embedding)(token, row);
    }
    rms(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equations_are_solved() {
        let mut rng = fastrand::Rng::with_seed(5);
        for n in [1, 7, 8, 33, 150] {
            let root: Vec<f64> = (0..n * n).map(|_| rng.f64() - 0.5).collect();
            let at = |i: usize, j: usize| {
                let product = (0..n).map(|k| root[i * n + k] * root[j * n + k]).sum::<f64>();
                product + if i == j { 0.1 } else { 0.0 }
            };
            let matrix: Vec<f64> = (0..n * n).map(|e| at(e / n, e % n)).collect();
            let wanted: Vec<f64> = (0..n).map(|_| rng.f64() - 0.5).collect();
            let mut x: Vec<f64> = matrix
                .chunks_exact(n)
                .map(|row| row.iter().zip(&wanted).map(|(a, b)| a * b).sum())
                .collect();
            let mut lower = matrix.clone();
            assert!(factor(&mut lower, n));
            substitute(&lower, n, &mut x);
            let error = x
                .iter()
                .zip(&wanted)
                .map(|(a, b)| (a - b).abs())
                .fold(0.0, f64::max);
            assert!(error < 1e-9, "{n}: {error}");
        }
        assert!(!factor(&mut [1.0, 2.0, 2.0, 1.0], 2));
        assert!(!factor(&mut [f64::NAN], 1));
    }
}
