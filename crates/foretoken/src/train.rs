//! `foretoken train`: a speculator for any model.
//!
//! First the model writes, and what it computes meanwhile is kept on disk; then a small network learns from that. The budget of time is
//! divided between the two, and what it came to is said, so that the same numbers of tokens and steps give the same speculator.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use foretoken::kernels::Compute;
use foretoken::model::{
    LoadOptions, PromptEncoder, SpeculatorConfig, SpeculatorInfo, SpeculatorTensor, SpeculatorType,
    export_speculator, write_speculator,
};
use foretoken::spec::TargetModel;
use foretoken::train::{
    Capture, CaptureOptions, Dataset, DatasetMeta, DatasetWriter, HeadReport, Init, NetworkShape, Tables,
    TrainOptions, Trainer,
};
use foretoken::{ChatTemplate, LoadedModel, Token, draft_vocabulary, load_model, training};
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::cli::{MlpArgs, TrainCommand};

/// The target's likeliest tokens that are kept of each row.
const LABELS: usize = 16;
/// Most positions of a sequence.
const CONTEXT: usize = 1024;
/// A context needs so much room beside what the chat template takes.
const LEAST_ROOM: usize = 32;
/// The share of the budget in which the model reads and writes.
const CAPTURE: f64 = 0.5;
/// The share that is left for what comes before and after.
const REST: f64 = 0.02;
/// How often the training goes over all tokens, at most: more teach the rows by heart.
const MOST_EPOCHS: f64 = 8.0;
/// Vocabularies up to this length are small.
const SMALL_VOCABULARY: usize = 1 << 16;
/// How often to say how far it is, and to keep that.
const PAUSE: Duration = Duration::from_secs(60);

const PLAN: &str = "plan.json";
const CHECKPOINT: &str = "checkpoint";

