//! A request's JSON object, taken apart field by field: what is left over in the end is not supported.

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::{StatusCode, header};
use futures_util::StreamExt;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::time::Duration;

use crate::error::ApiError;

/// Most bytes of a body.
pub(crate) const MOST_BYTES: usize = 8 << 20;
/// Of a longer one so much is read, and dropped: a client that is still sending would not see the answer.
const MOST_DISCARDED: usize = 64 << 20;
/// A body must have come after this time.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// An object, and what it is called in messages.
#[derive(Debug)]
pub(crate) struct Fields {
    map: Map<String, Value>,
    path: String,
}

impl Fields {
    /// The fields of a value that is called `path`.
    pub fn new(value: Value, path: impl Into<String>) -> Result<Self, ApiError> {
        let path = path.into();
        match value {
            Value::Object(map) => Ok(Self { map, path }),
            _ if path.is_empty() => Err(ApiError::invalid("the body is not a JSON object")),
            _ => Err(ApiError::field(path, "is not an object")),
        }
    }

    /// What a field is called from the outside.
    pub fn name(&self, name: &str) -> String {
        match self.path.as_str() {
            "" => name.to_string(),
            path => format!("{path}.{name}"),
        }
    }

    /// Takes a field; `None` if it is not there, or null.
    pub fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        match self.map.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => serde_json::from_value(value)
                .map(Some)
                .map_err(|error| ApiError::field(self.name(name), error)),
        }
    }

    /// Takes a field that must be there.
    pub fn require<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, ApiError> {
        let value = self.take(name)?;
        value.ok_or_else(|| ApiError::field(self.name(name), "is missing"))
    }

    /// Takes an object.
    pub fn object(&mut self, name: &str) -> Result<Option<Fields>, ApiError> {
        let value: Option<Value> = self.take(name)?;
        value.map(|value| Self::new(value, self.name(name))).transpose()
    }

    /// Drops fields that change no text.
    pub fn ignore(&mut self, names: &[&str]) {
        for name in names {
            self.map.remove(*name);
        }
    }

    /// Drops a field that asks for what is done anyway.
    pub fn expect(&mut self, name: &str, is_default: impl FnOnce(&Value) -> bool) -> Result<(), ApiError> {
        match self.map.remove(name) {
            Some(value) if !value.is_null() && !is_default(&value) => {
                Err(ApiError::unsupported(self.name(name)))
            }
            _ => Ok(()),
        }
    }

    /// Refuses what was not taken.
    pub fn finish(self) -> Result<(), ApiError> {
        match self.map.iter().find(|(_, value)| !value.is_null()) {
            Some((name, _)) => Err(ApiError::unsupported(self.name(name))),
            None => Ok(()),
        }
    }
}

impl<S: Sync> FromRequest<S> for Fields {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let kind = request.headers().get(header::CONTENT_TYPE);
        let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let essence = kind.split(';').next().unwrap_or_default().trim();
        if !essence.eq_ignore_ascii_case("application/json") {
            return Err(ApiError::refused(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "the content type must be application/json",
            ));
        }
        let bytes = tokio::time::timeout(BODY_TIMEOUT, read(request.into_body()))
            .await
            .map_err(|_| {
                ApiError::refused(StatusCode::REQUEST_TIMEOUT, "the body took too long to come")
            })??;
        let value = serde_json::from_slice(&bytes)
            .map_err(|error| ApiError::invalid(format!("the body is not JSON: {error}")))?;
        Self::new(value, "")
    }
}

async fn read(body: Body) -> Result<Vec<u8>, ApiError> {
    let (mut bytes, mut length) = (Vec::new(), 0);
    let mut chunks = body.into_data_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|error| ApiError::invalid(format!("the body broke off: {error}")))?;
        length += chunk.len();
        if length <= MOST_BYTES {
            bytes.extend_from_slice(&chunk);
        } else if length > MOST_DISCARDED {
            break;
        }
    }
    if length > MOST_BYTES {
        return Err(ApiError::refused(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body is longer than {MOST_BYTES} bytes"),
        ));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn message(error: ApiError) -> String {
        error.body()["error"]["message"]
            .as_str()
            .expect("a message")
            .to_string()
    }

    #[test]
    fn what_is_not_taken_is_refused_by_name() {
        let mut fields = Fields::new(json!({"a": 1, "b": null, "c": {"d": "x", "e": 2}}), "").unwrap();
        assert_eq!(fields.take::<u32>("a").unwrap(), Some(1));
        assert_eq!(fields.take::<u32>("a").unwrap(), None);
        let mut inner = fields.object("c").unwrap().unwrap();
        assert_eq!(
            message(inner.take::<u32>("d").unwrap_err()),
            "c.d: invalid type: string \"x\", expected u32"
        );
        assert_eq!(message(inner.require::<u32>("f").unwrap_err()), "c.f: is missing");
        assert_eq!(message(inner.finish().unwrap_err()), "c.e: is not supported");
        // Null is as good as nothing.
        fields.finish().unwrap();
    }

    #[test]
    fn a_default_may_be_asked_for() {
        let check = |value: Value, fine: bool| {
            let mut fields = Fields::new(json!({"format": value}), "").unwrap();
            assert_eq!(fields.expect("format", |v| v == "text").is_ok(), fine);
        };
        check(json!("text"), true);
        check(json!(null), true);
        check(json!("json"), false);
    }

    #[test]
    fn only_objects_have_fields() {
        for value in [json!([]), json!(1), json!("{}"), json!(null)] {
            assert!(Fields::new(value, "").is_err());
        }
    }

    #[test]
    fn a_message_that_quotes_the_request_is_cut() {
        let mut fields = Fields::new(json!({"n": "ü".repeat(100_000)}), "").unwrap();
        let message = message(fields.take::<u32>("n").unwrap_err());
        assert!(message.chars().count() <= 401, "{}", message.len());
    }
}
