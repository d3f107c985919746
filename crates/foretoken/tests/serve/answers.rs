//! What is answered, whole and streamed, and what is refused.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::{Server, with_messages};

fn content(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().expect("text")
}

#[test]
fn a_seed_decides_the_answer_whatever_is_drafted() {
    let server = Server::start(&["--draft-fixed", "3"]);
    let ask = |more: Value| {
        let mut fields = server.endless(json!({"seed": 7, "max_tokens": 24, "return_token_ids": true}));
        fields
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        server.chat(fields)
    };
    let first = ask(json!({}));
    assert_eq!(first["object"], "chat.completion");
    assert_eq!(first["choices"][0]["finish_reason"], "length");
    let usage = &first["usage"];
    assert_eq!(usage["completion_tokens"], 24);
    assert_eq!(
        usage["total_tokens"].as_u64(),
        usage["prompt_tokens"].as_u64().map(|prompt| prompt + 24)
    );
    assert_eq!(
        usage["completion_tokens_details"]["rejected_prediction_tokens"],
        0
    );
    assert!(first["timings"]["decode_tps"].as_f64() > Some(0.0));
    assert_eq!(first["speculation"]["drafter"], "suffix");
    assert!(first["speculation"]["drafted"].as_u64() > Some(0));
    assert!(first["system_fingerprint"].as_str().unwrap().starts_with("fp_"));

    let ids = |answer: &Value| answer["choices"][0]["token_ids"].clone();
    let again = ask(json!({}));
    assert_eq!(ids(&again), ids(&first));
    // All but the last token of the prompt was there.
    let cached = again["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    assert_eq!(cached, usage["prompt_tokens"].as_u64().map(|prompt| prompt - 1));
    for speculation in [json!(false), json!({"drafter": "none"}), json!({"max": 0})] {
        let plain = ask(json!({"speculation": speculation}));
        assert_eq!(ids(&plain), ids(&first));
        assert_eq!(plain["speculation"]["drafter"], "none");
    }
    for speculation in [
        json!(true),
        json!({"drafter": "suffix", "max": 1}),
        json!({"drafter": "auto"}),
    ] {
        assert_eq!(ids(&ask(json!({"speculation": speculation}))), ids(&first));
    }
    assert_ne!(ids(&ask(json!({"seed": 8}))), ids(&first));
    assert_ne!(ids(&ask(json!({"seed": -8}))), ids(&first));
    assert_ne!(ids(&ask(json!({"seed": null}))), ids(&ask(json!({"seed": null}))));

    // Choice 0 is the answer without the others.
    let several = ask(json!({"n": 3}));
    let choices = several["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 3);
    assert_eq!(choices[0]["token_ids"], ids(&first));
    assert_ne!(choices[1]["token_ids"], ids(&first));
    assert_ne!(choices[1]["token_ids"], choices[2]["token_ids"]);
    assert_eq!(several["usage"]["completion_tokens"], 72);
    assert!(choices[1]["timings"].is_object() && several.get("timings").is_none());
}

#[test]
fn a_stream_says_what_the_whole_says() {
    let server = Server::start(&[]);
    let fields =
        json!({"seed": 1, "max_tokens": 20, "logprobs": true, "top_logprobs": 2, "return_token_ids": true});
    let mut body = server.endless(fields);
    let whole = server.chat(body.clone());
    body["stream"] = true.into();
    body["stream_options"] = json!({"include_usage": true, "continuous_usage_stats": true});
    let chunks: Vec<Value> = server.stream("/v1/chat/completions", &body).collect();
    let (mut text, mut ids, mut logprobs) = (String::new(), Vec::new(), Vec::new());
    for chunk in &chunks {
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert_eq!(chunk["id"], chunks[0]["id"]);
        let Some(choice) = chunk["choices"].get(0) else {
            continue;
        };
        text.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        ids.extend(choice["token_ids"].as_array().into_iter().flatten().cloned());
        logprobs.extend(
            choice["logprobs"]["content"]
                .as_array()
                .into_iter()
                .flatten()
                .cloned(),
        );
        assert!(chunk["usage"]["completion_tokens"].as_u64() >= Some(ids.len() as u64));
    }
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(text, content(&whole));
    assert_eq!(json!(ids), whole["choices"][0]["token_ids"]);
    assert_eq!(json!(logprobs), whole["choices"][0]["logprobs"]["content"]);
    assert_eq!(logprobs.len(), 20);
    assert!(
        logprobs
            .iter()
            .all(|token| token["top_logprobs"].as_array().map(Vec::len) == Some(2))
    );
    let [.., last, usage] = &chunks[..] else {
        panic!("two chunks at least")
    };
    assert_eq!(last["choices"][0]["finish_reason"], "length");
    assert!(last["timings"].is_object() && last["speculation"].is_object());
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], 20);

    // Two choices at once, each to its end.
    body["n"] = 2.into();
    let ends: Vec<Value> = server
        .stream("/v1/chat/completions", &body)
        .filter(|chunk| !chunk["choices"][0]["finish_reason"].is_null())
        .map(|chunk| chunk["choices"][0]["index"].clone())
        .collect();
    assert!(ends == [0, 1] || ends == [1, 0], "{ends:?}");
}

