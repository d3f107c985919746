//! `/v1/chat/completions` and `/v1/completions`.

use std::sync::Arc;

use axum::Json;
use axum::extract;
use axum::response::{IntoResponse, Response};
use foretoken_spec::Token;
use serde::Deserialize;
use serde_json::Value;

use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::{Generation, Places};
use crate::messages::messages;
use crate::params::{Encoded, Params, random};
use crate::served::Served;
use crate::shape::{Kind, Shape};
use crate::state::State;
use crate::stream;
use crate::tools::Form;

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
    let mut params = Params::take(&mut fields, served, None)?;
    let messages = messages(fields.require("messages")?)?;
    let wanted: bool = fields.take("logprobs")?.unwrap_or(false);
    let top: Option<usize> = fields.take("top_logprobs")?;
    params.logprobs = match (wanted, top) {
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
    let form = Form::take(&mut fields)?;
    // What asks for nothing else than text from text.
    fields.expect("modalities", |kinds| *kinds == serde_json::json!(["text"]))?;
    fields.expect("functions", |value: &Value| {
        value.as_array().is_some_and(Vec::is_empty)
    })?;
    fields.finish()?;
    if form.is_whole() && params.stops() {
        return Err(ApiError::field(
            "stop",
            "would cut JSON or a call: it cannot be combined with response_format or a tool_choice that demands one",
        ));
    }
    let places = Places::take(&state, params.choices)?;
    let calls = form.calls();
    let prediction = params.prediction.take();
    let encode = move |served: &Served| {
        let prompt = served.prompts.chat_with_tools(&messages, &form.told());
        Ok(Encoded {
            prompts: vec![prompt.map_err(|error| ApiError::prompt("messages", &error))?],
            grammar: match form.is_text() {
                true => None,
                false => form.grammar(served.grammars()?)?,
            },
            prediction: predicted(served, prediction)?,
        })
    };
    answer(&state, Kind::Chat { calls }, params, places, encode).await
}

/// Goes on with a text.
pub(crate) async fn text(
    extract::State(state): extract::State<Arc<State>>,
    mut fields: Fields,
) -> Result<Response, ApiError> {
    let served = state.served()?;
    let mut params = Params::take(&mut fields, served, Some(TEXT_TOKENS))?;
    let prompt: Prompt = fields.require("prompt")?;
    let suffix: Option<String> = fields.take("suffix")?;
    params.logprobs = fields.take("logprobs")?;
    if params.logprobs.is_some_and(|top| top > MOST_LOGPROBS) {
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
    let prediction = params.prediction.take();
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
        Ok(Encoded {
            prompts: tokens.collect::<Result<_, _>>()?,
            grammar: None,
            prediction: predicted(served, prediction)?,
        })
    };
    answer(&state, Kind::Text, params, places, encode).await
}

/// The tokens of what the answer will mostly be.
fn predicted(served: &Served, prediction: Option<String>) -> Result<Vec<Token>, ApiError> {
    let tokens = prediction.map(|text| served.prompts.text(&text)).transpose();
    let mut tokens = tokens
        .map_err(|error| ApiError::prompt("prediction", &error))?
        .unwrap_or_default();
    // No answer is longer.
    tokens.truncate(served.info().context_length);
    Ok(tokens)
}

async fn answer(
    state: &Arc<State>,
    kind: Kind,
    params: Params,
    places: Places,
    encode: impl FnOnce(&Served) -> Result<Encoded, ApiError> + Send + 'static,
) -> Result<Response, ApiError> {
    let encoded = state.apart(encode).await?;
    let served = state.served()?;
    let (field, prefix) = match kind {
        Kind::Chat { .. } => ("messages", "chatcmpl"),
        Kind::Text => ("prompt", "cmpl"),
    };
    let mut requests = Vec::new();
    for prompt in &encoded.prompts {
        for choice in 0..params.choices {
            requests.push(params.request(served, &encoded, prompt, choice, field)?);
        }
    }
    let id: Arc<str> = format!("{prefix}-{:016x}", random()?).into();
    let shape = Shape::new(kind, &id, served, &encoded.prompts, &params);
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
