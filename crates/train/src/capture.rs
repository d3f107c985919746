//! Rows for a dataset, as the target computes them: of texts, and of what it says itself. From its chat template it writes what a user might
//! ask and then answers that (Xu et al. 2024, "Magpie", arXiv 2406.08464), so that the rows are of what it will be asked to say,
//! computed by the engine that will serve it.
//!
//! Sequences run side by side in one batch, and one that ends makes room for the next. What a sequence holds is a function of its number,
//! whatever runs beside it: texts come first, then the target's own.
//!
//! Not here: how text becomes tokens, how much is enough.

use foretoken_spec::{
    Batch, Cancel, LogitError, ModelError, Output, Row, RowId, Sampler, SamplerParams, Scores, SequenceId,
    TargetModel, Token, top_logits,
};

use crate::{DatasetError, DatasetWriter, Rows};

/// Rows of known tokens that one sequence has in a pass.
const CHUNK: usize = 16;
/// What the target asks itself of fewer tokens is no question.
const LEAST_QUESTION: usize = 3;
/// An answer whose last tokens are so many repetitions of at most so many tokens, and so many in all, has nothing more to tell.
const REPETITIONS: usize = 3;
const MOST_REPEATED: usize = 64;
const LEAST_REPEATED: usize = 24;
/// Temperatures of answers, in turn: most are asked for greedily, and others lead to rows that those do not.
const TEMPERATURES: [f32; 4] = [0.0, 0.7, 0.0, 1.0];

/// What stands before and after what a user says, in the model's chat template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// From the beginning to where the user speaks. Not empty.
    pub before: Vec<Token>,
    /// From there to where the answer begins.
    pub after: Vec<Token>,
}

/// What to capture.
#[derive(Clone, Debug)]
pub struct CaptureOptions {
    /// Sequences that run side by side.
    pub slots: usize,
    /// Most tokens of a question that the target writes.
    pub question: usize,
    /// Most tokens of an answer.
    pub answer: usize,
    /// Seed of the sampling noise.
    pub seed: u64,
}

impl Default for CaptureOptions {
    fn default() -> Self {
        Self {
            slots: 16,
            question: 96,
            answer: 320,
            seed: 1,
        }
    }
}

/// Why nothing more can be captured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// A pass failed.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A pass gave no usable logits.
    #[error(transparent)]
    Logits(#[from] LogitError),
    /// The rows cannot be kept.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
}

/// What a sequence does once its pending tokens are evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Text,
    Question,
    Answer,
}

/// A sequence that is under way.
#[derive(Debug)]
struct Slot {
    number: u32,
    handle: SequenceId,
    phase: Phase,
    /// Tokens that are not evaluated yet.
    pending: Vec<Token>,
    /// Those of this pass.
    chunk: Vec<RowId>,
    sampler: Sampler,
    /// Tokens of the phase so far.
    drawn: Vec<Token>,
    rows: Rows,
    before_answer: usize,
}

/// Captures rows of one target.
pub struct Capture<'a, M> {
    model: &'a mut M,
    options: CaptureOptions,
    frame: Frame,
    texts: Vec<Vec<Token>>,
    /// Holds what the chat template puts before a question, but for its last token.
    beginning: Option<SequenceId>,
    /// The next sequence to begin, and the first one that is not to be.
    next: u32,
    end: u32,
    slots: Vec<Slot>,
    batch: Batch,
    scores: Scores,
}

impl<'a, M: TargetModel> Capture<'a, M> {
    /// Rows of these texts, each of at least one token and of as many as the context has at most, and then of the model's own sequences.
    pub fn new(model: &'a mut M, options: CaptureOptions, frame: Frame, texts: Vec<Vec<Token>>) -> Self {
        Self {
            model,
            options,
            frame,
            texts,
            beginning: None,
            next: 0,
            end: u32::MAX,
            slots: Vec::new(),
            batch: Batch::default(),
            scores: Scores::default(),
        }
    }

    /// Begins no sequence from number `end` on.
    pub fn with_end(mut self, end: u32) -> Self {
        self.end = end;
        self
    }

    /// Begins no further sequence: what is under way comes to its end.
    pub fn finish(&mut self) {
        self.end = self.end.min(self.next);
    }

