//! The command line `foretoken`.
//!
//! Exit codes: 0 done (an interrupted or closed output included), 1 failed, with one line on standard error,
//! 2 wrong usage.
#![forbid(unsafe_code)]

mod cli;
mod inspect;
mod report;
mod run;

use std::process::ExitCode;

use cli::{Cli, Command};

fn main() -> ExitCode {
    let done = match Cli::from_process().command {
        Command::Run(args) => run::run(&args),
        Command::Inspect(args) => inspect::inspect(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", format!("{error:#}").replace('\n', " "));
            ExitCode::FAILURE
        }
    }
}

/// Whoever read the output wants no more of it: no fault.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<std::io::Error>();
    io.is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}
