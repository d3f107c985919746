//! The forward pass once more: plain loops in f64 over dequantised weights, no kernel in sight. Activations
//! are rounded to eight bits and keys and values to f16 where the engine does so.
use super::dequantize::{activation_block, row};
use foretoken_gguf::{Gguf, TensorBytes, TensorInfo, TensorType};
use foretoken_kernels::vector::RopeStyle;
use foretoken_model::Config;
use foretoken_model::testing::Random;
use half::f16;

/// What is rounded on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// Activations and cache, as in the engine.
    AsTheEngine,
    /// The same, and every norm and product is off by as much as f32 can be.
    Perturbed,
    /// The cache alone.
    CacheOnly,
}

pub struct SlowModel {
    gguf: Gguf,
    config: Config,
    rounding: Rounding,
}

type Rows = Vec<Vec<f64>>;

impl SlowModel {
    pub fn new(gguf: Gguf, rounding: Rounding) -> Self {
        let config = Config::from_gguf(&gguf).expect("a supported model");
        Self {
            gguf,
            config,
            rounding,
        }
    }

    /// The logits of every position.
    pub fn logits(&self, tokens: &[u32]) -> Rows {
        let c = &self.config;
        let embedding = self.tensor("token_embd.weight").expect("embeddings");
        let mut x: Rows = tokens
            .iter()
            .map(|&token| embedding.row(token as usize))
            .collect();
        for layer in 0..c.layers {
            let name = |part: &str| format!("blk.{layer}.{part}");
            let normed = self.norm(&x, &name("attn_norm.weight"));
            let mut query = self.linear(&normed, &name("attn_q"));
            let mut key = self.linear(&normed, &name("attn_k"));
            let mut value = self.linear(&normed, &name("attn_v"));
            for (position, (query, key)) in query.iter_mut().zip(&mut key).enumerate() {
                self.rotate(position, query);
                self.rotate(position, key);
            }
            for stored in key.iter_mut().chain(&mut value).flatten() {
                *stored = f16::from_f64(*stored).to_f64();
            }
            let attended: Rows = (0..tokens.len())
                .map(|at| self.attend(&query[at], &key[..=at], &value))
                .collect();
            add(&mut x, &self.linear(&attended, &name("attn_output")));

            let normed = self.norm(&x, &name("ffn_norm.weight"));
            let mut gate = self.linear(&normed, &name("ffn_gate"));
            let up = self.linear(&normed, &name("ffn_up"));
            for (gate, up) in gate.iter_mut().flatten().zip(up.iter().flatten()) {
                *gate = *gate / (1.0 + (-*gate).exp()) * up;
            }
            add(&mut x, &self.linear(&gate, &name("ffn_down")));
        }
        let x = self.norm(&x, "output_norm.weight");
        let head = if self.tensor("output.weight").is_some() {
            "output"
        } else {
            "token_embd"
        };
        let mut logits = self.linear(&x, head);
        logits.iter_mut().for_each(|row| row.truncate(c.vocab_size));
        logits
    }

