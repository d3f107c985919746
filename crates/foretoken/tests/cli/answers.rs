//! `foretoken run`.

use super::*;

#[test]
fn every_drafter_gives_the_same_tokens() {
    for sampling in [
        "--temp 0",
        "--temp 0.9 --seed 3",
        "--temp 1.5 --seed 4 --repeat-penalty 1.2 --top-k 0",
    ] {
        let plain = json(&mut run(&format!(
            "-p the-hen-and-the-hen -n 40 {sampling} --drafter none"
        )));
        assert_eq!(plain["tokens"].as_array().unwrap().len(), 40);
        for drafting in [
            String::new(),
            "--drafter suffix".to_string(),
            "--drafter suffix --draft-fixed 3".to_string(),
            "--drafter recycling".to_string(),
            "--drafter recycling --draft-fixed 4".to_string(),
            draft_args(),
            format!("{} --draft-fixed 4", draft_args()),
            format!("{} --drafter model", draft_args()),
            format!("{} --draft-max 16 --draft-p-min 0.1 --draft-min 2", draft_args()),
            own_draft_args(),
            format!("{} --draft-fixed 4 --draft-vocab 1", draft_args()),
            format!("{} --draft-fixed 4 --draft-vocab 262", own_draft_args()),
        ] {
            let drafted = json(&mut run(&format!(
                "-p the-hen-and-the-hen -n 40 {sampling} {drafting}"
            )));
            assert_eq!(drafted["tokens"], plain["tokens"], "{sampling} {drafting}");
            assert_eq!(drafted["text"], plain["text"]);
        }
        let own = json(&mut run(&format!(
            "-p the-hen-and-the-hen -n 40 {sampling} --draft-fixed 4 {}",
            own_draft_args()
        )));
        assert_eq!(own["speculation"]["acceptance_rate"], 1.0);
        assert!(own["speculation"]["tokens_per_round"].as_f64().unwrap() > 2.0);
    }
}

#[test]
fn json_has_every_field_always() {
    for args in ["-n 1", "-n 9 --drafter none", &format!("-n 9 {}", draft_args())] {
        let object = json(&mut run(&format!("-p x --seed 5 {args}")));
        let check = |value: &Value, fields: &str| {
            assert_eq!(
                keys(value),
                fields.split_whitespace().map(String::from).collect(),
                "{args}"
            );
        };
        check(
            &object,
            "model draft draft_vocab seed sampling threads isa peak_bytes prompt_tokens tokens text finish_reason timings speculation",
        );
        check(
            &object["sampling"],
            "temperature top_k top_p min_p repeat_penalty repeat_last_n presence_penalty frequency_penalty logit_bias",
        );
        check(
            &object["timings"],
            "load_s prompt_s decode_s prompt_tps decode_tps target draft",
        );
        check(&object["timings"]["target"], "load_s prompt_s eval_s sample_s");
        check(&object["timings"]["draft"], "load_s prompt_s eval_s sample_s");
        check(
            &object["speculation"],
            "drafter off_reason note lossless forced_acceptance rounds proposed drafted accepted sources discarded_by_cut acceptance_rate \
             tokens_per_round accepted_per_position rows_histogram draft_s verify_s \
             predicted_tps plain_rounds",
        );
        assert_eq!(object["seed"], 5);
        assert!(object["timings"]["load_s"].as_f64().unwrap() > 0.0);
        let drafted = object["speculation"]["drafted"].as_u64().unwrap();
        assert_eq!(object["speculation"]["acceptance_rate"].is_null(), drafted == 0);
        if cfg!(target_os = "linux") {
            assert!(object["peak_bytes"].as_u64().unwrap() > 1 << 20);
        }
    }
    let plain = json(&mut run("-p x -n 1 --drafter none"));
    assert_eq!(plain["speculation"]["drafter"], "none");
    assert_eq!(plain["speculation"]["off_reason"], "no drafter was chosen");
    assert_eq!(plain["speculation"]["lossless"], true);
    assert_eq!(plain["timings"]["decode_tps"], Value::Null);
    let biased = json(&mut run("-p x -n 1 --logit-bias 5=-inf --logit-bias 6=1.5"));
    assert_eq!(
        biased["sampling"]["logit_bias"],
        serde_json::json!([[5, "-inf"], [6, 1.5]])
    );
}

