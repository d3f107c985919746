//! Prompts of real files' chat templates. The golden tokens are llama.cpp's, of what Python's Jinja writes.

use foretoken_gguf::Gguf;
use foretoken_gguf::testing::real_model;
use foretoken_model::{ChatTemplate, Message, Tokenizer};

#[derive(serde::Deserialize)]
struct Golden {
    models: Vec<String>,
    cases: Vec<Case>,
}

#[derive(serde::Deserialize)]
struct Case {
    messages: Vec<Turn>,
    tokens: Vec<u32>,
}

#[derive(Clone, serde::Deserialize)]
struct Turn {
    role: String,
    content: String,
}

/// A model file, or none, loudly, if it is not here.
fn open(file: &str) -> Option<Gguf> {
    Some(Gguf::open(real_model(file)?).unwrap())
}

#[test]
fn prompts_are_those_of_the_reference() {
    for golden in [
        include_str!("golden/chat-qwen.json"),
        include_str!("golden/chat-smollm2.json"),
    ] {
        let golden: Golden = serde_json::from_str(golden).unwrap();
        for model in &golden.models {
            let Some(gguf) = open(model) else { continue };
            let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
            let template = ChatTemplate::from_gguf(&gguf).unwrap().unwrap();
            for case in &golden.cases {
                let messages: Vec<Message> = case
                    .messages
                    .iter()
                    .cloned()
                    .map(|Turn { role, content }| Message::new(role, content))
                    .collect();
                let tokens = template.encode(&tokenizer, &messages, &[]).unwrap();
                assert_eq!(tokens, case.tokens, "{model}: {messages:?}");
            }
        }
    }
}

#[test]
fn a_file_without_a_template_has_none() {
    let Some(gguf) = open("gemma-3-270m-q4_k_m.gguf") else {
        return;
    };
    assert!(ChatTemplate::from_gguf(&gguf).unwrap().is_none());
}
