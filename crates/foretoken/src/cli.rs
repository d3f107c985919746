//! The arguments, and which of them contradict each other: nothing that was asked for is dropped silently.
//!
//! Not here: what the commands do.

mod chat;
mod convert;
mod drafting;
mod models;
mod serving;
mod train;

use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand};
use foretoken::engine::{MAX_STOP_BYTES, MAX_STOPS};
use foretoken::{SamplerParams, Token};

pub use chat::ChatArgs;
pub use convert::{ConvertArgs, ConvertCommand, ConvertSpeculatorArgs};
pub use drafting::{DraftArgs, DraftModelArgs, DrafterName};
pub use models::{ModelArg, ModelsArgs, PullArgs};
pub use serving::{LogFormat, ServeArgs};
pub use train::{LEARNING_RATE, MlpArgs, TrainArgs, TrainCommand};

/// Runs large language models and makes them answer sooner by speculative decoding, with the same tokens.
#[derive(Debug, Parser)]
#[command(name = "foretoken", version, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Answer a prompt
    Run(Box<RunArgs>),
    /// Talk with a model
    Chat(Box<ChatArgs>),
    /// Serve a model to many clients at once (OpenAI's API)
    Serve(Box<ServeArgs>),
    /// Fetch a model file, by a name, from the hub or a URL
    Pull(PullArgs),
    /// List the models that were fetched, and those that can be
    Models(ModelsArgs),
    /// Show what a model file holds
    Inspect(InspectArgs),
    /// Make a file of ours of what others publish
    Convert(ConvertArgs),
    /// Measure what this machine and a model on it can do
    Bench(BenchArgs),
    /// Say what drafts would gain on this machine, of a draft model (-d) or for nothing, and why that is less than the
    /// textbook promises
    Predict(PredictArgs),
    /// Print a trace of rounds (--trace) in the Chrome trace format, for a browser's or Perfetto's timeline
    Trace(TraceArgs),
    /// Train a speculator for a model
    Train(Box<TrainArgs>),
}

#[derive(Debug, Args)]
pub struct TraceArgs {
    /// What --trace wrote
    pub file: PathBuf,
}

#[derive(Debug, Args)]
pub struct PredictArgs {
    /// The model that answers: a GGUF file, or the name of one that was pulled
    #[arg(short, long, value_name = "TARGET")]
    pub model: ModelArg,
    #[command(flatten)]
    pub draft: DraftModelArgs,
    /// The probability that a draft token is accepted [default: measured with --prompt, else 0.7]
    #[arg(long, value_name = "A", value_parser = probability)]
    pub acceptance: Option<f32>,
    /// Measure the acceptance on the answer to this prompt
    #[arg(short, long, value_name = "TEXT", requires = "draft_model")]
    pub prompt: Option<String>,
    /// Tokens of that answer
    #[arg(short = 'n', long, visible_alias = "n-predict", value_name = "N", default_value_t = 96,
          value_parser = clap::value_parser!(u32).range(2..))]
    pub predict: u32,
    #[command(flatten)]
    pub threads: ThreadArgs,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub command: BenchCommand,
}

#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Time a pass over n rows: what speculation has to pay for
    Cost(CostArgs),
    /// Measure the two ceilings of the machine: bytes read and int8 multiply-adds a second
    Machine(MachineArgs),
    /// Answer prompts with and without drafts, in turn, and compare
    Speed(SpeedArgs),
}

#[derive(Debug, Args)]
pub struct SpeedArgs {
    /// The model that answers: a GGUF file, or the name of one that was pulled
    #[arg(short, long, value_name = "TARGET")]
    pub model: ModelArg,
    #[command(flatten)]
    pub draft: DraftModelArgs,
    /// Prompts: an object of texts (.json), Spec-Bench's questions (.jsonl), or one text
    #[arg(long, value_name = "FILE")]
    pub prompts: PathBuf,
    /// Take so many prompts of each category
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub questions: Option<u32>,
    /// Most tokens of an answer
    #[arg(short = 'n', long, visible_alias = "n-predict", value_name = "TOKENS", default_value_t = 128,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub predict: u32,
    /// Drafters to compare with plain decoding; none is plain decoding once more, which shows the noise
    #[arg(
        long,
        value_enum,
        value_name = "NAME,NAME",
        value_delimiter = ',',
        default_value = "auto"
    )]
    pub drafter: Vec<DrafterName>,
    /// Answers of each kind to each prompt
    #[arg(long, value_name = "R", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// Temperature; 0 takes the likeliest token
    #[arg(long, value_name = "T", default_value_t = 0.0, value_parser = not_negative)]
    pub temp: f32,
    /// Seed of the sampling noise
    #[arg(short, long, default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub threads: ThreadArgs,
    /// Positions of the context [default: the model's own, at most 4096]
    #[arg(short, long = "ctx-size", visible_alias = "context", value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub context: Option<u32>,
    /// The share of plain decoding's time that drafts may lose
    #[arg(long, value_name = "P", default_value_t = 0.02, value_parser = probability)]
    pub loss_budget: f32,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Write a page with pictures
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// Write a line of JSON for each round: what was expected of it, and what it was
    #[arg(long, value_name = "FILE.jsonl")]
    pub trace: Option<PathBuf>,
}

