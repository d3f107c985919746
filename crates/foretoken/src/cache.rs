//! The user's cache directory: what is kept from one start to the next, and may be lost or damaged at any time.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// `$FORETOKEN_CACHE`, or `foretoken` in the user's cache directory; `None` where the system names none.
pub fn directory() -> Option<PathBuf> {
    first_of([
        ("FORETOKEN_CACHE", ""),
        ("XDG_CACHE_HOME", "foretoken"),
        ("HOME", ".cache/foretoken"),
    ])
}

/// The first of these variables that is set, and what lies below it.
pub(crate) fn first_of(places: [(&str, &str); 3]) -> Option<PathBuf> {
    places.into_iter().find_map(|(variable, below)| {
        let above = std::env::var_os(variable).filter(|value| !value.is_empty())?;
        Some(PathBuf::from(above).join(below).components().collect())
    })
}

/// Reads a file of so many bytes at most, whatever the system says of its length.
pub(crate) fn read(file: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(file)?.take(most + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > most {
        true => Err(io::ErrorKind::FileTooLarge.into()),
        false => Ok(bytes),
    }
}

/// Writes a file as a whole, so that another process reads the old one or the new one; where the system can, none but its
/// owner may read it. Makes its directory.
pub(crate) fn write(file: &Path, bytes: &[u8]) -> io::Result<()> {
    fs::create_dir_all(file.parent().expect("it lies in a directory"))?;
    let part = file.with_extension(format!("{}.part", std::process::id()));
    let mut options = File::options();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(&part)?.write_all(bytes)?;
    fs::rename(&part, file).inspect_err(|_| _ = fs::remove_file(&part))
}
