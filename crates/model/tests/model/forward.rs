//! The pass against an independent slow one.
//!
//! The two add in another order and so differ by parts in ten million, until an activation falls on the
//! other side of a rounding border: one code of eight bits then differs by one, and so does everything that
//! reads it, by up to what rounding to eight bits does at all. The deeper a model, the sooner; and where an
//! embedding of eight bits meets norm weights of few bits, many activations lie on a border exactly. In a
//! real model no row is free of it, and the slow pass differs from itself as much once it is perturbed by
//! parts in ten million. Hence three questions: do rows without such a flip agree (tiny models, and layers
//! of a real one), does a real model at full depth agree where nothing is rounded to eight bits, and is it
//! as it stands no further off than the slow pass is from its perturbed self?
use crate::support::slow::{Rounding, SlowModel};
use crate::support::*;
use foretoken_gguf::{Gguf, TensorType, Value};
use foretoken_model::testing::{self, Random, TinyModel, TinyTensor};
use foretoken_model::{CpuModel, LoadOptions};
use foretoken_spec::{Output, TargetModel, Token};
use half::f16;
use std::ops::Range;
use std::path::Path;

/// Differences of logits over positions, in units of the range of the logits at the position.
struct Difference {
    /// The greatest at each position, ascending.
    by_position: Vec<f64>,
    rms: f64,
}

impl Difference {
    fn between(left: &[Vec<f64>], right: &[Vec<f64>]) -> Self {
        let (mut by_position, mut squares, mut count) = (Vec::new(), 0.0, 0);
        for (left, right) in left.iter().zip(right) {
            assert_eq!(left.len(), right.len());
            let range = right.iter().copied().fold(f64::MIN, f64::max)
                - right.iter().copied().fold(f64::MAX, f64::min);
            let differences = left
                .iter()
                .zip(right)
                .map(|(left, right)| (left - right).abs() / range);
            let greatest = differences.fold(0.0, |max: f64, difference| {
                assert!(difference.is_finite());
                squares += difference * difference;
                count += 1;
                max.max(difference)
            });
            by_position.push(greatest);
        }
        by_position.sort_by(f64::total_cmp);
        Self {
            by_position,
            rms: (squares / f64::from(count)).sqrt(),
        }
    }

    fn within(&self, bound: f64) -> usize {
        self.by_position.partition_point(|&difference| difference < bound)
    }

    fn median(&self) -> f64 {
        self.by_position[self.by_position.len() / 2]
    }

    fn worst(&self) -> f64 {
        self.by_position[self.by_position.len() - 1]
    }
}

/// The engine against the slow pass, and the slow pass against itself where it rounds otherwise.
struct Comparison {
    engine: Difference,
    /// Perturbed by parts in ten million.
    perturbed: Difference,
    /// Without rounding of activations.
    exact: Difference,
}

fn compare(name: &str, path: &Path, mut model: CpuModel, texts: &[Vec<Token>]) -> Comparison {
    let [same, perturbed, exact] =
        [Rounding::AsTheEngine, Rounding::Perturbed, Rounding::CacheOnly].map(|rounding| {
            let slow = SlowModel::new(Gguf::open(path).unwrap(), rounding);
            texts
                .iter()
                .flat_map(|text| slow.logits(text))
                .collect::<Vec<_>>()
        });
    let mut engine = Vec::new();
    for text in texts {
        let sequence = model.open();
        let scores = feed(&mut model, sequence, text, Output::Logits);
        model.release(sequence);
        let rows = (0..text.len() as u32).map(|row| scores.logits(row).unwrap());
        engine.extend(rows.map(|logits| logits.iter().map(|&logit| f64::from(logit)).collect::<Vec<_>>()));
    }
    let comparison = Comparison {
        engine: Difference::between(&engine, &same),
        perturbed: Difference::between(&perturbed, &same),
        exact: Difference::between(&exact, &same),
    };
    let Comparison {
        engine,
        perturbed,
        exact,
    } = &comparison;
    println!(
        "{name}: {} of {} positions agree to 1e-3 of the logit range, median {:.0e}, worst {:.0e}; \
         the slow pass and its perturbed self: median {:.0e}, worst {:.0e}; \
         effect of activations of 8 bits: RMS {:.0e}, at most {:.0e}",
        engine.within(1e-3),
        engine.by_position.len(),
        engine.median(),
        engine.worst(),
        perturbed.median(),
        perturbed.worst(),
        exact.rms,
        exact.worst(),
    );
    comparison
}

fn texts(vocab_size: usize, count: usize, len: usize) -> Vec<Vec<Token>> {
    let mut random = Random(9);
    (0..count)
        .map(|_| (0..len).map(|_| random.below(vocab_size) as Token).collect())
        .collect()
}

