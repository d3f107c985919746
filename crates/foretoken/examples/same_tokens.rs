//! Compares all drafters with plain decoding, token by token, and prints what was compared.
//!
//! ```text
//! cargo run --release -p foretoken --example same_tokens -- --target M.gguf --draft D.gguf --prompts FILE.json
//! ```
//!
//! The file of prompts is a JSON object of names and raw texts. Exit code 1 if a token differs.
#![forbid(unsafe_code)]

#[path = "../tests/matrix/mod.rs"]
mod matrix;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use matrix::{Drafts, Plan, run};

/// Compares all drafters with plain decoding, token by token.
#[derive(Debug, Parser)]
struct Args {
    /// The target model
    #[arg(long)]
    target: PathBuf,
    /// The draft model; may be the target
    #[arg(long)]
    draft: PathBuf,
    /// A speculator to draft with as well
    #[arg(long)]
    speculator: Option<PathBuf>,
    /// A JSON object of names and raw prompts
    #[arg(long)]
    prompts: PathBuf,
    /// Take only these prompts (names, separated by commas)
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Tokens of each answer
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..))]
    tokens: u16,
    /// Temperatures
    #[arg(long, value_delimiter = ',', default_value = "0,0.7,1.3")]
    temperatures: Vec<f32>,
    /// Numbers of threads
    #[arg(long, value_delimiter = ',', default_value = "2,1")]
    threads: Vec<usize>,
    /// Lengths of the draft model's drafts
    #[arg(long, value_delimiter = ',', default_value = "1,4,8,16")]
    lengths: Vec<usize>,
    /// Sizes of its trees
    #[arg(long, value_delimiter = ',', default_value = "6,15")]
    trees: Vec<usize>,
    /// Leave out the drafters other than the draft model
    #[arg(long)]
    model_only: bool,
    /// Also draft with noise that the target does not share: what acceptance is without it
    #[arg(long)]
    own_noise: bool,
    /// Let answers end where the model ends them
    #[arg(long)]
    natural_ends: bool,
    /// Sequences to run together; 0 leaves that out
    #[arg(long, default_value_t = 4)]
    together: usize,
    /// Length of a long prompt made of all prompts; 0 leaves it out
    #[arg(long, default_value_t = 2500)]
    long_prompt: usize,
}

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    let text = std::fs::read_to_string(&args.prompts).with_context(|| args.prompts.display().to_string())?;
    let prompts: BTreeMap<String, String> =
        serde_json::from_str(&text).with_context(|| args.prompts.display().to_string())?;
    let prompts: Vec<String> = prompts
        .into_iter()
        .filter(|(name, _)| args.only.is_empty() || args.only.contains(name))
        .map(|(_, text)| text)
        .collect();
    anyhow::ensure!(
        !prompts.is_empty(),
        "{}: no prompt is left",
        args.prompts.display()
    );
    let mut drafts: Vec<Drafts> = args.lengths.iter().map(|&k| Drafts::Model(k)).collect();
    drafts.extend(args.trees.iter().map(|&n| Drafts::ModelTree(n)));
    if args.speculator.is_some() {
        drafts.extend(args.lengths.iter().map(|&k| Drafts::Speculator(k)));
        drafts.extend(args.trees.iter().map(|&n| Drafts::SpeculatorTree(n)));
    }
    if args.own_noise {
        drafts.extend(args.lengths.iter().map(|&k| Drafts::ModelOwnNoise(k)));
    }
    if !args.model_only {
        drafts.extend([
            Drafts::None,
            Drafts::Auto,
            Drafts::Suffix,
            Drafts::Recycling,
            Drafts::Random,
            Drafts::Right,
        ]);
    }
    let plan = Plan {
        target: args.target,
        draft: args.draft,
        speculator: args.speculator,
        prompts,
        temperatures: args.temperatures,
        drafts,
        threads: args.threads,
        tokens: args.tokens.into(),
        natural_ends: args.natural_ends,
        together: args.together,
        long_prompt: args.long_prompt,
    };
    let rows = run(&plan, &mut |row| println!("{row}"))?;
    let (compared, differed) = rows
        .iter()
        .fold((0, 0), |(c, d), row| (c + row.compared, d + row.differed));
    println!("total: {compared} tokens compared, {differed} differed");
    Ok(if differed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
