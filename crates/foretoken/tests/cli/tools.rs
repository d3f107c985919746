//! `foretoken bench`, `predict`, `trace` and `inspect`.

use super::*;

#[test]
fn a_trace_has_a_line_for_each_round_and_can_be_converted() {
    let trace = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cli-trace.jsonl");
    let mut command = run("-p the-hen-and-the-hen-and-the-hen -n 30 --temp 0 --trace");
    let object = json(command.arg(&trace));
    let lines: Vec<Value> = std::fs::read_to_string(&trace)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(
        lines.len() as u64,
        object["speculation"]["rounds"].as_u64().unwrap()
    );
    let sum = |field: &str| lines.iter().map(|l| l[field].as_u64().unwrap()).sum::<u64>();
    assert_eq!(sum("tokens"), 29);
    assert_eq!(
        sum("accepted"),
        object["speculation"]["accepted"].as_u64().unwrap()
    );
    for line in &lines {
        // Where a single token is left to come there is nothing to decide.
        if let Some(predicted) = line["predicted_s"].as_f64() {
            assert!(predicted > 0.0 && line["plain_tps"].as_f64().unwrap() > 0.0);
            assert_eq!(line["plain"].is_string(), line["rows"] == 1);
        }
    }
    let chrome = |file: &Path| {
        let (result, stdout, stderr) = output(foretoken(["trace"]).arg(file));
        (result.status.code(), stdout, stderr)
    };
    let (code, stdout, _) = chrome(&trace);
    let events: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(
        (code, events["traceEvents"].as_array().unwrap().len()),
        (Some(0), 2 * lines.len() + 1)
    );
    std::fs::write(&trace, "{}\n").unwrap();
    let (code, _, stderr) = chrome(&trace);
    assert!(code == Some(1) && stderr.contains("line 1"), "{stderr}");
}

