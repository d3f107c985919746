//! A head of some tokens: their logits are those of the whole model, to the bit.

use crate::support::*;
use foretoken_gguf::{Array, Gguf, Value};
use foretoken_kernels::Compute;
use foretoken_model::testing::{self, TinyModel};
use foretoken_model::{CpuModel, LoadError, LoadOptions, Tokenizer};
use foretoken_spec::{Batch, Cancel, ModelError, Output, Scores, TargetModel, Token};
use std::path::Path;
use std::sync::Arc;

fn load(path: &Path, tokens: Option<Vec<Token>>) -> Result<CpuModel, LoadError> {
    let gguf = Gguf::open(path)?;
    let tokenizer = Tokenizer::from_gguf(&gguf)?;
    let options = LoadOptions {
        head_tokens: tokens,
        ..LoadOptions::default()
    };
    let compute = Arc::new(Compute::new(2));
    CpuModel::load(&gguf, &tokenizer, compute, &options, &mut |_, _| ())
}

/// The bits of the logits of three rows.
fn logits(model: &mut CpuModel) -> Vec<Vec<u32>> {
    let sequence = model.open();
    // The last is none of the tokens with logits below.
    let scores = feed(model, sequence, &[5, 260, 1], Output::Logits);
    let row = |row| scores.logits(row).unwrap().iter().map(|logit| logit.to_bits());
    (0..3).map(|at| row(at).collect()).collect()
}

fn picked(all: &[Vec<u32>], tokens: &[Token]) -> Vec<Vec<u32>> {
    let row = |row: &Vec<u32>| tokens.iter().map(|&token| row[token as usize]).collect();
    all.iter().map(row).collect()
}

#[test]
fn logits_are_those_of_the_whole_model() {
    for (name, tiny) in TinyModel::variants() {
        let file = TinyFile::new(&tiny);
        let mut whole = load(&file.file, None).unwrap();
        let all = logits(&mut whole);
        let size = tiny.vocab_size() as Token;
        let every_third: Vec<Token> = (0..size)
            .filter(|token| token % 3 == 0 || *token == size - 1)
            .collect();
        // Sixteen rows are packed together.
        let tiles = |rows: usize| rows.div_ceil(16) as u64;
        let one = load(&file.file, Some(vec![0])).unwrap();
        let tile = (whole.cost().weight_bytes - one.cost().weight_bytes) / (tiles(size as usize) - 1);
        assert!(tile > 0, "{name}");
        for tokens in [vec![0], vec![size - 1], every_third, (0..size).collect()] {
            let mut part = load(&file.file, Some(tokens.clone())).unwrap();
            let info = part.info();
            assert_eq!(info.vocab_size, tokens.len(), "{name}");
            assert_eq!(info.end_of_generation, whole.info().end_of_generation, "{name}");
            assert!(logits(&mut part) == picked(&all, &tokens), "{name}: {tokens:?}");

            let (part, whole) = (part.cost(), whole.cost());
            let multiply_adds = (tokens.len() * tiny.hidden_size) as u64;
            assert_eq!(part.head_multiply_adds, multiply_adds, "{name}");
            assert_eq!(part.row_multiply_adds, whole.row_multiply_adds, "{name}");
            let fewer = tiles(size as usize) - tiles(tokens.len());
            assert_eq!(whole.weight_bytes - part.weight_bytes, fewer * tile, "{name}");
        }
    }
}

#[test]
fn every_token_of_the_vocabulary_can_be_read_and_no_other() {
    let tiny = TinyModel::llama();
    let file = TinyFile::new(&tiny);
    let mut model = load(&file.file, Some(vec![3, 4])).unwrap();
    let sequence = model.open();
    let size = tiny.vocab_size();
    feed(&mut model, sequence, &[size as Token - 1], Output::Logits);
    let mut batch = Batch::default();
    chain(&mut batch, sequence, &[size as Token], Output::Logits);
    let refused = model.forward(&batch, &mut Scores::default(), &Cancel::default());
    let expected = ModelError::TokenOutOfRange {
        token: size as Token,
        vocab_size: size,
    };
    assert_eq!(refused, Err(expected));
}

#[test]
fn lists_that_no_head_can_have() {
    let tiny = TinyModel::llama();
    let file = TinyFile::new(&tiny);
    let size = tiny.vocab_size() as Token;
    for (tokens, problem) in [
        (vec![], "there are none".to_owned()),
        (vec![1, 1], "1 follows 1".to_owned()),
        (vec![1, 7, 5], "5 follows 7".to_owned()),
        (
            vec![1, size],
            format!("{size} is out of range: the vocabulary has {size} tokens"),
        ),
    ] {
        let error = load(&file.file, Some(tokens))
            .map(drop)
            .expect_err("a refusal")
            .to_string();
        assert!(error.contains(&problem), "{error}");
    }
}

#[test]
fn padding_is_never_said() {
    let tiny = TinyModel::llama();
    let mut metadata = tiny.metadata();
    let kinds = metadata
        .iter_mut()
        .find(|(key, _)| key == "tokenizer.ggml.token_type");
    let Some((_, Value::Array(Array::I32(kinds)))) = kinds else {
        panic!("a tiny model has kinds of tokens")
    };
    kinds[100] = 5;
    let file = tempfile::NamedTempFile::new().unwrap().into_temp_path();
    testing::write(&file, metadata, tiny.tensors()).unwrap();
    let all = logits(&mut load(&file, None).unwrap());
    assert_eq!(all[0][100], f32::NEG_INFINITY.to_bits());
    for tokens in [vec![7, 100, 120], vec![7, 120]] {
        let part = logits(&mut load(&file, Some(tokens.clone())).unwrap());
        assert!(part == picked(&all, &tokens), "{tokens:?}");
    }
}
