//! What is not a completion: the model, its tokenizer, the server's health and counters.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State as Extract};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use foretoken_model::Special;
use foretoken_spec::Token;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::Fields;
use crate::metrics;
use crate::served::Served;
use crate::state::State;

/// The description of what is served.
const OPENAPI: &str = include_str!("../openapi.json");

pub(crate) async fn health(Extract(state): Extract<Arc<State>>) -> Result<Json<Value>, ApiError> {
    if !state.is_open() {
        state.served()?;
        return Err(ApiError::unavailable("the server shuts down"));
    }
    state.served().map(|_| Json(json!({"status": "ok"})))
}

pub(crate) async fn metrics(Extract(state): Extract<Arc<State>>) -> Response {
    (
        [(header::CONTENT_TYPE, metrics::CONTENT_TYPE)],
        state.metrics.text(),
    )
        .into_response()
}

pub(crate) async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}

pub(crate) async fn models(Extract(state): Extract<Arc<State>>) -> Result<Json<Value>, ApiError> {
    let served = state.served()?;
    Ok(Json(json!({"object": "list", "data": [model_object(served)]})))
}

pub(crate) async fn model(
    Extract(state): Extract<Arc<State>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let served = state.served()?;
    let Path(name) = name.map_err(|error| ApiError::invalid(error.body_text()))?;
    match served.is_called(&name) {
        true => Ok(Json(model_object(served))),
        false => Err(served.unknown(&name)),
    }
}

fn model_object(served: &Served) -> Value {
    let drafters: Vec<&str> = served.drafters().iter().map(|source| source.name()).collect();
    json!({
        "id": served.name,
        "object": "model",
        "created": served.created,
        "owned_by": "foretoken",
        "context_length": served.info().context_length,
        "vocab_size": served.info().vocab_size,
        "drafters": drafters,
        "pass_seconds": served.pass_seconds,
    })
}

/// The tokens of a text.
pub(crate) async fn tokenize(
    Extract(state): Extract<Arc<State>>,
    mut fields: Fields,
) -> Result<Json<Value>, ApiError> {
    let content: String = fields.require("content")?;
    let add_special: bool = fields.take("add_special")?.unwrap_or(false);
    let special = match fields.take("parse_special")?.unwrap_or(true) {
        true => Special::Parse,
        false => Special::Text,
    };
    let with_pieces: bool = fields.take("with_pieces")?.unwrap_or(false);
    fields.ignore(&["model"]);
    fields.finish()?;
    let answer = move |served: &Served| {
        let tokenizer = served.prompts.tokenizer();
        let mut tokens = tokenizer.encode(&content, special);
        if let Some(bos) = tokenizer
            .bos()
            .filter(|bos| add_special && tokens.first() != Some(bos))
        {
            tokens.insert(0, bos);
        }
        let piece = |&token: &Token| json!({"id": token, "piece": tokenizer.piece(token)});
        Ok(match with_pieces {
            true => json!({"tokens": tokens.iter().map(piece).collect::<Vec<_>>()}),
            false => json!({"tokens": tokens}),
        })
    };
    state.apart(answer).await.map(Json)
}

/// The text of tokens.
pub(crate) async fn detokenize(
    Extract(state): Extract<Arc<State>>,
    mut fields: Fields,
) -> Result<Json<Value>, ApiError> {
    let served = state.served()?;
    let tokens: Vec<Token> = fields.require("tokens")?;
    fields.ignore(&["model"]);
    fields.finish()?;
    let vocab_size = served.info().vocab_size;
    if let Some(token) = tokens.iter().find(|&&token| token as usize >= vocab_size) {
        let problem = format!("{token} is outside the vocabulary of {vocab_size}");
        return Err(ApiError::field("tokens", problem));
    }
    let tokenizer = served.prompts.tokenizer();
    let bytes: Vec<u8> = tokens
        .iter()
        .flat_map(|&token| tokenizer.bytes(token))
        .copied()
        .collect();
    Ok(Json(json!({"content": String::from_utf8_lossy(&bytes)})))
}
