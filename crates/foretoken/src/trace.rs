//! `--trace`: a line of JSON for each round, what was expected of it beside what it was.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use foretoken::engine::{RoundFigures, RoundReport};
use serde::Serialize;
use serde_json::{Value, json};

use crate::cli::TraceArgs;

/// A file that rounds are written to.
pub struct Trace {
    file: BufWriter<File>,
    start: Instant,
    round: usize,
}

/// One round.
#[derive(Debug, Serialize)]
struct Line<'a> {
    /// A name for what is being answered, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<&'a str>,
    round: usize,
    /// When the round ended, in seconds since the trace began.
    at_s: f64,
    #[serde(flatten)]
    figures: RoundFigures,
}

impl Trace {
    /// A new file, or one emptied.
    pub fn create(path: &Path) -> anyhow::Result<Self> {
        let file = File::create(path).with_context(|| path.display().to_string())?;
        Ok(Self {
            file: BufWriter::new(file),
            start: Instant::now(),
            round: 0,
        })
    }

    /// Writes a round.
    pub fn write(&mut self, request: Option<&str>, report: &RoundReport) -> anyhow::Result<()> {
        let line = Line {
            request,
            round: self.round,
            at_s: self.start.elapsed().as_secs_f64(),
            figures: RoundFigures::new(report),
        };
        self.round += 1;
        serde_json::to_writer(&mut self.file, &line)?;
        self.file.write_all(b"\n")?;
        Ok(())
    }

    /// Makes sure that all of it is in the file.
    pub fn finish(mut self) -> anyhow::Result<()> {
        Ok(self.file.flush()?)
    }
}

/// `foretoken trace`: the rounds of a trace in the Chrome trace format, which browsers and Perfetto show.
pub fn convert(args: &TraceArgs) -> anyhow::Result<()> {
    let name = || args.file.display().to_string();
    let text = std::fs::read_to_string(&args.file).with_context(name)?;
    let mut events = Vec::new();
    let mut threads = BTreeMap::new();
    for (at, line) in text.lines().enumerate() {
        let round: Value = serde_json::from_str(line)
            .with_context(|| format!("{}: line {} is no round of a trace", name(), at + 1))?;
        let number = |field: &str| {
            round[field]
                .as_f64()
                .with_context(|| format!("{}: line {} has no number {field:?}", name(), at + 1))
        };
        let request = round["request"].as_str().unwrap_or("answer").to_owned();
        let next = threads.len();
        let thread = *threads.entry(request.clone()).or_insert(next);
        let (end, draft, pass) = (number("at_s")?, number("draft_s")?, number("pass_s")?);
        for (part, start, seconds) in [("draft", end - pass - draft, draft), ("pass", end - pass, pass)] {
            events.push(json!({
                "name": part,
                "cat": "round",
                "ph": "X",
                "ts": 1e6 * start,
                "dur": 1e6 * seconds,
                "pid": 1,
                "tid": thread,
                "args": round,
            }));
        }
    }
    for (request, thread) in threads {
        events.push(json!({
            "name": "thread_name",
            "ph": "M",
            "pid": 1,
            "tid": thread,
            "args": {"name": request},
        }));
    }
    let mut stdout = std::io::stdout().lock();
    writeln!(
        stdout,
        "{}",
        json!({"traceEvents": events, "displayTimeUnit": "ms"})
    )?;
    Ok(())
}
