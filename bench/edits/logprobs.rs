//! Log-probabilities of the model's own distribution: before bias, penalties, filters and temperature.

use crate::sampler::top_logits;
use crate::{Token, math};

/// How likely a token was, and which were the likeliest.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogProbs {
    /// Natural logarithm of the token's probability.
    pub logprob: f32,
    /// The likeliest tokens and theirs, likeliest first. Tokens that the model rules out are not among them.
    pub top: Vec<(Token, f32)>,
}

impl LogProbs {
    /// Of a row of logits, all finite or -inf, for a token in range, and so many of the likeliest. The same row gives the same
    /// bits: the sum goes through the vocabulary in order, in f64.
    pub fn new(logits: &[f32], token: Token, top: usize) -> Self {
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits
            .iter()
            .map(|&logit| f64::from(math::exp(logit - most)))
            .sum();
        let log_sum = f64::from(most) + math::ln(sum);
        let logprob = |logit: f32| (f64::from(logit) - log_sum).min(0.0) as f32;
        Self {
            logprob: logprob(logits[token as usize]),
            top: top_logits(logits, top)
                .into_iter()
                .map(|(token, logit)| (token, logprob(logit)))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_those_of_a_softmax() {
        let logits = [1.0, f32::NEG_INFINITY, 3.0, 2.0, 3.0];
        let sum: f64 = [1.0f64, 3.0, 2.0, 3.0].iter().map(|x| x.exp()).sum();
        let close = |got: f32, logit: f64| {
            let want = logit - sum.ln();
            assert!((f64::from(got) - want).abs() < 1e-5, "{got}, not {want}");
        };
        let got = LogProbs::new(&logits, 3, 9);
        close(got.logprob, 2.0);
        let tokens: Vec<Token> = got.top.iter().map(|t| t.0).collect();
        assert_eq!(tokens, [2, 4, 3, 0], "equals by id, and none that is ruled out");
        close(got.top[0].1, 3.0);
        close(got.top[3].1, 1.0);
        assert!(LogProbs::new(&logits, 3, 0).top.is_empty());
        // One token has all: its logarithm is zero, never above.
        assert_eq!(LogProbs::new(&[200.0, 0.0], 0, 1).logprob, 0.0);
    }
}
