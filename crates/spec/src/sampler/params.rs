//! The parameters of the sampling chain and what is allowed of them.

use crate::Token;

/// Parameters of the sampling chain. Order of application: logit bias, penalties (repetition over the
/// last `repeat_last_n` tokens, prompt included; presence and frequency over generated ones), top-k, top-p,
/// min-p, temperature.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplerParams {
    /// Divides the logits that survive the filters; 0 is greedy and needs no filters.
    pub temperature: f32,
    /// Keeps the so many best; 0 keeps all.
    pub top_k: usize,
    /// Keeps the shortest run of best tokens that together have this share of what top-k left; 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens at least so probable relative to the best; 0 keeps all.
    pub min_p: f32,
    /// Divides positive logits of recent tokens and multiplies negative ones; 1 changes nothing.
    pub repeat_penalty: f32,
    /// Tokens that the repetition penalty looks back on.
    pub repeat_last_n: usize,
    /// Subtracted once from the logit of every generated token; 0 changes nothing.
    pub presence_penalty: f32,
    /// Subtracted as often as the token was generated; 0 changes nothing.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens; `-inf` bans. A token named twice gets the sum.
    pub logit_bias: Vec<(Token, f32)>,
}

impl Default for SamplerParams {
    fn default() -> Self {
        Self {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
        }
    }
}

/// A parameter that cannot be honoured.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ParamError {
    /// A number outside its range, or not a number.
    #[error("{name} is {value}: it must be {range}")]
    OutOfRange {
        /// The parameter.
        name: &'static str,
        /// Its value.
        value: f32,
        /// What is allowed.
        range: &'static str,
    },
    /// A bias for a token that does not exist.
    #[error("logit_bias names token {token}, which is outside the vocabulary of {vocab_size}")]
    BiasToken {
        /// The offending id.
        token: Token,
        /// The size of the vocabulary.
        vocab_size: usize,
    },
    /// A bias that is not a number or `+inf`.
    #[error("logit_bias of token {token} is {value}: it must be a finite number, or -inf to ban the token")]
    BiasValue {
        /// The token.
        token: Token,
        /// Its bias.
        value: f32,
    },
}

impl SamplerParams {
    /// Whether every parameter can be honoured with a vocabulary of `vocab_size` tokens.
    pub fn validate(&self, vocab_size: usize) -> Result<(), ParamError> {
        let finite = f32::is_finite;
        let checks = [
            (
                "temperature",
                self.temperature,
                finite(self.temperature) && self.temperature >= 0.0,
                "0 or more",
            ),
            (
                "top_p",
                self.top_p,
                self.top_p > 0.0 && self.top_p <= 1.0,
                "above 0 and at most 1",
            ),
            (
                "min_p",
                self.min_p,
                (0.0..=1.0).contains(&self.min_p),
                "between 0 and 1",
            ),
            (
                "repeat_penalty",
                self.repeat_penalty,
                finite(self.repeat_penalty) && self.repeat_penalty > 0.0,
                "a number above 0",
            ),
            (
                "presence_penalty",
                self.presence_penalty,
                finite(self.presence_penalty),
                "a finite number",
            ),
            (
                "frequency_penalty",
                self.frequency_penalty,
                finite(self.frequency_penalty),
                "a finite number",
            ),
        ];
        for (name, value, allowed, range) in checks {
            if !allowed {
                return Err(ParamError::OutOfRange { name, value, range });
            }
        }
        for &(token, value) in &self.logit_bias {
            if token as usize >= vocab_size {
                return Err(ParamError::BiasToken { token, vocab_size });
            }
            if value.is_nan() || value == f32::INFINITY {
                return Err(ParamError::BiasValue { token, value });
            }
        }
        Ok(())
    }

    /// Whether the token drawn is the best one, without noise.
    pub fn is_greedy(&self) -> bool {
        self.temperature <= 0.0 || self.temperature.is_nan()
    }

    pub(super) fn penalises_repetition(&self) -> bool {
        self.repeat_penalty != 1.0 && self.repeat_last_n > 0
    }

    pub(super) fn penalises_generated(&self) -> bool {
        self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_honoured_is_named() {
        let check = |edit: fn(&mut SamplerParams), message: &str| {
            let mut params = SamplerParams::default();
            edit(&mut params);
            assert_eq!(params.validate(100).unwrap_err().to_string(), message);
        };
        check(
            |p| p.temperature = -0.1,
            "temperature is -0.1: it must be 0 or more",
        );
        check(
            |p| p.temperature = f32::NAN,
            "temperature is NaN: it must be 0 or more",
        );
        check(
            |p| p.temperature = f32::INFINITY,
            "temperature is inf: it must be 0 or more",
        );
        check(|p| p.top_p = 0.0, "top_p is 0: it must be above 0 and at most 1");
        check(
            |p| p.top_p = 1.5,
            "top_p is 1.5: it must be above 0 and at most 1",
        );
        check(
            |p| p.top_p = f32::NAN,
            "top_p is NaN: it must be above 0 and at most 1",
        );
        check(|p| p.min_p = -1.0, "min_p is -1: it must be between 0 and 1");
        check(|p| p.min_p = f32::NAN, "min_p is NaN: it must be between 0 and 1");
        check(
            |p| p.repeat_penalty = 0.0,
            "repeat_penalty is 0: it must be a number above 0",
        );
        check(
            |p| p.repeat_penalty = f32::INFINITY,
            "repeat_penalty is inf: it must be a number above 0",
        );
        check(
            |p| p.presence_penalty = f32::NAN,
            "presence_penalty is NaN: it must be a finite number",
        );
        check(
            |p| p.frequency_penalty = f32::INFINITY,
            "frequency_penalty is inf: it must be a finite number",
        );
        check(
            |p| p.logit_bias = vec![(99, 1.0), (100, 1.0)],
            "logit_bias names token 100, which is outside the vocabulary of 100",
        );
        check(
            |p| p.logit_bias = vec![(7, f32::INFINITY)],
            "logit_bias of token 7 is inf: it must be a finite number, or -inf to ban the token",
        );
    }

    #[test]
    fn usual_and_extreme_parameters_pass() {
        let pass = |params: SamplerParams| assert_eq!(params.validate(100), Ok(()));
        pass(SamplerParams::default());
        pass(SamplerParams {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            ..Default::default()
        });
        pass(SamplerParams {
            temperature: 100.0,
            top_k: usize::MAX,
            min_p: 1.0,
            ..Default::default()
        });
        pass(SamplerParams {
            repeat_penalty: 0.5,
            presence_penalty: -2.0,
            ..Default::default()
        });
        pass(SamplerParams {
            logit_bias: vec![(0, f32::NEG_INFINITY), (99, -5.0)],
            ..Default::default()
        });
    }
}
