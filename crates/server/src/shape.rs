//! Answers as OpenAI's API writes them, whole and in chunks, of both kinds of completions.

use std::sync::Arc;

use foretoken_engine::{FinishReason, Progress, RoundFigures, SpeculationReport, Stats, Timings};
use foretoken_spec::{LogProbs, Source, Token};
use serde_json::{Map, Value, json};

use crate::calls::{CallParser, Piece};
use crate::generation::Answer;
use crate::params::Params;
use crate::served::{Served, now};

/// What is to be completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Chat {
        /// Whether functions may be called.
        calls: bool,
    },
    Text,
}

/// How one request's answer is written.
pub(crate) struct Shape {
    kind: Kind,
    id: Arc<str>,
    created: u64,
    served: Arc<Served>,
    prompt_tokens: usize,
    /// Choices of each prompt.
    choices: usize,
    logprobs: bool,
    token_ids: bool,
    drafts: bool,
}

/// Tokens that were used.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub completion: usize,
    cached: usize,
    /// Tokens of predictions that came true, and that did not.
    predicted: [usize; 2],
}

impl Shape {
    /// For the answer to a request with these prompts.
    pub fn new(
        kind: Kind,
        id: &Arc<str>,
        served: &Arc<Served>,
        prompts: &[Vec<Token>],
        params: &Params,
    ) -> Self {
        Self {
            kind,
            id: Arc::clone(id),
            created: now(),
            served: Arc::clone(served),
            prompt_tokens: prompts.iter().map(Vec::len).sum(),
            choices: params.choices,
            logprobs: params.logprobs.is_some(),
            token_ids: params.token_ids,
            drafts: params.return_drafts,
        }
    }

    /// What a choice used beside its tokens.
    pub fn count(&self, usage: &mut Usage, index: usize, stats: &Stats) {
        // Of a prompt's first choice, since the others find what that one computed.
        if index.is_multiple_of(self.choices) {
            usage.cached += stats.cached_tokens;
        }
        if let Some(count) = stats.speculation.by_source.get(&Source::Prediction) {
            usage.predicted[0] += count.accepted;
            usage.predicted[1] += count.drafted - count.accepted;
        }
    }

    /// What finds calls in a choice's text, if there may be any.
    pub fn parser(&self) -> Option<CallParser> {
        (self.kind == Kind::Chat { calls: true }).then(CallParser::default)
    }

    /// The answer to a request that does not stream.
    pub fn whole(&self, answers: &[Answer]) -> Value {
        let mut usage = Usage::default();
        let mut choices = Vec::new();
        for (index, answer) in answers.iter().enumerate() {
            let mut called = false;
            let mut choice = match (self.kind, self.parser()) {
                (Kind::Text, _) => json!({"text": answer.text}),
                (Kind::Chat { .. }, None) => {
                    json!({"message": {"role": "assistant", "content": answer.text, "refusal": null}})
                }
                (Kind::Chat { .. }, Some(mut parser)) => {
                    let mut pieces = Vec::new();
                    parser.push(&answer.text, &mut pieces);
                    parser.finish(&mut pieces);
                    called = parser.called();
                    json!({"message": self.message(index, &pieces)})
                }
            };
            let fields = object(&mut choice);
            fields.insert("index".into(), index.into());
            fields.insert(
                "logprobs".into(),
                self.logprobs(&answer.tokens, &answer.logprobs, &mut 0),
            );
            if self.token_ids {
                fields.insert("token_ids".into(), json!(answer.tokens));
            }
            if let Some(drafts) = self.drafts(&answer.rounds) {
                fields.insert("drafts".into(), drafts);
            }
            usage.completion += answer.tokens.len();
            if let Some((finish, stats)) = &answer.end {
                self.count(&mut usage, index, stats);
                fields.insert("finish_reason".into(), finish_reason(*finish, called).into());
                if answers.len() > 1 {
                    self.add_statistics(fields, stats);
                }
            }
            choices.push(choice);
        }
        let object_name = match self.kind {
            Kind::Chat { .. } => "chat.completion",
            Kind::Text => "text_completion",
        };
        let mut whole = self.envelope(object_name, choices);
        let fields = object(&mut whole);
        fields.insert("usage".into(), self.usage(usage));
        if let [
            Answer {
                end: Some((_, stats)),
                ..
            },
        ] = answers
        {
            self.add_statistics(fields, stats);
        }
        whole
    }

