//! Many clients at once: foretoken's server beside llama.cpp's with the same parallelism, and what a long prompt does to
//! those who wait beside it.
//!
//! Both servers stay loaded; for each number of clients the same prompts go to one, then to the other, in changing order.
use super::{commit, json, machine, number, today};
use crate::server::Server;
use crate::{command, models, python};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

const SCRIPT: &str = include_str!("server.py");
pub(super) const BEGIN: &str = "<!-- begin: written by `cargo xtask peers server` -->\n";

#[derive(clap::Args)]
pub(super) struct Args {
    /// Spec-Bench's questions (.jsonl), or an object of texts (.json) [default: bench/prompts.json]
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// Take so many prompts in all
    #[arg(long, value_name = "N", default_value_t = 16)]
    questions: usize,
    /// Most tokens of an answer
    #[arg(long, default_value_t = 96)]
    tokens: u32,
    /// Clients at once
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1,2,4,8")]
    clients: Vec<u32>,
    /// Rounds
    #[arg(long, default_value_t = 1)]
    rounds: u32,
    /// Threads of both
    #[arg(long, default_value_t = 2)]
    threads: u32,
    /// Words of the long prompt; a word is two to four tokens
    #[arg(long, default_value_t = 600)]
    words: u32,
    /// Write the table in docs/performance.md
    #[arg(long)]
    write: bool,
}

/// Measures, and shows what came of it.
pub(super) fn run(args: &Args) -> Result<()> {
    let path = args
        .prompts
        .clone()
        .unwrap_or_else(|| command::root().join("bench/prompts.json"));
    let texts = texts(&path, args.questions)?;
    let dir = models::ensure([&models::QWEN_1_5B, &models::QWEN_0_5B])?;
    let [target, draft] = [&models::QWEN_1_5B, &models::QWEN_0_5B].map(|model| model.path(&dir));
    let (target, draft) = (
        target.to_str().context("a path that is text")?,
        draft.to_str().context("a path that is text")?,
    );
    let commit = commit();
    let python = python::environment("peers", &["numpy", "httpx", super::PEER])?;
    super::build()?;
    let place = command::root().join("target/peers");
    let foretoken = place.join("foretoken");
    fs::copy(command::foretoken()?, &foretoken).context("cannot copy foretoken")?;
    let script = place.join("server.py");
    fs::write(&script, SCRIPT).context("cannot write the script")?;
    let prompts = place.join("server-prompts.json");
    fs::write(&prompts, serde_json::to_string(&texts)?).context("cannot write the prompts")?;

    let parallel = args.clients.iter().max().context("no clients")?.to_string();
    let threads = args.threads.to_string();
    let ours = [
        "-m",
        target,
        "-d",
        draft,
        "-t",
        &threads,
        "--parallel",
        &parallel,
        "-c",
        "4096",
        "--prefixes",
        "0",
    ];
    let ours = Server::start(&foretoken, &ours)?;
    let mut peer = Command::new(&python)
        .arg(&script)
        .args(["serve", target, &threads, &parallel, "4096"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start llama.cpp's server")?;
    let mut line = String::new();
    BufReader::new(peer.stdout.take().expect("piped")).read_line(&mut line)?;
    let about: Value = serde_json::from_str(&line).context("llama.cpp's server did not start")?;
    let theirs = about["url"].as_str().context("it has no address")?.to_string();
    let urls = [("foretoken", ours.url()), ("llama.cpp", theirs)];

    let script = |rest: &[&str]| json(Command::new(&python).arg(&script).args(rest));
    let prompts = prompts.to_str().context("a path that is text")?;
    let mut table = String::from(
        "| clients | foretoken, tokens/s | llama.cpp, tokens/s | ratio | first token, s | llama.cpp's | largest gap, s | llama.cpp's |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for (turn, clients) in args.clients.iter().enumerate() {
        let mut seen: [Vec<Value>; 2] = Default::default();
        for round in 0..args.rounds as usize {
            for at in [(turn + round) % 2, (turn + round + 1) % 2] {
                let (name, url) = &urls[at];
                let value = script(&[
                    "load",
                    url,
                    &clients.to_string(),
                    &args.tokens.to_string(),
                    prompts,
                ])?;
                eprintln!("{clients} clients, {name}: {value}");
                seen[at].push(value);
            }
        }
        let middle = |values: &[Value], figure: &dyn Fn(&Value) -> Result<f64>| -> Result<f64> {
            Ok(super::median(
                values.iter().map(figure).collect::<Result<Vec<_>>>()?,
            ))
        };
        let rate = |value: &Value| Ok(number(value, "tokens")? / number(value, "seconds")?);
        let [a, b] = [middle(&seen[0], &rate)?, middle(&seen[1], &rate)?];
        let other = |at: usize, field: &'static str| middle(&seen[at], &|value| number(value, field));
        writeln!(
            table,
            "| {clients} | {a:.1} | {b:.1} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} |",
            a / b,
            other(0, "first_s")?,
            other(1, "first_s")?,
            other(0, "largest_gap_s")?,
            other(1, "largest_gap_s")?,
        )?;
    }
    let mut stalls = String::new();
    for (name, url) in &urls {
        let value = script(&["stall", url, &args.words.to_string()])?;
        eprintln!("{name}: {value}");
        writeln!(
            stalls,
            "| {name} | {:.2} | {:.2} | {:.2} | {:.2} |",
            number(&value, "prompt_first_s")?,
            number(&value, "largest_gap_s")?,
            number(&value, "median_gap_s")?,
            number(&value, "short_first_s")?,
        )?;
    }
    drop(peer.stdin.take());
    let _ = peer.wait();
    let log = ours.stop()?;
    ensure!(!log.contains("panicked"), "the server panicked");
    let text = format!(
        "{}, {threads} threads; {} with {} to draft; foretoken {} at {commit}; llama.cpp of the Python package xllamacpp {}, without \
         drafts; {}. {} prompts of {}, greedy, at most {} tokens, {} rounds.\n\n{table}\nWhile a prompt of {} words is read:\n\n\
         | | its first token, s | a stream's largest gap, s | its median gap, s | first token of a short request, s |\n\
         |---|---|---|---|---|\n{stalls}",
        machine(),
        models::QWEN_1_5B.title,
        models::QWEN_0_5B.title,
        env!("CARGO_PKG_VERSION"),
        about["version"].as_str().unwrap_or("?"),
        today(),
        texts.len(),
        path.file_name().unwrap_or_default().display(),
        args.tokens,
        args.rounds,
        args.words,
    );
    println!("{text}");
    if args.write {
        super::write_section(BEGIN, &text)?;
    }
    Ok(())
}

/// Texts of a file, of all its kinds in turn.
fn texts(path: &std::path::Path, most: usize) -> Result<Vec<String>> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let all: Vec<String> = if path.extension().is_some_and(|extension| extension == "jsonl") {
        let line = |line: &str| -> Result<String> {
            let value: Value = serde_json::from_str(line)?;
            value["turns"][0]
                .as_str()
                .map(str::to_owned)
                .context("a question has no text")
        };
        text.lines().map(line).collect::<Result<_>>()?
    } else {
        let object: serde_json::Map<String, Value> = serde_json::from_str(&text)?;
        object
            .values()
            .filter_map(|value| value.as_str().map(str::to_owned))
            .collect()
    };
    // Every so many, so that all categories are among them.
    let step = (all.len() / most.max(1)).max(1);
    Ok(all.into_iter().step_by(step).take(most).collect())
}
