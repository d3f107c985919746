//! MLP speculators: what is converted, written, factored and exported is the same network.
use crate::speculator::{APART, Loaded, TIED, a_target, assert_close, bits, chain, load, loaded};
use crate::support::speculators::*;
use crate::support::*;
use foretoken_gguf::TensorType;
use foretoken_kernels::Compute;
use foretoken_model::testing::{self, TinyModel};
use foretoken_model::{
    CpuModel, SpeculatorFile, SpeculatorInfo, SpeculatorTensor, SpeculatorType, export_speculator,
    write_speculator,
};
use foretoken_spec::Token;
use safetensors::Dtype;
use std::path::Path;

/// A speculator whose rows are whole blocks: of 32, and of 256 beside.
fn wide(inner: usize) -> Case {
    Case {
        number: 30,
        heads: 3,
        inner,
        tied: false,
        scaled: true,
    }
}

#[test]
fn what_is_converted_is_what_is_loaded() {
    let target = a_target(&target());
    let file = tempfile::NamedTempFile::new().unwrap();
    for case in [TIED, APART, wide(64)] {
        let directory = case.published(Dtype::F16);
        let source = SpeculatorFile::open(directory.path()).unwrap();
        let mut seen = Vec::new();
        let written = source
            .convert(
                file.path(),
                SpeculatorType::Q8_0,
                &Compute::new(2),
                &mut |done, total| seen.push((done, total)),
            )
            .unwrap();
        assert_eq!(written.bytes, file.path().metadata().unwrap().len());
        let total: usize = case.tensors().iter().map(|tensor| tensor.values.len()).sum();
        assert_eq!(seen.last(), Some(&(total as u64, total as u64)));
        assert_eq!(
            bits(file.path(), &target, &case),
            bits(directory.path(), &target, &case),
            "{case:?}"
        );
        let back = SpeculatorFile::open(file.path()).unwrap();
        assert_eq!(back.info(), source.info());
        let again = back.convert(file.path(), SpeculatorType::F16, &Compute::new(1), &mut |_, _| ());
        assert!(again.unwrap_err().to_string().ends_with("is a GGUF file already"));
    }
}

#[test]
fn every_type_is_written_and_read() {
    let target = a_target(&target());
    let file = tempfile::NamedTempFile::new().unwrap();
    let case = wide(256);
    let written = |ty| write_speculator(file.path(), &case.info(), &case.gguf_tensors(), ty).unwrap();
    written(SpeculatorType::F16);
    let logits = || {
        let mut network = load(file.path(), &target, None).unwrap();
        // The first head alone: further ones have tokens that an error of a weight may have changed.
        chain(&mut network, 1, &case.start()).1.remove(0)
    };
    let exact = logits();
    // Relative to the largest logit.
    for (ty, tensor_type, tolerance) in [
        (SpeculatorType::Q8_0, TensorType::Q8_0, 0.03),
        (SpeculatorType::Q4_K, TensorType::Q4_K, 0.25),
    ] {
        let written = written(ty);
        let types: Vec<TensorType> = written.tensors.iter().map(|(_, ty)| *ty).collect();
        // The first projection has rows of 24 weights, norms are never quantised.
        assert_eq!(
            types[..5],
            [
                TensorType::F16,
                TensorType::F32,
                TensorType::F32,
                tensor_type,
                tensor_type
            ]
        );
        let fallbacks: Vec<&str> = written.fallbacks(ty).map(|(name, _)| name.as_str()).collect();
        assert_eq!(fallbacks, ["spec.proj.0.weight"]);
        let got = logits();
        assert_close(&got, &exact, tolerance, tensor_type.name());
        assert_ne!(got, exact);
    }
}

#[test]
fn everything_that_a_file_says_is_read_again() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut case = TIED;
    for scaled in [false, true] {
        case.scaled = scaled;
        let mut info = case.info();
        let plain = info.clone();
        info.config.top_k = vec![4, 3, 2, 2];
        info.draft_vocabulary = Some(vec![0, 5, 270]);
        info.target_name = Some("a model".to_owned());
        info.tokenizer_fingerprint = Some(0x00ab_cdef_0123_4567);
        info.acceptance = vec![0.75, 0.5, 0.25, 0.0];
        info.recipe = Some("steps 100".to_owned());
        let mut cut = case.gguf_tensors();
        for tensor in cut
            .iter_mut()
            .filter(|tensor| tensor.name == "spec.head.0.weight")
        {
            tensor.dims[0] = 3;
            tensor.values.truncate(3 * case.inner);
        }
        for (info, tensors) in [(plain, case.gguf_tensors()), (info, cut)] {
            write_speculator(file.path(), &info, &tensors, SpeculatorType::Q8_0).unwrap();
            assert!(SpeculatorFile::is_one(file.path()));
            assert_eq!(SpeculatorFile::open(file.path()).unwrap().info(), &info);
        }
    }
}

/// `a · b`, of `[rows, inner]` and `[inner, cols]`; sums of few small numbers, so exact.
fn times(a: &[f32], b: &[f32], inner: usize) -> Vec<f32> {
    let cols = b.len() / inner;
    let row = |a: &[f32]| {
        let column = |col| (0..inner).map(|k| a[k] * b[k * cols + col]).sum::<f32>();
        (0..cols).map(column).collect::<Vec<f32>>()
    };
    a.chunks_exact(inner).flat_map(row).collect()
}

