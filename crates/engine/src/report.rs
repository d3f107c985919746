//! Statistics as objects for machines: the same in the command line's JSON and in a server's answers.
//!
//! Not here: counting ([`Stats`]), sentences about it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::{RoundReport, SourceCount, Stats};

/// Why there are no drafts where none were wanted.
pub const NO_DRAFTER: &str = "no drafter was chosen";

/// Where the time of a generation went. Every field is always there.
#[derive(Clone, Debug, Serialize)]
pub struct Timings {
    load_s: f64,
    prompt_s: f64,
    decode_s: f64,
    prompt_tps: Option<f64>,
    decode_tps: Option<f64>,
    target: ModelTimings,
    draft: ModelTimings,
}

/// Where the time of one model went.
#[derive(Clone, Debug, Serialize)]
pub struct ModelTimings {
    load_s: f64,
    prompt_s: f64,
    eval_s: f64,
    sample_s: f64,
}

impl Timings {
    /// Of a generation by models that took so long to load.
    pub fn new(stats: &Stats, target_load: Duration, draft_load: Duration) -> Self {
        Self {
            load_s: (target_load + draft_load).as_secs_f64(),
            prompt_s: stats.prompt.as_secs_f64(),
            decode_s: stats.decode.as_secs_f64(),
            prompt_tps: stats.prompt_rate(),
            decode_tps: stats.decode_rate(),
            target: ModelTimings {
                load_s: target_load.as_secs_f64(),
                prompt_s: stats.target.prompt.as_secs_f64(),
                eval_s: stats.target.eval.as_secs_f64(),
                sample_s: stats.target.sample.as_secs_f64(),
            },
            draft: ModelTimings {
                load_s: draft_load.as_secs_f64(),
                prompt_s: stats.draft.prompt.as_secs_f64(),
                eval_s: stats.draft.eval.as_secs_f64(),
                sample_s: stats.draft.sample.as_secs_f64(),
            },
        }
    }
}

/// What became of the drafts of a generation. Every field is always there.
#[derive(Clone, Debug, Serialize)]
pub struct SpeculationReport {
    drafter: String,
    off_reason: Option<String>,
    /// What should be known of the drafter, such as that its speculator was made for another model.
    note: Option<String>,
    /// Whether the tokens are those of plain decoding.
    lossless: bool,
    /// The probability of acceptance where it was forced: the text is then not the model's.
    forced_acceptance: Option<f64>,
    rounds: usize,
    proposed: usize,
    drafted: usize,
    accepted: usize,
    /// The last two by who drafted them.
    sources: BTreeMap<&'static str, SourceCount>,
    discarded_by_cut: usize,
    acceptance_rate: Option<f64>,
    tokens_per_round: Option<f64>,
    accepted_per_position: Vec<usize>,
    rows_histogram: BTreeMap<usize, usize>,
    draft_s: f64,
    verify_s: f64,
    /// Tokens per second that the controller expected, over all rounds; null where none decides.
    predicted_tps: Option<f64>,
    /// Rounds that the controller left without a draft, by reason.
    plain_rounds: BTreeMap<&'static str, usize>,
}

impl SpeculationReport {
    /// Of a generation on a backend that promises the same tokens, or does not.
    pub fn new(stats: &Stats, lossless: bool) -> Self {
        let spec = &stats.speculation;
        let no_drafter = || spec.drafter.is_none().then(|| NO_DRAFTER.to_string());
        Self {
            drafter: spec.drafter.clone().unwrap_or_else(|| "none".to_string()),
            off_reason: spec.off_reason.clone().or_else(no_drafter),
            note: spec.note.clone(),
            lossless,
            forced_acceptance: spec.forced,
            rounds: spec.rounds,
            proposed: spec.proposed,
            drafted: spec.drafted,
            accepted: spec.accepted,
            sources: (spec.by_source.iter())
                .map(|(source, count)| (source.name(), *count))
                .collect(),
            discarded_by_cut: spec.discarded_by_cut,
            acceptance_rate: spec.acceptance_rate(),
            tokens_per_round: spec.tokens_per_round(),
            accepted_per_position: spec.accepted_per_position.clone(),
            rows_histogram: spec.rows_histogram.clone(),
            draft_s: spec.draft.as_secs_f64(),
            verify_s: spec.verify.as_secs_f64(),
            predicted_tps: spec.predicted_rate(),
            plain_rounds: spec.plain_rounds.clone(),
        }
    }
}

/// How a round went, beside what was expected of it. Seconds are of all sequences together, which waited for the same pass.
/// Every field is always there.
#[derive(Clone, Debug, Serialize)]
pub struct RoundFigures {
    rows: usize,
    /// Draft tokens by the drafter that proposed them.
    drafted: BTreeMap<&'static str, usize>,
    accepted: usize,
    tokens: usize,
    predicted_tokens: Option<f64>,
    predicted_s: Option<f64>,
    draft_s: f64,
    pass_s: f64,
    /// Tokens per second of plain decoding, as the controller saw it: a row must be worth more.
    plain_tps: Option<f64>,
    /// Why there was no draft.
    plain: Option<&'static str>,
}

impl RoundFigures {
    /// Of a round.
    pub fn new(round: &RoundReport) -> Self {
        let forecast = round.forecast;
        Self {
            rows: round.rows,
            drafted: (round.sources.iter().map(|(source, &n)| (source.name(), n))).collect(),
            accepted: round.accepted,
            tokens: round.tokens,
            predicted_tokens: forecast.map(|f| f.tokens),
            predicted_s: forecast.map(|f| f.seconds),
            draft_s: round.draft.as_secs_f64(),
            pass_s: round.pass.as_secs_f64(),
            plain_tps: forecast.map(|f| f.plain_rate),
            plain: forecast.and_then(|f| f.plain).map(|reason| reason.name()),
        }
    }
}
