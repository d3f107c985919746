//! `/v1/chat/completions` and `/v1/completions`.

use std::sync::Arc;

use axum::Json;
use axum::extract;
use axum::response::{IntoResponse, Response};
use foretoken_model::Message;
use foretoken_spec::Token;
use serde::Deserialize;
use serde_json::Value;

use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::{Generation, Places};
use crate::params::{Params, random};
use crate::served::Served;
use crate::shape::{Kind, Shape};
use crate::state::State;
use crate::stream;

/// Most of the likeliest tokens that a request may ask for.
const MOST_LOGPROBS: usize = 20;
/// Tokens of a text completion that does not say.
const TEXT_TOKENS: usize = 16;
/// Most prompts of one request.
const MOST_PROMPTS: usize = 16;

/// Answers a conversation.
pub(crate) async fn chat(
    extract::State(state): extract::State<Arc<State>>,
    mut fields: Fields,
) -> Result<Response, ApiError> {
    let served = state.served()?;
    let params = Params::take(&mut fields, served, None)?;
    let messages = messages(fields.require("messages")?)?;
    let wanted: bool = fields.take("logprobs")?.unwrap_or(false);
    let top: Option<usize> = fields.take("top_logprobs")?;
    let logprobs = match (wanted, top) {
        (_, Some(top)) if top > MOST_LOGPROBS => {
            return Err(ApiError::field(
                "top_logprobs",
                format!("must be at most {MOST_LOGPROBS}"),
            ));
        }
        (false, Some(top)) if top > 0 => {
            return Err(ApiError::field("top_logprobs", "needs logprobs to be true"));
        }
        (true, top) => Some(top.unwrap_or(0)),
        (false, _) => None,
    };
    // What asks for nothing else than text from text.
    fields.expect("response_format", |format| {
        *format == serde_json::json!({"type": "text"})
    })?;
    fields.expect("modalities", |kinds| *kinds == serde_json::json!(["text"]))?;
    let none = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
    fields.expect("tools", none)?;
    fields.expect("functions", none)?;
    fields.expect("tool_choice", |choice| choice == "none" || choice == "auto")?;
    fields.ignore(&["parallel_tool_calls"]);
    fields.finish()?;
    let places = Places::take(&state, params.choices)?;
    let encode = move |served: &Served| {
        let prompt = served.prompts.chat(&messages);
        Ok(vec![
            prompt.map_err(|error| ApiError::prompt("messages", &error))?,
        ])
    };
    answer(&state, Kind::Chat, params, places, encode, logprobs).await
}

/// Goes on with a text.
pub(crate) async fn text(
    extract::State(state): extract::State<Arc<State>>,
    mut fields: Fields,
) -> Result<Response, ApiError> {
    let served = state.served()?;
    let params = Params::take(&mut fields, served, Some(TEXT_TOKENS))?;
    let prompt: Prompt = fields.require("prompt")?;
    let suffix: Option<String> = fields.take("suffix")?;
    let logprobs: Option<usize> = fields.take("logprobs")?;
    if logprobs.is_some_and(|top| top > MOST_LOGPROBS) {
        return Err(ApiError::field(
            "logprobs",
            format!("must be at most {MOST_LOGPROBS}"),
        ));
    }
    fields.expect("echo", |echo| echo == false)?;
    let choices = params.choices;
    fields.expect("best_of", |best| best.as_u64() == Some(choices as u64))?;
    fields.finish()?;
    let prompts = prompt.into_many();
    if prompts.is_empty() || prompts.len() > MOST_PROMPTS {
        return Err(ApiError::field(
            "prompt",
            format!("must be between 1 and {MOST_PROMPTS} prompts"),
        ));
    }
    let places = Places::take(&state, prompts.len() * params.choices)?;
    let encode = move |served: &Served| {
        let error = |error| ApiError::prompt("prompt", &error);
        let tokens = prompts.into_iter().map(|prompt| match (prompt, &suffix) {
            (OnePrompt::Text(text), None) => served.prompts.raw(&text).map_err(error),
            (OnePrompt::Text(text), Some(suffix)) => {
                served.prompts.fill_in_the_middle(&text, suffix).map_err(error)
            }
            (OnePrompt::Tokens(tokens), None) => Ok(tokens),
            (OnePrompt::Tokens(_), Some(_)) => Err(ApiError::field("suffix", "needs a prompt that is text")),
        });
        tokens.collect()
    };
    answer(&state, Kind::Text, params, places, encode, logprobs).await
}

