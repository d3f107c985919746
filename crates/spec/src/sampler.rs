//! The sampler: from a row of logits and what stands before it to a token.
//!
//! The token drawn is the argmax over the surviving candidates of processed logit + temperature · Gumbel
//! noise, ties to the lowest id. (That is the Gumbel-max rule times the temperature, which changes no order
//! and leaves the plain argmax at temperature 0.) The noise is a function of key, position and token id
//! ([`noise`]), so that a draw depends on nothing but the tokens before it: not on drafts,
//! batches or who draws.
//!
//! Probabilities for top-p are a softmax, at temperature 1, over what top-k left: f64 sums, in descending
//! order of the candidates; with top-k off the denominator is summed in order of id. Min-p compares logits
//! in nats. Not here: ends of generation, text, log-probabilities ([`logprobs`](crate::logprobs)).

mod params;
mod select;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use crate::noise::{self, Noise};
use crate::{Grammar, Token, math};
pub use params::{ParamError, SamplerParams};
use select::{Drawn, Ranked, Row};

/// Confidences are relative to so many of the best logits.
const RIVALS: usize = 64;

/// Whether a generation goes on after a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// It does.
    Continue,
    /// This token was the last.
    Stop,
}

/// Why a row of logits leads to no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogitError {
    /// A logit was NaN or +inf, or all were -inf (single ones may be: padding).
    #[error("the model gave a logit that is not a finite number (token {token})")]
    NotFinite {
        /// The first such token.
        token: Token,
    },
    /// The model's logits are in order; the request's own bias and grammar leave none of them.
    #[error("the request's logit bias or grammar bans every token that the model could say")]
    AllBanned,
    /// The request's grammar cannot say what may come next.
    #[error("the request's grammar takes more time or memory than it may have")]
    Grammar,
}

/// A token that a drafter might propose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Proposal {
    /// The token.
    pub token: Token,
    /// Estimate, in 0…1, that the target draws it here.
    pub confidence: f32,
}

/// Draws tokens. Stateful (penalties, grammar), walked along a path by the verifier.
#[derive(Clone, Debug)]
pub struct Sampler {
    params: Arc<SamplerParams>,
    key: u64,
    state: State,
    grammar: Option<Box<dyn Grammar>>,
    /// The grammar could not take in a token that was said.
    lost: bool,
    scratch: Scratch,
}

/// The state of a [`Sampler`] that a drafter needs to propose with the same noise. It can cross threads.
/// Its size does not depend on the length of the history, except for the counts that presence and frequency
/// penalties need.
#[derive(Clone, Debug)]
pub struct SamplerSnapshot {
    params: Arc<SamplerParams>,
    key: u64,
    state: State,
}

/// What draws depend on besides logits.
#[derive(Clone, Debug, Default)]
struct State {
    /// The window that penalties may look back on, then the tokens accepted since.
    tokens: Vec<Token>,
    /// So many of `tokens` cannot be taken back.
    fixed: usize,
    /// How often each token was generated; empty unless a penalty asks.
    generated: HashMap<Token, u32>,
    /// The absolute index of the next token.
    position: u64,
}

/// Memory that is kept from draw to draw.
#[derive(Clone, Debug, Default)]
struct Scratch {
    logits: Vec<f32>,
    recent: Vec<Token>,
    ranked: Vec<Ranked>,
    drawn: Vec<Drawn>,
    rivals: Vec<Drawn>,
}

impl Sampler {
    /// A sampler for a sequence with this prompt. `params` should have passed [`SamplerParams::validate`];
    /// `key` seeds the noise: see [`Sampler::key`].
    pub fn new(params: SamplerParams, key: u64, prompt: &[Token]) -> Self {
        let window = window(&params, prompt);
        let state = State {
            tokens: window.to_vec(),
            fixed: window.len(),
            generated: HashMap::new(),
            position: prompt.len() as u64,
        };
        Self {
            params: Arc::new(params),
            key,
            state,
            grammar: None,
            lost: false,
            scratch: Scratch::default(),
        }
    }

