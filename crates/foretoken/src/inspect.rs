//! `foretoken inspect`: what a model file holds. Needs no architecture that can be run.

mod speculator;

use std::collections::BTreeMap;
use std::io::Write;

use foretoken::gguf::{Array, Gguf, TensorType, Value};
use foretoken::model::{Architecture, SpeculatorFile};
use serde::Serialize;

use crate::cli::InspectArgs;

/// Lines of the chat template that people are shown.
const TEMPLATE_LINES: usize = 8;

/// Runs the command.
pub fn inspect(args: &InspectArgs) -> anyhow::Result<()> {
    let path = args.file.file()?;
    let gguf = Gguf::open(&path)?;
    if SpeculatorFile::is_one(&path) {
        return speculator::inspect(&gguf, &SpeculatorFile::open(&path)?, args.json);
    }
    let summary = Summary::new(&gguf)?;
    let mut stdout = std::io::stdout().lock();
    if args.json {
        writeln!(stdout, "{}", serde_json::to_string(&summary)?)?;
    } else {
        stdout.write_all(summary.text().as_bytes())?;
    }
    Ok(())
}

#[derive(Debug, Serialize)]
struct Summary {
    file: String,
    bytes: u64,
    gguf_version: u32,
    architecture: String,
    /// Whether `foretoken run` knows the architecture.
    supported: bool,
    name: Option<String>,
    parameters: u64,
    context_length: Option<u64>,
    layers: Option<u64>,
    hidden_size: Option<u64>,
    feed_forward_size: Option<Size>,
    heads: Option<Size>,
    kv_heads: Option<Size>,
    tensors: usize,
    /// Largest share first.
    types: Vec<TypeShare>,
    /// Weights that one decoded token reads: all matrices, but of an embedding that is not the output matrix
    /// too only one row.
    bytes_per_token: u64,
    tokenizer: TokenizerSummary,
    chat_template: Option<String>,
}

/// A size of a layer: one for all, or, in some architectures, one each.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Size {
    Same(u64),
    Each(Vec<u64>),
}

impl Size {
    fn read(gguf: &Gguf, key: &str) -> anyhow::Result<Option<Self>> {
        if let Some(Value::Array(array)) = gguf.get(key) {
            let sizes = array.uints();
            let sizes = sizes.ok_or_else(|| gguf.metadata_error(key, "is not an array of sizes"))?;
            return Ok(Some(Self::Each(sizes)));
        }
        Ok(gguf.uint(key)?.map(Self::Same))
    }
}

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Same(size) => write!(f, "{size}"),
            Self::Each(sizes) => match (sizes.iter().min(), sizes.iter().max()) {
                (Some(min), Some(max)) if min < max => write!(f, "{min} to {max} by layer"),
                (Some(size), _) => write!(f, "{size}"),
                _ => write!(f, "-"),
            },
        }
    }
}

#[derive(Debug, Serialize)]
struct TypeShare {
    #[serde(rename = "type")]
    name: &'static str,
    tensors: usize,
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct TokenizerSummary {
    model: Option<String>,
    pre: Option<String>,
    vocab_size: usize,
    add_bos: Option<bool>,
    special: BTreeMap<&'static str, SpecialToken>,
}

#[derive(Debug, Serialize)]
struct SpecialToken {
    id: u64,
    piece: Option<String>,
}

impl Summary {
    fn new(gguf: &Gguf) -> anyhow::Result<Self> {
        let architecture = gguf.require_string("general.architecture")?.to_string();
        let uint = |key: &str| gguf.uint(&format!("{architecture}.{key}"));
        let size = |key: &str| Size::read(gguf, &format!("{architecture}.{key}"));
        Ok(Self {
            file: gguf.path().display().to_string(),
            bytes: gguf.file_len(),
            gguf_version: gguf.version(),
            supported: Architecture::from_name(&architecture).is_ok(),
            name: gguf.string("general.name")?.map(str::to_string),
            parameters: parameters(gguf),
            context_length: uint("context_length")?,
            layers: uint("block_count")?,
            hidden_size: uint("embedding_length")?,
            feed_forward_size: size("feed_forward_length")?,
            heads: size("attention.head_count")?,
            kv_heads: size("attention.head_count_kv")?,
            tensors: gguf.tensors().len(),
            types: type_shares(gguf),
            bytes_per_token: bytes_per_token(gguf),
            tokenizer: TokenizerSummary::new(gguf)?,
            chat_template: gguf.string("tokenizer.chat_template")?.map(str::to_string),
            architecture,
        })
    }

