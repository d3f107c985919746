//! What drafts cost where they cannot help: text that nobody can foresee, a drafter that is sure and always wrong, and a
//! machine that slows down in the middle of an answer.
//!
//! ```text
//! cargo run --release -p foretoken --example never_slower -- --target M.gguf [--draft D.gguf] [--trace FILE.jsonl]
//! ```
//!
//! Each scenario is answered plainly and with drafts in turn. What was lost is printed beside what may be: the loss budget's share of
//! plain decoding's time, and one round, or two with a draft model. Each line of the trace is a round.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, ensure};
use clap::Parser;
use foretoken::engine::RoundReport;
use foretoken::spec::testing::AlwaysWrongDrafter;
use foretoken::spec::{ControlledDrafter, ControllerParams, Drafter, TargetModel};
use foretoken::{
    Drafting, GenerationRequest, Message, Sampler, SamplerParams, Session, SessionOptions, Token,
};
use serde_json::json;

/// What drafts cost where they cannot help.
#[derive(Debug, Parser)]
struct Args {
    /// The target model
    #[arg(long)]
    target: PathBuf,
    /// A draft model
    #[arg(long)]
    draft: Option<PathBuf>,
    /// Tokens of each answer
    #[arg(long, default_value_t = 128)]
    tokens: usize,
    /// Answers of each kind and scenario
    #[arg(long, default_value_t = 3)]
    repeat: usize,
    /// Write the rounds of all answers with drafts to this file
    #[arg(long)]
    trace: Option<PathBuf>,
}

/// What is made hard.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Scenario {
    RandomText,
    Base64,
    AlwaysWrong,
    Load,
}

impl Scenario {
    const ALL: [Self; 4] = [Self::RandomText, Self::Base64, Self::AlwaysWrong, Self::Load];

    fn name(self) -> &'static str {
        match self {
            Self::RandomText => "random text",
            Self::Base64 => "base64",
            Self::AlwaysWrong => "always wrong",
            Self::Load => "load on a core from the middle on",
        }
    }

    fn prompt(self) -> String {
        let random = |at: u64, below: u64| (hash(at.wrapping_add(1)) % below) as usize;
        match self {
            Self::RandomText => {
                let syllables = [
                    "ka", "mor", "ti", "lu", "ben", "os", "pra", "vi", "dun", "eth", "qua", "zo",
                ];
                let word = |at: u64| -> String {
                    let syllable = |part| syllables[random(8 * at + part, syllables.len() as u64)];
                    (0..2 + random(at, 3) as u64).map(syllable).collect()
                };
                let words: Vec<String> = (0..80).map(word).collect();
                format!(
                    "Invent words as random as these, and write a hundred of them, none twice: {}",
                    words.join(" ")
                )
            }
            Self::Base64 => {
                let digits: Vec<char> = ('A'..='Z')
                    .chain('a'..='z')
                    .chain('0'..='9')
                    .chain(['+', '/'])
                    .collect();
                let blob: String = (0..400).map(|at| digits[random(at, 64)]).collect();
                format!("Copy these data backwards, character by character: {blob}")
            }
            Self::AlwaysWrong | Self::Load => {
                "Explain how a bicycle stays upright, in plain words.".to_owned()
            }
        }
    }
}

/// Numbers that look random, the same at every run.
fn hash(of: u64) -> u64 {
    Sampler::key(of, 0)
}

/// Keeps a core busy until it is dropped.
struct Load(Arc<AtomicBool>);