/// How many threads compute.
#[derive(Clone, Copy, Debug, Args)]
pub struct ThreadArgs {
    /// Threads [default: all that the system offers]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
}

impl ThreadArgs {
    /// The number asked for, or all that there are.
    pub fn count(self) -> usize {
        self.threads
            .map_or_else(foretoken::available_threads, |threads| threads as usize)
    }
}

#[derive(Debug, Args)]
pub struct CostArgs {
    /// The model: a GGUF file, or the name of one that was pulled
    #[arg(short, long, value_name = "MODEL")]
    pub model: ModelArg,
    #[command(flatten)]
    pub threads: ThreadArgs,
    /// Numbers of rows
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1,2,3,4,5,6,7,8,10,12,16",
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub rows: Vec<u32>,
    /// Positions that the rows follow
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "0",
          value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    pub context: Vec<u32>,
    /// Give logits to the N most frequent tokens alone, as a draft model may do; 0 is the whole vocabulary
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub draft_vocab: usize,
    /// Compute logits for the last row alone, as for a prompt; verification needs them for all
    #[arg(long)]
    pub last_row_only: bool,
    /// Measurements of each figure
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub repeat: u32,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Draw T(n) and its floor
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct MachineArgs {
    #[command(flatten)]
    pub threads: ThreadArgs,
    /// Measurements of each figure
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub repeat: u32,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct InspectArgs {
    /// The file, or the name of a model that was pulled; of a split model, its first part
    pub file: ModelArg,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Exit status: 0 done (also where Ctrl-C ended the answer), 1 failed, 2 wrong usage, 130 Ctrl-C before the answer began."
)]
pub struct RunArgs {
    /// The model that answers: a GGUF file, or the name of one that was pulled
    #[arg(short, long, value_name = "TARGET")]
    pub model: ModelArg,
    #[command(flatten)]
    pub draft: DraftModelArgs,

    #[command(flatten)]
    pub prompt: PromptArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub drafting: DraftArgs,
    /// Write a line of JSON for each round: what was expected of it, and what it was
    #[arg(long, value_name = "FILE.jsonl", help_heading = "Speculation")]
    pub trace: Option<PathBuf>,
    /// Measurement only: accept each draft token with this probability. The text is not the model's
    #[arg(long, value_name = "P", value_parser = probability, help_heading = "Speculation")]
    pub force_accept: Option<f32>,

    /// Most tokens to generate; -1 goes on until the context is full
    #[arg(short = 'n', long, visible_alias = "n-predict", value_name = "N", default_value_t = 256,
          value_parser = tokens_to_predict)]
    pub predict: i64,
    /// End the answer before this text (may be given several times)
    #[arg(long, value_name = "TEXT", value_parser = stop)]
    pub stop: Vec<String>,
    /// Answer with JSON that this schema describes
    #[arg(long, visible_alias = "json-schema-file", value_name = "FILE", conflicts_with_all = ["stop", "force_accept"])]
    pub json_schema: Option<PathBuf>,
    #[command(flatten)]
    pub threads: ThreadArgs,
    /// Positions of the context [default: the model's own, at most 4096]
    #[arg(short, long = "ctx-size", visible_alias = "context", value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub context: Option<u32>,

    /// Print one JSON object at the end instead of streaming text
    #[arg(long, conflicts_with = "show_draft")]
    pub json: bool,
    /// Mark accepted draft tokens, and show rejected ones
    #[arg(long)]
    pub show_draft: bool,
}

