//! Developer and newcomer commands of foretoken: `cargo xtask demo`, `models`, `test`, `peers`,
//! `instructions`, `ranking`, `soak`, `forms`.
//!
//! Not here: anything that the engine itself needs.
#![forbid(unsafe_code)]

mod clients;
mod command;
mod demo;
mod forms;
mod instructions;
mod models;
mod peers;
mod python;
mod ranking;
mod server;
mod test;

use clap::{Parser, Subcommand};
use models::Selection;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "Developer and newcomer commands of foretoken"
)]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Show a real model answering with and without speculation
    Demo {
        /// Use the 1.5B Qwen model with its 0.5B draft model (1.6 GB) instead of SmolLM2 (98 MB)
        #[arg(long)]
        qwen: bool,
    },
    /// Fetch the models that demo and tests use, from the Python package index, with pip
    ///
    /// They are kept in $FORETOKEN_MODELS (by default ~/.cache/foretoken/models). Those already there, with the
    /// right checksum, are not fetched again.
    Models {
        /// Which models [default: smollm2]
        #[arg(value_name = "NAME")]
        names: Vec<Selection>,
        /// All models
        #[arg(long, conflicts_with = "names")]
        all: bool,
        /// List the models and where they are instead of fetching
        #[arg(long, conflicts_with_all = ["names", "all"])]
        list: bool,
    },
    /// Measure foretoken beside llama.cpp (from the Python package index) and write the tables in docs/performance.md
    Peers(peers::Args),
    /// Count the instructions of each kernel with valgrind and compare with crates/kernels/instructions.txt
    Instructions {
        /// Write them down instead
        #[arg(long)]
        write: bool,
    },
    /// Count which tokens of a tokenizer are frequent, and write the file that foretoken ships
    Ranking {
        /// A model with the tokenizer (GGUF)
        model: PathBuf,
        /// The file to write
        #[arg(long, value_name = "FILE.ranking")]
        out: PathBuf,
        /// Texts, and directories of texts
        #[arg(required = true)]
        texts: Vec<PathBuf>,
    },
    /// Drive a server with the official OpenAI packages for Python and Node, as the tests do
    Clients,
    /// Many clients at once against a server: answers as alone, faults survived, nothing leaked
    Soak(clients::SoakArgs),
    /// Measures what grammars and predictions are worth
    Forms(forms::Args),
    /// Fetch the models and run every test, those on real models included
    Test {
        /// With SmolLM2 alone (98 MB instead of 2 GB)
        #[arg(long)]
        quick: bool,
    },
}

fn main() -> ExitCode {
    let result = match Args::parse().task {
        Task::Demo { qwen } => demo::run(qwen),
        Task::Models { list: true, .. } => models::list(),
        Task::Models { all: true, .. } => models::fetch(models::MODELS),
        Task::Models { names, .. } if names.is_empty() => models::fetch([&models::SMOLLM2]),
        Task::Models { names, .. } => models::fetch(names.iter().flat_map(|name| name.models())),
        Task::Peers(args) => peers::run(&args),
        Task::Instructions { write } => instructions::run(write),
        Task::Ranking { model, out, texts } => ranking::run(&model, &out, &texts),
        Task::Clients => clients::build_and_run(),
        Task::Soak(args) => clients::soak(&args),
        Task::Forms(args) => forms::run(&args),
        Task::Test { quick } => test::run(quick),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
