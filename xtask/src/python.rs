//! Python with packages, apart from the system's.
use crate::command;
use anyhow::{Context, Result};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// A Python that has these packages, in `target/NAME/python`; installed if it is not there.
pub fn environment(name: &str, packages: &[&str]) -> Result<PathBuf> {
    let dir = command::root().join("target").join(name);
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let environment = dir.join("python");
    let python = environment.join("bin/python");
    if !python.exists() {
        eprintln!("installing {}", packages.join(", "));
        command::run(Command::new("python3").args(["-m", "venv"]).arg(&environment))?;
    }
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    command::capture(pip.args(packages))?;
    Ok(python)
}
