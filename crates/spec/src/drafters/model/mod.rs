//! A separate draft model as drafter.
//!
//! It drafts a tree: what the draft model itself would say, drawn with the target's own noise, penalties and filters
//! through the sampler's snapshot, and what it would say next. The tree grows best-first by path probability; one pass of
//! the draft model evaluates the likeliest ends of the trees of all sequences together. A tree of width one is a chain.
//!
//! What other drafters have proposed is not drafted again: its likeliest path is evaluated in the first pass, and the tree
//! grows on from there.
//!
//! Every branch that is evaluated is a sequence of the draft model's own, which shares the memory of what lies before the
//! branch. Their caches hold the committed tokens as far as they were seen and the tokens that were drafted. At the next
//! draft the branch that came true is kept and cut to what is still true, and only what is missing is evaluated: nothing before
//! the first draft, then the prompt in chunks; after a round, the target's own last token, and on full
//! acceptance the last drafted token with it. No token is evaluated twice, unless it lies on a branch that was given up, or
//! the window moves: a sequence that outgrows the draft model's context is drafted from its last part, as if it began there.
//! The noise goes by absolute positions all the same.
//!
//! A sequence for which the draft model's cache has no room is not drafted further in this round; the others
//! are, and it is asked for again in the next. That is no error.
//!
//! Not here: whether the two models share a tokenizer: the caller compares them.

mod growth;
mod lines;

use std::collections::HashMap;
use std::time::Instant;

use super::propose::{check_vocabulary, propose};
use crate::drafter::DraftTimes;
use crate::{
    Batch, Cancel, DraftError, Drafter, Output, Proposal, Request, Row, RowId, Scores, SequenceId, Source,
    TargetModel, Token,
};
use growth::{Growth, Place};
use lines::Sequence;

/// Most rows of one sequence's prompt in one pass, unless set.
const PROMPT_CHUNK: usize = 256;

/// Rows up to which a pass costs little more than with one.
const AHEAD: usize = 4;

/// Drafts with a model of its own.
#[derive(Debug)]
pub struct ModelDrafter<M> {
    model: M,
    target_vocab_size: usize,
    vocabulary: Option<Vec<Token>>,
    input_vocab_size: Option<usize>,
    prompt_chunk: usize,
    cancel: Cancel,
    sequences: HashMap<SequenceId, Sequence>,
    times: DraftTimes,
    batch: Batch,
    scores: Scores,
}

/// A request that is being drafted.
struct Job<'r, 'a> {
    request: &'r mut Request<'a>,
    sequence: Sequence,
    /// Committed tokens to evaluate before the first can be drawn.
    pending: Vec<Token>,
    /// The likeliest path of what others proposed: evaluated with the last of `pending`, since its rows cost next to nothing.
    ahead: Vec<Token>,
    /// Whether these are so many that to read them is no part of drafting.
    reads: bool,
    growth: Growth,
    /// What this pass evaluates of the tree, where it leads, and in which row.
    frontier: Vec<(Token, Place, Option<RowId>)>,
    /// The rows of this pass that evaluate `pending`.
    rows: Vec<RowId>,
    done: bool,
}

impl<M: TargetModel + Send> ModelDrafter<M> {
    /// A drafter for a target whose rows of logits are `target_vocab_size` long. Where the lengths differ
    /// (padding), ids are cut to the smaller; a committed token that the draft model does not have is shown
    /// to it as its token 0.
    pub fn new(model: M, target_vocab_size: usize) -> Self {
        Self {
            model,
            target_vocab_size,
            vocabulary: None,
            input_vocab_size: None,
            prompt_chunk: PROMPT_CHUNK,
            cancel: Cancel::default(),
            sequences: HashMap::new(),
            times: DraftTimes::default(),
            batch: Batch::default(),
            scores: Scores::default(),
        }
    }

    /// For a draft model whose head covers a part of the vocabulary: the token of each of its logits,
    /// ascending. It reads all of the target's tokens, unless [`with_inputs`](Self::with_inputs) says otherwise.
    pub fn with_vocabulary(mut self, vocabulary: Vec<Token>) -> Result<Self, DraftError> {
        check_vocabulary(&vocabulary, self.model.info().vocab_size, self.target_vocab_size)?;
        self.vocabulary = Some(vocabulary);
        Ok(self)
    }

    /// For a draft model that reads another number of tokens than it has logits: the others are shown to it as its token 0.
    pub fn with_inputs(mut self, vocab_size: usize) -> Self {
        self.input_vocab_size = Some(vocab_size);
        self
    }

