//! Files that arrive, whatever happens on the way.

use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use foretoken::models::{Client, Event};

use crate::support::{Directory, Reply, Server, client, model, patience, plain, sha256, source};

const LEN: usize = 600_000;

#[test]
fn a_file_of_the_hub_comes_from_where_it_sends_us() {
    let bytes = model(1, LEN);
    let cdn = Server::of(&bytes);
    let (elsewhere, sum) = (format!("{}/blob?signature=1", cdn.url), sha256(&bytes));
    let hub = Server::new(move |request, _| match request.path.as_str() {
        // A repository that has been renamed.
        "/o/old/resolve/main/d/m.gguf" => Reply::redirect("/o/r/resolve/main/d/m.gguf"),
        "/o/r/resolve/main/d/m.gguf" => Reply::redirect(&elsewhere)
            .with("x-linked-size", LEN.to_string())
            .with("x-linked-etag", format!("\"{sum}\"")),
        _ => Reply::new(404, ""),
    });
    let directory = Directory::new();
    let client = client(&hub.url, Some("hf_secret"));
    let pulled = directory.get(&client, &source("hf:o/old/d/m.gguf"));
    assert_eq!(std::fs::read(directory.path("m.gguf")).unwrap(), bytes);
    assert_eq!(directory.files(), ["m.gguf"]);
    assert_eq!(
        (pulled.bytes, pulled.was_there, pulled.is_checked),
        (LEN as u64, false, true)
    );
    assert_eq!(pulled.sha256.unwrap().to_string(), sha256(&bytes));

    // The token is for the hub alone.
    assert_eq!(hub.requests().len(), 2);
    for request in hub.requests() {
        assert_eq!(request.header("authorization"), Some("Bearer hf_secret"));
    }
    assert_eq!(cdn.requests().len(), 1);
    assert_eq!(cdn.requests()[0].header("authorization"), None);

    // Once more: it is compared, not fetched.
    let again = directory.get(&client, &source("hf:o/r/d/m.gguf"));
    assert!(again.was_there && again.is_checked);
}

#[test]
fn a_mirror_takes_the_place_of_the_hub() {
    let bytes = model(2, LEN);
    let mirror = Server::of(&bytes);
    let directory = Directory::new();
    let client = client(&format!("{}/hf/mirror/", mirror.url), Some("hf_secret"));
    directory.get(&client, &source("hf:o/r@v1/m.gguf"));
    let requests = mirror.requests();
    assert_eq!(requests[0].path, "/hf/mirror/o/r/resolve/v1/m.gguf");
    assert_eq!(requests[0].header("authorization"), Some("Bearer hf_secret"));
}

#[test]
fn a_url_elsewhere_gets_no_token() {
    let bytes = model(3, LEN);
    let (hub, other) = (Server::of(&bytes), Server::of(&bytes));
    let client = client(&hub.url, Some("hf_secret"));
    let directory = Directory::new();
    let pulled = directory.get(&client, &source(&format!("{}/a/m.gguf?key=1", other.url)));
    assert_eq!(other.requests()[0].header("authorization"), None);
    assert_eq!(other.requests()[0].path, "/a/m.gguf?key=1");
    // Nobody said which checksum it should have.
    assert!(!pulled.is_checked && pulled.sha256.unwrap().to_string() == sha256(&bytes));
    directory.get(&client, &source(&format!("{}/b.gguf", hub.url)));
    assert_eq!(
        hub.requests()[0].header("authorization"),
        Some("Bearer hf_secret")
    );
}

#[test]
fn a_cut_connection_goes_on_where_it_ended() {
    let bytes = model(4, LEN);
    let served = bytes.clone();
    let server = Server::new(move |request, before| {
        let reply = Reply::file(request, &served, "\"v1\"");
        match before {
            0 => reply.cut(100_000),
            1 => Reply::new(503, ""),
            2 => reply.silent(50_000, Duration::from_secs(8)),
            3 => reply.cut(0),
            _ => reply,
        }
    });
    let directory = Directory::new();
    let (pulled, seen) = directory.pull(&plain(), &source(&format!("{}/m.gguf", server.url)));
    pulled.unwrap();
    assert_eq!(std::fs::read(directory.path("m.gguf")).unwrap(), bytes);
    assert_eq!(
        seen.iter().filter(|name| **name == "again").count(),
        4,
        "{seen:?}"
    );
    assert!(!seen.contains(&"anew"), "{seen:?}");
    let range = |from: usize| Some(format!("bytes={from}-"));
    assert_eq!(
        server.ranges(),
        [
            None,
            range(100_000),
            range(100_000),
            range(150_000),
            range(150_000)
        ]
    );
    for request in &server.requests()[1..] {
        assert_eq!(request.header("if-range"), Some("\"v1\""));
    }
}

