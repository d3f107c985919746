//! The command line, run as its users run it: over a tiny model of random weights, whose text is noise but
//! which has all that a real one has, and over SmolLM2 where it is there.

mod answers;
mod chat;
mod convert;
mod speculator;
#[path = "../speculators/mod.rs"]
mod speculators;
#[cfg(unix)]
mod terminal;
mod tools;
mod train;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use foretoken::gguf::Gguf;
use foretoken::gguf::testing::real_model;
use foretoken::gguf::{Array, Value as GgufValue};
use foretoken::model::testing::{TinyModel, write};
use foretoken::{Special, Tokenizer};
use serde_json::Value;

/// Tiny model files: a target, a draft for it that says other things, and the first half of a file.
struct Files {
    target: PathBuf,
    draft: PathBuf,
    truncated: PathBuf,
}

fn files() -> &'static Files {
    static FILES: OnceLock<Files> = OnceLock::new();
    FILES.get_or_init(|| {
        let path = |name: &str| Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cli-{name}.gguf"));
        let files = Files {
            target: path("target"),
            draft: path("draft"),
            truncated: path("truncated"),
        };
        TinyModel::llama().write(&files.target).unwrap();
        TinyModel {
            seed: 77,
            layers: 1,
            ..TinyModel::llama()
        }
        .write(&files.draft)
        .unwrap();
        let bytes = std::fs::read(&files.target).unwrap();
        std::fs::write(&files.truncated, &bytes[..bytes.len() / 2]).unwrap();
        files
    })
}

fn foretoken<'a>(args: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_foretoken"));
    command
        .args(args)
        .stdin(Stdio::null())
        .env("FORETOKEN_CACHE", env!("CARGO_TARGET_TMPDIR"))
        .env_remove("NO_COLOR")
        .env_remove("CLICOLOR_FORCE");
    command
}

fn output(command: &mut Command) -> (Output, String, String) {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("output is UTF-8");
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    (output, stdout, stderr)
}

/// `foretoken run` over the tiny target, with `args` as a shell would split them at spaces.
fn run(args: &str) -> Command {
    let mut command = foretoken(["run", "-m", files().target.to_str().unwrap()]);
    command.args(args.split_whitespace());
    command
}

fn json(command: &mut Command) -> Value {
    let (output, stdout, stderr) = output(command.arg("--json"));
    assert!(output.status.success(), "{stderr}");
    assert_eq!(stdout.lines().count(), 1, "one object on one line");
    serde_json::from_str(&stdout).unwrap()
}

fn draft_args() -> String {
    format!("-d {}", files().draft.display())
}

fn own_draft_args() -> String {
    format!("-d {}", files().target.display())
}

fn keys(value: &Value) -> BTreeSet<String> {
    value.as_object().unwrap().keys().cloned().collect()
}

/// `args` over a model whose answers only an interrupt ends: a long context, and no token that ends one.
fn endless(args: &str) -> Command {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("cli-endless-{:?}.gguf", std::thread::current().id()));
    TinyModel {
        context_length: 1 << 20,
        ..TinyModel::llama()
    }
    .write(&path)
    .unwrap();
    let tokenizer = Tokenizer::from_gguf(&Gguf::open(&path).unwrap()).unwrap();
    let mut command = foretoken(args.split_whitespace());
    command
        .args(["-n", "-1", "-c", "200000", "--temp", "1", "-m"])
        .arg(path);
    for token in tokenizer.end_of_generation() {
        command.args(["--logit-bias", &format!("{token}=-inf")]);
    }
    command
}

/// Options that leave a model over the tiny target nothing to say but the one token of this text.
fn only(text: &str) -> String {
    let tokenizer = Tokenizer::from_gguf(&Gguf::open(&files().target).unwrap()).unwrap();
    let wanted = tokenizer.encode(text, Special::Text);
    assert_eq!(wanted.len(), 1, "{text:?}");
    let others = (0..tokenizer.vocab_size() as u32).filter(|token| *token != wanted[0]);
    others
        .map(|token| format!("--logit-bias {token}=-inf "))
        .collect()
}