/// The prompt: `-p`, `-f` or standard input.
#[derive(Debug, Args)]
#[command(next_help_heading = "Prompt")]
pub struct PromptArgs {
    /// The prompt [default: read from standard input]
    #[arg(short, long, value_name = "TEXT", conflicts_with = "file")]
    pub prompt: Option<String>,
    /// Read the prompt from a file
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Give the prompt to the model as it is, names of special tokens parsed, without its chat template
    #[arg(long, conflicts_with = "system")]
    pub raw: bool,
    /// A system message to precede the prompt
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Temperature; 0 always takes the likeliest token
    #[arg(long, visible_alias = "temperature", value_name = "T", default_value_t = 0.8, value_parser = not_negative)]
    pub temp: f32,
    /// Keep the K likeliest tokens; 0 keeps all
    #[arg(long, value_name = "K", default_value_t = 40)]
    pub top_k: usize,
    /// Keep the likeliest tokens that together have this probability; 1 keeps all
    #[arg(long, value_name = "P", default_value_t = 0.95, value_parser = share)]
    pub top_p: f32,
    /// Keep tokens at least this likely relative to the likeliest; 0 keeps all
    #[arg(long, value_name = "P", default_value_t = 0.05, value_parser = probability)]
    pub min_p: f32,
    /// Penalty on tokens among the last 64; 1 is none
    #[arg(long, value_name = "R", default_value_t = 1.0, value_parser = positive)]
    pub repeat_penalty: f32,
    /// Penalty on tokens that were generated already; 0 is none
    #[arg(long, value_name = "A", default_value_t = 0.0, value_parser = finite)]
    pub presence_penalty: f32,
    /// Penalty on tokens for each time that they were generated; 0 is none
    #[arg(long, value_name = "A", default_value_t = 0.0, value_parser = finite)]
    pub frequency_penalty: f32,
    /// Add B to the logit of token ID; -inf bans it (may be given several times)
    #[arg(long, value_name = "ID=B", value_parser = bias)]
    pub logit_bias: Vec<(Token, f32)>,
    /// Seed of the sampling noise [default: drawn from the system, and reported]
    #[arg(short, long)]
    pub seed: Option<u64>,
}

impl Cli {
    /// The arguments of this process. Ends it on wrong usage.
    pub fn from_process() -> Self {
        let cli = Self::parse();
        let checked = match &cli.command {
            Command::Run(run) => run.check().map_err(|error| ("run", error)),
            Command::Chat(chat) => chat.check().map_err(|error| ("chat", error)),
            Command::Serve(serve) => serve
                .check()
                .map_err(|message| ("serve", (ErrorKind::ArgumentConflict, message))),
            _ => Ok(()),
        };
        if let Err((command, (kind, message))) = checked {
            usage_error(command, kind, message);
        }
        cli
    }
}

/// Ends the process with exit code 2: wrong usage of this subcommand.
pub fn usage_error(subcommand: &str, kind: ErrorKind, message: impl std::fmt::Display) -> ! {
    let mut command = Cli::command();
    command.build();
    let command = command
        .find_subcommand_mut(subcommand)
        .expect("it is one of the subcommands");
    command.error(kind, message).exit()
}

impl RunArgs {
    /// What clap's own rules cannot say.
    fn check(&self) -> Result<(), (ErrorKind, String)> {
        check_stops(&self.stop)?;
        if self.drafting.drafter == DrafterName::None && self.force_accept.is_some() {
            let message = "--force-accept has no effect with --drafter none".to_string();
            return Err((ErrorKind::ArgumentConflict, message));
        }
        self.drafting
            .check(&self.draft)
            .map_err(|message| (ErrorKind::ArgumentConflict, message))
    }
}

impl SamplingArgs {
    /// How tokens are drawn.
    pub fn params(&self) -> SamplerParams {
        SamplerParams {
            temperature: self.temp,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: self.logit_bias.clone(),
            ..SamplerParams::default()
        }
    }
}

fn check_stops(stops: &[String]) -> Result<(), (ErrorKind, String)> {
    if stops.len() > MAX_STOPS {
        let message = format!("--stop is given {} times, at most {MAX_STOPS}", stops.len());
        return Err((ErrorKind::TooManyValues, message));
    }
    Ok(())
}

fn number(text: &str, allowed: impl Fn(f32) -> bool, range: &str) -> Result<f32, String> {
    let value: f32 = text.parse().map_err(|_| "not a number".to_string())?;
    if allowed(value) {
        Ok(value)
    } else {
        Err(format!("must be {range}"))
    }
}

fn probability(text: &str) -> Result<f32, String> {
    number(text, |value| (0.0..=1.0).contains(&value), "between 0 and 1")
}

fn share(text: &str) -> Result<f32, String> {
    number(
        text,
        |value| value > 0.0 && value <= 1.0,
        "more than 0, and at most 1",
    )
}

fn not_negative(text: &str) -> Result<f32, String> {
    number(text, |value| value.is_finite() && value >= 0.0, "0 or more")
}

