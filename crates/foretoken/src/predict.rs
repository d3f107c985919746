//! `foretoken predict`: what drafts of each length would gain here, in theory and with what passes cost.

use std::io::Write;

use foretoken::model::SpeculatorFile;
use foretoken::spec::CostModel;
use foretoken::spec::theory::{accepted_per_round, break_even, speedup, textbook_speedup, tokens_per_round};
use foretoken::{
    DraftPolicy, Drafting, GenerationRequest, Message, Sampler, SamplerParams, Session, SessionOptions,
};
use serde::Serialize;

use crate::cli::PredictArgs;

/// What is assumed where nothing is told or measured.
const ACCEPTANCE: f64 = 0.7;
/// Longest draft of the table, unless the drafter looks less far ahead.
const LONGEST: usize = 16;
/// Draft tokens of a round that measures acceptance.
const PROBE: usize = 4;

#[derive(Debug, Serialize)]
struct Report {
    model: String,
    draft: Option<String>,
    /// Tokens that the draft model or the speculator may say.
    draft_vocab: Option<usize>,
    threads: usize,
    acceptance: f64,
    /// `told`, `measured` or `assumed`.
    acceptance_is: &'static str,
    /// Of the probing rounds: how often the draft token at each depth was accepted if those before it were.
    acceptance_by_depth: Vec<f64>,
    plain_ms: f64,
    draft_token_ms: f64,
    lengths: Vec<Line>,
    best_length: usize,
    best_speedup: f64,
}

#[derive(Debug, Serialize)]
struct Line {
    draft: usize,
    tokens_per_round: f64,
    accepted_per_round: f64,
    pass_ms: f64,
    round_ms: f64,
    textbook_speedup: f64,
    speedup: f64,
    break_even_acceptance: Option<f64>,
}

/// Runs the command.
pub fn predict(args: &PredictArgs) -> anyhow::Result<()> {
    let draft_file = args.draft.file()?;
    let drafting = match &draft_file {
        Some(path) if SpeculatorFile::is_one(path) => Drafting::Mlp,
        Some(_) => Drafting::Model,
        None => Drafting::Suffix,
    };
    let mut session = Session::load(&SessionOptions {
        drafting,
        draft_model: draft_file,
        draft_vocab: args.draft.draft_vocab,
        learn: false,
        threads: Some(args.threads.count()),
        ..SessionOptions::new(args.model.file()?)
    })?;
    let target = session
        .cost()
        .expect("measured where drafts are controlled")
        .clone();
    let draft = session.draft_cost().cloned();
    let by_depth = match &args.prompt {
        Some(prompt) => measure(&mut session, drafting, prompt, args.predict as usize)?,
        None => Vec::new(),
    };
    let (acceptance, acceptance_is) = match (args.acceptance, by_depth.is_empty()) {
        (Some(told), _) => (f64::from(told), "told"),
        (None, false) => (by_depth.iter().sum::<f64>() / by_depth.len() as f64, "measured"),
        (None, true) => (ACCEPTANCE, "assumed"),
    };
    let report = Report::new(
        args,
        &session,
        &target,
        draft.as_ref(),
        acceptance,
        acceptance_is,
        by_depth,
    );
    let mut stdout = std::io::stdout().lock();
    if args.json {
        writeln!(stdout, "{}", serde_json::to_string(&report)?)?;
    } else {
        stdout.write_all(report.text().as_bytes())?;
    }
    Ok(())
}

/// Drafts so many tokens in every round of an answer, and counts how often they come true, depth by depth.
fn measure(
    session: &mut Session,
    drafting: Drafting,
    prompt: &str,
    tokens: usize,
) -> anyhow::Result<Vec<f64>> {
    session.set_policy(DraftPolicy {
        fixed: Some(PROBE),
        ..DraftPolicy::default()
    });
    session.set_drafting(drafting)?;
    let prompt = match session.prompts().has_template() {
        true => session.chat(&[Message::new("user", prompt)])?,
        false => session.plain(prompt)?,
    };
    let mut tried = [0usize; PROBE];
    let mut accepted = [0usize; PROBE];
    session.generate(
        GenerationRequest {
            prompt,
            sampler: SamplerParams {
                temperature: 0.0,
                ..SamplerParams::default()
            },
            key: Sampler::key(1, 0),
            max_tokens: Some(tokens),
            ..GenerationRequest::default()
        },
        |progress| {
            let Some(round) = &progress.round else { return };
            // Its draft is a chain: the token after the last accepted one was tried too.
            let drafted = round.rows - 1;
            for depth in 0..drafted.min(PROBE).min(round.accepted + 1) {
                tried[depth] += 1;
                accepted[depth] += usize::from(depth < round.accepted);
            }
        },
    )?;
    let shares = tried.iter().zip(&accepted).take_while(|(tried, _)| **tried > 0);
    Ok(shares
        .map(|(&tried, &accepted)| accepted as f64 / tried as f64)
        .collect())
}

