//! Parameters before the first step.
//!
//! *Regression*: since GELU(x) − GELU(−x) = x, a head whose inner states hold each value with both signs can be linear. proj = [A; −A] and
//! P = [B; −B] make z a guess of the target's next hidden state and its negative, where A and B come from a ridge regression over training
//! rows, and O = [I, −I] takes the guess out again: the head begins as the target's own output head over that guess. The norm in between
//! takes the guess's length, which no argmax depends on; O gives back the mean one. Later heads read the guess before them by
//! [I, −I] in the same way. Inner values beyond 2 d begin small and random, and unheard by O.

use std::f32::consts::TAU;

use faer::linalg::solvers::Solve;
use faer::{Mat, Side};

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
        let mut fit = Fit::new(if alone { d } else { 2 * d }, d);
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
                let a = solution[(j, r)] as f32 / guess_size;
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
                let b = solution[(d + j, r)] as f32 * factor;
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

    /// The weights [inputs, outputs] and the root of the mean square of what they foretell.
    fn solve(self) -> Option<(Mat<f64>, f32)> {
        let n = self.inputs;
        let trace = (0..n).map(|j| self.gram[j * n + j]).sum::<f64>();
        let gram = Mat::from_fn(n, n, |i, j| {
            let own = if i == j {
                RIDGE * self.gram[i * n + i] + 1e-6 * trace / n as f64
            } else {
                0.0
            };
            self.gram[i * n + j] + own
        });
        let cross = Mat::from_fn(n, self.outputs, |i, j| self.cross[i * self.outputs + j]);
        let solution = gram.llt(Side::Lower).ok()?.solve(&cross);
        let square: f64 = (0..self.outputs)
            .map(|j| (0..n).map(|i| solution[(i, j)] * cross[(i, j)]).sum::<f64>())
            .sum();
        let size = (square / (self.rows * self.outputs) as f64).sqrt();
        size.is_finite().then_some((solution, size as f32))
    }
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
