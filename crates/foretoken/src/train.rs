//! `foretoken train`: a speculator for any model.
//!
//! First the model writes, and what it computes meanwhile is kept on disk; then a small network learns from that. The budget of time is
//! divided between the two, and what it came to is said, so that the same numbers of tokens and steps give the same speculator.

mod learn;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, bail};
use foretoken::kernels::Compute;
use foretoken::model::{LoadOptions, PromptEncoder, SpeculatorType, export_speculator, write_speculator};
use foretoken::spec::TargetModel;
use foretoken::train::{Capture, CaptureOptions, DatasetMeta, DatasetWriter};
use foretoken::{ChatTemplate, LoadedModel, load_model, training};
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::cli::{MlpArgs, TrainCommand};
use learn::{Learned, learn};

/// The target's likeliest tokens that are kept of each row.
const LABELS: usize = 16;
/// Most positions of a sequence.
const CONTEXT: usize = 1024;
/// A context needs so much room beside what the chat template takes.
const LEAST_ROOM: usize = 32;
/// The share of the budget in which the model reads and writes: to go over more text once teaches more than to go over it again.
const CAPTURE: f64 = 0.67;

const PLAN: &str = "plan.json";

/// What the budget came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Plan {
    /// Sequences to learn from: those with a number below.
    sequences: u32,
    /// Steps of training.
    steps: u64,
}

/// Runs `foretoken train`.
pub fn train(command: &TrainCommand) -> anyhow::Result<()> {
    match command {
        TrainCommand::Mlp(args) => mlp(args),
    }
}

fn mlp(args: &MlpArgs) -> anyhow::Result<()> {
    let job = Job::new(args)?;
    let compute = Arc::new(Compute::new(args.threads.count()));
    let mut target = load(&job.path, &compute)?;
    let hidden = target.model.info().hidden_size;
    if let Some(inner) = args
        .inner
        .filter(|&inner| !args.random_init && (inner as usize) < 2 * hidden)
    {
        bail!("--inner {inner} is less than twice the hidden size of {hidden}: that needs --random-init");
    }
    let sequences = capture(&job, &mut target)?;
    let learned = learn(&job, &target, sequences)?;
    let Learned { info, tensors, .. } = &learned;
    let written = write_speculator(&args.out, info, tensors, SpeculatorType::Q8_0)?;
    if let Some(directory) = &args.export {
        let bar = bar("{msg} {wide_bar} {percent} %, {eta} left", "multiplying out")?;
        let mut progress = |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        };
        export_speculator(directory, info, tensors, &target.model, &compute, &mut progress)?;
        bar.finish_and_clear();
    }
    if args.states.is_none() {
        fs::remove_dir_all(&job.states).with_context(|| job.states.display().to_string())?;
    }
    report(&job, &learned, written.bytes)
}

/// What came of it.
fn report(job: &Job<'_>, learned: &Learned, bytes: u64) -> anyhow::Result<()> {
    let args = job.args;
    let Learned {
        info,
        plan,
        tokens,
        heads,
        ..
    } = learned;
    let Plan { sequences, steps } = plan;
    let mut out = std::io::stdout();
    if args.json {
        let line = json!({
            "file": args.out, "bytes": bytes, "sequences": sequences, "tokens": tokens, "steps": steps, "seconds": job.elapsed(),
            "held_out": heads, "recipe": info.recipe,
        });
        writeln!(out, "{line}")?;
        return Ok(());
    }
    let (file, megabytes, minutes) = (args.out.display(), bytes as f64 / 1e6, job.elapsed() / 60.0);
    writeln!(
        out,
        "{file}: {megabytes:.1} MB; {tokens} tokens of {sequences} sequences, {steps} steps, {minutes:.0} minutes"
    )?;
    for (at, head) in heads.iter().enumerate() {
        writeln!(
            out,
            "  token {}: {:.1} % of held-out text foretold{}; {:.1} % of it is in the draft vocabulary",
            at + 1,
            100.0 * head.acceptance,
            if at > 0 { " where those before were" } else { "" },
            100.0 * head.coverage,
        )?;
    }
    if let Some(recipe) = &info.recipe {
        writeln!(std::io::stderr(), "the same again: {recipe}")?;
    }
    Ok(())
}

/// What is to be done, and where it is kept meanwhile.
struct Job<'a> {
    args: &'a MlpArgs,
    start: Instant,
    path: PathBuf,
    states: PathBuf,
}

