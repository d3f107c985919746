//! Architectures and their hyperparameters from metadata. Everything is checked here, before anything is
//! allocated; what the engine cannot compute is an error, never ignored.
//!
//! Not here: tensors and their shapes ([`crate::weights`]).
use crate::LoadError;
use foretoken_gguf::{Array, Gguf, Value};
use foretoken_kernels::vector::RopeStyle;

/// A supported architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Llama 2 and 3, CodeLlama, TinyLlama, SmolLM2, Granite 7B.
    Llama,
    /// Qwen 2 and 2.5.
    Qwen2,
}

impl Architecture {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Llama, Self::Qwen2];

    /// The value of `general.architecture`, and the prefix of the architecture's keys.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
        }
    }

    /// The architecture with this name; the error lists those known.
    pub fn from_name(name: &str) -> Result<Self, LoadError> {
        Self::ALL
            .into_iter()
            .find(|known| known.name() == name)
            .ok_or_else(|| LoadError::Architecture {
                found: name.to_owned(),
                known: Self::ALL.map(Self::name).join(", "),
            })
    }

    /// How its files order the elements of queries and keys.
    fn rope_style(self) -> RopeStyle {
        match self {
            // Converters permute the rows of Llama's Q and K so that pairs stand side by side.
            Self::Llama => RopeStyle::Interleaved,
            Self::Qwen2 => RopeStyle::Halves,
        }
    }
}

/// Rotary position embedding (Su et al. 2021, "RoFormer").
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeConfig {
    /// Which elements form a pair.
    pub style: RopeStyle,
    /// Elements of a head that are rotated, from its start; even.
    pub dims: usize,
    /// The frequency of pair i is `freq_base^(-2i/dims)`.
    pub freq_base: f64,
    /// Positions are divided by this (linear scaling); 1 without scaling.
    pub position_divisor: f64,
}

/// Hyperparameters. All sizes are in elements and greater than zero.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The architecture.
    pub architecture: Architecture,
    /// Transformer layers.
    pub layers: usize,
    /// Length of a hidden state.
    pub hidden_size: usize,
    /// Length of the inner state of a feed-forward layer.
    pub feed_forward_size: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements of a head; even.
    pub head_dim: usize,
    /// Tokens that have both a name in the tokenizer and a row in the embedding matrix. Rows beyond are
    /// padding, which no pass reads or scores.
    pub vocab_size: usize,
    /// Most positions that the model was made for.
    pub context_length: usize,
    /// Added to the mean square in norms.
    pub norm_eps: f32,
    /// Multiplies attention scores before softmax.
    pub attention_scale: f32,
    /// Rotary position embedding.
    pub rope: RopeConfig,
}

/// Upper bounds of hyperparameters: far above every published model, low enough that no product of two
/// overflows.
const MAX_LAYERS: usize = 1 << 10;
const MAX_WIDTH: usize = 1 << 20;
const MAX_HEADS: usize = 1 << 12;
const MAX_HEAD_DIM: usize = 1 << 12;
const MAX_CONTEXT: usize = 1 << 24;
const MAX_VOCAB: usize = 1 << 24;

/// Keys that change the computation in ways that are not built, with the values at which they do nothing.
const NEUTRAL: &[(&str, &[f64])] = &[
    ("expert_count", &[0.0]),
    ("logit_scale", &[0.0, 1.0]),
    ("residual_scale", &[0.0, 1.0]),
    ("embedding_scale", &[0.0, 1.0]),
    ("attn_logit_softcapping", &[0.0]),
    ("final_logit_softcapping", &[0.0]),
    ("attention.clamp_kqv", &[0.0]),
    ("attention.max_alibi_bias", &[0.0]),
    ("attention.causal", &[1.0]),
    ("rope.scaling.attn_factor", &[0.0, 1.0]),
    ("rope.scaling.yarn_ext_factor", &[0.0]),
    ("use_parallel_residual", &[0.0]),
];

/// The context of a model when none is asked for, unless its own is shorter.
const DEFAULT_CONTEXT: usize = 4096;

impl Config {
    /// Reads and checks the hyperparameters of a file.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, LoadError> {
        let architecture = Architecture::from_name(gguf.require_string("general.architecture")?)?;
        let keys = Keys { gguf, architecture };
        keys.check_neutral()?;

