//! What the file of an MLP speculator holds.

use std::io::Write;

use foretoken::gguf::Gguf;
use foretoken::model::{SpeculatorFile, SpeculatorInfo};
use serde::Serialize;

use super::{TypeShare, parameters, printable, size, type_shares};

/// Prints it.
pub fn inspect(gguf: &Gguf, file: &SpeculatorFile, json: bool) -> anyhow::Result<()> {
    let summary = Summary::new(gguf, file);
    let mut stdout = std::io::stdout().lock();
    match json {
        true => writeln!(stdout, "{}", serde_json::to_string(&summary)?)?,
        false => stdout.write_all(summary.text().as_bytes())?,
    }
    Ok(())
}

#[derive(Debug, Serialize)]
struct Summary<'a> {
    file: String,
    bytes: u64,
    architecture: &'static str,
    /// Whether `foretoken run` takes it (`-d`).
    supported: bool,
    parameters: u64,
    heads: usize,
    hidden_size: usize,
    inner_size: usize,
    vocab_size: usize,
    tied: bool,
    scale_input: bool,
    factored: bool,
    top_k: &'a [usize],
    candidates: usize,
    /// How many tokens it can propose, if not all.
    draft_vocabulary: Option<usize>,
    target_name: Option<&'a str>,
    /// In hexadecimal.
    tokenizer_fingerprint: Option<String>,
    acceptance: &'a [f32],
    recipe: Option<&'a str>,
    types: Vec<TypeShare>,
}

impl<'a> Summary<'a> {
    fn new(gguf: &Gguf, file: &'a SpeculatorFile) -> Self {
        let SpeculatorInfo {
            config,
            factored,
            draft_vocabulary,
            target_name,
            tokenizer_fingerprint,
            acceptance,
            recipe,
        } = file.info();
        Self {
            file: file.path().display().to_string(),
            bytes: gguf.file_len(),
            architecture: "mlp-speculator",
            supported: true,
            parameters: parameters(gguf),
            heads: config.heads,
            hidden_size: config.hidden_size,
            inner_size: config.inner_size,
            vocab_size: config.vocab_size,
            tied: config.tied,
            scale_input: config.scale_input,
            factored: *factored,
            top_k: &config.top_k,
            candidates: config.candidates,
            draft_vocabulary: draft_vocabulary.as_ref().map(Vec::len),
            target_name: target_name.as_deref(),
            tokenizer_fingerprint: tokenizer_fingerprint.map(|print| format!("{print:016x}")),
            acceptance,
            recipe: recipe.as_deref(),
            types: type_shares(gguf),
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: String| text += &format!("{name:<18} {value}\n");
        let or_dash = |value: Option<&str>| value.map_or("-".to_owned(), printable);
        line("file", format!("{}, {}", printable(&self.file), size(self.bytes)));
        line("architecture", self.architecture.to_owned());
        line("made for", or_dash(self.target_name));
        line(
            "parameters",
            format!("{:.1} million", self.parameters as f64 / 1e6),
        );
        let form = match (self.tied, self.factored) {
            (false, false) => "",
            (true, false) => ", tied",
            (false, true) => ", factored",
            (true, true) => ", tied, factored",
        };
        line("heads", format!("{}{form}", self.heads));
        let scaled = if self.scale_input { ", normed" } else { "" };
        line("hidden size", format!("{}{scaled}", self.hidden_size));
        line("inner size", self.inner_size.to_string());
        let all = self.vocab_size;
        line(
            "vocabulary",
            match self.draft_vocabulary {
                None => all.to_string(),
                Some(some) => format!("{some} of {all}"),
            },
        );
        if !self.acceptance.is_empty() {
            let shares: Vec<String> = self
                .acceptance
                .iter()
                .map(|share| format!("{share:.2}"))
                .collect();
            line("acceptance", format!("{} by head", shares.join(", ")));
        }
        line("recipe", or_dash(self.recipe));
        for (at, share) in self.types.iter().enumerate() {
            let name = if at == 0 { "types" } else { "" };
            let bytes = size(share.bytes);
            line(
                name,
                format!("{:<5} {bytes:>10} in {} tensors", share.name, share.tensors),
            );
        }
        text
    }
}
