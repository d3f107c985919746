use super::*;
use std::collections::BTreeMap;
use std::sync::LazyLock;

fn words(name: &str, text: &str) -> Vec<String> {
    let mut words = Vec::new();
    Splitter::new(find(Some(name)).unwrap())
        .unwrap()
        .split(text, |word| words.push(word.to_owned()));
    words
}

/// `golden/split.json` has, for each rule, the lengths in bytes of the words of each text, as Python's `regex` cuts
/// them by the models' own expressions. llama.cpp's are the same where it does not approximate.
#[test]
fn words_are_those_of_the_reference() {
    #[derive(serde::Deserialize)]
    struct Golden {
        texts: Vec<String>,
        words: BTreeMap<String, Vec<Vec<usize>>>,
    }
    let golden: Golden = serde_json::from_str(include_str!("../../../tests/golden/split.json")).unwrap();
    let mut wrong = Vec::new();
    for (name, rows) in &golden.words {
        let splitter = Splitter::new(find(Some(name)).unwrap()).unwrap();
        assert_eq!(rows.len(), golden.texts.len());
        for (text, expected) in golden.texts.iter().zip(rows) {
            let mut found = Vec::new();
            splitter.split(text, |word| found.push(word.len()));
            if &found != expected {
                wrong.push(format!(
                    "{name} {text:?}: {:?}, expected lengths {expected:?}",
                    words(name, text)
                ));
            }
        }
    }
    // Rules that share the expressions of another are not listed; all others are.
    let listed: Vec<_> = KNOWN
        .iter()
        .filter(|rules| !golden.words.contains_key(rules.name()))
        .map(Rules::name)
        .collect();
    assert_eq!(listed, ["dbrx", "chatglm-bpe"]);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn words_of_short_texts() {
    let check = |name: &str, text: &str, expected: &[&str]| {
        assert_eq!(words(name, text), expected, "{name} {text:?}")
    };
    check(
        "gpt-2",
        "I'm  ok\n\nbye ",
        &["I", "'m", " ", " ok", "\n", "\n", "bye", " "],
    );
    check(
        "llama-bpe",
        "I'M 12345\n\n  x",
        &["I", "'M", " ", "123", "45", "\n\n", " ", " x"],
    );
    check("qwen2", "(a) 12", &["(a", ")", " ", "1", "2"]);
    check("smollm", "a 12b   ", &["a", " ", "1", "2", "b", "   "]);
    check(
        "deepseek-coder",
        "a b\n12 中文!",
        &["a", " b", "\n", "1", "2", " ", "中文", "!"],
    );
    check(
        "tekken",
        "HelloWorld'S 12",
        &["Hello", "World", "'S", " ", "1", "2"],
    );
    check(
        "gpt-4o",
        "HelloWorld's 1234 ÉCOLEécole",
        &["Hello", "World's", " ", "123", "4", " ÉCOLEécole"],
    );
    check("falcon", "a+b 1234", &["a", "+", "b", " ", "123", "4"]);
    check("bloom", "one, two", &["one", ",", " two"]);
    check("viking", "no12", &["no", "1", "2"]);
}

#[test]
fn unknown_names_are_errors_that_list_the_known() {
    for (name, part) in [(None, "is missing"), (Some("nope"), "\"nope\" is not supported")] {
        let error = find(name).unwrap_err();
        assert!(
            error.contains(part) && error.contains("llama-bpe, llama3") && error.contains("tekken"),
            "{error}"
        );
    }
}

#[test]
fn every_expression_compiles_and_no_name_is_twice() {
    let mut names: Vec<&str> = KNOWN.iter().flat_map(|rules| rules.names).copied().collect();
    for rules in &KNOWN {
        Splitter::new(rules).unwrap();
    }
    let len = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), len);
}

static SPLITTERS: LazyLock<Vec<Splitter>> =
    LazyLock::new(|| KNOWN.iter().map(|rules| Splitter::new(rules).unwrap()).collect());

proptest::proptest! {
    #[test]
    fn words_together_are_the_text(text in "(\\PC|\\s|[a-c '0-9\n]){0,60}") {
        for splitter in &*SPLITTERS {
            let mut joined = String::new();
            splitter.split(&text, |word| joined.push_str(word));
            proptest::prop_assert_eq!(&joined, &text);
        }
    }
}
