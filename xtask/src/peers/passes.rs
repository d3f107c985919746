//! What a pass over n rows costs, foretoken beside llama.cpp.
//!
//! A round is one process of each, so that neither disturbs the other; the drift of a shared machine hits both.
//! A ratio is the median of the rounds' ratios.
use super::{Peer, commit, json, machine, median, number, today};
use crate::models::Model;
use crate::{command, models};
use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SCRIPT: &str = include_str!("passes.py");
pub(super) const BEGIN: &str = "<!-- begin: written by `cargo xtask peers` -->\n";

/// Numbers of rows that both are timed with; the last is a prompt.
const ROWS: [u64; 7] = [1, 2, 3, 4, 8, 16, 128];
/// Tokens of an answer.
const TOKENS: &str = "96";
/// What is answered: a text to go on with, as any model can.
const PROMPT: &str =
    "The lighthouse keeper wakes before dawn. She climbs the ninety-two steps to the lamp room and";

#[derive(clap::Args)]
pub(super) struct Args {
    /// Rounds; each takes about two minutes
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Threads of both
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    threads: u32,
}

/// Measures the models and writes the table.
pub(super) fn run(args: &Args) -> Result<()> {
    let &Args { rounds, threads } = args;
    let subjects = [&models::QWEN_1_5B, &models::QWEN_0_5B, &models::SMOLLM2];
    let dir = models::ensure(subjects)?;
    super::build()?;
    let peer = Peer::install()?;
    let files = Files {
        script: peer.place("passes.py", SCRIPT)?,
        prompt: peer.place("prompt.txt", PROMPT)?,
    };
    let mut text = String::new();
    let mut version = String::new();
    for model in subjects {
        let mut taken = Vec::new();
        for round in 1..=rounds {
            eprintln!("{}: round {round} of {rounds}", model.title);
            taken.push(Round::take(&model.path(&dir), threads, &peer, &files)?);
        }
        version.clone_from(&taken[0].peer_version);
        table(&mut text, model, &taken);
    }
    let head = format!(
        "{}, {threads} threads; foretoken {} at {}; llama.cpp of the Python package xllamacpp {version}; {}. Medians of \
         {rounds} rounds, each one process of both.\n",
        machine(),
        env!("CARGO_PKG_VERSION"),
        commit(),
        today(),
    );
    super::write_section(BEGIN, &format!("{head}{text}"))?;
    println!("{head}{text}");
    Ok(())
}

/// What llama.cpp is given to read.
struct Files {
    script: PathBuf,
    prompt: PathBuf,
}

/// What one round found, in milliseconds and tokens per second.
struct Round {
    peer_version: String,
    /// Ours with the logits of the last row, ours with all, and theirs, which has those of the last row.
    rows: BTreeMap<u64, [f64; 3]>,
    decode: [f64; 2],
    /// What a pass over one row reads, against what the machine can.
    read_share: f64,
    read_gb_s: f64,
    int8_gmac_s: f64,
}

impl Round {
    fn take(model: &Path, threads: u32, peer: &Peer, files: &Files) -> Result<Self> {
        let (threads, rows) = (threads.to_string(), ROWS.map(|n| n.to_string()).join(","));
        let cost = |extra: &[&str]| -> Result<Value> {
            let mut ours = Command::new(command::foretoken()?);
            ours.args([
                "bench", "cost", "--json", "--repeat", "5", "--rows", &rows, "-t", &threads, "-m",
            ]);
            json(ours.arg(model).args(extra))
        };
        let (last, all) = (cost(&["--last-row-only"])?, cost(&[])?);
        let mut run = Command::new(command::foretoken()?);
        run.args([
            "run",
            "--raw",
            "--json",
            "--temp",
            "0",
            "--drafter",
            "none",
            "-n",
            TOKENS,
            "-t",
            &threads,
            "-m",
        ]);
        let ours = json(run.arg(model).arg("-f").arg(&files.prompt))?;
        let mut theirs = Command::new(&peer.python);
        theirs
            .arg(&files.script)
            .arg(model)
            .args([&threads, &rows, "3", TOKENS])
            .arg(&files.prompt);
        let theirs = json(theirs.stderr(Stdio::null()))?;

        let point = |report: &Value, n: u64, field: &str| -> Result<f64> {
            let rows = report["rows"].as_array().context("no rows in the report")?;
            let row = rows.iter().find(|row| row["n"] == n);
            number(row.context("a number of rows is not in the report")?, field)
        };
        let rows = ROWS.into_iter().map(|n| {
            let ours = [&last, &all].map(|report| point(report, n, "median_ms"));
            let [last, all] = ours;
            Ok((n, [last?, all?, number(&theirs["rows_ms"], &n.to_string())?]))
        });
        Ok(Self {
            peer_version: theirs["version"].as_str().context("no version")?.to_owned(),
            rows: rows.collect::<Result<_>>()?,
            decode: [
                number(&ours["timings"], "decode_tps")?,
                number(&theirs, "decode_tps")?,
            ],
            read_share: point(&all, 1, "gb_s")? / number(&all, "read_gb_s")?,
            read_gb_s: number(&all, "read_gb_s")?,
            int8_gmac_s: number(&all, "int8_gmac_s")?,
        })
    }
}

