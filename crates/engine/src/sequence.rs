//! The state of one sequence, and the one cut that ends it.
//!
//! Not here: rounds over all sequences ([`crate::round`]).

use std::time::{Duration, Instant};

use foretoken_spec::{
    Budget, Cancel, Flow, ForcedAcceptance, Forecast, RowId, Sampler, SequenceId, Source, Token, TokenTree,
};

use crate::text::TextStream;
use crate::{DraftLimits, Event, FinishReason, OutputToken, Progress, RequestId, Stats};

/// A sequence that is being generated.
pub(crate) struct Sequence {
    pub id: RequestId,
    /// The target model's name for it.
    pub handle: SequenceId,
    /// Prompt and output. Those past the model's own length are still to be evaluated.
    pub tokens: Vec<Token>,
    pub sampler: Sampler,
    pub output: Output,
    pub cancel: Cancel,
    /// What may be drafted.
    pub limits: DraftLimits,
    /// See [`GenerationRequest::logprobs`](crate::GenerationRequest::logprobs).
    pub logprobs: Option<usize>,
    /// How drafts are accepted where the target is not asked.
    pub forced: Option<ForcedAcceptance>,
    pub stats: Stats,
    pub started: Instant,
    /// When the first token was drawn.
    pub decoding_since: Option<Instant>,
    /// Whether the drafter knows this sequence.
    pub drafting: bool,
    /// Prompt tokens that the drafter has been told of.
    pub observed: usize,
    /// It waits for pages until another sequence ends.
    pub parked: bool,
    /// It has computed nothing yet, and may take over what others hold.
    pub looking: bool,
    /// The target's hidden state from which the last token was drawn, if the drafter asks for it.
    pub hidden: Vec<f32>,
    /// What it does in the current round.
    pub turn: Turn,
}

/// A sequence's part in one round.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// It lets an older sequence compute what both begin with.
    pub waits: bool,
    /// Pending tokens to evaluate; 0 if it takes no part.
    pub chunk: usize,
    /// Whether the chunk reaches the last token, so that the next one can be drawn.
    pub draws: bool,
    /// Draft tokens that may be added, for whom there is room.
    pub budget: Option<Budget>,
    /// The draft.
    pub tree: TokenTree,
    /// What the drafter expects of the round.
    pub forecast: Option<Forecast>,
    /// The time that drafting took, for all sequences together.
    pub draft: Duration,
    /// The time of the pass.
    pub pass: Duration,
    /// The first row of the chunk; the tree's rows follow the chunk's.
    pub first_row: RowId,
}

impl Turn {
    /// No part in the round, until one is given; keeps the tree's memory.
    pub fn reset(&mut self) {
        self.tree.clear();
        *self = Self {
            tree: std::mem::take(&mut self.tree),
            ..Self::default()
        };
    }

    /// The row of the last token of the chunk, and root of the tree.
    pub fn root(&self) -> RowId {
        self.first_row + self.chunk as RowId - 1
    }

    /// The row of a node.
    pub fn row(&self, node: Option<u32>) -> RowId {
        self.root() + node.map_or(0, |n| n + 1)
    }
}

impl Sequence {
    /// Hands out what the round added, if anything.
    pub fn emit(&mut self, events: &mut Vec<Event>) {
        let progress = std::mem::take(&mut self.output.progress);
        if progress != Progress::default() {
            events.push(Event::Progress {
                id: self.id,
                progress,
            });
        }
    }

    /// Whether the prompt is behind it.
    pub fn is_decoding(&self) -> bool {
        self.decoding_since.is_some()
    }
}

/// What a sequence has said and what may end it. Every token passes [`push`](Self::push), one by one:
/// this is the cut from which ids, text, counters and cache all follow.
pub(crate) struct Output {
    stream: TextStream,
    limit: usize,
    limit_reason: FinishReason,
    count: usize,
    /// Set by the token that ended the generation.
    pub finish: Option<FinishReason>,
    /// What the current round adds.
    pub progress: Progress,
}

impl Output {
    /// Ends by `limit_reason` after `limit` tokens, by [`FinishReason::Stop`] before a stop string.
    pub fn new(stops: &[String], limit: usize, limit_reason: FinishReason) -> Self {
        Self {
            stream: TextStream::new(stops),
            limit,
            limit_reason,
            count: 0,
            finish: None,
            progress: Progress::default(),
        }
    }

    /// Tokens so far.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Tokens that may still come.
    pub fn remaining(&self) -> usize {
        self.limit - self.count
    }

    /// Takes the next token. `ends` says that it is an end-of-generation id: no part of the output.
    pub fn push(&mut self, token: Token, source: Option<Source>, ends: bool, bytes: &[u8]) -> Flow {
        if ends {
            self.finish = Some(FinishReason::Stop);
            return Flow::Stop;
        }
        self.count += 1;
        self.progress.tokens.push(OutputToken { token, source });
        self.finish = match self.stream.push(bytes, source, &mut self.progress.text) {
            Flow::Stop => Some(FinishReason::Stop),
            Flow::Continue => (self.remaining() == 0).then_some(self.limit_reason),
        };
        if self.finish.is_some() {
            Flow::Stop
        } else {
            Flow::Continue
        }
    }

    /// Lets out the text that was held back: the generation is over.
    pub fn close(&mut self) {
        self.stream.finish(&mut self.progress.text);
    }
}