    /// Draws only what the grammar allows, which is at its beginning.
    pub fn with_grammar(mut self, grammar: Option<Box<dyn Grammar>>) -> Self {
        self.grammar = grammar;
        self
    }

    /// The grammar as it stands before the next token.
    pub fn grammar(&mut self) -> Option<&mut (dyn Grammar + 'static)> {
        self.grammar.as_deref_mut()
    }

    /// The key of choice `choice` of a request seeded with `seed`.
    pub fn key(seed: u64, choice: u64) -> u64 {
        noise::key(seed, choice)
    }

    /// The parameters.
    pub fn params(&self) -> &SamplerParams {
        &self.params
    }

    /// The absolute index of the next token: the length of the prompt plus the tokens accepted.
    pub fn position(&self) -> u64 {
        self.state.position
    }

    /// The token that the target says after the tokens accepted so far. Changes no state.
    pub fn sample(&mut self, logits: &[f32]) -> Result<Token, LogitError> {
        let Self {
            params,
            key,
            state,
            grammar,
            lost,
            scratch,
        } = self;
        if *lost {
            return Err(LogitError::Grammar);
        }
        let Scratch {
            logits: copy,
            recent,
            ranked,
            drawn,
            ..
        } = scratch;
        let allowed = match grammar {
            Some(grammar) => Some(grammar.allowed().map_err(|_| LogitError::Grammar)?),
            None => None,
        };
        let row = process(params, state, logits, None, allowed, copy, recent)?;
        if params.is_greedy() {
            return Ok(row.argmax() as Token);
        }
        row.draw(params, Noise::at(*key, state.position), 1, ranked, drawn);
        Ok(drawn[0].token)
    }

    /// Takes a token into the state.
    pub fn accept(&mut self, token: Token) -> Flow {
        self.state.tokens.push(token);
        self.state.position += 1;
        if self.params.penalises_generated() {
            *self.state.generated.entry(token).or_insert(0) += 1;
        }
        if let Some(grammar) = &mut self.grammar {
            // What was drawn is allowed, but taking it in may cost more than the grammar may have.
            self.lost |= !grammar.accept(token);
        }
        Flow::Continue
    }

    /// Takes the last `n` accepted tokens back, of those accepted since the sampler was made, restored or
    /// resumed from a snapshot.
    pub fn rollback(&mut self, n: usize) {
        let State {
            tokens,
            fixed,
            generated,
            position,
        } = &mut self.state;
        let n = n.min(tokens.len() - *fixed);
        if let Some(grammar) = &mut self.grammar {
            grammar.rollback(n);
        }
        for token in tokens.drain(tokens.len() - n..) {
            *position -= 1;
            if let Some(count) = generated.get_mut(&token) {
                *count -= 1;
                if *count == 0 {
                    generated.remove(&token);
                }
            }
        }
    }

    /// The state, for a drafter.
    pub fn snapshot(&self) -> SamplerSnapshot {
        let State {
            tokens,
            generated,
            position,
            ..
        } = &self.state;
        let window = window(&self.params, tokens);
        SamplerSnapshot {
            params: Arc::clone(&self.params),
            key: self.key,
            state: State {
                tokens: window.to_vec(),
                fixed: window.len(),
                generated: generated.clone(),
                position: *position,
            },
        }
    }

    /// Goes on from a snapshot, which has no grammar; like [`SamplerSnapshot::sampler`], but keeps this sampler's memory.
    pub fn restore(&mut self, snapshot: &SamplerSnapshot) {
        self.params.clone_from(&snapshot.params);
        self.key = snapshot.key;
        self.state.tokens.clone_from(&snapshot.state.tokens);
        self.state.fixed = snapshot.state.fixed;
        self.state.generated.clone_from(&snapshot.state.generated);
        self.state.position = snapshot.state.position;
        self.grammar = None;
    }

