//! The page at `/`: a conversation in which the target's own tokens, accepted and rejected drafts can be told apart.
//!
//! Its files are part of the program and are served to everyone who may call at all: they hold no secret. What the page asks
//! for, it asks of the same API as everybody, with the key that its user gives it.

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::error::ApiError;

/// What the page may do in a browser: load its own files and ask this server. Text of a model cannot become markup: nothing
/// may be parsed as such (Trusted Types), and no script but the page's runs.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// Names, content types and contents.
const FILES: [(&str, &str, &str); 7] = [
    (
        "page.css",
        "text/css; charset=utf-8",
        include_str!("page/page.css"),
    ),
    ("page.js", JAVASCRIPT, include_str!("page/page.js")),
    ("api.js", JAVASCRIPT, include_str!("page/api.js")),
    ("answer.js", JAVASCRIPT, include_str!("page/answer.js")),
    ("figures.js", JAVASCRIPT, include_str!("page/figures.js")),
    ("plots.js", JAVASCRIPT, include_str!("page/plots.js")),
    ("icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
];

/// Whether a path is the page's.
pub(crate) fn is_part(path: &str) -> bool {
    path == "/"
        || path
            .strip_prefix("/page/")
            .is_some_and(|name| find(name).is_some())
}

fn find(name: &str) -> Option<&'static (&'static str, &'static str, &'static str)> {
    FILES.iter().find(|(known, ..)| *known == name)
}

pub(crate) async fn index() -> Response {
    served("text/html; charset=utf-8", include_str!("page/index.html"))
}

pub(crate) async fn file(name: Result<Path<String>, PathRejection>) -> Result<Response, ApiError> {
    let Path(name) = name.map_err(|error| ApiError::invalid(error.body_text()))?;
    let missing = || ApiError::refused(StatusCode::NOT_FOUND, format!("the page has no file {name:?}"));
    let &(_, kind, text) = find(&name).ok_or_else(missing)?;
    Ok(served(kind, text))
}

fn served(kind: &'static str, text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        // A new version of the program has a new page.
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, text).into_response()
}
