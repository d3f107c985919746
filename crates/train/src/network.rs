//! The network in f32: forward over a batch with teacher forcing, and backward.
//!
//! Head i, with E the target's embedding of the token that was drawn last and H the target's output head:
//!
//! ```text
//! z = proj_i · s + alpha · P_i · E        y = z / rms(z) · weight_i + bias_i        s' = GELU(y)        logits = H · (O_i · s')
//! ```
//!
//! s is the hidden state for head 0, s' of the head before for the others. E and H are not trained.
//!
//! A batch of R rows takes about 4 · R · n · (3 m + 3 d) bytes, beside [`CrossEntropy`]'s bounded logits.

use std::f32::consts::{FRAC_1_SQRT_2, PI};

use foretoken_spec::math::exp;
use rayon::prelude::*;

use crate::loss::{CrossEntropy, Labels, RowLoss};
use crate::products::{Into, ab, abt, atb};
use crate::shape::{Layout, NetworkShape};

const EPSILON: f32 = 1e-6;

/// Rows to learn from: for each of them a state and, for each head, a token and what should follow it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Batch {
    pub(crate) rows: usize,
    /// `[rows][d]`, as the target left them.
    pub(crate) states: Vec<f32>,
    /// For each head `[rows][d]`: the target's embeddings of the tokens drawn last.
    pub(crate) embeddings: Vec<Vec<f32>>,
    /// For each head.
    pub(crate) labels: Vec<Labels>,
}

/// What a head made of a batch.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeadState {
    /// z / rms(z), `[rows][m]`.
    normed: Vec<f32>,
    /// 1 / rms(z), for each row.
    scales: Vec<f32>,
    /// Before the GELU, `[rows][m]`.
    y: Vec<f32>,
    /// s', `[rows][m]`.
    pub(crate) next: Vec<f32>,
    /// O · s', `[rows][d]`.
    pub(crate) outputs: Vec<f32>,
}

/// The network: its parameters, and the buffers of a batch.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) shape: NetworkShape,
    pub(crate) layout: Layout,
    pub(crate) parameters: Vec<f32>,
    /// Of the last [`Network::learn`], as long as the parameters.
    pub(crate) gradient: Vec<f32>,
    input: Vec<f32>,
    pub(crate) heads: Vec<HeadState>,
    loss: CrossEntropy,
    /// Derivatives by `outputs`, by `next` and by what `next` was made of.
    d_outputs: Vec<f32>,
    d_next: Vec<f32>,
    d_z: Vec<f32>,
}

impl Network {
    pub(crate) fn new(shape: NetworkShape) -> Self {
        let layout = Layout::new(&shape);
        Self {
            parameters: vec![0.0; layout.len],
            gradient: vec![0.0; layout.len],
            heads: vec![HeadState::default(); shape.heads],
            shape,
            layout,
            input: Vec::new(),
            loss: CrossEntropy::default(),
            d_outputs: Vec::new(),
            d_next: Vec::new(),
            d_z: Vec::new(),
        }
    }

    /// What head `i` reads of the last batch that went through those before it.
    pub(crate) fn state(&self, i: usize) -> &[f32] {
        if i == 0 {
            &self.input
        } else {
            &self.heads[i - 1].next
        }
    }

    /// The first `heads` heads over a batch, up to their outputs.
    pub(crate) fn forward(&mut self, batch: &Batch, heads: usize) {
        let NetworkShape {
            hidden_size: d,
            inner_size: m,
            ..
        } = self.shape;
        let (alpha, parameters) = (self.shape.alpha(), &self.parameters);
        self.input.clone_from(&batch.states);
        if self.shape.scale_input {
            self.input.par_chunks_mut(d).for_each(|row| {
                let scale = inverse_rms(row) * FRAC_1_SQRT_2;
                row.iter_mut().for_each(|x| *x *= scale);
            });
        }
        for i in 0..heads {
            let at = &self.layout.heads[i];
            let (before, rest) = self.heads.split_at_mut(i);
            let state = before.last().map_or(&self.input, |head| &head.next);
            let head = &mut rest[0];
            head.normed.resize(batch.rows * m, 0.0);
            head.y.resize(batch.rows * m, 0.0);
            head.next.resize(batch.rows * m, 0.0);
            head.scales.resize(batch.rows, 0.0);
            head.outputs.resize(batch.rows * d, 0.0);
            let z = &mut head.normed;
            let size = self.shape.state_size(i);
            abt(Into::Place, z, state, &parameters[at.proj.clone()], size, 1.0);
            abt(
                Into::Sum,
                z,
                &batch.embeddings[i],
                &parameters[at.embedding.clone()],
                d,
                alpha,
            );
            let (weight, bias) = (&parameters[at.weight.clone()], &parameters[at.bias.clone()]);
            let outs = head
                .y
                .par_chunks_mut(m)
                .zip(head.next.par_chunks_mut(m))
                .zip(&mut head.scales);
            z.par_chunks_mut(m).zip(outs).for_each(|(z, ((y, next), scale))| {
                *scale = inverse_rms(z);
                for j in 0..m {
                    z[j] *= *scale;
                    y[j] = z[j] * weight[j] + bias[j];
                    next[j] = y[j] * normal(y[j]);
                }
            });
            abt(
                Into::Place,
                &mut head.outputs,
                &head.next,
                &parameters[at.output.clone()],
                m,
                1.0,
            );
        }
    }

