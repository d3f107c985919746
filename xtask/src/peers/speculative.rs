//! Whole answers, with foretoken's drafts beside llama.cpp's own modes of drafting.
//!
//! A few prompts at a time go through one arm after the other, so that the drift of a shared machine hits all of them;
//! the order of the arms changes all the time. Nobody has seen the answer that it drafts: what foretoken keeps on disk
//! is lost with each round, and llama.cpp's servers start anew. Foretoken starts anew for each few prompts, too.
use super::report::{Answer, Measurement};
use super::{Peer, commit, json, machine, number, today};
use crate::{command, models};
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

const SCRIPT: &str = include_str!("speculative.py");
pub(super) const BEGIN: &str = "<!-- begin: written by `cargo xtask peers speculative` -->\n";

/// Prompts that go through one arm before the next.
const CHUNK: usize = 4;

#[derive(clap::Args)]
pub(super) struct Args {
    /// Prompts: an object of texts (.json) or Spec-Bench's questions (.jsonl) [default: bench/prompts.json]
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// Take so many prompts of each category
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    questions: Option<u32>,
    /// Most tokens of an answer
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    tokens: u32,
    /// Rounds; each asks everybody everything once
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Threads of both
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    threads: u32,
    /// Most tokens of a draft of llama.cpp's draft model, each a mode of its own
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "2,4",
          value_parser = clap::value_parser!(u32).range(1..))]
    lengths: Vec<u32>,
    /// Write all answers' times as JSON, too; what is there so far is in it while the measurement goes on
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the table in docs/performance.md
    #[arg(long)]
    write: bool,
}

/// Measures, and shows what came of it.
pub(super) fn run(args: &Args) -> Result<()> {
    let path = match &args.prompts {
        Some(path) => path.clone(),
        None => command::root().join("bench/prompts.json"),
    };
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let chat = path.extension().is_some_and(|extension| extension == "jsonl");
    let prompts = Prompt::read(&text, chat, args.questions).with_context(|| path.display().to_string())?;
    let (target, draft) = (&models::QWEN_1_5B, &models::QWEN_0_5B);
    let dir = models::ensure([target, draft])?;
    let (commit, peer) = (commit(), Peer::install()?);
    super::build()?;
    let arms = Arms {
        // Another build meanwhile must not change what is measured.
        foretoken: peer.dir.join("foretoken"),
        script: peer.place("speculative.py", SCRIPT)?,
        target: target.path(&dir),
        draft: draft.path(&dir),
        modes: modes(&args.lengths),
        chat,
        tokens: args.tokens,
        threads: args.threads,
        peer,
    };
    fs::copy(command::foretoken()?, &arms.foretoken).context("cannot copy foretoken")?;

    let mut measurement = Measurement::new(&prompts, &arms.modes);
    let mut version = String::new();
    let (start, chunks) = (Instant::now(), prompts.len().div_ceil(CHUNK));
    for round in 0..args.rounds as usize {
        eprintln!("round {} of {}: loading llama.cpp", round + 1, args.rounds);
        arms.forget()?;
        let mut servers = Servers::start(&arms)?;
        version.clone_from(&servers.version);
        for (at, chunk) in prompts.chunks(CHUNK).enumerate() {
            for arm in order(1 + arms.modes.len(), round + at) {
                arms.ask(arm, chunk, &mut servers, &mut measurement)?;
            }
            if let Some(path) = &args.json {
                let about = json!({
                    "machine": machine(), "threads": args.threads, "tokens": args.tokens, "commit": commit,
                    "xllamacpp": version, "date": today(),
                });
                fs::write(path, format!("{:#}\n", measurement.json(about)))
                    .with_context(|| path.display().to_string())?;
            }
            let (done, all) = (round * chunks + at + 1, args.rounds as usize * chunks);
            let minutes = start.elapsed().as_secs_f64() / 60.0;
            eprintln!(
                "  {} of {} prompts; so far, end to end: {}; {minutes:.0} min, about {:.0} left",
                at * CHUNK + chunk.len(),
                prompts.len(),
                measurement.so_far(),
                minutes * (all - done) as f64 / done as f64
            );
        }
        servers.stop()?;
    }
    let head = format!(
        "{}, {} threads; {} with {} to draft; foretoken {} at {commit}; llama.cpp of the Python package xllamacpp \
         {version}; {}. {} prompts of {}, greedy, at most {} tokens. Rounds, of which each \
         prompt's rates are medians: {}.\n",
        machine(),
        args.threads,
        target.title,
        draft.title,
        env!("CARGO_PKG_VERSION"),
        today(),
        prompts.len(),
        path.file_name().unwrap_or_default().display(),
        args.tokens,
        args.rounds,
    );
    let text = format!("{head}\n{}", measurement.tables());
    println!("{}\n{text}", measurement.prompt_table());
    if args.write {
        super::write_section(BEGIN, &text)?;
    }
    Ok(())
}

