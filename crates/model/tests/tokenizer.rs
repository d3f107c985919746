//! Tokenizers of real files against llama.cpp.
//!
//! `golden/tokenizer-texts.json` holds the texts, `golden/tokenizer-*.json` what llama.cpp makes of them with
//! the vocabulary of the files named inside: without special tokens parsed, and, where that differs, with.
//! `golden/tokenizer.py` makes them.

use foretoken_gguf::Gguf;
use foretoken_gguf::testing::real_model;
use foretoken_model::{Special, Tokenizer};
use std::collections::BTreeMap;

#[derive(serde::Deserialize)]
struct Golden {
    models: Vec<String>,
    bos: Option<u32>,
    end_of_generation: Vec<u32>,
    text: Vec<Vec<u32>>,
    parse: BTreeMap<usize, Vec<u32>>,
}

const GOLDENS: [&str; 3] = [
    include_str!("golden/tokenizer-gemma.json"),
    include_str!("golden/tokenizer-qwen.json"),
    include_str!("golden/tokenizer-smollm2.json"),
];

fn texts() -> Vec<String> {
    serde_json::from_str(include_str!("golden/tokenizer-texts.json")).unwrap()
}

/// The tokenizer of a model file, or none, loudly, if the file is not here.
fn load(file: &str) -> Option<Tokenizer> {
    Some(Tokenizer::from_gguf(&Gguf::open(real_model(file)?).unwrap()).unwrap())
}

fn each_model(check: impl Fn(&Golden, &str, &Tokenizer)) {
    for golden in GOLDENS {
        let golden: Golden = serde_json::from_str(golden).unwrap();
        for model in &golden.models {
            if let Some(tokenizer) = load(model) {
                check(&golden, model, &tokenizer);
            }
        }
    }
}

#[test]
fn ids_are_those_of_llama_cpp() {
    each_model(|golden, model, tokenizer| {
        let texts = texts();
        assert_eq!(texts.len(), golden.text.len());
        // Where `</s>` is a tag of HTML, llama.cpp makes a control token of it; see `vocab.rs`.
        let html = tokenizer.end_of_generation() != golden.end_of_generation;
        let mut wrong = Vec::new();
        for (i, text) in texts.iter().enumerate() {
            let parse = golden.parse.get(&i).unwrap_or(&golden.text[i]);
            for (special, expected) in [(Special::Text, &golden.text[i]), (Special::Parse, parse)] {
                if html && text.contains("</s>") {
                    continue;
                }
                let found = tokenizer.encode(text, special);
                if &found != expected {
                    wrong.push(format!(
                        "{special:?} {text:?}\n  found    {found:?}\n  expected {expected:?}"
                    ));
                }
            }
        }
        assert!(
            wrong.is_empty(),
            "{model}: {} differ:\n{}",
            wrong.len(),
            wrong.join("\n")
        );
    });
}

#[test]
fn special_ids_are_those_of_llama_cpp() {
    each_model(|golden, model, tokenizer| {
        assert_eq!(tokenizer.bos(), golden.bos, "{model}");
        // llama.cpp also ends at `</s>` where it is a tag of HTML.
        let expected: Vec<u32> = golden
            .end_of_generation
            .iter()
            .copied()
            .filter(|&token| tokenizer.piece(token) != "</s>")
            .collect();
        assert_eq!(tokenizer.end_of_generation(), expected, "{model}");
    });
}

#[test]
fn bytes_of_tokens_are_the_text() {
    each_model(|_, model, tokenizer| {
        // Left out by design: bytes without a token, and U+2581, which SentencePiece uses for a space.
        let kept = |c: &char| match model {
            _ if model.starts_with("smollm2") => {
                !matches!(c, '\x04' | '\x06' | '\x13' | '\x14' | '\x16' | '\x1d') && *c < '\u{40000}'
            }
            _ => !model.starts_with("gemma") || *c != '\u{2581}',
        };
        for text in texts() {
            let text: String = text.chars().filter(kept).collect();
            let tokens = tokenizer.encode(&text, Special::Text);
            let bytes: Vec<u8> = tokens
                .iter()
                .flat_map(|&token| tokenizer.bytes(token))
                .copied()
                .collect();
            assert_eq!(String::from_utf8(bytes), Ok(text), "{model}");
        }
    });
}

#[test]
fn drafts_share_a_vocabulary_or_are_named() {
    let [Some(target), Some(draft), Some(other)] = [
        "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        "smollm2-135m-instruct-q4_1.gguf",
    ]
    .map(load) else {
        return;
    };
    assert_eq!(target.check_draft(&draft), Ok(()));
    assert_eq!(target.fingerprint(), draft.fingerprint());
    assert_ne!(target.fingerprint(), other.fingerprint());
    let error = target.check_draft(&other).unwrap_err();
    assert_eq!(
        error,
        "the target's tokenizer is gpt2/qwen2, the draft's gpt2/smollm"
    );
}
