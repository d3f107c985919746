//! `foretoken chat`, over pipes.

use super::*;
use serde_json::json;

/// `foretoken chat` over the tiny target, with `args` as a shell would split them at spaces.
pub fn chat(args: &str) -> Command {
    let mut command = foretoken(["chat", "-m", files().target.to_str().unwrap()]);
    command.args(args.split_whitespace());
    command
}

/// What comes of entering these lines: exit code, standard output and error.
fn talk(args: &str, lines: &str) -> (Option<i32>, String, String) {
    let mut child = chat(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // One that fails reads no more of it.
    let _ = child.stdin.take().unwrap().write_all(lines.as_bytes());
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// The answers to these lines.
fn said(args: &str, lines: &str) -> String {
    let (code, stdout, stderr) = talk(args, lines);
    assert_eq!(code, Some(0), "{stderr}");
    stdout
}

/// The answer of `foretoken run`, and a newline.
fn answer(args: &str, prompt: &str) -> String {
    let object = json(run(args).args(["-p", prompt]));
    format!("{}\n", object["text"].as_str().unwrap())
}

fn file(name: &str) -> PathBuf {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_file(&file);
    file
}

#[test]
fn the_first_answer_is_that_of_run() {
    for sampling in ["--temp 0", "--temp 1.1 --seed 3"] {
        let settings = format!("-n 30 {sampling}");
        let want = answer(&settings, "the hen and the hen");
        for drafting in [
            String::new(),
            "--drafter none".into(),
            format!("--draft-fixed 4 {}", draft_args()),
        ] {
            let args = format!("{settings} {drafting}");
            assert_eq!(said(&args, "the hen and the hen\n"), want, "{args}");
        }
        let system = format!("{settings} --system short");
        assert_eq!(
            said(&system, "hen"),
            answer(&system, "hen"),
            "the last line needs no newline"
        );
    }
}

#[test]
fn lines_are_messages() {
    let args = "-n 12 --temp 0";
    let check =
        |lines: &str, message: &str| assert_eq!(said(args, lines), answer(args, message), "{lines:?}");
    check("\n  \nhen\r\n\n", "hen");
    check("//help", "/help");
    check("one\\\n\\\ntwo\n", "one\n\ntwo");
    check("one\\", "one");
    check(" /help", " /help");
    let two = said(args, "hen\negg\n");
    let first = answer(args, "hen");
    assert!(two.starts_with(&first) && two.len() > first.len() + 1, "{two:?}");
}

#[test]
fn a_second_turn_computes_only_what_is_new() {
    let args = format!("-n 10 --temp 0 --drafter none {}", only("z"));
    let (code, stdout, stderr) = talk(&args, "hen\n/stats\negg\n/stats\n");
    assert_eq!(
        (code, &*stdout),
        (Some(0), "zzzzzzzzzz\nzzzzzzzzzz\n"),
        "{stderr}"
    );
    let sums: Vec<Vec<usize>> = stderr
        .lines()
        .filter(|line| line.starts_with("prompts:"))
        .map(|line| {
            line.split_whitespace()
                .filter_map(|word| word.parse().ok())
                .collect()
        })
        .collect();
    let [first, both] = &sums[..] else {
        panic!("{stderr}")
    };
    assert_eq!(first[1], 0, "nothing was there before: {stderr}");
    // Of the answer all but the token that was drawn last, which no pass has seen.
    assert_eq!(both[1], first[0] + 9, "{stderr}");
    assert!(
        stderr.contains(&format!("and {} from the cache", both[1])),
        "{stderr}"
    );
}

#[test]
fn an_answer_does_not_depend_on_what_is_cached() {
    let path = file("chat-cached.json");
    let args = "-n 30 --temp 0";
    let both = said(args, &format!("the hen\nand the egg\n/save {}\n", path.display()));
    let mut messages: Vec<Value> = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(messages.len(), 4);
    let last = messages.pop().unwrap();
    std::fs::write(&path, serde_json::to_string(&messages).unwrap()).unwrap();
    let again = said(args, &format!("/load {}\n/regenerate\n", path.display()));
    assert_eq!(again, format!("{}\n", last["content"].as_str().unwrap()));
    assert!(both.ends_with(&again), "{both:?}");
}

#[test]
fn drafts_change_no_answer_of_a_conversation() {
    let lines = "the hen and the hen\nand the egg\n/regenerate\nthe hen\n";
    let args = "-n 30 --temp 0.9 --seed 3";
    let want = said(&format!("{args} --drafter none"), lines);
    for drafting in [
        String::new(),
        "--drafter suffix --draft-fixed 3".into(),
        format!("--draft-fixed 4 {}", draft_args()),
        format!("--drafter model {}", own_draft_args()),
    ] {
        assert_eq!(said(&format!("{args} {drafting}"), lines), want, "{drafting}");
    }
}

#[test]
fn a_conversation_is_saved_and_nothing_is_overwritten() {
    let path = file("chat-saved.json");
    let name = path.display();
    let args = "-n 8 --temp 0 --system short";
    let stdout = said(args, &format!("hen\n/save {name}\n"));
    let saved = || serde_json::from_slice::<Value>(&std::fs::read(&path).unwrap()).unwrap();
    let want = json!([
        {"role": "system", "content": "short"},
        {"role": "user", "content": "hen"},
        {"role": "assistant", "content": stdout.strip_suffix('\n').unwrap()},
    ]);
    assert_eq!(saved(), want);
    let (code, _, stderr) = talk(args, &format!("egg\n/save {name}\n"));
    assert_eq!(code, Some(1));
    assert!(stderr.contains("chat-saved.json is there already"), "{stderr}");
    assert_eq!(saved(), want);
    said(args, &format!("egg\n/save! {name}\n"));
    assert_eq!(saved()[1]["content"], "egg");
}

#[test]
fn commands_change_the_conversation() {
    let args = "-n 12 --temp 1 --seed 4";
    let check = |lines: &str, want: &[String]| assert_eq!(said(args, lines), want.concat(), "{lines}");
    let hen = answer(args, "hen");
    let short = answer(&format!("{args} --system short"), "hen");
    assert_ne!(hen, short);
    check("hen\n/clear\nhen\n", &[hen.clone(), hen.clone()]);
    check("/system short\nhen\n/new\nhen\n", &[short.clone(), short.clone()]);
    check(
        "/system short\n/system \"\"\nhen\n/quit\negg\n",
        std::slice::from_ref(&hen),
    );
    // Another seed's noise, and so another answer; the next message follows that one.
    let path = file("chat-anew.json");
    let anew = said(args, &format!("hen\n/regenerate\n/save {}\n", path.display()));
    let second = anew.strip_prefix(&hen).unwrap();
    assert_ne!(second, hen);
    let saved: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(saved.as_array().unwrap().len(), 2);
    assert_eq!(format!("{}\n", saved[1]["content"].as_str().unwrap()), second);
    let (code, stdout, stderr) = talk(args, "/help\n/system x\n/system\n");
    assert_eq!((code, &*stdout), (Some(0), ""));
    assert!(
        stderr.contains("/regenerate") && stderr.contains("message is: x"),
        "{stderr}"
    );
}

#[test]
fn what_fails_ends_a_script_with_its_line() {
    let args = "-n 4 --temp 0";
    let check = |args: &str, lines: &str, answers: usize, mentions: &str| {
        let (code, stdout, stderr) = talk(args, lines);
        assert_eq!(
            (code, stdout.is_empty()),
            (Some(1), answers == 0),
            "{lines}: {stderr}"
        );
        let error = stderr.lines().last().unwrap();
        assert!(
            error.starts_with("error: standard input, line ") && error.contains(mentions),
            "{stderr}"
        );
    };
    check(
        args,
        "hen\n/nonsense x\negg\n",
        1,
        "line 2: there is no command /nonsense",
    );
    check(args, "/regenerate", 0, "line 1: /regenerate");
    check(args, "\n/save x", 0, "line 2: /save: nothing is said yet");
    check(args, "/stats", 0, "nothing was answered yet");
    check(args, "/load no-such-file", 0, "no-such-file");
    check(args, "hen\n/load x", 1, "/clear");
    check(
        "-n 4 -c 40",
        &format!("hen\n{}\n", "egg ".repeat(20)),
        1,
        "line 2: nothing was sent",
    );
    check(
        "-n 4 -c 40",
        &"x".repeat(100_000),
        0,
        "has no room in a context of 40",
    );
    let mut banned = String::new();
    for token in 0..271 {
        banned += &format!(" --logit-bias {token}=-inf");
    }
    check(&banned, "hen", 0, "bans every token");
    // A file that holds no text.
    let mut child = chat(args)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"ab\xff\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains("standard input, line 1: not UTF-8 at byte 2"),
        "{stderr}"
    );
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn what_cannot_be_a_conversation_fails_at_once() {
    let model = TinyModel::llama();
    let path = file("chat-no-template.gguf");
    let metadata = model.metadata().into_iter();
    let metadata = metadata
        .filter(|(key, _)| key != "tokenizer.chat_template")
        .collect();
    write(&path, metadata, model.tensors()).unwrap();
    let (result, _, stderr) = output(&mut foretoken(["chat", "-m", path.to_str().unwrap()]));
    assert_eq!(result.status.code(), Some(1));
    assert!(
        stderr.contains("no chat template") && stderr.contains("chat-no-template.gguf"),
        "{stderr}"
    );
    for args in ["--drafter model", "-n 0", "-p x", &"--stop x ".repeat(65)] {
        let (code, stdout, stderr) = talk(args, "hen\n");
        assert_eq!((code, stdout.is_empty()), (Some(2), true), "{args}: {stderr}");
        assert!(
            stderr.starts_with("error: ") && stderr.contains("--help"),
            "{stderr}"
        );
    }
}

#[test]
fn a_full_context_is_said() {
    let args = format!("-c 64 --temp 0 {}", only("z"));
    let (code, stdout, stderr) = talk(&args, "hen\n/clear\negg\n");
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(stdout.lines().count(), 2);
    assert_eq!(
        stderr.matches("the context of 64 tokens is full").count(),
        2,
        "{stderr}"
    );
    let (code, stdout, stderr) = talk(&args, "hen\negg\n");
    assert_eq!((code, stdout.lines().count()), (Some(1), 1), "{stderr}");
    assert!(stderr.contains("line 2: nothing was sent"), "{stderr}");
}

#[cfg(unix)]
pub fn interrupt(child: &std::process::Child) {
    let kill = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(kill.unwrap().success());
}

#[cfg(unix)]
#[test]
fn an_interrupt_stops_the_answer_and_keeps_what_was_said() {
    let path = file("chat-interrupted.json");
    let mut child = endless("chat")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    write!(stdin, "hen\n/save {}\n/quit\n", path.display()).unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut text = vec![0];
    stdout.read_exact(&mut text).unwrap();
    interrupt(&child);
    stdout.read_to_end(&mut text).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stderr.contains("note: stopped"), "{stderr}");
    let saved: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let said = format!("{}\n", saved[1]["content"].as_str().unwrap());
    assert_eq!(said.as_bytes(), text);
}

#[cfg(unix)]
#[test]
fn an_interrupt_ends_a_chat_that_waits() {
    let mut child = endless("chat")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"hen\n").unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0]).unwrap();
    interrupt(&child);
    let mut stderr = child.stderr.take().unwrap();
    let mut seen = String::new();
    // The answer is over once that is said.
    while !seen.ends_with("conversation\n") {
        let mut byte = [0];
        stderr.read_exact(&mut byte).unwrap();
        seen.push(byte[0].into());
    }
    interrupt(&child);
    stderr.read_to_string(&mut seen).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(seen.ends_with("interrupted\n"), "{seen}");
    drop(stdin);
}

#[test]
fn a_closed_output_ends_a_chat_quietly() {
    let mut child = endless("chat")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    child.stdin.take().unwrap().write_all(b"hen\negg\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}