/// Llama.cpp's modes, as speculative.py names them.
fn modes(lengths: &[u32]) -> Vec<String> {
    let mut modes = vec!["plain".to_owned()];
    modes.extend(lengths.iter().map(|n| format!("draft-simple {n}")));
    modes.extend(["ngram-simple", "ngram-mod"].map(str::to_owned));
    modes
}

/// The order of the arms on a turn: each goes first in its turn, and neighbours change sides.
fn order(arms: usize, turn: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..arms).collect();
    order.rotate_left(turn % arms);
    if turn % 2 == 1 {
        order[1..].reverse();
    }
    order
}

/// A prompt with a name.
#[derive(Debug, PartialEq)]
pub(super) struct Prompt {
    pub id: String,
    pub category: String,
    pub text: String,
}

/// Spec-Bench's groups; `foretoken bench` counts what is in none of them as MT-bench's.
const GROUPS: [&str; 5] = ["translation", "summarization", "qa", "math_reasoning", "rag"];

impl Prompt {
    /// Reads an object of raw texts, each a category of its own, or Spec-Bench's lines, whose first turns are messages.
    fn read(text: &str, chat: bool, most: Option<u32>) -> Result<Vec<Self>> {
        let mut prompts = if chat {
            let lines = text.lines().filter(|line| !line.trim().is_empty());
            lines.map(Self::question).collect::<Result<Vec<_>>>()?
        } else {
            let texts: Map<String, Value> = serde_json::from_str(text).context("no object of texts")?;
            let prompt = |(id, text): (String, Value)| {
                let text = text.as_str().with_context(|| format!("{id:?} is no text"))?;
                Ok(Self {
                    category: id.clone(),
                    text: text.to_owned(),
                    id,
                })
            };
            texts.into_iter().map(prompt).collect::<Result<Vec<_>>>()?
        };
        let mut counts: HashMap<String, u32> = HashMap::new();
        prompts.retain(|prompt| {
            let count = counts.entry(prompt.category.clone()).or_default();
            *count += 1;
            most.is_none_or(|most| *count <= most)
        });
        let mut ids: Vec<&str> = prompts.iter().map(|prompt| &*prompt.id).collect();
        ids.sort_unstable();
        ensure!(!ids.is_empty(), "no prompts");
        ensure!(ids.is_sorted_by(|a, b| a < b), "two prompts have the same name");
        Ok(prompts)
    }

    fn question(line: &str) -> Result<Self> {
        let question: Value = serde_json::from_str(line).context("a line is no JSON")?;
        let id = match &question["question_id"] {
            Value::String(id) => id.clone(),
            id => id.to_string(),
        };
        let field = |value: &Value| -> Result<String> {
            let text = value
                .as_str()
                .with_context(|| format!("question {id} has no category or no turn"))?;
            Ok(text.to_owned())
        };
        let (category, text) = (field(&question["category"])?, field(&question["turns"][0])?);
        let group = GROUPS.contains(&&*category);
        Ok(Self {
            category: if group { category } else { "mt_bench".to_owned() },
            text,
            id,
        })
    }

