//! The arguments of `train`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::{ModelArg, ThreadArgs};

/// Suits batches of 512 rows.
pub const LEARNING_RATE: f32 = 1e-3;

#[derive(Debug, Args)]
pub struct TrainArgs {
    #[command(subcommand)]
    pub command: TrainCommand,
}

#[derive(Debug, Subcommand)]
pub enum TrainCommand {
    /// Train an MLP speculator: a small network that reads the model's last hidden state and drafts from it (-d)
    Mlp(MlpArgs),
}

#[derive(Debug, Args)]
pub struct MlpArgs {
    /// The model to draft for: a GGUF file, or the name of one that was pulled
    #[arg(short, long, value_name = "TARGET")]
    pub model: ModelArg,
    /// The speculator to write
    #[arg(short, long, value_name = "FILE.gguf")]
    pub out: PathBuf,
    /// Learn from this text too, before what the model writes itself (may be given several times)
    #[arg(long, value_name = "FILE")]
    pub data: Vec<PathBuf>,
    /// How long the whole job may take, such as 75m or 2h
    #[arg(long, value_name = "TIME", default_value = "75m", value_parser = duration)]
    pub budget: Duration,
    /// Sequences to learn from, each a text of --data or a question and an answer [default: as many as the model reads and writes
    /// in two thirds of the budget]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    pub sequences: Option<u32>,
    /// Steps of training [default: as many as the rest of the budget takes, and at most four times over all tokens]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub steps: Option<u64>,
    /// Keep what the model computes for its texts in this directory, or learn from what an earlier run kept there
    /// [default: FILE.gguf.states, removed in the end]
    #[arg(long, value_name = "DIR")]
    pub states: Option<PathBuf>,
    /// Go on where an earlier run of the same command was interrupted
    #[arg(long)]
    pub resume: bool,
    /// Tokens that it looks ahead
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=8))]
    pub heads: u8,
    /// Length of the states between heads [default: twice the model's hidden size]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(32..=65536))]
    pub inner: Option<u32>,
    /// Let it draft the N most frequent tokens alone [default: 8192 of a vocabulary of up to 65536, else 16384]; 0 is the whole
    /// vocabulary
    #[arg(long, value_name = "N")]
    pub draft_vocab: Option<usize>,
    /// Give each head weights of its own
    #[arg(long)]
    pub untied: bool,
    /// Learn the likeliest token of each row alone, not how likely each is
    #[arg(long)]
    pub hard_labels: bool,
    /// Begin with random weights, not with a linear guess of the next state
    #[arg(long)]
    pub random_init: bool,
    /// The highest learning rate
    #[arg(long, value_name = "R", default_value_t = LEARNING_RATE, value_parser = super::positive)]
    pub learning_rate: f32,
    /// Write a line of JSON now and then: tokens learned from, loss, and acceptance on held-out text
    #[arg(long, value_name = "FILE.jsonl")]
    pub log: Option<PathBuf>,
    /// Write the speculator in the published layout too, its tables multiplied out with the model's: config.json and model.safetensors
    #[arg(long, value_name = "DIR")]
    pub export: Option<PathBuf>,
    /// Replace files that are there
    #[arg(long)]
    pub force: bool,
    /// Print one JSON object at the end
    #[arg(long)]
    pub json: bool,
    /// Seed of everything that is drawn at random
    #[arg(short, long, default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub threads: ThreadArgs,
}

/// `90`, `90s`, `75m`, `2h`.
fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.find(|c: char| c.is_ascii_alphabetic()) {
        Some(at) => text.split_at(at),
        None => (text, "s"),
    };
    let seconds = match unit {
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("{unit:?} is no unit of time: s, m or h")),
    };
    let number: f64 = number.parse().map_err(|_| format!("{number:?} is no number"))?;
    let duration = Duration::try_from_secs_f64(number * seconds).map_err(|error| error.to_string())?;
    match duration.is_zero() {
        true => Err("must be more than 0".into()),
        false => Ok(duration),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, seconds) in [
            ("90", 90),
            ("90s", 90),
            ("75m", 4500),
            ("1.5h", 5400),
            ("2min", 120),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "m", "0", "-1m", "5d", "1h30m", "nan", "inf"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
