//! Files that do not arrive: each time one line says why, and nothing wrong stays behind.

use foretoken::models::KNOWN;

use crate::support::{Directory, Reply, Request, Server, client, model, plain, sha256, source};

const LEN: usize = 50_000;

/// Pulls from a server of these answers; returns what was said, how often it was asked, and which files are there.
fn pull(answer: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static) -> (String, usize, Vec<String>) {
    let server = Server::new(answer);
    let directory = Directory::new();
    let url = format!("{}/m.gguf", server.url);
    let error = directory.refused(&plain(), &source(&url));
    assert!(error.starts_with(&server.url), "{error}");
    (error, server.requests().len(), directory.files())
}

#[test]
fn a_server_that_says_no_is_asked_once() {
    for (status, mentions) in [
        (400, "not a file (HTTP status 400)"),
        (401, "denied (HTTP status 401)"),
        (403, "denied (HTTP status 403)"),
        (404, "no such file (HTTP status 404)"),
        (416, "not a file (HTTP status 416)"),
        (204, "not a file (HTTP status 204)"),
        (304, "not a file (HTTP status 304)"),
    ] {
        let (error, asked, files) = pull(move |_, _| Reply::new(status, ""));
        assert!(error.contains(mentions), "{error}");
        assert_eq!((asked, files.len()), (1, 0), "{error}");
    }
    let (error, asked, _) = pull(|_, _| Reply::new(429, "").with("retry-after", "30"));
    assert!(error.contains("wait 30 s") && asked == 1, "{error}");
}

#[test]
fn the_hub_says_why() {
    let check = |token: Option<&str>, status: u16, code: &'static str, mentions: &str| {
        let hub = Server::new(move |_, _| Reply::new(status, "").with("x-error-code", code));
        let directory = Directory::new();
        let error = directory.refused(&client(&hub.url, token), &source("hf:o/r/m.gguf"));
        assert!(
            error.contains(mentions) && error.contains("/o/r/resolve/main/m.gguf"),
            "{error}"
        );
        assert_eq!((hub.requests().len(), directory.files().len()), (1, 0), "{error}");
        assert!(!error.contains("hf_secret"), "{error}");
        hub.url
    };
    check(None, 401, "GatedRepo", "set HF_TOKEN");
    check(None, 401, "RepoNotFound", "HF_TOKEN is not set");
    check(Some("hf_secret"), 401, "", "HF_TOKEN is not accepted");
    check(Some("hf_secret"), 403, "GatedRepo", "/o/r");
    check(None, 404, "RepoNotFound", "no repository at");
    check(None, 404, "RevisionNotFound", "no such revision at");
    check(None, 404, "EntryNotFound", "no such file at");
}

#[test]
fn a_server_in_trouble_is_asked_again_a_few_times() {
    let (error, asked, files) = pull(|_, _| Reply::new(502, ""));
    assert!(error.contains("in trouble (HTTP status 502)"), "{error}");
    assert_eq!((asked, files.len()), (4, 0));

    // Nobody listens.
    let closed = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let directory = Directory::new();
    let (pulled, seen) = directory.pull(&plain(), &source(&format!("http://{closed}/m.gguf")));
    let error = pulled.unwrap_err().to_string();
    assert!(
        error.contains("refused") && error.contains(&closed.to_string()),
        "{error}"
    );
    assert_eq!((seen, directory.files().len()), (vec!["again"; 3], 0));
}

#[test]
fn redirects_end_somewhere() {
    let (error, asked, _) = pull(|_, _| Reply::redirect("/m.gguf"));
    assert!(error.contains("redirected more than 10 times"), "{error}");
    assert_eq!(asked, 11);
    let (error, asked, _) = pull(|_, _| Reply::redirect("ftp://h/m.gguf"));
    assert!(
        error.contains("redirected to another kind of place") && asked == 1,
        "{error}"
    );
    let (error, ..) = pull(|_, _| Reply::new(302, ""));
    assert!(error.contains("not a file (HTTP status 302)"), "{error}");
}

