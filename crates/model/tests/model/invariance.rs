//! Each row's logits and hidden state are the same bits whatever else is in its pass, however its sequence
//! came to be, and for every number of threads: those of decoding its path row by row on a fresh sequence.

use crate::support::*;
use foretoken_kernels::attention::PAGE;
use foretoken_model::testing::{Random, TinyModel};
use foretoken_model::{CpuModel, LoadOptions};
use foretoken_spec::{Batch, Cancel, ModelError, Output, Row, RowId, Scores, SequenceId, TargetModel, Token};
use std::collections::HashMap;

fn tokens(random: &mut Random, vocab_size: usize, len: usize) -> Vec<Token> {
    (0..len).map(|_| random.below(vocab_size) as Token).collect()
}

/// Digests by path, each from row-by-row decoding on a fresh sequence.
struct Reference {
    model: CpuModel,
    known: HashMap<Vec<Token>, Digest>,
}

impl Reference {
    fn new(model: CpuModel) -> Self {
        Self {
            model,
            known: HashMap::new(),
        }
    }

    fn of(&mut self, path: &[Token]) -> Digest {
        if !self.known.contains_key(path) {
            for (at, digest) in decode(&mut self.model, path).into_iter().enumerate() {
                let before = self.known.insert(path[..=at].to_vec(), digest);
                assert!(
                    before.is_none_or(|before| before == digest),
                    "decoding twice gives the same bits"
                );
            }
        }
        self.known[path]
    }
}

/// A row of a random batch: what it asks for and the tokens up to it.
struct Expected {
    row: RowId,
    output: Output,
    path: Vec<Token>,
}

fn random_output(random: &mut Random) -> Output {
    [Output::None, Output::Hidden, Output::Logits, Output::Both][random.below(4)]
}

/// Compares what was asked for, and that nothing else was given.
fn compare(scores: &Scores, expected: &[Expected], reference: &mut Reference, context: &str) {
    for Expected { row, output, path } in expected {
        if *output == Output::None {
            assert!(
                scores.logits(*row).is_none() && scores.hidden(*row).is_none(),
                "{context}"
            );
            continue;
        }
        let right = reference.of(path);
        let logits = scores.logits(*row).map(hash);
        let hidden = scores.hidden(*row).map(hash);
        let position = path.len() - 1;
        assert_eq!(
            logits,
            output.logits().then_some(right.logits),
            "{context}: logits of row {row} at {position}"
        );
        assert_eq!(
            hidden,
            output.hidden().then_some(right.hidden),
            "{context}: hidden of row {row} at {position}"
        );
    }
}

/// Rounds of chunks, single rows and trees of several sequences, mixed in any order, each followed by
/// commits of random paths, and now and then by a rollback or a fork.
fn random_rounds(name: &str, model: &mut CpuModel, reference: &mut Reference, rounds: usize, seed: u64) {
    let mut random = Random(seed);
    let vocab_size = model.info().vocab_size;
    let mut sequences: Vec<(SequenceId, Vec<Token>)> = (0..3).map(|_| (model.open(), Vec::new())).collect();
    let (mut batch, mut scores) = (Batch::default(), Scores::default());
    for round in 0..rounds {
        let context = format!("{name}, seed {seed}, round {round}");
        batch.clear();
        let mut expected: Vec<Expected> = Vec::new();
        let kinds: Vec<usize> = sequences.iter().map(|_| random.below(4)).collect();
        let mut left: Vec<usize> = kinds
            .iter()
            .map(|kind| match kind {
                0 => 0,
                1 => 1,
                2 => 1 + random.below(12),
                _ => 1 + random.below(PAGE + 9),
            })
            .collect();
        // Rows of the sequences interleave at random.
        while left.iter().any(|&left| left > 0) {
            let at = random.below(sequences.len());
            if left[at] == 0 {
                continue;
            }
            left[at] -= 1;
            let (sequence, committed) = &sequences[at];
            let own: Vec<usize> = (0..expected.len())
                .filter(|&row| batch.rows()[row].sequence == *sequence)
                .collect();
            // A chunk is a chain; a tree grows anywhere.
            let parent = match kinds[at] {
                3 => own.last().copied(),
                _ => match random.below(own.len() + 1) {
                    0 => None,
                    n => Some(own[n - 1]),
                },
            };
            let mut path = parent.map_or_else(|| committed.clone(), |parent| expected[parent].path.clone());
            let token = random.below(vocab_size) as Token;
            path.push(token);
            let output = random_output(&mut random);
            let row = batch.push(Row {
                sequence: *sequence,
                token,
                parent: parent.map(|row| row as RowId),
                output,
            });
            expected.push(Expected { row, output, path });
        }
        model.forward(&batch, &mut scores, &Cancel::default()).unwrap();
        compare(&scores, &expected, reference, &context);

        for (sequence, committed) in &mut sequences {
            let own = expected
                .iter()
                .filter(|e| batch.rows()[e.row as usize].sequence == *sequence);
            let own: Vec<&Expected> = own.collect();
            if own.is_empty() || random.below(5) == 0 {
                continue;
            }
            // Everything up to some row, ancestors first.
            let last = own[random.below(own.len())];
            let up = |row: &RowId| batch.rows()[*row as usize].parent;
            let mut path: Vec<RowId> = std::iter::successors(Some(last.row), up).collect();
            path.reverse();
            model.commit(*sequence, &path);
            committed.clone_from(&last.path);
            assert_eq!(model.len(*sequence), committed.len(), "{context}");
        }
        let at = random.below(sequences.len());
        let (sequence, committed) = &mut sequences[at];
        match random.below(8) {
            0 => {
                let len = random.below(committed.len() + 1);
                model.truncate(*sequence, len);
                committed.truncate(len);
            }
            1 => {
                let fork = (model.fork(*sequence), committed.clone());
                let other = random.below(sequences.len());
                model.release(std::mem::replace(&mut sequences[other], fork).0);
            }
            2 if committed.len() > 100 => {
                model.truncate(*sequence, 3);
                committed.truncate(3);
            }
            _ => {}
        }
    }
    sequences
        .into_iter()
        .for_each(|(sequence, _)| model.release(sequence));
}

