//! What the controller keeps of the round that is under way, and of each sequence.

use super::calibration::Calibration;
use super::costly::Worth;
use crate::{Forecast, PlainReason, Request, TokenTree};

/// Draft tokens that must have come true, or not, before a text is trusted more, or less, than others.
const TRUST: f64 = 6.0;
/// An answer is expected to go on for as many tokens as it has, and for so many at least, if its limit allows.
const EXPECTED: usize = 32;

/// The round that is under way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Round {
    pub number: u64,
    /// Its drafts are made, its pass is not done.
    pub drafted: bool,
    pub sequences: usize,
    /// Of all sequences and their trees.
    pub rows: usize,
    /// Its pass had other rows too, of a prompt.
    pub mixed: bool,
    pub context: usize,
    pub draft_seconds: f64,
    /// Seconds in which a draft model read what it did not know, for this round and those to come.
    pub reading_seconds: f64,
    /// Seconds that rows may take beyond those of plain decoding, as planned before the costly drafter was asked.
    pub rows_seconds: f64,
    pub pass_seconds: f64,
    /// Seconds that draft rows added to its pass, if that is mixed: by the model of costs, since no pass tells.
    pub draft_rows_seconds: f64,
}

/// What is known of a sequence.
#[derive(Debug, Default)]
pub(super) struct Account {
    pub calibration: Calibration,
    /// What the costly drafter is worth to it.
    pub worth: Worth,
    /// Tokens that rounds gained.
    pub generated: usize,
    /// Draft tokens that were expected to come true, before they were trusted more or less, and that did.
    pub foreseen: f64,
    pub accepted: f64,
    /// How many of the draft that is being verified are expected to.
    pub hoped: f64,
    /// The round that it takes part in, and the last pass that was counted for it.
    pub round: u64,
    pub pass: u64,
    /// Why the costly drafter was not asked in this round.
    pub declined: Option<PlainReason>,
    /// Seconds that plain decoding would have taken for the tokens so far.
    pub plain: f64,
    /// Seconds that they took.
    pub spent: f64,
    pub tree: TokenTree,
    pub forecast: Forecast,
}

impl Account {
    /// Seconds that were lost against plain decoding, or are if the answer ends here.
    pub fn lost(&self) -> f64 {
        self.spent + self.worth.owed() - self.plain
    }

    /// How many draft tokens of this text come true for each that all experience promises.
    pub fn trust(&self) -> f32 {
        ((TRUST + self.accepted) / (TRUST + self.foreseen)).clamp(0.5, 1.25) as f32
    }
}

/// Tokens that a sequence is expected to gain yet.
pub(super) fn expected(account: &Account, request: &Request<'_>) -> f64 {
    let remaining = request.position_limit.saturating_sub(request.tokens.len());
    remaining.min(account.generated.max(EXPECTED)).max(1) as f64
}
