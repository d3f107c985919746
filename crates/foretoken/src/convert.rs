//! `foretoken convert`: files of others into ours.

use std::io::Write;
use std::path::Path;

use anyhow::bail;
use foretoken::gguf::TensorType;
use foretoken::kernels::Compute;
use foretoken::model::{SpeculatorFile, SpeculatorType, Written};
use indicatif::{DecimalBytes, ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::cli::{ConvertCommand, ConvertSpeculatorArgs};
use crate::output::escape;

/// Runs the command.
pub fn convert(command: &ConvertCommand) -> anyhow::Result<()> {
    match command {
        ConvertCommand::Speculator(args) => speculator(args),
    }
}

/// What was made.
#[derive(Debug, Serialize)]
struct Converted {
    file: String,
    bytes: u64,
    #[serde(rename = "type")]
    ty: &'static str,
    tensors: Vec<Tensor>,
}

#[derive(Debug, Serialize)]
struct Tensor {
    name: String,
    #[serde(rename = "type")]
    ty: &'static str,
    /// It was to be of the type that was asked for, and has no whole blocks of it.
    fell_back: bool,
}

fn speculator(args: &ConvertSpeculatorArgs) -> anyhow::Result<()> {
    let path: &Path = &args.output;
    if !args.force && path.symlink_metadata().is_ok() {
        bail!("{}: is there already; --force replaces it", path.display());
    }
    let ty = SpeculatorType::from(args.ty);
    let file = SpeculatorFile::open(&args.directory)?;
    let style = ProgressStyle::with_template("converting {wide_bar} {percent} % {eta}")?;
    // Draws on standard error, and only if that is a terminal.
    let bar = ProgressBar::no_length().with_style(style);
    let compute = Compute::new(args.threads.count());
    let written = file.convert(path, ty, &compute, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let converted = Converted::new(path, ty, &written?);
    let mut stdout = std::io::stdout().lock();
    match args.json {
        true => writeln!(stdout, "{}", serde_json::to_string(&converted)?)?,
        false => stdout.write_all(converted.text().as_bytes())?,
    }
    Ok(())
}

impl Converted {
    fn new(path: &Path, ty: SpeculatorType, written: &Written) -> Self {
        let fallbacks: Vec<_> = written.fallbacks(ty).collect();
        let tensor = |tensor: &(String, TensorType)| Tensor {
            name: tensor.0.clone(),
            ty: tensor.1.name(),
            fell_back: fallbacks.contains(&tensor),
        };
        Self {
            file: path.display().to_string(),
            bytes: written.bytes,
            ty: ty.format().name(),
            tensors: written.tensors.iter().map(tensor).collect(),
        }
    }

    fn text(&self) -> String {
        let (file, bytes) = (escape(&self.file), DecimalBytes(self.bytes));
        let mut text = format!("{file}: {bytes}, {} tensors, {}\n", self.tensors.len(), self.ty);
        for tensor in self.tensors.iter().filter(|tensor| tensor.fell_back) {
            let why = format!("its rows are no whole blocks of {}", self.ty);
            text += &format!("{} is {}: {why}\n", tensor.name, tensor.ty);
        }
        text
    }
}
