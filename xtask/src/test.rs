//! `cargo xtask test`: everything, real models included.
use crate::{clients, command, models};
use anyhow::{Context, Result};
use std::fs;
use std::path::PathBuf;
use std::time::Instant;

/// Fetches the models, all or for a quick run the smallest, and runs every test of the workspace, then those of
/// the official clients.
pub fn run(quick: bool) -> Result<()> {
    let start = Instant::now();
    let dir = if quick {
        only_smollm2()?
    } else {
        models::ensure(models::MODELS)?
    };
    eprintln!("testing with the models in {}", dir.display());
    command::run(
        command::cargo("test")
            // The development profile is optimised, as real models need, and keeps its checks, as tests need.
            .arg("--workspace")
            .env("FORETOKEN_MODELS", dir),
    )?;
    clients::run(&command::built("debug", "foretoken")?)?;
    eprintln!("all tests passed, in {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// A directory that holds SmolLM2 and nothing else, whatever else has been fetched.
fn only_smollm2() -> Result<PathBuf> {
    let from = models::SMOLLM2.path(&models::ensure([&models::SMOLLM2])?);
    let dir = command::root().join("target/quick-models");
    let to = models::SMOLLM2.path(&dir);
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    if to.exists() {
        fs::remove_file(&to).with_context(|| format!("cannot remove {}", to.display()))?;
    }
    fs::hard_link(&from, &to)
        .or_else(|_| fs::copy(&from, &to).map(drop))
        .with_context(|| format!("cannot link {} into {}", from.display(), dir.display()))?;
    Ok(dir)
}
