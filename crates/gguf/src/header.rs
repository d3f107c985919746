//! Parsing of the part before the tensor data, over a byte slice.
//!
//! Not here: files, split or not.
use crate::cursor::{Cursor, quoted};
use crate::{Array, Error, TensorType, Value, types};
use std::collections::HashSet;
use std::path::Path;

pub(crate) const MAGIC: &[u8; 4] = b"GGUF";
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";
pub(crate) const DEFAULT_ALIGNMENT: u64 = 32;
/// The longest key, in bytes, that the format allows.
pub(crate) const MAX_KEY: usize = 65_535;
/// The longest tensor name, in bytes, that the format allows.
pub(crate) const MAX_NAME: usize = 64;

// The fewest bytes that one entry can take: what a count is held against before anything is allocated.
const MIN_METADATA: u64 = 8 + 1 + 4 + 1;
const MIN_TENSOR: u64 = 8 + 1 + 4 + 8 + 4 + 8;
/// Entries reserved at once at most; longer lists grow as their entries are read.
const RESERVE: usize = 1 << 16;

/// Everything before the tensor data.
#[derive(Clone, Debug)]
pub struct Header {
    /// 2 or 3.
    pub version: u32,
    /// Alignment of tensor data in bytes: a power of two.
    pub alignment: u64,
    /// Key-value pairs in file order; keys differ.
    pub metadata: Vec<(String, Value)>,
    /// The tensor table in file order; names differ, data lie in the file and do not overlap.
    pub tensors: Vec<HeaderTensor>,
    /// Where tensor data start, in bytes from the start of the file.
    pub data_start: u64,
}