    /// The chunk that begins a choice; none where text is all that there is.
    pub fn first(&self, index: usize) -> Option<Value> {
        let delta = json!({"role": "assistant", "content": ""});
        (self.kind != Kind::Text)
            .then(|| self.chunk(json!({"index": index, "delta": delta, "finish_reason": null})))
    }

    /// A chunk with what a round brought; `offset` is the length of the text of the tokens before, and moves on.
    pub fn next(
        &self,
        index: usize,
        pieces: &[Piece],
        tokens: &[Token],
        logprobs: &[LogProbs],
        drafts: Option<Value>,
        offset: &mut usize,
    ) -> Option<Value> {
        let ids = self.token_ids && !tokens.is_empty();
        if pieces.is_empty() && logprobs.is_empty() && !ids && drafts.is_none() {
            return None;
        }
        let content = content(pieces);
        let mut choice = match self.kind {
            Kind::Chat { .. } => {
                let mut delta = Map::new();
                if !content.is_empty() {
                    delta.insert("content".into(), content.into());
                }
                let calls = self.calls(index, pieces);
                if !calls.is_empty() {
                    delta.insert("tool_calls".into(), calls.into());
                }
                json!({"index": index, "delta": delta, "finish_reason": null})
            }
            Kind::Text => json!({"index": index, "text": content, "finish_reason": null}),
        };
        let fields = object(&mut choice);
        fields.insert("logprobs".into(), self.logprobs(tokens, logprobs, offset));
        if self.token_ids {
            fields.insert("token_ids".into(), json!(tokens));
        }
        if let Some(drafts) = drafts {
            fields.insert("drafts".into(), drafts);
        }
        Some(self.chunk(choice))
    }

    /// The chunk that ends a choice, with its statistics.
    pub fn last(&self, index: usize, finish: FinishReason, called: bool, stats: &Stats) -> Value {
        let finish = finish_reason(finish, called);
        let mut chunk = self.chunk(match self.kind {
            Kind::Chat { .. } => json!({"index": index, "delta": {}, "finish_reason": finish}),
            Kind::Text => json!({"index": index, "text": "", "finish_reason": finish}),
        });
        self.add_statistics(object(&mut chunk), stats);
        chunk
    }

    /// The chunk after the last, with the usage alone.
    pub fn usage_chunk(&self, usage: Usage) -> Value {
        let mut chunk = self.envelope(self.chunk_name(), Vec::new());
        self.add_usage(&mut chunk, usage);
        chunk
    }

    pub fn add_usage(&self, chunk: &mut Value, usage: Usage) {
        object(chunk).insert("usage".into(), self.usage(usage));
    }

    /// A message that may call functions.
    fn message(&self, index: usize, pieces: &[Piece]) -> Value {
        let mut calls = self.calls(index, pieces);
        let content = match content(pieces) {
            text if text.is_empty() && !calls.is_empty() => Value::Null,
            text => text.into(),
        };
        let mut message = json!({"role": "assistant", "content": content, "refusal": null});
        if !calls.is_empty() {
            // Their places are those in the list.
            for call in &mut calls {
                object(call).remove("index");
            }
            object(&mut message).insert("tool_calls".into(), calls.into());
        }
        message
    }

