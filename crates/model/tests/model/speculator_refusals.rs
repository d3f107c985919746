//! Speculators that are refused, each with an error that says why.
use crate::support::speculators::*;
use crate::support::*;
use foretoken_gguf::{Array, Gguf, TensorType, Value, Writer};
use foretoken_kernels::Compute;
use foretoken_model::testing::{Random, TinyModel};
use foretoken_model::{
    CpuModel, LoadError, LoadOptions, Speculator, SpeculatorFile, SpeculatorTensor, SpeculatorType,
    Tokenizer, write_speculator,
};
use safetensors::Dtype;
use serde_json::{Value as Json, json};
use std::path::Path;
use std::sync::Arc;

const CASE: Case = Case {
    number: 40,
    heads: 3,
    inner: 20,
    tied: false,
    scaled: true,
};

/// Opens it and loads its weights for a target of its sizes.
fn load(path: &Path, tiny: &TinyModel) -> Result<(), LoadError> {
    let file = SpeculatorFile::open(path)?;
    let target = TinyFile::new(tiny);
    let gguf = Gguf::open(&target.file)?;
    let compute = Arc::new(Compute::new(1));
    let tokenizer = Tokenizer::from_gguf(&gguf)?;
    let options = LoadOptions::default();
    let model = CpuModel::load(&gguf, &tokenizer, Arc::clone(&compute), &options, &mut |_, _| ())?;
    Speculator::load(file, &gguf, &model, compute, None).map(drop)
}

#[track_caller]
fn refused(path: &Path, why: &str) {
    refused_by(path, &target(), why);
}

#[track_caller]
fn refused_by(path: &Path, tiny: &TinyModel, why: &str) {
    let problem = load(path, tiny).expect_err(why).to_string();
    assert!(problem.contains(why), "{problem:?} does not say {why:?}");
}

#[test]
fn configurations_that_make_no_sense_are_refused() {
    let arctic = json!(["ArcticLSTMSpeculatorPreTrainedModel"]);
    for (key, value, why) in [
        (
            "architectures",
            arctic,
            "architectures is [\"ArcticLSTMSpeculatorPreTrainedModel\"]",
        ),
        ("architectures", Json::Null, "architectures is []"),
        ("model_type", json!("llama"), "model_type is \"llama\""),
        ("n_predict", json!(0), "n_predict is 0; 1 to 64 is possible"),
        (
            "n_predict",
            json!(1_000_000_000_000u64),
            "n_predict is 1000000000000; 1 to 64 is possible",
        ),
        (
            "n_predict",
            json!(-1),
            "n_predict is -1; a whole number is needed",
        ),
        (
            "n_predict",
            json!("3"),
            "n_predict is \"3\"; a whole number is needed",
        ),
        (
            "n_predict",
            json!(2),
            "top_k_tokens_per_head has 3 numbers for 2 heads",
        ),
        (
            "top_k_tokens_per_head",
            json!([5, 0, 1]),
            "top_k_tokens_per_head is 0",
        ),
        (
            "top_k_tokens_per_head",
            json!("5,4,3"),
            "top_k_tokens_per_head is not an array",
        ),
        ("n_candidates", json!(0), "n_candidates is 0"),
        (
            "emb_dim",
            json!(u64::MAX),
            "emb_dim is 18446744073709551615; 1 to 1048576 is possible",
        ),
        ("emb_dim", json!(0), "emb_dim is 0"),
        ("inner_dim", json!(1 << 21), "inner_dim is 2097152"),
        ("vocab_size", json!(1 << 25), "vocab_size is 33554432"),
        (
            "tie_weights",
            json!("yes"),
            "tie_weights is \"yes\"; true or false is needed",
        ),
        // Sizes that are not those of the tensors.
        ("inner_dim", json!(24), "is [20, 24]; [24, 24] is needed"),
        ("vocab_size", json!(270), "is [271, 20]; [270, 20] is needed"),
        // More heads than there are tensors for.
        (
            "n_predict",
            json!(4),
            "top_k_tokens_per_head has 3 numbers for 4 heads",
        ),
        // Tied, what is left has no place.
        ("inner_dim", json!(0), "[24, 24] is needed"),
    ] {
        let mut config = CASE.config();
        config[key] = value;
        let directory = directory(&config);
        let path = directory.path().join("model.safetensors");
        write_tensors(&path, "speculator.", Dtype::F16, &CASE.tensors());
        refused(directory.path(), why);
    }
    let directory = directory(&json!([]));
    refused(directory.path(), "config.json: ");
    std::fs::write(directory.path().join("config.json"), vec![b' '; 2 << 20]).unwrap();
    refused(
        directory.path(),
        "config.json: has 2097152 bytes; at most 1048576 is read",
    );
}

