//! The engine: what it holds, how requests come and go.
//!
//! Not here: what happens in a round ([`crate::round`]).

use std::time::Instant;

use foretoken_spec::{
    Batch, DraftError, Drafter, ForcedAcceptance, HiddenNeed, Sampler, Scores, Source, TargetModel,
};

use crate::prefixes::Prefixes;
use crate::sequence::{Output, Sequence, Turn};
use crate::{
    DraftPolicy, Event, FinishReason, GenerationRequest, PromptPace, RequestError, RequestId, SequenceError,
    Stats, TokenBytes, Totals,
};

/// How an engine works. None of this changes a token, but for `force_accept`.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// How long drafts may be.
    pub policy: DraftPolicy,
    /// Most rows of a pass that may be pending tokens of prompts.
    pub prompt_rows: usize,
    /// Keeps passes with such rows short.
    pub pace: Option<PromptPace>,
    /// Ended sequences of which the cache keeps what they held, for others that begin with the same tokens.
    pub prefixes: usize,
    /// Accept each draft token with this probability instead of comparing it: a measurement of the
    /// machinery apart from the models. The text is then not the model's, and statistics say so.
    pub force_accept: Option<f64>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            policy: DraftPolicy::default(),
            prompt_rows: 256,
            pace: None,
            prefixes: 0,
            force_accept: None,
        }
    }
}

/// A target model, perhaps a drafter, and the sequences that they work on.
pub struct Engine<M> {
    pub(crate) model: M,
    pub(crate) text: Box<dyn TokenBytes + Send>,
    pub(crate) drafter: Option<Box<dyn Drafter>>,
    pub(crate) options: EngineOptions,
    /// In order of arrival: the order in which they get memory.
    pub(crate) active: Vec<Sequence>,
    pub(crate) prefixes: Prefixes,
    pub(crate) totals: Totals,
    /// What happened outside a round.
    pub(crate) pending_events: Vec<Event>,
    next_id: u64,
    pub(crate) batch: Batch,
    pub(crate) scores: Scores,
}

impl<M: TargetModel> Engine<M> {
    /// An engine without sequences. `text` gives the bytes of the model's tokens.
    pub fn new(
        model: M,
        text: impl TokenBytes + Send + 'static,
        drafter: Option<Box<dyn Drafter>>,
        options: EngineOptions,
    ) -> Self {
        Self {
            model,
            text: Box::new(text),
            drafter,
            options,
            active: Vec::new(),
            prefixes: Prefixes::default(),
            totals: Totals::default(),
            pending_events: Vec::new(),
            next_id: 0,
            batch: Batch::default(),
            scores: Scores::default(),
        }
    }

    /// The model.
    pub fn model(&self) -> &M {
        &self.model
    }

    /// The model, to measure it.
    ///
    /// # Panics
    /// If sequences are active: they are tied to what it holds.
    pub fn model_mut(&mut self) -> &mut M {
        assert!(self.is_idle(), "the model holds what sequences are made of");
        &mut self.model
    }

