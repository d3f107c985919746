//! `foretoken bench machine`: the two ceilings.

use std::io::Write;

use anyhow::Context;
use foretoken::kernels::Compute;
use foretoken::kernels::ceilings::Ceilings;
use serde::Serialize;

use super::median;
use crate::cli::MachineArgs;

#[derive(Serialize)]
struct Report {
    threads: usize,
    isa: &'static str,
    read_gb_s: f64,
    int8_gmac_s: f64,
}

/// Runs the command.
pub fn run(args: &MachineArgs) -> anyhow::Result<()> {
    let compute = Compute::new(args.threads.count());
    let ceilings = Ceilings::new(&compute).context("no memory to measure the machine with")?;
    let (mut reads, mut products) = (Vec::new(), Vec::new());
    for _ in 0..args.repeat {
        reads.push(ceilings.read_rate(&compute));
        products.push(ceilings.int8_rate(&compute));
    }
    let report = Report {
        threads: compute.pool().threads(),
        isa: compute.isa().name(),
        read_gb_s: median(&reads) / 1e9,
        int8_gmac_s: median(&products) / 1e9,
    };
    let mut stdout = std::io::stdout().lock();
    if args.json {
        writeln!(stdout, "{}", serde_json::to_string(&report)?)?;
        return Ok(());
    }
    let Report {
        threads,
        isa,
        read_gb_s,
        int8_gmac_s,
    } = report;
    let range = |values: &[f64]| {
        let (min, max) = values
            .iter()
            .fold((f64::MAX, 0f64), |(min, max), &v| (min.min(v), max.max(v)));
        format!("{:.1} to {:.1}", min / 1e9, max / 1e9)
    };
    writeln!(stdout, "{threads} threads, {isa}, medians of {}", args.repeat)?;
    writeln!(
        stdout,
        "memory read       {read_gb_s:>7.1} GB/s    ({})",
        range(&reads)
    )?;
    writeln!(
        stdout,
        "int8 multiply-add {int8_gmac_s:>7.1} GMAC/s  ({})",
        range(&products)
    )?;
    Ok(())
}
