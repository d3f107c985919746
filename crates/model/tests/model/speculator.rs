//! MLP speculators: their network against one that was written down apart from it.
use crate::support::speculators::*;
use crate::support::*;
use foretoken_gguf::Gguf;
use foretoken_kernels::Compute;
use foretoken_model::testing::TinyModel;
use foretoken_model::{
    CpuModel, LoadError, LoadOptions, Speculator, SpeculatorFile, SpeculatorTensor, SpeculatorType,
    Tokenizer, write_speculator,
};
use foretoken_spec::drafters::Network;
use foretoken_spec::{ModelError, Token};
use safetensors::Dtype;
use serde::Deserialize;
use std::path::Path;
use std::sync::Arc;

/// What `golden/speculator.py` computed.
#[derive(Deserialize)]
struct Golden {
    heads: usize,
    inner: usize,
    tied: bool,
    scaled: bool,
    alpha: f32,
    steps: Vec<GoldenStep>,
}

#[derive(Deserialize)]
struct GoldenStep {
    token: Token,
    /// Every 17th.
    logits: Vec<f32>,
}

fn golden() -> Vec<(Case, Golden)> {
    let text = include_str!("../golden/speculator.json");
    let all: Vec<Golden> = serde_json::from_str(text).unwrap();
    let case = |(number, golden): (usize, &Golden)| Case {
        number: number as u64,
        heads: golden.heads,
        inner: golden.inner,
        tied: golden.tied,
        scaled: golden.scaled,
    };
    let cases: Vec<Case> = all.iter().enumerate().map(case).collect();
    cases.into_iter().zip(all).collect()
}

pub const TIED: Case = Case {
    number: 20,
    heads: 4,
    inner: 20,
    tied: true,
    scaled: true,
};
pub const APART: Case = Case {
    number: 21,
    heads: 3,
    inner: 20,
    tied: false,
    scaled: false,
};

/// A target and its file.
pub struct Loaded {
    pub gguf: Gguf,
    pub model: CpuModel,
    _file: TinyFile,
}

pub fn loaded(file: TinyFile) -> Loaded {
    let gguf = Gguf::open(&file.file).unwrap();
    let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
    let compute = Arc::new(Compute::new(1));
    let options = LoadOptions::default();
    let model = CpuModel::load(&gguf, &tokenizer, compute, &options, &mut |_, _| ()).unwrap();
    Loaded {
        gguf,
        model,
        _file: file,
    }
}

pub fn a_target(tiny: &TinyModel) -> Loaded {
    loaded(TinyFile::new(tiny))
}

pub fn load(
    path: &Path,
    target: &Loaded,
    draft_vocabulary: Option<&[Token]>,
) -> Result<Speculator, LoadError> {
    let file = SpeculatorFile::open(path)?;
    let compute = Arc::new(Compute::new(2));
    Speculator::load(file, &target.gguf, &target.model, compute, draft_vocabulary)
}

/// Logits of each head, and the tokens chosen.
pub fn chain(
    network: &mut Speculator,
    heads: usize,
    start: &(Vec<f32>, Token),
) -> (Vec<Token>, Vec<Vec<f32>>) {
    let (mut state, mut token) = start.clone();
    let (mut next, mut logits) = (Vec::new(), Vec::new());
    let (mut tokens, mut all) = (Vec::new(), Vec::new());
    for head in 0..heads {
        network
            .step(head, &[token], &state, &mut next, &mut logits)
            .unwrap();
        let best = (0..logits.len())
            .max_by(|&a, &b| logits[a].total_cmp(&logits[b]))
            .unwrap();
        token = network
            .draft_vocabulary()
            .map_or(best as Token, |tokens| tokens[best]);
        tokens.push(token);
        all.push(logits.clone());
        std::mem::swap(&mut state, &mut next);
    }
    (tokens, all)
}

