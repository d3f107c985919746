//! A separate draft model as drafter.
//!
//! It drafts a chain: what the draft model itself would say, drawn with the target's own noise, penalties
//! and filters through the sampler's snapshot. All sequences advance together, one pass of the draft model a
//! depth.
//!
//! The draft model's cache holds the committed tokens as far as it has seen them and the tokens it drafted.
//! At the next draft it is cut to what is still true, and only what is missing is evaluated: nothing before
//! the first draft, then the prompt in chunks; after a round, the target's own last token, and on full
//! acceptance the last drafted token with it. No token is evaluated twice, unless the window moves: a
//! sequence that outgrows the draft model's context is drafted from its last part, as if it began there.
//! The noise goes by absolute positions all the same.
//!
//! A sequence for which the draft model's cache has no room is not drafted further in this round; the others
//! are, and it is asked for again in the next. That is no error.
//!
//! Not here: trees (a chain's rows cost a draft pass each whatever hangs beside it), and whether the two
//! models share a tokenizer: the caller compares them.

use std::collections::HashMap;
use std::time::Instant;

use crate::drafter::DraftTimes;
use crate::{
    Batch, Budget, Cancel, DraftError, Drafter, LogitError, ModelError, ModelInfo, Node, NodeId, Output,
    Proposal, Request, Row, RowId, Sampler, Scores, SequenceId, Source, TargetModel, Token, TokenTree,
};

/// Most rows of one sequence's prompt in one pass, unless set.
const PROMPT_CHUNK: usize = 256;

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

/// What the drafter knows of one of the target's sequences.
#[derive(Debug)]
struct Sequence {
    /// The draft model's name for it.
    id: SequenceId,
    /// The absolute position of the first token in the draft model's cache.
    start: usize,
    /// The tokens in the draft model's cache, by the target's ids.
    cached: Vec<Token>,
    /// The absolute position of the first of `drafted`.
    drafted_at: usize,
    /// What the last draft said, also what it did not propose. All but the last are cached.
    drafted: Vec<Proposal>,
    /// `None` until the first draft.
    sampler: Option<Sampler>,
    /// Whether nothing was drawn since it was opened or its window moved.
    fresh: bool,
}

/// A request that is being drafted.
struct Job<'r, 'a> {
    request: &'r mut Request<'a>,
    sequence: Sequence,
    /// Tokens to evaluate before the next one can be drawn: the end of the committed ones, then drafted ones.
    pending: Vec<Token>,
    chain: Chain,
    /// The rows of this pass.
    rows: Vec<RowId>,
    done: bool,
}

/// The end of the chain in the request's tree, and what may still be added.
struct Chain {
    leaf: Option<NodeId>,
    depth: usize,
    probability: f32,
    nodes: usize,
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
        let expected = self.model.info().vocab_size;
        if vocabulary.len() != expected {
            let found = vocabulary.len();
            return Err(DraftError::Other(format!(
                "the draft vocabulary has {found} tokens for {expected} logits"
            )));
        }
        if let Some(pair) = vocabulary.windows(2).find(|pair| pair[0] >= pair[1]) {
            let [a, b] = [pair[0], pair[1]];
            return Err(DraftError::Other(format!(
                "the draft vocabulary is not ascending: {b} follows {a}"
            )));
        }
        if let Some(&token) = vocabulary
            .last()
            .filter(|&&t| t as usize >= self.target_vocab_size)
        {
            let vocab_size = self.target_vocab_size;
            return Err(DraftError::Model(ModelError::TokenOutOfRange {
                token,
                vocab_size,
            }));
        }
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

    /// Stops a running draft when set, from another thread; `draft` then returns [`ModelError::Cancelled`].
    pub fn cancel(&self) -> Cancel {
        self.cancel.clone()
    }

    /// The draft model.
    pub fn model(&self) -> &M {
        &self.model
    }

    fn open(model: &mut M) -> Sequence {
        Sequence {
            id: model.open(),
            start: 0,
            cached: Vec::new(),
            drafted_at: 0,
            drafted: Vec::new(),
            sampler: None,
            fresh: true,
        }
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
            .unwrap_or_else(|| Self::open(&mut self.model));
        sequence
            .sampler
            .get_or_insert_with(|| request.sampler.sampler())
            .restore(request.sampler);
        let tokens = request.tokens;
        let context = self.model.info().context_length;
        let depth = request.budget.max_depth.min(request.budget.max_nodes);
        let mut job = Job {
            done: depth == 0 || tokens.is_empty() || tokens.len() >= request.position_limit || context < 2,
            request,
            sequence,
            pending: Vec::new(),
            chain: Chain {
                leaf: None,
                depth: 0,
                probability: 1.0,
                nodes: 0,
            },
            rows: Vec::new(),
        };
        if job.done {
            return job;
        }
        let Sequence {
            id,
            start,
            cached,
            drafted_at,
            drafted,
            fresh,
            ..
        } = &mut job.sequence;
        let steps = depth.min(context / 4).max(1);
        let fits = tokens.len() > *start && tokens.len() - *start + steps - 1 <= context;
        if !fits || *start > 0 && tokens.len() <= context / 2 {
            // Half the context is kept, so that the window moves once in about as many tokens.
            *start = if tokens.len() + steps - 1 <= context {
                0
            } else {
                tokens.len() - context / 2
            };
            *fresh = true;
            cached.clear();
            drafted.clear();
        }
        let known = &tokens[*start..];
        let shared = cached.iter().zip(known).take_while(|(a, b)| a == b).count();
        let mut ahead = Vec::new();
        if shared == known.len() {
            // The target said what was drafted, and further than it was shown: the draft goes on from there.
            let after = tokens.len().checked_sub(*drafted_at);
            ahead.extend_from_slice(after.and_then(|from| drafted.get(from..)).unwrap_or_default());
        }
        // The last of what lies ahead is drawn, but not evaluated. Where nothing does, the last committed
        // token is, for its logits.
        cached.truncate(if ahead.is_empty() {
            shared.min(known.len() - 1)
        } else {
            shared + ahead.len() - 1
        });
        self.model.truncate(*id, cached.len());
        *drafted_at = tokens.len();
        drafted.clear();
        if ahead.is_empty() {
            job.pending.extend_from_slice(&known[cached.len()..]);
        }
        for proposal in ahead {
            job.take(proposal, self.model.info());
        }
        job
    }

