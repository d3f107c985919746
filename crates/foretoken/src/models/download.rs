//! A pull: from a source to a whole file in the directory of models.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::client::{Answer, broken};
use super::part::{About, Part, read_start};
use super::source::shown;
use super::{Checksum, Client, ModelError, Models, Source};

/// What every GGUF file begins with.
const MAGIC: &[u8; 4] = b"GGUF";

/// So much of something else is shown.
const SHOWN_BYTES: usize = 24;

const BUFFER_BYTES: usize = 256 << 10;

/// What happens during a pull.
#[derive(Debug)]
pub enum Event<'a> {
    /// Another process is pulling the same file; this one waits for it.
    Waiting,
    /// What an earlier download left is dropped: it is of another version of the file, or nobody can tell, or the server
    /// cannot go on.
    Anew,
    /// So many bytes are there.
    Have {
        /// How many.
        bytes: u64,
        /// Of how many.
        of: u64,
    },
    /// It failed and is tried again after a pause.
    Again {
        /// Why it failed.
        error: &'a ModelError,
        /// How long the pause is.
        pause: Duration,
    },
    /// The checksum is being computed.
    Checking {
        /// Over so many bytes yet.
        bytes: u64,
        /// Of so many.
        of: u64,
    },
}

/// What was pulled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulled {
    /// Where it is.
    pub path: PathBuf,
    /// Its length.
    pub bytes: u64,
    /// Its checksum; `None` if the file was there before, and none is known to compare with.
    pub sha256: Option<Checksum>,
    /// Whether that is the checksum which the source should have; otherwise none is known.
    pub is_checked: bool,
    /// Whether it was there before.
    pub was_there: bool,
}