pub fn assert_close(got: &[f32], wanted: &[f32], tolerance: f32, of: &str) {
    assert_eq!(got.len(), wanted.len(), "{of}");
    let largest = wanted
        .iter()
        .fold(0.0f32, |largest, value| largest.max(value.abs()));
    for (at, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        assert!(
            (got - wanted).abs() <= tolerance * largest,
            "{of}, {at}: {got} for {wanted}"
        );
    }
}

#[test]
fn logits_are_those_of_the_formulas() {
    let target = a_target(&target());
    for (case, golden) in golden() {
        assert!(
            (case.info().config.embedding_weight() - golden.alpha).abs() < 1e-5,
            "{case:?}"
        );
        // Rows of 20 and 24 weights are whole blocks of no quantised type, and f16 has these weights exactly.
        for dtype in [Dtype::F16, Dtype::F32] {
            let mut network = load(case.published(dtype).path(), &target, None).unwrap();
            assert_eq!((network.heads(), network.vocab_size()), (case.heads, VOCAB));
            assert_eq!(
                (network.hidden_size(), network.inner_size()),
                (HIDDEN, case.inner_size())
            );
            let (tokens, logits) = chain(&mut network, case.heads, &case.start());
            let wanted: Vec<Token> = golden.steps.iter().map(|step| step.token).collect();
            assert_eq!(tokens, wanted, "{case:?}");
            for (head, (logits, step)) in logits.iter().zip(&golden.steps).enumerate() {
                let some: Vec<f32> = logits.iter().step_by(17).copied().collect();
                assert_close(&some, &step.logits, 1e-5, &format!("{case:?}, head {head}"));
            }
        }
    }
}

#[test]
fn constants_are_those_of_the_paper() {
    for (heads, inner_size, wanted) in [
        (3, 4096, 23.07202),
        (3, 1024, 11.53601),
        (4, 3072, 17.04764),
        (5, 4096, 17.45091),
        (4, 8192, 27.83868),
        (5, 8192, 24.67931),
        (5, 6144, 21.37291),
        (3, 4, 0.721),
    ] {
        let mut config = APART.info().config;
        (config.heads, config.inner_size) = (heads, inner_size);
        let alpha = config.embedding_weight();
        assert!(
            (alpha - wanted).abs() < 1e-5 * wanted.max(10.0),
            "{heads} {inner_size}: {alpha}"
        );
    }
}

#[test]
fn rows_are_the_same_bits_together_and_alone() {
    let target = a_target(&target());
    for case in [TIED, APART] {
        let mut network = load(case.published(Dtype::F16).path(), &target, None).unwrap();
        for head in 0..case.heads {
            let width = if head == 0 { HIDDEN } else { case.inner_size() };
            for rows in [5, 1, 3, 9] {
                let states: Vec<f32> = weights(head as u64).take(rows * width).collect();
                // Tokens that the network does not know are token 0.
                let tokens: Vec<Token> = (0..rows as Token)
                    .map(|row| [0, 70, 270, 271, 1 << 30][row as usize % 5])
                    .collect();
                let (mut next, mut logits) = (vec![7.0; 3], vec![7.0; 10_000]);
                network
                    .step(head, &tokens, &states, &mut next, &mut logits)
                    .unwrap();
                assert_eq!(logits.len(), rows * VOCAB);
                for row in 0..rows {
                    let token = if tokens[row] < VOCAB as Token {
                        tokens[row]
                    } else {
                        0
                    };
                    let state = &states[row * width..][..width];
                    let (mut one_next, mut one) = (Vec::new(), Vec::new());
                    network
                        .step(head, &[token], state, &mut one_next, &mut one)
                        .unwrap();
                    let inner = case.inner_size();
                    assert_eq!(
                        hash(&one_next),
                        hash(&next[row * inner..][..inner]),
                        "{case:?} {head} {row}"
                    );
                    assert_eq!(
                        hash(&one),
                        hash(&logits[row * VOCAB..][..VOCAB]),
                        "{case:?} {head} {row}"
                    );
                }
            }
        }
    }
}

