use super::*;
use foretoken_gguf::Gguf;
use foretoken_model::Special;
use foretoken_model::testing::TinyModel;
use foretoken_spec::Token;
use serde_json::json;

/// A tokenizer whose tokens are bytes and a few words.
fn tokenizer() -> Arc<Tokenizer> {
    let file = std::env::temp_dir().join(format!("foretoken-grammar-{}.gguf", std::process::id()));
    TinyModel::qwen2().write(&file).unwrap();
    let tokenizer = Tokenizer::from_gguf(&Gguf::open(&file).unwrap()).unwrap();
    Arc::new(tokenizer)
}

fn grammars() -> &'static (Grammars, Arc<Tokenizer>) {
    static GRAMMARS: std::sync::OnceLock<(Grammars, Arc<Tokenizer>)> = std::sync::OnceLock::new();
    GRAMMARS.get_or_init(|| {
        let tokenizer = tokenizer();
        // More logits than tokens, as many models have.
        let size = tokenizer.vocab_size() + 40;
        (Grammars::new(&tokenizer, size).unwrap(), tokenizer)
    })
}

fn allowed(grammar: &mut dyn Grammar) -> Vec<Token> {
    let mask = grammar.allowed().unwrap();
    (0..mask.len() as Token * 32)
        .filter(|&token| mask[token as usize / 32] >> (token % 32) & 1 == 1)
        .collect()
}

/// Whether a text is allowed, and may end there.
fn takes(grammar: &dyn Grammar, text: &str) -> bool {
    let mut grammar = grammar.boxed();
    let (_, tokenizer) = grammars();
    let tokens = tokenizer.encode(text, Special::Text);
    let end = tokenizer.end_of_generation()[0];
    tokens
        .iter()
        .all(|&token| allowed(&mut *grammar).contains(&token) && grammar.accept(token))
        && allowed(&mut *grammar).contains(&end)
        && grammar.accept(end)
}

/// Draws tokens that are allowed until one ends the text, taking some back on the way.
fn random_text(grammar: &dyn Grammar, mut seed: u64) -> String {
    let (_, tokenizer) = grammars();
    let mut grammar = grammar.boxed();
    let mut random = |below: usize| {
        seed = seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (seed >> 33) as usize % below
    };
    let (mut bytes, mut said) = (Vec::new(), Vec::new());
    loop {
        let choices = allowed(&mut *grammar);
        let token = choices[random(choices.len())];
        assert!(grammar.accept(token), "{}", tokenizer.piece(token));
        if tokenizer.end_of_generation().contains(&token) {
            // After the end there is nothing, and it can be taken back too.
            assert!(grammar.allowed().is_err() && !grammar.accept(token) && grammar.forced().is_empty());
            grammar.rollback(1);
            assert_eq!(allowed(&mut *grammar), choices);
            return String::from_utf8(bytes).unwrap();
        }
        said.push(token);
        if random(8) == 0 {
            let back = random(said.len()) + 1;
            grammar.rollback(back);
            let again = said.split_off(said.len() - back);
            assert!(again.iter().all(|&token| grammar.accept(token)));
            said.extend(again);
        }
        bytes.extend_from_slice(tokenizer.bytes(token));
        assert!(bytes.len() < 5000, "it does not end");
    }
}