/// What the budget came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Plan {
    /// Tokens to learn from.
    tokens: u64,
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
    let tokens = capture(&job, &mut target)?;
    let (info, tensors, plan) = learn(&job, &target, tokens)?;
    let written = write_speculator(&args.out, &info, &tensors, SpeculatorType::Q8_0)?;
    if let Some(directory) = &args.export {
        let bar = bar("{msg} {wide_bar} {percent} %, {eta} left", "multiplying out")?;
        let mut progress = |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        };
        export_speculator(directory, &info, &tensors, &target.model, &compute, &mut progress)?;
        bar.finish_and_clear();
    }
    if args.states.is_none() {
        fs::remove_dir_all(&job.states).with_context(|| job.states.display().to_string())?;
    }
    let seconds = job.start.elapsed().as_secs_f64();
    let mut out = std::io::stdout();
    if args.json {
        let line = json!({
            "file": args.out, "bytes": written.bytes, "tokens": plan.tokens, "steps": plan.steps, "seconds": seconds,
            "acceptance": info.acceptance, "recipe": info.recipe,
        });
        writeln!(out, "{line}")?;
        return Ok(());
    }
    writeln!(
        out,
        "{}: {:.1} MB, learned from {} tokens in {} steps, {:.0} minutes; of held-out text {} foretold",
        args.out.display(),
        written.bytes as f64 / 1e6,
        plan.tokens,
        plan.steps,
        seconds / 60.0,
        info.acceptance
            .iter()
            .map(|a| format!("{:.0} %", 100.0 * a))
            .collect::<Vec<_>>()
            .join(", "),
    )?;
    writeln!(
        std::io::stderr(),
        "the same again: --tokens {} --steps {} --seed {}",
        plan.tokens,
        plan.steps,
        args.seed
    )?;
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
        // What takes an hour should not fail in the end.
        let directory = args.out.parent().filter(|parent| !parent.as_os_str().is_empty());
        if let Some(directory) = directory.filter(|directory| !directory.is_dir()) {
            bail!("{}: there is no such directory", directory.display());
        }
        if args.out.is_dir() {
            bail!("{}: is a directory", args.out.display());
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

/// Lets the model read and write as much as is asked for, and returns how many tokens there are.
fn capture(job: &Job<'_>, target: &mut LoadedModel) -> anyhow::Result<u64> {
    let args = job.args;
    let info = target.model.info().clone();
    let template = ChatTemplate::from_gguf(&target.gguf)?;
    let prompts = PromptEncoder::new(target.tokenizer.clone(), template, info.context_length);
    let frame = training::frame(&prompts)?;
    let Some(room) = info
        .context_length
        .checked_sub(frame.before.len() + frame.after.len())
        .filter(|&room| room >= LEAST_ROOM)
    else {
        bail!(
            "{}: a context of {} has no room for questions and answers",
            job.path.display(),
            info.context_length
        );
    };
    let default = CaptureOptions::default();
    let question = default.question.min(room / 4);
    let options = CaptureOptions {
        question,
        answer: default.answer.min(room - question),
        seed: args.seed,
        ..default
    };
    let texts = training::texts(&args.data, &target.tokenizer, info.context_length)?;
    let meta = DatasetMeta {
        target: training::identity(&job.path, &target.gguf, &target.tokenizer),
        recipe: training::recipe(&options, &texts),
        hidden_size: info.hidden_size,
        labels: LABELS,
    };
    let mut writer = DatasetWriter::open(&job.states, meta)?;
    let planned = plan(job)?.map(|plan| plan.tokens).or(args.tokens);
    let bar = bar(
        "{msg} {wide_bar} {human_pos}/{human_len} tokens, {per_sec}, {eta} left",
        "the model writes",
    )?;
    bar.set_length(planned.unwrap_or(1));
    let (begun, before) = (job.elapsed(), writer.rows());
    bar.set_position(before);
    bar.reset_eta();
    let until = CAPTURE * args.budget.as_secs_f64();
    let mut capture = Capture::new(&mut target.model, options, frame, texts);
    loop {
        let enough = match planned {
            Some(tokens) => writer.rows() >= tokens,
            None => job.elapsed() >= until,
        };
        if enough {
            break;
        }
        capture.step(&mut writer)?;
        if planned.is_none() {
            let new = (writer.rows() - before) as f64;
            let expected = before as f64 + new * (until - begun) / (job.elapsed() - begun);
            bar.set_length(expected as u64);
        }
        bar.set_position(writer.rows());
    }
    bar.finish_and_clear();
    Ok(writer.rows())
}

/// What an earlier run that is gone on with has planned.
fn plan(job: &Job<'_>) -> anyhow::Result<Option<Plan>> {
    let path = job.states.join(PLAN);
    if !job.args.resume || !path.exists() {
        return Ok(None);
    }
    let name = || path.display().to_string();
    let text = fs::read_to_string(&path).with_context(name)?;
    Ok(Some(serde_json::from_str(&text).with_context(name)?))
}

/// Trains on what was captured.
fn learn(
    job: &Job<'_>,
    target: &LoadedModel,
    tokens: u64,
) -> anyhow::Result<(SpeculatorInfo, Vec<SpeculatorTensor>, Plan)> {
    let args = job.args;
    let config = target.model.config();
    let dataset = || Dataset::open(&job.states);
    let vocabulary = vocabulary(args, target, &dataset()?)?;
    let d = config.hidden_size;
    let mut head = vec![0.0; vocabulary.len() * d];
    for (&token, row) in vocabulary.iter().zip(head.chunks_exact_mut(d)) {
        target.model.head_row(token, row);
    }
    let embedding = |token: Token, row: &mut [f32]| target.model.embedding_row(token, row);
    let tables = Tables {
        embedding: &embedding,
        head: &head,
        draft_vocabulary: &vocabulary,
    };
    let shape = NetworkShape {
        hidden_size: d,
        inner_size: args.inner.map_or(2 * d, |inner| inner as usize),
        heads: args.heads.into(),
        tied: !args.untied,
        scale_input: true,
    };
    let mut options = TrainOptions {
        init: if args.random_init {
            Init::Random
        } else {
            Init::Regression
        },
        learning_rate: args.learning_rate.into(),
        hard_labels: args.hard_labels,
        seed: args.seed,
        threads: args.threads.count(),
        ..TrainOptions::new(shape)
    };
    let checkpoint = job.states.join(CHECKPOINT);
    let (mut trainer, plan) = match plan(job)? {
        Some(plan) if checkpoint.exists() => {
            options.steps = plan.steps;
            (
                Trainer::resume(&checkpoint, vec![dataset()?], tables, options)?,
                plan,
            )
        }
        planned => {
            let mut trainer = Trainer::new(vec![dataset()?], tables, options)?;
            let steps = match planned.map(|plan| plan.steps).or(args.steps) {
                Some(steps) => steps,
                None => steps(job, &mut trainer)?,
            };
            trainer.set_steps(steps);
            let plan = Plan { tokens, steps };
            let path = job.states.join(PLAN);
            fs::write(&path, serde_json::to_string(&plan)?).with_context(|| path.display().to_string())?;
            (trainer, plan)
        }
    };
    let reports = run(job, &mut trainer, &checkpoint)?;
    let tensors = trainer.tensors().into_iter();
    let tensors = tensors.map(|(name, dims, values)| SpeculatorTensor { name, dims, values });
    let info = SpeculatorInfo {
        config: SpeculatorConfig {
            vocab_size: training::embedding_rows(&target.gguf),
            hidden_size: d,
            inner_size: shape.inner_size,
            heads: shape.heads,
            tied: shape.tied,
            scale_input: shape.scale_input,
            top_k: vec![3; shape.heads],
            candidates: 5,
        },
        factored: true,
        draft_vocabulary: Some(vocabulary.clone()),
        target_name: Some(training::name(&job.path, &target.gguf)),
        tokenizer_fingerprint: Some(target.tokenizer.fingerprint()),
        acceptance: reports.iter().map(|report| report.acceptance as f32).collect(),
        recipe: Some(format!(
            "foretoken {} train mlp --tokens {} --steps {} --seed {}",
            env!("CARGO_PKG_VERSION"),
            plan.tokens,
            plan.steps,
            args.seed
        )),
    };
    Ok((info, tensors.collect(), plan))
}

/// The tokens that may be drafted: frequent ones, and those that the model itself says often.
fn vocabulary(args: &MlpArgs, target: &LoadedModel, dataset: &Dataset) -> anyhow::Result<Vec<Token>> {
    let size = target.model.info().vocab_size;
    let n = args.draft_vocab.unwrap_or(match size <= SMALL_VOCABULARY {
        true => 8192,
        false => 16384,
    });
    let seen = training::seen(dataset)?;
    let all = || (0..size as Token).collect();
    Ok(draft_vocabulary(&target.tokenizer, size, n, &seen).unwrap_or_else(all))
}

/// Steps that the rest of the budget has time for.
fn steps(job: &Job<'_>, trainer: &mut Trainer<'_>) -> anyhow::Result<u64> {
    // The first one takes memory that the others have.
    trainer.step_time()?;
    let step = trainer.step_time()?.min(trainer.step_time()?).as_secs_f64();
    let start = Instant::now();
    trainer.evaluate()?;
    let evaluation = start.elapsed().as_secs_f64();
    let budget = job.args.budget.as_secs_f64();
    let left = (1.0 - REST) * budget - job.elapsed();
    let evaluations = 1.0 + left / PAUSE.as_secs_f64();
    let steps = ((left - evaluations * evaluation) / step).max(1.0);
    let epoch = trainer.rows().0 as f64 / trainer.options().batch as f64;
    Ok(steps.min(MOST_EPOCHS * epoch).max(1.0) as u64)
}

/// All steps that are left, and what the heads are worth in the end.
fn run(job: &Job<'_>, trainer: &mut Trainer<'_>, checkpoint: &Path) -> anyhow::Result<Vec<HeadReport>> {
    let bar = bar(
        "{msg} {wide_bar} {pos}/{len} steps, {eta} left; {prefix}",
        "training",
    )?;
    bar.set_length(trainer.options().steps);
    bar.set_position(trainer.steps());
    bar.reset_eta();
    let mut log = match &job.args.log {
        Some(path) => Some(
            File::options()
                .create(true)
                .append(true)
                .open(path)
                .with_context(|| path.display().to_string())?,
        ),
        None => None,
    };
    let mut said = Instant::now();
    let mut reports = trainer.evaluate()?;
    let mut loss = f64::NAN;
    loop {
        let done = trainer.steps() >= trainer.options().steps;
        let acceptance: Vec<String> = reports
            .iter()
            .map(|head| format!("{:.1} %", 100.0 * head.acceptance))
            .collect();
        bar.set_prefix(format!("loss {loss:.3}, held-out {}", acceptance.join(" ")));
        if let Some(log) = &mut log {
            let tokens = trainer.steps() * trainer.options().batch as u64;
            let line = json!({
                "seconds": job.elapsed(), "step": trainer.steps(), "tokens": tokens, "loss": loss, "held_out": reports,
            });
            writeln!(log, "{line}")?;
        }
        if done {
            break;
        }
        while trainer.steps() < trainer.options().steps && said.elapsed() < PAUSE {
            let step = trainer.step()?;
            // Smooth enough to be read.
            loss = if loss.is_nan() {
                step.loss
            } else {
                0.95 * loss + 0.05 * step.loss
            };
            bar.set_position(step.step);
        }
        trainer.save(checkpoint)?;
        reports = trainer.evaluate()?;
        said = Instant::now();
    }
    bar.finish_and_clear();
    Ok(reports)
}
