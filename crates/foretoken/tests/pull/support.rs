//! A server that answers as it is told, and a directory to pull into.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use foretoken::models::{Client, Event, ModelError, Models, Patience, Pulled, Source};
use sha2::{Digest, Sha256};

/// A request: its path and its headers, names in lower case.
#[derive(Clone, Debug)]
pub struct Request {
    pub path: String,
    headers: Vec<(String, String)>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// An answer, byte for byte.
#[derive(Clone, Debug)]
pub struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    /// The connection ends after so many bytes of the body.
    cut: Option<usize>,
    /// ... or nothing more comes on it for this long.
    silence: Duration,
    chunked: bool,
}

impl Reply {
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: body.into(),
            cut: None,
            silence: Duration::ZERO,
            chunked: false,
        }
    }

    pub fn redirect(to: impl Into<String>) -> Self {
        Self::new(302, "elsewhere").with("location", to)
    }

    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_string(), value.into()));
        self
    }

    pub fn cut(mut self, after: usize) -> Self {
        self.cut = Some(after);
        self
    }

    pub fn silent(mut self, after: usize, silence: Duration) -> Self {
        (self.cut, self.silence) = (Some(after), silence);
        self
    }

    /// Without a length.
    pub fn chunked(mut self) -> Self {
        self.chunked = true;
        self
    }

    /// As a server of files answers: a range where one is asked for, if the file is still the same.
    pub fn file(request: &Request, bytes: &[u8], etag: &str) -> Self {
        let same = request.header("if-range").is_none_or(|asked| asked == etag);
        let range = request.header("range").filter(|_| same);
        let from = range.map(|range| {
            let from = range.strip_prefix("bytes=").unwrap().strip_suffix('-').unwrap();
            from.parse::<usize>().unwrap()
        });
        let reply = match from {
            None => Self::new(200, bytes),
            Some(from) if from >= bytes.len() => {
                Self::new(416, "").with("content-range", format!("bytes */{}", bytes.len()))
            }
            Some(from) => Self::new(206, &bytes[from..]).with(
                "content-range",
                format!("bytes {from}-{}/{}", bytes.len() - 1, bytes.len()),
            ),
        };
        reply.with("etag", etag)
    }

    fn send(&self, stream: &mut TcpStream) -> std::io::Result<()> {
        let mut head = format!("HTTP/1.1 {} Reason\r\nconnection: close\r\n", self.status);
        let has_length = self.headers.iter().any(|(name, _)| name == "content-length");
        if self.chunked {
            head += "transfer-encoding: chunked\r\n";
        } else if !has_length {
            head += &format!("content-length: {}\r\n", self.body.len());
        }
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        stream.write_all(format!("{head}\r\n").as_bytes())?;
        let body = &self.body[..self.cut.unwrap_or(self.body.len())];
        if self.chunked {
            for chunk in body.chunks(1000) {
                write!(stream, "{:x}\r\n", chunk.len())?;
                stream.write_all(chunk)?;
                stream.write_all(b"\r\n")?;
            }
            stream.write_all(b"0\r\n\r\n")?;
        } else {
            stream.write_all(body)?;
        }
        std::thread::sleep(self.silence);
        stream.shutdown(Shutdown::Write)
    }
}

/// Listens until the test's process ends.
pub struct Server {
    pub url: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// `answer` is told how many requests came before.
    pub fn new(answer: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (log, answer) = (requests.clone(), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (log, answer) = (log.clone(), answer.clone());
                std::thread::spawn(move || {
                    let mut stream = stream?;
                    let request = read(&stream)?;
                    let before = {
                        let mut log: std::sync::MutexGuard<'_, Vec<Request>> = log.lock().unwrap();
                        log.push(request.clone());
                        log.len() - 1
                    };
                    answer(&request, before).send(&mut stream)
                });
            }
        });
        Self { url, requests }
    }

    /// A server of one file that never changes.
    pub fn of(bytes: &[u8]) -> Self {
        let bytes = bytes.to_vec();
        Self::new(move |request, _| Reply::file(request, &bytes, "\"v1\""))
    }

    /// What it was asked.
    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    /// The ranges it was asked for.
    pub fn ranges(&self) -> Vec<Option<String>> {
        let requests = self.requests();
        let ranges = requests.iter().map(|request| request.header("range"));
        ranges.map(|range| range.map(str::to_string)).collect()
    }
}

fn read(stream: &TcpStream) -> std::io::Result<Request> {
    let mut lines = BufReader::new(stream).lines();
    let mut next = || lines.next().unwrap_or(Ok(String::new()));
    let path = next()?.split(' ').nth(1).unwrap_or_default().to_string();
    let mut headers = Vec::new();
    loop {
        let line = next()?;
        let Some((name, value)) = line.split_once(": ") else {
            return Ok(Request { path, headers });
        };
        headers.push((name.to_ascii_lowercase(), value.to_string()));
    }
}

/// A model directory of a test's own.
pub struct Directory {
    directory: tempfile::TempDir,
    pub models: Models,
}

impl Directory {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let models = Models::new(directory.path().join("models"));
        Self { directory, models }
    }

    pub fn path(&self, file: &str) -> PathBuf {
        self.models.path().join(file)
    }

    /// The names of all files that are there.
    pub fn files(&self) -> Vec<String> {
        let _ = &self.directory;
        let Ok(files) = std::fs::read_dir(self.models.path()) else {
            return Vec::new();
        };
        let mut names: Vec<String> = files
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// Pulls with a client of this hub, and returns what happened on the way too.
    pub fn pull(&self, client: &Client, source: &Source) -> (Result<Pulled, ModelError>, Vec<&'static str>) {
        let mut seen = Vec::new();
        let pulled = self.models.pull(client, source, &mut |event| {
            let name = match event {
                Event::Waiting => "waiting",
                Event::Anew => "anew",
                Event::Have { .. } => "have",
                Event::Again { .. } => "again",
                Event::Checking { .. } => "checking",
            };
            if name == "again" || seen.last() != Some(&name) {
                seen.push(name);
            }
        });
        (pulled, seen)
    }

    pub fn get(&self, client: &Client, source: &Source) -> Pulled {
        self.pull(client, source).0.unwrap()
    }

    /// Pulls what cannot be pulled, and returns why.
    pub fn refused(&self, client: &Client, source: &Source) -> String {
        let error = self.pull(client, source).0.unwrap_err().to_string();
        assert_eq!(error.lines().count(), 1, "{error}");
        error
    }
}

/// With a hub there, and little patience.
pub fn client(hub: &str, token: Option<&str>) -> Client {
    Client::new(hub, token, patience(3)).unwrap()
}

pub fn patience(retries: u32) -> Patience {
    Patience {
        retries,
        pause: Duration::from_millis(1),
        silence: Duration::from_secs(2),
    }
}

/// For URLs that are not of the hub.
pub fn plain() -> Client {
    client("https://hub.invalid", None)
}

pub fn source(text: &str) -> Source {
    text.parse().unwrap()
}

/// Bytes that begin like a model.
pub fn model(seed: u8, len: usize) -> Vec<u8> {
    let noise = (0..len).map(|at| (at.wrapping_mul(at + 7) >> 3) as u8 ^ seed);
    b"GGUF".iter().copied().chain(noise).take(len).collect()
}

pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