/// A target whose tables are of whole numbers: with halves in the factors, f16 has all sums of products.
fn of_whole_numbers(tied: bool) -> Loaded {
    let tiny = TinyModel { tied, ..target() };
    let mut tensors = tiny.tensors();
    for (seed, tensor) in tensors.iter_mut().enumerate() {
        if tensor.name == "token_embd.weight" || tensor.name == "output.weight" {
            let values = weights(seed as u64).map(|weight| (4.0 * weight).round());
            tensor.data = values
                .take(tensor.data.len() / 4)
                .flat_map(f32::to_le_bytes)
                .collect();
        }
    }
    let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
    testing::write(&path, tiny.metadata(), tensors).unwrap();
    loaded(TinyFile { file: path })
}

#[test]
fn a_factored_speculator_equals_its_products() {
    for tied in [false, true] {
        let target = of_whole_numbers(tied);
        let table = |row: fn(&CpuModel, Token, &mut [f32])| {
            let mut all = vec![0.0; VOCAB * HIDDEN];
            for (token, out) in all.chunks_exact_mut(HIDDEN).enumerate() {
                row(&target.model, token as Token, out);
            }
            all
        };
        let (embedding, head) = (table(CpuModel::embedding_row), table(CpuModel::head_row));
        assert_eq!(embedding == head, tied);

        for case in [TIED, APART] {
            let m = case.inner;
            let mut factored = case.gguf_tensors();
            let mut multiplied = case.gguf_tensors();
            for (seed, (factor, product)) in factored.iter_mut().zip(&mut multiplied).enumerate() {
                let halves = |len| {
                    weights(seed as u64)
                        .map(|weight| (2.0 * weight).round() / 2.0)
                        .take(len)
                        .collect::<Vec<_>>()
                };
                if factor.name.starts_with("spec.emb") {
                    factor.name = factor.name.replace("emb", "emb_proj");
                    factor.dims = vec![m, HIDDEN];
                    factor.values = halves(m * HIDDEN);
                    let transposed: Vec<f32> = (0..HIDDEN * m)
                        .map(|at| factor.values[at % m * HIDDEN + at / m])
                        .collect();
                    product.values = times(&embedding, &transposed, HIDDEN);
                } else if factor.name.starts_with("spec.head") {
                    factor.name = factor.name.replace("head", "head_proj");
                    factor.dims = vec![HIDDEN, m];
                    factor.values = halves(m * HIDDEN);
                    product.values = times(&head, &factor.values, HIDDEN);
                }
            }
            let file = tempfile::NamedTempFile::new().unwrap();
            let info = SpeculatorInfo {
                factored: true,
                ..case.info()
            };
            write_speculator(file.path(), &info, &factored, SpeculatorType::F16).unwrap();
            let of = |draft_vocabulary| {
                chain(
                    &mut load(file.path(), &target, draft_vocabulary).unwrap(),
                    case.heads,
                    &case.start(),
                )
            };
            let (tokens, logits) = of(None);
            let picked: Vec<Token> = (0..VOCAB as Token).step_by(3).collect();
            let (_, fewer) = of(Some(&picked));
            let some: Vec<f32> = logits[0].iter().step_by(3).copied().collect();
            assert_eq!(fewer[0], some);

            write_speculator(file.path(), &case.info(), &multiplied, SpeculatorType::F16).unwrap();
            let (wanted_tokens, wanted) = of(None);
            // As other engines would read it.
            let directory = tempfile::tempdir().unwrap();
            let compute = Compute::new(2);
            export_speculator(
                directory.path(),
                &info,
                &factored,
                &target.model,
                &compute,
                &mut |_, _| (),
            )
            .unwrap();
            let mut exported = load(directory.path(), &target, None).unwrap();
            let exported = chain(&mut exported, case.heads, &case.start());
            for (tokens, logits) in [(tokens, logits), exported] {
                assert_eq!(tokens, wanted_tokens);
                for (got, wanted) in logits.iter().zip(&wanted) {
                    assert_close(got, wanted, 1e-5, "factored");
                }
            }
        }
    }
}

/// The case as a factored speculator, all weights of whose factors are one value.
fn factored(case: &Case, value: f32) -> (SpeculatorInfo, Vec<SpeculatorTensor>) {
    let mut tensors = case.gguf_tensors();
    for tensor in &mut tensors {
        let (part, dims) = match &tensor.name {
            name if name.starts_with("spec.emb") => ("emb", [case.inner, HIDDEN]),
            name if name.starts_with("spec.head") => ("head", [HIDDEN, case.inner]),
            _ => continue,
        };
        tensor.name = tensor.name.replace(part, &format!("{part}_proj"));
        tensor.dims = dims.to_vec();
        tensor.values = vec![value; case.inner * HIDDEN];
    }
    let info = SpeculatorInfo {
        factored: true,
        ..case.info()
    };
    (info, tensors)
}

#[test]
fn a_product_that_f16_cannot_hold_is_no_export() {
    let target = of_whole_numbers(false);
    let export = |directory: &Path, value| {
        let (info, tensors) = factored(&APART, value);
        export_speculator(
            directory,
            &info,
            &tensors,
            &target.model,
            &Compute::new(1),
            &mut |_, _| (),
        )
    };
    let directory = tempfile::tempdir().unwrap();
    // Each factor is within the range, their products are not.
    let refused = export(directory.path(), 60_000.0).unwrap_err().to_string();
    assert!(
        refused.contains("speculator.emb.0.weight") && refused.contains("which is no weight"),
        "{refused}"
    );
    // Nothing is left that could be taken for a speculator.
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    export(directory.path(), 0.5).unwrap();
    assert!(SpeculatorFile::is_one(directory.path()));
}