    /// What all rounds so far took.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Sequences that are being generated.
    pub fn active(&self) -> usize {
        self.active.len()
    }

    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.active.is_empty()
    }

    /// Replaces drafter and options, for a comparison on the same model, and returns the drafter that was.
    ///
    /// # Panics
    /// If sequences are active.
    pub fn set_drafter(
        &mut self,
        drafter: Option<Box<dyn Drafter>>,
        options: EngineOptions,
    ) -> Option<Box<dyn Drafter>> {
        assert!(self.is_idle(), "sequences are tied to their drafter");
        self.options = options;
        std::mem::replace(&mut self.drafter, drafter)
    }

    /// Takes a request; its sequence takes part from the next round on.
    pub fn add(&mut self, request: GenerationRequest) -> Result<RequestId, RequestError> {
        let info = self.model.info();
        request.check(info)?;
        let room = info.context_length - request.prompt.len();
        let (limit, limit_reason) = match request.max_tokens {
            Some(max) if max <= room => (max, FinishReason::Length),
            _ => (room, FinishReason::Context),
        };
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let handle = self.model.open();
        let mut stats = Stats {
            prompt_tokens: request.prompt.len(),
            ..Stats::default()
        };
        let mut drafting = false;
        if let Some(drafter) = self.drafter.as_mut().filter(|_| request.drafts.any()) {
            let only = request.drafts.sources.single().map(Source::name);
            stats.speculation.drafter = Some(only.unwrap_or_else(|| drafter.name()).to_string());
            stats.speculation.note = drafter.note().map(str::to_owned);
            stats.speculation.forced = self.options.force_accept;
            let hidden = drafter.needs().hidden == HiddenNeed::None || self.model.info().capabilities.hidden;
            let begun = match hidden {
                true => drafter.begin(handle, &request.prompt),
                false => Err(DraftError::Other(
                    "the target model gives no hidden states".into(),
                )),
            };
            match begun {
                Ok(()) => {
                    drafting = true;
                    if !request.prediction.is_empty() {
                        drafter.predicted(handle, &request.prediction);
                    }
                }
                Err(error) => {
                    let reason = error.to_string();
                    stats.speculation.off_reason = Some(reason.clone());
                    self.pending_events.push(Event::DraftingOff { id, reason });
                }
            }
        }
        self.active.push(Sequence {
            id,
            handle,
            // What is forced is not what a grammar allows.
            forced: (self.options.force_accept.filter(|_| request.grammar.is_none())).map(|probability| {
                ForcedAcceptance {
                    probability,
                    key: request.key,
                }
            }),
            sampler: Sampler::new(request.sampler, request.key, &request.prompt)
                .with_grammar(request.grammar),
            output: Output::new(&request.stops, limit, limit_reason),
            tokens: request.prompt,
            cancel: request.cancel,
            limits: request.drafts,
            logprobs: request.logprobs,
            stats,
            started: Instant::now(),
            decoding_since: None,
            drafting,
            observed: 0,
            parked: false,
            looking: true,
            hidden: Vec::new(),
            turn: Turn::default(),
        });
        Ok(id)
    }

    /// Ends a request at the next round. One that is over already is left alone.
    pub fn cancel(&mut self, id: RequestId) {
        if let Some(sequence) = self.active.iter().find(|s| s.id == id) {
            sequence.cancel.cancel();
        }
    }

    pub(crate) fn end_cancelled(&mut self, events: &mut Vec<Event>) {
        self.end_where(events, |s| {
            s.cancel.is_cancelled().then_some(Ok(FinishReason::Cancelled))
        });
    }

    /// Ends the sequences for which `outcome` gives one, and forgets them.
    pub(crate) fn end_where(
        &mut self,
        events: &mut Vec<Event>,
        outcome: impl Fn(&Sequence) -> Option<Result<FinishReason, SequenceError>>,
    ) {
        let before = self.active.len();
        let mut at = 0;
        while at < self.active.len() {
            let Some(outcome) = outcome(&self.active[at]) else {
                at += 1;
                continue;
            };
            let mut sequence = self.active.remove(at);
            sequence.output.close();
            sequence.emit(events);
            if let Some(drafter) = self.drafter.as_mut().filter(|_| sequence.drafting) {
                drafter.end(sequence.handle);
            }
            match outcome {
                Ok(_) => {
                    let Sequence { handle, tokens, .. } = sequence;
                    self.prefixes
                        .keep(&mut self.model, handle, tokens, self.options.prefixes);
                }
                Err(_) => self.model.release(sequence.handle),
            }
            events.push(Event::Finished {
                id: sequence.id,
                outcome,
                stats: Box::new(sequence.stats),
            });
        }
        if self.active.len() < before {
            self.active.iter_mut().for_each(|s| s.parked = false);
        }
    }
}