    /// The `m` best surviving tokens by processed logit plus noise, best first, so that the first is what
    /// [`sample`](Self::sample) draws from these logits. Changes no state.
    ///
    /// `vocabulary`, where given, maps the index of a logit to its token, ascending: a draft head may cover
    /// a part of the vocabulary. `allowed`, where given, are the tokens that the target's grammar allows here, as
    /// [`Grammar::allowed`] gives them.
    ///
    /// With w = processed logit + temperature · noise, the confidence of a token is
    /// exp(w) / Σ exp(w′), the sum over the 64 best logits, whether or not the filters keep them, and the
    /// proposals. At temperature 0 that is the draft model's probability of its best token. Above, it grows
    /// with the gap between the winner's perturbed logit and the others': with two rivals it is the logistic
    /// function of the gap, which is the probability that the winner survives if the two models' logits
    /// differ by a logistic error of one nat. One scale at every temperature, so that one threshold serves.
    pub fn propose(
        &mut self,
        logits: &[f32],
        vocabulary: Option<&[Token]>,
        allowed: Option<&[u32]>,
        m: usize,
    ) -> Result<Vec<Proposal>, LogitError> {
        let Self {
            params,
            key,
            state,
            scratch,
            ..
        } = self;
        let Scratch {
            logits: copy,
            recent,
            ranked,
            drawn,
            rivals,
        } = scratch;
        let row = process(params, state, logits, vocabulary, allowed, copy, recent)?;
        if m == 0 {
            return Ok(Vec::new());
        }
        let noise = Noise::at(*key, state.position);
        let temperature = if params.is_greedy() {
            0.0
        } else {
            f64::from(params.temperature)
        };
        let perturbed = |r: &Ranked| {
            let token = row.token(r.index());
            Drawn {
                token,
                score: f64::from(r.logit()) + temperature * noise.gumbel(token),
            }
        };
        if params.is_greedy() {
            row.best(m.max(RIVALS), ranked);
            drawn.clear();
            drawn.extend(ranked.iter().take(m).map(perturbed));
        } else {
            // One more than asked for: the runner-up is a rival even if its logit is not among the best.
            row.draw(params, noise, m.saturating_add(1), ranked, drawn);
            row.best(RIVALS, ranked);
        }
        rivals.clear();
        rivals.extend(ranked.iter().take(RIVALS).map(perturbed));
        rivals.retain(|rival| drawn.iter().all(|d| d.token != rival.token));
        rivals.extend_from_slice(drawn);
        let top = rivals.iter().map(|r| r.score).fold(f64::NEG_INFINITY, f64::max);
        let weight = |d: &Drawn| f64::from(math::exp((d.score - top) as f32));
        let total: f64 = rivals.iter().map(weight).sum();
        let confidence = |d| (weight(d) / total) as f32;
        let proposals = drawn.iter().take(m).map(|d| Proposal {
            token: d.token,
            confidence: confidence(d),
        });
        Ok(proposals.collect())
    }
}

impl SamplerSnapshot {
    /// A sampler that goes on from the snapshot.
    pub fn sampler(&self) -> Sampler {
        Sampler {
            params: Arc::clone(&self.params),
            key: self.key,
            state: self.state.clone(),
            grammar: None,
            lost: false,
            scratch: Scratch::default(),
        }
    }

    /// The parameters.
    pub fn params(&self) -> &SamplerParams {
        &self.params
    }

    /// The absolute index of the next token.
    pub fn position(&self) -> u64 {
        self.state.position
    }

