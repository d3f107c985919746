//! The engine's thread: takes jobs in between rounds, and hands out what rounds bring.
//!
//! It never waits for the network: what it hands out goes into queues whose length the answers bound. A client that is
//! gone, or took too long, has set its job's flag, and the job ends with the round.
//!
//! Not here: HTTP.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Instant;

use foretoken_engine::{
    Engine, Event, FinishReason, GenerationRequest, Progress, RequestId, SequenceError, Stats,
};
use foretoken_spec::TargetModel;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedSender;

use crate::metrics::Metrics;

/// One choice to generate.
pub(crate) struct Job {
    pub request: GenerationRequest,
    pub ticket: Ticket,
}

/// Whose choice it is.
pub(crate) struct Ticket {
    pub choice: usize,
    pub updates: UnboundedSender<(usize, Update)>,
    /// For logs.
    pub id: Arc<str>,
    pub since: Instant,
    /// Its place in the queue, until it is over.
    pub place: OwnedSemaphorePermit,
}

/// What becomes of a choice.
#[derive(Debug)]
pub(crate) enum Update {
    Progress(Progress),
    /// The last.
    Done(Result<(FinishReason, Box<Stats>), SequenceError>),
}

/// A choice that is being generated.
struct Running {
    ticket: Ticket,
    /// When its last token came.
    last: Option<Instant>,
}

impl Ticket {
    fn tell(&self, update: Update) {
        // Nobody listens: the job's flag is set, and it ends with the next round.
        let _ = self.updates.send((self.choice, update));
    }

    /// Tells the last, when the place is free for another.
    fn end(self, outcome: Result<(FinishReason, Box<Stats>), SequenceError>) {
        drop(self.place);
        let _ = self.updates.send((self.choice, Update::Done(outcome)));
    }
}

/// Generates until no jobs can come any more.
pub(crate) struct Worker<M> {
    engine: Engine<M>,
    jobs: Receiver<Job>,
    /// Sequences that are generated at once.
    parallel: usize,
    waiting: VecDeque<Job>,
    running: HashMap<RequestId, Running>,
    metrics: Arc<Metrics>,
}

impl<M: TargetModel> Worker<M> {
    pub fn new(engine: Engine<M>, jobs: Receiver<Job>, parallel: usize, metrics: Arc<Metrics>) -> Self {
        Self {
            engine,
            jobs,
            parallel: parallel.max(1),
            waiting: VecDeque::new(),
            running: HashMap::new(),
            metrics,
        }
    }

    /// Works until the senders of jobs are gone and all is done.
    pub fn run(mut self) {
        self.metrics.memory(self.engine.model().pages());
        while self.receive() {
            self.admit();
            let before = self.engine.totals();
            for event in self.engine.step() {
                self.hand_out(event);
            }
            self.metrics.round(&before, &self.engine.totals());
            self.metrics.memory(self.engine.model().pages());
            self.metrics.load(self.running.len(), self.waiting.len());
        }
        self.engine.forget_prefixes();
        let pages = self.engine.model().pages();
        tracing::info!(
            free_pages = pages.free,
            of_pages = pages.total,
            "the engine has ended"
        );
    }

    /// Takes in the jobs that have come; waits for one if there is nothing else to do. `false` if none can come any more,
    /// and all is done.
    fn receive(&mut self) -> bool {
        if self.engine.is_idle() && self.waiting.is_empty() {
            match self.jobs.recv() {
                Ok(job) => self.waiting.push_back(job),
                Err(_) => return false,
            }
        }
        loop {
            match self.jobs.try_recv() {
                Ok(job) => self.waiting.push_back(job),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return true,
            }
        }
    }

    /// Gives the engine as many of the jobs as it may have.
    fn admit(&mut self) {
        self.waiting.retain(|job| !job.request.cancel.is_cancelled());
        while self.engine.active() < self.parallel
            && let Some(job) = self.waiting.pop_front()
        {
            match self.engine.add(job.request) {
                Ok(request) => {
                    self.metrics.queued(job.ticket.since.elapsed());
                    let running = Running {
                        ticket: job.ticket,
                        last: None,
                    };
                    self.running.insert(request, running);
                }
                // It was checked before: this server's fault. The client finds the channel closed.
                Err(error) => tracing::error!(request_id = &*job.ticket.id, %error, "refused by the engine"),
            }
        }
    }

