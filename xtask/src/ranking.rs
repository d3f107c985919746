//! `cargo xtask ranking`: which tokens of a tokenizer are frequent, counted over texts of this machine and written as the
//! file that `foretoken` ships. The work is done by the example `ranking`, which has the tokenizers.
use crate::command;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// Counts over `texts`, files and directories, with the tokenizer of `model`, and writes `out`.
pub fn run(model: &Path, out: &Path, texts: &[PathBuf]) -> Result<()> {
    // Cargo runs in the project's root, wherever we are.
    let absolute = |path: &Path| std::path::absolute(path).with_context(|| path.display().to_string());
    let mut cargo = command::cargo("run");
    cargo.args([
        "--release",
        "--quiet",
        "--package",
        "foretoken",
        "--example",
        "ranking",
        "--",
    ]);
    cargo.arg("--out").arg(absolute(out)?).arg(absolute(model)?);
    for text in texts {
        cargo.arg(absolute(text)?);
    }
    command::run(&mut cargo)
}
