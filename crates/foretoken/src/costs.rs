//! What passes of a model cost on this machine: measured in a second or two, kept on disk. What steps of a speculator cost is
//! measured at each start, in a fraction of that.
//!
//! A file of costs belongs to a model file (its path, size and time of change), a number of logits, a number of threads,
//! an instruction set, a processor and a version of foretoken: whatever changes one of them measures anew. That the
//! machine is slower today than it was then does not matter: the controller follows it.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use foretoken_kernels::Compute;
use foretoken_spec::drafters::Network;
use foretoken_spec::{
    Batch, Cancel, CostModel, CostPoint, ModelError, Output, Row, RowId, Scores, SequenceId, TargetModel,
    Token,
};
use serde::{Deserialize, Serialize};

use crate::cache;

/// A file of costs is never longer.
const MOST_BYTES: u64 = 1 << 16;
/// Numbers of rows that are measured.
const ROWS: [usize; 8] = [1, 2, 3, 4, 5, 6, 8, 16];
const STEP_ROWS: [usize; 7] = [1, 2, 3, 4, 6, 8, 16];
/// After this time no further repetition is begun.
const ENOUGH: Duration = Duration::from_millis(800);
const ENOUGH_STEPS: Duration = Duration::from_millis(50);
/// Repetitions: two at least, since a pass that was disturbed must not stand for all.
const REPEATS: std::ops::Range<usize> = 2..8;

/// What stands in a file of costs.
#[derive(Debug, Deserialize, Serialize)]
struct Stored {
    /// What the file is about: the name is only a hash of it.
    subject: String,
    /// Rows and seconds.
    points: Vec<(usize, f64)>,
}

/// The costs of a model's passes with logits for all rows: from disk if they are known, measured otherwise.
///
/// # Errors
/// If a pass fails. That costs cannot be kept is no error.
pub fn pass_costs<M: TargetModel>(
    path: &Path,
    compute: &Compute,
    model: &mut M,
) -> Result<CostModel, ModelError> {
    let subject = subject(path, model.info().vocab_size, compute);
    let file = subject.as_deref().and_then(cache_file);
    if let (Some(subject), Some(file)) = (&subject, &file)
        && let Some(points) = read(file, subject)
    {
        return Ok(CostModel::new(points));
    }
    let points = measure(model)?;
    let cost = CostModel::new(points);
    if let (Some(subject), Some(file)) = (subject, file) {
        // The next start measures again.
        let _ = write(&file, subject, cost.points());
    }
    Ok(cost)
}

/// Times passes of a sequence without context, all numbers of rows in turn.
fn measure<M: TargetModel>(model: &mut M) -> Result<Vec<CostPoint>, ModelError> {
    let start = Instant::now();
    let sequence = model.open();
    let outcome = (|| {
        let mut scores = Scores::default();
        let mut points = Vec::new();
        // The first pass touches memory that the others find.
        pass_seconds(model, sequence, 1, false, &mut scores)?;
        for repeat in 1..REPEATS.end {
            for rows in ROWS {
                if model.reserve(sequence, rows).is_err() {
                    continue;
                }
                let seconds = pass_seconds(model, sequence, rows, false, &mut scores)?;
                points.push(CostPoint { rows, seconds });
            }
            if repeat >= REPEATS.start && start.elapsed() > ENOUGH {
                break;
            }
        }
        Ok(points)
    })();
    model.release(sequence);
    outcome
}

/// Seconds of two things, timed in turn: the medians. Tables of costs may be of different days, or of a machine that had other
/// things to do, and it is the ratio of the two that decides about drafts.
///
/// # Errors
/// Those of the two.
pub fn in_turn(mut timed: [&mut dyn FnMut() -> Result<f64, ModelError>; 2]) -> Result<[f64; 2], ModelError> {
    const TIMES: usize = 5;
    let mut seconds = [[0.0; TIMES]; 2];
    // One more, which touches memory that the others find.
    for time in (0..TIMES).chain(0..TIMES).skip(TIMES - 1) {
        for (timed, seconds) in timed.iter_mut().zip(&mut seconds) {
            seconds[time] = timed()?;
        }
    }
    Ok(seconds.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[TIMES / 2]
    }))
}

/// Seconds of a model's pass over one row without context.
///
/// # Errors
/// If the pass fails.
pub fn one_row<M: TargetModel>(model: &mut M) -> Result<f64, ModelError> {
    let sequence = model.open();
    let reserved = model.reserve(sequence, 1).map_err(ModelError::from);
    let seconds = reserved.and_then(|()| pass_seconds(model, sequence, 1, false, &mut Scores::default()));
    model.release(sequence);
    seconds
}

/// The costs of a speculator's steps, over all of its heads alike.
///
/// # Errors
/// If a step fails.
pub fn step_costs<N: Network>(network: &mut N) -> Result<CostModel, ModelError> {
    let start = Instant::now();
    let mut points = Vec::new();
    // The first step touches memory that the others find.
    step_seconds(network, 1)?;
    for repeat in 1..REPEATS.end {
        for rows in STEP_ROWS {
            let seconds = step_seconds(network, rows)?;
            points.push(CostPoint { rows, seconds });
        }
        if repeat >= REPEATS.start && start.elapsed() > ENOUGH_STEPS {
            break;
        }
    }
    Ok(CostModel::new(points))
}

