//! The second half of a training: the network learns from what was captured.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use foretoken::model::{SpeculatorConfig, SpeculatorInfo, SpeculatorTensor, embedding_rows};
use foretoken::spec::TargetModel;
use foretoken::train::{Dataset, HeadReport, Init, NetworkShape, Tables, TrainOptions, Trainer};
use foretoken::{LoadedModel, Token, draft_vocabulary, training};
use serde_json::json;

use super::{Job, PLAN, Plan, bar, plan};
use crate::cli::{LEARNING_RATE, MlpArgs};

/// The share of the budget that is left for what comes before and after.
const REST: f64 = 0.02;
/// How often the training goes over all tokens, at most: more teach the rows by heart.
const MOST_EPOCHS: f64 = 4.0;
/// Vocabularies up to this length are small.
const SMALL_VOCABULARY: usize = 1 << 16;
/// Of so many sequences, one is not learned from, but evaluated with.
const HELD_OUT: usize = 20;
/// How often to say how far it is, and to keep that.
const PAUSE: Duration = Duration::from_secs(60);

const CHECKPOINT: &str = "checkpoint";

/// A speculator.
pub(super) struct Learned {
    pub info: SpeculatorInfo,
    pub tensors: Vec<SpeculatorTensor>,
    pub plan: Plan,
    pub tokens: u64,
    pub heads: Vec<HeadReport>,
}

/// Trains on what was captured.
pub(super) fn learn(job: &Job<'_>, target: &LoadedModel, sequences: u32) -> anyhow::Result<Learned> {
    let args = job.args;
    let config = target.model.config();
    let dataset = Dataset::open(&job.states)?.up_to(sequences);
    let tokens = dataset
        .sequences()
        .iter()
        .map(|sequence| u64::from(sequence.rows))
        .sum();
    let vocabulary = vocabulary(args, target, &dataset)?;
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
        held_out: HELD_OUT,
        ..TrainOptions::new(shape)
    };
    let checkpoint = job.states.join(CHECKPOINT);
    let (mut trainer, plan) = match plan(job)? {
        Some(plan) if checkpoint.exists() => {
            options.steps = plan.steps;
            (Trainer::resume(&checkpoint, dataset, tables, options)?, plan)
        }
        planned => {
            let mut trainer = Trainer::new(dataset, tables, options)?;
            let steps = match planned.map(|plan| plan.steps).or(args.steps) {
                Some(steps) => steps,
                None => steps(job, &mut trainer)?,
            };
            trainer.set_steps(steps);
            let plan = Plan { sequences, steps };
            keep(job, &plan)?;
            (trainer, plan)
        }
    };
    let heads = run(job, &mut trainer, &checkpoint)?;
    let tensors = trainer.tensors().into_iter();
    let tensors = tensors.map(|(name, dims, values)| SpeculatorTensor { name, dims, values });
    let info = SpeculatorInfo {
        config: SpeculatorConfig {
            vocab_size: embedding_rows(&target.gguf),
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
        acceptance: heads.iter().map(|head| head.acceptance as f32).collect(),
        recipe: Some(recipe(args, plan)),
    };
    Ok(Learned {
        info,
        tensors: tensors.collect(),
        plan,
        tokens,
        heads,
    })
}

/// Keeps a plan for `--resume`; a checkpoint of another one must not be taken for its.
fn keep(job: &Job<'_>, plan: &Plan) -> anyhow::Result<()> {
    let (path, partial) = (job.states.join(PLAN), job.states.join("plan.json.partial"));
    let checkpoint = job.states.join(CHECKPOINT);
    let text = serde_json::to_string(plan)?;
    let outcome = match checkpoint.exists() {
        true => fs::remove_file(&checkpoint),
        false => Ok(()),
    };
    outcome
        .and_then(|()| fs::write(&partial, text))
        .and_then(|()| fs::rename(&partial, &path))
        .with_context(|| path.display().to_string())
}

/// The command that makes the same speculator again, beside names of files.
fn recipe(args: &MlpArgs, Plan { sequences, steps }: Plan) -> String {
    let mut recipe = format!(
        "foretoken {} train mlp --sequences {sequences} --steps {steps} --seed {} --heads {}",
        env!("CARGO_PKG_VERSION"),
        args.seed,
        args.heads
    );
    let given = [
        args.inner.map(|inner| format!("--inner {inner}")),
        args.draft_vocab.map(|size| format!("--draft-vocab {size}")),
        args.untied.then(|| "--untied".to_owned()),
        args.hard_labels.then(|| "--hard-labels".to_owned()),
        args.random_init.then(|| "--random-init".to_owned()),
        (args.learning_rate != LEARNING_RATE).then(|| format!("--learning-rate {}", args.learning_rate)),
        (!args.data.is_empty()).then(|| "--data …".to_owned()),
    ];
    for option in given.into_iter().flatten() {
        recipe += " ";
        recipe += &option;
    }
    recipe
}

/// The tokens that may be drafted: frequent ones, and those that the model itself says often.
fn vocabulary(args: &MlpArgs, target: &LoadedModel, dataset: &Dataset) -> anyhow::Result<Vec<Token>> {
    let size = target.model.info().vocab_size;
    let n = args.draft_vocab.unwrap_or(match size <= SMALL_VOCABULARY {
        true => 8192,
        false => 16384,
    });
    let seen = training::seen(dataset, HELD_OUT)?;
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
    let steps = (left - evaluations * evaluation) / step;
    if steps < 1.0 {
        bail!("the budget is used up before the first step of training: --budget, or --steps");
    }
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
