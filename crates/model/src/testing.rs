//! Tiny models of random weights, written as GGUF files, for tests of whatever loads or runs a model. Built
//! with the feature `testing`; no released program contains it.
//!
//! The weights are random but alive: matrices keep the size of what they multiply, so that logits differ
//! from token to token and every part of the architecture moves them. The text of such a model is noise.
//!
//! ```
//! use foretoken_model::testing::TinyModel;
//!
//! let path = std::env::temp_dir().join(format!("foretoken-tiny-{}.gguf", std::process::id()));
//! TinyModel::llama().write(&path)?;
//! # std::fs::remove_file(&path).unwrap();
//! # Ok::<(), foretoken_gguf::Error>(())
//! ```
use crate::Architecture;
use foretoken_gguf::{Array, Error, TensorType, Value, Writer};
use half::{bf16, f16};
use std::path::Path;

/// Scaling of rotary positions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TinyRope {
    /// None.
    Plain,
    /// Positions are divided by this.
    Linear(f32),
    /// A tensor of frequency factors, as Llama 3 files have it.
    Factors,
}

/// What a tiny model is like. Change fields as a test needs it.
#[derive(Clone, Debug)]
pub struct TinyModel {
    /// The architecture.
    pub architecture: Architecture,
    /// Layers.
    pub layers: usize,
    /// Length of a hidden state: a multiple of 32, of 256 for K-quants.
    pub hidden_size: usize,
    /// Length of the inner state: a multiple likewise.
    pub feed_forward_size: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of a head. `heads * head_dim` is a multiple of 32 or 256 too.
    pub head_dim: usize,
    /// `context_length`.
    pub context_length: usize,
    /// Types of the matrices: each takes the next, round and round.
    pub types: Vec<TensorType>,
    /// The embedding matrix serves as head.
    pub tied: bool,
    /// Q, K and V have biases.
    pub bias: bool,
    /// Scaling of rotary positions.
    pub rope: TinyRope,
    /// Rows of embedding and head beyond the tokens that the tokenizer knows.
    pub padding: usize,
    /// Decides all weights.
    pub seed: u64,
}

/// A tensor of a tiny model.
#[derive(Clone, Debug)]
pub struct TinyTensor {
    /// Its name.
    pub name: String,
    /// Elements in each dimension, fastest first.
    pub dims: Vec<u64>,
    /// How elements are stored.
    pub ty: TensorType,
    /// Its bytes.
    pub data: Vec<u8>,
}

/// Control tokens, the last of the vocabulary.
const CONTROL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
/// Merges of the byte-pair encoding, in order of rank.
const MERGES: [(&str, &str); 12] = [
    ("Ġ", "t"),
    ("h", "e"),
    ("Ġ", "a"),
    ("i", "n"),
    ("r", "e"),
    ("Ġt", "he"),
    ("e", "r"),
    ("o", "n"),
    ("Ġ", "w"),
    ("in", "g"),
    ("Ġa", "n"),
    ("Ġan", "d"),
];

/// A chat template in ChatML.
const TEMPLATE: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}\
    <|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

impl TinyModel {
    /// Grouped queries, tied head, one head dimension that is not `hidden_size / heads`.
    pub fn llama() -> Self {
        Self {
            architecture: Architecture::Llama,
            layers: 2,
            hidden_size: 96,
            feed_forward_size: 160,
            heads: 6,
            kv_heads: 2,
            head_dim: 32,
            context_length: 4096,
            types: vec![TensorType::Q8_0, TensorType::Q4_1, TensorType::Q5_0],
            tied: true,
            bias: false,
            rope: TinyRope::Plain,
            padding: 0,
            seed: 1,
        }
    }

    /// Biases, untied head, K-quants.
    pub fn qwen2() -> Self {
        Self {
            architecture: Architecture::Qwen2,
            hidden_size: 256,
            feed_forward_size: 512,
            heads: 4,
            kv_heads: 1,
            head_dim: 64,
            types: vec![TensorType::Q4_K, TensorType::Q6_K],
            tied: false,
            bias: true,
            padding: 5,
            seed: 2,
            ..Self::llama()
        }
    }

    /// Models that between them have every architecture, tensor type, rope variant and kind of head, with a
    /// name each.
    pub fn variants() -> Vec<(&'static str, Self)> {
        use TensorType::*;
        let wide = Self {
            bias: false,
            architecture: Architecture::Llama,
            ..Self::qwen2()
        };
        vec![
            ("llama", Self::llama()),
            ("qwen2", Self::qwen2()),
            (
                "llama with frequency factors, F16, F32 and BF16",
                Self {
                    rope: TinyRope::Factors,
                    types: vec![F16, F32, BF16],
                    tied: false,
                    seed: 3,
                    ..Self::llama()
                },
            ),
            (
                "llama with linear rope, old formats, every head its own keys",
                Self {
                    rope: TinyRope::Linear(4.0),
                    types: vec![Q4_0, Q5_1, Q4_1, Q8_0, Q5_0],
                    kv_heads: 6,
                    tied: false,
                    padding: 3,
                    seed: 4,
                    ..Self::llama()
                },
            ),
            (
                "llama in all K-quants",
                Self {
                    types: vec![Q2_K, Q3_K, Q4_K, Q5_K, Q6_K],
                    seed: 5,
                    ..wide
                },
            ),
            (
                "qwen2 of mixed families, tied",
                Self {
                    types: vec![Q5_0, Q6_K, Q8_0, Q4_K, F16],
                    tied: true,
                    seed: 6,
                    ..Self::qwen2()
                },
            ),
        ]
    }

