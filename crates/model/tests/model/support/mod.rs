//! What the model's tests share: finding and loading models, feeding tokens, comparing bits.

pub mod dequantize;
pub mod slow;
pub mod speculators;

use foretoken_gguf::Gguf;
pub use foretoken_gguf::testing::real_model;
use foretoken_kernels::Compute;
use foretoken_model::testing::TinyModel;
use foretoken_model::{CpuModel, LoadOptions, Tokenizer};
use foretoken_spec::{Batch, Cancel, Output, Row, RowId, Scores, SequenceId, TargetModel, Token};
use std::sync::Arc;

pub const SMOLLM2: &str = "smollm2-135m-instruct-q4_1.gguf";

pub fn load_file(path: impl AsRef<std::path::Path>, threads: usize, options: &LoadOptions) -> CpuModel {
    let gguf = Gguf::open(path).expect("a well-formed file");
    let tokenizer = Tokenizer::from_gguf(&gguf).expect("a tokenizer");
    CpuModel::load(
        &gguf,
        &tokenizer,
        Arc::new(Compute::new(threads)),
        options,
        &mut |_, _| (),
    )
    .expect("a supported model")
}

/// A tiny model's file, deleted when dropped.
pub struct TinyFile {
    pub file: tempfile::TempPath,
}

impl TinyFile {
    pub fn new(model: &TinyModel) -> Self {
        let file = tempfile::Builder::new()
            .suffix(".gguf")
            .tempfile()
            .expect("a temporary file")
            .into_temp_path();
        model.write(&file).expect("a valid model");
        Self { file }
    }

    pub fn load(&self, threads: usize) -> CpuModel {
        load_file(
            &self.file,
            threads,
            &LoadOptions {
                context: Some(4096),
                kv_positions: Some(3 * 4096),
                ..LoadOptions::default()
            },
        )
    }
}

/// Rows that continue the sequence's committed tokens, one after the other.
pub fn chain(batch: &mut Batch, sequence: SequenceId, tokens: &[Token], output: Output) -> Vec<RowId> {
    let mut rows: Vec<RowId> = Vec::new();
    for &token in tokens {
        rows.push(batch.push(Row {
            sequence,
            token,
            parent: rows.last().copied(),
            output,
        }));
    }
    rows
}

/// Scores tokens in one pass and commits them.
pub fn feed(model: &mut CpuModel, sequence: SequenceId, tokens: &[Token], output: Output) -> Scores {
    let (mut batch, mut scores) = (Batch::default(), Scores::default());
    let rows = chain(&mut batch, sequence, tokens, output);
    model
        .forward(&batch, &mut scores, &Cancel::default())
        .expect("room for the rows");
    model.commit(sequence, &rows);
    scores
}

/// The bits of a row's logits and hidden state, digested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest {
    pub logits: u64,
    pub hidden: u64,
}

pub fn digest(scores: &Scores, row: RowId) -> Digest {
    let bits = |values: Option<&[f32]>| hash(values.expect("an output that was asked for"));
    Digest {
        logits: bits(scores.logits(row)),
        hidden: bits(scores.hidden(row)),
    }
}

/// FNV-1a over words.
pub fn hash(values: &[f32]) -> u64 {
    assert!(values.iter().all(|value| value.is_finite()), "scores are finite");
    values.iter().fold(0xcbf2_9ce4_8422_2325, |hash, value| {
        (hash ^ u64::from(value.to_bits())).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The digests of every position, by decoding one row after the other on a fresh sequence.
pub fn decode(model: &mut CpuModel, tokens: &[Token]) -> Vec<Digest> {
    let sequence = model.open();
    let digests = tokens
        .iter()
        .map(|&token| digest(&feed(model, sequence, &[token], Output::Both), 0))
        .collect();
    model.release(sequence);
    digests
}