    fn attend(&self, query: &[f64], keys: &[Vec<f64>], values: &[Vec<f64>]) -> Vec<f64> {
        let c = &self.config;
        let mut out = Vec::new();
        for (head, query) in query.chunks_exact(c.head_dim).enumerate() {
            let from = head / (c.heads / c.kv_heads) * c.head_dim;
            let part = from..from + c.head_dim;
            let scale = f64::from(c.attention_scale);
            let scores: Vec<f64> = keys
                .iter()
                .map(|key| dot(query, &key[part.clone()]) * scale)
                .collect();
            let max = scores.iter().copied().fold(f64::MIN, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
            let sum: f64 = weights.iter().sum();
            out.extend(part.map(|d| weights.iter().zip(values).map(|(w, v)| w * v[d]).sum::<f64>() / sum));
        }
        out
    }

    fn rotate(&self, position: usize, x: &mut [f64]) {
        let (c, rope) = (&self.config, &self.config.rope);
        let factors = self.vector("rope_freqs.weight");
        for head in x.chunks_exact_mut(c.head_dim) {
            for pair in 0..rope.dims / 2 {
                let frequency = rope.freq_base.powf(-2.0 * pair as f64 / rope.dims as f64);
                let factor = factors.as_ref().map_or(1.0, |factors| factors[pair]);
                let (sin, cos) = (position as f64 / rope.position_divisor * frequency / factor).sin_cos();
                let (a, b) = match rope.style {
                    RopeStyle::Interleaved => (2 * pair, 2 * pair + 1),
                    RopeStyle::Halves => (pair, pair + rope.dims / 2),
                };
                (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[a] * sin + head[b] * cos);
            }
        }
    }

    fn norm(&self, x: &Rows, name: &str) -> Rows {
        let weight = self.vector(name).expect("a norm");
        let mut random = Random(weight.len() as u64);
        let mut scaled = |x: &Vec<f64>| {
            let scale = 1.0 / (dot(x, x) / x.len() as f64 + f64::from(self.config.norm_eps)).sqrt();
            let normed = x.iter().zip(&weight).map(|(x, weight)| x * scale * weight);
            normed
                .map(|normed| normed + self.noise(&mut random, || normed))
                .collect()
        };
        x.iter().map(&mut scaled).collect()
    }

    /// What f32 arithmetic on terms whose magnitudes sum up to `size` may be off by.
    fn noise(&self, random: &mut Random, size: impl FnOnce() -> f64) -> f64 {
        match self.rounding {
            Rounding::Perturbed => size() * f64::from(f32::EPSILON / 2.0 * random.even()),
            Rounding::AsTheEngine | Rounding::CacheOnly => 0.0,
        }
    }

    fn linear(&self, x: &Rows, name: &str) -> Rows {
        let matrix = self.tensor(&format!("{name}.weight")).expect("a matrix");
        let bias = self.vector(&format!("{name}.bias"));
        let x: Rows = match (activation_block(matrix.info.ty), self.rounding) {
            (Some(block), Rounding::AsTheEngine | Rounding::Perturbed) => {
                x.iter().map(|x| round_to_8_bits(x, block)).collect()
            }
            _ => x.clone(),
        };
        let mut out = vec![Vec::new(); x.len()];
        let mut random = Random(matrix.info.offset);
        for at in 0..matrix.info.dims[1] as usize {
            let weights = matrix.row(at);
            let bias = bias.as_ref().map_or(0.0, |bias| bias[at]);
            for (x, out) in x.iter().zip(&mut out) {
                let size = || x.iter().zip(&weights).map(|(x, weight)| (x * weight).abs()).sum();
                let noise = self.noise(&mut random, size);
                out.push(dot(x, &weights) + noise + bias);
            }
        }
        out
    }

    fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        let info = self.gguf.tensor(name)?;
        Some(Tensor {
            info,
            bytes: self.gguf.map(info).expect("a mapped tensor"),
        })
    }

    fn vector(&self, name: &str) -> Option<Vec<f64>> {
        self.tensor(name).map(|tensor| row(tensor.info.ty, &tensor.bytes))
    }
}

struct Tensor<'a> {
    info: &'a TensorInfo,
    bytes: TensorBytes,
}

impl Tensor<'_> {
    fn row(&self, at: usize) -> Vec<f64> {
        let ty: TensorType = self.info.ty;
        let len = (self.info.dims[0] / ty.block_len() * ty.block_bytes()) as usize;
        row(ty, &self.bytes[at * len..][..len])
    }
}

/// Codes −127…127 with one scale a block, as f32 arithmetic has them.
fn round_to_8_bits(x: &[f64], block: usize) -> Vec<f64> {
    let round = |x: &[f64]| {
        let x: Vec<f32> = x.iter().map(|&x| x as f32).collect();
        let scale = x.iter().fold(0.0f32, |max, x| max.max(x.abs())) / 127.0;
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        x.into_iter()
            .map(move |x| f64::from((x * inverse).round_ties_even()) * f64::from(scale))
            .collect::<Vec<_>>()
    };
    x.chunks_exact(block).flat_map(round).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(x: &mut Rows, y: &Rows) {
    for (x, y) in x.iter_mut().flatten().zip(y.iter().flatten()) {
        *x += y;
    }
}