    /// Tokens that the tokenizer knows: 256 bytes, a few merges, three control tokens.
    pub fn vocab_size(&self) -> usize {
        256 + MERGES.len() + CONTROL.len()
    }

    /// All metadata, as they will stand in the file.
    pub fn metadata(&self) -> Vec<(String, Value)> {
        let mut all = Vec::new();
        let mut put = |key: &str, value: Value| all.push((key.to_owned(), value));
        let name = self.architecture.name();
        let text = |text: &str| Value::String(text.as_bytes().to_vec());
        put("general.architecture", text(name));
        put("general.name", text("tiny"));
        for (key, size) in [
            ("block_count", self.layers),
            ("context_length", self.context_length),
            ("embedding_length", self.hidden_size),
            ("feed_forward_length", self.feed_forward_size),
            ("attention.head_count", self.heads),
            ("attention.head_count_kv", self.kv_heads),
            ("attention.key_length", self.head_dim),
            ("attention.value_length", self.head_dim),
            ("rope.dimension_count", self.head_dim),
        ] {
            put(&format!("{name}.{key}"), Value::U32(size as u32));
        }
        put(
            &format!("{name}.attention.layer_norm_rms_epsilon"),
            Value::F32(1e-5),
        );
        put(&format!("{name}.rope.freq_base"), Value::F32(10_000.0));
        if let TinyRope::Linear(factor) = self.rope {
            put(&format!("{name}.rope.scaling.type"), text("linear"));
            put(&format!("{name}.rope.scaling.factor"), Value::F32(factor));
        }

        let mut tokens: Vec<String> = byte_letters().map(String::from).to_vec();
        tokens.extend(MERGES.map(|(left, right)| format!("{left}{right}")));
        let mut kinds = vec![1; tokens.len()];
        tokens.extend(CONTROL.map(str::to_owned));
        kinds.extend([3; CONTROL.len()]);
        let end = tokens.len() as u32;
        let strings =
            |all: Vec<String>| Value::Array(Array::String(all.into_iter().map(String::into_bytes).collect()));
        put("tokenizer.ggml.model", text("gpt2"));
        put(
            "tokenizer.ggml.pre",
            text(if name == "llama" { "smollm" } else { "qwen2" }),
        );
        put("tokenizer.ggml.tokens", strings(tokens));
        put("tokenizer.ggml.token_type", Value::Array(Array::I32(kinds)));
        put(
            "tokenizer.ggml.merges",
            strings(MERGES.map(|(left, right)| format!("{left} {right}")).to_vec()),
        );
        put("tokenizer.ggml.bos_token_id", Value::U32(end - 3));
        put("tokenizer.ggml.eos_token_id", Value::U32(end - 1));
        put("tokenizer.ggml.add_bos_token", Value::Bool(false));
        put("tokenizer.chat_template", text(TEMPLATE));
        all
    }

    /// All tensors, in file order.
    pub fn tensors(&self) -> Vec<TinyTensor> {
        let mut maker = Maker {
            random: Random(self.seed),
            types: self.types.iter().cycle(),
            all: Vec::new(),
        };
        let (hidden, inner) = (self.hidden_size, self.feed_forward_size);
        let (queries, keys) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let vocabulary = self.vocab_size() + self.padding;
        maker.matrix("token_embd.weight", vocabulary, hidden);
        for layer in 0..self.layers {
            let name = |part: &str| format!("blk.{layer}.{part}");
            maker.norm(&name("attn_norm.weight"), hidden);
            for (part, rows) in [("attn_q", queries), ("attn_k", keys), ("attn_v", keys)] {
                maker.matrix(&name(&format!("{part}.weight")), rows, hidden);
                if self.bias {
                    maker.vector(&name(&format!("{part}.bias")), rows, 0.0, 0.3, TensorType::F32);
                }
            }
            maker.matrix(&name("attn_output.weight"), hidden, queries);
            maker.norm(&name("ffn_norm.weight"), hidden);
            maker.matrix(&name("ffn_gate.weight"), inner, hidden);
            maker.matrix(&name("ffn_up.weight"), inner, hidden);
            maker.matrix(&name("ffn_down.weight"), hidden, inner);
        }
        maker.norm("output_norm.weight", hidden);
        if !self.tied {
            maker.matrix("output.weight", vocabulary, hidden);
        }
        if self.rope == TinyRope::Factors {
            maker.vector("rope_freqs.weight", self.head_dim / 2, 4.0, 3.0, TensorType::F32);
        }
        maker.all
    }

