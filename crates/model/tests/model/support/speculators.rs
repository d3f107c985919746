//! Small speculators of reproducible weights, and a writer of the directories in which speculators are published.
use foretoken_model::testing::{Random, TinyModel};
use foretoken_model::{SpeculatorConfig, SpeculatorInfo, SpeculatorTensor};
use half::{bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use std::path::Path;
use tempfile::TempDir;

/// The hidden size of the targets.
pub const HIDDEN: usize = 24;
/// Tokens of the tiny models.
pub const VOCAB: usize = 271;

/// A target of that size, of float weights.
pub fn target() -> TinyModel {
    TinyModel {
        layers: 1,
        hidden_size: HIDDEN,
        feed_forward_size: 16,
        heads: 2,
        kv_heads: 1,
        head_dim: 8,
        types: vec![foretoken_gguf::TensorType::F32],
        tied: false,
        ..TinyModel::llama()
    }
}

/// The weights of `tests/golden/speculator.py`: whole numbers over 256, from −128 to 127.
pub fn weights(seed: u64) -> impl Iterator<Item = f32> {
    let mut random = Random(seed);
    std::iter::repeat_with(move || ((random.next() >> 56) as f32 - 128.0) / 256.0)
}

/// One of the cases of `tests/golden/speculator.py`.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub number: u64,
    pub heads: usize,
    /// As in the configuration: 0 is the hidden size.
    pub inner: usize,
    pub tied: bool,
    pub scaled: bool,
}

impl Case {
    pub fn inner_size(&self) -> usize {
        if self.inner == 0 { HIDDEN } else { self.inner }
    }

    pub fn info(&self) -> SpeculatorInfo {
        SpeculatorInfo {
            config: SpeculatorConfig {
                vocab_size: VOCAB,
                hidden_size: HIDDEN,
                inner_size: self.inner_size(),
                heads: self.heads,
                tied: self.tied,
                scale_input: self.scaled,
                top_k: vec![1; self.heads],
                candidates: 5,
            },
            factored: false,
            draft_vocabulary: None,
            target_name: None,
            tokenizer_fingerprint: None,
            acceptance: Vec::new(),
            recipe: None,
        }
    }

    /// A state and a token to begin with.
    pub fn start(&self) -> (Vec<f32>, u32) {
        let mut random = Random(1000 * self.number + 999);
        let state = (0..HIDDEN)
            .map(|_| 8.0 * ((random.next() >> 56) as f32 - 128.0) / 256.0)
            .collect();
        (state, (random.next() % VOCAB as u64) as u32)
    }

    /// All tensors, those that tied heads share once; names without prefix.
    pub fn tensors(&self) -> Vec<SpeculatorTensor> {
        let m = self.inner_size();
        let mut all = Vec::new();
        for head in 0..self.heads {
            let parts = [
                ("proj", "weight", vec![m, if head == 0 { HIDDEN } else { m }]),
                ("ln", "weight", vec![m]),
                ("ln", "bias", vec![m]),
                ("emb", "weight", vec![VOCAB, m]),
                ("head", "weight", vec![VOCAB, m]),
            ];
            for (part, (name, kind, dims)) in parts.into_iter().enumerate() {
                if self.tied && head > usize::from(part == 0) {
                    continue;
                }
                let one = if (name, kind) == ("ln", "weight") {
                    1.0
                } else {
                    0.0
                };
                let seed = 1000 * self.number + 10 * head as u64 + part as u64;
                let len = dims.iter().product();
                all.push(SpeculatorTensor {
                    name: format!("{name}.{head}.{kind}"),
                    dims,
                    values: weights(seed).take(len).map(|weight| one + weight).collect(),
                });
            }
        }
        all
    }

    /// The same under the names that they have in a GGUF file.
    pub fn gguf_tensors(&self) -> Vec<SpeculatorTensor> {
        let mut all = self.tensors();
        all.iter_mut()
            .for_each(|tensor| tensor.name.insert_str(0, "spec."));
        all
    }

    /// As a published `config.json` says it.
    pub fn config(&self) -> Value {
        json!({
            "architectures": ["MLPSpeculatorPreTrainedModel"],
            "model_type": "mlp_speculator",
            "vocab_size": VOCAB,
            "emb_dim": HIDDEN,
            "inner_dim": self.inner,
            "n_predict": self.heads,
            "top_k_tokens_per_head": vec![1; self.heads],
            "n_candidates": 5,
            "tie_weights": self.tied,
            "scale_input": self.scaled,
            "torch_dtype": "float16",
        })
    }

    /// A directory as it is published.
    pub fn published(&self, dtype: Dtype) -> TempDir {
        let directory = directory(&self.config());
        write_tensors(
            &directory.path().join("model.safetensors"),
            "speculator.",
            dtype,
            &self.tensors(),
        );
        directory
    }
}

/// A directory with a `config.json` alone.
pub fn directory(config: &Value) -> TempDir {
    let directory = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(directory.path().join("config.json"), config.to_string()).expect("it is writable");
    directory
}

/// Writes a safetensors file.
pub fn write_tensors(path: &Path, prefix: &str, dtype: Dtype, tensors: &[SpeculatorTensor]) {
    let data: Vec<(String, Vec<u8>)> = (tensors.iter())
        .map(|tensor| {
            (
                format!("{prefix}{}", tensor.name),
                bytes_of(dtype, &tensor.values),
            )
        })
        .collect();
    let views = tensors.iter().zip(&data).map(|(tensor, (name, bytes))| {
        (
            name,
            TensorView::new(dtype, tensor.dims.clone(), bytes).expect("bytes of that shape"),
        )
    });
    safetensors::serialize_to_file(views, None, path).expect("it is writable");
}

fn bytes_of(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    let values = values.iter();
    match dtype {
        Dtype::F32 => values.flat_map(|value| value.to_le_bytes()).collect(),
        Dtype::F16 => values
            .flat_map(|&value| f16::from_f32(value).to_le_bytes())
            .collect(),
        Dtype::BF16 => values
            .flat_map(|&value| bf16::from_f32(value).to_le_bytes())
            .collect(),
        // Another type of four bytes, to be refused.
        _ => values.flat_map(|&value| (value as i32).to_le_bytes()).collect(),
    }
}