    /// Losses of head `i`'s outputs, row by row.
    pub(crate) fn losses(&mut self, batch: &Batch, i: usize, head: &[f32]) -> &[RowLoss] {
        let outputs = &self.heads[i].outputs;
        self.loss
            .compute(outputs, head, self.shape.hidden_size, &batch.labels[i], None);
        &self.loss.rows
    }

    /// Fills `gradient` with the derivative of the sum over heads of the mean losses, which are returned.
    pub(crate) fn learn(&mut self, batch: &Batch, head: &[f32]) -> Vec<f64> {
        let NetworkShape {
            hidden_size: d,
            inner_size: m,
            heads,
            ..
        } = self.shape;
        let (alpha, rows) = (self.shape.alpha(), batch.rows);
        self.forward(batch, heads);
        self.gradient.fill(0.0);
        self.d_outputs.resize(rows * d, 0.0);
        self.d_next.clear();
        self.d_next.resize(rows * m, 0.0);
        self.d_z.resize(rows * m, 0.0);
        let (parameters, gradient) = (&self.parameters, &mut self.gradient);
        let mut losses = vec![0.0; heads];
        for i in (0..heads).rev() {
            let at = &self.layout.heads[i];
            let state = &self.heads[i];
            let (d_outputs, d_next, d_z) = (&mut self.d_outputs, &mut self.d_next, &mut self.d_z);
            self.loss
                .compute(&state.outputs, head, d, &batch.labels[i], Some(&mut *d_outputs));
            losses[i] = mean(&self.loss.rows);
            let output = &mut gradient[at.output.clone()];
            atb(Into::Sum, output, d_outputs, &state.next, rows, 1.0);
            ab(Into::Sum, d_next, d_outputs, &parameters[at.output.clone()], d);
            // From here on `d_next` holds the derivative by y.
            d_next
                .par_iter_mut()
                .zip(&state.y)
                .for_each(|(d, &y)| *d *= gelu_slope(y));
            let (d_weight, d_bias) = (at.weight.start, at.bias.start);
            for (d_y, normed) in d_next.chunks_exact(m).zip(state.normed.chunks_exact(m)) {
                for j in 0..m {
                    gradient[d_weight + j] += d_y[j] * normed[j];
                    gradient[d_bias + j] += d_y[j];
                }
            }
            let weight = &parameters[at.weight.clone()];
            let ins = d_next
                .par_chunks(m)
                .zip(state.normed.par_chunks(m))
                .zip(&state.scales);
            d_z.par_chunks_mut(m)
                .zip(ins)
                .for_each(|(d_z, ((d_y, normed), scale))| {
                    let mut along = 0.0;
                    for j in 0..m {
                        d_z[j] = d_y[j] * weight[j];
                        along += d_z[j] * normed[j];
                    }
                    along /= m as f32;
                    for j in 0..m {
                        d_z[j] = scale * (d_z[j] - normed[j] * along);
                    }
                });
            let before = if i == 0 {
                &self.input
            } else {
                &self.heads[i - 1].next
            };
            atb(Into::Sum, &mut gradient[at.proj.clone()], d_z, before, rows, 1.0);
            let embedding = &mut gradient[at.embedding.clone()];
            atb(Into::Sum, embedding, d_z, &batch.embeddings[i], rows, alpha);
            if i > 0 {
                ab(Into::Place, d_next, d_z, &parameters[at.proj.clone()], m);
            }
        }
        losses
    }
}

/// The mean loss of rows, in one order of additions.
pub(crate) fn mean(rows: &[RowLoss]) -> f64 {
    rows.iter().map(|row| f64::from(row.loss)).sum::<f64>() / rows.len() as f64
}

fn inverse_rms(x: &[f32]) -> f32 {
    let (chunks, rest) = x.as_chunks::<16>();
    let mut lanes = [0.0; 16];
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane += x * x;
        }
    }
    let sum = lanes.iter().sum::<f32>() + rest.iter().map(|x| x * x).sum::<f32>();
    1.0 / (sum / x.len() as f32 + EPSILON).sqrt()
}

/// How likely a normal variable is to be below x.
fn normal(x: f32) -> f32 {
    0.5 * (1.0 + libm::erff(x * FRAC_1_SQRT_2))
}

/// The derivative of GELU(x) = x · normal(x).
fn gelu_slope(x: f32) -> f32 {
    normal(x) + x * exp(-0.5 * x * x) / (2.0 * PI).sqrt()
}

#[cfg(test)]
#[path = "network_tests.rs"]
mod tests;