#[test]
fn keys_that_are_missing_have_their_defaults() {
    let all = json!({"architectures": ["MLPSpeculatorPreTrainedModel"], "model_type": "mlp_speculator"});
    let directory = directory(&all);
    // The sizes of the first tensor are the first thing that they decide.
    write_tensors(
        &directory.path().join("model.safetensors"),
        "",
        Dtype::F16,
        &CASE.tensors(),
    );
    refused(
        directory.path(),
        "tensor \"proj.0.weight\": is [20, 24]; [4096, 4096] is needed",
    );
}

#[test]
fn directories_without_their_tensors_are_refused() {
    let write = |tensors: &[SpeculatorTensor], dtype| {
        let directory = directory(&CASE.config());
        write_tensors(
            &directory.path().join("model.safetensors"),
            "speculator.",
            dtype,
            tensors,
        );
        directory
    };
    let all = CASE.tensors();
    for (at, tensor) in all.iter().enumerate() {
        let mut fewer = all.clone();
        fewer.remove(at);
        refused(
            write(&fewer, Dtype::F16).path(),
            &format!("tensor {:?}: is missing", tensor.name),
        );
        let mut more = all.clone();
        more[at].values.push(0.0);
        more[at].dims = vec![more[at].values.len()];
        refused(
            write(&more, Dtype::F16).path(),
            &format!("tensor {:?}: is [", tensor.name),
        );
        for value in [f32::NAN, f32::INFINITY, 1e6] {
            let mut broken = all.clone();
            *broken[at].values.last_mut().unwrap() = value;
            let holds = format!("tensor {:?}: holds {value}", tensor.name);
            refused(write(&broken, Dtype::F32).path(), &holds);
        }
    }
    let mut more = all.clone();
    more.push(SpeculatorTensor {
        name: "ln0.weight".to_owned(),
        dims: vec![HIDDEN],
        values: vec![1.0; HIDDEN],
    });
    refused(
        write(&more, Dtype::F16).path(),
        "\"ln0.weight\": is not part of such a speculator",
    );
    refused(
        write(&all, Dtype::I32).path(),
        "is I32; F32, F16 or BF16 is needed",
    );

    let empty = directory(&CASE.config());
    refused(empty.path(), "holds neither model.safetensors nor");
    std::fs::write(empty.path().join("pytorch_model.bin"), "PK").unwrap();
    refused(empty.path(), "convert it to model.safetensors");
    let index = empty.path().join("model.safetensors.index.json");
    for (text, why) in [
        ("{", "index.json: EOF"),
        ("{}", "weight_map is missing"),
        (r#"{"weight_map": {}}"#, "weight_map is empty"),
        (
            r#"{"weight_map": {"a": "../b"}}"#,
            "weight_map has \"../b\" for \"a\"",
        ),
        (
            r#"{"weight_map": {"a": "/etc/passwd"}}"#,
            "a file's name is needed",
        ),
        (r#"{"weight_map": {"a": 3}}"#, "weight_map has 3"),
        (
            r#"{"weight_map": {"a": "b.safetensors"}}"#,
            "b.safetensors: No such file",
        ),
    ] {
        std::fs::write(&index, text).unwrap();
        refused(empty.path(), why);
    }
    // Both shards have everything.
    for name in ["1", "2"] {
        write_tensors(&empty.path().join(name), "", Dtype::F16, &all);
    }
    std::fs::write(&index, r#"{"weight_map": {"a": "1", "b": "2"}}"#).unwrap();
    refused(empty.path(), "is there twice");
}

#[test]
fn malformed_safetensors_are_refused() {
    let directory = CASE.published(Dtype::F16);
    let path = directory.path().join("model.safetensors");
    let good = std::fs::read(&path).unwrap();
    let header_len = u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
    let check = |bytes: &[u8], why: &str| {
        std::fs::write(&path, bytes).unwrap();
        refused(directory.path(), why);
    };
    check(b"", "has 0 bytes");
    check(&good[..8], "a header of");
    check(&good[..8 + header_len - 1], "a header of");
    check(&good[..8 + header_len], "0 bytes of tensors where the header has");
    check(&good[..good.len() - 1], "bytes of tensors where the header has");
    check(
        &[&good[..], b"x"].concat(),
        "bytes of tensors where the header has",
    );
    for len in [u64::MAX, 1 << 40, 1 << 20, 1 << 63] {
        check(
            &[&len.to_le_bytes(), &good[8..]].concat(),
            &format!("a header of {len} bytes"),
        );
    }
    check(&[&3u64.to_le_bytes()[..], b"{}x"].concat(), "header: ");
    check(&[&2u64.to_le_bytes()[..], b"{}"].concat(), "is missing");

    // Any change of a header is read as something or refused.
    let mut random = Random(7);
    for _ in 0..300 {
        let mut bytes = good.clone();
        for _ in 0..1 + random.below(3) {
            let at = random.below(8 + header_len);
            bytes[at] = random.next() as u8;
        }
        std::fs::write(&path, bytes).unwrap();
        let _ = SpeculatorFile::open(directory.path());
    }
}

#[test]
fn targets_of_other_sizes_are_refused() {
    let directory = CASE.published(Dtype::F16);
    load(directory.path(), &target()).expect("the sizes are the target's");
    let wider = TinyModel {
        hidden_size: 32,
        ..target()
    };
    refused_by(
        directory.path(),
        &wider,
        "was made for a hidden size of 24; the target's is 32",
    );
    let padded = TinyModel {
        padding: 5,
        ..target()
    };
    refused_by(
        directory.path(),
        &padded,
        "was made for a vocabulary of 271; the target's embeddings have 276 rows",
    );
}

#[test]
fn gguf_files_that_are_no_speculators_are_refused() {
    let model = TinyFile::new(&target());
    assert!(!SpeculatorFile::is_one(&model.file));
    assert!(!SpeculatorFile::is_one("/nowhere"));
    assert!(SpeculatorFile::open_if_one(&model.file).unwrap().is_none());
    assert!(SpeculatorFile::open_if_one("/nowhere").unwrap().is_none());
    refused(
        &model.file,
        "architecture \"llama\" is not supported; known: mlp-speculator",
    );
    let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
    write_speculator(&path, &CASE.info(), &CASE.gguf_tensors(), SpeculatorType::Q8_0).unwrap();
    let good = Gguf::open(&path).unwrap();
    assert!(SpeculatorFile::open_if_one(&path).unwrap().is_some());
    load(&path, &target()).expect("it is whole");
    let other = tempfile::NamedTempFile::new().unwrap().into_temp_path();
    let change = |key: &str, value: Option<Value>, why: &str| {
        let key = format!("mlp-speculator.{key}");
        let mut writer = Writer::new();
        for (known, old) in good.metadata() {
            match &value {
                Some(value) if *known == key => writer.metadata(known, value.clone()),
                None if *known == key => continue,
                _ => writer.metadata(known, old.clone()),
            };
        }
        if let Some(value) = &value {
            writer.metadata(&key, value.clone());
        }
        for tensor in good.tensors() {
            let bytes = good.map(tensor).unwrap().to_vec();
            writer
                .tensor(&tensor.name, &tensor.dims, tensor.ty, bytes)
                .unwrap();
        }
        writer.write(&other).unwrap();
        refused(&other, why);
    };
    let u32s = |values: &[u32]| Some(Value::Array(Array::U32(values.to_vec())));
    for (key, value, why) in [
        ("head_count", None, "head_count: is missing"),
        ("head_count", Some(Value::U32(0)), "head_count: it is 0"),
        (
            "head_count",
            Some(Value::U32(u32::MAX)),
            "head_count: it is 4294967295",
        ),
        ("head_count", Some(Value::I32(-3)), "is negative"),
        (
            "inner_length",
            Some(Value::U32(21)),
            "is [24, 20]; [24, 21] is needed",
        ),
        (
            "vocab_size",
            Some(Value::U64(1 << 40)),
            "vocab_size: it is 1099511627776",
        ),
        (
            "embedding_length",
            Some("24".into()),
            "embedding_length: is string",
        ),
        ("tied", Some(Value::U32(1)), "tied: is uint32, expected a bool"),
        ("tied", Some(true.into()), "is not part of such a speculator"),
        (
            "factored",
            Some(true.into()),
            "\"spec.emb_proj.0.weight\": is missing",
        ),
        ("top_k", u32s(&[1, 1]), "top_k: it has 2 numbers for 3 heads"),
        (
            "top_k",
            Some("1,1,1".into()),
            "top_k: is string, expected an array",
        ),
        ("candidates", Some(Value::U32(0)), "candidates: it is 0"),
        ("draft_vocabulary", u32s(&[]), "draft_vocabulary: is empty"),
        (
            "draft_vocabulary",
            u32s(&[4, 4]),
            "draft_vocabulary: has 4 after 4",
        ),
        (
            "draft_vocabulary",
            u32s(&[4, 271]),
            "draft_vocabulary: has 271; the vocabulary has 271 tokens",
        ),
        (
            "draft_vocabulary",
            u32s(&[4, 5]),
            "\"spec.head.0.weight\": is [20, 271]; [20, 2] is needed",
        ),
        (
            "target.tokenizer",
            Some("xyz".into()),
            "target.tokenizer: is not a number",
        ),
        (
            "acceptance",
            Some(Value::Array(Array::F32(vec![2.0]))),
            "acceptance: is not an array",
        ),
    ] {
        change(key, value, why);
    }

    // A scale that is no number.
    let mut writer = Writer::new();
    for (key, value) in good.metadata() {
        writer.metadata(key, value.clone());
    }
    for tensor in good.tensors() {
        let mut bytes = good.map(tensor).unwrap().to_vec();
        if tensor.name == "spec.head.2.weight" {
            assert_eq!(tensor.ty, TensorType::F16);
            bytes[40..42].copy_from_slice(&[0xff, 0x7f]);
        }
        writer
            .tensor(&tensor.name, &tensor.dims, tensor.ty, bytes)
            .unwrap();
    }
    writer.write(&other).unwrap();
    refused(
        &other,
        "tensor \"spec.head.2.weight\": holds weights that are not finite",
    );
}

#[test]
fn what_cannot_be_written_is_refused_and_leaves_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.gguf");
    let check = |info: &foretoken_model::SpeculatorInfo, tensors: &[SpeculatorTensor], why: &str| {
        let problem = write_speculator(&path, info, tensors, SpeculatorType::Q4_K)
            .expect_err(why)
            .to_string();
        assert!(problem.contains(why), "{problem:?} does not say {why:?}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "{why}");
    };
    let (info, all) = (CASE.info(), CASE.gguf_tensors());
    check(&info, &all[1..], "tensor \"spec.proj.0.weight\": is missing");
    check(&info, &[&all[..], &all[..1]].concat(), "is there twice");
    check(&info, &CASE.tensors(), "is missing");
    let mut changed = all.clone();
    changed[3].dims.swap(0, 1);
    check(
        &info,
        &changed,
        "\"spec.emb.0.weight\": is [20, 271] with 5420 values; [271, 20] is needed",
    );
    let mut changed = all.clone();
    changed[4].values[1000] = f32::NAN;
    check(&info, &changed, "\"spec.head.0.weight\": holds NaN");
    let mut wrong = info.clone();
    wrong.config.heads = 0;
    check(&wrong, &all, "heads is 0");
    wrong = info.clone();
    wrong.draft_vocabulary = Some(vec![5, 5]);
    check(&wrong, &all, "draft_vocabulary has 5 after 5");
    wrong = info.clone();
    wrong.acceptance = vec![f32::NAN];
    check(&wrong, &all, "acceptance holds");
}
