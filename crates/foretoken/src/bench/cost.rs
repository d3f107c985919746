//! `foretoken bench cost`: the time of a pass over n rows, beside the floor that the machine sets.
//!
//! Everything is measured in turn, again and again, the machine's ceilings too, so that a disturbance does not
//! hit one figure alone.

use std::io::Write;
use std::sync::Arc;

use anyhow::{Context, bail};
use foretoken::kernels::Compute;
use foretoken::kernels::ceilings::Ceilings;
use foretoken::model::{LoadOptions, PassCost};
use foretoken::spec::{Batch, Cancel, Output, Row, RowId, Scores, SequenceId, TargetModel, Token};
use foretoken::{CpuModel, Seen, draft_vocabulary, load_model, pass_seconds};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::{median, plot};
use crate::cli::CostArgs;

/// Rows by which a context is filled.
const PROMPT_ROWS: usize = 256;

/// What the command found; with `--json`, the object that it prints.
#[derive(Debug, Serialize)]
pub struct Report {
    pub model: String,
    pub threads: usize,
    isa: &'static str,
    last_row_only: bool,
    /// Tokens that get logits.
    logits: usize,
    repeat: usize,
    read_gb_s: f64,
    int8_gmac_s: f64,
    /// Bytes of weights.
    bytes_per_pass: u64,
    pub rows: Vec<Point>,
    /// From so many rows on arithmetic takes longer than reading, by the ceilings and without context.
    crossover_rows: f64,
}

/// One number of rows at one context.
#[derive(Debug, Serialize)]
pub struct Point {
    pub context: usize,
    pub n: usize,
    pub median_ms: f64,
    pub min_ms: f64,
    pub max_ms: f64,
    /// Against one row at the same context, if that was measured.
    ratio: Option<f64>,
    pub floor_ms: f64,
    floor_share: f64,
    gb_s: f64,
    gmac_s: f64,
}

/// Runs the command.
pub fn run(args: &CostArgs) -> anyhow::Result<()> {
    let report = measure(args)?;
    if let Some(path) = &args.plot {
        let svg = plot::cost(&report)?;
        std::fs::write(path, svg).with_context(|| path.display().to_string())?;
    }
    let mut stdout = std::io::stdout().lock();
    if args.json {
        writeln!(stdout, "{}", serde_json::to_string(&report)?)?;
    } else {
        stdout.write_all(report.text().as_bytes())?;
    }
    Ok(())
}

fn measure(args: &CostArgs) -> anyhow::Result<Report> {
    let compute = Arc::new(Compute::new(args.threads.count()));
    let most = |values: &[u32]| values.iter().copied().max().expect("at least one is given") as usize;
    let longest = most(&args.context);
    let positions = longest + most(&args.rows);
    let mut limit = 0;
    let file = args.model.file()?;
    let loaded = load_model(&file, &compute, &mut |_, _| (), |config, tokenizer| {
        limit = config.context_length;
        LoadOptions {
            head_tokens: draft_vocabulary(tokenizer, config.vocab_size, args.draft_vocab, &Seen::new()),
            context: Some(positions.min(limit)),
            // A sequence a context and the one that they are forked from.
            kv_positions: Some((args.context.len() + 1) * (positions + 64)),
        }
    })?;
    if positions > limit {
        bail!(
            "{}: {longest} positions and {} rows do not fit the model's context of {limit}",
            args.model,
            most(&args.rows)
        );
    }
    let mut model = loaded.model;
    let cost = model.cost();

    let style = ProgressStyle::with_template("{msg:<20} {wide_bar} {pos}/{len}").expect("it is well-formed");
    let bar = ProgressBar::new(longest as u64)
        .with_style(style)
        .with_message("filling the context");
    let mut scores = Scores::default();
    let base = model.open();
    fill(&mut model, base, longest, &mut scores, &bar)?;
    let mut cases = Vec::new();
    for &context in &args.context {
        let sequence = model.fork(base);
        model.truncate(sequence, context as usize);
        for &n in &args.rows {
            cases.push(Case {
                sequence,
                context: context as usize,
                n: n as usize,
                seconds: Vec::new(),
            });
        }
    }

    bar.set_length(u64::from(args.repeat));
    bar.set_message("measuring");
    bar.set_position(0);
    let ceilings = Ceilings::new(&compute).context("no memory to measure the machine with")?;
    let (mut reads, mut products) = (Vec::new(), Vec::new());
    // The first time around memory is touched that the later ones find.
    for round in 0..=args.repeat {
        let warm = round > 0;
        let (read, int8) = (ceilings.read_rate(&compute), ceilings.int8_rate(&compute));
        for case in &mut cases {
            let seconds = pass(&mut model, case, args.last_row_only, &mut scores)?;
            case.seconds.extend(warm.then_some(seconds));
        }
        reads.extend(warm.then_some(read));
        products.extend(warm.then_some(int8));
        bar.inc(u64::from(warm));
    }
    bar.finish_and_clear();

    let machine = Machine {
        read: median(&reads),
        int8: median(&products),
    };
    let heads = |n: usize| if args.last_row_only { 1 } else { n as u64 };
    let one = |context: usize| {
        let case = cases.iter().find(|case| case.n == 1 && case.context == context);
        case.map(|case| median(&case.seconds))
    };
    let points = cases.iter().map(|case| {
        let bytes = cost.weight_bytes + cost.kv_bytes_per_position * (case.context + case.n) as u64;
        let multiply_adds = case.n as u64 * cost.row_multiply_adds + heads(case.n) * cost.head_multiply_adds;
        let (seconds, floor) = (median(&case.seconds), machine.floor(bytes, multiply_adds));
        let fold = |f: fn(f64, f64) -> f64| case.seconds.iter().copied().reduce(f).expect("measured");
        Point {
            context: case.context,
            n: case.n,
            median_ms: 1e3 * seconds,
            min_ms: 1e3 * fold(f64::min),
            max_ms: 1e3 * fold(f64::max),
            ratio: one(case.context).map(|one| seconds / one),
            floor_ms: 1e3 * floor,
            floor_share: floor / seconds,
            gb_s: bytes as f64 / seconds / 1e9,
            gmac_s: multiply_adds as f64 / seconds / 1e9,
        }
    });
    Ok(Report {
        model: args.model.to_string(),
        threads: compute.pool().threads(),
        isa: compute.isa().name(),
        last_row_only: args.last_row_only,
        logits: model.info().vocab_size,
        repeat: args.repeat as usize,
        read_gb_s: machine.read / 1e9,
        int8_gmac_s: machine.int8 / 1e9,
        bytes_per_pass: cost.weight_bytes,
        rows: points.collect(),
        crossover_rows: machine.crossover(cost, args.last_row_only),
    })
}