    /// The number of the first sequence that was not begun: once nothing is under way, all before it are written.
    pub fn next(&self) -> u32 {
        self.next
    }

    /// One pass over all sequences that are under way. Those that end are written. `false` if there is none.
    ///
    /// # Errors
    /// [`CaptureError`]; the sequences under way are lost, what is written is not.
    pub fn step(&mut self, writer: &mut DatasetWriter) -> Result<bool, CaptureError> {
        while self.slots.len() < self.options.slots && self.next < self.end {
            if !writer.numbers().contains(&self.next) {
                let slot = self.begin(self.next)?;
                self.slots.push(slot);
            }
            self.next += 1;
        }
        if self.slots.is_empty() {
            return Ok(false);
        }
        self.batch.clear();
        for slot in &mut self.slots {
            slot.chunk.clear();
            for &token in slot.pending.iter().take(CHUNK) {
                slot.chunk.push(self.batch.push(Row {
                    sequence: slot.handle,
                    token,
                    parent: slot.chunk.last().copied(),
                    output: Output::Both,
                }));
            }
            self.model
                .reserve(slot.handle, slot.chunk.len())
                .map_err(ModelError::from)?;
        }
        self.model
            .forward(&self.batch, &mut self.scores, &Cancel::default())?;
        let labels = writer.meta().labels;
        for mut slot in std::mem::take(&mut self.slots) {
            self.model.commit(slot.handle, &slot.chunk);
            for (&row, token) in slot.chunk.iter().zip(slot.pending.drain(..slot.chunk.len())) {
                let logits = self.scores.logits(row).expect("asked for");
                let state = self.scores.hidden(row).expect("asked for");
                slot.rows.push(token, state, likeliest(logits, labels));
            }
            if slot.pending.is_empty() && !self.go_on(&mut slot)? {
                self.model.release(slot.handle);
                if slot.phase != Phase::Question {
                    writer.push(slot.number, slot.before_answer as u32, &slot.rows)?;
                }
            } else {
                self.slots.push(slot);
            }
        }
        Ok(true)
    }

    fn begin(&mut self, number: u32) -> Result<Slot, CaptureError> {
        let (handle, phase, pending, sampler) = match self.texts.get_mut(number as usize) {
            Some(text) => {
                let text = std::mem::take(text);
                let sampler = self.sampler(number, 0.0, &[]);
                (self.model.open(), Phase::Text, text, sampler)
            }
            None => {
                let beginning = self.beginning()?;
                let last = self.frame.before.last().copied();
                let sampler = self.sampler(number, 1.0, &self.frame.before);
                let pending = Vec::from_iter(last);
                (self.model.fork(beginning), Phase::Question, pending, sampler)
            }
        };
        Ok(Slot {
            number,
            handle,
            phase,
            sampler,
            pending,
            chunk: Vec::new(),
            drawn: Vec::new(),
            rows: Rows::default(),
            before_answer: 0,
        })
    }

    /// What all questions begin with is read once, and no row of it is kept but the last: the others are the same in all.
    fn beginning(&mut self) -> Result<SequenceId, CaptureError> {
        if let Some(beginning) = self.beginning {
            return Ok(beginning);
        }
        let handle = self.model.open();
        let before = self
            .frame
            .before
            .split_last()
            .map_or(&[][..], |(_, before)| before);
        for tokens in before.chunks(self.options.slots * CHUNK) {
            self.batch.clear();
            let mut rows: Vec<RowId> = Vec::new();
            for &token in tokens {
                rows.push(self.batch.push(Row {
                    sequence: handle,
                    token,
                    parent: rows.last().copied(),
                    output: Output::None,
                }));
            }
            self.model.reserve(handle, rows.len()).map_err(ModelError::from)?;
            self.model
                .forward(&self.batch, &mut self.scores, &Cancel::default())?;
            self.model.commit(handle, &rows);
        }
        Ok(*self.beginning.insert(handle))
    }

    /// The noise of a sequence is its own.
    fn sampler(&self, number: u32, temperature: f32, prompt: &[Token]) -> Sampler {
        let params = SamplerParams {
            temperature,
            top_k: 0,
            top_p: 1.0,
            ..SamplerParams::default()
        };
        Sampler::new(params, Sampler::key(self.options.seed, number.into()), prompt)
    }