fn table(out: &mut String, model: &Model, rounds: &[Round]) {
    let of = |f: &dyn Fn(&Round) -> f64| median(rounds.iter().map(f));
    let mut line =
        |text: std::fmt::Arguments<'_>| writeln!(out, "{text}").expect("a string takes everything");
    line(format_args!("\n### {}\n", model.title));
    line(format_args!(
        "The machine read {:.1} GB/s and did {:.0} G int8 multiply-adds a second meanwhile; a pass over one row read {:.0} % of \
         that.\n",
        of(&|r| r.read_gb_s),
        of(&|r| r.int8_gmac_s),
        100.0 * of(&|r| r.read_share)
    ));
    line(format_args!(
        "| | foretoken | llama.cpp | times as fast |\n|---|---|---|---|"
    ));
    line(format_args!(
        "| decoding, tokens/s | {:.1} | {:.1} | {:.2} |",
        of(&|r| r.decode[0]),
        of(&|r| r.decode[1]),
        of(&|r| r.decode[0] / r.decode[1])
    ));
    let per_second = |n: u64, ms: f64| n as f64 / ms * 1e3;
    for n in ROWS {
        let (last, all, theirs) = (
            of(&|r| r.rows[&n][0]),
            of(&|r| r.rows[&n][1]),
            of(&|r| r.rows[&n][2]),
        );
        if n == ROWS[ROWS.len() - 1] {
            line(format_args!(
                "| prompt of {n}, tokens/s | {:.1} | {:.1} | {:.2} |",
                per_second(n, last),
                per_second(n, theirs),
                of(&|r| r.rows[&n][2] / r.rows[&n][0])
            ));
            continue;
        }
        line(format_args!(
            "| {n} row{}, ms (all logits) | {last:.1} ({all:.1}) | {theirs:.1} | {:.2} ({:.2}) |",
            if n == 1 { "" } else { "s" },
            of(&|r| r.rows[&n][2] / r.rows[&n][0]),
            of(&|r| r.rows[&n][2] / r.rows[&n][1])
        ));
    }
    let growth = |n: u64, column: usize| of(&|r| r.rows[&n][column] / r.rows[&1][column]);
    for n in [2, 4, 8] {
        line(format_args!(
            "| T({n})/T(1) | {:.2} ({:.2}) | {:.2} | |",
            growth(n, 0),
            growth(n, 1),
            growth(n, 2)
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_medians_of_rounds() {
        let round = |factor: f64| Round {
            peer_version: "1".to_owned(),
            rows: ROWS
                .map(|n| {
                    (
                        n,
                        [
                            factor * n as f64,
                            factor * 2.0 * n as f64,
                            4.0 * factor * n as f64,
                        ],
                    )
                })
                .into(),
            decode: [20.0 / factor, 10.0 / factor],
            read_share: 0.5,
            read_gb_s: 30.0,
            int8_gmac_s: 200.0,
        };
        let mut text = String::new();
        table(&mut text, &models::SMOLLM2, &[round(1.0), round(3.0), round(2.0)]);
        for line in [
            "| decoding, tokens/s | 10.0 | 5.0 | 2.00 |",
            "| 4 rows, ms (all logits) | 8.0 (16.0) | 32.0 | 4.00 (2.00) |",
            "| prompt of 128, tokens/s | 500.0 | 125.0 | 4.00 |",
            "| T(8)/T(1) | 8.00 (8.00) | 8.00 | |",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
