//! The command line `foretoken`.
//!
//! Exit codes: 0 done (an interrupted or closed output included), 1 failed, with one line on standard error,
//! 2 wrong usage, 130 interrupted before there was an answer.
#![forbid(unsafe_code)]

mod bench;
mod chat;
mod cli;
mod convert;
mod inspect;
mod interrupt;
mod output;
mod predict;
mod pull;
mod report;
mod run;
mod serve;
mod trace;
mod train;

use std::io::Write;
use std::process::ExitCode;

use cli::{Cli, Command};

fn main() -> ExitCode {
    let done = match Cli::from_process().command {
        Command::Run(args) => run::run(&args),
        Command::Chat(args) => chat::chat(&args),
        Command::Serve(args) => serve::serve(&args),
        Command::Pull(args) => pull::pull(&args),
        Command::Models(args) => pull::models(&args),
        Command::Bench(args) => bench::bench(&args.command),
        Command::Convert(args) => convert::convert(&args.command),
        Command::Inspect(args) => inspect::inspect(&args),
        Command::Predict(args) => predict::predict(&args),
        Command::Trace(args) => trace::convert(&args),
        Command::Train(args) => train::train(&args.command),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // Where nobody can be told, the exit code speaks.
            let _ = writeln!(std::io::stderr(), "error: {}", one_line(&error));
            ExitCode::FAILURE
        }
    }
}

/// The error and its causes, each said once, without characters that would steer a terminal: names and texts
/// of files are among them.
fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if line.is_empty() {
            line = cause;
        } else if !line.contains(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    output::escape(&line.replace(['\n', '\t'], " ")).into_owned()
}

/// Whoever read the output wants no more of it: no fault.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<std::io::Error>();
    io.is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::one_line;
    use anyhow::anyhow;

    #[test]
    fn an_error_is_one_line_that_says_each_thing_once() {
        let check = |error: anyhow::Error, want: &str| assert_eq!(one_line(&error), want);
        check(anyhow!("no such file").context("a.gguf"), "a.gguf: no such file");
        check(
            anyhow!("no such file").context("a.gguf: no such file"),
            "a.gguf: no such file",
        );
        check(anyhow!("one\ntwo \u{1b}[31m"), "one two \\u{1b}[31m");
    }
}