    /// Draws what a sequence says next; `false` if it is over.
    fn go_on(&mut self, slot: &mut Slot) -> Result<bool, CaptureError> {
        let most = match slot.phase {
            Phase::Text => return Ok(false),
            Phase::Question => self.options.question,
            Phase::Answer => self.options.answer,
        };
        let row = *slot.chunk.last().expect("a pass over at least one row");
        let token = slot.sampler.sample(self.scores.logits(row).expect("asked for"))?;
        let ends = self.model.info().is_end_of_generation(token);
        if !ends {
            slot.sampler.accept(token);
            slot.drawn.push(token);
        }
        let over = ends || slot.drawn.len() == most || repeats(&slot.drawn);
        if !over {
            slot.pending.push(token);
            return Ok(true);
        }
        if slot.phase == Phase::Answer || slot.drawn.len() < LEAST_QUESTION || repeats(&slot.drawn) {
            return Ok(false);
        }
        slot.phase = Phase::Answer;
        slot.pending.extend(slot.drawn.last().filter(|_| !ends));
        slot.pending.extend(&self.frame.after);
        slot.drawn.clear();
        slot.before_answer = slot.rows.len() + slot.pending.len() - 1;
        let own = slot.number as usize - self.texts.len();
        let known = self.frame.before.iter().chain(slot.rows.tokens.iter().skip(1));
        let prompt: Vec<Token> = known.chain(&slot.pending).copied().collect();
        slot.sampler = self.sampler(slot.number, TEMPERATURES[own % TEMPERATURES.len()], &prompt);
        Ok(true)
    }
}

/// Whether a text has come to say the same again and again.
fn repeats(tokens: &[Token]) -> bool {
    (1..=MOST_REPEATED).any(|period| {
        // What is as short as a word may be repeated more often: digits, spaces of an indent, lines of a table.
        let length = LEAST_REPEATED.max(period * REPETITIONS);
        let Some(from) = tokens.len().checked_sub(length) else {
            return false;
        };
        tokens[from..].windows(period + 1).all(|w| w[0] == w[period])
    })
}

