//! Writing files.
use crate::cursor::{check_name, quoted};
use crate::header::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAGIC, MAX_KEY, MAX_NAME, alignment};
use crate::{Array, Error, TensorType, Value};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

const VERSION: u32 = 3;

/// Builds a GGUF version 3 file. Tensor data are aligned to `general.alignment` if that key is given, otherwise to
/// 32 bytes. A part of a split file is a file with the keys `split.no`, `split.count` and `split.tensors.count`.
#[derive(Debug, Default)]
pub struct Writer {
    metadata: Vec<(String, Value)>,
    tensors: Vec<Tensor>,
}

#[derive(Debug)]
struct Tensor {
    name: String,
    dims: Vec<u64>,
    ty: TensorType,
    len: u64,
    /// `None` until the file is written.
    data: Option<Vec<u8>>,
}

impl Writer {
    /// An empty file.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a key; a key given twice keeps its first place and the last value.
    pub fn metadata(&mut self, key: &str, value: Value) -> &mut Self {
        match self.metadata.iter_mut().find(|(known, _)| known == key) {
            Some((_, old)) => *old = value,
            None => self.metadata.push((key.to_owned(), value)),
        }
        self
    }

    /// Adds a tensor. `dims` fastest first.
    ///
    /// # Errors
    /// [`Error::Unwritable`] if `data` has another length than type and dims say, if these are not allowed, or if
    /// the name is not or is taken.
    pub fn tensor(
        &mut self,
        name: &str,
        dims: &[u64],
        ty: TensorType,
        data: Vec<u8>,
    ) -> Result<&mut Self, Error> {
        self.add(name, dims, ty, Some(data))
    }

    /// Adds a tensor whose data come while the file is written: see [`write_with`](Self::write_with).
    ///
    /// # Errors
    /// As [`tensor`](Self::tensor).
    pub fn declare(&mut self, name: &str, dims: &[u64], ty: TensorType) -> Result<&mut Self, Error> {
        self.add(name, dims, ty, None)
    }

    fn add(
        &mut self,
        name: &str,
        dims: &[u64],
        ty: TensorType,
        data: Option<Vec<u8>>,
    ) -> Result<&mut Self, Error> {
        let expected = check_name(name.as_bytes(), MAX_NAME).and_then(|_| ty.data_len(dims));
        let given = data.as_ref().map(|data| data.len() as u64);
        let problem = match expected {
            Err(problem) => problem,
            Ok(len) if given.is_some_and(|given| given != len) => {
                format!("{} bytes of data; {ty} {dims:?} has {len}", given.unwrap_or(0))
            }
            Ok(_) if self.tensors.iter().any(|tensor| tensor.name == name) => "the name is taken".to_owned(),
            Ok(len) => {
                self.tensors.push(Tensor {
                    name: name.to_owned(),
                    dims: dims.to_vec(),
                    ty,
                    len,
                    data,
                });
                return Ok(self);
            }
        };
        Err(Error::Unwritable {
            field: format!("tensor {}", quoted(name)),
            problem,
        })
    }

    /// Writes the file: to a neighbour first that then takes its name, so that a reader which has an older
    /// file of that name mapped keeps its bytes.
    ///
    /// # Errors
    /// [`Error::Unwritable`] for a key or an alignment that the format does not allow; [`Error::Io`].
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.write_with(path, &mut no_data)
    }

    /// As [`write`](Self::write), for files larger than memory: `data` is asked in turn for each [declared](Self::declare) tensor, by its
    /// name, and writes its bytes.
    ///
    /// # Errors
    /// As [`write`](Self::write); [`Error::Io`] also if `data` fails or writes more or less than the tensor has.
    pub fn write_with(
        &self,
        path: impl AsRef<Path>,
        data: &mut dyn FnMut(&str, &mut dyn Write) -> io::Result<()>,
    ) -> Result<(), Error> {
        let path = path.as_ref();
        let alignment = self.check_metadata()?;
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let written = File::create(&partial).and_then(|file| {
            let mut out = BufWriter::new(file);
            self.emit(&mut out, alignment, data)?;
            out.flush()?;
            fs::rename(&partial, path)
        });
        written.map_err(|source| {
            // Best effort: the error that counts is the one at hand.
            let _ = fs::remove_file(&partial);
            Error::io(path, source)
        })
    }

    /// The file's bytes.
    ///
    /// # Errors
    /// [`Error::Unwritable`] for a key or an alignment that the format does not allow, and for a tensor without data.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        let mut out = Vec::new();
        self.emit(&mut out, self.check_metadata()?, &mut no_data)
            .map_err(|error| Error::Unwritable {
                field: "file".to_owned(),
                problem: error.to_string(),
            })?;
        Ok(out)
    }

    /// Checks keys and returns the alignment.
    fn check_metadata(&self) -> Result<u64, Error> {
        let unwritable = |key: &str, problem| Error::Unwritable {
            field: format!("metadata {}", quoted(key)),
            problem,
        };
        for (key, _) in &self.metadata {
            check_name(key.as_bytes(), MAX_KEY).map_err(|problem| unwritable(key, problem))?;
        }
        alignment(&self.metadata).map_err(|problem| unwritable(ALIGNMENT_KEY, problem))
    }

    fn emit(
        &self,
        out: &mut impl Write,
        alignment: u64,
        data: &mut dyn FnMut(&str, &mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        debug_assert!(alignment.is_power_of_two() && DEFAULT_ALIGNMENT.is_power_of_two());
        let mut header = Vec::new();
        header.extend_from_slice(MAGIC);
        header.extend_from_slice(&VERSION.to_le_bytes());
        header.extend_from_slice(&(self.tensors.len() as u64).to_le_bytes());
        header.extend_from_slice(&(self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            push_string(&mut header, key.as_bytes());
            push_value(&mut header, value);
        }
        let mut offset = 0u64;
        for tensor in &self.tensors {
            push_string(&mut header, tensor.name.as_bytes());
            header.extend_from_slice(&(tensor.dims.len() as u32).to_le_bytes());
            push_all(&mut header, &tensor.dims, |dim| dim.to_le_bytes());
            header.extend_from_slice(&tensor.ty.id().to_le_bytes());
            header.extend_from_slice(&offset.to_le_bytes());
            offset = (offset + tensor.len).next_multiple_of(alignment);
        }
        out.write_all(&header)?;
        pad(out, header.len() as u64, alignment)?;
        for tensor in &self.tensors {
            match &tensor.data {
                Some(bytes) => out.write_all(bytes)?,
                None => {
                    let mut counted = Counted { out, len: 0 };
                    data(&tensor.name, &mut counted)?;
                    if counted.len != tensor.len {
                        let (name, len, written) = (&tensor.name, tensor.len, counted.len);
                        let problem =
                            format!("tensor {name:?}: {written} bytes of data, {len} were declared");
                        return Err(io::Error::other(problem));
                    }
                }
            }
            pad(out, tensor.len, alignment)?;
        }
        Ok(())
    }
}

/// What there is for declared tensors when nobody was named to give it.
fn no_data(name: &str, _: &mut dyn Write) -> io::Result<()> {
    Err(io::Error::other(format!(
        "tensor {name:?} was declared and has no data"
    )))
}

/// Counts what is written.
struct Counted<'a, W> {
    out: &'a mut W,
    len: u64,
}

