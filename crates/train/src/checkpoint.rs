//! A training on disk: a line of JSON that says of which training it is, then parameters and both moments as little-endian f32.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::Path;

use foretoken_spec::{Token, noise};
use serde::{Deserialize, Serialize};

use crate::dataset::DatasetMeta;
use crate::trainer::{TrainError, TrainOptions, Trainer};

const FORMAT: &str = "foretoken training 1";

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Header {
    format: String,
    step: u64,
    /// Rows that are learned from: they fix the order.
    rows: u64,
    /// Length of the parameters, and of each moment.
    parameters: u64,
    /// Tells other draft vocabularies and other datasets from these.
    draft_vocabulary: u64,
    dataset: DatasetMeta,
    options: TrainOptions,
}

impl Header {
    fn of(trainer: &Trainer<'_>) -> Self {
        // What changes no parameter is the same for all.
        let options = TrainOptions {
            threads: 1,
            evaluation_rows: 1,
            ..trainer.options.clone()
        };
        Self {
            format: FORMAT.to_owned(),
            step: trainer.step,
            rows: trainer.samples.training.len() as u64,
            parameters: trainer.network.layout.len as u64,
            draft_vocabulary: hash(trainer.tables.draft_vocabulary),
            dataset: trainer.samples.dataset.meta().clone(),
            options,
        }
    }
}

/// The order counts.
fn hash(tokens: &[Token]) -> u64 {
    tokens
        .iter()
        .fold(tokens.len() as u64, |hash, &token| noise::key(hash, token.into()))
}

pub(crate) fn save(path: &Path, trainer: &Trainer<'_>) -> Result<(), TrainError> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let write = || {
        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        let mut out = BufWriter::with_capacity(1 << 20, file.as_file_mut());
        serde_json::to_writer(&mut out, &Header::of(trainer))?;
        out.write_all(b"\n")?;
        for values in [
            &trainer.network.parameters,
            &trainer.moments.first,
            &trainer.moments.second,
        ] {
            for value in values {
                out.write_all(&value.to_le_bytes())?;
            }
        }
        out.flush()?;
        drop(out);
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)?;
        Ok(())
    };
    write().map_err(|source| TrainError::Io {
        path: path.to_owned(),
        source,
    })
}

pub(crate) fn load(path: &Path, trainer: &mut Trainer<'_>) -> Result<(), TrainError> {
    let io_error = |source| TrainError::Io {
        path: path.to_owned(),
        source,
    };
    let wrong = |problem: String| TrainError::Checkpoint {
        path: path.to_owned(),
        problem,
    };
    let mut file = BufReader::with_capacity(1 << 20, File::open(path).map_err(io_error)?);
    let mut line = Vec::new();
    file.by_ref()
        .take(1 << 16)
        .read_until(b'\n', &mut line)
        .map_err(io_error)?;
    let header: Header =
        serde_json::from_slice(&line).map_err(|error| wrong(format!("is no checkpoint: {error}")))?;
    // Numbers are compared as they come out of JSON.
    let expected = serde_json::to_vec(&Header {
        step: header.step,
        ..Header::of(trainer)
    });
    let expected: Header =
        serde_json::from_slice(&expected.map_err(|e| io_error(e.into()))?).map_err(|e| io_error(e.into()))?;
    if header != expected {
        return Err(wrong(format!(
            "is of another training: {header:?}, not {expected:?}"
        )));
    }
    let mut values = |values: &mut [f32]| {
        let mut bytes = [0; 4];
        values.iter_mut().try_for_each(|value| {
            file.read_exact(&mut bytes)?;
            *value = f32::from_le_bytes(bytes);
            Ok::<_, io::Error>(())
        })
    };
    values(&mut trainer.network.parameters).map_err(io_error)?;
    values(&mut trainer.moments.first).map_err(io_error)?;
    values(&mut trainer.moments.second).map_err(io_error)?;
    trainer.step = header.step;
    Ok(())
}
