//! From a request's choices to what the engine says of them. Dropping it ends them.

use std::sync::Arc;
use std::time::Instant;

use foretoken_engine::{FinishReason, GenerationRequest, Progress, Stats};
use foretoken_spec::{Cancel, LogProbs, Token};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::error::ApiError;
use crate::state::State;
use crate::worker::{Job, Ticket, Update};

/// The choices of a request while they are generated.
pub(crate) struct Generation {
    updates: UnboundedReceiver<(usize, Update)>,
    cancels: Vec<Cancel>,
    open: usize,
    deadline: tokio::time::Instant,
}

/// One choice, generated.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub text: String,
    pub tokens: Vec<Token>,
    pub logprobs: Vec<LogProbs>,
    /// The rounds that brought all that, if they are to be told.
    pub rounds: Vec<Progress>,
    /// `None` only before the end.
    pub end: Option<(FinishReason, Box<Stats>)>,
}

impl Answer {
    pub fn add(&mut self, mut progress: Progress, keep_rounds: bool) {
        self.text
            .extend(progress.text.iter().map(|fragment| fragment.text.as_str()));
        self.tokens
            .extend(progress.tokens.iter().map(|token| token.token));
        self.logprobs.append(&mut progress.logprobs);
        if keep_rounds {
            self.rounds.push(progress);
        }
    }
}

/// Places in the queue for all choices of a request: taken before anything is done for it.
pub(crate) struct Places(Vec<OwnedSemaphorePermit>);

impl Places {
    /// All, or none.
    pub fn take(state: &State, choices: usize) -> Result<Self, ApiError> {
        let most = state.options.parallel + state.options.queue;
        if choices > most {
            return Err(ApiError::field(
                "n",
                format!("{choices} choices are more than the {most} that this server queues"),
            ));
        }
        let places = (0..choices).map(|_| Arc::clone(&state.places).try_acquire_owned());
        places
            .collect::<Result<_, _>>()
            .map(Self)
            .map_err(|_| state.busy())
    }
}

impl Generation {
    /// Puts the choices into the queue.
    pub fn start(
        state: &State,
        id: &Arc<str>,
        requests: Vec<GenerationRequest>,
        places: Places,
    ) -> Result<Self, ApiError> {
        let (sender, updates) = unbounded_channel();
        let this = Self {
            updates,
            cancels: requests.iter().map(|request| request.cancel.clone()).collect(),
            open: requests.len(),
            deadline: tokio::time::Instant::now() + state.options.timeout,
        };
        for (choice, (request, place)) in requests.into_iter().zip(places.0).enumerate() {
            let ticket = Ticket {
                choice,
                updates: sender.clone(),
                id: Arc::clone(id),
                since: Instant::now(),
                place,
            };
            state.send(Job { request, ticket })?;
        }
        Ok(this)
    }

    /// What happens next, and to which choice; `None` when all are over.
    pub async fn next(&mut self) -> Option<Result<(usize, Update), ApiError>> {
        if self.open == 0 {
            return None;
        }
        let update = match tokio::time::timeout_at(self.deadline, self.updates.recv()).await {
            Err(_) => Err(ApiError::timed_out()),
            Ok(None) => Err(ApiError::internal("the engine has stopped")),
            Ok(Some((_, Update::Done(Err(failure))))) => Err(failure.into()),
            Ok(Some(update)) => Ok(update),
        };
        match &update {
            Ok((_, Update::Progress(_))) => {}
            Ok(_) => self.open -= 1,
            Err(_) => self.open = 0,
        }
        Some(update)
    }

    /// All choices, generated; with the rounds of each, if they are to be told.
    pub async fn collect(mut self, keep_rounds: bool) -> Result<Vec<Answer>, ApiError> {
        let mut answers: Vec<Answer> = self.cancels.iter().map(|_| Answer::default()).collect();
        while let Some(update) = self.next().await {
            match update? {
                (choice, Update::Progress(progress)) => answers[choice].add(progress, keep_rounds),
                (choice, Update::Done(end)) => answers[choice].end = end.ok(),
            }
        }
        Ok(answers)
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.cancels.iter().for_each(Cancel::cancel);
    }
}
