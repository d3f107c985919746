//! A speculator on the command line.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::speculators::{HEADS, write};
use crate::{files, foretoken, json, only, output, run};

/// Speculators for the tiny target, factored and not.
fn speculators() -> &'static [PathBuf; 2] {
    static FILES: OnceLock<[PathBuf; 2]> = OnceLock::new();
    FILES.get_or_init(|| {
        [true, false].map(|factored| {
            let path = path(&format!("speculator-{factored}"));
            write(&path, &files().target, factored, |_| ());
            path
        })
    })
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cli-{name}.gguf"))
}

#[test]
fn it_drafts_and_changes_no_token() {
    for sampling in [
        "--temp 0",
        "--temp 0.8 --seed 3 --repeat-penalty 1.2",
        "--temp 1.3 --seed 4",
    ] {
        let settings = format!("-p the-hen -n 24 {sampling}");
        let plain = json(&mut run(&format!("{settings} --drafter none")));
        for file in speculators() {
            let file = file.display();
            for drafting in [
                "--drafter mlp",
                "--draft-fixed 2",
                "--drafter mlp --draft-fixed 8",
                "",
            ] {
                let drafted = json(&mut run(&format!("{settings} -d {file} {drafting}")));
                assert_eq!(drafted["tokens"], plain["tokens"], "{sampling} {drafting}");
                let spec = &drafted["speculation"];
                assert_eq!((&spec["off_reason"], &spec["note"]), (&().into(), &().into()));
                if drafting.contains("fixed") {
                    let drafted = spec["sources"]["mlp"]["drafted"].as_u64().unwrap();
                    assert!(drafted > 0 && spec["sources"].as_object().unwrap().len() == 1);
                }
            }
            // Fewer tokens, as a draft model: the model has 271.
            let few = json(&mut run(&format!(
                "{settings} -d {file} --draft-fixed 3 --draft-vocab 260"
            )));
            assert_eq!(few["tokens"], plain["tokens"]);
            assert_eq!(
                (
                    &few["draft_vocab"],
                    few["speculation"]["drafted"].as_u64() > Some(0)
                ),
                (&260.into(), true)
            );
        }
    }
}

#[test]
fn where_there_is_no_choice_it_is_right() {
    let file = speculators()[0].display();
    let one = json(&mut run(&format!(
        "-p hen -n 21 --temp 0.7 --draft-fixed 3 -d {file} {}",
        only("a")
    )));
    let spec = &one["speculation"];
    assert_eq!(
        (&spec["drafted"], &spec["accepted"]),
        (&15.into(), &15.into()),
        "{spec}"
    );
    assert_eq!(spec["rounds"], 20 / (HEADS + 1));
    assert!(one["timings"]["draft"]["eval_s"].as_f64() > Some(0.0));
    assert_eq!(one["timings"]["draft"]["prompt_s"], 0.0);
}

#[test]
fn the_drafter_and_the_file_must_be_of_a_kind() {
    let refused = |args: &str, parts: &[&str]| {
        let (result, stdout, stderr) = output(&mut run(&format!("-p hen {args}")));
        assert_eq!((result.status.code(), stdout.as_str()), (Some(1), ""), "{stderr}");
        for part in parts {
            assert!(stderr.contains(part), "{part}: {stderr}");
        }
    };
    let speculator = speculators()[0].display().to_string();
    let draft = files().draft.display().to_string();
    let needs_model = ["`model` needs a draft model; this is a speculator", &speculator];
    refused(&format!("--drafter model -d {speculator}"), &needs_model);
    let needs_speculator = ["`mlp` needs a speculator; this is a draft model", &draft];
    refused(&format!("--drafter mlp -d {draft}"), &needs_speculator);
    refused("--drafter mlp -d no-such.gguf", &["no-such.gguf"]);
    // Another model's.
    let other = path("speculator-other");
    write(&other, &files().target, true, |info| {
        info.config.hidden_size = 128
    });
    refused(
        &format!("-d {}", other.display()),
        &["cli-speculator-other.gguf", "128"],
    );
    // A directory without weights.
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cli-published");
    std::fs::create_dir_all(&directory).unwrap();
    let config = r#"{"model_type": "mlp_speculator", "architectures": ["MLPSpeculatorPreTrainedModel"], "emb_dim": 96,
                     "vocab_size": 271, "n_predict": 3}"#;
    std::fs::write(directory.join("config.json"), config).unwrap();
    refused(
        &format!("--drafter mlp -d {}", directory.display()),
        &["cli-published"],
    );
}

#[test]
fn one_that_was_made_for_another_model_is_used_and_told() {
    let check = |name: &str, expected: &str, change: fn(&mut foretoken::model::SpeculatorInfo)| {
        let file = path(name);
        write(&file, &files().target, true, change);
        let settings = format!("-p hen -n 8 --temp 0 --draft-fixed 3 -d {}", file.display());
        let object = json(&mut run(&settings));
        let note = object["speculation"]["note"].as_str().unwrap();
        assert!(note.contains(expected), "{note}");
        assert!(object["speculation"]["drafted"].as_u64() > Some(0));
        let (_, _, stderr) = output(&mut run(&settings));
        // At start, and with the statistics.
        assert!(stderr.starts_with(&format!("note: {note}\n")), "{stderr}");
        assert!(stderr.contains(&format!("Note: {note}.")), "{stderr}");
    };
    check("speculator-tokens", "another tokenizer", |info| {
        info.tokenizer_fingerprint = Some(1)
    });
    check("speculator-name", "\"Someone else\"", |info| {
        info.target_name = Some("Someone else".into())
    });
}

#[test]
fn predictions_and_measurements_take_it() {
    let target = files().target.to_str().unwrap();
    let file = speculators()[0].to_str().unwrap();
    let mut predict = foretoken([
        "predict", "-m", target, "-t", "1", "-d", file, "-p", "hen", "-n", "20",
    ]);
    let told = json(&mut predict);
    assert_eq!(told["lengths"].as_array().unwrap().len(), 1 + HEADS);
    assert!(told["draft_token_ms"].as_f64() > Some(0.0) && told["acceptance_is"] == "measured");

    let prompts = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cli-speculator-prompts.json");
    std::fs::write(&prompts, r#"{"a": "the hen"}"#).unwrap();
    let mut speed = foretoken([
        "bench",
        "speed",
        "-m",
        target,
        "-d",
        file,
        "--drafter",
        "mlp,auto",
        "-n",
        "12",
        "--repeat",
        "1",
    ]);
    let report = json(speed.arg("--prompts").arg(&prompts));
    let same = report["drafters"].as_array().unwrap().iter();
    assert_eq!(
        same.map(|arm| &arm["same_tokens"]).collect::<Vec<_>>(),
        [true, true]
    );
}