#[test]
fn a_body_that_stays_short_is_no_file() {
    let (error, asked, files) = pull(|_, _| {
        Reply::new(200, model(1, LEN))
            .with("etag", "W/\"weak\"")
            .cut(LEN / 2)
    });
    assert!(
        error.contains("isconnect") || error.contains("ended after"),
        "{error}"
    );
    assert_eq!(asked, 4);
    assert_eq!(files, ["m.gguf.part", "m.gguf.part.json"], "for the next time");
}

#[test]
fn lengths_must_agree() {
    let linked = |len: usize| {
        Server::new(move |_, _| Reply::new(200, model(2, LEN)).with("x-linked-size", len.to_string()))
    };
    let pull = |hub: &Server, text: &str| {
        let directory = Directory::new();
        let error = directory.refused(&client(&hub.url, None), &source(text));
        assert_eq!((directory.files().len(), hub.requests().len()), (0, 1), "{error}");
        error
    };
    for wrong in [LEN - 1, LEN + 1] {
        let error = pull(&linked(wrong), "hf:o/r/m.gguf");
        assert!(
            error.contains(&format!("{LEN} bytes instead of {wrong}")),
            "{error}"
        );
    }
    // A known model has a known length, whatever the hub says.
    let error = pull(&linked(LEN), KNOWN[0].name);
    assert!(
        error.contains(&format!("{LEN} bytes instead of {}", KNOWN[0].bytes)),
        "{error}"
    );
    let error = pull(&Server::of(&model(2, LEN)), KNOWN[0].name);
    assert!(
        error.contains(&format!("{LEN} bytes instead of {}", KNOWN[0].bytes)),
        "{error}"
    );

    // A body without an announced length that goes on for too long.
    let hub = Server::new(|_, _| {
        let reply = Reply::new(200, model(2, LEN)).chunked();
        reply.with("x-linked-size", (LEN - 1).to_string())
    });
    let error = pull(&hub, "hf:o/r/m.gguf");
    assert!(
        error.contains(&format!("more than the {} bytes", LEN - 1)),
        "{error}"
    );
    // One whose end nobody knows.
    let hub = Server::new(|_, _| Reply::new(200, model(2, LEN)).chunked());
    let error = pull(&hub, "hf:o/r/m.gguf");
    assert!(
        error.contains("the server does not say how long the file is"),
        "{error}"
    );
}

#[test]
fn a_body_without_a_length_has_the_one_that_the_hub_announced() {
    let bytes = model(3, LEN);
    let served = bytes.clone();
    let hub = Server::new(move |_, _| {
        let reply = Reply::new(200, served.clone()).chunked();
        reply.with("x-linked-size", LEN.to_string())
    });
    let directory = Directory::new();
    directory.get(&client(&hub.url, None), &source("hf:o/r/m.gguf"));
    assert!(std::fs::read(directory.path("m.gguf")).unwrap() == bytes);
}

#[test]
fn a_wrong_checksum_leaves_nothing() {
    let bytes = model(4, LEN);
    let (wanted, found) = (sha256(b"another file"), sha256(&bytes));
    // Of a URL, as told.
    let server = Server::of(&bytes);
    let directory = Directory::new();
    let told = source(&format!("{}/m.gguf", server.url))
        .expecting(wanted.parse().unwrap())
        .unwrap();
    let error = directory.refused(&plain(), &told);
    assert!(error.contains(&wanted) && error.contains(&found), "{error}");
    assert_eq!((directory.files().len(), server.requests().len()), (0, 1));
    // Of the hub, as it announced.
    let (announced, served) = (wanted.clone(), bytes.clone());
    let hub = Server::new(move |request, _| Reply::file(request, &served, &format!("\"{announced}\"")));
    let error = directory.refused(&client(&hub.url, None), &source("hf:o/r/m.gguf"));
    assert!(error.contains(&wanted) && error.contains(&found), "{error}");
    assert_eq!(directory.files().len(), 0);
    // The hub has another file than the one that is asked for: found out before it is fetched.
    let (announced, served) = (found.clone(), bytes.clone());
    let hub = Server::new(move |_, _| {
        let reply = Reply::new(200, served.clone()).with("x-linked-etag", format!("\"{announced}\""));
        reply.cut(0)
    });
    let told = source("hf:o/r/m.gguf")
        .expecting(wanted.parse().unwrap())
        .unwrap();
    let error = directory.refused(&client(&hub.url, None), &told);
    assert!(error.contains(&wanted) && error.contains(&found), "{error}");
}