    /// Orders guesses at the token `ahead` places after the next one as the target would if their confidences were its
    /// probabilities, with the noise that it will use; at temperature 0 they stay as they are. The probability that the
    /// guesses leave over counts as one more rival with the mean of the noise.
    pub fn rank(&self, guesses: &mut [Proposal], ahead: usize) {
        if self.params.is_greedy() {
            return;
        }
        const MEAN_NOISE: f64 = 0.577_215_664_901_532_9;
        let noise = Noise::at(self.key, self.state.position + ahead as u64);
        let known: f32 = guesses.iter().map(|guess| guess.confidence).sum();
        let rest = f64::from((1.0 - known).max(0.0)) * MEAN_NOISE.exp();
        let weight = |guess: &Proposal| f64::from(guess.confidence) * noise.gumbel(guess.token).exp();
        let total = guesses.iter().map(weight).sum::<f64>() + rest;
        for guess in guesses.iter_mut() {
            guess.confidence = if total > 0.0 {
                (weight(guess) / total) as f32
            } else {
                0.0
            };
        }
        guesses.sort_by(|a, b| b.confidence.total_cmp(&a.confidence));
    }
}

/// The `count` best logits, best first, the lower id first where they are equal. Fewer if the rest is -inf; none if a logit
/// is no number.
pub fn top_logits(logits: &[f32], count: usize) -> Vec<(Token, f32)> {
    let mut ranked = Vec::new();
    if let Ok(row) = Row::new(logits, None) {
        row.best(count, &mut ranked);
    }
    ranked.iter().map(|r| (r.index() as Token, r.logit())).collect()
}

/// The last tokens, as far as draws depend on them.
fn window<'t>(params: &SamplerParams, tokens: &'t [Token]) -> &'t [Token] {
    let length = if params.penalises_repetition() {
        params.repeat_last_n
    } else {
        0
    };
    &tokens[tokens.len() - length.min(tokens.len())..]
}

/// Applies bias, penalties and what a grammar allows: to a copy, if there are any.
fn process<'a>(
    params: &SamplerParams,
    state: &State,
    logits: &'a [f32],
    vocabulary: Option<&'a [Token]>,
    allowed: Option<&[u32]>,
    copy: &'a mut Vec<f32>,
    recent: &mut Vec<Token>,
) -> Result<Row<'a>, LogitError> {
    let vocabulary = vocabulary.map(|v| &v[..v.len().min(logits.len())]);
    let logits = vocabulary.map_or(logits, |v| &logits[..v.len()]);
    let row = Row::new(logits, vocabulary)?;
    recent.clear();
    recent.extend_from_slice(window(params, &state.tokens));
    let plain = params.logit_bias.is_empty() && recent.is_empty() && state.generated.is_empty();
    if plain && allowed.is_none() {
        return Ok(row);
    }
    recent.sort_unstable();
    recent.dedup();

    copy.clear();
    copy.extend_from_slice(logits);
    let mut edit = |token: Token, change: &dyn Fn(f32) -> f32| {
        let index = vocabulary.map_or(Some(token as usize), |v| v.binary_search(&token).ok());
        if let Some(logit) = index.and_then(|i| copy.get_mut(i)) {
            // A sum may overflow; the model's own logits are known to be below infinity.
            *logit = change(*logit).min(f32::MAX);
        }
    };
    for &(token, bias) in &params.logit_bias {
        edit(token, &|x| x + bias);
    }
    let penalty = params.repeat_penalty;
    for &token in recent.iter() {
        edit(token, &|x| if x > 0.0 { x / penalty } else { x * penalty });
    }
    for (&token, &count) in &state.generated {
        edit(token, &|x| {
            x - params.presence_penalty - params.frequency_penalty * count as f32
        });
    }
    if let Some(allowed) = allowed {
        let is_allowed = |token: usize| {
            allowed
                .get(token / 32)
                .is_some_and(|word| word >> (token % 32) & 1 == 1)
        };
        for (index, logit) in copy.iter_mut().enumerate() {
            if !is_allowed(vocabulary.map_or(index, |v| v[index] as usize)) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
    Row::new(copy, vocabulary).map_err(|_| LogitError::AllBanned)
}
