//! A server process with a tiny model, and requests to it.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use foretoken_model::testing::TinyModel;
use serde_json::{Value, json};

/// A running `foretoken serve`; killed when dropped.
pub struct Server {
    child: Child,
    /// `127.0.0.1:1234`.
    pub address: String,
    log: Arc<Mutex<String>>,
    _dir: tempfile::TempDir,
}

/// What came back.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: ureq::http::HeaderMap,
    pub text: String,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

impl Server {
    /// Starts a server of a tiny model, and waits until it serves.
    pub fn start(args: &[&str]) -> Self {
        Self::of(&TinyModel::llama(), args)
    }

    /// Likewise, of a model that takes a millisecond or two a token.
    pub fn slow(args: &[&str]) -> Self {
        let model = TinyModel {
            layers: 16,
            hidden_size: 256,
            feed_forward_size: 1024,
            heads: 8,
            ..TinyModel::llama()
        };
        Self::of(&model, args)
    }

    fn of(tiny: &TinyModel, args: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let model = dir.path().join("tiny.gguf");
        tiny.write(&model).expect("the model can be written");
        let mut child = Command::new(env!("CARGO_BIN_EXE_foretoken"))
            .args(["serve", "--port", "0", "-t", "2", "-m"])
            .arg(&model)
            .args(args)
            .env("FORETOKEN_CACHE", dir.path().join("cache"))
            .env("NO_COLOR", "1")
            .env_remove("RUST_LOG")
            .env_remove("FORETOKEN_API_KEY")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let log = Arc::new(Mutex::new(String::new()));
        let address = loop {
            let line = lines
                .next()
                .unwrap_or_else(|| panic!("it ended: {}", log.lock().unwrap()));
            let line = line.expect("text");
            log.lock().unwrap().push_str(&line);
            if let Some((_, rest)) = line.split_once("listening on http://") {
                break rest.split(';').next().expect("an address").to_string();
            }
        };
        let more = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let mut log = more.lock().unwrap();
                log.push_str(&line);
                log.push('\n');
            }
        });
        let server = Self {
            child,
            address,
            log,
            _dir: dir,
        };
        server.wait("it serves", |server| server.get("/health").status == 200);
        server
    }

    /// Waits until something holds.
    pub fn wait(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !holds(self) {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "not in a minute: {what}\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn agent() -> ureq::Agent {
        let config = ureq::Agent::config_builder().http_status_as_error(false);
        config
            .timeout_global(Some(Duration::from_secs(120)))
            .build()
            .into()
    }

    pub fn get(&self, path: &str) -> Reply {
        self.get_with(path, &[])
    }

    pub fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Reply {
        let mut request = Self::agent().get(self.url(path));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        reply(request.call())
    }

    pub fn post(&self, path: &str, body: &Value) -> Reply {
        self.post_with(
            path,
            &[("content-type", "application/json")],
            body.to_string().as_bytes(),
        )
    }

    pub fn post_with(&self, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        let mut request = Self::agent().post(self.url(path));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        reply(request.send(body))
    }

    /// The answer to a chat request, which must succeed.
    pub fn chat(&self, fields: Value) -> Value {
        let reply = self.post("/v1/chat/completions", &with_messages(fields));
        assert_eq!(reply.status, 200, "{}", reply.text);
        reply.json()
    }

    /// A request with these fields whose answer does not end before its limit: the tokens that would end it are banned.
    pub fn endless(&self, fields: Value) -> Value {
        let model = self.get("/v1/models").json();
        let vocab_size = model["data"][0]["vocab_size"].as_u64().expect("a number");
        // The tiny model's control tokens are the last three.
        let banned = (vocab_size - 3..vocab_size).map(|id| (id.to_string(), json!(-100)));
        let mut body = with_messages(fields);
        body["logit_bias"] = Value::Object(banned.collect());
        body
    }

    /// The events of a stream, `[DONE]` apart, as they come.
    pub fn stream(&self, path: &str, body: &Value) -> Events {
        let request = Self::agent()
            .post(self.url(path))
            .header("content-type", "application/json");
        let response = request.send(body.to_string().as_bytes()).expect("an answer");
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let reader: Box<dyn Read + Send> = Box::new(response.into_body().into_reader());
        Events(BufReader::new(reader))
    }

    /// The value of a counter without labels.
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").text;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.and_then(|value| value.parse().ok())
            .unwrap_or_else(|| panic!("no {name} in {text}"))
    }

    #[cfg(unix)]
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args(["-s", name, &self.child.id().to_string()])
            .status();
        assert!(status.expect("kill runs").success());
    }

    /// Waits for the end, and returns the exit code.
    pub fn ended(&mut self) -> Option<i32> {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(60) {
            if let Some(status) = self.child.try_wait().expect("it can be waited for") {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("it does not end: {}", self.log());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn reply(outcome: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Reply {
    let mut response = outcome.expect("an answer");
    Reply {
        status: response.status().as_u16(),
        headers: response.headers().clone(),
        text: response.body_mut().read_to_string().expect("a text"),
    }
}

/// A request with a message, and these fields besides.
pub fn with_messages(mut fields: Value) -> Value {
    let default = json!([{"role": "user", "content": "the same again and again, the same again and again"}]);
    fields
        .as_object_mut()
        .expect("fields")
        .entry("messages")
        .or_insert(default);
    fields
}

/// Chunks of a stream.
pub struct Events(BufReader<Box<dyn Read + Send>>);

impl Iterator for Events {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        loop {
            let mut line = String::new();
            assert!(
                self.0.read_line(&mut line).expect("a line") > 0,
                "a stream ends with [DONE]"
            );
            let Some(data) = line.trim_end().strip_prefix("data: ") else {
                continue;
            };
            if data == "[DONE]" {
                return None;
            }
            return Some(serde_json::from_str(data).expect("JSON"));
        }
    }
}
