//! AdamW (Loshchilov, Hutter 2019, arXiv 1711.05101) with a schedule and a bound on the gradient's length.

use std::f64::consts::PI;

use rayon::prelude::*;

const BETA_1: f32 = 0.9;
const BETA_2: f32 = 0.95;
const EPSILON: f32 = 1e-8;
/// The schedule's last learning rate, as a share of its highest.
const LAST: f64 = 0.01;
/// So many parameters are worked on at a time; sums go over one such piece and then over pieces, whatever the threads.
const PIECE: usize = 1 << 14;

/// The learning rate of step `step` of `steps`: it rises in a line over the first `warmup` of them, then falls along a cosine.
pub(crate) fn learning_rate(highest: f64, warmup: f64, step: u64, steps: u64) -> f64 {
    let rising = (warmup * steps as f64).round();
    let at = step as f64;
    if at < rising {
        return highest * (at + 1.0) / rising;
    }
    let share = (at - rising) / (steps as f64 - rising).max(1.0);
    highest * (LAST + (1.0 - LAST) * 0.5 * (1.0 + (PI * share.min(1.0)).cos()))
}

/// The length of a vector.
pub(crate) fn norm(x: &[f32]) -> f64 {
    let piece = |x: &[f32]| {
        let (chunks, rest) = x.as_chunks::<16>();
        let mut lanes = [0.0f32; 16];
        for chunk in chunks {
            for (lane, x) in lanes.iter_mut().zip(chunk) {
                *lane += x * x;
            }
        }
        lanes.iter().map(|&x| f64::from(x)).sum::<f64>() + rest.iter().map(|&x| f64::from(x * x)).sum::<f64>()
    };
    let pieces: Vec<f64> = x.par_chunks(PIECE).map(piece).collect();
    pieces.iter().sum::<f64>().sqrt()
}

/// Moving means of the gradient and of its square.
#[derive(Debug)]
pub(crate) struct Moments {
    pub(crate) first: Vec<f32>,
    pub(crate) second: Vec<f32>,
}

/// One step's rates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rates {
    pub(crate) learning_rate: f64,
    pub(crate) weight_decay: f64,
    /// The gradient is made no longer than this.
    pub(crate) clip: f64,
}

impl Moments {
    pub(crate) fn new(len: usize) -> Self {
        Self {
            first: vec![0.0; len],
            second: vec![0.0; len],
        }
    }

    /// Step `step`, counted from 0. The first `decayed` parameters lose some of their size. Returns the length that the gradient had;
    /// where that is no number, nothing is changed.
    pub(crate) fn step(
        &mut self,
        step: u64,
        rates: Rates,
        parameters: &mut [f32],
        decayed: usize,
        gradient: &[f32],
    ) -> f64 {
        let length = norm(gradient);
        if !length.is_finite() {
            return length;
        }
        let clip = (rates.clip / length.max(1e-12)).min(1.0) as f32;
        let steps = (step + 1) as f64;
        let unbias_1 = 1.0 / (1.0 - f64::from(BETA_1).powf(steps));
        let unbias_2 = (1.0 / (1.0 - f64::from(BETA_2).powf(steps))) as f32;
        let rate = (rates.learning_rate * unbias_1) as f32;
        let decay = (rates.learning_rate * rates.weight_decay) as f32;
        let moments = self
            .first
            .par_chunks_mut(PIECE)
            .zip(self.second.par_chunks_mut(PIECE));
        let pieces = parameters
            .par_chunks_mut(PIECE)
            .zip(gradient.par_chunks(PIECE))
            .zip(moments);
        pieces
            .enumerate()
            .for_each(|(piece, ((parameters, gradient), (first, second)))| {
                let kept = decayed.saturating_sub(piece * PIECE).min(parameters.len());
                parameters[..kept].iter_mut().for_each(|x| *x -= decay * *x);
                for (((x, g), first), second) in parameters.iter_mut().zip(gradient).zip(first).zip(second) {
                    let g = g * clip;
                    *first += (1.0 - BETA_1) * (g - *first);
                    *second += (1.0 - BETA_2) * (g * g - *second);
                    *x -= rate * *first / ((*second * unbias_2).sqrt() + EPSILON);
                }
            });
        length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_rises_and_falls() {
        let rate = |step| learning_rate(1.0, 0.1, step, 100);
        assert!((rate(0) - 0.1).abs() < 1e-12 && (rate(9) - 1.0).abs() < 1e-12 && rate(10) == 1.0);
        assert!(rate(54) > 0.5 && rate(56) < 0.51 && rate(99) > LAST && rate(99) < 0.02);
        assert_eq!(learning_rate(1.0, 0.0, 0, 1), 1.0);
    }

    #[test]
    fn the_first_step_goes_by_the_rate_and_the_decay() {
        let mut moments = Moments::new(3);
        let mut x = [1.0, 1.0, 1.0];
        let rates = Rates {
            learning_rate: 0.1,
            weight_decay: 0.5,
            clip: 1.0,
        };
        let length = moments.step(0, rates, &mut x, 1, &[3.0, -4.0, 0.0]);
        assert_eq!(length, 5.0);
        for (x, expected) in x.iter().zip([0.95 - 0.1, 1.1, 1.0]) {
            assert!((x - expected).abs() < 1e-6, "{x}, not {expected}");
        }
        assert!((moments.first[1] + 0.08).abs() < 1e-6 && (moments.second[1] - 0.05 * 0.64).abs() < 1e-6);
    }

    #[test]
    fn a_gradient_that_is_no_number_changes_nothing() {
        let mut moments = Moments::new(2);
        let mut x = [1.0, 2.0];
        let rates = Rates {
            learning_rate: 0.1,
            weight_decay: 0.5,
            clip: 1.0,
        };
        assert!(!moments.step(0, rates, &mut x, 2, &[f32::NAN, 1.0]).is_finite());
        assert!(x == [1.0, 2.0] && moments.first == [0.0; 2]);
    }
}
