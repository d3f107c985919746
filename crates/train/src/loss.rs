//! Cross-entropy of logits against a target's likeliest tokens.
//!
//! A row's loss is the sum of p · −log q over its labels in the draft vocabulary, q being a softmax over that vocabulary. The p are not scaled to a
//! sum of 1: what a row can win at most is the probability that its labels have, so a row that the target is unsure of, or whose tokens are
//! mostly outside, should count for less; a row without a label counts for nothing.

use foretoken_spec::math::exp;
use rayon::prelude::*;

use crate::products::{Into, ab, abt};

/// No token of the draft vocabulary.
pub(crate) const OUTSIDE: u32 = u32::MAX;

/// What rows of logits should be.
#[derive(Clone, Debug, Default)]
pub(crate) struct Labels {
    /// `[rows][count]`: position in the draft vocabulary and probability, which is 0 for what does not count.
    pub(crate) labels: Vec<(u32, f32)>,
    /// For each row the position of the likeliest token, or [`OUTSIDE`].
    pub(crate) best: Vec<u32>,
    /// For each row the position of the token that came, or [`OUTSIDE`]; that is what the next head reads.
    pub(crate) next: Vec<u32>,
}

/// What rows of logits were.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RowLoss {
    pub(crate) loss: f32,
    /// Position of the highest logit.
    pub(crate) best: u32,
}

/// Bytes of logits that are in memory at a time.
const LOGITS: usize = 16 << 20;

/// Computes losses of `outputs` [rows][d], whose logits are their products with `head` [V][d].
#[derive(Debug, Default)]
pub(crate) struct CrossEntropy {
    logits: Vec<f32>,
    /// Of the last call, for each row.
    pub(crate) rows: Vec<RowLoss>,
}

impl CrossEntropy {
    /// Fills `rows`, and `gradient` [rows][d] with the derivative of the *mean* loss by the outputs where it is asked for.
    pub(crate) fn compute(
        &mut self,
        outputs: &[f32],
        head: &[f32],
        d: usize,
        labels: &Labels,
        mut gradient: Option<&mut [f32]>,
    ) {
        let vocabulary = head.len() / d;
        let rows = outputs.len() / d;
        let count = labels.labels.len() / rows;
        let scale = 1.0 / rows as f32;
        let slice = (LOGITS / 4 / vocabulary).clamp(16, rows.max(16));
        self.rows.clear();
        self.rows.resize(rows, RowLoss::default());
        self.logits.resize(slice.min(rows) * vocabulary, 0.0);
        for first in (0..rows).step_by(slice) {
            let here = slice.min(rows - first);
            let logits = &mut self.logits[..here * vocabulary];
            abt(
                Into::Place,
                logits,
                &outputs[first * d..][..here * d],
                head,
                d,
                1.0,
            );
            let backward = gradient.is_some().then_some(scale);
            logits
                .par_chunks_mut(vocabulary)
                .zip(labels.labels[first * count..].par_chunks(count))
                .zip(&mut self.rows[first..first + here])
                .for_each(|((logits, labels), row)| *row = row_loss(logits, labels, backward));
            if let Some(gradient) = &mut gradient {
                ab(
                    Into::Place,
                    &mut gradient[first * d..][..here * d],
                    logits,
                    head,
                    vocabulary,
                );
            }
        }
    }
}

/// The loss of one row; with `backward`, `logits` become its derivative times that factor.
fn row_loss(logits: &mut [f32], labels: &[(u32, f32)], backward: Option<f32>) -> RowLoss {
    let highest = max(logits);
    let best = logits.iter().position(|&x| x == highest).unwrap_or(0) as u32;
    let mass: f32 = labels.iter().map(|&(_, p)| p).sum();
    let at_labels: f32 = labels
        .iter()
        .map(|&(at, p)| {
            if p > 0.0 {
                p * (logits[at as usize] - highest)
            } else {
                0.0
            }
        })
        .sum();
    let sum = exp_sum(logits, highest);
    if let Some(scale) = backward {
        let factor = scale * mass / sum;
        logits.iter_mut().for_each(|x| *x *= factor);
        for &(at, p) in labels.iter().filter(|&&(_, p)| p > 0.0) {
            logits[at as usize] -= scale * p;
        }
    }
    RowLoss {
        loss: mass * sum.ln() - at_labels,
        best,
    }
}

/// Sums and maxima go over so many lanes side by side, which compilers turn into vectors.
const LANES: usize = 16;

fn max(x: &[f32]) -> f32 {
    let (chunks, rest) = x.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = if x > *lane { x } else { *lane };
        }
    }
    lanes
        .iter()
        .chain(rest)
        .copied()
        .fold(f32::NEG_INFINITY, f32::max)
}

/// Makes each x e^(x − highest), and sums them.
fn exp_sum(x: &mut [f32], highest: f32) -> f32 {
    let (chunks, rest) = x.as_chunks_mut::<LANES>();
    let mut lanes = [0.0; LANES];
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *x = exp(*x - highest);
            *lane += *x;
        }
    }
    let mut sum = lanes.iter().sum::<f32>();
    for x in rest {
        *x = exp(*x - highest);
        sum += *x;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_count_counts_for_nothing() {
        let logits: Vec<f32> = (0..37).map(|x| (x as f32 * 0.7).sin()).collect();
        let mut a = logits.clone();
        let one = row_loss(&mut a, &[(3, 0.5), (0, 0.0), (0, 0.0)], Some(1.0));
        let mut b = logits.clone();
        let two = row_loss(&mut b, &[(3, 0.5), (9, 0.0), (8, 0.0)], Some(1.0));
        assert_eq!((one.loss, a), (two.loss, b));
        let mut nothing = logits.clone();
        let three = row_loss(&mut nothing, &[(0, 0.0)], Some(1.0));
        assert!(three.loss == 0.0 && nothing.iter().all(|&x| x == 0.0));
        assert_eq!(three.best, 29);
    }
}
