//! `foretoken bench speed`: what speculation is worth on these prompts, from the request to the last token.
//!
//! Each prompt is answered plainly and with each drafter in turn, several times; a ratio is the median of the
//! repetitions' ratios, so that a machine that drifts hits both sides. Drafters learn from prompt to prompt, as in a
//! process that serves them all, but each repetition starts from new ones: none has seen the answer that it drafts.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::Context;
use foretoken::{Drafting, GenerationRequest, Sampler, SamplerParams, Session, SessionOptions, Stats, Token};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::prompts::{self, Prompt};
use super::{html, median};
use crate::cli::SpeedArgs;
use crate::trace::Trace;

/// What one drafter made of all prompts.
#[derive(Debug, Serialize)]
pub struct Report {
    pub drafter: &'static str,
    pub questions: Vec<Question>,
    pub min_ratio: f64,
    pub median_ratio: f64,
    pub mean_ratio: f64,
    pub total_time_ratio: f64,
    pub same_tokens: bool,
    /// Means of the ratios by category.
    pub categories: BTreeMap<String, f64>,
}

/// What one drafter made of a prompt. Rates and ratios are end to end unless they say `decode`.
#[derive(Debug, Serialize)]
pub struct Question {
    pub id: String,
    pub category: String,
    pub prompt_tokens: usize,
    pub tokens: usize,
    pub plain_tps: f64,
    pub spec_tps: f64,
    pub ratio: f64,
    pub decode_ratio: f64,
    pub same_tokens: bool,
    pub tokens_per_round: Option<f64>,
    /// The rate that the controller expected against plain decoding's, without the prompt.
    pub predicted_ratio: Option<f64>,
    /// The rate that it expected against the one that came of it.
    pub predicted_to_actual: Option<f64>,
    pub accepted_per_position: Vec<usize>,
    pub drafted: usize,
    pub accepted: usize,
    pub plain_rounds: BTreeMap<&'static str, usize>,
    pub seconds: Seconds,
}

/// Where the time of the median answer went.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Seconds {
    pub prompt: f64,
    pub draft: f64,
    pub target: f64,
    pub other: f64,
}

/// All that is printed.
#[derive(Debug, Serialize)]
struct Output<'a> {
    model: String,
    draft: Option<String>,
    /// Tokens that the draft model or the speculator may say.
    draft_vocab: Option<usize>,
    threads: usize,
    temperature: f32,
    repeat: u32,
    #[serde(flatten)]
    first: &'a Report,
    /// All drafters, where there are several.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    drafters: &'a [Report],
}

/// One answer.
struct Answer {
    tokens: Vec<Token>,
    stats: Stats,
}

impl Answer {
    fn seconds(&self) -> f64 {
        (self.stats.prompt + self.stats.decode).as_secs_f64()
    }

    fn decode_seconds(&self) -> f64 {
        self.stats.decode.as_secs_f64()
    }
}