    /// Calls as a stream tells them, a call's arguments joined to its beginning.
    fn calls(&self, choice: usize, pieces: &[Piece]) -> Vec<Value> {
        let (_, id) = self.id.split_once('-').unwrap_or_default();
        let mut calls: Vec<Value> = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Content(_) => {}
                Piece::Call { index, name } => calls.push(json!({
                    "index": index,
                    "id": format!("call_{id}_{choice}_{index}"),
                    "type": "function",
                    "function": {"name": name, "arguments": ""},
                })),
                Piece::Arguments { index, text } => match calls.last_mut() {
                    Some(call) if call["index"] == *index => {
                        let before = call["function"]["arguments"].as_str().unwrap_or_default();
                        call["function"]["arguments"] = format!("{before}{text}").into();
                    }
                    _ => calls.push(json!({"index": index, "function": {"arguments": text}})),
                },
            }
        }
        calls
    }

    fn chunk(&self, choice: Value) -> Value {
        self.envelope(self.chunk_name(), vec![choice])
    }

    fn chunk_name(&self) -> &'static str {
        match self.kind {
            Kind::Chat { .. } => "chat.completion.chunk",
            Kind::Text => "text_completion",
        }
    }

    fn envelope(&self, object: &str, choices: Vec<Value>) -> Value {
        json!({
            "id": &*self.id,
            "object": object,
            "created": self.created,
            "model": self.served.name,
            "system_fingerprint": self.served.fingerprint,
            "choices": choices,
        })
    }

    fn usage(&self, usage: Usage) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": usage.completion,
            "total_tokens": self.prompt_tokens + usage.completion,
            "prompt_tokens_details": {"cached_tokens": usage.cached, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": 0,
                "audio_tokens": 0,
                "accepted_prediction_tokens": usage.predicted[0],
                "rejected_prediction_tokens": usage.predicted[1],
            },
        })
    }

    /// Whose text each of these rounds brought, and what they rejected; `None` if the request did not ask for it.
    pub fn drafts(&self, rounds: &[Progress]) -> Option<Value> {
        let tokenizer = self.served.prompts.tokenizer();
        let round = |progress: &Progress| {
            let text = progress.text.iter();
            let text: Vec<Value> = text
                .map(|fragment| json!({"text": fragment.text, "source": fragment.source.map(Source::name)}))
                .collect();
            let rejected = progress.rejected.iter();
            let rejected: Vec<u8> = rejected
                .flat_map(|&token| tokenizer.bytes(token))
                .copied()
                .collect();
            json!({
                "text": text,
                "rejected": String::from_utf8_lossy(&rejected),
                "round": progress.round.as_ref().map(RoundFigures::new),
            })
        };
        self.drafts.then(|| rounds.iter().map(round).collect())
    }

    fn add_statistics(&self, fields: &mut Map<String, Value>, stats: &Stats) {
        let [target, draft] = self.served.load;
        fields.insert("timings".into(), json!(Timings::new(stats, target, draft)));
        fields.insert(
            "speculation".into(),
            json!(SpeculationReport::new(stats, self.served.lossless)),
        );
    }

    fn logprobs(&self, tokens: &[Token], logprobs: &[LogProbs], offset: &mut usize) -> Value {
        if !self.logprobs {
            return Value::Null;
        }
        let tokenizer = self.served.prompts.tokenizer();
        let text = |token: Token| String::from_utf8_lossy(tokenizer.bytes(token)).into_owned();
        let drawn = tokens.iter().zip(logprobs);
        match self.kind {
            Kind::Chat { .. } => {
                let entry = |token: Token, logprob: f32| json!({"token": text(token), "logprob": logprob, "bytes": tokenizer.bytes(token)});
                let content: Vec<Value> = drawn
                    .map(|(&token, likely)| {
                        let mut value = entry(token, likely.logprob);
                        let top = likely.top.iter().map(|&(token, logprob)| entry(token, logprob));
                        object(&mut value).insert("top_logprobs".into(), top.collect());
                        value
                    })
                    .collect();
                json!({"content": content, "refusal": null})
            }
            Kind::Text => {
                let (mut texts, mut own, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
                for (&token, likely) in drawn {
                    let text_of = text(token);
                    offsets.push(*offset);
                    *offset += text_of.chars().count();
                    texts.push(text_of);
                    own.push(likely.logprob);
                    let top = likely
                        .top
                        .iter()
                        .map(|&(token, logprob)| (text(token), json!(logprob)));
                    tops.push(top.collect::<Map<_, _>>());
                }
                json!({"tokens": texts, "token_logprobs": own, "top_logprobs": tops, "text_offset": offsets})
            }
        }
    }
}

/// The fields of an object that was just written.
fn object(value: &mut Value) -> &mut Map<String, Value> {
    value.as_object_mut().expect("it was written as an object")
}

/// The text of the pieces that are no calls.
fn content(pieces: &[Piece]) -> String {
    let texts = pieces.iter().filter_map(|piece| match piece {
        Piece::Content(text) => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}

fn finish_reason(finish: FinishReason, called: bool) -> &'static str {
    match finish {
        FinishReason::Stop if called => "tool_calls",
        FinishReason::Stop => "stop",
        // The limit was the context's.
        FinishReason::Length | FinishReason::Context => "length",
        // Only of requests that nobody waits for.
        FinishReason::Cancelled => "cancelled",
    }
}
