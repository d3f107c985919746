//! Requests for files: redirects, the token, what servers say of a file.
//!
//! The hub answers for a file with its length and SHA-256 sum (`X-Linked-Size`, `X-Linked-Etag`) and a redirect to another
//! host, which has the bytes and no business with the token. So redirects are followed here, one by one.

use std::io;
use std::time::Duration;

use ureq::Agent;
use ureq::http::{HeaderMap, HeaderValue, Response, Uri, header};
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use super::source::{check_url, shown};
use super::{Checksum, ModelError, Source};

/// The hub's address unless `HF_ENDPOINT` names a mirror.
const HUB: &str = "https://huggingface.co";

/// The hub needs two.
const MOST_REDIRECTS: usize = 10;

/// How long a name's resolution and a connection may take.
const CONNECTING: Duration = Duration::from_secs(30);

/// How long to bear with a server.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// How often to try again after a failure that may pass, without having got any further.
    pub retries: u32,
    /// The pause before the first of these; each one after it is twice as long.
    pub pause: Duration,
    /// How long a server may be silent.
    pub silence: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            retries: 4,
            pause: Duration::from_secs(1),
            silence: Duration::from_secs(60),
        }
    }
}

/// What asks for files.
#[derive(Debug)]
pub struct Client {
    hub: String,
    origin: Origin,
    token: Option<HeaderValue>,
    agent: Agent,
    pub(super) patience: Patience,
}

