//! `foretoken train mlp`, for the tiny target: what it learns is of little use, but all of the way there is real.

use std::fs;
use std::time::{Duration, Instant};

use super::*;
use crate::json as parsed;

/// Trains for the tiny target and writes `out` in the directory.
fn train(directory: &Path, out: &str, args: &str) -> Command {
    let mut command = foretoken([
        "train",
        "mlp",
        "-t",
        "2",
        "-m",
        files().target.to_str().unwrap(),
        "-o",
    ]);
    command.arg(directory.join(out)).args(args.split_whitespace());
    command.current_dir(directory);
    command
}

fn refused(command: &mut Command, why: &str) {
    let (output, stdout, stderr) = output(command);
    assert_eq!((output.status.code(), stdout.as_str()), (Some(1), ""), "{stderr}");
    assert!(stderr.contains(why) && stderr.lines().count() == 1, "{stderr}");
}

#[test]
fn a_model_becomes_a_speculator_that_drafts_for_it() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    fs::write(directory.join("text.txt"), "the hen and the den ".repeat(40)).unwrap();
    let args = "--sequences 40 --steps 40 --seed 3 --data text.txt --log log.jsonl --export published";
    let report = parsed(&mut train(directory, "one.gguf", args));
    assert_eq!((&report["sequences"], &report["steps"]), (&40.into(), &40.into()));
    assert!(report["tokens"].as_u64() > Some(800), "{report}");
    assert_eq!(report["held_out"].as_array().unwrap().len(), 2);
    let recipe = report["recipe"].as_str().unwrap();
    assert!(recipe.contains("--steps 40 --seed 3"), "{recipe}");
    assert!(!directory.join("one.gguf.states").exists());

    // The log tells of a loss that falls.
    let log = fs::read_to_string(directory.join("log.jsonl")).unwrap();
    let lines: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let loss = |line: &Value| line["held_out"][0]["loss"].as_f64().unwrap();
    assert!(loss(lines.last().unwrap()) < loss(&lines[0]), "{log}");
    assert_eq!(lines.last().unwrap()["step"], 40);

    // It drafts, as does what it is in the published layout, and no token changes.
    let plain = parsed(&mut run("-p the-hen -n 24 --temp 0.7 --seed 5"));
    for speculator in ["one.gguf", "published"] {
        let speculator = directory.join(speculator);
        let drafting = format!(
            "-p the-hen -n 24 --temp 0.7 --seed 5 --draft-fixed 2 -d {}",
            speculator.display()
        );
        let drafted = parsed(&mut run(&drafting));
        assert_eq!(drafted["tokens"], plain["tokens"]);
        assert_eq!(drafted["speculation"]["note"], Value::Null);
        assert!(drafted["speculation"]["sources"]["mlp"]["drafted"].as_u64() > Some(0));
    }

    // The same command makes the same file, to the bit.
    parsed(&mut train(
        directory,
        "two.gguf",
        "--sequences 40 --steps 40 --seed 3 --data text.txt",
    ));
    let bytes = |name: &str| fs::read(directory.join(name)).unwrap();
    assert!(bytes("one.gguf") == bytes("two.gguf"));
}

#[test]
fn an_interrupted_run_is_gone_on_with() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let states = directory.join("s.gguf.states");
    let mut child = train(directory, "s.gguf", "--sequences 100000000")
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let rows = || fs::metadata(states.join("rows.bin")).map_or(0, |file| file.len());
    let start = Instant::now();
    while rows() < 1 << 16 && start.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let captured = || fs::read(states.join("rows.bin")).unwrap();
    let before = captured();
    assert!(!before.is_empty());
    refused(
        &mut train(directory, "s.gguf", "--sequences 30"),
        "--resume goes on with it",
    );
    assert!(before == captured());
    // What it has written is still there: the same as a run that nobody interrupted.
    let args = "--sequences 30 --steps 3";
    let report = parsed(&mut train(directory, "s.gguf", &format!("{args} --resume")));
    assert_eq!(report["steps"], 3);
    assert!(!states.exists());
    refused(&mut train(directory, "t.gguf", "--resume"), "nothing to --resume");
    parsed(&mut train(directory, "whole.gguf", args));
    let bytes = |name: &str| fs::read(directory.join(name)).unwrap();
    assert!(bytes("s.gguf") == bytes("whole.gguf"));
}

#[test]
fn states_of_another_seed_or_model_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    parsed(&mut train(
        directory,
        "a.gguf",
        "--sequences 24 --steps 2 --states states",
    ));
    // Kept, and enough for another training.
    let again = parsed(&mut train(
        directory,
        "b.gguf",
        "--sequences 24 --steps 2 --states states --heads 1",
    ));
    assert_eq!(again["held_out"].as_array().unwrap().len(), 1);
    refused(
        &mut train(
            directory,
            "c.gguf",
            "--sequences 24 --steps 2 --states states --seed 9",
        ),
        "meta.json: holds rows of",
    );
    for (args, why) in [
        ("--data missing.txt", "missing.txt"),
        ("--inner 64 --sequences 24", "twice the hidden size"),
        ("--log no/such/log.jsonl", "there is no such directory"),
    ] {
        refused(&mut train(directory, "d.gguf", args), why);
        assert!(!directory.join("d.gguf").exists());
    }
    refused(
        &mut train(directory, "no/such/d.gguf", ""),
        "there is no such directory",
    );
    // Nobody means to write over a model.
    refused(&mut train(directory, "a.gguf", ""), "--force replaces it");
    fs::create_dir(directory.join("model")).unwrap();
    fs::write(directory.join("model/config.json"), "{}").unwrap();
    refused(
        &mut train(directory, "d.gguf", "--export model"),
        "config.json is there already",
    );
    // A training that is over is not gone on with as another one.
    refused(
        &mut train(
            directory,
            "d.gguf",
            "--states states --resume --sequences 24 --steps 9",
        ),
        "--sequences 24 --steps 2",
    );
}