#[test]
fn random_batches_on_tiny_models() {
    for (name, tiny) in TinyModel::variants() {
        let file = TinyFile::new(&tiny);
        let mut reference = Reference::new(file.load(1));
        for threads in [1, 2] {
            let mut model = file.load(threads);
            let free = model.pages().free;
            for seed in 0..2 {
                random_rounds(name, &mut model, &mut reference, 9, 100 * threads as u64 + seed);
            }
            assert_eq!(model.pages().free, free, "{name}: all pages come back");
        }
    }
}

#[test]
fn random_batches_on_smollm2() {
    let Some(path) = real_model(SMOLLM2) else { return };
    let mut reference = Reference::new(load_file(&path, 1, &LoadOptions::default()));
    let mut model = load_file(
        &path,
        2,
        &LoadOptions {
            context: None,
            kv_positions: Some(3 * 4096),
            ..LoadOptions::default()
        },
    );
    random_rounds("SmolLM2", &mut model, &mut reference, 5, 7);
}

/// Lengths at, before and after borders of pages, sweeps and blocks.
fn borders(most: usize) -> Vec<usize> {
    let around = [8, PAGE, 2 * PAGE, 4 * PAGE, 256, 512, 1024, 2048];
    let mut all: Vec<usize> = around
        .iter()
        .flat_map(|&n| [n - 1, n, n + 1])
        .filter(|&n| n <= most)
        .collect();
    all.dedup();
    all
}

/// A long text, in chunks of every kind, and trees at every border.
fn long_text(name: &str, file: &TinyFile, tiny: &TinyModel) {
    const LEN: usize = 2100;
    let mut random = Random(31);
    let text = tokens(&mut random, tiny.vocab_size(), LEN);
    let right = decode(&mut file.load(1), &text);
    let mut model = file.load(2);
    for chunk in [LEN, 512, 129, 33, 7] {
        let sequence = model.open();
        let mut done = 0;
        for part in text.chunks(chunk) {
            let scores = feed(&mut model, sequence, part, Output::Both);
            for (row, right) in (0..).zip(&right[done..done + part.len()]) {
                assert_eq!(
                    digest(&scores, row),
                    *right,
                    "{name}: chunks of {chunk}, position {}",
                    done + row as usize
                );
            }
            done += part.len();
        }
        model.release(sequence);
    }

    let sequence = model.open();
    for border in borders(LEN - 40) {
        let done = model.len(sequence);
        feed(&mut model, sequence, &text[done..border], Output::None);
        // The true continuation among branches that are wrong.
        let (mut batch, mut scores) = (Batch::default(), Scores::default());
        let (mut parent, mut path) = (None, Vec::new());
        for &token in &text[border..border + 36] {
            for wrong in [token ^ 1, token ^ 2]
                .into_iter()
                .filter(|&t| (t as usize) < tiny.vocab_size())
            {
                batch.push(Row {
                    sequence,
                    token: wrong,
                    parent,
                    output: Output::None,
                });
            }
            parent = Some(batch.push(Row {
                sequence,
                token,
                parent,
                output: Output::Both,
            }));
            path.extend(parent);
        }
        model.forward(&batch, &mut scores, &Cancel::default()).unwrap();
        for (&row, right) in path.iter().zip(&right[border..]) {
            assert_eq!(digest(&scores, row), *right, "{name}: tree at {border}");
        }
        // The next rows stand on what a commit has moved.
        model.commit(sequence, &path[..5]);
        let next = feed(&mut model, sequence, &text[border + 5..border + 6], Output::Both);
        assert_eq!(
            digest(&next, 0),
            right[border + 5],
            "{name}: after the commit at {border}"
        );
        model.truncate(sequence, border);
    }
}

