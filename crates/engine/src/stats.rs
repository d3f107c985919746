//! What a sequence cost and what its drafts were worth.
//!
//! Not here: sentences about it (the command line), the cost model that learns from it.

use std::collections::BTreeMap;
use std::time::Duration;

use foretoken_spec::{DraftTimes, Forecast, Source, TokenTree, Verdict};

use crate::sequence::Turn;

/// Counters and times of one sequence.
///
/// Passes serve many sequences at once: each of them counts the whole pass, as the time that it waited.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of them that another sequence had computed.
    pub cached_tokens: usize,
    /// Tokens generated. A token that ends the generation is not among them.
    pub generated: usize,
    /// Wall time from the request to its first token.
    pub prompt: Duration,
    /// Wall time from the first token to the last.
    pub decode: Duration,
    /// Where the target's time went.
    pub target: TargetTimes,
    /// Where the time of the draft model or the speculator went; all zero where there is none.
    pub draft: DraftTimes,
    /// What became of the drafts.
    pub speculation: Speculation,
}

/// The target model's share of the time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TargetTimes {
    /// Passes over the prompt.
    pub prompt: Duration,
    /// Passes after the prompt, drafts being verified included.
    pub eval: Duration,
    /// Number of the latter.
    pub eval_passes: usize,
    /// Drawing tokens from logits.
    pub sample: Duration,
    /// Passes of one row alone: what a token costs without drafts.
    pub single_row: Passes,
}

/// A number of passes and what they took together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Passes {
    /// How many.
    pub count: usize,
    /// How long, all together.
    pub total: Duration,
}

impl Passes {
    /// Adds one.
    pub fn add(&mut self, time: Duration) {
        self.count += 1;
        self.total += time;
    }

    /// Seconds of one; `None` if there was none.
    pub fn mean(&self) -> Option<f64> {
        ratio(self.total.as_secs_f64(), self.count)
    }
}

/// Counters of the rounds after the prompt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Speculation {
    /// The drafter's name; `None` where there is none.
    pub drafter: Option<String>,
    /// What its reader should know of the drafter; `None` if nothing.
    pub note: Option<String>,
    /// Why drafting was given up.
    pub off_reason: Option<String>,
    /// Rounds, those without a draft included.
    pub rounds: usize,
    /// Tokens that these rounds decided, one that ends the generation included.
    pub decided: usize,
    /// Draft tokens that the drafter offered.
    pub proposed: usize,
    /// Draft tokens that were verified: offered, not dropped for being too few, and neither below the token
    /// that ended the generation, for nothing is decided there, nor that token itself if it is no output.
    pub drafted: usize,
    /// Draft tokens that are part of the output.
    pub accepted: usize,
    /// Right draft tokens that the end of the generation cut off, one that ends it included.
    pub discarded_by_cut: usize,
    /// The last two by who drafted them.
    pub by_source: BTreeMap<Source, SourceCount>,
    /// How often the draft token at depth 1, 2, … was accepted. Never increases.
    pub accepted_per_position: Vec<usize>,
    /// How many rounds had so many rows: the last token and its draft.
    pub rows_histogram: BTreeMap<usize, usize>,
    /// Time in the drafter.
    pub draft: Duration,
    /// Time in target passes that verified a draft.
    pub verify: Duration,
    /// Acceptance was forced with this probability: the text is not the model's.
    pub forced: Option<f64>,
    /// Tokens that the drafter expected of the rounds that it made predictions for.
    pub predicted_tokens: f64,
    /// Seconds that it expected of them.
    pub predicted_seconds: f64,
    /// Of these rounds, how many had no draft, by reason.
    pub plain_rounds: BTreeMap<&'static str, usize>,
}

/// What became of the drafts of one kind of drafter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct SourceCount {
    /// As [`Speculation::drafted`].
    pub drafted: usize,
    /// As [`Speculation::accepted`].
    pub accepted: usize,
}

/// What an engine's rounds took, over all sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Passes of the target model.
    pub passes: u64,
    /// Their rows.
    pub rows: u64,
    /// Those of them that were draft tokens.
    pub draft_rows: u64,
    /// Their time.
    pub pass: Duration,
    /// The time of passes with draft tokens.
    pub verify: Duration,
    /// The time of drafting.
    pub draft: Duration,
}

/// One round of a sequence after the prompt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RoundReport {
    /// Rows that were verified: the last token and its draft.
    pub rows: usize,
    /// How many draft tokens each kind of drafter proposed.
    pub sources: BTreeMap<Source, usize>,
    /// Draft tokens that were accepted.
    pub accepted: usize,
    /// Tokens that it decided.
    pub tokens: usize,
    /// The time of drafting, for all sequences together.
    pub draft: Duration,
    /// The time of the pass.
    pub pass: Duration,
    /// What was expected before.
    pub forecast: Option<Forecast>,
}