#[test]
fn wrong_usage_is_exit_code_2() {
    for args in [
        "",
        "-p x --drafter model",
        "-p x --drafter none --draft-max 3",
        "-p x -f y",
        "-p x --raw --system y",
        "-p x --temp -1",
        "-p x -n 0",
        "-p x -t -1",
        "-p x --json --show-draft",
        "-p x --nonsense",
    ] {
        let mut command = if args.is_empty() {
            foretoken(["run"])
        } else {
            run(args)
        };
        let (output, stdout, stderr) = output(&mut command);
        assert_eq!(output.status.code(), Some(2), "{args}: {stderr}");
        assert!(
            stdout.is_empty() && stderr.starts_with("error: ") && stderr.contains("--help"),
            "{args}: {stderr}"
        );
    }
    let help = foretoken(["run", "--help"]).output().unwrap();
    assert!(help.status.success() && !help.stdout.is_empty());
}

#[test]
fn failures_are_one_line_and_exit_code_1() {
    let truncated = files().truncated.to_str().unwrap();
    let not_a_model = file!();
    let not_utf8 = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cli-not-utf8.txt");
    std::fs::write(&not_utf8, b"abc\xff").unwrap();
    let long = "x ".repeat(5000);
    let check = |mut command: Command, mentions: &str| {
        let (output, stdout, stderr) = output(&mut command);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stdout.is_empty(), "{stdout}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(
            stderr.starts_with("error: ") && stderr.contains(mentions),
            "{stderr}"
        );
    };
    check(
        foretoken(["run", "-m", "no-such-file.gguf", "-p", "x"]),
        "no-such-file.gguf",
    );
    check(foretoken(["run", "-m", truncated, "-p", "x"]), truncated);
    check(foretoken(["inspect", truncated]), truncated);
    check(
        foretoken(["run", "-m", &format!("../../{not_a_model}"), "-p", "x"]),
        "answers.rs",
    );
    check(foretoken(["inspect", "no-such-file.gguf"]), "no-such-file.gguf");
    check(run("-f no-such-prompt.txt"), "no-such-prompt.txt");
    check(run(&format!("-f {}", not_utf8.display())), "not UTF-8 at byte 3");
    check(run("-p x -c 1000000"), "4096");
    check(run("-p x --logit-bias 99999=1"), "99999");
    check(run(&format!("-p x -d {truncated}")), truncated);
    let mut too_long = run("");
    too_long.args(["-p", &long]);
    check(too_long, "no room in a context of 4096");
    let mut far_too_long = run("-c 8");
    far_too_long.args(["-p", &long]);
    check(far_too_long, "10000 bytes has no room in a context of 8 tokens");
    // Everything that the model could say is banned: that is no fault of the model's.
    let mut banned = run("-p x");
    let vocabulary = Tokenizer::from_gguf(&Gguf::open(&files().target).unwrap())
        .unwrap()
        .vocab_size();
    for token in 0..vocabulary {
        banned.args(["--logit-bias", &format!("{token}=-inf")]);
    }
    check(banned, "bans every token");
}

