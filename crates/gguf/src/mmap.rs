//! The one place with `unsafe`.
use memmap2::{Mmap, MmapOptions};
use std::fs::File;
use std::io;

/// Maps `len` bytes of a file from `offset`, read-only; neither needs to be aligned.
#[allow(unsafe_code)]
pub(crate) fn map_range(file: &File, offset: u64, len: u64) -> io::Result<Mmap> {
    let len = usize::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
    // SAFETY: the mapping is read-only and owned by the returned value. What Rust cannot see is another process that
    // changes the file meanwhile: bytes may then change under a `&[u8]`, and pages cut off the file's end raise SIGBUS.
    // As every user of mapped files, we require that a model file is not modified in place while it is open; all
    // that is read from it by the header's parser is copied and checked once, and tensor bytes are only ever used as
    // numbers. Replacing a file by rename is safe.
    unsafe { MmapOptions::new().offset(offset).len(len).map(file) }
}