impl RoundReport {
    pub(crate) fn new(turn: &Turn, verdict: &Verdict) -> Self {
        let mut sources = BTreeMap::new();
        for node in turn.tree.nodes() {
            *sources.entry(node.source).or_default() += 1;
        }
        Self {
            rows: 1 + turn.tree.len(),
            sources,
            accepted: verdict.accepted.len(),
            tokens: verdict.tokens.len(),
            draft: turn.draft,
            pass: turn.pass,
            forecast: turn.forecast,
        }
    }
}

impl Speculation {
    /// Counts a round that put `kept` tokens into the output. An accepted draft token that ended the
    /// generation is none of these.
    pub(crate) fn count_round(&mut self, tree: &TokenTree, verdict: &Verdict, kept: usize) {
        let accepted = verdict.accepted.len().min(kept);
        let no_output = verdict.accepted.len() - accepted;
        let cut = verdict.discarded_by_cut + no_output;
        // Only where a draft token ended the generation there is none of the target's own behind it.
        let end = (verdict.accepted.len() == verdict.tokens.len()).then(|| verdict.accepted.last());
        let mut decided = vec![true; tree.len()];
        if let Some(&end) = end.flatten() {
            tree.below(end).for_each(|node| decided[node as usize] = false);
        }
        for &node in &verdict.accepted[accepted..] {
            decided[node as usize] = false;
        }
        for (node, _) in tree.nodes().iter().zip(decided).filter(|(_, decided)| *decided) {
            self.drafted += 1;
            self.by_source.entry(node.source).or_default().drafted += 1;
        }
        for &node in &verdict.accepted[..accepted] {
            let source = tree.nodes()[node as usize].source;
            self.by_source.entry(source).or_default().accepted += 1;
        }
        self.rounds += 1;
        self.decided += verdict.tokens.len();
        self.accepted += accepted;
        self.discarded_by_cut += cut;
        let positions = &mut self.accepted_per_position;
        positions.resize(positions.len().max(accepted), 0);
        positions[..accepted].iter_mut().for_each(|count| *count += 1);
        *self.rows_histogram.entry(1 + tree.len()).or_default() += 1;
    }

    pub(crate) fn count_forecast(&mut self, forecast: Option<&Forecast>) {
        let Some(forecast) = forecast else { return };
        self.predicted_tokens += forecast.tokens;
        self.predicted_seconds += forecast.seconds;
        if let Some(reason) = forecast.plain {
            *self.plain_rounds.entry(reason.name()).or_default() += 1;
        }
    }

    /// Tokens per second that the drafter expected; `None` if it made no predictions.
    pub fn predicted_rate(&self) -> Option<f64> {
        (self.predicted_seconds > 0.0).then(|| self.predicted_tokens / self.predicted_seconds)
    }

    /// Accepted per verified draft token, in 0…1; `None` before the first.
    pub fn acceptance_rate(&self) -> Option<f64> {
        ratio(self.accepted as f64, self.drafted)
    }

    /// Tokens that a round decides; 1 without drafts, `None` before the first round.
    pub fn tokens_per_round(&self) -> Option<f64> {
        ratio(self.decided as f64, self.rounds)
    }
}

impl Stats {
    /// Prompt tokens per second.
    pub fn prompt_rate(&self) -> Option<f64> {
        rate(self.prompt_tokens, self.prompt)
    }

    /// Generated tokens per second, the first one not counted: it is the prompt's.
    pub fn decode_rate(&self) -> Option<f64> {
        rate(self.generated.saturating_sub(1), self.decode)
    }
}

fn ratio(numerator: f64, denominator: usize) -> Option<f64> {
    (denominator > 0).then(|| numerator / denominator as f64)
}

fn rate(count: usize, time: Duration) -> Option<f64> {
    (count > 0 && !time.is_zero()).then(|| count as f64 / time.as_secs_f64())
}

/// Adds to `total` what a drafter's clock went on between two readings.
pub(crate) fn add_draft_times(total: &mut DraftTimes, before: DraftTimes, after: DraftTimes) {
    let DraftTimes {
        passes,
        prompt_rows,
        prompt,
        eval_rows,
        eval,
        sample,
    } = after.since(&before);
    total.passes += passes;
    total.prompt_rows += prompt_rows;
    total.prompt += prompt;
    total.eval_rows += eval_rows;
    total.eval += eval;
    total.sample += sample;
}