#[test]
fn whatever_is_drawn_is_what_the_schema_describes() {
    let (grammars, _) = grammars();
    let check = |schema: Value, holds: &dyn Fn(&Value) -> bool| {
        let grammar = grammars.json_schema(&schema).unwrap();
        for seed in 0..12 {
            let text = random_text(&*grammar, seed);
            let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
            assert!(holds(&value), "{text} is not of {schema}");
        }
    };
    check(json!({"enum": ["a", 5, null]}), &|v| {
        *v == "a" || *v == 5 || v.is_null()
    });
    check(json!({"type": "integer", "minimum": -3, "maximum": 12}), &|v| {
        // -0 among them, which is no whole number in Rust.
        v.as_f64()
            .is_some_and(|n| n.fract() == 0.0 && (-3.0..=12.0).contains(&n))
    });
    check(json!({"type": "string", "maxLength": 5}), &|v| {
        v.as_str().is_some_and(|text| text.chars().count() <= 5)
    });
    check(
        json!({"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4}),
        &|v| {
            v.as_array()
                .is_some_and(|a| (2..=4).contains(&a.len()) && a.iter().all(Value::is_boolean))
        },
    );
    let person = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "pattern": "^[A-Z][a-z]{1,6}$"},
            "pets": {"type": "array", "items": {"$ref": "#/$defs/pet"}, "maxItems": 2},
        },
        "required": ["name", "pets"],
        "additionalProperties": false,
        "$defs": {"pet": {"anyOf": [{"const": "cat"}, {"const": "dog"}]}},
    });
    check(person, &|v| {
        let name = v["name"].as_str().unwrap_or_default();
        let pets = v["pets"].as_array().cloned().unwrap_or_default();
        v.as_object().is_some_and(|o| o.len() == 2)
            && name.starts_with(|c: char| c.is_ascii_uppercase())
            && pets.iter().all(|pet| pet == "cat" || pet == "dog")
    });
}

