//! Queues, clients that go away, and the end.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::json;

use crate::support::{Server, with_messages};

/// A stream of some seconds.
fn long(server: &Server) -> serde_json::Value {
    server.endless(json!({"max_tokens": 4000, "seed": 1, "stream": true, "speculation": false}))
}

#[test]
fn a_full_queue_says_when_to_come_again() {
    let server = Server::slow(&["--parallel", "1", "--queue", "1"]);
    let mut first = server.stream("/v1/chat/completions", &long(&server));
    assert!(first.next().is_some() && first.next().is_some());
    let second = server.stream("/v1/chat/completions", &long(&server));
    let refused = server.post("/v1/chat/completions", &with_messages(json!({"max_tokens": 1})));
    assert_eq!(refused.status, 429, "{}", refused.text);
    assert!(refused.header("retry-after").and_then(|s| s.parse::<u64>().ok()) > Some(0));
    // Choices that do not all have a place have none.
    drop(second);
    server.wait("the queue has room", |server| {
        server.metric("foretoken:waiting") == 0.0
    });
    let two = server.post(
        "/v1/chat/completions",
        &with_messages(json!({"max_tokens": 1, "n": 2})),
    );
    assert_eq!(two.status, 429, "{}", two.text);
    // Whoever goes away leaves the place.
    drop(first);
    server.wait("the place is free", |server| {
        server.metric("foretoken:running") == 0.0
    });
    server.chat(json!({"max_tokens": 1}));
}

#[test]
fn nothing_is_computed_for_clients_that_are_gone() {
    let server = Server::slow(&["--prefixes", "0", "--parallel", "2"]);
    let free = server.metric("foretoken:kv_pages_free");
    let mut stream = server.stream("/v1/chat/completions", &long(&server));
    assert!(stream.next().is_some() && stream.next().is_some());
    assert!(server.metric("foretoken:kv_pages_free") < free);
    drop(stream);
    // One that waits for a whole answer, and one that sends half a request.
    let body = server.endless(json!({"max_tokens": 4000, "seed": 2})).to_string();
    let mut whole = TcpStream::connect(&server.address).unwrap();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    write!(whole, "{head}{body}").unwrap();
    server.wait("it is generated", |server| {
        server.metric("foretoken:running") > 0.0
    });
    drop(whole);
    let mut half = TcpStream::connect(&server.address).unwrap();
    half.write_all(&head.as_bytes()[..60]).unwrap();
    drop(half);
    server.wait("both are forgotten", |server| {
        server.metric("foretoken:running") == 0.0
    });
    server.wait("pages come back", |server| {
        server.metric("foretoken:kv_pages_free") == free
    });
    assert!(server.metric("foretoken:tokens_total") < 8000.0);
}

#[test]
fn a_reader_that_is_slow_holds_up_nobody() {
    let server = Server::slow(&[]);
    let body = long(&server).to_string();
    let mut slow = TcpStream::connect(&server.address).unwrap();
    write!(slow, "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
    server.wait("it is generated", |server| {
        server.metric("foretoken:running") > 0.0
    });
    server.chat(json!({"max_tokens": 8}));
    // It finds the whole answer when it comes to read.
    server.wait("it is done", |server| server.metric("foretoken:running") == 0.0);
    slow.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut text = Vec::new();
    let mut buffer = [0; 65536];
    while !text.windows(6).any(|window| window == b"[DONE]") {
        let n = slow.read(&mut buffer).expect("there is more");
        assert!(n > 0, "it broke off");
        text.extend_from_slice(&buffer[..n]);
    }
}

#[test]
fn a_request_that_takes_too_long_is_ended() {
    let server = Server::slow(&["--timeout", "1", "-c", "4096"]);
    // Many choices of a whole context are not done in a second.
    let many = server.endless(json!({"max_tokens": 4000, "n": 16, "seed": 1}));
    let reply = server.post("/v1/chat/completions", &many);
    assert_eq!(reply.status, 504, "{}", reply.text);
    assert_eq!(reply.json()["error"]["code"], "timeout");
    let mut streamed = many.clone();
    streamed["stream"] = true.into();
    let last = server.stream("/v1/chat/completions", &streamed).last().unwrap();
    assert_eq!(last["error"]["code"], "timeout");
    server.wait("nothing goes on", |server| {
        server.metric("foretoken:running") == 0.0
    });
}

#[cfg(unix)]
#[test]
fn a_signal_ends_it_when_all_is_said_and_a_second_at_once() {
    let mut server = Server::slow(&[]);
    let short = server.endless(json!({"max_tokens": 600, "seed": 1, "stream": true, "speculation": false}));
    let mut stream = server.stream("/v1/chat/completions", &short);
    assert!(stream.next().is_some());
    server.signal("TERM");
    let last = stream.last().expect("it goes on");
    assert_eq!(last["choices"][0]["finish_reason"], "length");
    assert_eq!(server.ended(), Some(0), "{}", server.log());

    let mut server = Server::slow(&["--timeout", "600"]);
    let mut body = long(&server);
    body["n"] = 16.into();
    let mut stream = server.stream("/v1/chat/completions", &body);
    assert!(stream.next().is_some());
    server.signal("INT");
    server.wait("it has heard", |server| server.log().contains("shutting down"));
    server.signal("INT");
    assert_eq!(server.ended(), Some(130));
}

#[test]
fn a_model_that_cannot_be_loaded_ends_it() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_foretoken"))
        .args(["serve", "--port", "0", "-m", "/nowhere/model.gguf"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("error: /nowhere/model.gguf"), "{text}");
}
