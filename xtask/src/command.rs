//! Other programs, run so that a failure says which one and why.
use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Cargo as it runs us, in the project's root.
pub fn cargo(task: &str) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.arg(task).current_dir(root());
    command
}

/// The project's root.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the project's root")
}

/// The command line that `cargo build --release` has left.
pub fn foretoken() -> Result<PathBuf> {
    release("foretoken")
}

/// A program that `cargo build --release` has left.
pub fn release(name: &str) -> Result<PathBuf> {
    built("release", name)
}

/// A program that a build has left: `release` or `debug`.
pub fn built(profile: &str, name: &str) -> Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = root().join(target.unwrap_or_else(|| "target".into()));
    let path = target
        .join(profile)
        .join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    ensure!(path.exists(), "the build left no {}", path.display());
    Ok(path)
}

/// Runs to the end; the program writes where we write.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot run {}", shown(command)))?;
    if !status.success() {
        bail!("{} failed ({status})", shown(command));
    }
    Ok(())
}

/// Runs to the end and returns standard output; what it wrote to standard error is shown only if it fails.
pub fn capture(command: &mut Command) -> Result<Vec<u8>> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {}", shown(command)))?;
    check(command, output).map(|output| output.stdout)
}

/// An error with the last lines of standard error unless the program succeeded.
pub fn check(command: &Command, output: Output) -> Result<Output> {
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<&str> = stderr.lines().filter(|line| !line.trim().is_empty()).collect();
        let tail = lines[lines.len().saturating_sub(6)..].join("\n  ");
        bail!("{} failed ({}):\n  {tail}", shown(command), output.status);
    }
    Ok(output)
}

/// The command as a user would type it, long arguments cut.
fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let cut = |word: String| match word.char_indices().nth(60) {
        Some((end, _)) => format!("{:?}", format!("{}…", &word[..end])),
        None if word.contains(char::is_whitespace) => format!("{word:?}"),
        None => word,
    };
    words
        .map(|word| cut(word.to_string_lossy().into_owned()))
        .collect::<Vec<_>>()
        .join(" ")
}
