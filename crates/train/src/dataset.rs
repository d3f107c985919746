//! What a target computed, row by row, in a directory.
//!
//! - `meta.json`: [`DatasetMeta`]: what the rows are of. Rows of another target are refused.
//! - `rows.bin`: one record for each row: token (u32), hidden state after the final norm (f16 each), the target's likeliest next tokens (u32 each)
//!   and their probabilities (f16 each), all little-endian.
//! - `sequences.bin`: for each sequence, in the order of its rows, their number, its own, and how many of them stand before the answer (u32
//!   each). What is there of only one of the two files is what an interrupted run left; it is written over.
//!
//! Row t of a sequence holds token x_t, the state after reading it, and the distribution of x_{t+1}.
//!
//! Not here: how rows are come by, and what is learned from them.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use foretoken_spec::Token;
use half::f16;
use serde::{Deserialize, Serialize};

/// What a dataset's rows are of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetMeta {
    /// The target: its tokenizer and its weights, as whoever writes rows tells them apart.
    pub target: String,
    /// What else decides which sequences there are: seeds, texts, settings.
    pub recipe: String,
    /// Length of a hidden state.
    pub hidden_size: usize,
    /// How many likeliest tokens a row has.
    pub labels: usize,
}

impl DatasetMeta {
    fn record(&self) -> usize {
        4 + 2 * self.hidden_size + 6 * self.labels
    }
}

/// Why a dataset cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatasetError {
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The directory is not what it should be.
    #[error("{}: {problem}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> DatasetError + '_ {
    |source| DatasetError::Io {
        path: path.to_owned(),
        source,
    }
}

/// Rows of one sequence, one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// Its number: what it holds is a function of that.
    pub number: u32,
    /// Its first row, counted from the first of the dataset.
    pub first: u64,
    /// How many rows it has.
    pub rows: u32,
    /// How many of them come before the first from which a token of the answer is drawn.
    pub before_answer: u32,
}

/// Rows in memory, each field for all of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    /// `[rows]`.
    pub tokens: Vec<Token>,
    /// `[rows][hidden_size]`.
    pub states: Vec<f32>,
    /// `[rows][labels]`, likeliest first.
    pub label_tokens: Vec<Token>,
    /// `[rows][labels]`: probabilities of all tokens' softmax.
    pub label_probabilities: Vec<f32>,
}

impl Rows {
    /// Removes all rows; keeps the memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.states.clear();
        self.label_tokens.clear();
        self.label_probabilities.clear();
    }

    /// Appends a row.
    pub fn push(&mut self, token: Token, state: &[f32], labels: impl IntoIterator<Item = (Token, f32)>) {
        self.tokens.push(token);
        self.states.extend_from_slice(state);
        for (token, probability) in labels {
            self.label_tokens.push(token);
            self.label_probabilities.push(probability);
        }
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}

const META: &str = "meta.json";
const ROWS: &str = "rows.bin";
const SEQUENCES: &str = "sequences.bin";
const SEQUENCE_BYTES: usize = 12;

/// A dataset to read.
#[derive(Debug)]
pub struct Dataset {
    meta: DatasetMeta,
    path: PathBuf,
    rows: File,
    sequences: Vec<Sequence>,
}

impl Dataset {
    /// Opens what a [`DatasetWriter`] has written in `directory`, as far as it has come.
    ///
    /// # Errors
    /// [`DatasetError`] that names the file.
    pub fn open(directory: &Path) -> Result<Self, DatasetError> {
        let meta = read_meta(directory)?;
        let path = directory.join(ROWS);
        let rows = File::open(&path).map_err(io_error(&path))?;
        let bytes = rows.metadata().map_err(io_error(&path))?.len();
        let mut sequences = read_sequences(&directory.join(SEQUENCES), bytes / meta.record() as u64)?;
        sequences.sort_by_key(|sequence| sequence.number);
        if let Some(pair) = sequences.windows(2).find(|pair| pair[0].number == pair[1].number) {
            let problem = format!("{SEQUENCES} has sequence {} twice", pair[0].number);
            return Err(DatasetError::Content { path, problem });
        }
        Ok(Self {
            meta,
            path,
            rows,
            sequences,
        })
    }

    /// What the rows are of.
    pub fn meta(&self) -> &DatasetMeta {
        &self.meta
    }

    /// The sequences by their numbers, whatever order they ended in.
    pub fn sequences(&self) -> &[Sequence] {
        &self.sequences
    }

    /// Leaves out the sequences from `number` on.
    pub fn up_to(mut self, number: u32) -> Self {
        self.sequences.retain(|sequence| sequence.number < number);
        self
    }