#[test]
fn drafts_are_told_round_by_round() {
    let server = Server::start(&["--draft-fixed", "3"]);
    // A random model says the same again and again if it is cold enough.
    let fields = json!({"seed": 7, "max_tokens": 60, "temperature": 0.1, "return_drafts": true});
    let mut body = server.endless(fields);
    let whole = server.chat(body.clone());
    let rounds = whole["choices"][0]["drafts"].as_array().expect("rounds");
    let pieces = || {
        rounds
            .iter()
            .flat_map(|round| round["text"].as_array().expect("pieces"))
    };
    let text: String = pieces().filter_map(|piece| piece["text"].as_str()).collect();
    assert_eq!(text, content(&whole));
    let sources: BTreeSet<_> = pieces().map(|piece| piece["source"].as_str()).collect();
    assert_eq!(sources, BTreeSet::from([None, Some("suffix")]));

    // The first is the end of the prompt; what the others count is what the statistics have.
    let (prompt, others) = rounds.split_first().expect("a round");
    assert_eq!(
        (&prompt["round"], &prompt["rejected"]),
        (&Value::Null, &json!(""))
    );
    let sum = |of: fn(&Value) -> &Value| {
        others
            .iter()
            .filter_map(|round| of(&round["round"]).as_u64())
            .sum::<u64>()
    };
    let speculation = &whole["speculation"];
    assert_eq!(json!(others.len()), speculation["rounds"]);
    assert_eq!(json!(sum(|round| &round["accepted"])), speculation["accepted"]);
    assert_eq!(
        json!(sum(|round| &round["drafted"]["suffix"])),
        speculation["proposed"]
    );
    assert_eq!(sum(|round| &round["tokens"]), 59);
    let wrong =
        |round: &&Value| round["round"]["rows"].as_u64() > round["round"]["accepted"].as_u64().map(|n| n + 1);
    // The last round does not tell what the answer's end cut off.
    let rejected = others[..others.len() - 1].iter().filter(wrong);
    let rejected: Vec<_> = rejected.map(|round| round["rejected"].as_str()).collect();
    assert!(
        !rejected.is_empty()
            && rejected
                .iter()
                .all(|text| text.is_some_and(|text| !text.is_empty()))
    );

    // The chunks of a stream have the same, and nobody has it unasked.
    body["stream"] = true.into();
    let chunks = server.stream("/v1/chat/completions", &body);
    let streamed: Vec<Value> = chunks
        .flat_map(|chunk| {
            chunk["choices"][0]["drafts"]
                .as_array()
                .cloned()
                .unwrap_or_default()
        })
        .collect();
    assert_eq!(streamed.len(), rounds.len());
    for (one, other) in streamed.iter().zip(rounds) {
        assert_eq!(
            (&one["text"], &one["rejected"]),
            (&other["text"], &other["rejected"])
        );
    }
    body["return_drafts"] = false.into();
    assert!(
        server
            .stream("/v1/chat/completions", &body)
            .all(|chunk| chunk["choices"][0].get("drafts").is_none())
    );
    let text = json!({"prompt": "the and in the and in", "seed": 3, "return_drafts": true});
    let text = server.post("/v1/completions", &text).json();
    assert!(
        text["choices"][0]["drafts"]
            .as_array()
            .is_some_and(|rounds| rounds.len() > 1)
    );
}