/// Leaves the first `cut` bytes of a file of this etag, as a process does that is ended.
fn interrupted(directory: &Directory, url: &str) {
    let impatient = Client::new("https://hub.invalid", None, patience(0)).unwrap();
    let error = directory.refused(&impatient, &source(url));
    assert!(error.starts_with(url), "{error}");
    assert_eq!(directory.files(), ["m.gguf.part", "m.gguf.part.json"]);
}

#[test]
fn a_pull_goes_on_where_an_earlier_one_ended() {
    let bytes = model(5, LEN);
    let served = bytes.clone();
    let server = Server::new(move |request, before| {
        let reply = Reply::file(request, &served, "\"v1\"");
        if before == 0 { reply.cut(400_000) } else { reply }
    });
    let directory = Directory::new();
    let url = format!("{}/m.gguf", server.url);
    interrupted(&directory, &url);
    let (_, unfinished) = directory.models.list().unwrap();
    assert_eq!((unfinished[0].name.as_str(), unfinished[0].bytes), ("m", 400_000));
    directory.get(&plain(), &source(&url));
    assert_eq!(server.ranges(), [None, Some("bytes=400000-".to_string())]);
    assert_eq!(std::fs::read(directory.path("m.gguf")).unwrap(), bytes);
    assert_eq!(directory.files(), ["m.gguf"]);
}

#[test]
fn nothing_is_glued_to_half_of_another_version() {
    let (old, new) = (model(6, LEN), model(7, LEN - 1000));
    type Second = fn(&crate::support::Request, &[u8]) -> Reply;
    let seconds: [(&str, Second); 5] = [
        ("has changed, says so", |request, new| {
            Reply::file(request, new, "\"v2\"")
        }),
        ("knows no ranges", |_, new| {
            Reply::new(200, new).with("etag", "\"v2\"")
        }),
        ("looks at no If-Range", |request, new| {
            match request.header("range") {
                Some(_) => Reply::new(206, &new[400_000..])
                    .with(
                        "content-range",
                        format!("bytes 400000-{}/{}", new.len() - 1, new.len()),
                    )
                    .with("etag", "\"v2\""),
                None => Reply::new(200, new).with("etag", "\"v2\""),
            }
        }),
        ("sends another range", |request, new| {
            match request.header("range") {
                Some(_) => Reply::new(206, &new[100..])
                    .with(
                        "content-range",
                        format!("bytes 100-{}/{}", new.len() - 1, new.len()),
                    )
                    .with("etag", "\"v1\""),
                None => Reply::new(200, new).with("etag", "\"v2\""),
            }
        }),
        ("has become shorter", |request, new| {
            match request.header("range") {
                Some(_) => Reply::new(416, ""),
                None => Reply::new(200, new).with("etag", "\"v2\""),
            }
        }),
    ];
    for (what, second) in seconds {
        let (first, rest) = (old.clone(), new.clone());
        let server = Server::new(move |request, before| match before {
            0 => Reply::file(request, &first, "\"v1\"").cut(400_000),
            _ => second(request, &rest),
        });
        let directory = Directory::new();
        let url = format!("{}/m.gguf", server.url);
        interrupted(&directory, &url);
        let (pulled, seen) = directory.pull(&plain(), &source(&url));
        pulled.expect(what);
        assert!(seen.contains(&"anew"), "{what}: {seen:?}");
        assert!(std::fs::read(directory.path("m.gguf")).unwrap() == new, "{what}");
        assert_eq!(directory.files(), ["m.gguf"], "{what}");
    }
}

#[test]
fn versions_that_cannot_be_told_apart_begin_anew() {
    let bytes = model(8, LEN);
    // A weak entity tag may be the same for other bytes.
    for etag in ["W/\"v1\"", ""] {
        let served = bytes.clone();
        let server = Server::new(move |_, before| {
            let reply = Reply::new(200, served.clone()).with("etag", etag);
            if before == 0 { reply.cut(400_000) } else { reply }
        });
        let directory = Directory::new();
        directory.get(&plain(), &source(&format!("{}/m.gguf", server.url)));
        assert_eq!(server.ranges(), [None, None]);
        assert!(std::fs::read(directory.path("m.gguf")).unwrap() == bytes);
    }
}

