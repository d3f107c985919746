//! Who may call, and what is told besides answers.

use serde_json::{Value, json};

use crate::support::Server;

const JSON: (&str, &str) = ("content-type", "application/json");

#[test]
fn keys_are_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("keys");
    std::fs::write(&file, "from-file\n\n  second \n").unwrap();
    let server = Server::start(&[
        "--api-key",
        "from-argument",
        "--api-key-file",
        file.to_str().unwrap(),
    ]);
    let status = |key: Option<&str>| {
        let value = key.map(|key| format!("Bearer {key}"));
        let headers: Vec<_> = value
            .iter()
            .map(|value| ("authorization", value.as_str()))
            .collect();
        server.get_with("/v1/models", &headers).status
    };
    assert_eq!(
        ["from-argument", "from-file", "second"].map(|key| status(Some(key))),
        [200; 3]
    );
    assert_eq!([Some("from"), Some(""), None].map(status), [401; 3]);
    assert_eq!(server.get("/health").status, 200);
    for path in ["/metrics", "/openapi.json", "/nothing"] {
        assert_eq!(server.get(path).status, 401, "{path}");
    }
    let refused = server.get("/v1/models");
    assert_eq!(refused.json()["error"]["code"], "invalid_api_key");
    assert_eq!(refused.header("www-authenticate"), Some("Bearer"));
    assert!(!server.log().contains("from-"), "keys stand in no log");
}

#[test]
fn hosts_and_origins_are_looked_at() {
    let server = Server::start(&[
        "--allow-host",
        "workstation",
        "--cors-origin",
        "https://editor.example",
    ]);
    let status = |headers: &[(&str, &str)]| server.get_with("/v1/models", headers).status;
    assert_eq!(status(&[]), 200);
    assert_eq!(status(&[("authorization", "Bearer whatever")]), 200);
    assert_eq!(status(&[("host", "workstation:1")]), 200);
    assert_eq!(status(&[("host", "evil.example")]), 403);
    assert_eq!(status(&[("origin", "https://evil.example")]), 403);
    let allowed = server.get_with("/v1/models", &[("origin", "https://editor.example")]);
    assert_eq!(
        (allowed.status, allowed.header("access-control-allow-origin")),
        (200, Some("https://editor.example"))
    );
}

#[test]
fn a_browser_asks_for_leave_without_a_key() {
    let server = Server::start(&["--api-key", "key", "--cors-origin", "https://editor.example"]);
    let ask = |origin| {
        let request = ureq::http::Request::builder()
            .method("OPTIONS")
            .uri(server.url("/v1/chat/completions"))
            .header("origin", origin)
            .header("access-control-request-method", "POST")
            .header("access-control-request-headers", "authorization,content-type")
            .body(());
        let response = ureq::run(request.unwrap()).unwrap();
        let allowed = response.headers().get("access-control-allow-origin").cloned();
        (
            response.status().as_u16(),
            allowed.map(|value| value.to_str().unwrap().to_string()),
        )
    };
    assert_eq!(
        ask("https://editor.example"),
        (200, Some("https://editor.example".to_string()))
    );
    assert_eq!(ask("https://evil.example").1, None);
    let refused = server.get_with("/v1/models", &[("origin", "https://editor.example")]);
    assert_eq!(
        (
            refused.status,
            refused.header("access-control-allow-origin").is_some()
        ),
        (401, true)
    );
}