#[test]
fn texts_are_completed() {
    let server = Server::start(&[]);
    let ask = |body: Value| {
        let reply = server.post("/v1/completions", &body);
        assert_eq!(reply.status, 200, "{}", reply.text);
        reply.json()
    };
    let text = ask(json!({"prompt": "the and in", "seed": 3, "logprobs": 1}));
    assert_eq!(text["object"], "text_completion");
    // As in OpenAI's API, sixteen tokens if nothing is said.
    assert_eq!(text["usage"]["completion_tokens"], 16);
    let logprobs = &text["choices"][0]["logprobs"];
    let tokens: Vec<&str> = logprobs["tokens"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    assert_eq!(
        (tokens.len(), logprobs["text_offset"].as_array().unwrap().len()),
        (16, 16)
    );
    assert_eq!(logprobs["text_offset"][1], tokens[0].chars().count());

    let ids = server
        .post(
            "/tokenize",
            &json!({"content": "the and in", "add_special": true}),
        )
        .json();
    let same = ask(json!({"prompt": ids["tokens"], "seed": 3, "logprobs": 1}));
    assert_eq!(same["choices"], text["choices"]);
    let many = ask(json!({"prompt": ["the and in", "an"], "n": 2, "seed": 3}));
    assert_eq!(many["choices"].as_array().unwrap().len(), 4);
    assert_eq!(many["choices"][0]["text"], text["choices"][0]["text"]);
    let back = server
        .post(
            "/detokenize",
            &json!({"tokens": [ids["tokens"][0], ids["tokens"][1]]}),
        )
        .json();
    assert!(
        "the and in".starts_with(back["content"].as_str().unwrap()),
        "{back}"
    );

    // A stop string is no part of the text.
    let whole = text["choices"][0]["text"].as_str().unwrap();
    let stop: String = whole.chars().skip(5).take(2).collect();
    let cut = ask(json!({"prompt": "the and in", "seed": 3, "stop": [stop]}));
    assert_eq!(cut["choices"][0]["finish_reason"], "stop");
    assert_eq!(
        cut["choices"][0]["text"].as_str(),
        whole.find(&stop).map(|at| &whole[..at])
    );
}

#[test]
fn what_cannot_be_served_is_named() {
    let server = Server::start(&["-c", "256", "--drafter", "suffix"]);
    let check = |path: &str, body: Value, status: u16, param: Value| {
        let reply = server.post(path, &body);
        assert_eq!(
            (reply.status, &reply.json()["error"]["param"]),
            (status, &param),
            "{body} {}",
            reply.text
        );
        let error = &reply.json()["error"];
        assert!(
            error["message"].is_string() && error["type"].is_string(),
            "{error}"
        );
    };
    let chat =
        |fields: Value, param: &str| check("/v1/chat/completions", with_messages(fields), 400, json!(param));
    chat(json!({"messages": []}), "messages");
    chat(json!({"messages": "x"}), "messages");
    chat(
        json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}),
        "messages[0].content[0].type",
    );
    chat(json!({"temperature": "warm"}), "temperature");
    chat(json!({"temperature": -1}), "temperature");
    chat(json!({"top_p": 0}), "top_p");
    chat(json!({"n": 0}), "n");
    chat(json!({"n": 1000}), "n");
    chat(json!({"n": 1.5}), "n");
    chat(json!({"max_tokens": 0}), "max_tokens");
    chat(json!({"max_tokens": 4, "max_completion_tokens": 5}), "max_tokens");
    chat(json!({"stop": [""]}), "stop");
    chat(json!({"stop": vec!["x"; 1000]}), "stop");
    chat(json!({"logit_bias": {"99999999": 1}}), "logit_bias");
    chat(json!({"logit_bias": {"x": 1}}), "logit_bias");
    chat(json!({"logit_bias": {"5": 101}}), "logit_bias");
    chat(json!({"top_logprobs": 3}), "top_logprobs");
    chat(json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs");
    chat(
        json!({"stream_options": {"include_usage": true}}),
        "stream_options",
    );
    chat(
        json!({"stream": true, "stream_options": {"x": true}}),
        "stream_options.x",
    );
    chat(
        json!({"speculation": {"drafter": "model"}}),
        "speculation.drafter",
    );
    chat(
        json!({"speculation": {"drafter": "recycling"}}),
        "speculation.drafter",
    );
    chat(json!({"speculation": {"x": 1}}), "speculation.x");
    chat(json!({"speculation": "fast"}), "speculation");
    chat(
        json!({"response_format": {"type": "yaml"}}),
        "response_format.type",
    );
    let schema = |schema: Value| json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}});
    chat(schema(json!(7)), "response_format.json_schema.schema");
    chat(
        schema(json!({"type": "array", "uniqueItems": true})),
        "response_format.json_schema.schema",
    );
    let with_stop = json!({"response_format": {"type": "json_object"}, "stop": "}"});
    chat(with_stop, "stop");
    chat(json!({"tools": [{"type": "function"}]}), "tools[0].function");
    chat(json!({"tools": [{"type": "search"}]}), "tools[0].type");
    let tool = |function: Value| json!({"tools": [{"type": "function", "function": function}]});
    chat(tool(json!({"name": "a b"})), "tools[0].function.name");
    chat(
        tool(json!({"name": "f", "parameters": {"type": "string"}})),
        "tools[0].function.parameters.type",
    );
    let odd = json!({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": true}}});
    chat(
        tool(json!({"name": "f", "strict": true, "parameters": odd})),
        "tools[0].function.parameters",
    );
    let twice = json!({"type": "function", "function": {"name": "f"}});
    chat(json!({"tools": [twice, twice]}), "tools[1].function.name");
    chat(json!({"tool_choice": "required"}), "tool_choice");
    chat(
        json!({"tool_choice": {"type": "function", "function": {"name": "f"}}}),
        "tool_choice.function.name",
    );
    chat(json!({"prediction": {"type": "content"}}), "prediction.content");
    chat(
        json!({"prediction": {"type": "image", "content": "x"}}),
        "prediction.type",
    );
    chat(json!({"reasoning_effort": "high"}), "reasoning_effort");
    chat(json!({"no_such_field": 1}), "no_such_field");
    check(
        "/v1/chat/completions",
        json!({"max_tokens": 4}),
        400,
        json!("messages"),
    );
    check(
        "/v1/chat/completions",
        with_messages(json!({"model": "gpt-x"})),
        404,
        Value::Null,
    );
    let text = |body: Value, param: &str| check("/v1/completions", body, 400, json!(param));
    text(json!({}), "prompt");
    text(json!({"prompt": []}), "prompt");
    text(json!({"prompt": {"a": 1}}), "prompt");
    text(
        json!({"prompt": "x", "n": 16, "max_tokens": 1, "prompt_": 1}),
        "prompt_",
    );
    text(json!({"prompt": vec!["x"; 9], "n": 16}), "n");
    text(json!({"prompt": "x", "suffix": "y"}), "suffix");
    text(json!({"prompt": "x", "echo": true}), "echo");
    text(json!({"prompt": "x", "best_of": 4}), "best_of");
    text(json!({"prompt": ""}), "prompt");
    text(json!({"prompt": [999_999]}), "prompt");
    check("/tokenize", json!({}), 400, json!("content"));
    check("/detokenize", json!({"tokens": [999_999]}), 400, json!("tokens"));

    // What changes no text is accepted, and null is as good as nothing.
    let fine = json!({"user": "ann", "metadata": {"a": "b"}, "service_tier": "auto", "store": true, "max_tokens": 2,
        "prediction": {"type": "content", "content": "x"}, "tools": [], "response_format": {"type": "text"}, "stop": null});
    server.chat(fine);

    let long = server.post("/v1/completions", &json!({"prompt": "and ".repeat(300)}));
    assert_eq!(
        (long.status, &long.json()["error"]["code"]),
        (400, &json!("context_length_exceeded"))
    );
    let longer = server.post("/v1/completions", &json!({"prompt": "x".repeat(100_000)}));
    assert_eq!(
        (longer.status, &longer.json()["error"]["code"]),
        (400, &json!("context_length_exceeded"))
    );
    let mut endless = server.endless(json!({"prompt": "and ".repeat(60), "max_tokens": 10_000, "seed": 1}));
    endless.as_object_mut().unwrap().remove("messages");
    let full = server.post("/v1/completions", &endless);
    assert_eq!(full.json()["choices"][0]["finish_reason"], "length");
}

/// Bodies that are nearly right, by a generator that needs no seed from outside.
#[test]
fn nonsense_is_answered_and_harms_nobody() {
    let server = Server::start(&[]);
    let mut state = 12345u64;
    let mut random = move |below: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let values = [
        "null",
        "true",
        "-1",
        "1e999",
        "\"x\"",
        "[]",
        "{}",
        "[[[[[]]]]]",
        "1.5",
        "18446744073709551616",
        "\"\\ud800\"",
        "NaN",
    ];
    let names = [
        "messages",
        "prompt",
        "n",
        "seed",
        "stop",
        "temperature",
        "stream",
        "speculation",
        "logit_bias",
        "max_tokens",
        "model",
    ];
    for round in 0..400 {
        let mut body = String::from("{\"max_tokens\": 1");
        for _ in 0..1 + random(4) {
            body.push_str(&format!(
                ", {:?}: {}",
                names[random(names.len())],
                values[random(values.len())]
            ));
        }
        body.push('}');
        let mut bytes = body.into_bytes();
        if random(3) == 0 {
            let at = random(bytes.len());
            bytes[at] = random(256) as u8;
        }
        if random(5) == 0 {
            bytes.truncate(random(bytes.len()));
        }
        let path = [
            "/v1/chat/completions",
            "/v1/completions",
            "/tokenize",
            "/detokenize",
        ][random(4)];
        let reply = server.post_with(path, &[("content-type", "application/json")], &bytes);
        let shown = String::from_utf8_lossy(&bytes);
        assert!(
            matches!(reply.status, 200 | 400 | 404),
            "{round}: {shown} gave {} {}",
            reply.status,
            reply.text
        );
        assert!(reply.status == 200 || reply.json()["error"]["message"].is_string());
    }
    let deep = format!("{{\"prompt\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let reply = server.post_with(
        "/v1/completions",
        &[("content-type", "application/json")],
        deep.as_bytes(),
    );
    assert_eq!(reply.status, 400);
    let huge = format!("{{\"prompt\": \"{}\"}}", "x".repeat(9 << 20));
    let reply = server.post_with(
        "/v1/completions",
        &[("content-type", "application/json")],
        huge.as_bytes(),
    );
    assert_eq!(reply.status, 413, "{}", reply.text);
    server.chat(json!({"max_tokens": 2}));
}