    /// A file of prompts for `foretoken bench speed`.
    fn file(prompts: &[Self], chat: bool) -> String {
        if chat {
            let line = |p: &Self| json!({"question_id": p.id, "category": p.category, "turns": [p.text]});
            prompts
                .iter()
                .map(|prompt| format!("{}\n", line(prompt)))
                .collect()
        } else {
            let texts: Map<_, _> = prompts
                .iter()
                .map(|p| (p.id.clone(), p.text.clone().into()))
                .collect();
            Value::Object(texts).to_string()
        }
    }
}

/// Both programs and what they are asked for.
struct Arms {
    peer: Peer,
    foretoken: PathBuf,
    script: PathBuf,
    target: PathBuf,
    draft: PathBuf,
    /// Of llama.cpp.
    modes: Vec<String>,
    chat: bool,
    tokens: u32,
    threads: u32,
}

impl Arms {
    /// Where foretoken keeps what it learns.
    fn cache(&self) -> PathBuf {
        self.peer.dir.join("cache")
    }

    /// Removes what foretoken has learned.
    fn forget(&self) -> Result<()> {
        match fs::remove_dir_all(self.cache()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", self.cache().display()))
            }
            _ => Ok(()),
        }
    }

    /// Answers of one arm to some prompts; the first arm is ours.
    fn ask(
        &self,
        arm: usize,
        prompts: &[Prompt],
        servers: &mut Servers,
        into: &mut Measurement,
    ) -> Result<()> {
        let Some(mode) = arm.checked_sub(1) else {
            for (prompt, answers) in prompts.iter().zip(self.ours(prompts)?) {
                into.add_ours(&prompt.id, answers);
            }
            return Ok(());
        };
        for prompt in prompts {
            into.add_theirs(&prompt.id, mode, servers.ask(self, &self.modes[mode], prompt)?);
        }
        Ok(())
    }

    /// Our answers to some prompts: drafted and plain.
    fn ours(&self, prompts: &[Prompt]) -> Result<Vec<[Answer; 2]>> {
        let name = if self.chat {
            "prompts.jsonl"
        } else {
            "prompts.json"
        };
        let file = self.peer.place(name, &Prompt::file(prompts, self.chat))?;
        let mut bench = Command::new(&self.foretoken);
        bench.env("FORETOKEN_CACHE", self.cache());
        bench.args([
            "bench",
            "speed",
            "--json",
            "--repeat",
            "1",
            "--drafter",
            "auto",
            "-t",
        ]);
        bench
            .arg(self.threads.to_string())
            .arg("-n")
            .arg(self.tokens.to_string());
        bench
            .arg("-m")
            .arg(&self.target)
            .arg("-d")
            .arg(&self.draft)
            .arg("--prompts")
            .arg(file);
        ours(&json(&mut bench)?, prompts)
    }
}