    /// Writes the model.
    ///
    /// # Errors
    /// As [`Writer::write`]; also if a size is no multiple of its type's block.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        write(path, self.metadata(), self.tensors())
    }
}

/// Writes metadata and tensors that a test may have changed.
///
/// # Errors
/// As [`Writer::write`].
pub fn write(
    path: impl AsRef<Path>,
    metadata: Vec<(String, Value)>,
    tensors: Vec<TinyTensor>,
) -> Result<(), Error> {
    let mut writer = Writer::new();
    for (key, value) in metadata {
        writer.metadata(&key, value);
    }
    for TinyTensor { name, dims, ty, data } in tensors {
        writer.tensor(&name, &dims, ty, data)?;
    }
    writer.write(path)
}

/// The letter that stands for each byte in GPT-2 vocabularies.
fn byte_letters() -> [char; 256] {
    let mut beyond = 256;
    std::array::from_fn(|byte| match byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => char::from(byte as u8),
        _ => {
            beyond += 1;
            char::from_u32(beyond - 1).unwrap_or_default()
        }
    })
}

struct Maker<'a> {
    random: Random,
    types: std::iter::Cycle<std::slice::Iter<'a, TensorType>>,
    all: Vec<TinyTensor>,
}

impl Maker<'_> {
    /// A matrix whose outputs are about as large as its inputs.
    fn matrix(&mut self, name: &str, rows: usize, cols: usize) {
        let ty = self.types.next().copied().unwrap_or(TensorType::F32);
        let blocks = rows * cols / ty.block_len() as usize;
        let deviation = 1.0 / (cols as f32).sqrt();
        let data = (0..blocks)
            .flat_map(|_| block(&mut self.random, ty, deviation))
            .collect();
        self.push(name, &[cols, rows], ty, data);
    }

    /// F16 and F32 in turn.
    fn norm(&mut self, name: &str, len: usize) {
        let ty = [TensorType::F32, TensorType::F16][self.all.len() % 2];
        self.vector(name, len, 1.0, 0.5, ty);
    }

    fn vector(&mut self, name: &str, len: usize, mean: f32, spread: f32, ty: TensorType) {
        let values = (0..len).map(|_| mean + spread * self.random.even());
        let data = match ty {
            TensorType::F16 => values
                .flat_map(|value| f16::from_f32(value).to_le_bytes())
                .collect(),
            _ => values.flat_map(f32::to_le_bytes).collect(),
        };
        self.push(name, &[len], ty, data);
    }

    fn push(&mut self, name: &str, dims: &[usize], ty: TensorType, data: Vec<u8>) {
        let dims = dims.iter().map(|&dim| dim as u64).collect();
        self.all.push(TinyTensor {
            name: name.to_owned(),
            dims,
            ty,
            data,
        });
    }
}

/// One block of random codes, with scales such that weights have about the given standard deviation.
fn block(random: &mut Random, ty: TensorType, deviation: f32) -> Vec<u8> {
    use TensorType::*;
    let mut bytes: Vec<u8> = (0..ty.block_bytes()).map(|_| random.next() as u8).collect();
    let size = deviation * (1.0 + 0.5 * random.even());
    let mut put =
        |at: usize, value: f32| bytes[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
    // Where the scale stands, the deviation of its codes, and where the minimum stands, in units of the
    // scale such that weights are centred.
    match ty {
        F32 => return (size * 1.7 * random.even()).to_le_bytes().to_vec(),
        F16 => return f16::from_f32(size * 1.7 * random.even()).to_le_bytes().to_vec(),
        BF16 => return bf16::from_f32(size * 1.7 * random.even()).to_le_bytes().to_vec(),
        Q4_0 => put(0, size / 4.6),
        Q4_1 => [(0, size / 4.6), (2, -7.5 * size / 4.6)]
            .into_iter()
            .for_each(|(at, value)| put(at, value)),
        Q5_0 => put(0, size / 9.2),
        Q5_1 => [(0, size / 9.2), (2, -15.5 * size / 9.2)]
            .into_iter()
            .for_each(|(at, value)| put(at, value)),
        Q8_0 => put(0, size / 74.0),
        Q2_K => [(80, size / 12.0), (82, 1.5 * size / 12.0)]
            .into_iter()
            .for_each(|(at, value)| put(at, value)),
        Q3_K => put(108, size / 42.0),
        Q4_K => [(0, size / 250.0), (2, 7.5 * size / 250.0)]
            .into_iter()
            .for_each(|(at, value)| put(at, value)),
        Q5_K => [(0, size / 500.0), (2, 15.5 * size / 500.0)]
            .into_iter()
            .for_each(|(at, value)| put(at, value)),
        Q6_K => put(208, size / 1370.0),
        other => unreachable!("{other} has no kernel"),
    }
    bytes
}

/// SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A whole number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Evenly distributed over −1…1.
    pub fn even(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}