#[test]
fn the_page_is_for_whoever_may_call() {
    let server = Server::start(&["--api-key", "key"]);
    let page = server.get("/");
    assert_eq!(page.status, 200);
    // All that it names is there, of its kind, and may do no more than the page.
    let names = page.text.split('"').filter(|name| name.starts_with("page/"));
    let mut scripts: Vec<String> = names.map(str::to_string).collect();
    let mut seen = vec![page];
    while let Some(name) = scripts.pop() {
        let file = server.get(&format!("/{name}"));
        assert_eq!(file.status, 200, "{name}");
        let kind = file.header("content-type").unwrap_or_default().to_string();
        let expected = match name.rsplit_once('.') {
            Some((_, "js")) => "text/javascript; charset=utf-8",
            Some((_, "css")) => "text/css; charset=utf-8",
            _ => "image/svg+xml",
        };
        assert_eq!(kind, expected, "{name}");
        if expected.starts_with("text/javascript") {
            let imports = file.text.lines().filter(|line| line.starts_with("import "));
            let imported = imports.filter_map(|line| line.rsplit_once("\"./")?.1.strip_suffix("\";"));
            scripts.extend(imported.map(|name| format!("page/{name}")));
        }
        seen.push(file);
    }
    assert!(
        seen.len() >= 7 && !seen[0].text.contains("//"),
        "nothing comes from elsewhere"
    );
    for part in &seen {
        let policy = part.header("content-security-policy").unwrap_or_default();
        let directives: Vec<&str> = policy.split("; ").collect();
        for wanted in [
            "default-src 'none'",
            "script-src 'self'",
            "connect-src 'self'",
            "frame-ancestors 'none'",
        ] {
            assert!(directives.contains(&wanted), "{policy}");
        }
        assert!(!policy.contains("unsafe") && !policy.contains('*'), "{policy}");
        assert_eq!(part.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(part.header("referrer-policy"), Some("no-referrer"));
        assert_eq!(part.header("cache-control"), Some("no-cache"));
    }
    // What it would ask for needs the key, and a name or page from elsewhere is as unwelcome as ever.
    assert_eq!(server.get("/v1/models").status, 401);
    for path in ["/page/nothing.js", "/page/", "/page/../v1/models", "//"] {
        assert_eq!(server.get(path).status, 401, "{path}");
    }
    let missing = server.get_with("/page/nothing.js", &[("authorization", "Bearer key")]);
    assert_eq!(missing.status, 404);
    for path in ["/", "/page/page.js"] {
        assert_eq!(server.get_with(path, &[("host", "evil.example")]).status, 403);
        assert_eq!(
            server
                .get_with(path, &[("origin", "https://evil.example")])
                .status,
            403
        );
    }
}

#[test]
fn refusals_have_the_form_of_the_rest() {
    let server = Server::start(&[]);
    let check = |reply: crate::support::Reply, status: u16| {
        assert_eq!(reply.status, status, "{}", reply.text);
        assert!(reply.json()["error"]["message"].is_string(), "{}", reply.text);
        assert!(reply.header("access-control-allow-origin").is_none());
    };
    check(server.get("/nothing"), 404);
    check(server.get("/v1/models/nobody"), 404);
    check(server.get("/v1/models/%FF"), 400);
    check(server.get("/v1/chat/completions"), 405);
    check(server.post("/health", &json!({})), 405);
    check(server.post_with("/tokenize", &[], b"{}"), 415);
    check(
        server.post_with("/tokenize", &[("content-type", "text/plain")], b"{}"),
        415,
    );
    check(server.post_with("/tokenize", &[JSON], b"{"), 400);
    check(server.post_with("/tokenize", &[JSON], b"[]"), 400);
}

#[test]
fn the_model_and_the_counters_are_told() {
    let server = Server::start(&["--alias", "mine", "--draft-fixed", "2", "--parallel", "3"]);
    let models = server.get("/v1/models").json();
    assert_eq!(models["data"][0]["id"], "mine");
    assert_eq!(models["data"][0]["drafters"], json!(["suffix"]));
    assert_eq!(server.get("/v1/models/mine").json(), models["data"][0]);
    let costs = models["data"][0]["pass_seconds"].as_array().expect("costs");
    let rows: Vec<u64> = costs.iter().filter_map(|cost| cost[0].as_u64()).collect();
    assert!(rows[0] == 1 && rows.is_sorted() && rows.len() >= 4, "{rows:?}");
    assert!(costs.iter().all(|cost| cost[1].as_f64() > Some(0.0)));
    let document: Value = server.get("/openapi.json").json();
    assert_eq!(document["openapi"], "3.1.0");

    server.chat(json!({"max_tokens": 30, "seed": 1}));
    server.wait("it is counted", |server| {
        server.metric("foretoken:running") == 0.0
    });
    assert_eq!(server.metric("foretoken:tokens_total"), 30.0);
    let drafted = server.metric("vllm:spec_decode_num_draft_tokens_total");
    let rounds = server.metric("vllm:spec_decode_num_drafts_total");
    assert!(drafted >= rounds && rounds > 0.0);
    let accepted = server.metric("vllm:spec_decode_num_accepted_tokens_total");
    let text = server.get("/metrics").text;
    let by_position: f64 = text
        .lines()
        .filter(|line| line.starts_with("vllm:spec_decode_num_accepted_tokens_per_pos_total{position="))
        .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
        .sum();
    assert_eq!(by_position, accepted);
    assert!(server.metric("foretoken:verify_seconds_total") <= server.metric("foretoken:pass_seconds_total"));
    // Three contexts of 4096 positions, in pages.
    assert!(server.metric("foretoken:kv_pages") >= 3.0 * 4096.0 / 64.0);
    assert!(
        text.contains("foretoken:time_to_first_token_seconds_count 1"),
        "{text}"
    );
    assert!(
        text.contains("foretoken:http_requests_total{path=\"/v1/chat/completions\",status=\"200\"} 1"),
        "{text}"
    );
}