    /// Most rows of one sequence's prompt in one pass.
    pub fn with_prompt_chunk(mut self, rows: usize) -> Self {
        self.prompt_chunk = rows.max(1);
        self
    }

    /// Stops a running draft when set, from another thread; `draft` then returns [`ModelError::Cancelled`](crate::ModelError::Cancelled).
    pub fn cancel(&self) -> Cancel {
        self.cancel.clone()
    }

    /// The draft model.
    pub fn model(&self) -> &M {
        &self.model
    }

    /// The draft model, to measure it; its sequences are the drafter's.
    pub fn model_mut(&mut self) -> &mut M {
        &mut self.model
    }

    /// The draft model's id for a token.
    fn input(&self, token: Token) -> Token {
        let known = self.input_vocab_size.unwrap_or(match self.vocabulary {
            Some(_) => self.target_vocab_size,
            None => self.model.info().vocab_size,
        });
        if (token as usize) < known { token } else { 0 }
    }

    /// Cuts the cache to what the request's tokens share with it, and finds what is missing.
    fn prepare<'r, 'a>(&mut self, request: &'r mut Request<'a>) -> Job<'r, 'a> {
        let mut sequence = self
            .sequences
            .remove(&request.sequence)
            .unwrap_or_else(|| Sequence::open(&mut self.model));
        sequence
            .sampler
            .get_or_insert_with(|| request.sampler.sampler())
            .restore(request.sampler);
        let length = request.tokens.len();
        let context = self.model.info().context_length;
        let depth = request.budget.max_depth.min(request.budget.max_nodes);
        let done = !request.budget.sources.contains(Source::Model)
            || depth == 0
            || length == 0
            || length >= request.position_limit
            || context < 2;
        let (mut pending, mut growth) = (Vec::new(), Growth::default());
        if !done {
            sequence.fit(&mut self.model, request, depth, context);
            pending = sequence.follow(&mut self.model, request);
            if pending.is_empty() {
                growth.root(request, &sequence, self.model.info());
            }
        }
        Job {
            request,
            reads: sequence.fresh || pending.len() > AHEAD,
            sequence,
            pending,
            ahead: Vec::new(),
            growth,
            frontier: Vec::new(),
            rows: Vec::new(),
            done,
        }
    }

    /// Gives the job its rows of the next pass: committed tokens that are missing, or ends of its tree. Returns how many
    /// of them are of a prompt.
    fn plan(&mut self, job: &mut Job<'_, '_>) -> u64 {
        let first = job.sequence.lines[0].id;
        let room = self.prompt_chunk.saturating_sub(self.batch.len()).max(1);
        let rows = job.pending.len().min(room);
        let last = rows == job.pending.len();
        job.ahead.clear();
        if rows > 0 && last {
            let most = AHEAD.saturating_sub(rows);
            job.ahead = growth::likeliest(job.request, &job.sequence, self.model.info(), most);
        }
        // All that is pending, though a part may be evaluated now: a prompt that does not fit as a whole
        // is not begun.
        if self
            .model
            .reserve(first, job.pending.len() + job.ahead.len())
            .is_err()
        {
            job.ahead.clear();
            if self.model.reserve(first, job.pending.len()).is_err() {
                job.done = true;
                return 0;
            }
        }
        for (at, &token) in job.pending[..rows].iter().chain(&job.ahead).enumerate() {
            job.rows.push(self.batch.push(Row {
                sequence: first,
                token: self.input(token),
                parent: job.rows.last().copied(),
                output: if last && at + 1 >= rows {
                    Output::Logits
                } else {
                    Output::None
                },
            }));
        }
        if rows > 0 {
            return if job.reads { rows as u64 } else { 0 };
        }
        let frontier = job.growth.step(job.request, &mut job.sequence, &mut self.model);
        job.done = frontier.is_empty();
        for (token, place) in frontier {
            let sequence = job.sequence.lines[place.line()].id;
            // Without room it stays a leaf.
            let row = self.model.reserve(sequence, 1).is_ok().then(|| {
                self.batch.push(Row {
                    sequence,
                    token: self.input(token),
                    parent: None,
                    output: Output::Logits,
                })
            });
            job.frontier.push((token, place, row));
        }
        0
    }