#[test]
fn tiny_models_of_every_kind() {
    for (name, tiny) in TinyModel::variants() {
        let file = TinyFile::new(&tiny);
        let Comparison { engine, exact, .. } =
            compare(name, &file.file, file.load(2), &texts(tiny.vocab_size(), 12, 5));
        // Rows with a flipped code are few, and no further off than rounding.
        assert!(engine.within(1e-3) >= 48, "{name}: {} of 60", engine.within(1e-3));
        assert!(
            engine.worst() < 1e-3 + 1.5 * exact.worst(),
            "{name}: {:.1e}",
            engine.worst()
        );
    }
}

/// Positions beyond several pages, where nothing flips.
#[test]
fn tiny_model_of_floats_over_pages() {
    let tiny = TinyModel {
        types: vec![TensorType::F32, TensorType::F16],
        bias: true,
        ..TinyModel::llama()
    };
    let file = TinyFile::new(&tiny);
    let engine = compare(
        "floats",
        &file.file,
        file.load(2),
        &texts(tiny.vocab_size(), 1, 150),
    )
    .engine;
    assert!(engine.worst() < 1e-3, "{:.1e}", engine.worst());
}

/// Some layers of a real model; matrices for whose names `widen` holds become F16.
fn part_of(path: &Path, layers: Range<usize>, widen: impl Fn(&str) -> bool) -> tempfile::TempPath {
    let gguf = Gguf::open(path).unwrap();
    let mut metadata = gguf.metadata().to_vec();
    metadata.push(("llama.block_count".to_owned(), Value::U32(layers.len() as u32)));
    let mut tensors = Vec::new();
    for tensor in gguf.tensors() {
        let mut name = tensor.name.clone();
        if let Some((layer, part)) = tensor
            .name
            .strip_prefix("blk.")
            .and_then(|rest| rest.split_once('.'))
        {
            let layer: usize = layer.parse().unwrap();
            let Some(place) = layers.clone().position(|wanted| wanted == layer) else {
                continue;
            };
            name = format!("blk.{place}.{part}");
        }
        let bytes = gguf.map(tensor).unwrap();
        let (ty, data) = if tensor.dims.len() == 2 && widen(&name) {
            let weights = dequantize::row(tensor.ty, &bytes).into_iter();
            (
                TensorType::F16,
                weights
                    .flat_map(|weight| f16::from_f64(weight).to_le_bytes())
                    .collect(),
            )
        } else {
            (tensor.ty, bytes.to_vec())
        };
        tensors.push(TinyTensor {
            name,
            dims: tensor.dims.clone(),
            ty,
            data,
        });
    }
    let file = tempfile::NamedTempFile::new().unwrap().into_temp_path();
    testing::write(&file, metadata, tensors).unwrap();
    file
}

/// "<|im_start|>user\nHello, how are you<|im_end|>…", more or less.
const GREETING: [Token; 12] = [1, 4093, 198, 19556, 28, 638, 359, 346, 47, 2, 198, 1];

#[test]
fn smollm2_layers() {
    let Some(path) = real_model(SMOLLM2) else { return };
    for layer in [0, 13, 29] {
        let file = part_of(&path, layer..layer + 1, |name| name == "token_embd.weight");
        let model = load_file(&file, 2, &LoadOptions::default());
        let name = format!("layer {layer} of SmolLM2, embedding in F16");
        let engine = compare(&name, &file, model, &[GREETING[..6].to_vec()]).engine;
        assert!(engine.within(1e-3) >= 5, "{name}: {} of 6", engine.within(1e-3));
    }
}

#[test]
fn smollm2_without_8_bits() {
    let Some(path) = real_model(SMOLLM2) else { return };
    let file = part_of(&path, 0..30, |_| true);
    let model = load_file(&file, 2, &LoadOptions::default());
    let engine = compare("SmolLM2 in F16", &file, model, &[GREETING[..6].to_vec()]).engine;
    assert!(engine.worst() < 1e-3, "{:.1e}", engine.worst());
}

#[test]
fn smollm2_as_it_stands() {
    let Some(path) = real_model(SMOLLM2) else { return };
    let model = load_file(&path, 2, &LoadOptions::default());
    let Comparison {
        engine,
        perturbed,
        exact,
    } = compare("SmolLM2", &path, model, &[GREETING.to_vec()]);
    let chance = 2.0 * perturbed.median();
    assert!(
        engine.median() < chance,
        "{:.1e}, by chance {chance:.1e}",
        engine.median()
    );
    assert!(exact.rms < 0.02, "{:.1e}", exact.rms);
}
