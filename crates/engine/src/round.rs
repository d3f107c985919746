//! The round: who takes part, drafts, one pass, verification, commit.
//!
//! A sequence's tokens that the model does not hold yet are *pending*. All of a prompt, the one token that
//! the last round drew, and everything of a sequence whose memory was taken are pending alike; a round
//! evaluates a chunk of them, and draws where the chunk reaches the last one.

use std::time::{Duration, Instant};

use foretoken_spec::{
    Budget, Cancel, Committed, DraftError, HiddenNeed, LogProbs, ModelError, Needs, NodeId, OutOfPages,
    Output as Wanted, PassTime, Request, Row, RowId, SamplerSnapshot, SequenceId, Source, TargetModel,
    VerifiedRow, grammar, top_logits, verify, verify_forced,
};

use crate::sequence::Sequence;
use crate::stats::{RoundReport, add_draft_times};
use crate::{Engine, Event, SequenceError};

/// Whether there is memory for a sequence's rows.
enum Room {
    Whole,
    WithoutDraft,
    /// Not before another sequence has ended.
    Wait,
    /// It is alone, and it does not suffice.
    Never(OutOfPages),
}

impl<M: TargetModel> Engine<M> {
    /// One round for all active sequences.
    pub fn step(&mut self) -> Vec<Event> {
        let start = Instant::now();
        let mut events = std::mem::take(&mut self.pending_events);
        self.end_cancelled(&mut events);
        self.plan(&mut events);
        self.draft(&mut events);
        self.trim_prompts(start.elapsed());
        self.build_batch();
        if !self.batch.is_empty() {
            self.pass(&mut events);
        }
        events
    }

    /// Decides what each sequence evaluates, and secures the memory for it, oldest first.
    fn plan(&mut self, events: &mut Vec<Event>) {
        self.active.iter_mut().for_each(|sequence| sequence.turn.reset());
        self.share_prefixes();
        let rows = self.planned_prompt_rows();
        // Beside prompts all rows cost alike, and a draft model's passes would be added to a time that is used up already. A
        // speculator's steps are short, and end at the deadline.
        let hurry = self.options.pace.is_some() && rows.iter().any(|&rows| rows > 0);
        let mut failed = Vec::new();
        for (at, &rows) in rows.iter().enumerate() {
            let sequence = &self.active[at];
            let pending = sequence.tokens.len() - self.model.len(sequence.handle);
            let chunk = if pending == 1 { 1 } else { pending.min(rows) };
            if sequence.parked || chunk == 0 {
                continue;
            }
            let decodes = pending == 1 && sequence.is_decoding();
            let room = sequence.output.remaining() - 1;
            let budget = (decodes && sequence.drafting)
                .then(|| {
                    let mut budget = self.options.policy.budget(room, &sequence.limits);
                    if hurry {
                        budget.sources = budget.sources.without(Source::Model);
                    }
                    budget
                })
                .filter(|budget| budget.max_nodes > 0);
            let room = self.secure(at, chunk, budget.map_or(0, |budget| budget.max_nodes));
            let sequence = &mut self.active[at];
            match room {
                Room::Wait => sequence.parked = true,
                Room::Never(error) => failed.push((sequence.id, error)),
                Room::Whole | Room::WithoutDraft => {
                    sequence.looking = false;
                    sequence.turn.chunk = chunk;
                    sequence.turn.draws = chunk == pending;
                    sequence.turn.budget = budget.filter(|_| matches!(room, Room::Whole));
                }
            }
        }
        self.end_where(events, |s| {
            let (_, error) = failed.iter().find(|(id, _)| *id == s.id)?;
            Some(Err((*error).into()))
        });
    }

    /// Secures room for `chunk` rows, and for `draft` more if there is any. If need be, a sequence takes the pages that ended
    /// ones left, then those of the youngest that came after it; these start over when some sequence has ended. The oldest
    /// never waits, so that there always is progress.
    fn secure(&mut self, at: usize, chunk: usize, draft: usize) -> Room {
        let handle = self.active[at].handle;
        if self.reserve(handle, chunk + draft).is_ok() {
            return Room::Whole;
        }
        while let Err(error) = self.reserve(handle, chunk) {
            // One that waits may have kept its pages; one that does not may have secured some.
            let holds = |s: &Sequence| !s.parked || self.model.len(s.handle) > 0;
            if let Some(youngest) = self.active[at + 1..].iter().rposition(holds) {
                let youngest = &mut self.active[at + 1 + youngest];
                self.model.truncate(youngest.handle, 0);
                youngest.parked = true;
                youngest.looking = true;
            } else if at > 0 {
                return Room::Wait;
            } else {
                return Room::Never(error);
            }
        }
        Room::WithoutDraft
    }

