//! From a network's logits to proposals: what drafters that run a network share.

use crate::{DraftError, Grammar, LogitError, ModelError, Proposal, Sampler, Token};

/// What one more row costs, of a draft step or the target's pass, in draft steps: so much less likely may be what is evaluated or
/// verified beside something that is worth a step.
pub(super) const ROW: f32 = 0.125;

/// What would be said where `path` leads from the place at which the sampler and the grammar stand, `branches` tokens at most. Both
/// are moved along the path and back.
///
/// # Errors
/// If the logits are not usable. That none of their tokens may be said is no error: of a draft vocabulary, that is, and the target
/// may go on with the rest.
pub(super) fn propose(
    sampler: &mut Sampler,
    grammar: Option<&mut dyn Grammar>,
    path: &[Token],
    logits: &[f32],
    vocabulary: Option<&[Token]>,
    branches: usize,
) -> Result<Vec<Proposal>, LogitError> {
    for &token in path {
        sampler.accept(token);
    }
    let outcome = match grammar {
        None => sampler.propose(logits, vocabulary, None, branches),
        Some(grammar) => {
            let legal = path.iter().take_while(|&&token| grammar.accept(token)).count();
            // What cannot be told is not drafted; the target's own sampler says what is wrong.
            let outcome = match grammar.allowed() {
                Ok(allowed) if legal == path.len() => {
                    sampler.propose(logits, vocabulary, Some(allowed), branches)
                }
                _ => Ok(Vec::new()),
            };
            grammar.rollback(legal);
            outcome
        }
    };
    sampler.rollback(path.len());
    match outcome {
        Err(LogitError::AllBanned) => Ok(Vec::new()),
        outcome => outcome,
    }
}

/// Checks a draft vocabulary, the token of each of so many logits, for a target whose rows of logits are `target_vocab_size` long.
pub(super) fn check_vocabulary(
    vocabulary: &[Token],
    logits: usize,
    target_vocab_size: usize,
) -> Result<(), DraftError> {
    if vocabulary.len() != logits {
        let found = vocabulary.len();
        return Err(DraftError::Other(format!(
            "the draft vocabulary has {found} tokens for {logits} logits"
        )));
    }
    if let Some(pair) = vocabulary.windows(2).find(|pair| pair[0] >= pair[1]) {
        let [a, b] = [pair[0], pair[1]];
        return Err(DraftError::Other(format!(
            "the draft vocabulary is not ascending: {b} follows {a}"
        )));
    }
    match vocabulary.last() {
        Some(&token) if token as usize >= target_vocab_size => {
            Err(DraftError::Model(ModelError::TokenOutOfRange {
                token,
                vocab_size: target_vocab_size,
            }))
        }
        _ => Ok(()),
    }
}
