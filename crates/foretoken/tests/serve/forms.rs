//! Answers of a form: JSON, calls of functions, and those that were predicted.

use serde_json::{Value, json};

use crate::support::Server;

/// A schema whose answers end, whatever a model of random weights says.
fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 6},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": false,
    })
}

fn is_kept(value: &Value) -> bool {
    let tags = value["tags"].as_array().expect("tags");
    value.as_object().is_some_and(|object| object.len() == 3)
        && value["name"]
            .as_str()
            .is_some_and(|name| name.chars().count() <= 6)
        && value["age"]
            .as_f64()
            .is_some_and(|age| (0.0..=150.0).contains(&age))
        && tags.len() <= 3
        && tags.iter().all(|tag| tag == "red" || tag == "green")
}

fn content(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().expect("text")
}

#[test]
fn json_is_what_its_schema_describes_with_and_without_drafts() {
    // A tiny model's passes cost less than drafts: it has to be told.
    let server = Server::start(&["--draft-fixed", "4"]);
    let mut forced = 0;
    for seed in 0..12 {
        let ask = |speculation: Value| {
            server.chat(json!({
                "seed": seed, "max_tokens": 300, "temperature": 1.2, "speculation": speculation, "return_token_ids": true,
                "response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": schema()}},
            }))
        };
        let (plain, drafted) = (ask(json!(false)), ask(json!(true)));
        assert_eq!(plain["choices"][0]["finish_reason"], "stop");
        let value: Value = serde_json::from_str(content(&plain)).expect("JSON");
        assert!(is_kept(&value), "{value}");
        assert_eq!(
            plain["choices"][0]["token_ids"],
            drafted["choices"][0]["token_ids"]
        );
        assert_eq!(plain["speculation"]["drafted"], 0);
        forced += drafted["speculation"]["sources"]["grammar"]["accepted"]
            .as_u64()
            .unwrap_or(0);
    }
    assert!(forced > 0, "names of fields are drafts that cost nothing");

    // Any object: it may be cut, and then it says so.
    let object =
        server.chat(json!({"seed": 1, "max_tokens": 40, "response_format": {"type": "json_object"}}));
    assert!(content(&object).starts_with('{'));
    match object["choices"][0]["finish_reason"].as_str() {
        Some("stop") => assert!(serde_json::from_str::<Value>(content(&object)).is_ok_and(|v| v.is_object())),
        finish => assert_eq!(finish, Some("length")),
    }
}

fn tools() -> Value {
    let tool = |name: &str, parameters: Value| json!({"type": "function", "function": {"name": name, "parameters": parameters}});
    json!([
        tool("person", schema()),
        tool(
            "light",
            json!({"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"], "additionalProperties": false})
        ),
        json!({"type": "function", "function": {"name": "now"}}),
    ])
}

#[test]
fn functions_are_called_whole_and_streamed() {
    let server = Server::start(&[]);
    let mut called = std::collections::BTreeSet::new();
    for seed in 0..8 {
        let fields = json!({"seed": seed, "max_tokens": 300, "tools": tools(), "tool_choice": "required", "parallel_tool_calls": false});
        let whole = server.chat(fields.clone());
        let choice = &whole["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{whole}");
        assert!(choice["message"]["content"].is_null());
        let calls = choice["message"]["tool_calls"].as_array().expect("calls");
        assert_eq!(calls.len(), 1);
        let name = calls[0]["function"]["name"].as_str().expect("a name");
        let arguments = calls[0]["function"]["arguments"].as_str().expect("text");
        let arguments: Value = serde_json::from_str(arguments).expect("JSON");
        match name {
            "person" => assert!(is_kept(&arguments)),
            "light" => assert!(arguments["on"].is_boolean()),
            "now" => assert_eq!(arguments, json!({})),
            other => panic!("{other}"),
        }
        called.insert(name.to_string());

        let mut body = crate::support::with_messages(fields);
        body["stream"] = json!(true);
        let (mut name_said, mut said, mut finish) = (String::new(), String::new(), Value::Null);
        for event in server.stream("/v1/chat/completions", &body) {
            let choice = &event["choices"][0];
            for call in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
                assert_eq!(call["index"], 0);
                name_said.push_str(call["function"]["name"].as_str().unwrap_or_default());
                said.push_str(call["function"]["arguments"].as_str().expect("text"));
            }
            if !choice["finish_reason"].is_null() {
                finish = choice["finish_reason"].clone();
            }
        }
        assert_eq!((name_said.as_str(), finish), (name, json!("tool_calls")));
        assert_eq!(said, calls[0]["function"]["arguments"].as_str().unwrap());
    }
    assert!(called.len() > 1, "{called:?}");
}

#[test]
fn a_choice_of_functions_is_kept_to() {
    let server = Server::start(&[]);
    let ask = |choice: Value| {
        server.chat(json!({"seed": 3, "max_tokens": 60, "tools": tools(), "tool_choice": choice, "parallel_tool_calls": false}))
    };
    let named = ask(json!({"type": "function", "function": {"name": "light"}}));
    assert_eq!(
        named["choices"][0]["message"]["tool_calls"][0]["function"]["name"],
        "light"
    );
    let none = ask(json!("none"));
    assert!(none["choices"][0]["message"].get("tool_calls").is_none());
    // A model of random weights finds no tag by chance.
    let auto = ask(json!("auto"));
    assert!(!content(&auto).is_empty() && auto["choices"][0]["message"].get("tool_calls").is_none());
    // A function whose schema cannot be kept to takes any object.
    let odd = json!({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": true}}});
    let any = server.chat(json!({"seed": 3, "max_tokens": 90, "tool_choice": "required",
        "tools": [{"type": "function", "function": {"name": "odd", "parameters": odd}}]}));
    let arguments = any["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"].as_str();
    assert!(arguments.is_some_and(|text| text.starts_with('{')), "{any}");
    // What was called and what came back are part of the conversation.
    let messages = json!([
        {"role": "user", "content": "Is it dark?"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "light", "arguments": "{\"on\": true}"}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "done"},
    ]);
    let body = json!({"messages": messages, "max_tokens": 2, "tools": tools()});
    assert_eq!(server.post("/v1/chat/completions", &body).status, 200);
}

#[test]
fn predictions_are_counted_and_change_nothing() {
    let server = Server::slow(&["--loss-budget", "1"]);
    let fields = json!({"seed": 1, "temperature": 1.0, "max_tokens": 120, "return_token_ids": true});
    let plain = server.chat(fields.clone());
    let mut predicted = fields;
    predicted["prediction"] = json!({"type": "content", "content": content(&plain)});
    predicted["speculation"] = json!({"drafter": "prediction"});
    let answer = server.chat(predicted);
    assert_eq!(
        answer["choices"][0]["token_ids"],
        plain["choices"][0]["token_ids"]
    );
    let usage = &answer["usage"]["completion_tokens_details"];
    let (accepted, rejected) = (
        &usage["accepted_prediction_tokens"],
        &usage["rejected_prediction_tokens"],
    );
    assert!(accepted.as_u64() > Some(0), "{usage}");
    let counted = &answer["speculation"]["sources"]["prediction"];
    assert_eq!(accepted, &counted["accepted"]);
    assert_eq!(
        rejected.as_u64(),
        Some(counted["drafted"].as_u64().unwrap() - accepted.as_u64().unwrap())
    );
}