#[test]
fn json_is_written_in_one_way() {
    let (grammars, _) = grammars();
    let object = grammars.json_object().unwrap();
    for (text, want) in [
        (r#"{}"#, true),
        (r#"{"a": [1, 2], "b": {"c": null}}"#, true),
        (r#"{"a":1}"#, false),
        (r#"{ "a": 1}"#, false),
        (r#"[1]"#, false),
        (r#"{"a": 1"#, false),
    ] {
        assert_eq!(takes(&*object, text), want, "{text}");
    }
}

#[test]
fn what_has_no_choice_is_forced() {
    let (grammars, tokenizer) = grammars();
    let schema = json!({
        "type": "object",
        "properties": {"kind": {"const": "x"}, "n": {"type": "integer"}},
        "required": ["kind", "n"],
        "additionalProperties": false,
    });
    let mut grammar = grammars.json_schema(&schema).unwrap();
    let forced = grammar.forced();
    let text: Vec<u8> = forced
        .iter()
        .flat_map(|&token| tokenizer.bytes(token).to_vec())
        .collect();
    let text = String::from_utf8(text).unwrap();
    assert!(
        r#"{"kind": "x", "n": "#.starts_with(&text) && text.len() > 10,
        "{text}"
    );
    assert!(forced.iter().all(|&token| grammar.accept(token)));
    assert!(grammar.forced().is_empty());
}

#[test]
fn a_schema_stands_within_other_text() {
    let (grammars, _) = grammars();
    let call = embed_schema(
        &json!({"type": "object", "properties": {"x": {"type": "integer"}},
        "required": ["x"], "additionalProperties": false}),
    )
    .unwrap();
    let lark = format!("start: \"<call>\" arguments \"</call>\"\narguments: {call}\n");
    let grammar = grammars.lark(lark).unwrap();
    assert!(takes(&*grammar, r#"<call>{"x": 12}</call>"#));
    assert!(!takes(&*grammar, r#"<call>{"y": 12}</call>"#));
    assert!(!takes(&*grammar, r#"{"x": 12}"#));
}

#[test]
fn what_cannot_be_kept_to_is_refused() {
    let (grammars, _) = grammars();
    let refusal = |schema: Value| match grammars.json_schema(&schema) {
        Ok(_) => panic!("{schema} was taken"),
        Err(error) => error,
    };
    for schema in [
        json!(false),
        json!("string"),
        json!({"type": "strin"}),
        json!({"$ref": "#/nowhere"}),
        json!({"$ref": "http://localhost/schema.json"}),
        json!({"type": "array", "uniqueItems": true, "minItems": 2}),
        json!({"type": "string", "pattern": "(a"}),
        json!({"type": "string", "minLength": 3, "maxLength": 2}),
        json!({"not": {"type": "string"}}),
    ] {
        let error = refusal(schema.clone());
        assert!(
            matches!(error, CompileError::Refused(ref text) if !text.is_empty()),
            "{schema}: {error:?}"
        );
    }
    refusal(
        serde_json::from_str(
            r#"{"type": "integer", "minimum": -1000000000000000000000, "maximum": -100000000000000000000}"#,
        )
        .unwrap(),
    );
    let mut chain = json!({"$ref": "#/$defs/d0", "$defs": {"d3000": {"type": "null"}}});
    for at in 0..3000 {
        chain["$defs"][format!("d{at}")] = json!({"$ref": format!("#/$defs/d{}", at + 1)});
    }
    refusal(chain);
    let deep = (0..80).fold(
        json!({"type": "integer"}),
        |inner, _| json!({"type": "array", "items": inner}),
    );
    assert_eq!(refusal(deep), CompileError::TooDeep);
    let long = json!({"enum": vec!["x".repeat(1000); 300]});
    assert!(matches!(refusal(long), CompileError::TooLong { bytes } if bytes > MAX_BYTES));
    // The author of a schema does not decide how strict this is.
    let lenient = json!({"not": {"type": "string"}, "x-guidance": {"lenient": true}});
    refusal(lenient);
}

#[test]
fn what_is_too_costly_fails_and_nothing_else_does() {
    let (grammars, tokenizer) = grammars();
    let costly = json!({"type": "string", "pattern": "^((a|b|ab|ba){1,300}){1,300}c$"});
    let Ok(mut grammar) = grammars.json_schema(&costly) else {
        return;
    };
    for &token in &tokenizer.encode(&format!("\"{}", "ab".repeat(200)), Special::Text) {
        if grammar.allowed().is_err() {
            assert!(!grammar.accept(token) && grammar.forced().is_empty());
            return;
        }
        assert!(grammar.accept(token));
    }
}

#[test]
fn what_another_path_knew_is_forgotten_with_it() {
    let (grammars, tokenizer) = grammars();
    let object = |kind: &str, more: bool| {
        let mut properties =
            json!({"k": {"const": kind}, "v": {"type": "integer", "minimum": 0, "maximum": 9}});
        let mut required = vec!["k", "v"];
        if more {
            properties["w"] = json!({"type": "boolean"});
            required.push("w");
        }
        json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
    };
    let schema = json!({"anyOf": [object("a", false), object("b", true)]});
    let fresh = grammars.json_schema(&schema).unwrap();
    let tokens = |text: &str| tokenizer.encode(text, Special::Text);
    let mut grammar = fresh.boxed();
    let (one, other) = (
        tokens("{\"k\": \"a\", \"v\": 1"),
        tokens("{\"k\": \"b\", \"v\": 1"),
    );
    for &token in &one {
        allowed(&mut *grammar);
        assert!(grammar.accept(token));
    }
    allowed(&mut *grammar);
    grammar.rollback(one.len());
    let mut alone = fresh.boxed();
    for &token in &other {
        assert_eq!(allowed(&mut *grammar), allowed(&mut *alone));
        assert!(grammar.accept(token) && alone.accept(token));
    }
    assert_eq!(allowed(&mut *grammar), allowed(&mut *alone));
}

#[test]
fn endless_text_without_a_choice_is_refused() {
    let (grammars, _) = grammars();
    let long = |n: usize, count: u64| json!({"type": "array", "items": {"const": "x".repeat(n)}, "minItems": count, "maxItems": count});
    assert!(grammars.json_schema(&long(10, 10)).is_ok());
    assert!(matches!(
        grammars.json_schema(&long(1000, 1000)),
        Err(CompileError::Refused(_))
    ));
    // Through references, each ten times the one before.
    let mut schema = json!({"$ref": "#/$defs/d0", "$defs": {"d12": {"const": "x"}}});
    for level in 0..12 {
        let next = format!("#/$defs/d{}", level + 1);
        schema["$defs"][format!("d{level}")] =
            json!({"type": "array", "items": {"$ref": next}, "minItems": 10, "maxItems": 10});
    }
    assert!(matches!(
        grammars.json_schema(&schema),
        Err(CompileError::Refused(_))
    ));
}

#[test]
fn a_chain_of_references_is_followed() {
    let (grammars, _) = grammars();
    let mut chain = json!({"$ref": "#/$defs/d0", "$defs": {"d900": {"type": "null"}}});
    for at in 0..900 {
        chain["$defs"][format!("d{at}")] = json!({"$ref": format!("#/$defs/d{}", at + 1)});
    }
    assert!(takes(&*grammars.json_schema(&chain).unwrap(), "null"));
}
