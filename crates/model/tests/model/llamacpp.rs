//! Real models against llama.cpp: greedy text and perplexity. `golden/generate.py` says how its side was made.

use crate::support::*;
use foretoken_gguf::Gguf;
use foretoken_kernels::Compute;
use foretoken_model::{CpuModel, LoadOptions, Special, Tokenizer};
use foretoken_spec::{Output, TargetModel, Token};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Deserialize)]
struct Golden {
    greedy: BTreeMap<String, Greedy>,
    text: Text,
}

#[derive(Deserialize)]
struct Greedy {
    prompt: Vec<Token>,
    tokens: Vec<Token>,
    /// Per token the ten likeliest and their log-probabilities.
    top: Vec<Vec<(Token, f64)>>,
}

#[derive(Deserialize)]
struct Text {
    tokens: Vec<Token>,
    /// Of each token but the first.
    logprobs: Vec<f64>,
}

/// log Σ exp(logit), to be subtracted from logits.
fn normaliser(logits: &[f32]) -> f64 {
    let max = f64::from(logits.iter().copied().fold(f32::MIN, f32::max));
    max + logits
        .iter()
        .map(|&logit| (f64::from(logit) - max).exp())
        .sum::<f64>()
        .ln()
}

/// The likeliest token and the next.
fn top_two(logits: &[f32]) -> [Token; 2] {
    let mut order: Vec<Token> = (0..logits.len() as Token).collect();
    order.select_nth_unstable_by(1, |&a, &b| {
        logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b))
    });
    [order[0], order[1]]
}

/// The differences of log-probabilities seen so far.
#[derive(Default)]
struct Differences {
    squares: f64,
    count: f64,
}

impl Differences {
    fn add(&mut self, difference: f64) {
        self.squares += difference * difference;
        self.count += 1.0;
    }

    fn rms(&self) -> f64 {
        (self.squares / self.count).sqrt()
    }
}

/// Our greedy tokens are llama.cpp's, or first differ where the choice was a near tie for both.
fn greedy(name: &str, model: &mut CpuModel, golden: &Greedy) {
    let sequence = model.open();
    let mut differences = Differences::default();
    let mut next = golden.prompt.clone();
    let mut same = 0;
    for (right, top) in golden.tokens.iter().zip(&golden.top) {
        // Only the last row's scores are needed.
        let (last, before) = next.split_last().expect("a prompt");
        before
            .chunks(256)
            .for_each(|part| _ = feed(model, sequence, part, Output::None));
        let scores = feed(model, sequence, &[*last], Output::Logits);
        let logits = scores.logits(0).unwrap();
        let normaliser = normaliser(logits);
        let logprob = |token: Token| f64::from(logits[token as usize]) - normaliser;
        top.iter()
            .for_each(|&(token, right)| differences.add(logprob(token) - right));

        let ours = top_two(logits);
        if ours[0] != *right {
            let theirs = [top[0], top[1]];
            let both = theirs.map(|(token, _)| token);
            let gap = (logprob(ours[0]) - logprob(*right)).max(theirs[0].1 - theirs[1].1);
            println!(
                "{name}: first differs at token {same}: {} for {right}; gap {gap:.4}, RMS difference {:.4}",
                ours[0],
                differences.rms()
            );
            assert!(
                ours[1] == *right && both == [*right, ours[0]],
                "{name}: {ours:?} and {both:?} are the top two"
            );
            assert!(gap < 3.0 * differences.rms(), "{name}: {gap} is no near tie");
            break;
        }
        same += 1;
        next = vec![*right];
    }
    println!(
        "{name}: {same} of {} tokens are the same; RMS difference {:.4}",
        golden.tokens.len(),
        differences.rms()
    );
    model.release(sequence);
}

fn perplexity(name: &str, model: &mut CpuModel, golden: &Text) {
    let sequence = model.open();
    let mut logprobs = Vec::new();
    for (at, part) in golden.tokens.chunks(64).enumerate() {
        let scores = feed(model, sequence, part, Output::Logits);
        for (row, next) in (0..part.len()).zip(&golden.tokens[at * 64 + 1..]) {
            let logits = scores.logits(row as u32).unwrap();
            logprobs.push(f64::from(logits[*next as usize]) - normaliser(logits));
        }
    }
    assert_eq!(logprobs.len(), golden.logprobs.len());
    let perplexity = |logprobs: &[f64]| (-logprobs.iter().sum::<f64>() / logprobs.len() as f64).exp();
    let (ours, theirs) = (perplexity(&logprobs), perplexity(&golden.logprobs));
    let mut differences = Differences::default();
    logprobs
        .iter()
        .zip(&golden.logprobs)
        .for_each(|(ours, theirs)| differences.add(ours - theirs));
    println!(
        "{name}: perplexity {ours:.4}, llama.cpp's {theirs:.4} ({:+.3} %); RMS difference of log-probabilities {:.4}",
        (ours / theirs - 1.0) * 100.0,
        differences.rms()
    );
    assert!((ours / theirs - 1.0).abs() < 0.005, "{name}: {ours} and {theirs}");
    model.release(sequence);
}

fn check(model: &str) {
    // One model in memory, and one at a time on the processor.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(path) = real_model(&format!("{model}.gguf")) else {
        return;
    };
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let golden = std::fs::read(root.join(format!("tests/golden/{model}.json"))).unwrap();
    let golden: Golden = serde_json::from_slice(&golden).unwrap();
    let prompts = std::fs::read(root.join("../../bench/prompts.json")).unwrap();
    let prompts: BTreeMap<String, String> = serde_json::from_slice(&prompts).unwrap();
    let text = std::fs::read_to_string(root.join("../../bench/perplexity.txt")).unwrap();

    let gguf = Gguf::open(&path).unwrap();
    let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
    let compute = Arc::new(Compute::new(
        std::thread::available_parallelism().map_or(1, |n| n.get()),
    ));
    let mut engine = CpuModel::load(
        &gguf,
        &tokenizer,
        compute,
        &LoadOptions::default(),
        &mut |_, _| (),
    )
    .unwrap();
    assert_eq!(
        prompts.keys().collect::<Vec<_>>(),
        golden.greedy.keys().collect::<Vec<_>>()
    );
    for (name, prompt) in &prompts {
        let golden = &golden.greedy[name];
        assert_eq!(
            tokenizer.encode(prompt, Special::Parse),
            golden.prompt,
            "{model}: tokens of {name}"
        );
        greedy(&format!("{model}, {name}"), &mut engine, golden);
    }
    let tokens = tokenizer.encode(&text, Special::Parse);
    assert_eq!(
        tokens[..golden.text.tokens.len()],
        golden.text.tokens,
        "{model}: tokens of the text"
    );
    perplexity(model, &mut engine, &golden.text);
}

#[test]
fn smollm2() {
    check("smollm2-135m-instruct-q4_1");
}

#[test]
fn qwen_half_b() {
    check("qwen2.5-coder-0.5b-instruct-q4_k_m");
}

#[test]
fn qwen_one_and_a_half_b() {
    check("qwen2.5-coder-1.5b-instruct-q4_k_m");
}