impl Client {
    /// With `HF_ENDPOINT`, `HF_TOKEN` and the proxy variables of the environment.
    ///
    /// # Errors
    /// [`ModelError::Setting`].
    pub fn from_env() -> Result<Self, ModelError> {
        let variable = |name: &'static str| match std::env::var(name) {
            Ok(value) => Ok(Some(value.trim().to_string()).filter(|value| !value.is_empty())),
            Err(std::env::VarError::NotPresent) => Ok(None),
            Err(std::env::VarError::NotUnicode(_)) => Err(setting(name, "is not UTF-8")),
        };
        let hub = variable("HF_ENDPOINT")?;
        let token = variable("HF_TOKEN")?;
        let proxy = ureq::Proxy::try_from_env();
        Self::build(hub.as_deref(), token.as_deref(), proxy, Patience::default())
    }

    /// With a hub at this URL, and a token for it; through no proxy.
    ///
    /// # Errors
    /// [`ModelError::Setting`], which names the variable that [`from_env`](Self::from_env) would have read.
    pub fn new(hub: &str, token: Option<&str>, patience: Patience) -> Result<Self, ModelError> {
        Self::build(Some(hub), token, None, patience)
    }

    fn build(
        hub: Option<&str>,
        token: Option<&str>,
        proxy: Option<ureq::Proxy>,
        patience: Patience,
    ) -> Result<Self, ModelError> {
        let hub = hub.unwrap_or(HUB).trim_end_matches('/').to_string();
        let problem = |problem: &str| setting("HF_ENDPOINT", &format!("{hub}: {problem}"));
        let url: Uri = hub.parse().map_err(|_| problem("is not a URL"))?;
        check_url(&url).map_err(|why| problem(&why))?;
        if url.query().is_some() {
            return Err(problem("must have no query"));
        }
        let origin = Origin::of(&url);
        if token.is_some() && !origin.is_private() {
            return Err(setting(
                "HF_TOKEN",
                &format!("would go to {hub} unencrypted; unset it, or use https"),
            ));
        }
        let token = token.map(|token| {
            let header = HeaderValue::try_from(format!("Bearer {token}"));
            let mut header = header.map_err(|_| setting("HF_TOKEN", "has characters that no token has"))?;
            header.set_sensitive(true);
            Ok(header)
        });
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(proxy)
            .tls_config(TlsConfig::builder().root_certs(roots()).build())
            .user_agent(concat!("foretoken/", env!("CARGO_PKG_VERSION")))
            .timeout_resolve(Some(CONNECTING))
            .timeout_connect(Some(CONNECTING))
            .timeout_per_read(Some(patience.silence))
            .timeout_per_write(Some(patience.silence));
        Ok(Self {
            hub,
            origin,
            token: token.transpose()?,
            agent: config.build().new_agent(),
            patience,
        })
    }

    /// Where a source is.
    pub(super) fn url(&self, source: &Source) -> Uri {
        source.url(&self.hub)
    }

    /// Asks for a file, or for what remains of it. Redirects are followed; any other answer is the caller's to judge.
    pub(super) fn get(&self, url: &Uri, rest: Option<&Rest>) -> Result<Answer, ModelError> {
        let asked = url;
        let mut url = url.clone();
        let mut linked = Linked::default();
        for _ in 0..=MOST_REDIRECTS {
            let mut request = self.agent.get(&url).header(header::ACCEPT_ENCODING, "identity");
            if let Some(rest) = rest {
                request = request.header(header::RANGE, format!("bytes={}-", rest.from));
                if let Some(etag) = &rest.etag {
                    request = request.header(header::IF_RANGE, etag);
                }
            }
            let is_hub = Origin::of(&url) == self.origin;
            if let Some(token) = self.token.as_ref().filter(|_| is_hub) {
                request = request.header(header::AUTHORIZATION, token);
            }
            let response = request.call().map_err(|error| broken(&url, error))?;
            if is_hub {
                linked.read(response.headers());
            }
            let Some(location) = location(&response) else {
                return Ok(Answer {
                    url,
                    linked,
                    response,
                });
            };
            url = join(&url, location).map_err(|problem| ModelError::Redirect {
                url: shown(&url),
                problem,
            })?;
        }
        Err(ModelError::Redirect {
            url: shown(asked),
            problem: format!("more than {MOST_REDIRECTS} times"),
        })
    }

    /// Why there is no file in an answer.
    pub(super) fn refusal(&self, source: &Source, answer: &Answer) -> ModelError {
        let status = answer.status();
        let code = header_text(answer.response.headers(), "x-error-code").unwrap_or_default();
        let is_hub = Origin::of(&answer.url) == self.origin;
        let page = source.page(&self.hub).filter(|_| is_hub);
        let problem = match (status, page, self.token.is_some()) {
            (401, Some(_), false) if code == "GatedRepo" => {
                "is only for those who accepted its terms; set HF_TOKEN to the token of an account that did"
                    .to_string()
            }
            (401, Some(_), false) => "does not exist, or is private; HF_TOKEN is not set".to_string(),
            (401, Some(_), true) => "HF_TOKEN is not accepted, or gives no access".to_string(),
            (403, Some(page), _) => {
                format!("the account of HF_TOKEN has no access; terms to accept, if any, are at {page}")
            }
            (401 | 403, None, _) => "access is denied".to_string(),
            (404, Some(page), _) => match code {
                "RevisionNotFound" => format!("no such revision at {page}"),
                "RepoNotFound" => format!("no repository at {page}"),
                _ => format!("no such file at {page}"),
            },
            (404 | 410, _, _) => "no such file".to_string(),
            (429, _, _) => match header_text(answer.response.headers(), "retry-after") {
                Some(seconds) if seconds.parse::<u32>().is_ok() => {
                    format!("too many requests; the server asks to wait {seconds} s")
                }
                _ => "too many requests; try again later".to_string(),
            },
            (500.., _, _) => "the server is in trouble".to_string(),
            _ => "an answer that is not a file".to_string(),
        };
        ModelError::Refused {
            url: shown(&answer.url),
            status,
            problem,
        }
    }
}

/// The part of a file that is still to come.
#[derive(Clone, Debug)]
pub(super) struct Rest {
    /// How many bytes are there.
    pub from: u64,
    /// Which version of the file they are of, where that is known.
    pub etag: Option<String>,
}

/// What a server said in the end.
#[derive(Debug)]
pub(super) struct Answer {
    /// Where it came from.
    pub url: Uri,
    pub linked: Linked,
    response: Response<ureq::Body>,
}

/// What the hub says of a file when it sends us on to it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Linked {
    pub bytes: Option<u64>,
    pub sha256: Option<Checksum>,
}

impl Linked {
    fn read(&mut self, headers: &HeaderMap) {
        let bytes = header_text(headers, "x-linked-size").and_then(|text| text.parse().ok());
        self.bytes = self.bytes.or(bytes);
        let etag = ["x-linked-etag", "etag"]
            .into_iter()
            .find_map(|name| header_text(headers, name)?.trim_matches('"').parse().ok());
        self.sha256 = self.sha256.or(etag);
    }
}