struct Case {
    sequence: SequenceId,
    context: usize,
    n: usize,
    seconds: Vec<f64>,
}

/// The ceilings, per second.
struct Machine {
    read: f64,
    int8: f64,
}

impl Machine {
    /// Seconds that a pass cannot do without.
    fn floor(&self, bytes: u64, multiply_adds: u64) -> f64 {
        (bytes as f64 / self.read).max(multiply_adds as f64 / self.int8)
    }

    /// The number of rows at which both floors are equal.
    fn crossover(&self, cost: PassCost, last_row_only: bool) -> f64 {
        let affordable = cost.weight_bytes as f64 / self.read * self.int8;
        let (row, head) = (cost.row_multiply_adds as f64, cost.head_multiply_adds as f64);
        if last_row_only {
            (affordable - head) / row
        } else {
            affordable / (row + head)
        }
    }
}

/// Any tokens: what they are costs nothing.
fn token(model: &CpuModel, at: usize) -> Token {
    (at * 7919 % model.info().vocab_size) as Token
}

fn push_rows(
    model: &CpuModel,
    batch: &mut Batch,
    sequence: SequenceId,
    n: usize,
    output: impl Fn(usize) -> Output,
) {
    batch.clear();
    let mut parent = None;
    for at in 0..n {
        parent = Some(batch.push(Row {
            sequence,
            token: token(model, at),
            parent,
            output: output(at),
        }));
    }
}

/// Commits `len` positions.
fn fill(
    model: &mut CpuModel,
    sequence: SequenceId,
    len: usize,
    scores: &mut Scores,
    bar: &ProgressBar,
) -> anyhow::Result<()> {
    let mut batch = Batch::default();
    while model.len(sequence) < len {
        let n = (len - model.len(sequence)).min(PROMPT_ROWS);
        push_rows(model, &mut batch, sequence, n, |_| Output::None);
        model.reserve(sequence, n)?;
        model.forward(&batch, scores, &Cancel::default())?;
        let rows: Vec<RowId> = (0..n as RowId).collect();
        model.commit(sequence, &rows);
        bar.inc(n as u64);
    }
    Ok(())
}

/// The seconds of one pass. Its rows are not committed, so that the next finds the sequence as it was.
fn pass(model: &mut CpuModel, case: &Case, last_row_only: bool, scores: &mut Scores) -> anyhow::Result<f64> {
    model.reserve(case.sequence, case.n)?;
    Ok(pass_seconds(model, case.sequence, case.n, last_row_only, scores)?)
}

impl Report {
    fn text(&self) -> String {
        let rows = if self.last_row_only {
            "the last row"
        } else {
            "each row"
        };
        let mut lines = vec![
            self.model.clone(),
            format!(
                "{} threads, {}, {} logits of {rows}, medians of {}",
                self.threads, self.isa, self.logits, self.repeat
            ),
            format!(
                "{:.1} MB of weights a pass; this machine reads {:.1} GB/s and does {:.0} G int8 multiply-adds a second: \
                 arithmetic takes over at {:.1} rows",
                self.bytes_per_pass as f64 / 1e6,
                self.read_gb_s,
                self.int8_gmac_s,
                self.crossover_rows
            ),
        ];
        let mut context = None;
        for point in &self.rows {
            if context.replace(point.context) != Some(point.context) {
                lines.push(String::new());
                lines.push(format!("after {} positions", point.context));
                lines.push(
                    "   n   T(n) ms        min to max   T(n)/T(1)   ms/row    GB/s  GMAC/s  floor ms   of floor".into(),
                );
            }
            let ratio = point.ratio.map_or("-".into(), |ratio| format!("{ratio:.2}"));
            lines.push(format!(
                "{:>4} {:>9.2} {:>17} {:>11} {:>8.2} {:>7.1} {:>7.1} {:>9.2} {:>9.0} %",
                point.n,
                point.median_ms,
                format!("{:.2} to {:.2}", point.min_ms, point.max_ms),
                ratio,
                point.median_ms / point.n as f64,
                point.gb_s,
                point.gmac_s,
                point.floor_ms,
                100.0 * point.floor_share,
            ));
        }
        lines.iter().map(|line| format!("{line}\n")).collect()
    }
}