        let layers = keys.size("block_count", MAX_LAYERS)?;
        let hidden_size = keys.size("embedding_length", MAX_WIDTH)?;
        let feed_forward_size = keys.size("feed_forward_length", MAX_WIDTH)?;
        let heads = keys.size("attention.head_count", MAX_HEADS)?;
        let kv_heads = keys
            .size_if_present("attention.head_count_kv", MAX_HEADS)?
            .unwrap_or(heads);
        if !heads.is_multiple_of(kv_heads) {
            let problem = format!("{kv_heads} key and value heads do not divide {heads} query heads");
            return Err(keys.error("attention.head_count_kv", problem));
        }
        let head_dim = keys.head_dim(hidden_size, heads)?;

        let mut context_length = keys.size("context_length", MAX_CONTEXT)?;
        // Within the window, sliding attention is full attention.
        if let Some(window) = keys
            .count("attention.sliding_window")?
            .filter(|&window| window > 0)
        {
            context_length = context_length.min(usize::try_from(window).unwrap_or(usize::MAX));
        }
        let norm_eps = keys.float("attention.layer_norm_rms_epsilon")?;
        let norm_eps =
            norm_eps.ok_or_else(|| keys.error("attention.layer_norm_rms_epsilon", "is missing"))?;
        if !(norm_eps > 0.0 && norm_eps < 1.0) {
            return Err(keys.error(
                "attention.layer_norm_rms_epsilon",
                format!("{norm_eps} is not in 0…1"),
            ));
        }
        let scale = keys.float("attention.scale")?.filter(|&scale| scale != 0.0);
        let attention_scale = match scale {
            Some(scale) if scale > 0.0 && scale < 1e3 => scale as f32,
            Some(scale) => return Err(keys.error("attention.scale", format!("{scale} is not in 0…1000"))),
            None => 1.0 / (head_dim as f32).sqrt(),
        };

        Ok(Self {
            architecture,
            layers,
            hidden_size,
            feed_forward_size,
            heads,
            kv_heads,
            head_dim,
            vocab_size: vocab_size(gguf)?,
            context_length,
            norm_eps: norm_eps as f32,
            attention_scale,
            rope: keys.rope(head_dim)?,
        })
    }

    /// Elements of all query heads of a position.
    pub fn query_size(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Elements of all key heads of a position; as many of the value heads.
    pub fn kv_size(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Bytes of keys and values of one position, in all layers.
    pub fn kv_bytes(&self) -> usize {
        const F16: usize = 2;
        2 * F16 * self.layers * self.kv_size()
    }

    /// Positions of a sequence if none are asked for: the model's own, at most 4096.
    pub fn default_context(&self) -> usize {
        self.context_length.min(DEFAULT_CONTEXT)
    }
}

/// Tokens that both the tokenizer and the embedding matrix know.
fn vocab_size(gguf: &Gguf) -> Result<usize, LoadError> {
    const KEY: &str = "tokenizer.ggml.tokens";
    let names = match gguf.array(KEY)? {
        Some(Array::String(names)) if (1..=MAX_VOCAB).contains(&names.len()) => names.len(),
        Some(Array::String(names)) => {
            let problem = format!("{} tokens are not in 1…{MAX_VOCAB}", names.len());
            return Err(gguf.metadata_error(KEY, problem).into());
        }
        Some(_) => return Err(gguf.metadata_error(KEY, "is not an array of strings").into()),
        None => return Err(gguf.metadata_error(KEY, "is missing").into()),
    };
    // A missing or misshapen embedding matrix is the loader's error.
    let rows = gguf
        .tensor("token_embd.weight")
        .and_then(|tensor| tensor.dims.get(1).copied());
    let rows = rows
        .and_then(|rows| usize::try_from(rows).ok())
        .filter(|&rows| rows > 0);
    Ok(rows.map_or(names, |rows| rows.min(names)))
}

/// The architecture's own keys in a file.
struct Keys<'a> {
    gguf: &'a Gguf,
    architecture: Architecture,
}