#[test]
fn a_known_checksum_is_enough_to_go_on() {
    let bytes = model(9, LEN);
    let served = bytes.clone();
    let server = Server::new(move |request, before| {
        let reply = Reply::file(request, &served, "W/\"weak\"");
        if before == 0 { reply.cut(400_000) } else { reply }
    });
    let directory = Directory::new();
    let source = source(&format!("{}/m.gguf", server.url));
    let pulled = directory.get(
        &plain(),
        &source.expecting(sha256(&bytes).parse().unwrap()).unwrap(),
    );
    assert!(pulled.is_checked);
    assert_eq!(server.ranges(), [None, Some("bytes=400000-".to_string())]);
}

#[test]
fn a_file_that_was_whole_but_not_yet_named_is_only_checked() {
    let bytes = model(10, LEN);
    let server = Server::of(&bytes);
    let directory = Directory::new();
    let url = format!("{}/m.gguf", server.url);
    std::fs::create_dir_all(directory.models.path()).unwrap();
    std::fs::write(directory.path("m.gguf.part"), &bytes).unwrap();
    let about = format!(r#"{{"url":"{url}","etag":"\"v1\"","bytes":{LEN},"sha256":null}}"#);
    std::fs::write(directory.path("m.gguf.part.json"), about).unwrap();
    directory.get(&plain(), &source(&url));
    assert_eq!(
        (server.requests().len(), directory.files()),
        (0, vec!["m.gguf".to_string()])
    );
}

#[test]
fn leftovers_of_unknown_origin_are_not_used() {
    let bytes = model(11, LEN);
    let server = Server::of(&bytes);
    let url = format!("{}/m.gguf", server.url);
    let other = r#"{"url":"https://other.example/m.gguf","etag":"\"v1\"","bytes":600000,"sha256":null}"#;
    for about in ["", "{", other] {
        let directory = Directory::new();
        std::fs::create_dir_all(directory.models.path()).unwrap();
        std::fs::write(directory.path("m.gguf.part"), &model(12, LEN)[..1000]).unwrap();
        std::fs::write(directory.path("m.gguf.part.json"), about).unwrap();
        directory.get(&plain(), &source(&url));
        assert!(
            std::fs::read(directory.path("m.gguf")).unwrap() == bytes,
            "{about}"
        );
    }
    assert_eq!(server.ranges(), [None, None, None]);
}

#[test]
fn of_two_pulls_at_once_one_waits_for_the_other() {
    let bytes = model(13, LEN);
    let served = bytes.clone();
    let (waits, waiting) = mpsc::channel();
    let waiting = Mutex::new(waiting);
    let server = Server::new(move |request, before| {
        if before == 0 {
            // The second one has come, too.
            waiting
                .lock()
                .unwrap()
                .recv_timeout(Duration::from_secs(20))
                .unwrap();
        }
        Reply::file(request, &served, "\"v1\"")
    });
    let directory = Arc::new(Directory::new());
    let source = source(&format!("{}/m.gguf", server.url));
    let source = source.expecting(sha256(&bytes).parse().unwrap()).unwrap();
    // The first request is answered when one of them waits, which may take longer than the others' patience.
    let patient = foretoken::models::Patience {
        silence: Duration::from_secs(20),
        ..patience(0)
    };
    let pulls: Vec<_> = (0..2)
        .map(|_| {
            let (directory, source, waits) = (directory.clone(), source.clone(), waits.clone());
            std::thread::spawn(move || {
                let client = Client::new("https://hub.invalid", None, patient).unwrap();
                let pulled = directory.models.pull(&client, &source, &mut |event| {
                    if matches!(event, Event::Waiting) {
                        waits.send(()).unwrap();
                    }
                });
                pulled.unwrap()
            })
        })
        .collect();
    let mut was_there: Vec<bool> = pulls
        .into_iter()
        .map(|pull| pull.join().unwrap().was_there)
        .collect();
    was_there.sort();
    assert_eq!(was_there, [false, true]);
    assert_eq!(server.requests().len(), 1);
    assert!(std::fs::read(directory.path("m.gguf")).unwrap() == bytes);
    assert_eq!(directory.files(), ["m.gguf"]);
}