#[test]
fn fewer_heads_draft_the_same_tokens_first() {
    let target = a_target(&target());
    for case in [TIED, APART] {
        let mut network = load(case.published(Dtype::F16).path(), &target, None).unwrap();
        let (all, _) = chain(&mut network, case.heads, &case.start());
        for heads in (1..case.heads).rev() {
            assert_eq!(chain(&mut network, heads, &case.start()).0, all[..heads]);
        }
    }
}

#[test]
fn states_that_cannot_be_are_refused() {
    let target = a_target(&target());
    let mut network = load(TIED.published(Dtype::F16).path(), &target, None).unwrap();
    let mut step = |head, tokens: &[Token], states: &[f32]| match network.step(
        head,
        tokens,
        states,
        &mut Vec::new(),
        &mut Vec::new(),
    ) {
        Err(ModelError::Backend(problem)) => problem,
        other => panic!("{other:?}"),
    };
    assert_eq!(step(4, &[1], &[0.0; 20]), "head 4 of a speculator with 4");
    assert_eq!(
        step(0, &[1, 2], &[0.0; 24]),
        "24 values of states for 2 rows of head 0, each of 24"
    );
    assert_eq!(
        step(1, &[1], &[0.0; 24]),
        "24 values of states for 1 rows of head 1, each of 20"
    );
    let mut state = [0.5; 24];
    for value in [f32::NAN, f32::INFINITY] {
        state[23] = value;
        assert_eq!(
            step(0, &[1], &state),
            "a state before head 0 holds a value that is not finite"
        );
    }
}

/// The bits of the chain's logits.
pub fn bits(path: &Path, target: &Loaded, case: &Case) -> Vec<u64> {
    let mut network = load(path, target, None).unwrap();
    chain(&mut network, case.heads, &case.start())
        .1
        .iter()
        .map(|logits| hash(logits))
        .collect()
}

#[test]
fn published_layouts_are_all_read() {
    let target = a_target(&target());
    for case in [TIED, APART] {
        let wanted = bits(case.published(Dtype::F16).path(), &target, &case);
        let check = |layout: &str, write: &dyn Fn(&Path)| {
            let directory = directory(&case.config());
            write(directory.path());
            assert_eq!(
                bits(directory.path(), &target, &case),
                wanted,
                "{case:?}, {layout}"
            );
        };
        let tensors = case.tensors();
        let whole = |path: &Path| path.join("model.safetensors");
        check("no prefix", &|path| {
            write_tensors(&whole(path), "", Dtype::F32, &tensors)
        });
        check("two shards", &|path| {
            let (first, second) = tensors.split_at(3);
            let mut map = serde_json::Map::new();
            for (name, part) in [
                ("model-00001-of-00002.safetensors", first),
                ("model-00002-of-00002.safetensors", second),
            ] {
                write_tensors(&path.join(name), "speculator.", Dtype::F16, part);
                map.extend(
                    part.iter()
                        .map(|tensor| (format!("speculator.{}", tensor.name), name.into())),
                );
            }
            let index = serde_json::json!({"metadata": {"total_size": 1}, "weight_map": map});
            std::fs::write(path.join("model.safetensors.index.json"), index.to_string()).unwrap();
        });
    }

    // Tied: with all duplicates, which may hold anything then, and with the last of them alone.
    let wanted = bits(TIED.published(Dtype::F16).path(), &target, &TIED);
    let again = |tensor: &SpeculatorTensor, head: usize, factor: f32| {
        let (part, rest) = tensor.name.split_once('.').unwrap();
        let (_, kind) = rest.split_once('.').unwrap();
        SpeculatorTensor {
            name: format!("{part}.{head}.{kind}"),
            values: tensor.values.iter().map(|value| value * factor).collect(),
            ..tensor.clone()
        }
    };
    let mut tensors = TIED.tensors();
    let shared: Vec<SpeculatorTensor> = (tensors.iter())
        .filter(|tensor| tensor.name != "proj.0.weight")
        .cloned()
        .collect();
    let mut last = vec![tensors[0].clone()];
    last.extend(shared.iter().map(|tensor| again(tensor, 3, 1.0)));
    tensors.extend(
        shared
            .iter()
            .flat_map(|tensor| (2..4).map(|head| again(tensor, head, 2.0))),
    );
    for tensors in [tensors, last] {
        let directory = directory(&TIED.config());
        write_tensors(
            &directory.path().join("model.safetensors"),
            "speculator.",
            Dtype::F16,
            &tensors,
        );
        assert_eq!(bits(directory.path(), &target, &TIED), wanted);
    }
}

