//! Who may call: keys, hosts and origins, before a request is read.
//!
//! A page on the web must not reach a server on the visitor's machine: a name that an attacker points at 127.0.0.1 is refused
//! as a host, and a page's origin unless it was allowed.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State as Extract};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::error::ApiError;
use crate::options::{ApiKey, ServerOptions};
use crate::page;
use crate::state::State;

/// Refuses who may not call; counts and logs all that came.
pub(crate) async fn guard(Extract(state): Extract<Arc<State>>, request: Request, next: Next) -> Response {
    let start = Instant::now();
    let path = request.uri().path().to_string();
    let matched = request.extensions().get::<MatchedPath>();
    // Paths that are not there are one label.
    let label = matched.map_or("other", MatchedPath::as_str).to_string();
    let method = request.method().clone();
    let response = match check(&state.options, &path, request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    };
    let status = response.status().as_u16();
    state.metrics.answered(&label, status);
    let seconds = start.elapsed().as_secs_f64();
    tracing::info!(%method, path, status, seconds, "answered");
    response
}

fn check(options: &ServerOptions, path: &str, headers: &HeaderMap) -> Result<(), ApiError> {
    let text = |name| {
        headers
            .get(&name)
            .map(|value: &header::HeaderValue| value.to_str().unwrap_or("\u{fffd}"))
    };
    let host = text(header::HOST).unwrap_or_default();
    if !is_expected(options, host) {
        let message = format!("this server is not called {host:?}; --allow-host adds a name");
        return Err(ApiError::refused(StatusCode::FORBIDDEN, message));
    }
    if let Some(origin) = text(header::ORIGIN)
        && !is_own(origin, host)
        && !options.origins.iter().any(|allowed| allowed == origin)
    {
        let message = format!("pages of {origin:?} may not call this server; --cors-origin allows them");
        return Err(ApiError::refused(StatusCode::FORBIDDEN, message));
    }
    // The page says nothing but how to ask.
    if options.keys.is_empty() || path == "/health" || page::is_part(path) {
        return Ok(());
    }
    let given = text(header::AUTHORIZATION).and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
    });
    match given {
        Some(key) if ApiKey::any(&options.keys, key) => Ok(()),
        Some(_) => {
            Err(ApiError::refused(StatusCode::UNAUTHORIZED, "the API key is wrong").code("invalid_api_key"))
        }
        None => Err(ApiError::refused(
            StatusCode::UNAUTHORIZED,
            "an API key is needed: Authorization: Bearer KEY",
        )
        .code("invalid_api_key")),
    }
}

/// Whether a host is an address, which nobody else can point here, or a name that was expected.
fn is_expected(options: &ServerOptions, host: &str) -> bool {
    let name = without_port(host);
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let is_address = bare.unwrap_or(name).parse::<IpAddr>().is_ok();
    let names = ["localhost"]
        .into_iter()
        .chain(options.hosts.iter().map(String::as_str));
    is_address || names.into_iter().any(|known| known.eq_ignore_ascii_case(name))
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Whether a page was served by this server.
fn is_own(origin: &str, host: &str) -> bool {
    let own = origin
        .strip_prefix("http://")
        .or_else(|| origin.strip_prefix("https://"));
    own.is_some_and(|own| own.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn options(keys: &[&str]) -> ServerOptions {
        ServerOptions {
            address: ([127, 0, 0, 1], 0).into(),
            parallel: 1,
            queue: 1,
            keys: keys.iter().map(|key| ApiKey::new(key)).collect(),
            hosts: vec!["workstation".to_string()],
            origins: vec!["https://editor.example".to_string()],
            timeout: Duration::from_secs(1),
        }
    }

    fn allowed(options: &ServerOptions, path: &str, headers: &[(&'static str, &str)]) -> bool {
        let headers = headers.iter().map(|&(name, value)| {
            (
                header::HeaderName::from_static(name),
                value.parse().expect("a header"),
            )
        });
        check(options, path, &headers.collect()).is_ok()
    }

    #[test]
    fn names_that_others_may_point_here_are_no_hosts() {
        let open = options(&[]);
        let check = |host, fine| assert_eq!(allowed(&open, "/", &[("host", host)]), fine, "{host}");
        check("localhost:8080", true);
        check("LOCALHOST", true);
        check("127.0.0.1:8080", true);
        check("192.168.1.7", true);
        check("[::1]:8080", true);
        check("workstation:8080", true);
        check("evil.example:8080", false);
        check("localhost.evil.example", false);
        check("127.0.0.1.evil.example", false);
        check("", false);
        assert!(!allowed(&open, "/", &[]));
    }

    #[test]
    fn pages_of_others_may_not_call() {
        let open = options(&[]);
        let check = |origin, fine| {
            let headers = [("host", "localhost:8080"), ("origin", origin)];
            assert_eq!(allowed(&open, "/", &headers), fine, "{origin}");
        };
        check("http://localhost:8080", true);
        check("https://editor.example", true);
        check("http://localhost:3000", false);
        check("https://evil.example", false);
        check("null", false);
    }

    #[test]
    fn a_key_is_needed_where_there_is_one() {
        let closed = options(&["one", "two"]);
        let check = |path, key: Option<&str>, fine| {
            let mut headers = vec![("host", "localhost")];
            headers.extend(key.map(|key| ("authorization", key)));
            assert_eq!(allowed(&closed, path, &headers), fine, "{path} {key:?}");
        };
        check("/v1/models", Some("Bearer one"), true);
        check("/v1/models", Some("bearer two"), true);
        check("/v1/models", Some("Bearer three"), false);
        check("/v1/models", Some("Bearer "), false);
        check("/v1/models", Some("Basic one"), false);
        check("/v1/models", Some("one"), false);
        check("/v1/models", None, false);
        check("/metrics", None, false);
        check("/health", None, true);
        check("/", None, true);
        check("/page/page.js", None, true);
        check("/page/else.js", None, false);
        // Without a key of its own the server does not look at what clients send.
        assert!(allowed(
            &options(&[]),
            "/",
            &[("host", "localhost"), ("authorization", "Bearer x")]
        ));
    }
}