impl Load {
    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        std::thread::spawn(move || {
            let mut state = 1;
            while !seen.load(Ordering::Relaxed) {
                state = hash(state);
            }
            std::hint::black_box(state);
        });
        Self(stop)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Answer {
    /// Prompt and answer.
    text: Vec<Token>,
    seconds: f64,
    longest_round: f64,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let mut session = Session::load(&SessionOptions {
        draft_model: args.draft.clone(),
        learn: false,
        ..SessionOptions::new(&args.target)
    })?;
    let trace = args
        .trace
        .as_ref()
        .map(|path| File::create(path).with_context(|| path.display().to_string()));
    let mut trace = trace.transpose()?.map(BufWriter::new);
    let budget = ControllerParams::default().loss_budget;
    let rounds = 1 + usize::from(args.draft.is_some());
    println!(
        "{:<36}{:>10}{:>10}{:>8}{:>9}",
        "", "plain, s", "drafts, s", "lost", "allowed"
    );
    for scenario in Scenario::ALL {
        let mut pairs: Vec<(f64, f64, f64)> = Vec::new();
        // Of the first plain answer: the first repetition begins with it.
        let mut plain_text = Vec::new();
        for repeat in 0..args.repeat {
            let mut answers = BTreeMap::new();
            let order = if repeat % 2 == 0 {
                [false, true]
            } else {
                [true, false]
            };
            for drafts in order {
                let drafter = match (drafts, scenario) {
                    (false, _) => None,
                    (true, Scenario::AlwaysWrong) => {
                        let cost = session.cost().context("no costs were measured")?.clone();
                        let vocab_size = session.engine().model().info().vocab_size;
                        let wrong = AlwaysWrongDrafter::new(vec![plain_text.clone()], vocab_size);
                        let wrong = Box::new(wrong) as Box<dyn Drafter>;
                        let controlled =
                            ControlledDrafter::new(ControllerParams::default(), vec![wrong], None, cost);
                        Some(Box::new(controlled) as Box<dyn Drafter>)
                    }
                    (true, _) => session.drafter(Drafting::Auto)?,
                };
                session.install(drafter);
                let rounds = trace.as_mut().filter(|_| drafts);
                let answer = answer(&mut session, scenario, args.tokens, repeat, rounds)?;
                if !drafts {
                    plain_text.clone_from(&answer.text);
                }
                answers.insert(drafts, answer);
            }
            let (plain, drafted) = (&answers[&false], &answers[&true]);
            ensure!(plain.text == drafted.text, "{}: tokens differ", scenario.name());
            let allowed = budget * plain.seconds + rounds as f64 * plain.longest_round;
            pairs.push((plain.seconds, drafted.seconds, allowed));
        }
        pairs.sort_by(|a, b| (a.1 / a.0).total_cmp(&(b.1 / b.0)));
        for (at, (plain, drafted, allowed)) in pairs.iter().enumerate() {
            let name = if at == 0 { scenario.name() } else { "" };
            let percent = |seconds: f64| format!("{:.1} %", 100.0 * seconds / plain);
            println!(
                "{name:<36}{plain:>10.2}{drafted:>10.2}{:>8}{:>9}",
                percent(drafted - plain),
                percent(*allowed)
            );
        }
    }
    if let Some(mut file) = trace {
        file.flush()?;
    }
    Ok(())
}

/// One answer, and its rounds in the trace.
fn answer(
    session: &mut Session,
    scenario: Scenario,
    tokens: usize,
    repeat: usize,
    mut trace: Option<&mut BufWriter<File>>,
) -> anyhow::Result<Answer> {
    let prompt = session.chat(&[Message::new("user", scenario.prompt())])?;
    let ends = session.engine().model().info().end_of_generation.clone();
    let mut text = prompt.clone();
    let request = GenerationRequest {
        prompt,
        sampler: SamplerParams {
            temperature: 0.0,
            // Answers are of one length.
            logit_bias: ends.into_iter().map(|token| (token, f32::NEG_INFINITY)).collect(),
            ..SamplerParams::default()
        },
        key: Sampler::key(1, 0),
        max_tokens: Some(tokens),
        ..GenerationRequest::default()
    };
    let (mut done, mut longest_round, mut load) = (0, 0.0f64, None);
    let start = Instant::now();
    let generation = session.generate(request, |progress| {
        done += progress.tokens.len();
        if scenario == Scenario::Load && load.is_none() && 2 * done >= tokens {
            load = Some(Load::start());
        }
        if let Some(round) = &progress.round {
            longest_round = longest_round.max(round.pass.as_secs_f64());
            if let Some(file) = &mut trace {
                // A trace that cannot be written is noticed when it is closed.
                let _ = writeln!(file, "{}", line(scenario, repeat, start, round));
            }
        }
    })?;
    let seconds = start.elapsed().as_secs_f64();
    text.extend(generation.tokens);
    Ok(Answer {
        text,
        seconds,
        longest_round,
    })
}

fn line(scenario: Scenario, repeat: usize, start: Instant, round: &RoundReport) -> serde_json::Value {
    let forecast = round.forecast.unwrap_or_default();
    json!({
        "request": format!("{} {}", scenario.name(), repeat + 1),
        "at_s": start.elapsed().as_secs_f64(),
        "rows": round.rows,
        "accepted": round.accepted,
        "tokens": round.tokens,
        "draft_s": round.draft.as_secs_f64(),
        "pass_s": round.pass.as_secs_f64(),
        "predicted_tokens": forecast.tokens,
        "predicted_s": forecast.seconds,
        "plain_tps": forecast.plain_rate,
        "plain": forecast.plain.map(|reason| reason.name()),
    })
}