/// One entry of the tensor table.
#[derive(Clone, Debug)]
pub struct HeaderTensor {
    /// Its name.
    pub name: String,
    /// Elements in each dimension, fastest first.
    pub dims: Vec<u64>,
    /// How elements are stored.
    pub ty: TensorType,
    /// Bytes from `data_start`.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

/// Parses and checks a header. `bytes` is the file's beginning (or all of it), `file_len` the file's length;
/// `path` is only for errors. What it allocates is at most a small multiple of the header's length.
///
/// The format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>, versions 2 and 3, little-endian.
///
/// # Errors
/// [`Error::Malformed`], which names the field, for anything that the format does not allow and for
/// tensors that reach beyond `file_len`.
pub fn parse_header(path: &Path, bytes: &[u8], file_len: u64) -> Result<Header, Error> {
    let mut cursor = Cursor::new(path, bytes, file_len);
    let version = preamble(&mut cursor)?;
    let tensor_count = count(&mut cursor, "tensor count", MIN_TENSOR)?;
    let metadata_count = count(&mut cursor, "metadata count", MIN_METADATA)?;

    let mut keys = HashSet::new();
    let mut metadata = Vec::with_capacity(metadata_count.min(RESERVE));
    for index in 0..metadata_count {
        let key = cursor.name(format_args!("metadata key {index}"), MAX_KEY)?;
        if !keys.insert(key) {
            return Err(cursor.malformed(format_args!("metadata {}", quoted(key)), "the key occurs twice"));
        }
        metadata.push((key.to_owned(), value(&mut cursor, key)?));
    }
    let alignment = alignment(&metadata)
        .map_err(|problem| cursor.malformed(format_args!("metadata {}", quoted(ALIGNMENT_KEY)), problem))?;

    let mut names = HashSet::new();
    let mut tensors = Vec::with_capacity(tensor_count.min(RESERVE));
    for index in 0..tensor_count {
        let name = cursor.name(format_args!("tensor {index} name"), MAX_NAME)?;
        if !names.insert(name) {
            return Err(cursor.malformed(format_args!("tensor {}", quoted(name)), "the name occurs twice"));
        }
        tensors.push(tensor(&mut cursor, name, alignment)?);
    }

    let data_start = cursor
        .position()
        .checked_next_multiple_of(alignment)
        .ok_or_else(|| cursor.malformed(format_args!("tensor data"), "the start overflows 64 bits"))?;
    check_layout(&cursor, &tensors, data_start, file_len)?;
    Ok(Header {
        version,
        alignment,
        metadata,
        tensors,
        data_start,
    })
}

/// Reads magic and version.
fn preamble(cursor: &mut Cursor<'_>) -> Result<u32, Error> {
    let magic = cursor.take(4, format_args!("magic"))?;
    if magic != MAGIC {
        let found = magic.escape_ascii();
        return Err(cursor.malformed(format_args!("magic"), format!("\"{found}\" is not \"GGUF\"")));
    }
    let version = cursor.u32(format_args!("version"))?;
    let problem = match version {
        2 | 3 => return Ok(version),
        1 => "version 1 is not supported; versions 2 and 3 are".to_owned(),
        v if v != 0 && v.trailing_zeros() >= 16 => "big-endian files are not supported".to_owned(),
        v => format!("version {v} is unknown; versions 2 and 3 are supported"),
    };
    Err(cursor.malformed(format_args!("version"), problem))
}

/// Reads a count of entries that take at least `min_bytes` each.
fn count(cursor: &mut Cursor<'_>, field: &str, min_bytes: u64) -> Result<usize, Error> {
    let count = cursor.u64(format_args!("{field}"))?;
    cursor.check_count(count, min_bytes, format_args!("{field}"))
}

fn value(cursor: &mut Cursor<'_>, key: &str) -> Result<Value, Error> {
    let key = quoted(key);
    let type_field = format_args!("metadata {key} type");
    let field = format_args!("metadata {key} value");
    Ok(match cursor.u32(type_field)? {
        0 => Value::U8(u8::from_le_bytes(cursor.array(field)?)),
        1 => Value::I8(i8::from_le_bytes(cursor.array(field)?)),
        2 => Value::U16(u16::from_le_bytes(cursor.array(field)?)),
        3 => Value::I16(i16::from_le_bytes(cursor.array(field)?)),
        4 => Value::U32(u32::from_le_bytes(cursor.array(field)?)),
        5 => Value::I32(i32::from_le_bytes(cursor.array(field)?)),
        6 => Value::F32(f32::from_le_bytes(cursor.array(field)?)),
        7 => {
            let [byte] = cursor.array(field)?;
            Value::Bool(boolean(byte).map_err(|problem| cursor.malformed(field, problem))?)
        }
        8 => Value::String(cursor.string(field)?.to_vec()),
        9 => Value::Array(array(cursor, &key)?),
        10 => Value::U64(u64::from_le_bytes(cursor.array(field)?)),
        11 => Value::I64(i64::from_le_bytes(cursor.array(field)?)),
        12 => Value::F64(f64::from_le_bytes(cursor.array(field)?)),
        id => return Err(cursor.malformed(type_field, format!("unknown value type {id}"))),
    })
}

fn array(cursor: &mut Cursor<'_>, key: &str) -> Result<Array, Error> {
    let type_field = format_args!("metadata {key} element type");
    let field = format_args!("metadata {key} elements");
    let ty = cursor.u32(type_field)?;
    let len = cursor.u64(format_args!("metadata {key} length"))?;
    Ok(match ty {
        0 => Array::U8(cursor.elements(len, u8::from_le_bytes, field)?),
        1 => Array::I8(cursor.elements(len, i8::from_le_bytes, field)?),
        2 => Array::U16(cursor.elements(len, u16::from_le_bytes, field)?),
        3 => Array::I16(cursor.elements(len, i16::from_le_bytes, field)?),
        4 => Array::U32(cursor.elements(len, u32::from_le_bytes, field)?),
        5 => Array::I32(cursor.elements(len, i32::from_le_bytes, field)?),
        6 => Array::F32(cursor.elements(len, f32::from_le_bytes, field)?),
        7 => {
            let bytes = cursor.elements(len, u8::from_le_bytes, field)?;
            let booleans = bytes.into_iter().map(boolean).collect::<Result<_, _>>();
            Array::Bool(booleans.map_err(|problem| cursor.malformed(field, problem))?)
        }
        8 => {
            let len = cursor.check_count(len, 8, format_args!("metadata {key} length"))?;
            let mut strings = Vec::with_capacity(len.min(RESERVE));
            for index in 0..len {
                strings.push(
                    cursor
                        .string(format_args!("metadata {key} element {index}"))?
                        .to_vec(),
                );
            }
            Array::String(strings)
        }
        9 => return Err(cursor.malformed(type_field, "arrays of arrays are not supported")),
        10 => Array::U64(cursor.elements(len, u64::from_le_bytes, field)?),
        11 => Array::I64(cursor.elements(len, i64::from_le_bytes, field)?),
        12 => Array::F64(cursor.elements(len, f64::from_le_bytes, field)?),
        id => return Err(cursor.malformed(type_field, format!("unknown value type {id}"))),
    })
}

fn boolean(byte: u8) -> Result<bool, String> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(format!("{other} is not a boolean, which is 0 or 1")),
    }
}