#[test]
fn long_texts_on_tiny_models() {
    for (name, tiny) in TinyModel::variants().into_iter().take(2) {
        long_text(name, &TinyFile::new(&tiny), &tiny);
    }
}

#[test]
fn long_text_on_smollm2() {
    let Some(path) = real_model(SMOLLM2) else { return };
    const LEN: usize = 2060;
    let text = tokens(&mut Random(5), 49_152, LEN);
    let mut model = load_file(&path, 2, &LoadOptions::default());
    // Two ways to fill the cache, then one row at a time against all rows at once.
    let ways = [500, 333].map(|chunk| {
        let sequence = model.open();
        text[..LEN - 14]
            .chunks(chunk)
            .for_each(|part| _ = feed(&mut model, sequence, part, Output::None));
        sequence
    });
    let [first, second] = ways;
    let together = feed(&mut model, first, &text[LEN - 14..], Output::Both);
    for (row, token) in (0..).zip(&text[LEN - 14..]) {
        let alone = feed(&mut model, second, &[*token], Output::Both);
        assert_eq!(
            digest(&alone, 0),
            digest(&together, row),
            "position {}",
            LEN - 14 + row as usize
        );
    }
}

#[test]
fn a_rollback_is_as_if_nothing_had_been() {
    for (name, tiny) in TinyModel::variants() {
        let file = TinyFile::new(&tiny);
        let mut model = file.load(2);
        let mut random = Random(77);
        for len in borders(4 * PAGE + 1) {
            let text = tokens(&mut random, tiny.vocab_size(), len + 20);
            let right = decode(&mut model, &text);
            let sequence = model.open();
            feed(&mut model, sequence, &text[..len], Output::None);
            let back = 1 + random.below(len.min(40));
            model.truncate(sequence, len - back);
            // Other tokens come and go where the old ones stood.
            let wrong = tokens(&mut random, tiny.vocab_size(), back + 3);
            feed(&mut model, sequence, &wrong, Output::None);
            model.truncate(sequence, len - back);
            let scores = feed(&mut model, sequence, &text[len - back..], Output::Both);
            for (row, right) in (0..).zip(&right[len - back..]) {
                assert_eq!(
                    digest(&scores, row),
                    *right,
                    "{name}: {len} tokens, {back} rolled back, row {row}"
                );
            }
            model.release(sequence);
        }
    }
}

#[test]
fn forks_go_their_own_ways() {
    let tiny = TinyModel::llama();
    let file = TinyFile::new(&tiny);
    let mut model = file.load(2);
    let mut random = Random(3);
    for len in borders(2 * PAGE + 1) {
        let common = tokens(&mut random, tiny.vocab_size(), len);
        let trunk = model.open();
        feed(&mut model, trunk, &common, Output::None);
        let fork = model.fork(trunk);
        let ends = [trunk, fork].map(|sequence| (sequence, tokens(&mut random, tiny.vocab_size(), 9)));
        let right = ends
            .clone()
            .map(|(_, end)| decode(&mut model, &[common.clone(), end].concat()));
        // In turns, so that each writes while the other's pages are shared.
        for at in 0..9 {
            for ((sequence, end), right) in ends.iter().zip(&right) {
                let scores = feed(&mut model, *sequence, &end[at..=at], Output::Both);
                assert_eq!(
                    digest(&scores, 0),
                    right[len + at],
                    "{len} common tokens, {at} after the fork"
                );
            }
        }
        ends.into_iter().for_each(|(sequence, _)| model.release(sequence));
    }
}

