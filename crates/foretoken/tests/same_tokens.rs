//! The same tokens with every drafter as without, on a real model: a part of what the example of the same
//! name compares, in less than a minute and a half. Left out, loudly, where the model is not there.

mod matrix;
mod speculators;

use std::path::Path;

use foretoken::gguf::testing::real_model;
use matrix::{Drafts, Plan, Row, run};

const PROMPTS: [&str; 2] = [
    "<|im_start|>user\nRename the function `total` to `sum_all`, and return the whole file.\n\n\
     def total(rows):\n    result = 0\n    for row in rows:\n        result += row\n    return result\n\
     <|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n",
];

fn check(plan: &Plan) -> Vec<Row> {
    let rows = run(plan, &mut |row| eprintln!("{row}")).unwrap();
    assert!(!rows.is_empty() && !plan.natural_ends);
    for row in &rows {
        assert!(row.compared >= plan.tokens, "answers are cut short: {row}");
    }
    assert!(
        rows.iter().all(|row| row.differed == 0),
        "tokens differ: {rows:#?}"
    );
    rows
}

#[test]
fn smollm2_says_the_same_with_every_drafter() {
    let Some(model) = real_model("smollm2-135m-instruct-q4_1.gguf") else {
        return;
    };
    let speculator = Path::new(env!("CARGO_TARGET_TMPDIR")).join("same-tokens-speculator.gguf");
    speculators::write(&speculator, &model, true, |_| ());
    let plan = Plan {
        draft: model.clone(),
        target: model,
        speculator: Some(speculator),
        prompts: PROMPTS.map(String::from).to_vec(),
        temperatures: vec![0.0, 0.7, 1.3],
        drafts: vec![
            Drafts::None,
            Drafts::Model(4),
            Drafts::ModelOwnNoise(4),
            Drafts::ModelTree(8),
            Drafts::Speculator(4),
            Drafts::SpeculatorTree(8),
            Drafts::Auto,
            Drafts::Suffix,
            Drafts::Recycling,
            Drafts::Random,
            Drafts::Right,
        ],
        threads: vec![2, 1],
        tokens: 16,
        natural_ends: false,
        together: 4,
        long_prompt: 0,
    };
    let rows = check(&plan);
    // A draft equal to the target is accepted whole, and so is one that knows the answer. (Of answers that
    // begin alike it knows only the first.)
    let right = |row: &&Row| row.what.starts_with("right drafts, temperature");
    for row in rows
        .iter()
        .filter(|row| row.what.starts_with("draft model, 4") || right(row))
    {
        assert_eq!(row.acceptance(), Some(100.0), "{row}");
    }
}

#[test]
fn smollm2_says_the_same_after_a_long_prompt() {
    let Some(model) = real_model("smollm2-135m-instruct-q4_1.gguf") else {
        return;
    };
    check(&Plan {
        draft: model.clone(),
        target: model,
        speculator: None,
        prompts: PROMPTS.map(String::from).to_vec(),
        temperatures: vec![0.7],
        drafts: vec![Drafts::Suffix, Drafts::Recycling],
        threads: vec![2],
        tokens: 16,
        // A prompt that stops anywhere would be answered by nothing.
        natural_ends: false,
        together: 0,
        long_prompt: 600,
    });
}