    fn hand_out(&mut self, event: Event) {
        match event {
            Event::Progress { id, progress } => {
                let Some(running) = self.running.get_mut(&id) else {
                    return;
                };
                if !progress.tokens.is_empty() {
                    let now = Instant::now();
                    match running.last.replace(now) {
                        None => self.metrics.first_token(now - running.ticket.since),
                        Some(last) => self.metrics.tokens(now - last, progress.tokens.len()),
                    }
                }
                self.metrics.progress(&progress);
                running.ticket.tell(Update::Progress(progress));
            }
            Event::DraftingOff { id, reason } => {
                self.metrics.drafting_off();
                if let Some(running) = self.running.get(&id) {
                    tracing::warn!(request_id = &*running.ticket.id, reason, "no drafts any more");
                }
            }
            Event::Finished { id, outcome, stats } => {
                let Some(Running { ticket, .. }) = self.running.remove(&id) else {
                    return;
                };
                let time = ticket.since.elapsed();
                self.metrics
                    .finished(time, outcome.as_ref().ok().copied(), &stats);
                match &outcome {
                    Ok(reason) => tracing::info!(
                        request_id = &*ticket.id,
                        choice = ticket.choice,
                        finish = reason.as_str(),
                        prompt_tokens = stats.prompt_tokens,
                        cached_tokens = stats.cached_tokens,
                        tokens = stats.generated,
                        seconds = time.as_secs_f64(),
                        "generated"
                    ),
                    Err(error) => tracing::error!(request_id = &*ticket.id, %error, "failed"),
                }
                ticket.end(outcome.map(|reason| (reason, stats)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use foretoken_engine::{EngineOptions, TokenBytes};
    use foretoken_spec::testing::ScriptedModel;
    use foretoken_spec::{SamplerParams, Token};
    use tokio::sync::Semaphore;
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    use super::*;

    struct Letters;

    impl TokenBytes for Letters {
        fn bytes(&self, _: Token) -> &[u8] {
            b"x"
        }
    }

    fn job(prompt: &[Token], places: &Arc<Semaphore>) -> (Job, UnboundedReceiver<(usize, Update)>) {
        let (updates, receiver) = unbounded_channel();
        let request = GenerationRequest {
            prompt: prompt.to_vec(),
            max_tokens: Some(5),
            sampler: SamplerParams::default(),
            ..GenerationRequest::default()
        };
        let ticket = Ticket {
            choice: 0,
            updates,
            id: "test".into(),
            since: Instant::now(),
            place: Arc::clone(places).try_acquire_owned().expect("a place"),
        };
        (Job { request, ticket }, receiver)
    }

    /// How many tokens came, and how it ended; `None` if nobody said.
    fn answer(
        mut updates: UnboundedReceiver<(usize, Update)>,
    ) -> (usize, Option<Result<FinishReason, SequenceError>>) {
        let mut tokens = 0;
        while let Ok((_, update)) = updates.try_recv() {
            match update {
                Update::Progress(progress) => tokens += progress.tokens.len(),
                Update::Done(outcome) => return (tokens, Some(outcome.map(|(reason, _)| reason))),
            }
        }
        (tokens, None)
    }

    #[test]
    fn a_fault_ends_one_alone_and_every_place_is_free_again() {
        // Where a prompt begins with token 7 the model computes nonsense.
        let model = ScriptedModel::new(9, |path, logits| match path[0] {
            7 => logits.fill(f32::NAN),
            first => {
                logits.fill(0.0);
                logits[(first as usize + path.len()) % 9] = 50.0;
            }
        });
        let engine = Engine::new(model, Letters, None, EngineOptions::default());
        let places = Arc::new(Semaphore::new(5));
        let (sender, jobs) = channel();
        let mut answers = Vec::new();
        // The last cannot be added at all, and the one before it is gone before its turn.
        for prompt in [&[1][..], &[7], &[2, 3], &[4], &[]] {
            let (job, updates) = job(prompt, &places);
            if prompt == [4] {
                job.request.cancel.cancel();
            }
            assert!(sender.send(job).is_ok());
            answers.push(updates);
        }
        drop(sender);
        Worker::new(engine, jobs, 2, Arc::new(Metrics::new())).run();
        let [whole, faulty, other, gone, empty] =
            answers.try_into().map(|a: [_; 5]| a.map(answer)).expect("five");
        assert_eq!(
            (whole, other),
            (
                (5, Some(Ok(FinishReason::Length))),
                (5, Some(Ok(FinishReason::Length)))
            )
        );
        assert!(
            matches!(faulty, (0, Some(Err(SequenceError::Logits(_))))),
            "{faulty:?}"
        );
        assert_eq!((gone, empty), ((0, None), (0, None)));
        assert_eq!(places.available_permits(), 5);
    }
}
