//! The user's cache directory: what is kept from one start to the next, and may be lost or damaged at any time.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// `$FORETOKEN_CACHE`, or `foretoken` in the user's cache directory; `None` where the system names none.
pub(crate) fn directory() -> Option<PathBuf> {
    let directory = |name: &str| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    directory("FORETOKEN_CACHE")
        .or_else(|| Some(directory("XDG_CACHE_HOME")?.join("foretoken")))
        .or_else(|| Some(directory("HOME")?.join(".cache/foretoken")))
}

/// Writes a file as a whole, so that another process reads the old one or the new one. Makes its directory.
pub(crate) fn write(file: &Path, bytes: &[u8]) -> io::Result<()> {
    fs::create_dir_all(file.parent().expect("it lies in a directory"))?;
    let part = file.with_extension(format!("{}.part", std::process::id()));
    fs::write(&part, bytes)?;
    fs::rename(&part, file).inspect_err(|_| _ = fs::remove_file(&part))
}
