//! A speculator network that knows what a scripted model would say.

use super::ScriptedModel;
use super::model::name_row;
use crate::drafters::Network;
use crate::{ModelError, TargetModel, Token};

/// A network without weights: its logits are those of a [`ScriptedModel`] after the row that a state names and the token that was
/// drawn from it. For a model that looks back at three tokens, and at the path's length, it is always right, if the state is that of
/// the right row.
#[derive(Clone, Debug)]
pub struct ScriptedNetwork {
    model: ScriptedModel,
    heads: usize,
    vocabulary: Option<Vec<Token>>,
    steps: usize,
    fails: Option<usize>,
}

impl ScriptedNetwork {
    /// A network with so many heads.
    pub fn new(model: ScriptedModel, heads: usize) -> Self {
        Self {
            model,
            heads,
            vocabulary: None,
            steps: 0,
            fails: None,
        }
    }

    /// Has logits for these tokens alone.
    pub fn with_vocabulary(mut self, vocabulary: Vec<Token>) -> Self {
        self.vocabulary = Some(vocabulary);
        self
    }

    /// Makes a step fail, counted from 0.
    pub fn failing_at(mut self, step: usize) -> Self {
        self.fails = Some(step);
        self
    }
}

impl Network for ScriptedNetwork {
    fn heads(&self) -> usize {
        self.heads
    }

    fn hidden_size(&self) -> usize {
        self.model.info().hidden_size
    }

    fn inner_size(&self) -> usize {
        self.model.info().hidden_size
    }

    fn vocab_size(&self) -> usize {
        let whole = self.model.info().vocab_size;
        self.vocabulary.as_ref().map_or(whole, Vec::len)
    }

    fn step(
        &mut self,
        head: usize,
        tokens: &[Token],
        states: &[f32],
        next: &mut Vec<f32>,
        logits: &mut Vec<f32>,
    ) -> Result<(), ModelError> {
        let size = self.hidden_size();
        self.steps += 1;
        let sound = head < self.heads
            && states.len() == tokens.len() * size
            && states.iter().all(|value| value.is_finite());
        if !sound || self.fails == Some(self.steps - 1) {
            return Err(ModelError::Backend("states of no row".into()));
        }
        next.clear();
        logits.clear();
        for (state, &token) in states.chunks_exact(size).zip(tokens) {
            let length = state[0] as usize;
            let known = state[1..].iter().take(length).map(|&token| token as Token);
            let mut path: Vec<Token> = known.collect();
            path.resize(length, 0);
            path.reverse();
            path.push(token);
            let start = next.len();
            next.resize(start + size, 0.0);
            name_row(&path, &mut next[start..]);
            let all = self.model.logits_after(&path);
            match &self.vocabulary {
                Some(vocabulary) => logits.extend(vocabulary.iter().map(|&token| all[token as usize])),
                None => logits.extend(all),
            }
        }
        Ok(())
    }
}