    /// Appends `count` rows from `first` on to `rows`.
    ///
    /// # Errors
    /// If the file cannot be read so far.
    pub fn read(&self, first: u64, count: usize, rows: &mut Rows) -> Result<(), DatasetError> {
        let record = self.meta.record();
        let mut bytes = vec![0; count * record];
        self.rows
            .read_exact_at(&mut bytes, first * record as u64)
            .map_err(io_error(&self.path))?;
        let half = |b: &[u8]| f16::from_le_bytes([b[0], b[1]]).to_f32();
        let token = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        for record in bytes.chunks_exact(record) {
            let (head, record) = record.split_at(4);
            let (state, record) = record.split_at(2 * self.meta.hidden_size);
            let (labels, probabilities) = record.split_at(4 * self.meta.labels);
            rows.tokens.push(token(head));
            rows.states.extend(state.chunks_exact(2).map(half));
            rows.label_tokens.extend(labels.chunks_exact(4).map(token));
            rows.label_probabilities
                .extend(probabilities.chunks_exact(2).map(half));
        }
        Ok(())
    }
}

/// Writes a dataset, sequence by sequence; what is there already stays.
#[derive(Debug)]
pub struct DatasetWriter {
    meta: DatasetMeta,
    directory: PathBuf,
    rows: BufWriter<File>,
    sequences: File,
    numbers: BTreeSet<u32>,
    written: u64,
}

impl DatasetWriter {
    /// Goes on with what `directory` holds, or begins a dataset there.
    ///
    /// # Errors
    /// If what is there is of another target or recipe, or cannot be written.
    pub fn open(directory: &Path, meta: DatasetMeta) -> Result<Self, DatasetError> {
        fs::create_dir_all(directory).map_err(io_error(directory))?;
        let path = directory.join(META);
        if path.exists() {
            let found = read_meta(directory)?;
            if found != meta {
                let problem = format!(
                    "holds rows of {found:?}, not of {meta:?}; remove the directory, or name another"
                );
                return Err(DatasetError::Content { path, problem });
            }
        } else {
            let text = serde_json::to_string_pretty(&meta).expect("plain fields");
            write_whole(&path, text.as_bytes()).map_err(io_error(&path))?;
        }
        let open = |name: &str| {
            let path = directory.join(name);
            let file = OpenOptions::new()
                .create(true)
                .truncate(false)
                .read(true)
                .write(true)
                .open(&path)
                .map_err(io_error(&path))?;
            Ok::<_, DatasetError>((path, file))
        };
        let (sequences_path, mut sequences) = open(SEQUENCES)?;
        if sequences.try_lock().is_err() {
            let problem = "another run writes it".to_owned();
            return Err(DatasetError::Content {
                path: sequences_path,
                problem,
            });
        }
        let (rows_path, mut rows) = open(ROWS)?;
        let bytes = rows.metadata().map_err(io_error(&rows_path))?.len();
        let known = read_sequences(&sequences_path, bytes / meta.record() as u64)?;
        let written = known.iter().map(|s| u64::from(s.rows)).sum();
        let end = (known.len() * SEQUENCE_BYTES) as u64;
        sequences.set_len(end).map_err(io_error(&sequences_path))?;
        sequences
            .seek(SeekFrom::End(0))
            .map_err(io_error(&sequences_path))?;
        let end = written * meta.record() as u64;
        rows.set_len(end).map_err(io_error(&rows_path))?;
        rows.seek(SeekFrom::End(0)).map_err(io_error(&rows_path))?;
        Ok(Self {
            meta,
            directory: directory.to_owned(),
            rows: BufWriter::with_capacity(1 << 20, rows),
            sequences,
            numbers: known.iter().map(|sequence| sequence.number).collect(),
            written,
        })
    }

    /// What the rows are of.
    pub fn meta(&self) -> &DatasetMeta {
        &self.meta
    }

    /// Numbers of the sequences so far.
    pub fn numbers(&self) -> &BTreeSet<u32> {
        &self.numbers
    }

    /// Rows so far.
    pub fn rows(&self) -> u64 {
        self.written
    }

    /// Appends a sequence, of whose rows so many come before the answer; an end of the process loses nothing of it any more.
    ///
    /// # Errors
    /// If it cannot be written.
    ///
    /// # Panics
    /// If the rows are not of this dataset's sizes.
    pub fn push(&mut self, number: u32, before_answer: u32, rows: &Rows) -> Result<(), DatasetError> {
        let (hidden, labels) = (self.meta.hidden_size, self.meta.labels);
        assert_eq!(rows.states.len(), rows.len() * hidden);
        assert_eq!(rows.label_tokens.len(), rows.len() * labels);
        assert_eq!(rows.label_probabilities.len(), rows.len() * labels);
        let mut write = || {
            for at in 0..rows.len() {
                self.rows.write_all(&rows.tokens[at].to_le_bytes())?;
                for &x in &rows.states[at * hidden..][..hidden] {
                    self.rows.write_all(&f16::from_f32(x).to_le_bytes())?;
                }
                for &token in &rows.label_tokens[at * labels..][..labels] {
                    self.rows.write_all(&token.to_le_bytes())?;
                }
                for &p in &rows.label_probabilities[at * labels..][..labels] {
                    self.rows.write_all(&f16::from_f32(p).to_le_bytes())?;
                }
            }
            self.rows.flush()
        };
        write().map_err(io_error(&self.directory.join(ROWS)))?;
        let entry = [rows.len() as u32, number, before_answer].map(u32::to_le_bytes);
        self.sequences
            .write_all(entry.as_flattened())
            .map_err(io_error(&self.directory.join(SEQUENCES)))?;
        self.numbers.insert(number);
        self.written += rows.len() as u64;
        Ok(())
    }
}

