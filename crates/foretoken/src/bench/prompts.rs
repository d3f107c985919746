//! Prompts from a file: a JSON object of texts, Spec-Bench's lines of JSON, or one plain text.

use std::path::Path;

use anyhow::{Context, bail};
use foretoken::{Message, Session, Token};
use serde::Deserialize;
use serde_json::Value;

/// A prompt with a name.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    pub id: String,
    /// The group that it is counted in.
    pub category: String,
    pub text: Text,
}

/// How a prompt is given to the model.
#[derive(Clone, Debug, PartialEq)]
pub enum Text {
    /// As it stands, names of special tokens parsed.
    Raw(String),
    /// As a user's message, through the chat template.
    User(String),
}

/// A line of Spec-Bench.
#[derive(Deserialize)]
struct Question {
    question_id: Value,
    category: String,
    turns: Vec<String>,
}

/// Spec-Bench's groups; what is in none of them is one of MT-bench's categories.
const GROUPS: [&str; 5] = ["translation", "summarization", "qa", "math_reasoning", "rag"];

/// Reads the prompts, at most `most` of each category.
pub fn read(path: &Path, most: usize) -> anyhow::Result<Vec<Prompt>> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let prompts = match path.extension().and_then(|e| e.to_str()) {
        Some("json") => named(&text),
        Some("jsonl") => lines(&text),
        _ => Ok(vec![Prompt {
            id: name.into_owned(),
            category: "text".into(),
            text: Text::User(text),
        }]),
    };
    let mut prompts = prompts.with_context(|| path.display().to_string())?;
    let mut counts = std::collections::HashMap::new();
    prompts.retain(|prompt| {
        let count = counts.entry(prompt.category.clone()).or_insert(0);
        *count += 1;
        *count <= most
    });
    if prompts.is_empty() {
        bail!("{}: no prompts", path.display());
    }
    Ok(prompts)
}

/// An object of texts, each a category of its own.
fn named(text: &str) -> anyhow::Result<Vec<Prompt>> {
    let object: serde_json::Map<String, Value> = serde_json::from_str(text).context("no object of texts")?;
    let prompt = |(id, text): (String, Value)| match text {
        Value::String(text) => Ok(Prompt {
            category: id.clone(),
            id,
            text: Text::Raw(text),
        }),
        _ => bail!("{id:?} is no text"),
    };
    object.into_iter().map(prompt).collect()
}

fn lines(text: &str) -> anyhow::Result<Vec<Prompt>> {
    let prompt = |(at, line): (usize, &str)| {
        let question: Question =
            serde_json::from_str(line).with_context(|| format!("line {} is no question", at + 1))?;
        let id = match question.question_id {
            Value::String(id) => id,
            id => id.to_string(),
        };
        let group = GROUPS.contains(&question.category.as_str());
        let text = question.turns.into_iter().next();
        Ok(Prompt {
            text: Text::User(text.with_context(|| format!("line {} has no turn", at + 1))?),
            id,
            category: if group {
                question.category
            } else {
                "mt_bench".into()
            },
        })
    };
    let lines = text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty());
    lines.map(prompt).collect()
}

impl Prompt {
    /// The tokens for a session's model.
    pub fn tokens(&self, session: &Session) -> anyhow::Result<Vec<Token>> {
        Ok(match &self.text {
            Text::Raw(text) => session.raw(text)?,
            Text::User(text) if session.prompts().has_template() => {
                session.chat(&[Message::new("user", text)])?
            }
            Text::User(text) => session.plain(text)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read() {
        let dir = std::env::temp_dir().join(format!("foretoken-prompts-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let check = |name: &str, content: &str, most: usize, expected: &[(&str, &str)]| {
            let path = dir.join(name);
            std::fs::write(&path, content).unwrap();
            let prompts = read(&path, most).unwrap();
            let got: Vec<_> = prompts
                .iter()
                .map(|p| (p.id.as_str(), p.category.as_str()))
                .collect();
            assert_eq!(got, expected);
            prompts
        };
        let raw = check("a.json", r#"{"x":"one","y":"two"}"#, 1, &[("x", "x"), ("y", "y")]);
        assert_eq!(raw[1].text, Text::Raw("two".into()));
        let lines = r#"{"question_id":81,"category":"writing","turns":["a","b"]}
            {"question_id":"q","category":"roleplay","turns":["c"]}

            {"question_id":3,"category":"rag","turns":["d"],"other":1}"#;
        let read_lines = check(
            "b.jsonl",
            lines,
            9,
            &[("81", "mt_bench"), ("q", "mt_bench"), ("3", "rag")],
        );
        assert_eq!(read_lines[0].text, Text::User("a".into()));
        check("b.jsonl", lines, 1, &[("81", "mt_bench"), ("3", "rag")]);
        check("c.txt", "hello", 1, &[("c", "text")]);
        for (name, broken) in [
            ("d.json", "[1]"),
            ("d.json", r#"{"x":1}"#),
            ("d.json", "{}"),
            ("d.jsonl", "{}"),
            ("d.jsonl", r#"{"question_id":1,"category":"qa","turns":[]}"#),
        ] {
            let path = dir.join(name);
            std::fs::write(&path, broken).unwrap();
            let error = format!("{:#}", read(&path, 9).unwrap_err());
            assert!(error.contains(name), "{error}");
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