    /// Evaluates what is pending of each job, as far as one pass goes, and takes what it leads to.
    /// `Ok(false)` when nothing is left to do.
    fn step(&mut self, jobs: &mut [Job<'_, '_>]) -> Result<bool, DraftError> {
        let mut prompt_rows = 0;
        let now = Instant::now();
        self.batch.clear();
        for job in jobs.iter_mut() {
            job.rows.clear();
            job.done |= job.request.deadline.is_some_and(|deadline| deadline <= now);
            if job.done {
                continue;
            }
            // All that is pending, though a part may be evaluated now: a prompt that does not fit as a whole
            // is not begun.
            if self.model.reserve(job.sequence.id, job.pending.len()).is_err() {
                job.done = true;
                continue;
            }
            let room = self.prompt_chunk.saturating_sub(self.batch.len()).max(1);
            let rows = job.pending.len().min(room);
            for (at, &token) in job.pending[..rows].iter().enumerate() {
                let last = at + 1 == job.pending.len();
                job.rows.push(self.batch.push(Row {
                    sequence: job.sequence.id,
                    token: self.input(token),
                    parent: job.rows.last().copied(),
                    output: if last { Output::Logits } else { Output::None },
                }));
            }
            prompt_rows += if job.sequence.fresh { rows as u64 } else { 0 };
        }
        if self.batch.is_empty() {
            return Ok(false);
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

        for job in jobs.iter_mut().filter(|job| !job.rows.is_empty()) {
            self.model.commit(job.sequence.id, &job.rows);
            job.sequence.cached.extend(job.pending.drain(..job.rows.len()));
            let Some(logits) = job.rows.last().and_then(|&row| self.scores.logits(row)) else {
                continue;
            };
            job.sequence.fresh = false;
            let logits = match &self.vocabulary {
                Some(_) => logits,
                None => &logits[..logits.len().min(self.target_vocab_size)],
            };
            let sampler = job.sequence.sampler.as_mut().expect("prepared");
            match sampler.propose(logits, self.vocabulary.as_deref(), 1) {
                Ok(proposals) => job.take(proposals[0], self.model.info()),
                // Of the draft vocabulary, that is: the target may go on with the rest.
                Err(LogitError::AllBanned) => job.done = true,
                Err(error @ LogitError::NotFinite { .. }) => return Err(error.into()),
            }
        }
        self.times.sample += evaluated.elapsed();
        Ok(true)
    }
}

impl Job<'_, '_> {
    /// Appends a proposal to the chain, unless it is not worth it, and decides whether to draft on.
    fn take(&mut self, proposal: Proposal, info: &ModelInfo) {
        let Self {
            request,
            sequence,
            pending,
            chain,
            done,
            ..
        } = self;
        sequence.drafted.push(proposal);
        let Proposal { token, confidence } = proposal;
        let Budget {
            max_nodes,
            max_depth,
            min_path_probability,
            min_confidence,
        } = request.budget;
        *done |= confidence < min_confidence;
        if *done {
            return;
        }
        let tree: &mut TokenTree = request.tree;
        let before = tree.len();
        let node = Node {
            token,
            parent: chain.leaf,
            confidence,
            source: Source::Model,
            rank: 0,
        };
        chain.leaf = Some(tree.push(node));
        chain.nodes += tree.len() - before;
        chain.depth += 1;
        chain.probability *= confidence;
        if let Some(sampler) = &mut sequence.sampler {
            sampler.accept(token);
        }
        pending.clear();
        pending.push(token);
        let length = request.tokens.len() + chain.depth;
        *done = chain.nodes >= max_nodes
            || chain.depth >= max_depth
            || chain.probability < min_path_probability
            || length >= request.position_limit
            || length - sequence.start > info.context_length
            || info.is_end_of_generation(token);
    }
}

impl<M: TargetModel + Send> Drafter for ModelDrafter<M> {
    fn name(&self) -> &str {
        "model"
    }

    fn begin(&mut self, sequence: SequenceId, _prompt: &[Token]) -> Result<(), DraftError> {
        self.end(sequence);
        let opened = Self::open(&mut self.model);
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
        for job in jobs {
            self.sequences.insert(job.request.sequence, job.sequence);
        }
        outcome
    }

    fn end(&mut self, sequence: SequenceId) {
        if let Some(ended) = self.sequences.remove(&sequence) {
            self.model.release(ended.id);
        }
    }

    fn times(&self) -> Option<DraftTimes> {
        Some(self.times)
    }
}
