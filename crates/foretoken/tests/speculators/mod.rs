//! Speculators of random weights for models on disk: what they draft is noise, and seldom right.

use std::path::Path;

use foretoken::gguf::Gguf;
use foretoken::model::testing::Random;
use foretoken::model::{
    Config, SpeculatorConfig, SpeculatorInfo, SpeculatorTensor, SpeculatorType, write_speculator,
};

/// Heads of each of them.
pub const HEADS: usize = 3;
/// Length of the states between heads.
const INNER: usize = 64;

/// Writes a speculator for the model at `target`, factored or with tables of its own, after `change` has seen what its file says.
pub fn write(path: &Path, target: &Path, factored: bool, change: impl FnOnce(&mut SpeculatorInfo)) {
    let gguf = Gguf::open(target).expect("a model file");
    let model = Config::from_gguf(&gguf).expect("a model that can be run");
    let mut info = SpeculatorInfo {
        config: SpeculatorConfig {
            vocab_size: model.vocab_size,
            hidden_size: model.hidden_size,
            inner_size: INNER,
            heads: HEADS,
            tied: false,
            scale_input: true,
            top_k: vec![1; HEADS],
            candidates: 1,
        },
        factored,
        draft_vocabulary: None,
        target_name: None,
        tokenizer_fingerprint: None,
        acceptance: Vec::new(),
        recipe: None,
    };
    change(&mut info);
    let (hidden, vocab) = (info.config.hidden_size, info.config.vocab_size);
    let mut random = Random(9);
    let mut tensors = Vec::new();
    for head in 0..HEADS {
        let before = if head == 0 { hidden } else { INNER };
        let tables = match factored {
            true => [
                ("emb_proj", vec![INNER, hidden]),
                ("head_proj", vec![hidden, INNER]),
            ],
            false => [("emb", vec![vocab, INNER]), ("head", vec![vocab, INNER])],
        };
        let mut tensor = |name: String, dims: Vec<usize>| {
            let len = dims.iter().product();
            let values = std::iter::repeat_with(|| random.even()).take(len).collect();
            tensors.push(SpeculatorTensor { name, dims, values });
        };
        tensor(format!("spec.proj.{head}.weight"), vec![INNER, before]);
        tensor(format!("spec.ln.{head}.weight"), vec![INNER]);
        tensor(format!("spec.ln.{head}.bias"), vec![INNER]);
        for (name, dims) in tables {
            tensor(format!("spec.{name}.{head}.weight"), dims);
        }
    }
    write_speculator(path, &info, &tensors, SpeculatorType::Q8_0).expect("it can be written");
}