    /// Secures room, if need be in place of what ended sequences left.
    fn reserve(&mut self, handle: SequenceId, rows: usize) -> Result<(), OutOfPages> {
        loop {
            match self.model.reserve(handle, rows) {
                Err(_) if self.prefixes.evict(&mut self.model) => {}
                outcome => return outcome,
            }
        }
    }

    /// Asks for the drafts of all sequences in one call.
    fn draft(&mut self, events: &mut Vec<Event>) {
        let Some(drafter) = &mut self.drafter else { return };
        let snapshots: Vec<SamplerSnapshot> = self
            .active
            .iter()
            .filter(|s| s.turn.budget.is_some())
            .map(|s| s.sampler.snapshot())
            .collect();
        if snapshots.is_empty() {
            return;
        }
        let drafted = self.active.iter_mut().filter(|s| s.turn.budget.is_some());
        let deadline = self
            .options
            .pace
            .as_ref()
            .map(|pace| Instant::now() + pace.draft_time());
        let mut requests: Vec<Request<'_>> = drafted
            .zip(&snapshots)
            .map(|(s, snapshot)| Request {
                sequence: s.handle,
                position_limit: s.tokens.len() + s.output.remaining() - 1,
                tokens: &s.tokens,
                hidden: (!s.hidden.is_empty()).then_some(&s.hidden[..]),
                sampler: snapshot,
                grammar: s.sampler.grammar(),
                budget: s.turn.budget.expect("filtered"),
                deadline,
                tree: &mut s.turn.tree,
            })
            .collect();
        let before = drafter.times().unwrap_or_default();
        let start = Instant::now();
        requests.iter_mut().for_each(Request::apply_grammar);
        let outcome = drafter.draft(&mut requests);
        let time = start.elapsed();
        self.totals.draft += time;
        let after = drafter.times().unwrap_or_default();
        let info = self.model.info();
        for sequence in self.active.iter_mut().filter(|s| s.turn.budget.is_some()) {
            let speculation = &mut sequence.stats.speculation;
            speculation.draft += time;
            add_draft_times(&mut sequence.stats.draft, before, after);
            let turn = &mut sequence.turn;
            if let Err(error) = &outcome {
                turn.tree.clear();
                if *error == DraftError::Model(ModelError::Cancelled) {
                    // By whoever cancels the sequence too: no fault of the drafter.
                    continue;
                }
                let reason = error.to_string();
                sequence.drafting = false;
                speculation.off_reason = Some(reason.clone());
                drafter.end(sequence.handle);
                events.push(Event::DraftingOff {
                    id: sequence.id,
                    reason,
                });
                continue;
            }
            speculation.proposed += turn.tree.len();
            let budget = turn.budget.expect("filtered");
            if let Some(grammar) = sequence.sampler.grammar() {
                // What no controller has looked at.
                let cut = Budget {
                    max_nodes: 0,
                    ..budget
                };
                grammar::apply(grammar, &mut turn.tree, &cut);
            }
            let depth = crate::policy::fit(&mut turn.tree, &budget, info);
            if !self.options.policy.keeps(depth) {
                turn.tree.clear();
            }
            turn.draft = time;
            turn.forecast = drafter.forecast(sequence.handle);
            if let (None, Some(reason)) = (&speculation.off_reason, drafter.off_reason(sequence.handle)) {
                speculation.off_reason = Some(reason.to_owned());
            }
            drafter.submitted(sequence.handle, &turn.tree);
        }
    }

    fn build_batch(&mut self) {
        self.batch.clear();
        let needs = self.needs();
        for sequence in self.active.iter_mut().filter(|s| s.turn.chunk > 0) {
            let asks = sequence.drafting && needs.hidden != HiddenNeed::None;
            let scored = if asks { Wanted::Both } else { Wanted::Logits };
            let filled = if sequence.drafting && needs.hidden == HiddenNeed::EveryRow {
                Wanted::Hidden
            } else {
                Wanted::None
            };
            let turn = &mut sequence.turn;
            turn.first_row = self.batch.len() as RowId;
            let start = self.model.len(sequence.handle);
            let mut parent = None;
            for at in 0..turn.chunk {
                let output = if turn.draws && at + 1 == turn.chunk {
                    scored
                } else {
                    filled
                };
                let row = Row {
                    sequence: sequence.handle,
                    token: sequence.tokens[start + at],
                    parent,
                    output,
                };
                parent = Some(self.batch.push(row));
            }
            for node in turn.tree.nodes() {
                let parent = Some(turn.row(node.parent));
                self.batch.push(Row {
                    sequence: sequence.handle,
                    token: node.token,
                    parent,
                    output: scored,
                });
            }
        }
    }