#[test]
fn the_prompt_comes_from_anywhere() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cli-prompt.txt");
    std::fs::write(&file, "the hen\r\n").unwrap();
    let settings = "-n 12 --seed 1";
    let mut argument = run(settings);
    let expected = json(argument.args(["-p", "the hen"]));
    let from_file = json(&mut run(&format!("{settings} -f {}", file.display())));
    assert_eq!(
        from_file["tokens"], expected["tokens"],
        "the last newline is not the prompt's"
    );
    let mut child = run(&format!("{settings} --json"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"the hen\n").unwrap();
    let piped: Value = serde_json::from_slice(&child.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(piped["tokens"], expected["tokens"]);
    // Raw, special tokens are parsed and nothing is added or removed.
    let turn = "<|im_start|>user\nthe hen<|im_end|>\n<|im_start|>assistant\n";
    let mut raw = run(&format!("{settings} --raw"));
    assert_eq!(json(raw.args(["-p", turn]))["tokens"], expected["tokens"]);
    // In a message they are text.
    let mut text = run(settings);
    assert!(json(text.args(["-p", turn]))["prompt_tokens"].as_u64() > expected["prompt_tokens"].as_u64());
    let mut system = run(settings);
    assert!(
        json(system.args(["-p", "the hen", "--system", "x"]))["prompt_tokens"].as_u64()
            > expected["prompt_tokens"].as_u64()
    );
}

#[test]
fn text_is_streamed_and_statistics_are_not() {
    let settings = format!("-p hen -n 30 --seed 2 --temp 1 --draft-fixed 4 {}", draft_args());
    let expected = json(&mut run(&settings));
    let (result, stdout, stderr) = output(&mut run(&settings));
    assert!(result.status.success());
    assert_eq!(stdout, format!("{}\n", expected["text"].as_str().unwrap()));
    for field in [
        "n_draft ",
        "n_predict = 30",
        "n_drafted ",
        "n_accept ",
        "accept ",
        "target:",
        "draft:",
        "prompt eval",
    ] {
        assert!(stderr.contains(field), "{field} in {stderr}");
    }
    assert!(
        stderr.contains("rounds decided") && !stderr.contains('\u{1b}'),
        "{stderr}"
    );
    let (_, _, stderr) = output(&mut run("-p hen -n 3 --drafter none"));
    assert!(
        stderr.contains("Speculation was off") && stderr.contains("no drafter was chosen"),
        "{stderr}"
    );
}

#[test]
fn a_seed_that_was_not_given_is_reported() {
    let drawn = json(&mut run("-p hen -n 20 --temp 1.2"));
    let again = json(&mut run(&format!(
        "-p hen -n 20 --temp 1.2 --seed {}",
        drawn["seed"]
    )));
    assert_eq!(drawn["tokens"], again["tokens"]);
    let other = json(&mut run("-p hen -n 20 --temp 1.2"));
    assert_ne!(
        (&drawn["seed"], &drawn["tokens"]),
        (&other["seed"], &other["tokens"])
    );
}

#[test]
fn a_stop_string_ends_the_text_before_it() {
    let settings = "-p hen -n 40 --seed 2 --temp 1";
    let whole = json(&mut run(settings));
    let text = whole["text"].as_str().unwrap();
    // Printable ASCII in the middle of the text: what a shell can pass.
    let stop = text
        .as_bytes()
        .windows(2)
        .skip(5)
        .find(|w| w.iter().all(u8::is_ascii_graphic));
    let stop = std::str::from_utf8(stop.expect("noise has some")).unwrap();
    for drafting in [String::new(), own_draft_args()] {
        let mut command = run(&format!("{settings} {drafting}"));
        let stopped = json(command.args(["--stop", "never said", "--stop", stop]));
        assert_eq!(
            stopped["text"].as_str().unwrap(),
            &text[..text.find(stop).unwrap()]
        );
        assert_eq!(stopped["finish_reason"], "stop");
        assert!(stopped["tokens"].as_array().unwrap().len() < 40);
    }
    assert_eq!(whole["finish_reason"], "length");
    let full = json(&mut run("-p hen -n -1 -c 64 --seed 2 --temp 1"));
    assert!(["context", "stop"].contains(&full["finish_reason"].as_str().unwrap()));
}

#[test]
fn drafts_are_shown_without_colours_too() {
    let settings = format!(
        "-p hen -n 30 --seed 2 --temp 0 --show-draft --draft-fixed 4 {}",
        draft_args()
    );
    let expected = json(&mut run(&settings.replace("--show-draft", "")));
    let (result, stdout, stderr) = output(&mut run(&settings));
    assert!(result.status.success());
    assert!(stderr.contains("[accepted] ~~rejected~~"), "{stderr}");
    assert!(stdout.contains("~~") && !stdout.contains('\u{1b}'), "{stdout}");
    let (_, own, _) = output(&mut run(&settings.replace(&draft_args(), &own_draft_args())));
    assert!(own.contains('[') && !own.contains("~~"), "{own}");
    let (_, coloured, _) = output(run(&settings).env("CLICOLOR_FORCE", "1"));
    assert!(coloured.contains('\u{1b}'), "{coloured}");
    assert!(!expected["text"].as_str().unwrap().is_empty());
}

#[test]
fn forced_acceptance_is_marked_everywhere() {
    let settings = format!(
        "-p hen -n 30 --temp 0 --seed 2 --force-accept 1 --draft-fixed 3 {}",
        draft_args()
    );
    let object = json(&mut run(&settings));
    assert_eq!(object["speculation"]["forced_acceptance"], 1.0);
    assert_eq!(object["speculation"]["lossless"], false);
    assert_eq!(object["speculation"]["acceptance_rate"], 1.0);
    let (_, _, stderr) = output(&mut run(&settings));
    assert!(stderr.contains("not the model's"), "{stderr}");
}

#[test]
fn a_draft_model_that_computes_nonsense_turns_drafting_off() {
    let model = TinyModel::llama();
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cli-nonsense.gguf");
    let mut tensors = model.tensors();
    let norm = tensors
        .iter_mut()
        .find(|t| t.name == "output_norm.weight")
        .unwrap();
    norm.data = norm.data.chunks(4).flat_map(|_| f32::NAN.to_le_bytes()).collect();
    write(&path, model.metadata(), tensors).unwrap();
    let plain = json(&mut run("-p the-hen -n 20 --temp 0.8 --seed 2 --drafter none"));
    let drafted = json(&mut run(&format!(
        "-p the-hen -n 20 --temp 0.8 --seed 2 --draft-fixed 2 -d {}",
        path.display()
    )));
    assert_eq!(drafted["tokens"], plain["tokens"]);
    let reason = drafted["speculation"]["off_reason"].as_str().unwrap();
    assert!(reason.contains("the draft model"), "{reason}");
}

#[test]
fn a_closed_output_ends_quietly() {
    let mut child = endless("run -p hen")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[cfg(unix)]
#[test]
fn an_interrupt_ends_with_statistics() {
    let mut child = endless("run -p hen")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0]).unwrap();
    let killed = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(killed.success());
    stdout.read_to_end(&mut Vec::new()).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(
        stderr.contains("finished: cancelled") && stderr.contains("n_predict"),
        "{stderr}"
    );
}