/// The `count` likeliest tokens after a row with their probabilities, likeliest first. Where fewer are possible, the rest is token 0
/// with probability 0.
fn likeliest(logits: &[f32], count: usize) -> impl Iterator<Item = (Token, f32)> {
    /// What lies so far below the best has no share that counts.
    const NEGLIGIBLE: f32 = 20.0;
    let best = top_logits(logits, count);
    let most = best.first().map_or(0.0, |&(_, logit)| logit);
    let terms = logits.iter().map(|logit| logit - most);
    let sum: f64 = terms
        .filter(|&x| x > -NEGLIGIBLE)
        .map(|x| f64::from(x.exp()))
        .sum();
    let known = best
        .into_iter()
        .map(move |(token, logit)| (token, (f64::from((logit - most).exp()) / sum) as f32));
    known.chain(std::iter::repeat((0, 0.0))).take(count)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use foretoken_spec::testing::ScriptedModel;

    use super::*;
    use crate::{Dataset, DatasetMeta};

    const VOCAB: usize = 40;
    const END: Token = 39;

    /// A source of order two, with ends.
    fn model() -> ScriptedModel {
        let logits = |path: &[Token], out: &mut [f32]| {
            let last = path.iter().rev().take(2).fold(1u32, |hash, &token| {
                hash.wrapping_mul(0x9e37_79b1).wrapping_add(token + 1)
            });
            for (at, logit) in out.iter_mut().enumerate() {
                let x = (last ^ at as u32).wrapping_mul(0x85eb_ca6b);
                *logit = ((x >> 20) % 64) as f32 / 8.0;
            }
            out[END as usize] = 4.0;
        };
        ScriptedModel::new(VOCAB, logits).with_end_of_generation(vec![END])
    }

    fn options(slots: usize) -> CaptureOptions {
        CaptureOptions {
            slots,
            question: 8,
            answer: 30,
            seed: 3,
        }
    }

    fn frame() -> Frame {
        Frame {
            before: vec![1, 2],
            after: vec![3, 4, 5],
        }
    }

    fn texts() -> Vec<Vec<Token>> {
        vec![(0..37).collect(), vec![7]]
    }

    /// Captures the sequences below `end`; begins anew with a new `Capture` after so many passes.
    fn capture(slots: usize, end: u32, restart: usize) -> BTreeMap<u32, (u32, Rows)> {
        let directory = tempfile::tempdir().unwrap();
        let meta = DatasetMeta {
            target: String::new(),
            recipe: String::new(),
            hidden_size: 4,
            labels: 3,
        };
        let mut done = false;
        while !done {
            let mut writer = DatasetWriter::open(directory.path(), meta.clone()).unwrap();
            let mut model = model();
            let mut capture = Capture::new(&mut model, options(slots), frame(), texts()).with_end(end);
            done = !(0..restart).all(|_| capture.step(&mut writer).unwrap());
        }
        let dataset = Dataset::open(directory.path()).unwrap();
        let mut all = BTreeMap::new();
        for sequence in dataset.sequences() {
            let mut rows = Rows::default();
            dataset
                .read(sequence.first, sequence.rows as usize, &mut rows)
                .unwrap();
            all.insert(sequence.number, (sequence.before_answer, rows));
        }
        all
    }

    #[test]
    fn rows_hold_what_the_model_computes_for_their_paths() {
        let all = capture(4, 20, 1000);
        assert!(all.len() > 14, "{}", all.len());
        for (number, (before_answer, rows)) in all {
            let mut model = model();
            let handle = model.open();
            if number > 1 {
                // All begin with this, and no row of it is kept.
                let mut batch = Batch::default();
                let row = batch.push(Row {
                    sequence: handle,
                    token: frame().before[0],
                    parent: None,
                    output: Output::None,
                });
                model
                    .forward(&batch, &mut Scores::default(), &Cancel::default())
                    .unwrap();
                model.commit(handle, &[row]);
            }
            for at in 0..rows.len() {
                let mut batch = Batch::default();
                let token = rows.tokens[at];
                let row = batch.push(Row {
                    sequence: handle,
                    token,
                    parent: None,
                    output: Output::Both,
                });
                let mut scores = Scores::default();
                model.forward(&batch, &mut scores, &Cancel::default()).unwrap();
                model.commit(handle, &[row]);
                let state = scores.hidden(row).unwrap().iter();
                let state: Vec<f32> = state.map(|&x| half::f16::from_f32(x).to_f32()).collect();
                assert_eq!(rows.states[4 * at..][..4], state);
                let logits = scores.logits(row).unwrap();
                let sum: f32 = logits.iter().map(|x| x.exp()).sum();
                let mut last = f32::INFINITY;
                for label in 3 * at..3 * at + 3 {
                    let p = logits[rows.label_tokens[label] as usize].exp() / sum;
                    assert!((p - rows.label_probabilities[label]).abs() < 1e-3);
                    assert!(p <= last, "likeliest first");
                    last = p;
                }
            }
            match number {
                0 | 1 => assert_eq!(rows.tokens, texts()[number as usize]),
                _ => {
                    assert_eq!(rows.tokens[0], frame().before[1]);
                    let after = rows.tokens.windows(3).position(|w| w == frame().after).unwrap();
                    assert!((1 + LEAST_QUESTION..=1 + 8).contains(&after), "{after}");
                    assert_eq!(before_answer as usize, after + 2);
                    assert!(rows.len() <= 1 + 8 + 3 + 30);
                    assert!(!rows.tokens.contains(&END));
                }
            }
        }
    }

    #[test]
    fn a_sequence_depends_on_its_number_alone() {
        let alone = capture(1, 20, 10_000);
        for (slots, restart) in [(3, 10_000), (16, 10_000), (5, 60)] {
            assert!(alone == capture(slots, 20, restart), "{slots} {restart}");
        }
    }

    #[test]
    fn repetitions_end_a_text() {
        let line = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        assert!(repeats(&line.repeat(3)));
        assert!(!repeats(&line.repeat(2)));
        assert!(repeats(&[9; 24]));
        assert!(!repeats(&[9; 23]));
        assert!(!repeats(&(0..200).collect::<Vec<_>>()));
        let once: Vec<_> = line.repeat(3).into_iter().chain([9]).collect();
        assert!(!repeats(&once));
    }
}