#[test]
fn bfloat16_is_read() {
    let target = a_target(&target());
    let mut tensors = APART.tensors();
    // Eight bits hold these, and the others' weights anyway.
    for tensor in tensors.iter_mut().filter(|tensor| tensor.name.starts_with("ln")) {
        tensor
            .values
            .iter_mut()
            .for_each(|value| *value = (*value * 8.0).round() / 8.0);
    }
    let of = |dtype| {
        let directory = directory(&APART.config());
        write_tensors(&directory.path().join("model.safetensors"), "", dtype, &tensors);
        bits(directory.path(), &target, &APART)
    };
    assert_eq!(of(Dtype::BF16), of(Dtype::F32));
}

#[test]
fn a_draft_vocabulary_limits_the_logits_to_its_tokens() {
    let tiny = TinyModel {
        padding: 5,
        ..target()
    };
    let target = a_target(&tiny);
    let mut case = APART;
    let mut tensors = case.gguf_tensors();
    for tensor in tensors.iter_mut().filter(|tensor| tensor.dims[0] == VOCAB) {
        tensor.dims[0] += 5;
        tensor.values.extend([100.0; 5 * 20]);
    }
    let mut info = case.info();
    info.config.vocab_size += 5;
    let file = tempfile::NamedTempFile::new().unwrap();
    write_speculator(file.path(), &info, &tensors, SpeculatorType::F16).unwrap();
    // Padding has the largest logits and is not among them.
    case.heads = 1;
    let mut whole = load(file.path(), &target, None).unwrap();
    assert_eq!(whole.vocab_size(), VOCAB);
    let all = chain(&mut whole, 1, &case.start()).1.remove(0);
    assert!(all.iter().all(|logit| logit.abs() < 50.0));

    let picked: Vec<Token> = vec![0, 3, 16, 17, 200, 270];
    let wanted: Vec<f32> = picked.iter().map(|&token| all[token as usize]).collect();
    let check = |mut network: Speculator| {
        assert_eq!(network.draft_vocabulary(), Some(&picked[..]));
        assert_eq!(network.vocab_size(), picked.len());
        assert_eq!(chain(&mut network, 1, &case.start()).1[0], wanted);
    };
    check(load(file.path(), &target, Some(&picked)).unwrap());

    // The file's own has precedence.
    info.draft_vocabulary = Some(picked.clone());
    for tensor in tensors
        .iter_mut()
        .filter(|tensor| tensor.name.starts_with("spec.head"))
    {
        let rows = tensor.values.chunks_exact(20);
        let kept = rows
            .enumerate()
            .filter(|(row, _)| picked.contains(&(*row as Token)));
        tensor.values = kept.flat_map(|(_, row)| row.to_vec()).collect();
        tensor.dims[0] = picked.len();
    }
    write_speculator(file.path(), &info, &tensors, SpeculatorType::F16).unwrap();
    check(load(file.path(), &target, None).unwrap());
    check(load(file.path(), &target, Some(&[1, 2])).unwrap());

    // A padding token is none that can be drafted.
    info.draft_vocabulary = Some(vec![0, 3, 16, 17, 200, 271]);
    write_speculator(file.path(), &info, &tensors, SpeculatorType::F16).unwrap();
    let refused = load(file.path(), &target, None).unwrap_err().to_string();
    assert!(refused.contains("271 is out of range"), "{refused}");
}