impl Models {
    /// Puts a file into the directory, whole and with the checksum that it should have, or not at all; goes on where an
    /// earlier download ended. One that is there already is compared with its source.
    ///
    /// # Errors
    /// Every [`ModelError`] but `NotFound` and `Setting`. What was downloaded is kept for the next time unless it is wrong.
    pub fn pull(
        &self,
        client: &Client,
        source: &Source,
        events: &mut dyn FnMut(Event<'_>),
    ) -> Result<Pulled, ModelError> {
        source.check_name()?;
        std::fs::create_dir_all(self.path()).map_err(ModelError::file(self.path()))?;
        let path = self.path().join(source.file());
        if path.exists() {
            return compare(client, source, path, events);
        }
        let mut part = Part::open(&path, &mut || events(Event::Waiting))?;
        if path.exists() {
            // By the process that was waited for.
            drop(part);
            return compare(client, source, path, events);
        }
        let mut furthest = part.have();
        let mut failures = 0;
        while let Err(error) = download(client, source, self.path(), &mut part, events) {
            if part.have() > furthest {
                (furthest, failures) = (part.have(), 0);
            }
            if !error.is_passing() || failures == client.patience.retries {
                return Err(error);
            }
            let pause = client.patience.pause * (1 << failures.min(6));
            events(Event::Again { error: &error, pause });
            std::thread::sleep(pause);
            failures += 1;
        }
        let expected = source.sha256.or(part.about().and_then(|about| about.sha256));
        let found = checksum(part.path(), part.have(), events)?;
        if let Some(expected) = expected.filter(|expected| *expected != found) {
            part.clear()?;
            let url = source.to_string();
            return Err(ModelError::Checksum { url, found, expected });
        }
        let bytes = part.have();
        part.finish(&path)?;
        Ok(Pulled {
            path,
            bytes,
            sha256: Some(found),
            is_checked: expected.is_some(),
            was_there: false,
        })
    }
}

/// Brings a part to its whole length.
fn download(
    client: &Client,
    source: &Source,
    directory: &Path,
    part: &mut Part,
    events: &mut dyn FnMut(Event<'_>),
) -> Result<(), ModelError> {
    let url = client.url(source);
    let name = shown(&url);
    if part.is_whole(&name) {
        return Ok(());
    }
    let rest = part.rest(&name);
    let mut answer = client.get(&url, rest.as_ref())?;
    let goes_on = answer.status() == 206 && part.continues(&answer);
    if rest.is_some() && !goes_on && matches!(answer.status(), 206 | 416) {
        answer = client.get(&url, None)?;
    }
    if !goes_on && answer.status() != 200 {
        return Err(client.refusal(source, &answer));
    }
    let about = About {
        url: name,
        etag: answer.etag(),
        bytes: expected_length(source, &answer)?,
        sha256: source.sha256.or(answer.linked.sha256),
    };
    check_space(directory, about.bytes.saturating_sub(part.have()))?;
    receive(answer, about, goes_on, part, events)
}

/// Takes in the body of an answer: the rest of the part's file, or a whole one.
fn receive(
    answer: Answer,
    about: About,
    goes_on: bool,
    part: &mut Part,
    events: &mut dyn FnMut(Event<'_>),
) -> Result<(), ModelError> {
    let (from, of) = (answer.url.clone(), about.bytes);
    let mut reader = answer.into_reader();
    let cut = |error: std::io::Error| broken(&from, error.into());
    if !goes_on {
        let mut start = [0; SHOWN_BYTES];
        let count = read_start(&mut reader, &mut start).map_err(cut)?;
        if !start[..count].starts_with(MAGIC) {
            return Err(ModelError::NotGguf {
                url: shown(&from),
                begins: String::from_utf8_lossy(&start[..count]).into_owned(),
            });
        }
        // Not earlier: what is there is worth more than an answer that is no model.
        if part.have() > 0 {
            events(Event::Anew);
        }
        part.begin(about)?;
        part.append(&start[..count])?;
    }
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let bytes = part.have();
        if bytes > of {
            part.clear()?;
            return Err(ModelError::Length {
                url: shown(&from),
                problem: format!("more than the {of} bytes announced"),
            });
        }
        events(Event::Have { bytes, of });
        match reader.read(&mut buffer).map_err(cut)? {
            0 if bytes < of => {
                return Err(ModelError::Connection {
                    url: shown(&from),
                    problem: format!("ended after {bytes} bytes of {of}"),
                    passing: true,
                });
            }
            0 => return Ok(()),
            count => part.append(&buffer[..count])?,
        }
    }
}

/// How long the file is, if all who say something about it agree. Somebody must: a cut file would look whole, and one without
/// an end would fill the disk.
fn expected_length(source: &Source, answer: &Answer) -> Result<u64, ModelError> {
    let wrong = |problem: String| ModelError::Length {
        url: shown(&answer.url),
        problem,
    };
    let known = source.bytes.or(answer.linked.bytes);
    if let (Some(ours), Some(theirs)) = (source.bytes, answer.linked.bytes)
        && ours != theirs
    {
        return Err(wrong(format!(
            "the hub's file has {theirs} bytes instead of {ours}"
        )));
    }
    if let (Some(ours), Some(theirs)) = (source.sha256, answer.linked.sha256)
        && ours != theirs
    {
        return Err(ModelError::Checksum {
            url: shown(&answer.url),
            found: theirs,
            expected: ours,
        });
    }
    match (known, answer.total()) {
        (Some(known), Some(total)) if known != total => {
            Err(wrong(format!("the server has {total} bytes instead of {known}")))
        }
        (known, total) => known
            .or(total)
            .ok_or_else(|| wrong("the server does not say how long the file is".to_string())),
    }
}

/// Compares a file that is there with its source: by checksum where one is known, else by length.
fn compare(
    client: &Client,
    source: &Source,
    path: PathBuf,
    events: &mut dyn FnMut(Event<'_>),
) -> Result<Pulled, ModelError> {
    let bytes = std::fs::metadata(&path).map_err(ModelError::file(&path))?.len();
    let (mut length, mut sha256) = (source.bytes, source.sha256);
    if sha256.is_none() {
        let answer = client.get(&client.url(source), None)?;
        if answer.status() != 200 {
            return Err(client.refusal(source, &answer));
        }
        length = Some(expected_length(source, &answer)?);
        sha256 = answer.linked.sha256;
    }
    let occupied = |problem: String| ModelError::Occupied {
        path: path.clone(),
        problem,
    };
    if let Some(length) = length.filter(|length| *length != bytes) {
        return Err(occupied(format!("it has {bytes} bytes instead of {length}")));
    }
    let found = sha256.map(|_| checksum(&path, bytes, events)).transpose()?;
    if let (Some(found), Some(expected)) = (found, sha256)
        && found != expected
    {
        return Err(occupied(format!(
            "its SHA-256 sum is {found} instead of {expected}"
        )));
    }
    Ok(Pulled {
        path,
        bytes,
        sha256: found,
        is_checked: found.is_some(),
        was_there: true,
    })
}

fn checksum(path: &Path, of: u64, events: &mut dyn FnMut(Event<'_>)) -> Result<Checksum, ModelError> {
    Checksum::of_file(path, |bytes| events(Event::Checking { bytes, of })).map_err(ModelError::file(path))
}

/// Finds out before the download, not at its end, that the disk is too small.
#[cfg(unix)]
fn check_space(directory: &Path, needed: u64) -> Result<(), ModelError> {
    // Where the system does not say, it says so when the disk is full.
    let Ok(about) = rustix::fs::statvfs(directory) else {
        return Ok(());
    };
    let free = about.f_bavail.saturating_mul(about.f_frsize);
    match needed > free {
        true => Err(ModelError::Space {
            directory: directory.to_owned(),
            needed,
            free,
        }),
        false => Ok(()),
    }
}

#[cfg(not(unix))]
fn check_space(_: &Path, _: u64) -> Result<(), ModelError> {
    Ok(())
}