/// Runs the command.
pub fn run(args: &SpeedArgs) -> anyhow::Result<()> {
    let prompts = prompts::read(&args.prompts, args.questions.map_or(usize::MAX, |n| n as usize))?;
    let arms: Vec<Drafting> = args.drafter.iter().map(|name| name.drafting()).collect();
    let mut session = Session::load(&SessionOptions {
        draft_model: args.draft.file()?,
        draft_vocab: args.draft.draft_vocab,
        // Else a run would be faster than the one before it.
        learn: false,
        threads: Some(args.threads.count()),
        context: args.context.map(|n| n as usize),
        loss_budget: f64::from(args.loss_budget),
        ..SessionOptions::new(args.model.file()?)
    })?;
    let mut trace = args.trace.as_deref().map(Trace::create).transpose()?;
    let style = ProgressStyle::with_template("{msg:<24} {wide_bar} {pos}/{len} answers  {eta} left")
        .expect("it is well-formed");
    let answers = prompts.len() * (1 + arms.len()) * args.repeat as usize;
    let bar = ProgressBar::new(answers as u64).with_style(style);
    let texts: Vec<Vec<Token>> = prompts
        .iter()
        .map(|prompt| prompt.tokens(&session).with_context(|| prompt.id.clone()))
        .collect::<anyhow::Result<_>>()?;
    let mut plain: Vec<Vec<Answer>> = prompts.iter().map(|_| Vec::new()).collect();
    let mut drafted: Vec<Vec<Vec<Answer>>> = arms
        .iter()
        .map(|_| prompts.iter().map(|_| Vec::new()).collect())
        .collect();
    for repeat in 0..args.repeat {
        let mut drafters = arms
            .iter()
            .map(|&arm| session.drafter(arm))
            .collect::<Result<Vec<_>, _>>()?;
        for (at, (prompt, tokens)) in prompts.iter().zip(&texts).enumerate() {
            bar.set_message(prompt.id.clone());
            let mut order: Vec<usize> = (0..=arms.len()).collect();
            if (repeat as usize + at) % 2 == 1 {
                order.reverse();
            }
            for arm in order {
                let arm = arm.checked_sub(1);
                session.install(arm.and_then(|arm| drafters[arm].take()));
                let name = arm.map_or("plain", |arm| args.drafter[arm].name());
                let request = format!("{} {name} {}", prompt.id, repeat + 1);
                let answer = answer(&mut session, tokens, args, trace.as_mut(), &request)?;
                match arm {
                    None => plain[at].push(answer),
                    Some(arm) => {
                        drafters[arm] = session.install(None);
                        drafted[arm][at].push(answer);
                    }
                }
                bar.inc(1);
            }
        }
    }
    let questions: Vec<Vec<Question>> = drafted
        .iter()
        .map(|drafted| {
            let answers = prompts.iter().zip(plain.iter().zip(drafted));
            answers
                .map(|(prompt, (plain, drafted))| Question::new(prompt, plain, drafted))
                .collect()
        })
        .collect();
    bar.finish_and_clear();
    if let Some(trace) = trace {
        trace.finish()?;
    }
    let names = args.drafter.iter().map(|name| name.name());
    let reports: Vec<Report> = names
        .zip(questions)
        .map(|(name, questions)| Report::new(name, questions))
        .collect();
    if let Some(path) = &args.report {
        let page = html::page(args, &session, &reports)?;
        std::fs::write(path, page).with_context(|| path.display().to_string())?;
    }
    let mut stdout = std::io::stdout().lock();
    if args.json {
        let output = Output {
            model: args.model.to_string(),
            draft: args.draft.draft_model.as_ref().map(ToString::to_string),
            draft_vocab: session.draft_vocab(),
            threads: session.compute().pool().threads(),
            temperature: args.temp,
            repeat: args.repeat,
            first: &reports[0],
            drafters: if reports.len() > 1 { &reports } else { &[] },
        };
        writeln!(stdout, "{}", serde_json::to_string(&output)?)?;
    } else {
        for report in &reports {
            write!(stdout, "{}", report.text())?;
        }
    }
    Ok(())
}

fn answer(
    session: &mut Session,
    prompt: &[Token],
    args: &SpeedArgs,
    mut trace: Option<&mut Trace>,
    name: &str,
) -> anyhow::Result<Answer> {
    let request = GenerationRequest {
        prompt: prompt.to_vec(),
        sampler: SamplerParams {
            temperature: args.temp,
            ..SamplerParams::default()
        },
        key: Sampler::key(args.seed, 0),
        max_tokens: Some(args.predict as usize),
        ..GenerationRequest::default()
    };
    let mut failed = Ok(());
    let generation = session.generate(request, |progress| {
        if let (Some(trace), Some(round)) = (&mut trace, &progress.round) {
            let written = trace.write(Some(name), round);
            failed = std::mem::replace(&mut failed, Ok(())).and(written);
        }
    })?;
    failed?;
    Ok(Answer {
        tokens: generation.tokens,
        stats: generation.stats,
    })
}

