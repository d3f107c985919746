//! Failures, all in the form of OpenAI's API: `{"error":{"message","type","param","code"}}`.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use foretoken_engine::{RequestError, SequenceError};
use foretoken_model::PromptError;
use foretoken_spec::{LogitError, ParamError};
use serde_json::{Value, json};

/// Messages are cut to so many characters: they may quote what the client sent.
const LONGEST_MESSAGE: usize = 400;

/// Why a request was not served.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    kind: &'static str,
    message: String,
    param: Option<String>,
    code: Option<&'static str>,
    /// Seconds after which to try again.
    retry_after: Option<u64>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        let end = message.char_indices().nth(LONGEST_MESSAGE).map(|(at, _)| at);
        let message = match end {
            Some(end) => format!("{}…", &message[..end]),
            None => message,
        };
        Self {
            status,
            kind,
            message,
            param: None,
            code: None,
            retry_after: None,
        }
    }

    /// The request as a whole is wrong.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// A field is wrong.
    pub fn field(name: impl Into<String>, problem: impl std::fmt::Display) -> Self {
        let name = name.into();
        Self {
            param: Some(name.clone()),
            ..Self::invalid(format!("{name}: {problem}"))
        }
    }

    /// A field asks for something that is not there.
    pub fn unsupported(name: impl Into<String>) -> Self {
        Self::field(name, "is not supported").code("unsupported_parameter")
    }

    /// The request was refused before it was read.
    pub fn refused(status: StatusCode, message: impl Into<String>) -> Self {
        Self::new(status, "invalid_request_error", message)
    }

    /// The server cannot serve it now.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message).retry_after(2)
    }

    /// Too many requests.
    pub fn busy(retry_after: u64) -> Self {
        let message = "the queue is full; try again later";
        Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
            .code("rate_limit_exceeded")
            .retry_after(retry_after)
    }

    /// The request took longer than it may.
    pub fn timed_out() -> Self {
        let message = "the request took longer than the server allows";
        Self::new(StatusCode::GATEWAY_TIMEOUT, "server_error", message).code("timeout")
    }

    /// Something went wrong here.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    pub fn code(self, code: &'static str) -> Self {
        Self {
            code: Some(code),
            ..self
        }
    }

    fn retry_after(self, seconds: u64) -> Self {
        Self {
            retry_after: Some(seconds),
            ..self
        }
    }

    /// The object that says so.
    pub fn body(&self) -> Value {
        json!({"error": {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if let Some(seconds) = self.retry_after {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        response
    }
}

impl ApiError {
    /// A text in this field cannot be made a prompt.
    pub fn prompt(field: &str, error: &PromptError) -> Self {
        let code = match error {
            PromptError::TooLong { .. } => Some("context_length_exceeded"),
            _ => None,
        };
        let field = match error {
            PromptError::NoGaps => "suffix",
            _ => field,
        };
        Self {
            code,
            ..Self::field(field, error)
        }
    }

    /// The model cannot serve a request whose prompt was in this field.
    pub fn request(field: &str, error: &RequestError) -> Self {
        let param = match error {
            RequestError::Sampler(ParamError::OutOfRange { name, .. }) => name,
            RequestError::Sampler(_) => "logit_bias",
            RequestError::NoTokens => "max_tokens",
            RequestError::Stop(_) => "stop",
            _ => field,
        };
        let code = match error {
            RequestError::PromptTooLong { .. } => Some("context_length_exceeded"),
            _ => None,
        };
        Self {
            param: Some(param.to_string()),
            code,
            ..Self::invalid(error.to_string())
        }
    }
}

impl From<SequenceError> for ApiError {
    fn from(error: SequenceError) -> Self {
        match error {
            SequenceError::Logits(LogitError::AllBanned) => Self::field("logit_bias", error),
            SequenceError::Logits(LogitError::Grammar) => Self::invalid(error.to_string()),
            error => Self::internal(error.to_string()),
        }
    }
}
