//! Files that cannot be run are refused with the name of what is wrong; those that can are read right.

use crate::support::*;
use foretoken_gguf::{Gguf, TensorType, Value};
use foretoken_kernels::Compute;
use foretoken_model::testing::{self, TinyModel, TinyRope, TinyTensor};
use foretoken_model::{Config, CpuModel, LoadError, LoadOptions, Tokenizer};
use foretoken_spec::{Output, TargetModel};
use std::sync::Arc;

type Metadata = Vec<(String, Value)>;
type Tensors = Vec<TinyTensor>;

fn load(metadata: Metadata, tensors: Tensors, options: &LoadOptions) -> Result<CpuModel, LoadError> {
    let file = tempfile::NamedTempFile::new().unwrap().into_temp_path();
    testing::write(&file, metadata, tensors).unwrap();
    let gguf = Gguf::open(&file)?;
    let tokenizer = Tokenizer::from_gguf(&gguf)?;
    CpuModel::load(
        &gguf,
        &tokenizer,
        Arc::new(Compute::new(1)),
        options,
        &mut |_, _| (),
    )
}

#[track_caller]
fn refused(result: Result<CpuModel, LoadError>, parts: &[&str]) {
    let error = result.map(drop).expect_err("a refusal").to_string();
    for part in parts {
        assert!(error.contains(part), "{error:?} does not say {part:?}");
    }
}

#[test]
fn metadata_that_make_no_sense() {
    #[track_caller]
    fn check(key: &str, value: Option<Value>, problem: &str) {
        let tiny = TinyModel::llama();
        let mut metadata = tiny.metadata();
        metadata.retain(|(known, _)| known != key);
        metadata.extend(value.map(|value| (key.to_owned(), value)));
        refused(
            load(metadata, tiny.tensors(), &LoadOptions::default()),
            &[key, problem],
        );
    }
    let number = |value| Some(Value::U32(value));
    let text = |text: &str| Some(Value::String(text.as_bytes().to_vec()));
    let huge = Some(Value::U64(u64::MAX));
    for key in [
        "block_count",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "context_length",
    ] {
        let key = format!("llama.{key}");
        check(&key, None, "missing");
        check(&key, number(0), "is not in 1…");
        check(&key, huge.clone(), "is not in 1…");
        check(&key, Some(Value::I32(-1)), "negative");
        check(&key, text("two"), "string");
    }
    check("llama.attention.head_count_kv", number(4), "do not divide 6");
    check("llama.attention.head_count_kv", number(0), "is not in 1…");
    check("llama.attention.key_length", number(31), "31");
    check(
        "llama.attention.value_length",
        number(16),
        "differs from the key length 32",
    );
    check("llama.attention.layer_norm_rms_epsilon", None, "missing");
    check(
        "llama.attention.layer_norm_rms_epsilon",
        Some(Value::F32(f32::NAN)),
        "NaN",
    );
    check(
        "llama.attention.layer_norm_rms_epsilon",
        Some(Value::F32(0.0)),
        "is not in 0…1",
    );
    check(
        "llama.attention.scale",
        Some(Value::F32(-1.0)),
        "is not in 0…1000",
    );
    check("llama.rope.dimension_count", number(33), "is not in 1…32");
    check("llama.rope.dimension_count", number(31), "odd");
    check("llama.rope.freq_base", Some(Value::F32(0.0)), "is not in 1…");
    check(
        "llama.rope.freq_base",
        Some(Value::F32(f32::INFINITY)),
        "is not in 1…",
    );
    check(
        "llama.rope.scaling.type",
        text("yarn"),
        "\"yarn\" is not supported",
    );
    check(
        "llama.rope.scaling.type",
        text("longrope"),
        "\"longrope\" is not supported",
    );
    check("llama.rope.scaling.factor", Some(Value::F32(-2.0)), "is not in");
    check(
        "llama.rope.scaling.attn_factor",
        Some(Value::F32(1.5)),
        "1.5 is not supported",
    );
    check("llama.expert_count", number(8), "8 is not supported");
    check("llama.logit_scale", Some(Value::F32(16.0)), "16 is not supported");
    check(
        "llama.final_logit_softcapping",
        Some(Value::F32(30.0)),
        "30 is not supported",
    );
    check(
        "llama.attention.causal",
        Some(Value::Bool(false)),
        "is not supported",
    );
    check("general.architecture", None, "missing");
}