    /// Scores the batch and gives each sequence what it gained.
    fn pass(&mut self, events: &mut Vec<Event>) {
        let mut taking_part = self.active.iter().filter(|s| s.turn.chunk > 0);
        // A pass for one sequence stops when that one is cancelled; a shared one serves the others.
        let cancel = match (taking_part.next(), taking_part.next()) {
            (Some(only), None) => only.cancel.clone(),
            _ => Cancel::default(),
        };
        let start = Instant::now();
        let outcome = self.model.forward(&self.batch, &mut self.scores, &cancel);
        let time = start.elapsed();
        match outcome {
            Ok(()) => {}
            Err(ModelError::Cancelled) => return self.end_cancelled(events),
            Err(error) => {
                return self.end_where(events, |s| (s.turn.chunk > 0).then(|| Err(error.clone().into())));
            }
        }
        self.tell_time(time);
        self.end_cancelled(events);
        let mut failed = Vec::new();
        for at in 0..self.active.len() {
            if self.active[at].turn.chunk == 0 {
                continue;
            }
            self.count_pass(at, time);
            self.observe_chunk(at);
            if !self.active[at].turn.draws {
                let sequence = &self.active[at];
                let rows: Vec<RowId> = (sequence.turn.first_row..=sequence.turn.root()).collect();
                self.model.commit(sequence.handle, &rows);
                continue;
            }
            if let Err(error) = self.verify(at) {
                failed.push((self.active[at].id, error));
            }
            let sequence = &mut self.active[at];
            if sequence.output.finish.is_none() {
                sequence.emit(events);
            }
        }
        self.end_where(events, |s| match failed.iter().find(|(id, _)| *id == s.id) {
            Some((_, error)) => Some(Err(error.clone())),
            None => s.output.finish.map(Ok),
        });
    }

    /// Tells whoever counts on it what the pass took.
    fn tell_time(&mut self, time: Duration) {
        let taking_part = || self.active.iter().filter(|s| s.turn.chunk > 0);
        // Where each of the rows stands: what it costs to look back from there.
        let positions: usize = taking_part()
            .map(|s| (s.turn.chunk + s.turn.tree.len()) * self.model.len(s.handle))
            .sum();
        let pass = PassTime {
            rows: self.batch.len(),
            context: positions / self.batch.len(),
            seconds: time.as_secs_f64(),
        };
        let draft_rows: usize = taking_part().map(|s| s.turn.tree.len()).sum();
        let reads = taking_part().any(|s| s.turn.chunk > 1);
        self.totals.passes += 1;
        self.totals.rows += pass.rows as u64;
        self.totals.draft_rows += draft_rows as u64;
        self.totals.pass += time;
        if draft_rows > 0 {
            self.totals.verify += time;
        }
        if let Some(pace) = self.options.pace.as_mut().filter(|_| reads) {
            pace.observe(&pass);
        }
        if let Some(drafter) = &mut self.drafter {
            drafter.timed(&pass);
        }
    }

    /// Adds the pass to the sequence's times.
    fn count_pass(&mut self, at: usize, time: Duration) {
        let sequence = &mut self.active[at];
        sequence.turn.pass = time;
        let (turn, stats) = (&sequence.turn, &mut sequence.stats);
        if sequence.decoding_since.is_none() {
            stats.target.prompt += time;
            return;
        }
        stats.target.eval += time;
        stats.target.eval_passes += 1;
        if self.batch.len() == 1 {
            stats.target.single_row.add(time);
        }
        if !turn.tree.is_empty() {
            stats.speculation.verify += time;
        }
    }

    /// Tells the drafter of prompt tokens that it did not hear of before.
    fn observe_chunk(&mut self, at: usize) {
        let sequence = &mut self.active[at];
        let start = self.model.len(sequence.handle);
        let end = (start + sequence.turn.chunk).min(sequence.stats.prompt_tokens);
        let new = sequence.observed.max(start)..end;
        let Some(drafter) = self
            .drafter
            .as_mut()
            .filter(|_| sequence.drafting && !new.is_empty())
        else {
            return;
        };
        sequence.observed = end;
        let rows = match drafter.needs().hidden {
            HiddenNeed::EveryRow => new
                .clone()
                .map(|position| {
                    let row = sequence.turn.first_row + (position - start) as RowId;
                    VerifiedRow {
                        hidden: self.scores.hidden(row).map(<[f32]>::to_vec),
                        ..VerifiedRow::default()
                    }
                })
                .collect(),
            _ => Vec::new(),
        };
        let tokens = sequence.tokens[new].to_vec();
        drafter.observe(
            sequence.handle,
            &Committed {
                tokens,
                rows,
                ..Committed::default()
            },
        );
    }

