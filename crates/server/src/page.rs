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

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// A file under `/page/`.
struct File {
    name: &'static str,
    /// Its content type.
    kind: &'static str,
    text: &'static str,
}

const fn file_of(name: &'static str, kind: &'static str, text: &'static str) -> File {
    File { name, kind, text }
}

const FILES: [File; 7] = [
    file_of("page.css", CSS, include_str!("page/page.css")),
    file_of("page.js", JAVASCRIPT, include_str!("page/page.js")),
    file_of("api.js", JAVASCRIPT, include_str!("page/api.js")),
    file_of("passage.js", JAVASCRIPT, include_str!("page/passage.js")),
    file_of("figures.js", JAVASCRIPT, include_str!("page/figures.js")),
    file_of("plots.js", JAVASCRIPT, include_str!("page/plots.js")),
    file_of("icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
];

fn find(name: &str) -> Option<&'static File> {
    FILES.iter().find(|file| file.name == name)
}

/// Whether a path is the page's.
pub(crate) fn is_part(path: &str) -> bool {
    path == "/" || path.strip_prefix("/page/").and_then(find).is_some()
}

pub(crate) async fn index() -> Response {
    served(HTML, include_str!("page/index.html"))
}

pub(crate) async fn file(name: Result<Path<String>, PathRejection>) -> Result<Response, ApiError> {
    let Path(name) = name.map_err(|error| ApiError::invalid(error.body_text()))?;
    let missing = || ApiError::refused(StatusCode::NOT_FOUND, format!("the page has no file {name:?}"));
    let file = find(&name).ok_or_else(missing)?;
    Ok(served(file.kind, file.text))
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