impl Keys<'_> {
    fn name(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.architecture.name())
    }

    fn error(&self, suffix: &str, problem: impl Into<String>) -> LoadError {
        self.gguf.metadata_error(&self.name(suffix), problem).into()
    }

    fn count(&self, suffix: &str) -> Result<Option<u64>, LoadError> {
        Ok(self.gguf.uint(&self.name(suffix))?)
    }

    fn float(&self, suffix: &str) -> Result<Option<f64>, LoadError> {
        Ok(self.gguf.float(&self.name(suffix))?)
    }

    fn size_if_present(&self, suffix: &str, most: usize) -> Result<Option<usize>, LoadError> {
        let Some(value) = self.count(suffix)? else {
            return Ok(None);
        };
        match usize::try_from(value) {
            Ok(size) if (1..=most).contains(&size) => Ok(Some(size)),
            _ => Err(self.error(suffix, format!("{value} is not in 1…{most}"))),
        }
    }

    fn size(&self, suffix: &str, most: usize) -> Result<usize, LoadError> {
        self.size_if_present(suffix, most)?
            .ok_or_else(|| self.error(suffix, "is missing"))
    }

    fn head_dim(&self, hidden_size: usize, heads: usize) -> Result<usize, LoadError> {
        let (key, value) = ("attention.key_length", "attention.value_length");
        let default = hidden_size / heads;
        let head_dim = match self.size_if_present(key, MAX_HEAD_DIM)? {
            Some(head_dim) => head_dim,
            None if hidden_size.is_multiple_of(heads) && default <= MAX_HEAD_DIM => default,
            None => {
                let problem = format!("{heads} heads do not divide a hidden state of {hidden_size}");
                return Err(self.error("attention.head_count", problem));
            }
        };
        if !head_dim.is_multiple_of(2) {
            return Err(self.error(
                key,
                format!("a head of {head_dim} elements cannot be rotated in pairs"),
            ));
        }
        if let Some(value_dim) = self.size_if_present(value, MAX_HEAD_DIM)?
            && value_dim != head_dim
        {
            return Err(self.error(
                value,
                format!("{value_dim} differs from the key length {head_dim}"),
            ));
        }
        Ok(head_dim)
    }

    fn rope(&self, head_dim: usize) -> Result<RopeConfig, LoadError> {
        let dims = self
            .size_if_present("rope.dimension_count", head_dim)?
            .unwrap_or(head_dim);
        if !dims.is_multiple_of(2) {
            return Err(self.error("rope.dimension_count", format!("{dims} is odd")));
        }
        let freq_base = self.float("rope.freq_base")?.unwrap_or(10_000.0);
        if !(1.0..1e15).contains(&freq_base) {
            return Err(self.error("rope.freq_base", format!("{freq_base} is not in 1…1e15")));
        }
        Ok(RopeConfig {
            style: self.architecture.rope_style(),
            dims,
            freq_base,
            position_divisor: self.position_divisor()?,
        })
    }

    /// The factor of linear scaling. A factor without a type is linear, as older files have it.
    fn position_divisor(&self) -> Result<f64, LoadError> {
        let kind = self
            .gguf
            .string(&self.name("rope.scaling.type"))?
            .unwrap_or("linear");
        match kind {
            "none" => return Ok(1.0),
            "linear" => {}
            other => {
                let problem = format!("{other:?} is not supported; known: none, linear");
                return Err(self.error("rope.scaling.type", problem));
            }
        }
        for suffix in ["rope.scaling.factor", "rope.scale_linear"] {
            match self.float(suffix)? {
                None | Some(0.0) => {}
                Some(factor) if (1e-3..=1e6).contains(&factor) => return Ok(factor),
                Some(factor) => return Err(self.error(suffix, format!("{factor} is not in 0.001…1000000"))),
            }
        }
        Ok(1.0)
    }

    fn check_neutral(&self) -> Result<(), LoadError> {
        for (suffix, neutral) in NEUTRAL {
            let value = match self.gguf.get(&self.name(suffix)) {
                None => continue,
                Some(Value::Bool(value)) => f64::from(u8::from(*value)),
                Some(Value::F32(_) | Value::F64(_)) => self.float(suffix)?.unwrap_or(f64::NAN),
                Some(_) => self.count(suffix)?.map_or(f64::NAN, |value| value as f64),
            };
            if !neutral.contains(&value) {
                return Err(self.error(suffix, format!("{value} is not supported")));
            }
        }
        Ok(())
    }
}