impl Answer {
    pub fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    /// The file's entity tag, if it tells versions apart to the byte.
    pub fn etag(&self) -> Option<String> {
        let etag = header_text(self.response.headers(), "etag")?;
        etag.starts_with('"').then(|| etag.to_string())
    }

    /// The whole file's length, as far as the answer tells.
    pub fn total(&self) -> Option<u64> {
        match self.status() {
            206 => self.range()?.1,
            _ => self.response.body().content_length(),
        }
    }

    /// Of a partial answer: where it begins, and the whole file's length.
    pub fn range(&self) -> Option<(u64, Option<u64>)> {
        let text = header_text(self.response.headers(), "content-range")?;
        let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
        Some((range.split_once('-')?.0.parse().ok()?, total.parse().ok()))
    }

    pub fn into_reader(self) -> ureq::BodyReader<'static> {
        self.response.into_body().into_reader()
    }
}

/// Scheme, host and port: whom a token is for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Origin {
    is_https: bool,
    host: String,
    port: u16,
}

impl Origin {
    fn of(url: &Uri) -> Self {
        let is_https = url.scheme_str() == Some("https");
        Self {
            is_https,
            host: url.host().unwrap_or_default().to_ascii_lowercase(),
            port: url.port_u16().unwrap_or(if is_https { 443 } else { 80 }),
        }
    }

    /// Whether nobody on the way can read what is sent.
    fn is_private(&self) -> bool {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        let is_loopback = host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
        self.is_https || is_loopback || host == "localhost"
    }
}

/// The system's certificate authorities, or Mozilla's where the system has none.
fn roots() -> RootCerts {
    let found = rustls_native_certs::load_native_certs().certs;
    match found.is_empty() {
        true => RootCerts::WebPki,
        false => found
            .iter()
            .map(|der| Certificate::from_der(der).to_owned())
            .collect::<Vec<_>>()
            .into(),
    }
}

fn header_text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Where an answer sends us on to.
fn location<T>(response: &Response<T>) -> Option<&str> {
    match response.status().as_u16() {
        301 | 302 | 303 | 307 | 308 => header_text(response.headers(), "location"),
        _ => None,
    }
}

/// What a `Location` means, seen from the page that said it.
fn join(from: &Uri, location: &str) -> Result<Uri, String> {
    let base = shown(from);
    let scheme = base.split("//").next().unwrap_or_default();
    let path = base.match_indices('/').nth(2).map_or(base.len(), |(at, _)| at);
    let is_scheme_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
    let has_scheme = location
        .split_once(':')
        .is_some_and(|(scheme, _)| !scheme.is_empty() && scheme.chars().all(is_scheme_char));
    let joined = match location {
        absolute if has_scheme => absolute.to_string(),
        host if host.starts_with("//") => format!("{scheme}{host}"),
        root if root.starts_with('/') => format!("{}{root}", &base[..path]),
        beside => format!(
            "{}/{beside}",
            base.rsplit_once('/').map_or("", |(before, _)| before)
        ),
    };
    let url: Uri = joined
        .parse()
        .map_err(|_| "to something that is not a URL".to_string())?;
    check_url(&url).map_err(|problem| format!("to another kind of place: {problem}"))?;
    match (from.scheme_str(), url.scheme_str()) {
        (Some("https"), Some("http")) => Err(format!("to {}, which is not encrypted", shown(&url))),
        _ => Ok(url),
    }
}

fn setting(variable: &'static str, problem: &str) -> ModelError {
    ModelError::Setting {
        variable,
        problem: problem.to_string(),
    }
}

/// Why there was no answer.
pub(super) fn broken(url: &Uri, error: ureq::Error) -> ModelError {
    let (problem, passing) = match error {
        ureq::Error::Io(error) => (error.to_string(), is_passing(error.kind())),
        ureq::Error::Timeout(_) => ("the server is silent".to_string(), true),
        ureq::Error::ConnectionFailed => ("no connection".to_string(), true),
        ureq::Error::HostNotFound => ("no such host".to_string(), false),
        other => (other.to_string(), false),
    };
    ModelError::Connection {
        url: shown(url),
        problem,
        passing,
    }
}

