//! `foretoken train`: a speculator for any model.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use foretoken::kernels::Compute;
use foretoken::model::LoadOptions;
use foretoken::model::PromptEncoder;
use foretoken::spec::TargetModel;
use foretoken::train::{Capture, CaptureOptions, DatasetMeta, DatasetWriter};
use foretoken::{ChatTemplate, load_model, training};
use indicatif::{ProgressBar, ProgressStyle};

use crate::cli::{MlpArgs, TrainCommand};

/// The target's likeliest tokens that are kept of each row.
const LABELS: usize = 16;
/// Positions of the context that training uses.
const CONTEXT: usize = 1024;

/// Runs `foretoken train`.
pub fn train(command: &TrainCommand) -> anyhow::Result<()> {
    match command {
        TrainCommand::Mlp(args) => mlp(args),
    }
}

fn mlp(args: &MlpArgs) -> anyhow::Result<()> {
    let start = Instant::now();
    let path = args.model.file()?;
    let compute = Arc::new(Compute::new(args.threads.count()));
    let capture = CaptureOptions {
        seed: args.seed,
        ..CaptureOptions::default()
    };
    let mut target = load_model(&path, &compute, &mut |_, _| (), |config, _| LoadOptions {
        context: Some(config.context_length.min(CONTEXT)),
        kv_positions: Some(config.context_length.min(CONTEXT) * capture.slots),
        head_tokens: None,
    })?;
    let template = ChatTemplate::from_gguf(&target.gguf)?;
    let info = target.model.info().clone();
    let prompts = PromptEncoder::new(target.tokenizer.clone(), template, info.context_length);
    let frame = training::frame(&prompts)?;
    let texts = training::texts(&args.data, &target.tokenizer, info.context_length)?;
    let meta = DatasetMeta {
        target: training::identity(&path, &target.gguf, &target.tokenizer),
        recipe: format!("seed {}", args.seed),
        hidden_size: info.hidden_size,
        labels: LABELS,
    };
    let directory = args.states.clone().unwrap_or_else(|| {
        let mut name = args.out.as_os_str().to_owned();
        name.push(".states");
        name.into()
    });
    let tokens = args.tokens.unwrap_or(100_000);
    let mut writer = DatasetWriter::open(Path::new(&directory), meta)?;
    let bar = ProgressBar::new(tokens).with_style(ProgressStyle::with_template(
        "{msg:<20} {wide_bar} {pos}/{len} tokens {per_sec} {eta}",
    )?);
    bar.set_message("writing and reading");
    let mut capture = Capture::new(&mut target.model, capture, frame, texts);
    let before = writer.rows();
    while writer.rows() < tokens {
        capture.step(&mut writer)?;
        bar.set_position(writer.rows());
    }
    bar.finish_and_clear();
    let seconds = start.elapsed().as_secs_f64();
    eprintln!("{} rows in {seconds:.1} s", writer.rows() - before);
    Ok(())
}