#[test]
fn unknown_architectures_list_those_known() {
    let tiny = TinyModel::llama();
    for name in ["gpt2", "Llama", ""] {
        let mut metadata = tiny.metadata();
        metadata.push(("general.architecture".to_owned(), Value::String(name.into())));
        let result = load(metadata, tiny.tensors(), &LoadOptions::default());
        refused(result, &[&format!("{name:?}"), "llama, qwen2"]);
    }
}

#[test]
fn tensors_that_do_not_fit() {
    #[track_caller]
    fn check(change: impl FnOnce(&mut Tensors), parts: &[&str]) {
        let tiny = TinyModel::llama();
        let mut tensors = tiny.tensors();
        change(&mut tensors);
        refused(load(tiny.metadata(), tensors, &LoadOptions::default()), parts);
    }
    fn at<'a>(tensors: &'a mut Tensors, name: &str) -> &'a mut TinyTensor {
        tensors.iter_mut().find(|tensor| tensor.name == name).unwrap()
    }
    fn vector(name: &str, len: usize) -> TinyTensor {
        TinyTensor {
            name: name.to_owned(),
            dims: vec![len as u64],
            ty: TensorType::F32,
            data: 1.0f32.to_le_bytes().repeat(len),
        }
    }
    for name in [
        "token_embd.weight",
        "blk.0.attn_norm.weight",
        "blk.1.ffn_down.weight",
        "output_norm.weight",
    ] {
        check(
            |tensors| tensors.retain(|tensor| tensor.name != name),
            &[name, "is missing"],
        );
    }
    check(
        |tensors| at(tensors, "blk.1.attn_k.weight").dims.reverse(),
        &["blk.1.attn_k.weight", "[96, 64]"],
    );
    check(
        |tensors| *at(tensors, "output_norm.weight") = vector("output_norm.weight", 95),
        &["output_norm", "[96]"],
    );
    check(
        |tensors| at(tensors, "token_embd.weight").dims = vec![96, 271, 1],
        &["token_embd.weight"],
    );
    check(
        |tensors| {
            let norm = at(tensors, "blk.0.ffn_norm.weight");
            (norm.ty, norm.data) = (TensorType::BF16, vec![0; 192]);
        },
        &["blk.0.ffn_norm.weight", "BF16", "F32 or F16"],
    );
    // What would change the computation, were it passed over.
    for extra in [
        "blk.0.ffn_down.bias",
        "blk.0.attn_q_norm.weight",
        "blk.2.attn_norm.weight",
        "rope_factors_long.weight",
    ] {
        check(
            |tensors| tensors.push(vector(extra, 96)),
            &[extra, "not part of the architecture"],
        );
    }
    check(
        |tensors| tensors.push(vector("blk.0.attn_q.bias", 7)),
        &["blk.0.attn_q.bias", "[192]"],
    );
    check(
        |tensors| {
            tensors.push(vector("rope_freqs.weight", 16));
            at(tensors, "rope_freqs.weight").data.fill(0);
        },
        &["rope_freqs.weight", "not above zero"],
    );
}

#[test]
fn context_and_cache() {
    let tiny = TinyModel {
        context_length: 100,
        ..TinyModel::llama()
    };
    let with = |context, kv_positions| {
        load(
            tiny.metadata(),
            tiny.tensors(),
            &LoadOptions {
                context,
                kv_positions,
                ..LoadOptions::default()
            },
        )
    };
    assert_eq!(with(None, None).unwrap().info().context_length, 100);
    assert_eq!(with(Some(64), None).unwrap().info().context_length, 64);
    refused(with(Some(0), None), &["context of 0", "1 to 100"]);
    refused(with(Some(101), None), &["context of 101", "1 to 100"]);
    refused(with(None, Some(usize::MAX)), &["KV cache"]);
    refused(with(None, Some(1 << 50)), &["KV cache"]);

    let long = TinyModel {
        context_length: 1 << 20,
        ..TinyModel::llama()
    };
    let default = load(long.metadata(), long.tensors(), &LoadOptions::default()).unwrap();
    assert_eq!(default.info().context_length, 4096);

    // Beyond a sliding window the files mean another attention.
    let mut metadata = tiny.metadata();
    metadata.push(("llama.attention.sliding_window".to_owned(), Value::U32(48)));
    let windowed = load(metadata, tiny.tensors(), &LoadOptions::default()).unwrap();
    assert_eq!(windowed.info().context_length, 48);
}