fn positive(text: &str) -> Result<f32, String> {
    number(text, |value| value.is_finite() && value > 0.0, "more than 0")
}

fn finite(text: &str) -> Result<f32, String> {
    number(text, f32::is_finite, "a finite number")
}

fn stop(text: &str) -> Result<String, String> {
    match text.len() {
        0 => Err("is empty".into()),
        1..=MAX_STOP_BYTES => Ok(text.to_string()),
        bytes => Err(format!("has {bytes} bytes, at most {MAX_STOP_BYTES}")),
    }
}

fn tokens_to_predict(text: &str) -> Result<i64, String> {
    match text.parse() {
        Ok(n) if n == -1 || n > 0 => Ok(n),
        Ok(_) => Err("must be at least 1, or -1 for no limit but the context".into()),
        Err(_) => Err("not a whole number".into()),
    }
}

fn bias(text: &str) -> Result<(Token, f32), String> {
    let (id, value) = text.split_once('=').ok_or("expected ID=B")?;
    let id = id.parse().map_err(|_| format!("{id:?} is not a token id"))?;
    let allowed = |value: f32| value.is_finite() || value == f32::NEG_INFINITY;
    Ok((id, number(value, allowed, "a finite number or -inf")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    fn check(args: &str, ok: bool) {
        let words = ["foretoken", "run", "-m", "m.gguf"]
            .into_iter()
            .chain(args.split_whitespace());
        let parsed = Cli::try_parse_from(words)
            .map_err(|e| e.to_string())
            .and_then(|cli| match cli.command {
                Command::Run(run) => run.check().map_err(|(_, message)| message),
                _ => unreachable!("the words say run"),
            });
        assert_eq!(parsed.is_ok(), ok, "{args}: {parsed:?}");
    }

    #[test]
    fn options_that_contradict_each_other_are_refused() {
        for args in [
            "",
            "-d d.gguf",
            "-d d.gguf --draft-vocab 32768",
            "-d d.gguf --drafter mlp --draft-fixed 3",
            "-d d.gguf --draft-vocab 0 --drafter model",
            "-d d.gguf --drafter model --draft-max 16 --draft-min 4 --draft-p-min 0.5",
            "--drafter lookup --draft-fixed 3",
            "--drafter none -p x --raw",
            "--draft-max 4",
            "--draft-fixed 4 --force-accept 0.5",
            "--drafter suffix --draft-corpus a.txt --draft-corpus b.txt --loss-budget 0.1 --trace t.jsonl",
            "--logit-bias 5=-inf --logit-bias 6=2.5 -n -1 --presence-penalty -0.5",
            "--drafter lookup --force-accept 0.8",
            "-f x --system y --stop a --stop b",
        ] {
            check(args, true);
        }
        for args in [
            "--drafter model",
            "--drafter mlp",
            "--draft-vocab 32768",
            "-d d.gguf --draft-vocab -1",
            "-d d.gguf --drafter lookup",
            "-d d.gguf --drafter none",
            "--drafter none --draft-max 4",
            "--drafter none --draft-fixed 4",
            "--drafter none --draft-min 4",
            "--drafter none --draft-p-min 0.5",
            "--drafter none --force-accept 0.5",
            "--drafter none --draft-corpus x",
            "--drafter recycling --draft-corpus x",
            "-d d.gguf --drafter recycling",
            "--loss-budget 2",
            "--drafter lookup --draft-max 4 --draft-fixed 4",
            "--drafter lookup --draft-max 4 --draft-min 5",
            "--drafter lookup --draft-max 0",
            "--drafter lookup --draft-p-min 1.5",
            "-p x -f y",
            "--raw --system x",
            "--json --show-draft",
            "-n 0",
            "-n -2",
            "-t 0",
            "-c 0",
            "--temp -1",
            "--temp nan",
            "--top-p 2",
            "--repeat-penalty 0",
            "--logit-bias 5",
            "--logit-bias 5=nan",
            "--logit-bias 5=inf",
            "--logit-bias x=1",
            "--no-such-option",
        ] {
            check(args, false);
        }
        let mut empty_stop = vec!["foretoken", "run", "-m", "m.gguf", "--stop"];
        empty_stop.push("");
        assert!(Cli::try_parse_from(empty_stop).is_err());
        check(&"--stop x ".repeat(MAX_STOPS), true);
        check(&"--stop x ".repeat(MAX_STOPS + 1), false);
        check(&format!("--stop {}", "x".repeat(MAX_STOP_BYTES)), true);
        check(&format!("--stop {}", "x".repeat(MAX_STOP_BYTES + 1)), false);
    }
}
