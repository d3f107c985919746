//! The arguments of `foretoken chat`.

use clap::Args;
use clap::error::ErrorKind;

use super::{
    DraftArgs, DraftModelArgs, ModelArg, SamplingArgs, ThreadArgs, check_stops, stop, tokens_to_predict,
};

#[derive(Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "In a terminal, /help lists the commands. If standard input or output is none, each line of standard input is a \
                  message or a command, and the first that fails ends it.\n\nExit status: 0 done, 1 failed, 2 wrong usage, \
                  130 Ctrl-C while nothing was being answered."
)]
pub struct ChatArgs {
    /// The model that answers: a GGUF file, or the name of one that was pulled
    #[arg(short, long, value_name = "TARGET")]
    pub model: ModelArg,
    #[command(flatten)]
    pub draft: DraftModelArgs,

    /// A system message to precede the conversation
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub drafting: DraftArgs,

    /// Most tokens of an answer; -1 goes on until the context is full
    #[arg(short = 'n', long, visible_alias = "n-predict", value_name = "N", default_value_t = -1,
          value_parser = tokens_to_predict)]
    pub predict: i64,
    /// End an answer before this text (may be given several times)
    #[arg(long, value_name = "TEXT", value_parser = stop)]
    pub stop: Vec<String>,
    #[command(flatten)]
    pub threads: ThreadArgs,
    /// Positions of the context, which the conversation shares [default: the model's own, at most 4096]
    #[arg(short, long = "ctx-size", visible_alias = "context", value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub context: Option<u32>,

    /// Mark accepted draft tokens, and show rejected ones
    #[arg(long)]
    pub show_draft: bool,
    /// Neither read nor keep what was typed in a terminal
    #[arg(long)]
    pub no_history: bool,
}

impl ChatArgs {
    /// What clap's own rules cannot say.
    pub fn check(&self) -> Result<(), (ErrorKind, String)> {
        check_stops(&self.stop)?;
        self.drafting
            .check(&self.draft)
            .map_err(|message| (ErrorKind::ArgumentConflict, message))
    }
}
