//! The sampler.

use crate::Token;

/// Parameters of the sampling chain. Order of application: logit bias, penalties (repetition over the
/// last `repeat_last_n` tokens, prompt included; presence and frequency over generated ones), top-k, top-p,
/// min-p, temperature.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplerParams {
    /// 0 is greedy.
    pub temperature: f32,
    /// 0 keeps all.
    pub top_k: usize,
    /// 1 keeps all.
    pub top_p: f32,
    /// 0 keeps all.
    pub min_p: f32,
    /// 1 changes nothing.
    pub repeat_penalty: f32,
    /// Tokens that the repetition penalty looks back on.
    pub repeat_last_n: usize,
    /// 0 changes nothing.
    pub presence_penalty: f32,
    /// 0 changes nothing.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens; `-inf` bans.
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

/// Whether a generation goes on after a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// It does.
    Continue,
    /// This token was the last.
    Stop,
}

/// A logit was NaN or infinite where none may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the model gave a logit that is not a finite number (token {token})")]
pub struct NonFiniteLogit {
    /// The first such token.
    pub token: Token,
}

/// A token that a drafter might propose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Proposal {
    /// The token.
    pub token: Token,
    /// Estimate, in 0…1, that the target draws it here.
    pub confidence: f32,
}

/// Draws tokens: the argmax of processed logit plus noise, where the noise is a function of (key, position,
/// token id) alone. Stateful (penalties, later grammar and limits), walked along a path by the verifier.
#[derive(Clone, Debug)]
pub struct Sampler {}

/// The state of a [`Sampler`] that a drafter needs to propose with the same noise. It can cross threads.
#[derive(Clone, Debug)]
pub struct SamplerSnapshot {}

impl Sampler {
    /// A sampler for a sequence with this prompt. `key` seeds the noise: see [`Sampler::key`].
    pub fn new(_params: SamplerParams, _key: u64, _prompt: &[Token]) -> Self {
        todo!()
    }

    /// The key of choice `choice` of a request seeded with `seed`.
    pub fn key(_seed: u64, _choice: u64) -> u64 {
        todo!()
    }

    /// The token that the target says after the tokens accepted so far. Changes no state.
    pub fn sample(&mut self, _logits: &[f32]) -> Result<Token, NonFiniteLogit> {
        todo!()
    }

    /// Takes a token into the state.
    pub fn accept(&mut self, _token: Token) -> Flow {
        todo!()
    }

    /// Takes the last `n` accepted tokens back.
    pub fn rollback(&mut self, _n: usize) {
        todo!()
    }

    /// The state, for a drafter.
    pub fn snapshot(&self) -> SamplerSnapshot {
        todo!()
    }

    /// The `m` best tokens by processed logit plus noise, best first. `vocabulary`, where given, maps the
    /// index of a logit to its token: a draft head may cover a part of the vocabulary.
    pub fn propose(&mut self, _logits: &[f32], _vocabulary: Option<&[Token]>, _m: usize) -> Vec<Proposal> {
        todo!()
    }
}

impl SamplerSnapshot {
    /// A sampler that goes on from the snapshot.
    pub fn sampler(&self) -> Sampler {
        todo!()
    }
}