impl Question {
    fn new(prompt: &Prompt, plain: &[Answer], drafted: &[Answer]) -> Self {
        let ratios = |seconds: fn(&Answer) -> f64| -> f64 {
            let pairs = plain.iter().zip(drafted);
            // An answer of one token decodes for no time at all.
            let ratio = |(p, d): (&Answer, &Answer)| match (seconds(p), seconds(d)) {
                (p, d) if p > 0.0 && d > 0.0 => p / d,
                _ => 1.0,
            };
            median(&pairs.map(ratio).collect::<Vec<_>>())
        };
        let seconds = |answers: &[Answer]| median(&answers.iter().map(Answer::seconds).collect::<Vec<_>>());
        let middle = drafted
            .iter()
            .min_by(|a, b| {
                let distance = |answer: &Answer| (answer.seconds() - seconds(drafted)).abs();
                distance(a).total_cmp(&distance(b))
            })
            .expect("there is one at least");
        let (stats, spec) = (&middle.stats, &middle.stats.speculation);
        let tokens = middle.tokens.len();
        let plain_decode = median(&plain.iter().map(Answer::decode_seconds).collect::<Vec<_>>());
        let plain_decode_tps = tokens.saturating_sub(1) as f64 / plain_decode;
        // What was predicted are rounds; tokens that end an answer count there.
        let actual = spec.decided as f64 / (stats.target.eval + spec.draft).as_secs_f64();
        let (prompt_s, draft_s, target_s) = (
            stats.prompt.as_secs_f64(),
            spec.draft.as_secs_f64(),
            stats.target.eval.as_secs_f64(),
        );
        Self {
            id: prompt.id.clone(),
            category: prompt.category.clone(),
            prompt_tokens: stats.prompt_tokens,
            tokens,
            plain_tps: tokens as f64 / seconds(plain),
            spec_tps: tokens as f64 / seconds(drafted),
            ratio: ratios(Answer::seconds),
            decode_ratio: ratios(Answer::decode_seconds),
            same_tokens: drafted
                .iter()
                .chain(plain)
                .all(|answer| answer.tokens == plain[0].tokens),
            tokens_per_round: spec.tokens_per_round(),
            predicted_ratio: spec
                .predicted_rate()
                .map(|rate| rate / plain_decode_tps)
                .filter(|r| r.is_finite()),
            predicted_to_actual: spec
                .predicted_rate()
                .map(|rate| rate / actual)
                .filter(|r| r.is_finite()),
            accepted_per_position: spec.accepted_per_position.clone(),
            drafted: spec.drafted,
            accepted: spec.accepted,
            plain_rounds: spec.plain_rounds.clone(),
            seconds: Seconds {
                prompt: prompt_s,
                draft: draft_s,
                target: target_s,
                other: (middle.seconds() - prompt_s - draft_s - target_s).max(0.0),
            },
        }
    }
}

impl Report {
    fn new(drafter: &'static str, questions: Vec<Question>) -> Self {
        let ratios: Vec<f64> = questions.iter().map(|q| q.ratio).collect();
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let total =
            |tps: fn(&Question) -> f64| questions.iter().map(|q| q.tokens as f64 / tps(q)).sum::<f64>();
        let mut by_category: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for question in &questions {
            by_category
                .entry(question.category.clone())
                .or_default()
                .push(question.ratio);
        }
        Self {
            drafter,
            min_ratio: ratios.iter().copied().fold(f64::INFINITY, f64::min),
            median_ratio: median(&ratios),
            mean_ratio: mean(&ratios),
            total_time_ratio: total(|q| q.plain_tps) / total(|q| q.spec_tps),
            same_tokens: questions.iter().all(|q| q.same_tokens),
            categories: by_category
                .into_iter()
                .map(|(name, ratios)| (name, mean(&ratios)))
                .collect(),
            questions,
        }
    }

    fn text(&self) -> String {
        let mut lines = vec![format!("drafter {}", self.drafter), String::new()];
        lines.push(
            "question             tokens  plain tok/s  spec tok/s  ratio  decode  tokens/round  accepted  predicted".into(),
        );
        let dash = |value: Option<f64>| value.map_or("-".to_owned(), |v| format!("{v:.2}"));
        for q in &self.questions {
            let share = (q.drafted > 0).then(|| 100.0 * q.accepted as f64 / q.drafted as f64);
            lines.push(format!(
                "{:<20} {:>6}  {:>11.1}  {:>10.1}  {:>5.2}  {:>6.2}  {:>12}  {:>7} %  {:>9}{}",
                q.id,
                q.tokens,
                q.plain_tps,
                q.spec_tps,
                q.ratio,
                q.decode_ratio,
                dash(q.tokens_per_round),
                share.map_or("-".into(), |share| format!("{share:.0}")),
                dash(q.predicted_ratio),
                if q.same_tokens { "" } else { "  OTHER TOKENS" },
            ));
        }
        lines.push(String::new());
        if self.categories.len() > 1 && self.categories.len() < self.questions.len() {
            for (category, ratio) in &self.categories {
                lines.push(format!("{category:<20} mean ratio {ratio:.2}"));
            }
            lines.push(String::new());
        }
        lines.push(format!(
            "end to end: mean {:.2}, median {:.2}, least {:.2}; total time {:.2}; tokens {}",
            self.mean_ratio,
            self.median_ratio,
            self.min_ratio,
            self.total_time_ratio,
            if self.same_tokens { "the same" } else { "DIFFER" },
        ));
        lines.push(String::new());
        lines.iter().map(|line| format!("{line}\n")).collect()
    }
}
