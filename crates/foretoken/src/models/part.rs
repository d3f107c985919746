//! The part of a file that has been downloaded: `NAME.gguf.part`, and beside it what the server said of the whole.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::client::{Answer, Rest};
use super::{Checksum, ModelError};

/// What the server said when the download began. It decides whether an answer goes on where the part ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct About {
    /// Where the file came from, without a query.
    pub url: String,
    /// Its entity tag, if that is a strong one.
    pub etag: Option<String>,
    /// Its length.
    pub bytes: u64,
    /// What it should have.
    pub sha256: Option<Checksum>,
}

/// A part, held by one process at a time: by a lock on the file itself, which goes with the process.
#[derive(Debug)]
pub(super) struct Part {
    file: File,
    path: PathBuf,
    about_path: PathBuf,
    /// What its bytes are of; `None` if there are none, or nobody knows.
    about: Option<About>,
    have: u64,
}

impl Part {
    /// Takes the part of the file at `path`, with what an earlier download left. Waits while another process has it, and
    /// tells `waiting`.
    pub fn open(path: &Path, waiting: &mut dyn FnMut()) -> Result<Self, ModelError> {
        let beside = |ending: &str| {
            let mut name = path.as_os_str().to_owned();
            name.push(ending);
            PathBuf::from(name)
        };
        let (path, about_path) = (beside(".part"), beside(".part.json"));
        let mut file = lock(&path, waiting).map_err(ModelError::file(&path))?;
        let have = file.seek(SeekFrom::End(0)).map_err(ModelError::file(&path))?;
        let about = fs::read(&about_path).ok();
        Ok(Self {
            file,
            path,
            about_path,
            about: about.and_then(|json| serde_json::from_slice(&json).ok()),
            have,
        })
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many bytes are there.
    pub fn have(&self) -> u64 {
        self.have
    }

    /// What the bytes are of.
    pub fn about(&self) -> Option<&About> {
        self.about.as_ref()
    }

    /// Whether nothing of the file at this URL is missing.
    pub fn is_whole(&self, url: &str) -> bool {
        let about = self.about.as_ref().filter(|about| about.url == url);
        about.is_some_and(|about| about.bytes == self.have)
    }

    /// What to ask the server of this URL for, if it could go on.
    pub fn rest(&self, url: &str) -> Option<Rest> {
        let about = self
            .about
            .as_ref()
            .filter(|about| about.url == url && self.have > 0)?;
        // Without either of the two, bytes of another version could not be told from these.
        (about.etag.is_some() || about.sha256.is_some()).then(|| Rest {
            from: self.have,
            etag: about.etag.clone(),
        })
    }

    /// Whether a partial answer goes on where this ends, with the same version of the file.
    pub fn continues(&self, answer: &Answer) -> bool {
        let (Some(about), Some((from, total))) = (&self.about, answer.range()) else {
            return false;
        };
        let same = match (about.sha256, answer.linked.sha256) {
            (Some(ours), Some(theirs)) => ours == theirs,
            _ => match (&about.etag, answer.etag()) {
                (Some(ours), Some(theirs)) => *ours == theirs,
                // The checksum will tell.
                _ => about.sha256.is_some(),
            },
        };
        same && from == self.have && total.is_none_or(|total| total == about.bytes)
    }

    /// Begins anew with a file of which this is known.
    pub fn begin(&mut self, about: About) -> Result<(), ModelError> {
        self.clear()?;
        let json = serde_json::to_vec(&about).expect("strings and numbers");
        fs::write(&self.about_path, json).map_err(ModelError::file(&self.about_path))?;
        self.about = Some(about);
        Ok(())
    }

    /// Adds bytes.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), ModelError> {
        self.file.write_all(bytes).map_err(ModelError::file(&self.path))?;
        self.have += bytes.len() as u64;
        Ok(())
    }

    /// Drops all bytes.
    pub fn clear(&mut self) -> Result<(), ModelError> {
        self.about = None;
        self.have = 0;
        let emptied = self.file.set_len(0).and_then(|()| self.file.rewind());
        emptied.map_err(ModelError::file(&self.path))?;
        match fs::remove_file(&self.about_path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(ModelError::file(&self.about_path)(error))
            }
            _ => Ok(()),
        }
    }

    /// Gives the whole file its name, once it is on the disk.
    pub fn finish(self, path: &Path) -> Result<(), ModelError> {
        self.file.sync_all().map_err(ModelError::file(&self.path))?;
        fs::rename(&self.path, path).map_err(ModelError::file(path))?;
        let _ = fs::remove_file(&self.about_path);
        // So that the name survives a loss of power too; not every system can.
        let _ = path
            .parent()
            .map(File::open)
            .map(|directory| directory?.sync_all());
        Ok(())
    }
}

impl Drop for Part {
    /// Leaves nothing behind where nothing came.
    fn drop(&mut self) {
        if self.have == 0 {
            let _ = fs::remove_file(&self.path);
            let _ = fs::remove_file(&self.about_path);
        }
    }
}

/// Opens a file and locks it.
fn lock(path: &Path, waiting: &mut dyn FnMut()) -> io::Result<File> {
    loop {
        let mut options = File::options();
        let file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => {
                waiting();
                file.lock()?;
            }
            Err(fs::TryLockError::Error(error)) => return Err(error),
        }
        // Who had it before may have given it its name, or removed it.
        if is_at(&file, path) {
            return Ok(file);
        }
    }
}

/// Whether a path still leads to an open file.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |about: io::Result<fs::Metadata>| about.map(|about| (about.dev(), about.ino())).ok();
    id(file.metadata()).is_some_and(|open| id(fs::metadata(path)) == Some(open))
}

/// Where files have no numbers: whether there is one.
#[cfg(not(unix))]
fn is_at(_: &File, path: &Path) -> bool {
    path.exists()
}

/// The first bytes that a reader gives, as many as the buffer holds or there are.
pub(super) fn read_start(reader: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match reader.read(&mut buffer[read..])? {
            0 => break,
            count => read += count,
        }
    }
    Ok(read)
}