/// The alignment that metadata ask for.
pub(crate) fn alignment(metadata: &[(String, Value)]) -> Result<u64, String> {
    match metadata.iter().find(|(key, _)| key == ALIGNMENT_KEY) {
        None => Ok(DEFAULT_ALIGNMENT),
        Some((_, Value::U32(alignment))) if alignment.is_power_of_two() => Ok((*alignment).into()),
        Some((_, Value::U32(alignment))) => Err(format!("{alignment} is not a power of two")),
        Some((_, other)) => Err(format!("is {}, expected uint32", other.type_name())),
    }
}

fn tensor(cursor: &mut Cursor<'_>, name: &str, alignment: u64) -> Result<HeaderTensor, Error> {
    let quoted = quoted(name);
    let dims_field = format_args!("tensor {quoted} dimensions");
    let dim_count = cursor.u32(dims_field)?;
    if !(1..=4).contains(&dim_count) {
        return Err(cursor.malformed(dims_field, format!("{dim_count} dimensions; a tensor has 1 to 4")));
    }
    let dims: Vec<u64> = cursor.elements(dim_count.into(), u64::from_le_bytes, dims_field)?;
    let type_field = format_args!("tensor {quoted} type");
    let id = cursor.u32(type_field)?;
    let ty = TensorType::from_id(id).ok_or_else(|| cursor.malformed(type_field, types::refusal(id)))?;
    let len = ty
        .data_len(&dims)
        .map_err(|problem| cursor.malformed(dims_field, problem))?;
    let offset_field = format_args!("tensor {quoted} offset");
    let offset = cursor.u64(offset_field)?;
    if !offset.is_multiple_of(alignment) {
        return Err(cursor.malformed(
            offset_field,
            format!("{offset} is not a multiple of {alignment}, the alignment"),
        ));
    }
    Ok(HeaderTensor {
        name: name.to_owned(),
        dims,
        ty,
        offset,
        len,
    })
}

/// Every tensor lies within the file, and no two share a byte. Reports the first at fault in data order.
fn check_layout(
    cursor: &Cursor<'_>,
    tensors: &[HeaderTensor],
    data_start: u64,
    file_len: u64,
) -> Result<(), Error> {
    let mut order: Vec<&HeaderTensor> = tensors.iter().collect();
    order.sort_by_key(|tensor| tensor.offset);
    let mut previous: Option<(&HeaderTensor, u64)> = None;
    for tensor in order {
        let field = format_args!("tensor {} data", quoted(&tensor.name));
        let end = data_start
            .checked_add(tensor.offset)
            .and_then(|start| start.checked_add(tensor.len))
            .ok_or_else(|| cursor.malformed(field, "the end overflows 64 bits"))?;
        if end > file_len {
            let problem = format!("ends at byte {end}, but the file has only {file_len}: it is truncated");
            return Err(cursor.malformed(field, problem));
        }
        match previous {
            Some((before, before_end)) if before_end > data_start + tensor.offset => {
                return Err(cursor.malformed(field, format!("overlaps tensor {}", quoted(&before.name))));
            }
            _ => previous = Some((tensor, end)),
        }
    }
    Ok(())
}