fn read_meta(directory: &Path) -> Result<DatasetMeta, DatasetError> {
    let path = directory.join(META);
    let text = fs::read_to_string(&path).map_err(io_error(&path))?;
    let meta: DatasetMeta = serde_json::from_str(&text).map_err(|error| DatasetError::Content {
        path: path.clone(),
        problem: error.to_string(),
    })?;
    if meta.hidden_size == 0 || meta.labels == 0 || meta.hidden_size > 1 << 20 || meta.labels > 1 << 10 {
        let problem = format!(
            "rows cannot have {} values and {} labels",
            meta.hidden_size, meta.labels
        );
        return Err(DatasetError::Content { path, problem });
    }
    Ok(meta)
}

/// All whole entries whose rows are among the `rows` that there are: the last ones may be cut off.
fn read_sequences(path: &Path, rows: u64) -> Result<Vec<Sequence>, DatasetError> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|mut file| file.read_to_end(&mut bytes))
        .map_err(io_error(path))?;
    let mut first = 0;
    let entries = bytes.chunks_exact(SEQUENCE_BYTES).map(|b| {
        let word = |at: usize| u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        let sequence = Sequence {
            number: word(4),
            first,
            rows: word(0),
            before_answer: word(8),
        };
        first += u64::from(sequence.rows);
        sequence
    });
    Ok(entries
        .take_while(|sequence| sequence.first + u64::from(sequence.rows) <= rows)
        .collect())
}

/// Writes a file that then has its name, or none.
fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    fs::write(&partial, bytes)?;
    fs::rename(partial, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta() -> DatasetMeta {
        DatasetMeta {
            target: "a target".to_owned(),
            recipe: "seed 7".to_owned(),
            hidden_size: 3,
            labels: 2,
        }
    }

    fn rows(from: u32, count: u32) -> Rows {
        let mut rows = Rows::default();
        for at in from..from + count {
            let x = at as f32;
            rows.push(at, &[x, -x, 0.5], [(at + 1, 0.5), (at + 2, 0.25)]);
        }
        rows
    }

    #[test]
    fn what_is_written_is_read_and_gone_on_with() {
        let directory = tempfile::tempdir().unwrap();
        let mut writer = DatasetWriter::open(directory.path(), meta()).unwrap();
        writer.push(1, 2, &rows(0, 4)).unwrap();
        writer.push(0, 0, &rows(4, 1)).unwrap();
        drop(writer);
        // A run that was interrupted in the middle of a sequence.
        let mut file = OpenOptions::new()
            .append(true)
            .open(directory.path().join(ROWS))
            .unwrap();
        file.write_all(&[1; 13]).unwrap();
        drop(file);
        // The index was written, the rows were not.
        let mut file = OpenOptions::new()
            .append(true)
            .open(directory.path().join(SEQUENCES))
            .unwrap();
        file.write_all([90u32, 9, 0].map(u32::to_le_bytes).as_flattened())
            .unwrap();
        drop(file);
        let mut writer = DatasetWriter::open(directory.path(), meta()).unwrap();
        assert_eq!((writer.numbers().len(), writer.rows()), (2, 5));
        let error = DatasetWriter::open(directory.path(), meta())
            .unwrap_err()
            .to_string();
        assert!(error.contains("another run writes it"), "{error}");
        writer.push(5, 1, &rows(5, 2)).unwrap();
        let dataset = Dataset::open(directory.path()).unwrap();
        let sizes: Vec<_> = dataset
            .sequences()
            .iter()
            .map(|s| (s.number, s.first, s.rows, s.before_answer))
            .collect();
        assert_eq!(sizes, [(0, 4, 1, 0), (1, 0, 4, 2), (5, 5, 2, 1)]);
        let mut read = Rows::default();
        dataset.read(3, 4, &mut read).unwrap();
        assert_eq!(read, rows(3, 4));
        assert!(dataset.read(6, 2, &mut read).is_err());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        DatasetWriter::open(directory.path(), meta()).unwrap();
        let other = DatasetMeta {
            recipe: "seed 8".to_owned(),
            ..meta()
        };
        let error = DatasetWriter::open(directory.path(), other)
            .unwrap_err()
            .to_string();
        assert!(error.contains("meta.json") && error.contains("seed 8"), "{error}");
        fs::write(directory.path().join(META), "{").unwrap();
        let error = Dataset::open(directory.path()).unwrap_err().to_string();
        assert!(error.contains("meta.json"), "{error}");
    }
}