impl Report {
    fn new(
        args: &PredictArgs,
        session: &Session,
        target: &CostModel,
        draft: Option<&CostModel>,
        acceptance: f64,
        acceptance_is: &'static str,
        acceptance_by_depth: Vec<f64>,
    ) -> Self {
        let plain = target.seconds(1, 0);
        let step = draft.map_or(0.0, |draft| draft.seconds(1, 0));
        let longest = session.draft_reach().unwrap_or(LONGEST);
        let lengths: Vec<Line> = (0..=longest)
            .map(|length| {
                let pass = target.seconds(1 + length, 0);
                let round = length as f64 * step + pass;
                Line {
                    draft: length,
                    tokens_per_round: tokens_per_round(acceptance, length),
                    accepted_per_round: accepted_per_round(acceptance, length),
                    pass_ms: 1e3 * pass,
                    round_ms: 1e3 * round,
                    textbook_speedup: textbook_speedup(acceptance, length, step / plain),
                    speedup: speedup(acceptance, length, plain, round),
                    break_even_acceptance: break_even(length, plain, round),
                }
            })
            .collect();
        let best = lengths
            .iter()
            .max_by(|a, b| a.speedup.total_cmp(&b.speedup))
            .expect("there are some");
        Self {
            model: args.model.to_string(),
            draft: args.draft.draft_model.as_ref().map(ToString::to_string),
            draft_vocab: session.draft_vocab(),
            threads: session.compute().pool().threads(),
            acceptance,
            acceptance_is,
            acceptance_by_depth,
            plain_ms: 1e3 * plain,
            draft_token_ms: 1e3 * step,
            best_length: best.draft,
            best_speedup: best.speedup,
            lengths,
        }
    }

    fn text(&self) -> String {
        let percent = |share: f64| format!("{:.0} %", 100.0 * share);
        let mut lines = vec![format!(
            "acceptance {} ({}); a plain token takes {:.1} ms, a draft token {:.1} ms",
            percent(self.acceptance),
            self.acceptance_is,
            self.plain_ms,
            self.draft_token_ms
        )];
        if !self.acceptance_by_depth.is_empty() {
            let shares: Vec<String> = self
                .acceptance_by_depth
                .iter()
                .map(|&share| percent(share))
                .collect();
            lines.push(format!(
                "by depth, if those before were accepted: {}",
                shares.join(", ")
            ));
        }
        lines.push(String::new());
        lines.push(
            "draft  tokens/round  accepted  pass ms  round ms  textbook  here  break-even acceptance".into(),
        );
        for line in &self.lengths {
            let break_even = line.break_even_acceptance.map_or("never".to_owned(), percent);
            lines.push(format!(
                "{:>5}  {:>12.2}  {:>8.2}  {:>7.1}  {:>8.1}  {:>8.2}  {:>4.2}  {:>21}{}",
                line.draft,
                line.tokens_per_round,
                line.accepted_per_round,
                line.pass_ms,
                line.round_ms,
                line.textbook_speedup,
                line.speedup,
                if line.draft == 0 {
                    "-".to_owned()
                } else {
                    break_even
                },
                if line.draft == self.best_length {
                    "  <- best"
                } else {
                    ""
                },
            ));
        }
        lines.push(String::new());
        lines.push(self.words());
        lines.iter().map(|line| format!("{line}\n")).collect()
    }

    /// Why theory and practice differ.
    fn words(&self) -> String {
        let best = &self.lengths[self.best_length];
        if self.best_length == 0 {
            return "No length pays: a round costs more than its tokens are worth. Plain decoding is the best choice here."
                .into();
        }
        let rows = self.best_length + 1;
        let grown = best.pass_ms / self.plain_ms;
        format!(
            "The textbook takes a pass over {rows} rows to cost what one row does and promises {:.2} times; here it takes \
             {grown:.2} times as long as one row{}, which leaves {:.2} times. Acceptance is taken to be the same at every \
             depth; the prompt, which is read as before, is not counted.",
            best.textbook_speedup,
            match self.draft_token_ms > 0.0 {
                true => format!(
                    ", and each draft token {:.0} % of it",
                    100.0 * self.draft_token_ms / self.plain_ms
                ),
                false => String::new(),
            },
            best.speedup,
        )
    }
}
