//! `cargo xtask peers`: foretoken beside llama.cpp on the same models, in turn, and the tables of it in
//! docs/performance.md.
//!
//! Here is what its measurements share: [`passes`] compares what a pass over n rows costs, [`speculative`] what
//! drafts make of whole answers, [`server`] what many clients get.
use crate::{command, python};
use anyhow::{Context, Result};
use clap::Subcommand;
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

mod passes;
mod report;
mod server;
mod speculative;

/// The Python package that carries llama.cpp.
const PEER: &str = "xllamacpp==2026.10.11549";
const END: &str = "<!-- end -->\n";

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    passes: passes::Args,
}

#[derive(Subcommand)]
enum What {
    /// Measure answers with foretoken's drafts beside llama.cpp's own modes of drafting, prompt by prompt
    ///
    /// The figure of a prompt is foretoken's rate, with its defaults and the draft model, against that of the fastest
    /// of llama.cpp's modes on this prompt.
    Speculative(speculative::Args),
    /// Measure foretoken's server beside llama.cpp's, with several clients at once
    Server(server::Args),
}

pub fn run(args: &Args) -> Result<()> {
    match &args.what {
        None => passes::run(&args.passes),
        Some(What::Speculative(args)) => speculative::run(args),
        Some(What::Server(args)) => server::run(args),
    }
}

/// llama.cpp, installed apart.
struct Peer {
    /// Where it is and what we give it to read may be written.
    dir: PathBuf,
    python: PathBuf,
}

impl Peer {
    fn install() -> Result<Self> {
        let python = python::environment("peers", &["numpy", PEER])?;
        let dir = command::root().join("target/peers");
        Ok(Self { dir, python })
    }

    /// Writes a file for it.
    fn place(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.dir.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }
}

fn build() -> Result<()> {
    eprintln!("building foretoken (release)");
    command::run(command::cargo("build").args(["--release", "--package", "foretoken"]))
}

fn json(command: &mut Command) -> Result<Value> {
    let printed = command::capture(command)?;
    serde_json::from_slice(&printed).context("the program printed no JSON")
}

fn number(value: &Value, field: &str) -> Result<f64> {
    value[field]
        .as_f64()
        .with_context(|| format!("no number {field:?} in the report"))
}

/// The middle one: of an even number, the lower.
fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    values[(values.len() - 1) / 2]
}

/// Puts the text into docs/performance.md, between the mark and the end that follows it.
fn write_section(begin: &str, text: &str) -> Result<()> {
    let path = command::root().join("docs/performance.md");
    let document = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    fs::write(&path, replaced(&document, begin, text)?).with_context(|| path.display().to_string())
}

/// The document with what stands between the marks replaced.
fn replaced(document: &str, begin: &str, text: &str) -> Result<String> {
    let (before, rest) = document
        .split_once(begin)
        .with_context(|| format!("docs/performance.md has lost its mark {}", begin.trim()))?;
    let (_, after) = rest
        .split_once(END)
        .with_context(|| format!("docs/performance.md has lost the end of {}", begin.trim()))?;
    Ok(format!("{before}{begin}{text}{END}{after}"))
}

/// The processor's name, where the system tells it.
fn machine() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    name.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.to_owned())
}

/// The commit, marked if what is built is not it.
fn commit() -> String {
    output("git", &["describe", "--always", "--dirty", "--exclude=*"])
}

fn today() -> String {
    output("date", &["-u", "+%-d %B %Y"])
}

fn output(program: &str, args: &[&str]) -> String {
    let printed = command::capture(Command::new(program).args(args).current_dir(command::root()));
    printed.map_or_else(
        |_| "?".to_owned(),
        |text| String::from_utf8_lossy(&text).trim().to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stands_between_the_marks_is_replaced() {
        let [first, second] = [passes::BEGIN, speculative::BEGIN];
        let document = format!("before\n{first}old\n{END}between\n{second}older\n{END}after\n");
        let new = replaced(&document, first, "new\n").unwrap();
        assert_eq!(new, document.replace("old\n", "new\n"));
        assert_eq!(replaced(&new, first, "old\n").unwrap(), document);
        let newer = replaced(&document, second, "newer\n").unwrap();
        assert_eq!(newer, document.replace("older\n", "newer\n"));
        assert!(replaced("no marks", first, "new").is_err());
        assert!(replaced(first, first, "new").is_err());
    }
}
