//! Speculators into GGUF files.
use super::config::ARCHITECTURE;
use super::file::{check_weights, chunks};
use super::layout::PREFIX;
use super::shards::error;
use super::{SpeculatorFile, SpeculatorInfo, SpeculatorType};
use crate::LoadError;
use crate::weights::tensor_error;
use foretoken_gguf::{TensorType, Writer};
use foretoken_kernels::Compute;
use std::io;
use std::ops::Range;
use std::path::Path;

/// A tensor of a speculator in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct SpeculatorTensor {
    /// Such as `spec.proj.0.weight`: docs/speculators.md lists them.
    pub name: String,
    /// `[rows, cols]`, or the length of a vector.
    pub dims: Vec<usize>,
    /// Row by row.
    pub values: Vec<f32>,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Name and type of each tensor.
    pub tensors: Vec<(String, TensorType)>,
    /// Bytes of the file.
    pub bytes: u64,
}

impl Written {
    /// The matrices that are of another type than was asked for, since their rows are no whole blocks of it.
    pub fn fallbacks(&self, asked: SpeculatorType) -> impl Iterator<Item = &(String, TensorType)> {
        let asked = tensor_type(asked);
        (self.tensors.iter()).filter(move |(_, ty)| *ty != TensorType::F32 && *ty != asked)
    }
}

/// Writes a speculator. Matrices are of type `ty`, or of a more exact one where their rows are no whole blocks of it; norms are F32.
/// A file appears whole or not at all.
///
/// # Errors
/// If tensors are missing, too many, of the wrong shape, or hold what is not finite; if `info` is contradictory; if the file cannot be
/// written.
pub fn write_speculator(
    path: impl AsRef<Path>,
    info: &SpeculatorInfo,
    tensors: &[SpeculatorTensor],
    ty: SpeculatorType,
) -> Result<Written, LoadError> {
    let path = path.as_ref();
    let plan = plan(path, info)?;
    let mut values = Vec::with_capacity(plan.len());
    for (name, dims) in &plan {
        let Some(tensor) = tensors.iter().find(|tensor| tensor.name == *name) else {
            return Err(tensor_error(name, "is missing"));
        };
        if tensor.dims != *dims || tensor.values.len() != dims.iter().product::<usize>() {
            let (got, len) = (&tensor.dims, tensor.values.len());
            let problem = format!("is {got:?} with {len} values; {dims:?} is needed");
            return Err(tensor_error(name, problem));
        }
        values.push(tensor.values.as_slice());
    }
    for (at, tensor) in tensors.iter().enumerate() {
        let name = &tensor.name;
        let problem = if plan.iter().all(|(known, _)| known != name) {
            "is not part of such a speculator"
        } else if tensors[..at].iter().any(|before| before.name == *name) {
            "is there twice"
        } else {
            continue;
        };
        return Err(tensor_error(name, problem));
    }
    let mut read = |at: usize, elements: Range<usize>, out: &mut Vec<f32>| {
        out.clear();
        out.extend_from_slice(&values[at][elements]);
        Ok(())
    };
    write(path, info, ty, &Compute::new(1), &mut read, &mut |_, _| ())
}

impl SpeculatorFile {
    /// Makes a GGUF file of a published directory, as [`write_speculator`] does, tensor by tensor and a piece of each at a time.
    /// `progress(done, total)` is told weights.
    ///
    /// # Errors
    /// As [`write_speculator`]; also if this is no directory.
    pub fn convert(
        &self,
        path: impl AsRef<Path>,
        ty: SpeculatorType,
        compute: &Compute,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Written, LoadError> {
        if !self.is_directory() {
            return Err(error(self.path(), "is a GGUF file already"));
        }
        let mut read = |at: usize, elements: Range<usize>, out: &mut Vec<f32>| self.read(at, elements, out);
        write(path.as_ref(), self.info(), ty, compute, &mut read, progress)
    }
}

/// Names and shapes of all tensors, for a configuration that a file can say.
fn plan(path: &Path, info: &SpeculatorInfo) -> Result<Vec<(String, Vec<usize>)>, LoadError> {
    info.check().map_err(|problem| error(path, problem))?;
    let named = |tensor: super::layout::Stored| (format!("{PREFIX}{}", tensor.name), tensor.dims);
    Ok(info.stored().into_iter().map(named).collect())
}

/// Gives some elements of the tensor at an index of the [`plan`].
type Read<'a> = dyn FnMut(usize, Range<usize>, &mut Vec<f32>) -> Result<(), LoadError> + 'a;

/// Writes the file.
fn write(
    path: &Path,
    info: &SpeculatorInfo,
    ty: SpeculatorType,
    compute: &Compute,
    read: &mut Read<'_>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Written, LoadError> {
    let plan = plan(path, info)?;
    let mut writer = Writer::new();
    writer.metadata("general.architecture", ARCHITECTURE.into());
    let name = match &info.target_name {
        Some(target) => format!("MLP speculator for {target}"),
        None => "MLP speculator".to_owned(),
    };
    writer.metadata("general.name", name.as_str().into());
    info.put(&mut writer);
    let mut tensors = Vec::with_capacity(plan.len());
    for (name, dims) in &plan {
        let ty = match dims[..] {
            [_, cols] => tensor_type(ty.for_cols(cols)),
            _ => TensorType::F32,
        };
        let fastest_first: Vec<u64> = dims.iter().rev().map(|&dim| dim as u64).collect();
        writer.declare(name, &fastest_first, ty)?;
        tensors.push((name.clone(), ty));
    }

    let total = plan
        .iter()
        .map(|(_, dims)| dims.iter().product::<usize>() as u64)
        .sum();
    let (mut done, mut at) = (0, 0);
    let (mut values, mut bytes) = (Vec::new(), Vec::new());
    // The error that is no one's of writing, which the writer cannot carry.
    let mut failed = None;
    let written = writer.write_with(path, &mut |name, out| {
        let dims = &plan[at].1;
        let (rows, cols) = match dims[..] {
            [rows, cols] => (rows, cols),
            _ => (1, dims.iter().product::<usize>()),
        };
        for rows in chunks(rows, cols) {
            let elements = rows.start * cols..rows.end * cols;
            let got = read(at, elements, &mut values).and_then(|()| check_weights(name, &values));
            if let Err(error) = got {
                failed = Some(error);
                return Err(io::ErrorKind::InvalidData.into());
            }
            bytes.clear();
            match dims.len() {
                2 => ty.for_cols(cols).quantize(compute, &values, &mut bytes),
                _ => bytes.extend(values.iter().flat_map(|value| value.to_le_bytes())),
            }
            out.write_all(&bytes)?;
            done += values.len() as u64;
            progress(done, total);
        }
        at += 1;
        Ok(())
    });
    if let Some(error) = failed {
        return Err(error);
    }
    written?;
    let bytes = std::fs::metadata(path)
        .map_err(|source| error(path, source.to_string()))?
        .len();
    Ok(Written { tensors, bytes })
}

fn tensor_type(ty: SpeculatorType) -> TensorType {
    match ty {
        SpeculatorType::F16 => TensorType::F16,
        SpeculatorType::Q8_0 => TensorType::Q8_0,
        SpeculatorType::Q4_K => TensorType::Q4_K,
    }
}
