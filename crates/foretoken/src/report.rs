//! What an answer cost, as JSON and as sentences.

use std::fmt::Write as _;
use std::time::Duration;

use foretoken::engine::{NO_DRAFTER, SpeculationReport, Timings};
use foretoken::spec::Source;
use foretoken::{Drafting, Generation, SamplerParams, Session, Stats};
use serde::Serialize;

use crate::cli::{DraftArgs, DraftModelArgs, ModelArg, SamplingArgs};
use crate::run::peak_bytes;

/// All that there is to tell of an answer.
pub struct Report<'a> {
    pub model: &'a ModelArg,
    pub draft: &'a DraftModelArgs,
    pub drafting: &'a DraftArgs,
    pub sampling: &'a SamplingArgs,
    pub seed: u64,
    pub session: &'a Session,
    pub generation: &'a Generation,
}

/// The object that `--json` prints. Every field is always there.
#[derive(Debug, Serialize)]
pub struct Json<'a> {
    model: String,
    draft: Option<String>,
    /// Tokens that the draft model or the speculator may say.
    draft_vocab: Option<usize>,
    seed: u64,
    sampling: Sampling,
    threads: usize,
    isa: &'static str,
    peak_bytes: Option<u64>,
    prompt_tokens: usize,
    tokens: &'a [u32],
    text: &'a str,
    finish_reason: &'static str,
    timings: Timings,
    speculation: SpeculationReport,
}

#[derive(Debug, Serialize)]
struct Sampling {
    temperature: f32,
    top_k: usize,
    top_p: f32,
    min_p: f32,
    repeat_penalty: f32,
    repeat_last_n: usize,
    presence_penalty: f32,
    frequency_penalty: f32,
    /// Pairs of id and bias; a banned token's is the string "-inf", which JSON's numbers cannot say.
    logit_bias: Vec<(u32, serde_json::Value)>,
}

impl Report<'_> {
    /// The object of `--json`.
    pub fn json(&self) -> Json<'_> {
        let Generation {
            tokens,
            text,
            finish,
            stats,
        } = self.generation;
        let load = self.session.load_report();
        let params = self.sampling.params();
        Json {
            model: self.model.to_string(),
            draft: self.draft.draft_model.as_ref().map(ToString::to_string),
            draft_vocab: self.session.draft_vocab(),
            seed: self.seed,
            sampling: Sampling::from(params),
            threads: self.session.compute().pool().threads(),
            isa: self.session.compute().isa().name(),
            peak_bytes: peak_bytes(),
            prompt_tokens: stats.prompt_tokens,
            tokens,
            text,
            finish_reason: finish.as_str(),
            timings: Timings::new(stats, load.target, load.draft),
            speculation: SpeculationReport::new(stats, self.session.is_lossless()),
        }
    }

    /// The statistics for people.
    pub fn text(&self) -> String {
        let mut out = String::new();
        self.write_text(&mut out).expect("a string takes everything");
        out
    }

    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        let Generation { stats, finish, .. } = self.generation;
        let spec = &stats.speculation;
        let load = self.session.load_report();
        writeln!(out)?;
        writeln!(out, "finished: {} (seed {})", finish.as_str(), self.seed)?;
        let computed = stats.prompt_tokens - stats.cached_tokens;
        write!(out, "prompt:  {}", speed(computed, stats.prompt, "tokens"))?;
        match stats.cached_tokens {
            0 => writeln!(out)?,
            cached => writeln!(out, ", and {cached} from the cache")?,
        }
        writeln!(
            out,
            "decoded: {}",
            speed(
                stats.generated.saturating_sub(1),
                stats.decode,
                "tokens after the first"
            )
        )?;
        writeln!(out)?;
        let policy = self.drafting.policy();
        let longest = if spec.drafter.is_some() {
            policy.fixed.unwrap_or(policy.max)
        } else {
            0
        };
        writeln!(out, "n_draft   = {longest}")?;
        writeln!(out, "n_predict = {}", stats.generated)?;
        writeln!(out, "n_drafted = {}", spec.drafted)?;
        writeln!(out, "n_accept  = {}", spec.accepted)?;
        writeln!(
            out,
            "accept    = {}",
            spec.acceptance_rate()
                .map_or("-".into(), |rate| format!("{:.1} %", 100.0 * rate))
        )?;
        writeln!(out)?;
        writeln!(out, "target:")?;
        writeln!(out, "  load        {}", speed(0, load.target, ""))?;
        writeln!(
            out,
            "  prompt eval {}",
            speed(computed, stats.target.prompt, "tokens")
        )?;
        writeln!(
            out,
            "  eval        {}",
            speed(stats.target.eval_passes, stats.target.eval, "passes")
        )?;
        writeln!(
            out,
            "  sample      {}",
            speed(spec.decided + 1, stats.target.sample, "tokens")
        )?;
        if self.drafting.drafting() != Drafting::None {
            writeln!(out, "draft:")?;
        }
        if let Some(source) = self.session.draft_source() {
            let draft = &stats.draft;
            writeln!(out, "  load        {}", speed(0, load.draft, ""))?;
            if source == Source::Model {
                writeln!(
                    out,
                    "  prompt eval {}",
                    speed(draft.prompt_rows as usize, draft.prompt, "tokens")
                )?;
            }
            writeln!(
                out,
                "  eval        {}",
                speed(draft.eval_rows as usize, draft.eval, "tokens")
            )?;
            writeln!(
                out,
                "  sample      {}",
                speed(spec.proposed, draft.sample, "tokens")
            )?;
        }
        if self.drafting.drafting() != Drafting::None {
            writeln!(
                out,
                "  all         {}",
                speed(spec.proposed, spec.draft, "tokens")
            )?;
        }
        writeln!(out)?;
        self.explain(out)
    }

    /// What the numbers mean.
    fn explain(&self, out: &mut String) -> std::fmt::Result {
        let stats = &self.generation.stats;
        let spec = &stats.speculation;
        if let Some(probability) = spec.forced {
            writeln!(
                out,
                "Acceptance was forced with probability {probability}: this measures the machinery, and the text is \
                 not the model's."
            )?;
        }
        if !self.session.is_lossless() && spec.forced.is_none() {
            writeln!(
                out,
                "On this backend a token's scores depend on what else is in its pass: with drafts the answer may differ."
            )?;
        }
        let Some(drafter) = &spec.drafter else {
            return writeln!(
                out,
                "Speculation was off: {NO_DRAFTER}. Without --drafter none drafts are made as far as they pay."
            );
        };
        if let Some(note) = &spec.note {
            writeln!(out, "Note: {note}.")?;
        }
        if let Some(reason) = &spec.off_reason {
            writeln!(
                out,
                "Drafting was given up: {reason}. The answer is the same without drafts."
            )?;
        }
        if spec.drafted == 0 {
            return writeln!(
                out,
                "The {drafter} drafter made no draft that could be verified: this was plain decoding."
            );
        }
        let dropped = match spec.drafted - spec.accepted {
            0 => "No draft token that was verified was wrong.".to_string(),
            wrong => format!("{wrong} drafted tokens were not what the target said and were dropped."),
        };
        writeln!(
            out,
            "{} of the {} tokens were drafted and accepted; the target drew the other {} itself. {dropped}",
            spec.accepted,
            stats.generated,
            stats.generated - spec.accepted,
        )?;
        let rounds = spec.rounds as f64;
        let rows: usize = spec.rows_histogram.iter().map(|(rows, count)| rows * count).sum();
        let draft = spec.draft.saturating_sub(stats.draft.prompt);
        let round = (draft + stats.target.eval + stats.target.sample).as_secs_f64() / rounds;
        writeln!(
            out,
            "{} rounds decided {:.2} tokens each. A round took {}: {} to draft, {} for the target's pass over {:.1} \
             tokens.",
            spec.rounds,
            spec.tokens_per_round().unwrap_or_default(),
            millis(round),
            millis(draft.as_secs_f64() / rounds),
            millis(stats.target.eval.as_secs_f64() / rounds),
            rows as f64 / rounds,
        )?;
        if !stats.draft.prompt.is_zero() {
            let seconds = stats.draft.prompt.as_secs_f64();
            writeln!(
                out,
                "Reading the prompt took the draft model {seconds:.2} s; that is part of the comparison below."
            )?;
        }
        writeln!(out, "{}", against_plain(stats, round))
    }
}

