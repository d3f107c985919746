//! A factored speculator in the published layout, for other engines: its tables multiplied out with the target's.
//!
//! The tables are as large as the target's own. They are made and written some rows at a time, which is why the file is not left to the
//! `safetensors` crate: that takes tensors whole.
use super::file::check_weights;
use super::layout::Part;
use super::shards::{WHOLE, error};
use super::{SpeculatorInfo, SpeculatorTensor};
use crate::weights::tensor_error;
use crate::{CpuModel, LoadError};
use foretoken_kernels::{Arena, Compute, Format, Matrix, Product, Scratch, matmul};
use foretoken_spec::Token;
use half::f16;
use serde_json::{Map, json};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Rows of a table that are made at a time.
const ROWS: usize = 256;

/// A tensor of the published layout.
struct Exported<'a> {
    name: String,
    dims: Vec<usize>,
    values: Values<'a>,
}

enum Values<'a> {
    Whole(&'a [f32]),
    /// Rows of the target's embeddings, or of its head, times the matrix.
    Embedding(Matrix),
    Head(Matrix),
}

/// Writes `config.json` and `model.safetensors` (F16) into `directory`, which is made if there is none. `tensors` are those of a factored
/// speculator for `target`, which has the head of its whole vocabulary; the draft vocabulary is left out, since the layout knows none, and padding
/// of the target's vocabulary is zeros.
/// `progress(done, total)` is told weights.
///
/// # Errors
/// If it is not factored, a tensor is missing or of another size than the target's, a weight or product is none that F16 can hold, or
/// a file cannot be written.
pub fn export_speculator(
    directory: &Path,
    info: &SpeculatorInfo,
    tensors: &[SpeculatorTensor],
    target: &CpuModel,
    compute: &Compute,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), LoadError> {
    let hidden = target.config().hidden_size;
    let fits = info.config.hidden_size == hidden && info.config.vocab_size >= target.config().vocab_size;
    if !info.factored || !fits {
        return Err(error(
            directory,
            "is asked for a speculator that is no factored one of this target",
        ));
    }
    let exported = exported(info, tensors, compute)?;
    let at = |source: io::Error| error(directory, source.to_string());
    fs::create_dir_all(directory).map_err(at)?;
    let partial = directory.join(format!("{WHOLE}.partial"));
    let written = File::create(&partial).map_err(at).and_then(|file| {
        let mut out = BufWriter::with_capacity(1 << 20, file);
        write_header(&mut out, &exported).map_err(at)?;
        write_tensors(&mut out, &at, &exported, target, compute, progress)?;
        out.flush().map_err(at)?;
        fs::rename(&partial, directory.join(WHOLE)).map_err(at)
    });
    if written.is_err() {
        // Best effort: the error that counts is the one at hand.
        let _ = fs::remove_file(&partial);
        return written;
    }
    // Last: with it the directory is a speculator.
    let config = serde_json::to_string_pretty(&info.to_json()).expect("plain fields");
    fs::write(directory.join("config.json"), config).map_err(at)
}

/// What the file is to hold, in the order of its bytes.
fn exported<'a>(
    info: &SpeculatorInfo,
    tensors: &'a [SpeculatorTensor],
    compute: &Compute,
) -> Result<Vec<Exported<'a>>, LoadError> {
    let (vocab, inner) = (info.config.vocab_size, info.config.inner_size);
    let mut arena = Arena::new();
    let mut factor = |name: &str, values: &[f32], rows: usize| {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Matrix::pack(
            compute,
            &mut arena,
            Format::F32,
            rows,
            values.len() / rows,
            &bytes,
        )
        .map_err(|problem| tensor_error(name, problem.to_string()))
    };
    let mut all = Vec::new();
    for stored in info.stored() {
        let name = format!("{}{}", super::layout::PREFIX, stored.name);
        let tensor = tensors.iter().find(|tensor| tensor.name == name);
        let tensor =
            tensor.filter(|t| t.dims == stored.dims && t.values.len() == t.dims.iter().product::<usize>());
        let tensor = tensor.ok_or_else(|| tensor_error(&name, "is missing or of another size"))?;
        let (dims, values) = match stored.part {
            Part::Embedding => (
                vec![vocab, inner],
                Values::Embedding(factor(&name, &tensor.values, inner)?),
            ),
            Part::Head => {
                let transposed = transposed(&tensor.values, inner);
                (
                    vec![vocab, inner],
                    Values::Head(factor(&name, &transposed, inner)?),
                )
            }
            _ => (stored.dims, Values::Whole(&tensor.values)),
        };
        all.push(Exported {
            name: format!("speculator.{}", stored.part.name(stored.head, false)),
            dims,
            values,
        });
    }
    Ok(all)
}

/// `[rows][cols]` to `[cols][rows]`.
fn transposed(values: &[f32], cols: usize) -> Vec<f32> {
    let column = |col: usize| values.iter().skip(col).step_by(cols).copied();
    (0..cols).flat_map(column).collect()
}

/// Eight bytes of length, then names, types, sizes and places: the format's documentation.
fn write_header(out: &mut dyn Write, tensors: &[Exported<'_>]) -> io::Result<()> {
    let mut header = Map::new();
    let mut start = 0;
    for tensor in tensors {
        let end = start + 2 * tensor.dims.iter().product::<usize>();
        let entry = json!({ "dtype": "F16", "shape": tensor.dims, "data_offsets": [start, end] });
        header.insert(tensor.name.clone(), entry);
        start = end;
    }
    let mut header = serde_json::to_vec(&header)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)
}

fn write_tensors(
    out: &mut dyn Write,
    at: &dyn Fn(io::Error) -> LoadError,
    tensors: &[Exported<'_>],
    target: &CpuModel,
    compute: &Compute,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), LoadError> {
    let weights = |tensor: &Exported<'_>| tensor.dims.iter().product::<usize>() as u64;
    let total = tensors.iter().map(weights).sum();
    let mut done = 0;
    let mut put = |name: &str, values: &[f32]| {
        check_weights(name, values)?;
        for &value in values {
            out.write_all(&f16::from_f32(value).to_le_bytes()).map_err(at)?;
        }
        done += values.len() as u64;
        progress(done, total);
        Ok::<_, LoadError>(())
    };
    let (known, hidden) = (target.config().vocab_size, target.config().hidden_size);
    let mut scratch = Scratch::default();
    for tensor in tensors {
        let mut table = |matrix: &Matrix, row: &dyn Fn(Token, &mut [f32])| {
            let (mut rows, mut product) = (Vec::new(), Vec::new());
            for first in (0..tensor.dims[0]).step_by(ROWS) {
                let count = ROWS.min(tensor.dims[0] - first);
                rows.resize(count * hidden, 0.0);
                for (at, out) in rows.chunks_exact_mut(hidden).enumerate() {
                    match first + at < known {
                        true => row((first + at) as Token, out),
                        false => out.fill(0.0),
                    }
                }
                product.resize(count * matrix.rows(), 0.0);
                let out = &mut product[..];
                matmul(
                    compute,
                    &mut scratch,
                    &rows,
                    count,
                    &mut [Product { matrix, out }],
                );
                put(&tensor.name, &product)?;
            }
            Ok::<_, LoadError>(())
        };
        match &tensor.values {
            Values::Whole(values) => put(&tensor.name, values)?,
            Values::Embedding(matrix) => table(matrix, &|token, out| target.embedding_row(token, out))?,
            Values::Head(matrix) => table(matrix, &|token, out| target.head_row(token, out))?,
        }
    }
    Ok(())
}