fn ours(report: &Value, prompts: &[Prompt]) -> Result<Vec<[Answer; 2]>> {
    let questions = report["questions"]
        .as_array()
        .context("no questions in the report")?;
    ensure!(
        questions.len() == prompts.len(),
        "{} prompts came back as {}",
        prompts.len(),
        questions.len()
    );
    let answers = questions.iter().zip(prompts).map(|(question, prompt)| {
        ensure!(
            question["id"] == *prompt.id,
            "prompt {} came back as {}",
            prompt.id,
            question["id"]
        );
        ensure!(
            question["same_tokens"] == true,
            "{}: drafts changed the answer",
            prompt.id
        );
        let (tokens, prompt_s) = (
            number(question, "tokens")?,
            number(&question["seconds"], "prompt")?,
        );
        // Of an answer of no tokens, no rate tells the time.
        let total = |rate: &str| {
            Ok::<_, anyhow::Error>(if tokens > 0.0 {
                tokens / number(question, rate)?
            } else {
                0.0
            })
        };
        let decode_s = (total("spec_tps")? - prompt_s).max(0.0);
        let plain_decode_s = number(question, "decode_ratio")? * decode_s;
        let drafted = Answer {
            prompt_tokens: number(question, "prompt_tokens")?,
            tokens,
            prompt_s,
            decode_s,
            drafted: number(question, "drafted")?,
            accepted: number(question, "accepted")?,
        };
        let plain = Answer {
            prompt_s: total("plain_tps")? - plain_decode_s,
            decode_s: plain_decode_s,
            drafted: 0.0,
            accepted: 0.0,
            ..drafted
        };
        Ok([drafted, plain])
    });
    answers.collect()
}

/// Llama.cpp, one server for each mode in one process, loaded and waiting.
struct Servers {
    process: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
    log: PathBuf,
    version: String,
}

impl Servers {
    fn start(arms: &Arms) -> Result<Self> {
        let log = arms.peer.dir.join("speculative.log");
        let mut python = Command::new(&arms.peer.python);
        python
            .arg(&arms.script)
            .arg(&arms.target)
            .arg(&arms.draft)
            .arg(arms.threads.to_string());
        python
            .args(&arms.modes)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(create(&log)?);
        let mut process = python.spawn().context("cannot run Python")?;
        let mut servers = Self {
            requests: process.stdin.take().expect("it is piped"),
            answers: BufReader::new(process.stdout.take().expect("it is piped")),
            process,
            log,
            version: String::new(),
        };
        let hello = servers.hear()?;
        hello["version"]
            .as_str()
            .context("no version")?
            .clone_into(&mut servers.version);
        Ok(servers)
    }

    fn ask(&mut self, arms: &Arms, mode: &str, prompt: &Prompt) -> Result<Answer> {
        let request = json!({"mode": mode, "text": prompt.text, "chat": arms.chat, "tokens": arms.tokens});
        writeln!(self.requests, "{request}").with_context(|| self.ended())?;
        let said = self.hear()?;
        theirs(&said).with_context(|| format!("llama.cpp, {mode}, on prompt {}", prompt.id))
    }

    fn hear(&mut self) -> Result<Value> {
        let mut line = String::new();
        self.answers.read_line(&mut line).with_context(|| self.ended())?;
        serde_json::from_str(&line).with_context(|| self.ended())
    }

    fn ended(&self) -> String {
        format!("llama.cpp says no more; see {}", self.log.display())
    }

    /// Without further requests it ends by itself.
    fn stop(self) -> Result<()> {
        let Self {
            mut process,
            requests,
            log,
            ..
        } = self;
        drop(requests);
        ensure!(
            process.wait()?.success(),
            "llama.cpp failed; see {}",
            log.display()
        );
        Ok(())
    }
}

fn create(path: &Path) -> Result<File> {
    File::create(path).with_context(|| format!("cannot create {}", path.display()))
}