impl<'a> Job<'a> {
    fn new(args: &'a MlpArgs) -> anyhow::Result<Self> {
        let states = args.states.clone().unwrap_or_else(|| {
            let mut name = args.out.as_os_str().to_owned();
            name.push(".states");
            name.into()
        });
        let job = Self {
            args,
            start: Instant::now(),
            path: args.model.file()?,
            states,
        };
        let name = job.states.display();
        match (args.resume, job.states.exists()) {
            (true, false) => bail!("{name}: there is nothing to --resume"),
            (false, true) if args.states.is_none() => {
                bail!("{name} is what an interrupted run left: --resume goes on with it, or remove it")
            }
            _ => {}
        }
        // What takes an hour should not fail in the end, nor replace what nobody meant.
        let exported = args
            .export
            .iter()
            .flat_map(|directory| ["config.json", "model.safetensors"].map(|name| directory.join(name)));
        for file in exported.chain([args.out.clone()]) {
            if file.exists() && !args.force {
                bail!("{} is there already; --force replaces it", file.display());
            }
        }
        let outputs = [Some(&args.out), args.log.as_ref()];
        for file in outputs.into_iter().flatten() {
            let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty());
            if let Some(directory) = directory.filter(|directory| !directory.is_dir()) {
                bail!("{}: there is no such directory", directory.display());
            }
            if file.is_dir() {
                bail!("{}: is a directory", file.display());
            }
        }
        if let Some(directory) = &args.export {
            fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
        }
        Ok(job)
    }

    fn elapsed(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }
}

fn load(path: &Path, compute: &Arc<Compute>) -> anyhow::Result<LoadedModel> {
    let slots = CaptureOptions::default().slots;
    Ok(load_model(path, compute, &mut |_, _| (), |config, _| {
        let context = config.context_length.min(CONTEXT);
        LoadOptions {
            context: Some(context),
            kv_positions: Some(context * slots),
            head_tokens: None,
        }
    })?)
}

fn bar(template: &str, message: &'static str) -> anyhow::Result<ProgressBar> {
    // Draws on standard error, and only if that is a terminal.
    let bar = ProgressBar::no_length().with_style(ProgressStyle::with_template(template)?);
    bar.set_message(message);
    Ok(bar)
}

/// Lets the model read and write as much as is asked for, and returns the number of sequences.
fn capture(job: &Job<'_>, target: &mut LoadedModel) -> anyhow::Result<u32> {
    let args = job.args;
    let info = target.model.info().clone();
    let at = || job.path.display().to_string();
    let template = ChatTemplate::from_gguf(&target.gguf).with_context(at)?;
    let prompts = PromptEncoder::new(target.tokenizer.clone(), template, info.context_length);
    let frame = training::frame(&prompts).with_context(at)?;
    let context = info.context_length;
    let room = context.saturating_sub(frame.before.len() + frame.after.len());
    if room < LEAST_ROOM {
        bail!(
            "{}: a context of {context} has no room for questions and answers",
            at()
        );
    }
    let default = CaptureOptions::default();
    let question = default.question.min(room / 4);
    let options = CaptureOptions {
        question,
        answer: default.answer.min(room - question),
        seed: args.seed,
        ..default
    };
    let texts = training::texts(&args.data, &target.tokenizer, context)?;
    let meta = DatasetMeta {
        target: training::identity(&job.path, &target.gguf, &target.tokenizer)?,
        recipe: training::recipe(&options, &frame, &texts),
        hidden_size: info.hidden_size,
        labels: LABELS,
    };
    let mut writer = DatasetWriter::open(&job.states, meta)?;
    let planned = plan(job)?.map(|plan| plan.sequences).or(args.sequences);
    let bar = bar(
        "{msg} {wide_bar} {percent} %, {eta} left; {prefix}",
        "the model writes",
    )?;
    bar.set_length(1000);
    let mut capture = Capture::new(&mut target.model, options, frame, texts);
    if let Some(sequences) = planned {
        capture = capture.with_end(sequences);
    }
    let until = CAPTURE * args.budget.as_secs_f64();
    let (begun, before) = (job.elapsed(), writer.rows());
    while capture.step(&mut writer)? {
        if planned.is_none() && job.elapsed() >= until {
            capture.finish();
        }
        let done = match planned {
            Some(sequences) => writer.numbers().len() as f64 / f64::from(sequences),
            None => job.elapsed() / until,
        };
        bar.set_position((1000.0 * done.min(1.0)) as u64);
        let rate = (writer.rows() - before) as f64 / (job.elapsed() - begun);
        bar.set_prefix(format!("{} tokens, {rate:.0} a second", writer.rows()));
    }
    bar.finish_and_clear();
    Ok(capture.next())
}

/// What an earlier run that is gone on with has planned.
fn plan(job: &Job<'_>) -> anyhow::Result<Option<Plan>> {
    let path = job.states.join(PLAN);
    if !job.args.resume || !path.exists() {
        return Ok(None);
    }
    let name = || path.display().to_string();
    let text = fs::read_to_string(&path).with_context(name)?;
    let plan: Plan = serde_json::from_str(&text).with_context(name)?;
    let asked = (
        job.args.sequences.unwrap_or(plan.sequences),
        job.args.steps.unwrap_or(plan.steps),
    );
    if asked != (plan.sequences, plan.steps) {
        bail!(
            "{}: what is gone on with has --sequences {} --steps {}",
            name(),
            plan.sequences,
            plan.steps
        );
    }
    Ok(Some(plan))
}