    /// Walks one sequence's tree, commits what it gained and tells the drafter.
    fn verify(&mut self, at: usize) -> Result<(), SequenceError> {
        let needs = self.needs();
        let sequence = &mut self.active[at];
        let (started, drafting, forced) = (sequence.started, sequence.drafting, sequence.forced);
        let Sequence {
            handle,
            tokens,
            sampler,
            output,
            turn,
            stats,
            hidden,
            decoding_since,
            logprobs,
            ..
        } = sequence;
        let (info, scores, text) = (self.model.info(), &self.scores, &self.text);
        let logits = |node| {
            scores
                .logits(turn.row(node))
                .expect("rows that are drawn from ask for logits")
        };
        let mut place = None;
        let start = Instant::now();
        let cut = |token| {
            place = turn.tree.child(place, token);
            let source = place.map(|node| turn.tree.nodes()[node as usize].source);
            output.push(token, source, info.is_end_of_generation(token), text.bytes(token))
        };
        let outcome = match forced {
            Some(forced) => verify_forced(&turn.tree, sampler, logits, cut, forced),
            None => verify(&turn.tree, sampler, logits, cut),
        };
        stats.target.sample += start.elapsed();
        tokens.extend(output.progress.tokens.iter().map(|t| t.token));
        stats.generated = output.count();
        let verdict = outcome?;
        // A token that a draft also held is the target's own where it was not accepted as the draft's.
        output
            .progress
            .tokens
            .iter_mut()
            .skip(verdict.accepted.len())
            .for_each(|token| token.source = None);

        if let Some(top) = *logprobs {
            let accepted = verdict.accepted.iter().map(|&node| Some(node));
            let rows = std::iter::once(None).chain(accepted);
            let drawn = output.progress.tokens.iter().zip(rows);
            output.progress.logprobs = drawn
                .map(|(drawn, row)| LogProbs::new(logits(row), drawn.token, top))
                .collect();
        }

        match *decoding_since {
            Some(since) => {
                stats.decode = since.elapsed();
                let tokens = output.progress.tokens.len();
                stats.speculation.count_round(&turn.tree, &verdict, tokens);
                stats.speculation.count_forecast(turn.forecast.as_ref());
                output.progress.round = Some(RoundReport::new(turn, &verdict));
            }
            None => {
                stats.prompt = started.elapsed();
                *decoding_since = Some(Instant::now());
            }
        }
        if output.finish.is_none() {
            let nodes = (0..).zip(turn.tree.nodes());
            let rejected = nodes.filter(|(id, _)| !verdict.accepted.contains(id));
            output.progress.rejected = rejected.map(|(_, node)| node.token).collect();
        }

        // The rows that plain decoding would have evaluated: all but that of the last token drawn.
        let path = &verdict.accepted[..verdict.tokens.len() - 1];
        let mut kept: Vec<RowId> = (turn.first_row..=turn.root()).collect();
        kept.extend(path.iter().map(|&node| turn.row(Some(node))));
        self.model.commit(*handle, &kept);

        let Some(drafter) = self.drafter.as_mut().filter(|_| drafting) else {
            return Ok(());
        };
        if needs.hidden != HiddenNeed::None {
            hidden.clear();
            hidden.extend_from_slice(scores.hidden(turn.row(path.last().copied())).unwrap_or_default());
        }
        let asks_for_rows = needs.top_logits > 0 || needs.hidden == HiddenNeed::EveryRow;
        let nodes = std::iter::once(None).chain((0..turn.tree.len() as NodeId).map(Some));
        let rows = nodes.filter(|_| asks_for_rows).map(|node| {
            let row = turn.row(node);
            let state = scores
                .hidden(row)
                .filter(|_| needs.hidden == HiddenNeed::EveryRow);
            VerifiedRow {
                node,
                top_logits: top_logits(logits(node), needs.top_logits),
                hidden: state.map(<[f32]>::to_vec),
            }
        });
        let rows = rows.collect();
        drafter.observe(
            *handle,
            &Committed {
                tokens: verdict.tokens,
                accepted: verdict.accepted,
                rows,
            },
        );
        Ok(())
    }

    fn needs(&self) -> Needs {
        self.drafter.as_ref().map_or_else(Needs::default, |d| d.needs())
    }
}
