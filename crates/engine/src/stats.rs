//! What a sequence cost and what its drafts were worth.
//!
//! Not here: sentences about it (the command line), the cost model that learns from it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use foretoken_spec::{
    Batch, Cancel, ModelError, ModelInfo, OutOfPages, RowId, Scores, SequenceId, TargetModel, TokenTree,
    Verdict,
};

/// Counters and times of one sequence.
///
/// Passes serve many sequences at once: each of them counts the whole pass, as the time that it waited.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens generated. A token that ends the generation is not among them.
    pub generated: usize,
    /// Wall time from the request to its first token.
    pub prompt: Duration,
    /// Wall time from the first token to the last.
    pub decode: Duration,
    /// Where the target's time went.
    pub target: TargetTimes,
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
    /// Why drafting was given up.
    pub off_reason: Option<String>,
    /// Rounds, those without a draft included.
    pub rounds: usize,
    /// Tokens that these rounds decided, one that ends the generation included.
    pub decided: usize,
    /// Draft tokens that the drafter offered.
    pub proposed: usize,
    /// Draft tokens that were verified: offered, not dropped for being too few, and before the cut.
    pub drafted: usize,
    /// Draft tokens that are part of the output.
    pub accepted: usize,
    /// Right draft tokens that the end of the generation cut off, one that ends it included.
    pub discarded_by_cut: usize,
    /// How often the draft token at depth 1, 2, … was accepted. Never increases.
    pub accepted_per_position: Vec<usize>,
    /// How many rounds had so many rows: the last token and its draft.
    pub rows_histogram: BTreeMap<usize, usize>,
    /// Time in the drafter.
    pub draft: Duration,
    /// Time in target passes that verified a draft.
    pub verify: Duration,
    /// Acceptance was forced with this probability: the text is not the model's.
    pub forced: Option<f32>,
}

impl Speculation {
    /// Counts a round that put `kept` tokens into the output. An accepted draft token that ended the
    /// generation is none of these.
    pub(crate) fn count_round(&mut self, tree: &TokenTree, verdict: &Verdict, kept: usize) {
        let accepted = verdict.accepted.len().min(kept);
        let cut = verdict.discarded_by_cut + verdict.accepted.len() - accepted;
        self.rounds += 1;
        self.decided += verdict.tokens.len();
        self.drafted += tree.len() - cut;
        self.accepted += accepted;
        self.discarded_by_cut += cut;
        let positions = &mut self.accepted_per_position;
        positions.resize(positions.len().max(accepted), 0);
        positions[..accepted].iter_mut().for_each(|count| *count += 1);
        *self.rows_histogram.entry(1 + tree.len()).or_default() += 1;
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

/// Where the time of a [`Timed`] model went.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PassTimes {
    /// Passes of several rows.
    pub batched: Passes,
    /// Rows of these.
    pub batched_rows: usize,
    /// Passes of one row.
    pub single: Passes,
}

/// Reads the times of a [`Timed`] model from elsewhere.
#[derive(Clone, Debug, Default)]
pub struct Meter(Arc<Mutex<PassTimes>>);

impl Meter {
    /// The times so far.
    pub fn read(&self) -> PassTimes {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A model that measures its passes: a draft model's, which the engine does not run itself.
#[derive(Clone, Debug)]
pub struct Timed<M> {
    model: M,
    meter: Meter,
}

impl<M> Timed<M> {
    /// Measures `model`.
    pub fn new(model: M) -> (Self, Meter) {
        let meter = Meter::default();
        (
            Self {
                model,
                meter: meter.clone(),
            },
            meter,
        )
    }
}

impl<M: TargetModel> TargetModel for Timed<M> {
    fn info(&self) -> &ModelInfo {
        self.model.info()
    }

    fn open(&mut self) -> SequenceId {
        self.model.open()
    }

    fn len(&self, sequence: SequenceId) -> usize {
        self.model.len(sequence)
    }

    fn reserve(&mut self, sequence: SequenceId, rows: usize) -> Result<(), OutOfPages> {
        self.model.reserve(sequence, rows)
    }

    fn forward(&mut self, batch: &Batch, scores: &mut Scores, cancel: &Cancel) -> Result<(), ModelError> {
        let start = Instant::now();
        let outcome = self.model.forward(batch, scores, cancel);
        let mut times = self.meter.0.lock().unwrap_or_else(PoisonError::into_inner);
        if batch.len() == 1 {
            times.single.add(start.elapsed());
        } else {
            times.batched.add(start.elapsed());
            times.batched_rows += batch.len();
        }
        outcome
    }

    fn commit(&mut self, sequence: SequenceId, rows: &[RowId]) {
        self.model.commit(sequence, rows);
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize) {
        self.model.truncate(sequence, len);
    }

    fn fork(&mut self, sequence: SequenceId) -> SequenceId {
        self.model.fork(sequence)
    }

    fn release(&mut self, sequence: SequenceId) {
        self.model.release(sequence);
    }
}