fn theirs(said: &Value) -> Result<Answer> {
    if let Some(error) = said["error"].as_str() {
        bail!("{error}");
    }
    Ok(Answer {
        prompt_tokens: number(said, "prompt_tokens")?,
        tokens: number(said, "tokens")?,
        prompt_s: number(said, "prompt_s")?,
        decode_s: number(said, "decode_s")?,
        drafted: number(said, "drafted")?,
        accepted: number(said, "accepted")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(id: &str, category: &str, text: &str) -> Prompt {
        Prompt {
            id: id.to_owned(),
            category: category.to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn prompts_survive_the_file_that_foretoken_reads() {
        let lines = r#"{"question_id":81,"category":"writing","turns":["a","b"]}
            {"question_id":"q","category":"roleplay","turns":["c"]}

            {"question_id":3,"category":"rag","turns":["d\n"]}"#;
        let raw = r#"{"x":"one","y":"two"}"#;
        for (text, chat, most, expected) in [
            (
                lines,
                true,
                None,
                vec![
                    ("81", "mt_bench", "a"),
                    ("q", "mt_bench", "c"),
                    ("3", "rag", "d\n"),
                ],
            ),
            (
                lines,
                true,
                Some(1),
                vec![("81", "mt_bench", "a"), ("3", "rag", "d\n")],
            ),
            (raw, false, Some(1), vec![("x", "x", "one"), ("y", "y", "two")]),
        ] {
            let expected: Vec<_> = expected
                .into_iter()
                .map(|(id, category, text)| prompt(id, category, text))
                .collect();
            let prompts = Prompt::read(text, chat, most).unwrap();
            assert_eq!(prompts, expected);
            assert_eq!(
                Prompt::read(&Prompt::file(&prompts, chat), chat, None).unwrap(),
                expected
            );
        }
        for (text, chat) in [
            ("[1]", false),
            (r#"{"x":1}"#, false),
            ("{}", false),
            ("", true),
            (r#"{"question_id":1,"category":"qa","turns":[]}"#, true),
            (r#"{"question_id":1,"turns":["a"]}"#, true),
            (&lines.replace("\"q\"", "3"), true),
        ] {
            assert!(Prompt::read(text, chat, None).is_err(), "{text}");
        }
    }

    #[test]
    fn every_arm_goes_first_in_its_turn() {
        for arms in [1, 2, 6] {
            let mut first = Vec::new();
            for turn in 0..arms {
                let mut order = order(arms, turn);
                first.push(order[0]);
                order.sort_unstable();
                assert_eq!(order, (0..arms).collect::<Vec<_>>());
            }
            assert_eq!(first, (0..arms).collect::<Vec<_>>());
        }
        assert_eq!(order(4, 2), [2, 3, 0, 1]);
        assert_eq!(order(4, 3), [3, 2, 1, 0]);
    }

    #[test]
    fn reports_of_both_become_answers() {
        let question = json!({
            "id": "x", "tokens": 40, "prompt_tokens": 9, "same_tokens": true, "plain_tps": 8.0, "spec_tps": 10.0,
            "decode_ratio": 1.5, "drafted": 30, "accepted": 20, "seconds": {"prompt": 2.0},
        });
        let prompts = [prompt("x", "x", "one")];
        let [drafted, plain] = ours(&json!({"questions": [question]}), &prompts).unwrap()[0];
        let expected = Answer {
            prompt_tokens: 9.0,
            tokens: 40.0,
            prompt_s: 2.0,
            decode_s: 2.0,
            drafted: 30.0,
            accepted: 20.0,
        };
        assert_eq!(drafted, expected);
        assert_eq!(
            plain,
            Answer {
                decode_s: 3.0,
                drafted: 0.0,
                accepted: 0.0,
                ..expected
            }
        );
        let said = json!({
            "prompt_tokens": 9, "tokens": 40, "prompt_s": 2.0, "decode_s": 2.0, "drafted": 30, "accepted": 20,
        });
        assert_eq!(theirs(&said).unwrap(), expected);

        let broken = |field: &str, value: Value| {
            let mut question = question.clone();
            question[field] = value;
            ours(&json!({"questions": [question]}), &prompts)
                .unwrap_err()
                .to_string()
        };
        assert!(broken("same_tokens", false.into()).contains("changed"));
        assert!(broken("id", "y".into()).contains("came back as"));
        assert!(broken("spec_tps", Value::Null).contains("spec_tps"));
        assert!(ours(&json!({"questions": []}), &prompts).is_err());
        assert!(
            theirs(&json!({"error": "too long"}))
                .unwrap_err()
                .to_string()
                .contains("too long")
        );
    }
}
