//! `foretoken convert speculator`, and what `inspect` says of what it makes.

use super::*;
use serde_json::json;

/// A directory as MLP speculators are published: heads of 256, a target's state of 96, ten tokens; all weights are `weight`.
fn published(weight: f32) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let config = json!({
        "architectures": ["MLPSpeculatorPreTrainedModel"],
        "model_type": "mlp_speculator",
        "vocab_size": 10,
        "emb_dim": 96,
        "inner_dim": 256,
        "n_predict": 2,
        "top_k_tokens_per_head": [3, 2],
    });
    std::fs::write(directory.path().join("config.json"), config.to_string()).unwrap();
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for head in 0..2 {
        for (name, shape) in [
            (format!("proj.{head}.weight"), vec![256, [96, 256][head]]),
            (format!("ln.{head}.weight"), vec![256]),
            (format!("ln.{head}.bias"), vec![256]),
            (format!("emb.{head}.weight"), vec![10, 256]),
            (format!("head.{head}.weight"), vec![10, 256]),
        ] {
            let start = data.len();
            let weights = shape.iter().product();
            data.extend(std::iter::repeat_n(weight.to_le_bytes(), weights).flatten());
            let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [start, data.len()]});
            header.insert(format!("speculator.{name}"), entry);
        }
    }
    let header = Value::Object(header).to_string();
    let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat();
    std::fs::write(directory.path().join("model.safetensors"), bytes).unwrap();
    directory
}

fn convert(directory: &Path, file: &Path, args: &str) -> Command {
    let mut command = foretoken(["convert", "speculator"]);
    command
        .arg(directory)
        .arg("-o")
        .arg(file)
        .args(args.split_whitespace());
    command
}

#[test]
fn a_published_speculator_becomes_one_file() {
    let directory = published(0.5);
    let file = directory.path().join("made.gguf");
    let (result, stdout, stderr) = output(&mut convert(directory.path(), &file, "--type q4_k"));
    assert!(result.status.success(), "{stderr}");
    assert_eq!(stderr, "");
    let (first, rest) = stdout.split_once('\n').unwrap();
    assert!(
        first.ends_with("10 tensors, Q4_K") && first.contains("made.gguf: "),
        "{stdout}"
    );
    assert_eq!(
        rest,
        "spec.proj.0.weight is Q8_0: its rows are no whole blocks of Q4_K\n"
    );

    let object = json(&mut foretoken(["inspect", file.to_str().unwrap()]));
    assert_eq!(
        (&object["architecture"], &object["heads"], &object["inner_size"]),
        (&"mlp-speculator".into(), &2.into(), &256.into())
    );
    assert_eq!(object["top_k"], json!([3, 2]));
    let (_, stdout, _) = output(&mut foretoken(["inspect", file.to_str().unwrap()]));
    for part in ["mlp-speculator", "Q4_K", "vocabulary         10"] {
        assert!(stdout.contains(part), "{part} in {stdout}");
    }

    // What is there stays, unless it is to be replaced.
    let (result, _, stderr) = output(&mut convert(directory.path(), &file, ""));
    assert_eq!(result.status.code(), Some(1));
    assert!(
        stderr.contains("made.gguf: is there already; --force replaces it"),
        "{stderr}"
    );
    let object = json(&mut convert(directory.path(), &file, "--force"));
    assert_eq!(object["type"], "Q8_0");
    assert_eq!(object["bytes"], file.metadata().unwrap().len());
    let tensors = object["tensors"].as_array().unwrap();
    assert_eq!(tensors.len(), 10);
    assert!(
        tensors.iter().all(|tensor| tensor["fell_back"] == false),
        "{object}"
    );

    // It is no model that answers.
    let (result, _, stderr) = output(&mut foretoken(["run", "-p", "x", "-m", file.to_str().unwrap()]));
    assert_eq!(result.status.code(), Some(1));
    assert!(stderr.contains("\"mlp-speculator\" is not supported"), "{stderr}");
}

#[test]
fn what_is_no_speculator_leaves_no_file() {
    let check = |directory: &Path, why: &str| {
        let file = directory.join("made.gguf");
        let (result, stdout, stderr) = output(&mut convert(directory, &file, ""));
        assert_eq!((result.status.code(), stdout.as_str()), (Some(1), ""), "{stderr}");
        assert!(stderr.contains(why) && stderr.lines().count() == 1, "{stderr}");
        let left: Vec<_> = std::fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert!(
            left.iter().all(|name| !name.to_string_lossy().contains("made")),
            "{left:?}"
        );
    };
    check(
        published(f32::NAN).path(),
        "tensor \"spec.proj.0.weight\": holds NaN",
    );
    let cut = published(0.5);
    let path = cut.path().join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    check(cut.path(), "model.safetensors: ");
    std::fs::remove_file(cut.path().join("config.json")).unwrap();
    check(cut.path(), "config.json: No such file");
}