    /// Evaluates what the jobs need next, as far as one pass goes, and takes in what it leads to.
    /// `Ok(false)` when nothing is left to do.
    fn step(&mut self, jobs: &mut [Job<'_, '_>]) -> Result<bool, DraftError> {
        let mut prompt_rows = 0;
        let now = Instant::now();
        self.batch.clear();
        for job in jobs.iter_mut() {
            job.rows.clear();
            job.frontier.clear();
            job.done |= job.request.deadline.is_some_and(|deadline| deadline <= now);
            if !job.done {
                prompt_rows += self.plan(job);
            }
        }
        if self.batch.is_empty() {
            return Ok(jobs.iter().any(|job| !job.done));
        }
        self.model.forward(&self.batch, &mut self.scores, &self.cancel)?;
        let evaluated = Instant::now();
        let rows = self.batch.len() as u64;
        let spent = if prompt_rows > 0 {
            &mut self.times.prompt
        } else {
            &mut self.times.eval
        };
        *spent += evaluated - now;
        self.times.prompt_rows += prompt_rows;
        self.times.eval_rows += rows - prompt_rows;
        self.times.passes += 1;
        for job in jobs.iter_mut() {
            self.take(job)?;
        }
        self.times.sample += evaluated.elapsed();
        Ok(true)
    }

    /// Keeps a job's rows of the pass, and what they propose.
    fn take(&mut self, job: &mut Job<'_, '_>) -> Result<(), DraftError> {
        if !job.rows.is_empty() {
            self.model.commit(job.sequence.lines[0].id, &job.rows);
            let committed = job.rows.len() - job.ahead.len();
            let read = job.pending.drain(..committed);
            job.sequence.lines[0].cached.extend(read);
            if job.pending.is_empty() {
                job.sequence.fresh = false;
                let ahead = std::mem::take(&mut job.ahead);
                for at in 0..=ahead.len() {
                    let proposals = self.propose(job, job.rows[committed - 1 + at], &ahead[..at])?;
                    let line = &mut job.sequence.lines[0];
                    line.cached.extend(at.checked_sub(1).map(|before| ahead[before]));
                    line.said.push(proposals);
                }
                job.growth.root(job.request, &job.sequence, self.model.info());
            }
        }
        for (token, place, row) in std::mem::take(&mut job.frontier) {
            let Some(row) = row else { continue };
            self.model.commit(job.sequence.lines[place.line()].id, &[row]);
            let proposals = self.propose(job, row, &place.path(job.request))?;
            let line = &mut job.sequence.lines[place.line()];
            line.cached.push(token);
            line.said.push(proposals);
            job.growth
                .reach(job.request, &job.sequence, self.model.info(), place);
        }
        Ok(())
    }

    /// What the draft model would say after a row, to which `path` leads from the last committed token.
    fn propose(
        &self,
        job: &mut Job<'_, '_>,
        row: RowId,
        path: &[Token],
    ) -> Result<Vec<Proposal>, DraftError> {
        let logits = self.scores.logits(row).expect("asked for");
        let logits = match &self.vocabulary {
            Some(_) => logits,
            None => &logits[..logits.len().min(self.target_vocab_size)],
        };
        let budget = job.request.budget;
        Ok(propose(
            job.sequence.sampler.as_mut().expect("prepared"),
            job.request.grammar.as_deref_mut().map(|grammar| grammar as _),
            path,
            logits,
            self.vocabulary.as_deref(),
            budget.max_branches,
        )?)
    }
}

impl<M: TargetModel + Send> Drafter for ModelDrafter<M> {
    fn name(&self) -> &str {
        "model"
    }

    fn begin(&mut self, sequence: SequenceId, _prompt: &[Token]) -> Result<(), DraftError> {
        self.end(sequence);
        let opened = Sequence::open(&mut self.model);
        self.sequences.insert(sequence, opened);
        Ok(())
    }

    fn draft(&mut self, requests: &mut [Request<'_>]) -> Result<(), DraftError> {
        let mut jobs: Vec<_> = requests.iter_mut().map(|request| self.prepare(request)).collect();
        let outcome = loop {
            match self.step(&mut jobs) {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        for mut job in jobs {
            if outcome.is_ok() {
                job.growth.finish(job.request);
            } else {
                job.sequence.repair(&mut self.model);
            }
            self.sequences.insert(job.request.sequence, job.sequence);
        }
        outcome
    }

    fn end(&mut self, sequence: SequenceId) {
        if let Some(mut ended) = self.sequences.remove(&sequence) {
            ended.release(&mut self.model);
        }
    }

    fn times(&self) -> Option<DraftTimes> {
        Some(self.times)
    }
}
