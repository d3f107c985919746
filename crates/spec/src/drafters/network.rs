//! What a speculator's drafter asks of its network: a head that turns a state and a token into the next state and logits.
//!
//! The state before head 0 is the target's hidden state after the final norm, of the row from which the last token was drawn; each
//! head makes the state for the next one. There is no other memory: no cache, no positions, no limit of context.
//! Architecture: Wertheimer et al. 2024, arXiv 2404.19124.

use crate::{ModelError, Token};

/// α, what the token's embedding is multiplied with beside the state in the sum that a head norms: so the state keeps half of its weight
/// over all heads that the network was trained with, however many of them are used.
pub fn embedding_weight(heads: usize, inner_size: usize) -> f32 {
    let state = 0.5f64.powf(0.5 / heads as f64);
    let token = ((1.0 - state * state) * (inner_size as f64 / 2.0)).sqrt();
    (token / state) as f32
}

/// A speculator network (MLPSpeculator): a chain of heads.
pub trait Network: Send {
    /// How many tokens it can look ahead.
    fn heads(&self) -> usize;

    /// Length of the state before head 0: the target's hidden state.
    fn hidden_size(&self) -> usize;

    /// Length of the states between heads.
    fn inner_size(&self) -> usize;

    /// Length of a row of logits.
    fn vocab_size(&self) -> usize;

    /// One head over several rows, which may belong to several sequences and branches: `tokens` are those drawn last, `states` what
    /// the head before left, `[rows][hidden_size]` for head 0 and `[rows][inner_size]` for the others. Fills `next`,
    /// `[rows][inner_size]`, and `logits`, `[rows][vocab_size]`; both are resized. A token that the network does not know is its token 0.
    ///
    /// # Errors
    /// If the states are of another length, or hold a value that is not finite.
    fn step(
        &mut self,
        head: usize,
        tokens: &[Token],
        states: &[f32],
        next: &mut Vec<f32>,
        logits: &mut Vec<f32>,
    ) -> Result<(), ModelError>;
}