async fn answer(
    state: &Arc<State>,
    kind: Kind,
    params: Params,
    places: Places,
    encode: impl FnOnce(&Served) -> Result<Vec<Vec<Token>>, ApiError> + Send + 'static,
    logprobs: Option<usize>,
) -> Result<Response, ApiError> {
    let prompts = state.apart(encode).await?;
    let served = state.served()?;
    let (field, prefix) = match kind {
        Kind::Chat => ("messages", "chatcmpl"),
        Kind::Text => ("prompt", "cmpl"),
    };
    let mut requests = Vec::new();
    for prompt in &prompts {
        for choice in 0..params.choices {
            requests.push(params.request(served, prompt, choice, logprobs, field)?);
        }
    }
    let id: Arc<str> = format!("{prefix}-{:016x}", random()?).into();
    let shape = Shape::new(kind, &id, served, &prompts, &params, logprobs.is_some());
    let choices = requests.len();
    let generation = Generation::start(state, &id, requests, places)?;
    match params.stream {
        Some(options) => Ok(stream::respond(generation, choices, shape, options)),
        None => {
            let answers = generation.collect(params.return_drafts).await?;
            Ok(Json(shape.whole(&answers)).into_response())
        }
    }
}

/// `prompt` of a text completion.
#[derive(Deserialize)]
#[serde(untagged, expecting = "is neither a text, nor tokens, nor an array of either")]
enum Prompt {
    Text(String),
    Tokens(Vec<Token>),
    Texts(Vec<String>),
    ManyTokens(Vec<Vec<Token>>),
}

enum OnePrompt {
    Text(String),
    Tokens(Vec<Token>),
}

impl Prompt {
    fn into_many(self) -> Vec<OnePrompt> {
        match self {
            Self::Text(text) => vec![OnePrompt::Text(text)],
            Self::Tokens(tokens) => vec![OnePrompt::Tokens(tokens)],
            Self::Texts(texts) => texts.into_iter().map(OnePrompt::Text).collect(),
            Self::ManyTokens(many) => many.into_iter().map(OnePrompt::Tokens).collect(),
        }
    }
}

/// The messages of a conversation.
fn messages(values: Vec<Value>) -> Result<Vec<Message>, ApiError> {
    if values.is_empty() {
        return Err(ApiError::field("messages", "is empty"));
    }
    let message = |(at, value): (usize, Value)| {
        let mut fields = Fields::new(value, format!("messages[{at}]"))?;
        let role: String = fields.require("role")?;
        let role = match role.as_str() {
            "system" | "user" | "assistant" => role,
            "developer" => "system".to_string(),
            _ => {
                let problem =
                    format!("{role:?} is not supported; there are system, developer, user and assistant");
                return Err(ApiError::field(fields.name("role"), problem));
            }
        };
        let content = content(&fields.name("content"), fields.require("content")?)?;
        // What answers carry and clients send back.
        fields.expect("tool_calls", |calls| calls.as_array().is_some_and(Vec::is_empty))?;
        fields.expect("annotations", |notes| notes.as_array().is_some_and(Vec::is_empty))?;
        fields.finish()?;
        Ok(Message { role, content })
    };
    values.into_iter().enumerate().map(message).collect()
}

/// A message's text, or the texts of its parts.
fn content(name: &str, value: Value) -> Result<String, ApiError> {
    let parts = match value {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        _ => return Err(ApiError::field(name, "is neither text nor an array of parts")),
    };
    let mut texts = String::new();
    for (at, part) in parts.into_iter().enumerate() {
        let mut part = Fields::new(part, format!("{name}[{at}]"))?;
        let kind: String = part.require("type")?;
        if kind != "text" {
            let problem = format!("{kind:?} is not supported; there is text");
            return Err(ApiError::field(part.name("type"), problem));
        }
        texts.push_str(&part.require::<String>("text")?);
        part.finish()?;
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn messages_are_text_whatever_their_form() {
        let got = messages(vec![
            json!({"role": "developer", "content": "Be brief."}),
            json!({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}),
            json!({"role": "assistant", "content": "c", "tool_calls": null, "refusal": null}),
        ]);
        let said: Vec<_> = got.unwrap().into_iter().map(|m| (m.role, m.content)).collect();
        let want = [("system", "Be brief."), ("user", "ab"), ("assistant", "c")];
        assert_eq!(
            said,
            want.map(|(role, content)| (role.to_string(), content.to_string()))
        );
    }

    #[test]
    fn what_is_wrong_with_a_message_is_named() {
        let check = |value: Value, want: &str| {
            let error = messages(vec![json!({"role": "user", "content": "x"}), value]).unwrap_err();
            assert_eq!(error.body()["error"]["param"], want);
        };
        check(json!({"role": "tool", "content": "x"}), "messages[1].role");
        check(json!({"content": "x"}), "messages[1].role");
        check(json!({"role": "user"}), "messages[1].content");
        check(json!({"role": "user", "content": 5}), "messages[1].content");
        check(
            json!({"role": "user", "content": [{"type": "image_url"}]}),
            "messages[1].content[0].type",
        );
        check(
            json!({"role": "user", "content": [{"type": "text"}]}),
            "messages[1].content[0].text",
        );
        check(
            json!({"role": "user", "content": "x", "name": "Ann"}),
            "messages[1].name",
        );
        check(json!("x"), "messages[1]");
    }
}