impl<W: Write> Write for Counted<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.len += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Writes zeros from `len` up to the next multiple of `alignment`.
fn pad(out: &mut impl Write, len: u64, alignment: u64) -> io::Result<()> {
    let zeros = len.next_multiple_of(alignment) - len;
    io::copy(&mut io::Read::take(io::repeat(0), zeros), out).map(drop)
}

fn push_string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn push_all<T: Copy, const N: usize>(out: &mut Vec<u8>, values: &[T], bytes: impl Fn(T) -> [u8; N]) {
    for &value in values {
        out.extend_from_slice(&bytes(value));
    }
}

fn push_value(out: &mut Vec<u8>, value: &Value) {
    out.extend_from_slice(&value_id(value).to_le_bytes());
    match value {
        Value::U8(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::I8(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::U16(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::I16(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::U32(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::I32(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::U64(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::I64(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::F32(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::F64(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::Bool(v) => out.push(u8::from(*v)),
        Value::String(v) => push_string(out, v),
        Value::Array(array) => {
            out.extend_from_slice(&element_id(array).to_le_bytes());
            out.extend_from_slice(&(array.len() as u64).to_le_bytes());
            match array {
                Array::U8(v) => out.extend_from_slice(v),
                Array::I8(v) => push_all(out, v, i8::to_le_bytes),
                Array::U16(v) => push_all(out, v, u16::to_le_bytes),
                Array::I16(v) => push_all(out, v, i16::to_le_bytes),
                Array::U32(v) => push_all(out, v, u32::to_le_bytes),
                Array::I32(v) => push_all(out, v, i32::to_le_bytes),
                Array::U64(v) => push_all(out, v, u64::to_le_bytes),
                Array::I64(v) => push_all(out, v, i64::to_le_bytes),
                Array::F32(v) => push_all(out, v, f32::to_le_bytes),
                Array::F64(v) => push_all(out, v, f64::to_le_bytes),
                Array::Bool(v) => push_all(out, v, |b| [u8::from(b)]),
                Array::String(v) => v.iter().for_each(|string| push_string(out, string)),
            }
        }
    }
}

fn value_id(value: &Value) -> u32 {
    match value {
        Value::U8(_) => 0,
        Value::I8(_) => 1,
        Value::U16(_) => 2,
        Value::I16(_) => 3,
        Value::U32(_) => 4,
        Value::I32(_) => 5,
        Value::F32(_) => 6,
        Value::Bool(_) => 7,
        Value::String(_) => 8,
        Value::Array(_) => 9,
        Value::U64(_) => 10,
        Value::I64(_) => 11,
        Value::F64(_) => 12,
    }
}

fn element_id(array: &Array) -> u32 {
    match array {
        Array::U8(_) => 0,
        Array::I8(_) => 1,
        Array::U16(_) => 2,
        Array::I16(_) => 3,
        Array::U32(_) => 4,
        Array::I32(_) => 5,
        Array::F32(_) => 6,
        Array::Bool(_) => 7,
        Array::String(_) => 8,
        Array::U64(_) => 10,
        Array::I64(_) => 11,
        Array::F64(_) => 12,
    }
}
