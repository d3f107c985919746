//! Answers as server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde_json::Value;

use crate::calls::{CallParser, Piece};
use crate::error::ApiError;
use crate::generation::Generation;
use crate::params::StreamOptions;
use crate::shape::{Shape, Usage};
use crate::worker::Update;

/// Silence is broken by a comment after this time: while a prompt is read, and in the queue.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

struct Streaming {
    generation: Generation,
    shape: Shape,
    options: StreamOptions,
    ready: VecDeque<Event>,
    usage: Usage,
    choices: Vec<Choice>,
    over: bool,
}

/// What is known of a choice's text.
#[derive(Clone, Default)]
struct Choice {
    /// The length of its tokens' text.
    offset: usize,
    parser: Option<CallParser>,
}

/// Streams the choices as they come.
pub(crate) fn respond(
    generation: Generation,
    choices: usize,
    shape: Shape,
    options: StreamOptions,
) -> Response {
    let mut streaming = Streaming {
        generation,
        shape,
        options,
        ready: VecDeque::new(),
        usage: Usage::default(),
        choices: Vec::new(),
        over: false,
    };
    let choice = Choice {
        parser: streaming.shape.parser(),
        ..Choice::default()
    };
    streaming.choices.resize(choices, choice);
    for choice in 0..choices {
        if let Some(chunk) = streaming.shape.first(choice) {
            streaming.push(chunk);
        }
    }
    let events = stream::unfold(streaming, |mut streaming| async move {
        let event = streaming.next().await?;
        Some((Ok::<_, Infallible>(event), streaming))
    });
    Sse::new(events)
        .keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
        .into_response()
}

impl Streaming {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.over {
                return None;
            }
            let update = self.generation.next().await;
            self.take(update);
        }
    }

    fn take(&mut self, update: Option<Result<(usize, Update), ApiError>>) {
        match update {
            Some(Ok((choice, Update::Progress(progress)))) => {
                let text: String = progress
                    .text
                    .iter()
                    .map(|fragment| fragment.text.as_str())
                    .collect();
                let tokens: Vec<_> = progress.tokens.iter().map(|token| token.token).collect();
                self.usage.completion += tokens.len();
                let state = &mut self.choices[choice];
                let mut pieces = Vec::new();
                match &mut state.parser {
                    Some(parser) => parser.push(&text, &mut pieces),
                    None if text.is_empty() => {}
                    None => pieces.push(Piece::Content(text)),
                }
                let offset = &mut state.offset;
                let drafts = self.shape.drafts(std::slice::from_ref(&progress));
                if let Some(chunk) =
                    self.shape
                        .next(choice, &pieces, &tokens, &progress.logprobs, drafts, offset)
                {
                    self.push(chunk);
                }
            }
            Some(Ok((choice, Update::Done(Ok((finish, stats)))))) => {
                self.shape.count(&mut self.usage, choice, &stats);
                let state = &mut self.choices[choice];
                let (mut pieces, mut called) = (Vec::new(), false);
                if let Some(parser) = &mut state.parser {
                    parser.finish(&mut pieces);
                    called = parser.called();
                }
                if let Some(chunk) = self
                    .shape
                    .next(choice, &pieces, &[], &[], None, &mut state.offset)
                {
                    self.push(chunk);
                }
                let chunk = self.shape.last(choice, finish, called, &stats);
                self.push(chunk);
            }
            Some(Ok((_, Update::Done(Err(error))))) => self.fail(&error.into()),
            Some(Err(error)) => self.fail(&error),
            None => {
                if self.options.usage {
                    let chunk = self.shape.usage_chunk(self.usage);
                    self.ready.push_back(event(&chunk));
                }
                self.end();
            }
        }
    }

    fn push(&mut self, mut chunk: Value) {
        if self.options.continuous_usage {
            self.shape.add_usage(&mut chunk, self.usage);
        } else if self.options.usage {
            chunk["usage"] = Value::Null;
        }
        self.ready.push_back(event(&chunk));
    }

    /// The status is sent already: the error is an event.
    fn fail(&mut self, error: &ApiError) {
        self.ready.push_back(event(&error.body()));
        self.end();
    }

    fn end(&mut self) {
        self.ready.push_back(Event::default().data("[DONE]"));
        self.over = true;
    }
}

/// JSON on one line.
fn event(chunk: &Value) -> Event {
    Event::default().data(chunk.to_string())
}
