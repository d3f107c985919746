//! The draft model's sequences for one of the target's: a line of tokens for every branch of the tree.

use std::cmp::Reverse;

use crate::{Proposal, Request, Sampler, SequenceId, TargetModel, Token};

/// A sequence of the draft model.
#[derive(Debug)]
pub(super) struct Line {
    /// The draft model's name for it.
    pub id: SequenceId,
    /// The tokens in the draft model's cache, by the target's ids, from the window's start on.
    pub cached: Vec<Token>,
    /// What the logits after each of the last of `cached` proposed.
    pub said: Vec<Vec<Proposal>>,
}

impl Line {
    fn open<M: TargetModel>(model: &mut M) -> Self {
        Self {
            id: model.open(),
            cached: Vec::new(),
            said: Vec::new(),
        }
    }

    /// A line that goes on from the first `len` tokens of this one, whose memory it shares.
    pub fn branch<M: TargetModel>(&self, model: &mut M, len: usize) -> Self {
        let id = model.fork(self.id);
        model.truncate(id, len);
        let known = (self.said.len() + len).saturating_sub(self.cached.len());
        Self {
            id,
            cached: self.cached[..len].to_vec(),
            said: self.said[..known].to_vec(),
        }
    }

    /// What was proposed after the first `len` tokens, if it is known.
    pub fn proposals(&self, len: usize) -> Option<&[Proposal]> {
        let at = (self.said.len() + len).checked_sub(self.cached.len() + 1)?;
        self.said.get(at).map(Vec::as_slice)
    }

    /// How many of these tokens, from the first on, are in the cache.
    fn shared(&self, tokens: &[Token]) -> usize {
        self.cached.iter().zip(tokens).take_while(|(a, b)| a == b).count()
    }

    fn truncate<M: TargetModel>(&mut self, model: &mut M, len: usize) {
        let known = (self.said.len() + len).saturating_sub(self.cached.len());
        self.said.truncate(known);
        self.cached.truncate(len);
        model.truncate(self.id, len);
    }
}

/// What the drafter knows of one of the target's sequences.
#[derive(Debug)]
pub(super) struct Sequence {
    /// The first is the one that the committed tokens are on; between drafts the others are what was drafted beside it.
    pub lines: Vec<Line>,
    /// The absolute position of the first token in the draft model's cache.
    pub start: usize,
    /// How many tokens it had at the last draft.
    seen: usize,
    /// `None` until the first draft.
    pub sampler: Option<Sampler>,
    /// Whether nothing was drawn since it was opened or its window moved.
    pub fresh: bool,
}

impl Sequence {
    pub fn open<M: TargetModel>(model: &mut M) -> Self {
        Self {
            lines: vec![Line::open(model)],
            start: 0,
            seen: 0,
            sampler: None,
            fresh: true,
        }
    }

    pub fn release<M: TargetModel>(&mut self, model: &mut M) {
        for line in self.lines.drain(..) {
            model.release(line.id);
        }
    }

    /// Moves the window, if need be, so that the request's tokens and a draft of `depth` fit into `context` positions, and no
    /// more tokens are to be read than the budget allows.
    pub fn fit<M: TargetModel>(
        &mut self,
        model: &mut M,
        request: &Request<'_>,
        depth: usize,
        context: usize,
    ) {
        let (tokens, max_read) = (request.tokens.len(), request.budget.max_read);
        let steps = depth.min(context / 4).max(1);
        let shrunk = tokens < std::mem::replace(&mut self.seen, tokens);
        if tokens > self.start && tokens - self.start + steps - 1 <= context && !(shrunk && self.start > 0) {
            let known = &request.tokens[self.start..];
            let shared = self.lines.iter().map(|line| line.shared(known)).max();
            if known.len() - shared.unwrap_or(0) <= max_read {
                return;
            }
        }
        self.start = if tokens + steps - 1 <= context && tokens <= max_read {
            0
        } else {
            // Half the context is kept, so that the window moves once in about as many tokens.
            tokens - max_read.clamp(1, context / 2).min(tokens)
        };
        self.fresh = true;
        self.keep(model, 0);
        self.lines[0].truncate(model, 0);
    }

    /// After an error: what the model holds beyond what is known of it goes.
    pub fn repair<M: TargetModel>(&mut self, model: &mut M) {
        for line in &self.lines {
            model.truncate(line.id, line.cached.len());
        }
    }

    /// Gives up all lines but one.
    fn keep<M: TargetModel>(&mut self, model: &mut M, line: usize) {
        self.lines.swap(0, line);
        for line in self.lines.drain(1..) {
            model.release(line.id);
        }
    }

    /// Keeps the line that shares most with the committed tokens, and of it what is still true: these tokens as far as they
    /// are on it, and what was drafted beyond them if they all are. Returns what is to be evaluated before anything can be
    /// proposed.
    pub fn follow<M: TargetModel>(&mut self, model: &mut M, request: &Request<'_>) -> Vec<Token> {
        let known = &request.tokens[self.start..];
        let lines = self.lines.iter().map(|line| line.shared(known)).enumerate();
        // Of equals the first, on which the likeliest tokens are.
        let (longest, shared) = lines
            .max_by_key(|&(at, shared)| (shared, Reverse(at)))
            .expect("there is always one");
        self.keep(model, longest);
        let line = &mut self.lines[0];
        if shared == known.len() && line.proposals(shared).is_some() {
            return Vec::new();
        }
        // The last committed token is evaluated anew, if need be, for its logits.
        line.truncate(model, shared.min(known.len() - 1));
        line.said.clear();
        known[line.cached.len()..].to_vec()
    }
}