/// The speed against plain decoding, as far as this run can tell.
fn against_plain(stats: &Stats, round: f64) -> String {
    let spec = &stats.speculation;
    let Some(plain) = stats.target.single_row.mean() else {
        return "No round went without a draft, so this run does not know what plain decoding costs: compare with \
                --drafter none."
            .into();
    };
    let spent = (spec.draft + stats.target.eval + stats.target.sample).as_secs_f64();
    let factor = spec.decided as f64 * plain / spent;
    let (times, verdict) = if factor >= 1.0 {
        (factor, "faster")
    } else {
        (1.0 / factor, "slower")
    };
    format!(
        "Without drafts a token takes about {} (measured on {} passes of one token): speculation was {times:.2} times \
         {verdict} than plain decoding. A round pays from {:.2} tokens on.",
        millis(plain),
        stats.target.single_row.count,
        round / plain,
    )
}

impl From<SamplerParams> for Sampling {
    fn from(params: SamplerParams) -> Self {
        let json = |bias: f32| {
            if bias.is_finite() {
                bias.into()
            } else {
                "-inf".into()
            }
        };
        Self {
            temperature: params.temperature,
            top_k: params.top_k,
            top_p: params.top_p,
            min_p: params.min_p,
            repeat_penalty: params.repeat_penalty,
            repeat_last_n: params.repeat_last_n,
            presence_penalty: params.presence_penalty,
            frequency_penalty: params.frequency_penalty,
            logit_bias: params
                .logit_bias
                .into_iter()
                .map(|(token, bias)| (token, json(bias)))
                .collect(),
        }
    }
}

/// `12 tokens in 0.50 s (41.67 ms each, 24.00 per second)`, as far as that makes sense.
fn speed(count: usize, time: Duration, what: &str) -> String {
    let seconds = time.as_secs_f64();
    match count {
        0 if what.is_empty() => format!("{seconds:.2} s"),
        0 => format!("0 {what}"),
        _ if time.is_zero() => format!("{count} {what}"),
        _ => format!(
            "{count} {what} in {seconds:.3} s ({} each, {:.1} per second)",
            millis(seconds / count as f64),
            count as f64 / seconds
        ),
    }
}

fn millis(seconds: f64) -> String {
    format!("{:.2} ms", 1e3 * seconds)
}
