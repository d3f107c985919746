//! A server process, for whatever talks to it.
use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A running `foretoken serve`; killed when dropped.
pub struct Server {
    child: Child,
    /// `127.0.0.1:1234`.
    address: String,
    log: Arc<Mutex<String>>,
}

impl Server {
    /// Starts it on a free port, and waits until it serves.
    pub fn start(foretoken: &Path, args: &[&str]) -> Result<Self> {
        let mut command = Command::new(foretoken);
        command.args(["serve", "--port", "0"]).args(args);
        command
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot run {}", foretoken.display()))?;
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let log = Arc::new(Mutex::new(String::new()));
        let address = loop {
            let Some(Ok(line)) = lines.next() else {
                bail!(
                    "the server ended: {}",
                    log.lock().unwrap_or_else(PoisonError::into_inner)
                );
            };
            add(&log, &line);
            if let Some((_, rest)) = line.split_once("listening on http://") {
                break rest.split(';').next().unwrap_or_default().to_string();
            }
        };
        let more = Arc::clone(&log);
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| add(&more, &line)));
        let server = Self { child, address, log };
        let start = Instant::now();
        while !server
            .get("/health")
            .is_ok_and(|text| text.starts_with("HTTP/1.1 200"))
        {
            if start.elapsed() > Duration::from_secs(120) {
                bail!("the server does not come up: {}", server.log());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn log(&self) -> String {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The whole answer, its head too.
    fn get(&self, path: &str) -> Result<String> {
        let mut stream = TcpStream::connect(&self.address)?;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        )?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    }

    /// Asks it to end, and returns its log.
    pub fn stop(mut self) -> Result<String> {
        crate::command::run(Command::new("kill").args(["-s", "TERM", &self.pid().to_string()]))?;
        let status = self.child.wait()?;
        // The log's last lines come through a thread of their own.
        std::thread::sleep(Duration::from_millis(100));
        if !status.success() {
            bail!("the server failed ({status}): {}", self.log());
        }
        Ok(self.log())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn add(log: &Mutex<String>, line: &str) {
    let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
    log.push_str(line);
    log.push('\n');
}