/// A pass that fails leaves the sequence, and what follows, as if it had not been asked for.
#[test]
fn a_failed_pass_changes_nothing() {
    let tiny = TinyModel::qwen2();
    let file = TinyFile::new(&tiny);
    let context = 3 * PAGE;
    let options = LoadOptions {
        context: Some(context),
        kv_positions: Some(4 * PAGE),
        ..LoadOptions::default()
    };
    let mut model = load_file(&file.file, 2, &options);
    let text = tokens(&mut Random(8), tiny.vocab_size(), 2 * PAGE);
    let right = decode(&mut model, &text);
    let (sequence, other) = (model.open(), model.open());
    feed(&mut model, sequence, &text[..40], Output::None);
    let free = model.pages().free;

    let closed = model.open();
    model.release(closed);
    let vocab_size = model.info().vocab_size;
    let row = |sequence, token| Row {
        sequence,
        token,
        parent: None,
        output: Output::Logits,
    };
    let long = |sequence, len| {
        let mut batch = Batch::default();
        chain(&mut batch, sequence, &vec![1; len], Output::None);
        batch
    };
    let single = |row| {
        let mut batch = Batch::default();
        batch.push(row);
        batch
    };
    let mut two = long(sequence, 30);
    chain(&mut two, other, &vec![1; context], Output::None);
    let wide = {
        let mut batch = Batch::default();
        (0..20 * PAGE).for_each(|_| _ = batch.push(row(sequence, 3)));
        batch
    };
    let stopped = Cancel::default();
    stopped.cancel();
    let never = Cancel::default();
    let mut scores = Scores::default();
    for (batch, cancel, expected) in [
        (single(row(closed, 1)), &never, "is not open"),
        (
            single(row(sequence, vocab_size as Token)),
            &never,
            "outside the vocabulary",
        ),
        (
            single(row(sequence, Token::MAX)),
            &never,
            "outside the vocabulary",
        ),
        (long(sequence, context - 39), &never, "past the context"),
        (wide, &never, "the KV cache is full"),
        (long(sequence, 9), &stopped, "was cancelled"),
        (two, &stopped, "was cancelled"),
    ] {
        let error: ModelError = model.forward(&batch, &mut scores, cancel).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        // Rows of a pass that failed cannot be kept.
        model.commit(sequence, &[0]);
        model.commit(other, &[0]);
        assert_eq!((model.len(sequence), model.len(other)), (40, 0), "{expected}");
    }
    let scores = feed(&mut model, sequence, &text[40..], Output::Both);
    for (row, right) in (0..).zip(&right[40..]) {
        assert_eq!(digest(&scores, row), *right);
    }
    model.truncate(sequence, 40);
    assert_eq!(model.pages().free, free, "no page is lost");
}

/// Cancelled from another thread at some time during the pass: either way the sequence goes on.
#[test]
fn cancelled_at_any_time() {
    let tiny = TinyModel {
        layers: 6,
        ..TinyModel::llama()
    };
    let file = TinyFile::new(&tiny);
    let mut model = file.load(2);
    let text = tokens(&mut Random(12), tiny.vocab_size(), 300);
    let right = decode(&mut model, &text);
    let sequence = model.open();
    feed(&mut model, sequence, &text[..50], Output::None);
    let (mut batch, mut scores) = (Batch::default(), Scores::default());
    let rows = chain(&mut batch, sequence, &text[50..], Output::Both);
    let mut cancelled = 0;
    for step in 0..20 {
        let cancel = Cancel::default();
        let result = std::thread::scope(|scope| {
            let remote = cancel.clone();
            scope.spawn(move || {
                std::thread::sleep(std::time::Duration::from_micros(150 * step));
                remote.cancel();
            });
            model.forward(&batch, &mut scores, &cancel)
        });
        match result {
            Err(ModelError::Cancelled) => cancelled += 1,
            Err(error) => panic!("{error}"),
            Ok(()) => assert_eq!(digest(&scores, rows[249]), right[299]),
        }
        assert_eq!(model.len(sequence), 50);
    }
    println!("{cancelled} of 20 passes were cancelled");
    let next = feed(&mut model, sequence, &text[50..], Output::Both);
    assert_eq!(digest(&next, 0), right[50]);
}