/// Before there is an answer an interrupt ends the process. A pipe that nobody reads, as the file of a trace, keeps it from
/// having one.
#[cfg(target_os = "linux")]
#[test]
fn an_interrupt_before_the_answer_says_so() {
    let pipe = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cli-pipe-{}", std::process::id()));
    let _ = std::fs::remove_file(&pipe);
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut child = run("-p hen --trace")
        .arg(&pipe)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Bit 1 of the mask of caught signals is that of SIGINT.
    let id = child.id();
    let catches = || {
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        let mask = status.lines().find_map(|l| l.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(mask.trim(), 16).unwrap() & 2 != 0
    };
    while !catches() {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        std::thread::yield_now();
    }
    let kill = Command::new("kill").args(["-INT", &id.to_string()]).status();
    assert!(kill.unwrap().success());
    let status = child.wait().unwrap();
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!((status.code(), stderr.as_str()), (Some(130), "interrupted\n"));
    std::fs::remove_file(&pipe).unwrap();
}

#[test]
fn smollm2_answers_the_same_with_drafts() {
    let Some(model) = real_model("smollm2-135m-instruct-q4_1.gguf") else {
        return;
    };
    let path = model.to_str().unwrap();
    let run = |extra: &[&str]| {
        let question = "Repeat this sentence three times: The quick brown fox jumps over the lazy dog.";
        let mut command = foretoken(["run", "-m", path, "-p", question, "-n", "32", "--temp", "0"]);
        json(command.args(extra))
    };
    let plain = run(&["--drafter", "none"]);
    let auto = run(&[]);
    let suffix = run(&["--drafter", "suffix", "--draft-fixed", "4"]);
    let own = run(&["-d", path, "--draft-fixed", "4"]);
    for drafted in [&auto, &suffix, &own] {
        assert_eq!(plain["tokens"], drafted["tokens"]);
    }
    assert_eq!(own["speculation"]["acceptance_rate"], 1.0);
    assert!(
        suffix["speculation"]["accepted"].as_u64().unwrap() > 0,
        "a repetition is found"
    );
    assert!(!plain["text"].as_str().unwrap().is_empty());
}

#[test]
fn a_draft_vocabulary_is_what_requests_held_first() {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cli-learned");
    let _ = std::fs::remove_dir_all(&cache);
    let learned = || {
        let files = std::fs::read_dir(cache.join("tokens")).into_iter().flatten();
        files.map(|file| file.unwrap().path()).collect::<Vec<_>>()
    };
    let answer = |args: &str| {
        let mut command = run("-p water-water-water -n 12 --temp 0");
        json(
            command
                .args(args.split_whitespace())
                .env("FORETOKEN_CACHE", &cache),
        )
    };
    // With its whole vocabulary nothing is learned.
    for (args, size) in [("--draft-vocab 0", 271), ("--draft-vocab 1000000", 271)] {
        let object = answer(&format!("{} {args}", draft_args()));
        assert_eq!(object["draft_vocab"], size);
        assert_eq!(learned(), Vec::<PathBuf>::new());
    }
    assert!(answer("")["draft_vocab"].is_null());
    // 256 bytes, two ends, and two of the merges.
    let object = answer(&format!("{} --draft-vocab 260", own_draft_args()));
    assert_eq!(object["draft_vocab"], 260);
    let files = learned();
    assert_eq!(files.len(), 1);
    let stored: Value = serde_json::from_slice(&std::fs::read(&files[0]).unwrap()).unwrap();
    let seen = stored["seen"].as_array().unwrap();
    let tokens: BTreeSet<u64> = seen.iter().map(|entry| entry[0].as_u64().unwrap()).collect();
    for token in object["tokens"].as_array().unwrap() {
        assert!(tokens.contains(&token.as_u64().unwrap()), "{token} of {tokens:?}");
    }
    assert!(seen.iter().all(|entry| entry[1] == 1));
    // What makes no sense is not heeded.
    std::fs::write(&files[0], "nonsense").unwrap();
    let again = answer(&format!("{} --draft-vocab 260", own_draft_args()));
    assert_eq!(again["tokens"], object["tokens"]);
    assert_ne!(std::fs::read(&files[0]).unwrap(), b"nonsense");
}

#[test]
fn json_of_a_schema() {
    let dir = tempfile::tempdir().unwrap();
    let schema = |name: &str, text: &str| {
        let file = dir.path().join(name);
        std::fs::write(&file, text).unwrap();
        file.display().to_string()
    };
    let fine = schema(
        "fine.json",
        r#"{"type": "array", "items": {"enum": ["hen", "egg"]}, "minItems": 2, "maxItems": 3}"#,
    );
    let plain = json(&mut run(&format!(
        "-p x --seed 5 --temp 1 -n 60 --drafter none --json-schema {fine}"
    )));
    let value: Value = serde_json::from_str(plain["text"].as_str().unwrap()).unwrap();
    assert!(
        value
            .as_array()
            .is_some_and(|items| (2..=3).contains(&items.len())),
        "{value}"
    );
    for drafting in ["--draft-fixed 3", &format!("--draft-fixed 3 {}", draft_args())] {
        let drafted = json(&mut run(&format!(
            "-p x --seed 5 --temp 1 -n 60 {drafting} --json-schema {fine}"
        )));
        assert_eq!(drafted["tokens"], plain["tokens"], "{drafting}");
    }
    for (file, text, says) in [
        (
            "odd.json",
            r#"{"uniqueItems": true, "type": "array"}"#,
            "uniqueItems",
        ),
        ("no.json", "{", "not JSON"),
    ] {
        let file = schema(file, text);
        let (output, _, stderr) = output(&mut run(&format!("-p x --json-schema {file}")));
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr.contains(&file) && stderr.contains(says), "{stderr}");
    }
}