#[test]
fn what_the_file_says() {
    let tiny = TinyModel {
        rope: TinyRope::Linear(4.0),
        padding: 6,
        ..TinyModel::llama()
    };
    let model = load(tiny.metadata(), tiny.tensors(), &LoadOptions::default()).unwrap();
    let config = model.config();
    assert_eq!(
        (config.layers, config.hidden_size, config.heads, config.kv_heads),
        (2, 96, 6, 2)
    );
    assert_eq!((config.rope.position_divisor, config.rope.dims), (4.0, 32));
    // Padding is neither scored nor a token.
    assert_eq!(model.info().vocab_size, tiny.vocab_size());
    assert!(
        model
            .info()
            .end_of_generation
            .contains(&(tiny.vocab_size() as u32 - 1))
    );

    // Without the keys that have defaults.
    let tiny = TinyModel {
        kv_heads: 3,
        heads: 3,
        ..TinyModel::llama()
    };
    let mut metadata = tiny.metadata();
    let given = [
        "head_count_kv",
        "key_length",
        "value_length",
        "dimension_count",
        "freq_base",
    ];
    metadata.retain(|(key, _)| !given.iter().any(|suffix| key.ends_with(suffix)));
    let model = load(metadata, tiny.tensors(), &LoadOptions::default()).unwrap();
    let expected = Config {
        architecture: model.config().architecture,
        ..model.config().clone()
    };
    assert_eq!(
        (expected.kv_heads, expected.head_dim, expected.rope.dims),
        (3, 32, 32)
    );
    assert_eq!(expected.rope.freq_base, 10_000.0);
}

/// A bias that is zero changes nothing, one that is not does: for Q, K, V and the output projection.
#[test]
fn biases_are_added() {
    let tiny = TinyModel::llama();
    let logits = |tensors| {
        let mut model = load(tiny.metadata(), tensors, &LoadOptions::default()).unwrap();
        let sequence = model.open();
        feed(&mut model, sequence, &[5, 6, 7], Output::Logits)
            .logits(2)
            .unwrap()
            .to_vec()
    };
    let plain = logits(tiny.tensors());
    for (name, len) in [
        ("attn_q", 192),
        ("attn_k", 64),
        ("attn_v", 64),
        ("attn_output", 96),
    ] {
        let with = |value: f32| {
            let mut tensors = tiny.tensors();
            // Growing along the vector: softmax does not see what all keys have in common.
            let data = (0..len).flat_map(|i| (value * i as f32).to_le_bytes()).collect();
            let name = format!("blk.1.{name}.bias");
            tensors.push(TinyTensor {
                name,
                dims: vec![len],
                ty: TensorType::F32,
                data,
            });
            logits(tensors)
        };
        assert_eq!(with(0.0), plain, "{name}");
        assert_ne!(with(0.01), plain, "{name}");
    }
}

#[test]
fn progress_is_told_in_bytes() {
    let file = TinyFile::new(&TinyModel::qwen2());
    let gguf = Gguf::open(&file.file).unwrap();
    let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
    let mut told = Vec::new();
    let mut progress = |done, total| told.push((done, total));
    let compute = Arc::new(Compute::new(1));
    let model = CpuModel::load(&gguf, &tokenizer, compute, &LoadOptions::default(), &mut progress).unwrap();
    let total: u64 = gguf.tensors().iter().map(|tensor| tensor.len).sum();
    assert!(told.is_sorted() && told.iter().all(|&(_, all)| all == total));
    assert_eq!(told.last(), Some(&(total, total)));
    assert!(model.cost().weight_bytes > 0);
}
