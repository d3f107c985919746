//! A bounds-checked reader over a header's bytes, whose errors name the field being read.
use crate::Error;
use std::fmt::Arguments;
use std::path::Path;

pub(crate) struct Cursor<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    file_len: u64,
    /// Never beyond `bytes`.
    position: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(path: &'a Path, bytes: &'a [u8], file_len: u64) -> Self {
        Self {
            path,
            bytes,
            file_len,
            position: 0,
        }
    }

    /// Bytes read so far.
    pub(crate) fn position(&self) -> u64 {
        self.position as u64
    }

    pub(crate) fn malformed(&self, field: Arguments<'_>, problem: impl Into<String>) -> Error {
        Error::Malformed {
            path: self.path.to_owned(),
            field: field.to_string(),
            problem: problem.into(),
        }
    }

    pub(crate) fn take(&mut self, len: u64, field: Arguments<'_>) -> Result<&'a [u8], Error> {
        let rest = &self.bytes[self.position..];
        let Some(taken) = usize::try_from(len).ok().and_then(|len| rest.get(..len)) else {
            let (at, have) = (self.position, self.bytes.len());
            let problem = if (have as u64) < self.file_len {
                format!("needs {len} bytes at byte {at}, beyond the {have} bytes that a header may take")
            } else {
                format!("needs {len} bytes at byte {at}, but the file ends at byte {have}")
            };
            return Err(self.malformed(field, problem));
        };
        self.position += taken.len();
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self, field: Arguments<'_>) -> Result<[u8; N], Error> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, field)?);
        Ok(array)
    }

    pub(crate) fn u32(&mut self, field: Arguments<'_>) -> Result<u32, Error> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    pub(crate) fn u64(&mut self, field: Arguments<'_>) -> Result<u64, Error> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    /// `count` as an index type, once so many entries of at least `min_bytes` can lie in the bytes left.
    pub(crate) fn check_count(
        &self,
        count: u64,
        min_bytes: u64,
        field: Arguments<'_>,
    ) -> Result<usize, Error> {
        let left = self.bytes.len() - self.position;
        match usize::try_from(count) {
            Ok(entries) if count <= left as u64 / min_bytes => Ok(entries),
            _ => Err(self.malformed(
                field,
                format!("{count} entries cannot fit into the {left} bytes left"),
            )),
        }
    }

    /// A length and as many bytes.
    pub(crate) fn string(&mut self, field: Arguments<'_>) -> Result<&'a [u8], Error> {
        let len = self.u64(field)?;
        self.take(len, field)
    }

    /// A string that names something: UTF-8, not empty, at most `max` bytes.
    pub(crate) fn name(&mut self, field: Arguments<'_>, max: usize) -> Result<&'a str, Error> {
        let bytes = self.string(field)?;
        check_name(bytes, max).map_err(|problem| self.malformed(field, problem))
    }

    /// `len` numbers of `N` bytes each.
    pub(crate) fn elements<T, const N: usize>(
        &mut self,
        len: u64,
        read: impl Fn([u8; N]) -> T,
        field: Arguments<'_>,
    ) -> Result<Vec<T>, Error> {
        let len = self.check_count(len, N as u64, field)?;
        let (chunks, _) = self.take((len * N) as u64, field)?.as_chunks::<N>();
        Ok(chunks.iter().copied().map(read).collect())
    }
}

pub(crate) fn check_name(bytes: &[u8], max: usize) -> Result<&str, String> {
    if bytes.is_empty() || bytes.len() > max {
        return Err(format!("{} bytes long; 1 to {max} are allowed", bytes.len()));
    }
    std::str::from_utf8(bytes).map_err(|_| format!("\"{}\" is not UTF-8", abridged(bytes)))
}

/// A name as errors show it: in quotes, control characters escaped, cut where it is long.
pub(crate) fn quoted(name: &str) -> String {
    let mut chars = name.chars();
    let shown: String = chars.by_ref().take(80).collect();
    if chars.next().is_some() {
        format!("{shown:?}…")
    } else {
        format!("{shown:?}")
    }
}

fn abridged(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(80)].escape_ascii().to_string()
}