    fn text(&self) -> String {
        let mut lines: Vec<(&str, String)> = Vec::new();
        let mut line = |name, value: String| lines.push((name, value));
        fn or_dash(value: Option<&impl ToString>) -> String {
            value.map_or("-".into(), ToString::to_string)
        }
        let supported = if self.supported {
            ""
        } else {
            " (foretoken cannot run it)"
        };
        line(
            "file",
            format!(
                "{}, {}, GGUF version {}",
                self.file,
                size(self.bytes),
                self.gguf_version
            ),
        );
        line("name", self.name.as_deref().map_or("-".into(), printable));
        line(
            "architecture",
            format!("{}{supported}", printable(&self.architecture)),
        );
        line(
            "parameters",
            format!("{:.1} million", self.parameters as f64 / 1e6),
        );
        line("context length", or_dash(self.context_length.as_ref()));
        line("layers", or_dash(self.layers.as_ref()));
        line("hidden size", or_dash(self.hidden_size.as_ref()));
        line("feed-forward size", or_dash(self.feed_forward_size.as_ref()));
        line(
            "heads",
            format!(
                "{}, {} for keys and values",
                or_dash(self.heads.as_ref()),
                or_dash(self.kv_heads.as_ref())
            ),
        );
        for (at, share) in self.types.iter().enumerate() {
            let name = if at == 0 { "types" } else { "" };
            line(
                name,
                format!(
                    "{:<5} {:>10} in {} tensors",
                    share.name,
                    size(share.bytes),
                    share.tensors
                ),
            );
        }
        line("read per token", size(self.bytes_per_token));
        let tokenizer = &self.tokenizer;
        let kind = |value: &Option<String>| value.as_deref().map_or("-".into(), printable);
        line(
            "tokenizer",
            format!(
                "{}, pre {}, {} tokens",
                kind(&tokenizer.model),
                kind(&tokenizer.pre),
                tokenizer.vocab_size
            ),
        );
        if let Some(add) = tokenizer.add_bos {
            line("adds bos", if add { "yes" } else { "no" }.into());
        }
        for (name, special) in &tokenizer.special {
            line(
                name,
                format!("{} {:?}", special.id, special.piece.as_deref().unwrap_or("?")),
            );
        }
        match &self.chat_template {
            None => line("chat template", "none".into()),
            Some(template) => {
                let total = template.lines().count();
                line(
                    "chat template",
                    format!("{total} lines, {} bytes", template.len()),
                );
                template
                    .lines()
                    .take(TEMPLATE_LINES)
                    .for_each(|text| line("", printable(text)));
                if total > TEMPLATE_LINES {
                    line("", "…".into());
                }
            }
        }
        lines
            .iter()
            .map(|(name, value)| format!("{name:<18} {value}\n"))
            .collect()
    }
}

impl TokenizerSummary {
    fn new(gguf: &Gguf) -> anyhow::Result<Self> {
        let pieces = match gguf.array("tokenizer.ggml.tokens")? {
            Some(Array::String(pieces)) => &pieces[..],
            _ => &[],
        };
        let mut special = BTreeMap::new();
        for name in ["bos", "eos", "eot", "eom", "unknown", "padding", "separator"] {
            if let Some(id) = gguf.uint(&format!("tokenizer.ggml.{name}_token_id"))? {
                let piece = usize::try_from(id).ok().and_then(|id| pieces.get(id));
                let piece = piece.map(|bytes| String::from_utf8_lossy(bytes).into_owned());
                special.insert(name, SpecialToken { id, piece });
            }
        }
        Ok(Self {
            model: gguf.string("tokenizer.ggml.model")?.map(str::to_string),
            pre: gguf.string("tokenizer.ggml.pre")?.map(str::to_string),
            vocab_size: pieces.len(),
            add_bos: gguf.bool("tokenizer.ggml.add_bos_token")?,
            special,
        })
    }
}

/// Largest share first.
fn type_shares(gguf: &Gguf) -> Vec<TypeShare> {
    let mut types: Vec<(TensorType, TypeShare)> = Vec::new();
    for tensor in gguf.tensors() {
        let at = types
            .iter()
            .position(|(ty, _)| *ty == tensor.ty)
            .unwrap_or_else(|| {
                types.push((
                    tensor.ty,
                    TypeShare {
                        name: tensor.ty.name(),
                        tensors: 0,
                        bytes: 0,
                    },
                ));
                types.len() - 1
            });
        types[at].1.tensors += 1;
        types[at].1.bytes += tensor.len;
    }
    let mut types: Vec<TypeShare> = types.into_iter().map(|(_, share)| share).collect();
    types.sort_by_key(|share| std::cmp::Reverse(share.bytes));
    types
}

fn parameters(gguf: &Gguf) -> u64 {
    let weights = |tensor: &foretoken::gguf::TensorInfo| tensor.dims.iter().product::<u64>();
    gguf.tensors().iter().map(weights).sum()
}

fn bytes_per_token(gguf: &Gguf) -> u64 {
    let tied = gguf.tensor("output.weight").is_none();
    let read = |tensor: &foretoken::gguf::TensorInfo| match tensor.dims.get(1) {
        Some(&rows) if tensor.name == "token_embd.weight" && !tied => tensor.len / rows.max(1),
        _ => tensor.len,
    };
    gguf.tensors().iter().map(read).sum()
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}

/// A file's text for a terminal: without characters that would control it.
pub fn printable(text: &str) -> String {
    let escaped = |c: char| {
        if c.is_control() {
            c.escape_debug().to_string()
        } else {
            c.to_string()
        }
    };
    text.chars().map(escaped).collect()
}