/// Whether that is the network's fault. Others are not: a certificate that is not trusted (`InvalidData`), a host that is not
/// known.
fn is_passing(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::*;
    matches!(
        kind,
        BrokenPipe
            | ConnectionAborted
            | ConnectionRefused
            | ConnectionReset
            | HostUnreachable
            | Interrupted
            | NetworkDown
            | NetworkUnreachable
            | NotConnected
            | TimedOut
            | UnexpectedEof
            | WouldBlock
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_seen_from_where_they_stand() {
        let check = |base: &str, location: &str, want: Result<&str, ()>| {
            let joined = join(&base.parse().unwrap(), location);
            assert_eq!(
                joined.as_ref().map(ToString::to_string).map_err(|_| ()),
                want.map(str::to_string),
                "{base} {location}: {joined:?}"
            );
        };
        check("https://h:1/a/b?q", "https://i/c?d=e", Ok("https://i/c?d=e"));
        check("https://h:1/a/b?q", "//i/c", Ok("https://i/c"));
        check(
            "https://h:1/a/b?q",
            "/c?r=https://x/",
            Ok("https://h:1/c?r=https://x/"),
        );
        check("https://h:1/a/b?q", "c", Ok("https://h:1/a/c"));
        check("https://h", "c", Ok("https://h/c"));
        check("https://h", "/", Ok("https://h/"));
        check("http://h/a", "https://h/b", Ok("https://h/b"));
        check("https://h/a", "http://h/b", Err(()));
        check("https://h/a", "ftp://h/b", Err(()));
        check("https://h/a", "file:///etc/passwd", Err(()));
        check("https://h/a", "data:,x", Err(()));
        check("https://h/a", "https://user:secret@h/b", Err(()));
        check("https://h/a", "/a b", Err(()));
    }

    #[test]
    fn a_token_is_not_sent_where_others_can_read_it() {
        let new = |hub: &str| Client::new(hub, Some("hf_secret"), Patience::default());
        for private in [
            "https://hub.example/",
            "http://127.0.0.1:1",
            "http://[::1]:1",
            "http://localhost",
        ] {
            new(private).unwrap();
        }
        let error = new("http://mirror.example").unwrap_err().to_string();
        assert!(
            error.starts_with("HF_TOKEN: ") && !error.contains("hf_secret"),
            "{error}"
        );
        assert!(Client::new("http://mirror.example", None, Patience::default()).is_ok());
        let wrong = Client::new("https://hub.example", Some("hf\u{7}secret"), Patience::default());
        let error = wrong.unwrap_err().to_string();
        assert!(
            error.starts_with("HF_TOKEN: ") && !error.contains("secret"),
            "{error}"
        );
        for wrong in [
            "",
            "hub.example",
            "ftp://hub.example",
            "https://hub.example?x=y",
            "https://a:b@hub.example",
        ] {
            let error = Client::new(wrong, None, Patience::default())
                .unwrap_err()
                .to_string();
            assert!(error.starts_with("HF_ENDPOINT: "), "{error}");
        }
    }

    #[test]
    fn what_does_not_pass_is_not_tried_again() {
        let passing = |error: io::Error| broken(&"https://h/a".parse().unwrap(), error.into()).is_passing();
        for kind in [
            io::ErrorKind::UnexpectedEof,
            io::ErrorKind::ConnectionReset,
            io::ErrorKind::TimedOut,
        ] {
            assert!(passing(kind.into()), "{kind}");
        }
        assert!(!passing(io::Error::new(
            io::ErrorKind::InvalidData,
            "invalid peer certificate"
        )));
        assert!(!passing(io::Error::other("failed to look up the address")));
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let origin = |url: &str| Origin::of(&url.parse().unwrap());
        assert_eq!(
            origin("https://Hub.example/a"),
            origin("https://hub.example:443/b")
        );
        for other in [
            "http://hub.example/a",
            "https://hub.example:444/a",
            "https://cdn.hub.example/a",
            "https://hub.example.evil/a",
        ] {
            assert_ne!(origin(other), origin("https://hub.example/a"), "{other}");
        }
    }
}
