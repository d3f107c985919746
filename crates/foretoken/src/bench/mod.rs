//! `foretoken bench`: what this machine and a model on it can do.

mod cost;
mod html;
mod machine;
mod plot;
mod prompts;
mod speed;

use crate::cli::BenchCommand;

/// Runs the command.
pub fn bench(command: &BenchCommand) -> anyhow::Result<()> {
    match command {
        BenchCommand::Cost(args) => cost::run(args),
        BenchCommand::Machine(args) => machine::run(args),
        BenchCommand::Speed(args) => speed::run(args),
    }
}

/// The middle one of some measurements: of an even number, the lower.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted[(sorted.len() - 1) / 2]
}