/// Seconds of a step over so many rows: the mean over all heads.
///
/// # Errors
/// If a step fails.
pub fn step_seconds<N: Network>(network: &mut N, rows: usize) -> Result<f64, ModelError> {
    let heads = network.heads();
    let tokens: Vec<Token> = (0..rows)
        .map(|row| (row % network.vocab_size()) as Token)
        .collect();
    let mut states = vec![0.5; rows * network.hidden_size()];
    let (mut next, mut logits) = (Vec::new(), Vec::new());
    let start = Instant::now();
    for head in 0..heads {
        network.step(head, &tokens, &states, &mut next, &mut logits)?;
        std::mem::swap(&mut states, &mut next);
    }
    Ok(start.elapsed().as_secs_f64() / heads as f64)
}

/// Seconds of one pass over `rows` rows that follow what the sequence holds, with logits for all of them or the last one;
/// the sequence stays as it was. Room must be reserved.
///
/// # Errors
/// As [`TargetModel::forward`].
pub fn pass_seconds<M: TargetModel>(
    model: &mut M,
    sequence: SequenceId,
    rows: usize,
    last_row_only: bool,
    scores: &mut Scores,
) -> Result<f64, ModelError> {
    let mut batch = Batch::default();
    let vocab_size = model.info().vocab_size;
    for row in 0..rows {
        let last = row + 1 == rows;
        batch.push(Row {
            sequence,
            token: (TOKENS + row * TOKENS % 97) as Token % vocab_size as Token,
            parent: row.checked_sub(1).map(|parent| parent as RowId),
            output: if last || !last_row_only {
                Output::Logits
            } else {
                Output::None
            },
        });
    }
    let start = Instant::now();
    model.forward(&batch, scores, &Cancel::default())?;
    let seconds = start.elapsed().as_secs_f64();
    // Nothing is committed: the rows are gone.
    Ok(seconds)
}

/// Where the tokens that are timed begin: any will do.
const TOKENS: usize = 785;

/// All that costs depend on, in words; `None` if the file's state cannot be told.
fn subject(path: &Path, logits: usize, compute: &Compute) -> Option<String> {
    let path = fs::canonicalize(path).ok()?;
    let metadata = fs::metadata(&path).ok()?;
    let changed = metadata
        .modified()
        .ok()?
        .duration_since(std::time::UNIX_EPOCH)
        .ok()?;
    Some(format!(
        "{} of {} bytes changed at {}; {logits} logits; {} threads; {}; {}; {}",
        path.display(),
        metadata.len(),
        changed.as_secs(),
        compute.pool().threads(),
        compute.isa().name(),
        processor(),
        env!("CARGO_PKG_VERSION"),
    ))
}

/// The processor's name, where the system tells it.
fn processor() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    name.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.to_owned())
}

/// Where costs of `subject` are kept.
fn cache_file(subject: &str) -> Option<PathBuf> {
    let mut hasher = DefaultHasher::new();
    subject.hash(&mut hasher);
    Some(cache::directory()?.join(format!("costs/{:016x}.json", hasher.finish())))
}

/// The points of a file that is about `subject` and makes sense.
fn read(file: &Path, subject: &str) -> Option<Vec<CostPoint>> {
    let stored: Stored = serde_json::from_slice(&cache::read(file, MOST_BYTES).ok()?).ok()?;
    let sound =
        |&(rows, seconds): &(usize, f64)| (1..=4096).contains(&rows) && seconds > 0.0 && seconds < 1e4;
    let whole = stored.subject == subject
        && stored.points.first().is_some_and(|&(rows, _)| rows == 1)
        && stored.points.iter().all(sound);
    let point = |(rows, seconds)| CostPoint { rows, seconds };
    whole.then(|| stored.points.into_iter().map(point).collect())
}

/// Keeps points.
fn write(file: &Path, subject: String, points: &[CostPoint]) -> std::io::Result<()> {
    let points = points.iter().map(|p| (p.rows, p.seconds)).collect();
    cache::write(file, &serde_json::to_vec(&Stored { subject, points })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_found_again_and_nonsense_is_not() {
        let file = std::env::temp_dir().join(format!("foretoken-costs-{}/a/b.json", std::process::id()));
        let points = [(1, 0.5), (4, 0.75)].map(|(rows, seconds)| CostPoint { rows, seconds });
        write(&file, "this".into(), &points).unwrap();
        assert_eq!(read(&file, "this").unwrap(), points);
        assert_eq!(read(&file, "that"), None);
        for broken in [
            "",
            "{",
            r#"{"subject":"this","points":[]}"#,
            r#"{"subject":"this","points":[[2,0.5]]}"#,
            r#"{"subject":"this","points":[[1,-0.5]]}"#,
            r#"{"subject":"this","points":[[1,0.5],[99999999,1.0]]}"#,
        ] {
            fs::write(&file, broken).unwrap();
            assert_eq!(read(&file, "this"), None, "{broken}");
        }
        fs::remove_dir_all(file.parent().unwrap().parent().unwrap()).unwrap();
    }
}
