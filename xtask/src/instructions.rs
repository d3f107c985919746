//! `cargo xtask instructions`: the instructions of one product per format and number of rows, counted by valgrind.
//! Unlike time they do not depend on what else the machine does, so that a regression of a percent shows.
//!
//! They are those of the compiler and the instruction set at hand: compare like with like.
use crate::command;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const FORMATS: [&str; 13] = [
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
];
const ROWS: [u32; 4] = [1, 2, 4, 8];
/// Changes below are noise of the code around a kernel.
const TOLERANCE: f64 = 0.005;

type Counts = BTreeMap<String, u64>;

/// Counts, compares with what was written down, and fails if something got dearer; `write` writes down instead.
pub fn run(write: bool) -> Result<()> {
    command::run(command::cargo("build").args([
        "--release",
        "--package",
        "foretoken-kernels",
        "--example",
        "products",
    ]))?;
    let program = command::release("examples/products")?;
    let path = command::root().join("crates/kernels/instructions.txt");
    let known = match write {
        true => Counts::new(),
        false => read(&path)?,
    };
    let mut counts = Counts::new();
    let mut dearer = Vec::new();
    for format in FORMATS {
        for rows in ROWS {
            // What is the same in both runs is not the product's.
            let product = (count(&program, format, rows, 5)? - count(&program, format, rows, 1)?) / 4;
            let name = format!("{format} {rows}");
            let before = known.get(&name).copied();
            let change = before.map(|before| product as f64 / before as f64 - 1.0);
            let shown = change.map_or(String::new(), |change| format!("{:+.1} %", 100.0 * change));
            println!("{name:<8} {product:>9} {shown:>9}");
            dearer.extend(change.filter(|&change| change > TOLERANCE).map(|_| name.clone()));
            counts.insert(name, product);
        }
    }
    if write {
        let lines: String = counts
            .iter()
            .map(|(name, count)| format!("{name} {count}\n"))
            .collect();
        return fs::write(&path, lines).with_context(|| path.display().to_string());
    }
    if !dearer.is_empty() {
        bail!("more instructions than written down: {}", dearer.join(", "));
    }
    Ok(())
}

fn count(program: &Path, format: &str, rows: u32, times: u32) -> Result<u64> {
    let mut valgrind = Command::new("valgrind");
    valgrind
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args([format, &rows.to_string(), &times.to_string()]);
    let output = valgrind
        .output()
        .context("cannot run valgrind; is it installed?")?;
    let output = command::check(&valgrind, output)?;
    let report = String::from_utf8_lossy(&output.stderr);
    let collected = report
        .lines()
        .find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok());
    collected.context("valgrind reported no count")
}

fn read(path: &PathBuf) -> Result<Counts> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let line = |line: &str| {
        let (name, count) = line.rsplit_once(' ')?;
        Some((name.to_owned(), count.parse().ok()?))
    };
    let counts: Option<Counts> = text.lines().map(line).collect();
    counts.with_context(|| format!("{}: a line is not `FORMAT ROWS COUNT`", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_down_names_every_product() {
        let counts = read(&command::root().join("crates/kernels/instructions.txt")).unwrap();
        for format in FORMATS {
            for rows in ROWS {
                assert!(
                    counts.contains_key(&format!("{format} {rows}")),
                    "{format} {rows}"
                );
            }
        }
        assert_eq!(counts.len(), FORMATS.len() * ROWS.len());
    }
}