#[test]
fn what_is_no_model_is_not_fetched() {
    let page = "<!doctype html>\n<title>Please sign in</title>";
    let (error, asked, files) = pull(move |_, _| Reply::new(200, page));
    assert!(
        error.contains("not a GGUF file: it begins with \"<!doctype html>\\n<title>P\""),
        "{error}"
    );
    assert_eq!((asked, files.len()), (1, 0));
    let (error, ..) = pull(|_, _| Reply::new(200, "GG"));
    assert!(error.contains("begins with \"GG\""), "{error}");

    // A network that asks to sign in first costs nothing that was there.
    let bytes = model(5, LEN);
    let served = bytes.clone();
    let server = Server::new(move |request, before| match before {
        0 => Reply::file(request, &served, "\"v1\"").cut(LEN / 2),
        1 => Reply::new(200, page),
        _ => Reply::file(request, &served, "\"v1\""),
    });
    let directory = Directory::new();
    let url = format!("{}/m.gguf", server.url);
    let error = directory.refused(&plain(), &source(&url));
    assert!(error.contains("not a GGUF file"), "{error}");
    directory.get(&plain(), &source(&url));
    let rest = format!("bytes={}-", LEN / 2);
    assert_eq!(server.ranges(), [None, Some(rest.clone()), Some(rest)]);
    assert!(std::fs::read(directory.path("m.gguf")).unwrap() == bytes);
}

#[test]
fn a_file_that_is_there_is_not_replaced() {
    let (ours, theirs) = (model(6, LEN), model(7, LEN));
    let served = theirs.clone();
    let sum = sha256(&theirs);
    let hub = Server::new(move |request, _| Reply::file(request, &served, &format!("\"{sum}\"")));
    let directory = Directory::new();
    std::fs::create_dir_all(directory.models.path()).unwrap();
    for there in [&ours, &ours[..1000]] {
        std::fs::write(directory.path("m.gguf"), there).unwrap();
        let error = directory.refused(&client(&hub.url, None), &source("hf:o/r/m.gguf"));
        assert!(
            error.contains("m.gguf is another file") && error.contains("--name"),
            "{error}"
        );
        assert!(std::fs::read(directory.path("m.gguf")).unwrap() == *there);
    }
    let other = source("hf:o/r/m.gguf").named("n").unwrap();
    directory.get(&client(&hub.url, None), &other);
    assert_eq!(directory.files(), ["m.gguf", "n.gguf"]);
}

#[test]
fn a_disk_that_is_too_small_is_said_before() {
    let (error, asked, files) = {
        let server = Server::new(|_, _| {
            let reply = Reply::new(200, model(8, LEN));
            reply.with("content-length", (1u64 << 60).to_string())
        });
        let directory = Directory::new();
        let error = directory.refused(&plain(), &source(&format!("{}/m.gguf", server.url)));
        assert!(
            error.starts_with(&directory.models.path().display().to_string()),
            "{error}"
        );
        (error, server.requests().len(), directory.files())
    };
    assert!(
        error.contains("still to come") && error.contains("free"),
        "{error}"
    );
    assert_eq!((asked, files.len()), (1, 0));
}

#[test]
fn a_directory_that_cannot_be_written_to_is_named() {
    let server = Server::of(&model(9, LEN));
    let directory = Directory::new();
    std::fs::write(directory.models.path(), "a file").unwrap();
    let error = directory.refused(&plain(), &source(&format!("{}/m.gguf", server.url)));
    assert!(
        error.starts_with(&directory.models.path().display().to_string()),
        "{error}"
    );
    assert_eq!(server.requests().len(), 0);
}