#[test]
fn bench_speed_compares_with_plain_decoding() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (prompts, page) = (dir.join("cli-prompts.json"), dir.join("cli-speed.html"));
    std::fs::write(&prompts, r#"{"a":"the-hen-and-the-hen","b":"<x>"}"#).unwrap();
    let mut command = foretoken([
        "bench",
        "speed",
        "-m",
        files().target.to_str().unwrap(),
        "-t",
        "1",
    ]);
    command.args(["-n", "12", "--repeat", "2", "--drafter", "auto,none", "--prompts"]);
    let report = json(command.arg(&prompts).arg("--report").arg(&page));
    assert_eq!(report["same_tokens"], true);
    let questions = report["questions"].as_array().unwrap();
    let ids: Vec<_> = questions.iter().map(|q| q["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["a", "b"]);
    for question in questions {
        for field in ["prompt_tokens", "plain_tps", "spec_tps", "ratio", "decode_ratio"] {
            assert!(question[field].as_f64().unwrap() > 0.0, "{field}");
        }
    }
    for field in ["min_ratio", "median_ratio", "mean_ratio", "total_time_ratio"] {
        assert!(report[field].as_f64().unwrap() > 0.0, "{field}");
    }
    assert_eq!(report["drafters"].as_array().unwrap().len(), 2);
    let html = std::fs::read_to_string(&page).unwrap();
    // Three pictures of each drafter, and what passes cost.
    assert!(html.starts_with("<!doctype html>") && html.matches("<svg").count() == 7);
    for outside in ["src=", "href=", "url(", "@import"] {
        assert!(!html.contains(outside), "the page needs nothing else: {outside}");
    }
    let mut model = foretoken([
        "bench",
        "speed",
        "-m",
        files().target.to_str().unwrap(),
        "--drafter",
        "model",
    ]);
    let (result, _, stderr) = output(model.arg("--prompts").arg(&prompts));
    assert!(
        result.status.code() == Some(1) && stderr.contains("needs a draft model"),
        "{stderr}"
    );
    let (result, _, stderr) = output(
        foretoken([
            "bench",
            "speed",
            "-m",
            files().target.to_str().unwrap(),
            "--prompts",
        ])
        .arg("no-such.json"),
    );
    assert!(
        result.status.code() == Some(1) && stderr.contains("no-such.json"),
        "{stderr}"
    );
}

#[test]
fn predict_says_what_drafts_would_gain() {
    let target = files().target.to_str().unwrap();
    let predict = |args: &str| {
        let mut command = foretoken(["predict", "-m", target, "-t", "1"]);
        command.args(args.split_whitespace());
        command
    };
    let told = json(&mut predict("--acceptance 0.95"));
    let eight = &told["lengths"][8];
    assert!((eight["accepted_per_round"].as_f64().unwrap() - 6.4).abs() < 0.01);
    assert!((eight["textbook_speedup"].as_f64().unwrap() - 7.4).abs() < 0.01);
    assert_eq!(told["lengths"].as_array().unwrap().len(), 17);
    let measured = json(&mut predict(&format!(
        "-p hen -n 20 -d {}",
        files().draft.display()
    )));
    assert_eq!(measured["acceptance_is"], "measured");
    assert!(measured["draft_token_ms"].as_f64().unwrap() > 0.0);
    let (result, stdout, _) = output(&mut predict(""));
    assert!(
        result.status.success() && stdout.contains("assumed") && stdout.contains("textbook"),
        "{stdout}"
    );
}

#[test]
fn bench_cost_reports_every_pass_beside_its_floor() {
    let target = files().target.to_str().unwrap();
    let plot = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cli-cost.svg");
    let bench = |args: &str| {
        let mut command = foretoken(["bench", "cost", "-m", target, "-t", "1", "--repeat", "2"]);
        command.args(args.split_whitespace());
        command
    };
    let report = json(bench("--rows 1,4 --context 0,40").arg("--plot").arg(&plot));
    let expected = "model threads isa last_row_only logits repeat read_gb_s int8_gmac_s bytes_per_pass rows crossover_rows";
    assert_eq!(
        keys(&report),
        expected.split_whitespace().map(String::from).collect()
    );
    let rows = report["rows"].as_array().unwrap();
    let cases: Vec<_> = rows
        .iter()
        .map(|r| (r["context"].as_u64().unwrap(), r["n"].as_u64().unwrap()))
        .collect();
    assert_eq!(cases, [(0, 1), (0, 4), (40, 1), (40, 4)]);
    for row in rows {
        let number = |field: &str| row[field].as_f64().unwrap();
        assert!(number("min_ms") <= number("median_ms") && number("median_ms") <= number("max_ms"));
        assert!((number("floor_ms") / number("median_ms") - number("floor_share")).abs() < 1e-9);
    }
    assert_eq!(rows[0]["ratio"], 1.0);
    // Keys and values add to what has to be read; the logits of one row take less than those of four.
    let bytes = |row: &Value| row["gb_s"].as_f64().unwrap() * row["median_ms"].as_f64().unwrap();
    assert!(bytes(&rows[2]) > bytes(&rows[0]));
    let last = json(&mut bench("--rows 4 --last-row-only"));
    let multiply_adds = |row: &Value| row["gmac_s"].as_f64().unwrap() * row["median_ms"].as_f64().unwrap();
    assert!(multiply_adds(&last["rows"][0]) < multiply_adds(&rows[1]));
    assert_eq!(last["rows"][0]["ratio"], Value::Null, "nothing to compare with");
    let part = json(&mut bench("--rows 4 --draft-vocab 260"));
    assert_eq!((&report["logits"], &part["logits"]), (&271.into(), &260.into()));
    assert!(multiply_adds(&part["rows"][0]) < multiply_adds(&rows[1]));
    let svg = std::fs::read_to_string(&plot).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("milliseconds"), "{svg}");
    let (_, table, _) = output(&mut bench("--rows 1,2"));
    assert!(table.contains("T(n)/T(1)") && table.contains("1.00"), "{table}");
    let (result, _, stderr) = output(&mut bench("--context 100000"));
    assert_eq!(result.status.code(), Some(1));
    assert!(stderr.contains("do not fit the model's context of"), "{stderr}");
    let (result, _, _) = output(&mut bench("--rows 0"));
    assert_eq!(result.status.code(), Some(2));
}

#[test]
fn bench_machine_reports_both_ceilings() {
    let report = json(&mut foretoken(["bench", "machine", "-t", "1", "--repeat", "1"]));
    assert_eq!(report["threads"], 1);
    for field in ["read_gb_s", "int8_gmac_s"] {
        assert!(report[field].as_f64().unwrap() > 0.1, "{report}");
    }
}

#[test]
fn inspect_shows_what_a_file_holds() {
    let target = files().target.to_str().unwrap();
    let (result, stdout, _) = output(&mut foretoken(["inspect", target]));
    assert!(result.status.success());
    for part in [
        "architecture",
        "llama",
        "Q8_0",
        "read per token",
        "tokenizer",
        "gpt2",
        "chat template",
        "<|im_start|>",
    ] {
        assert!(stdout.contains(part), "{part} in {stdout}");
    }
    let (_, stdout, _) = output(&mut foretoken(["inspect", target, "--json"]));
    let object: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(
        (&object["architecture"], &object["supported"]),
        (&"llama".into(), &true.into())
    );
    let bytes: u64 = object["types"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t["bytes"].as_u64().unwrap())
        .sum();
    assert!(bytes <= object["bytes"].as_u64().unwrap());
    // The head is the embedding: all is read.
    assert_eq!(object["bytes_per_token"], bytes);
}

#[test]
fn inspect_shows_sizes_that_differ_by_layer() {
    let model = TinyModel::llama();
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cli-sizes-by-layer.gguf");
    let sizes = |sizes: &[u32]| GgufValue::Array(Array::U32(sizes.to_vec()));
    let mut metadata = model.metadata();
    for (key, value) in &mut metadata {
        match key.as_str() {
            "llama.feed_forward_length" => *value = sizes(&[160, 320]),
            "llama.attention.head_count_kv" => *value = sizes(&[2, 2]),
            _ => {}
        }
    }
    write(&path, metadata, model.tensors()).unwrap();
    let path = path.to_str().unwrap();
    let (result, stdout, stderr) = output(&mut foretoken(["inspect", path]));
    assert!(result.status.success(), "{stderr}");
    assert!(stdout.contains("160 to 320 by layer"), "{stdout}");
    let object = json(&mut foretoken(["inspect", path]));
    assert_eq!(object["feed_forward_size"], serde_json::json!([160, 320]));
    assert_eq!(object["kv_heads"], serde_json::json!([2, 2]));
}

#[test]
fn inspect_knows_files_that_cannot_be_run() {
    let Some(gemma) = real_model("gemma-3-270m-q4_k_m.gguf") else {
        return;
    };
    let path = gemma.to_str().unwrap();
    let (result, stdout, stderr) = output(&mut foretoken(["inspect", path]));
    assert!(result.status.success(), "{stderr}");
    assert!(stdout.contains("gemma3 (foretoken cannot run it)"), "{stdout}");
    let (result, _, stderr) = output(&mut foretoken(["run", "-m", path, "-p", "x"]));
    assert_eq!(result.status.code(), Some(1));
    assert!(stderr.contains("gemma3") && stderr.contains("llama"), "{stderr}");
}
