//! The draft model as drafter: what it evaluates, where it stops, and what it survives.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use foretoken_spec::drafters::ModelDrafter;
use foretoken_spec::testing::{ScriptedModel, Task, decode_drafted, decode_plain, open_params};
use foretoken_spec::{
    Budget, Committed, DraftError, Drafter, LogitError, ModelError, Request, Sampler, SamplerParams,
    SequenceId, Source, Sources, Token, TokenTree,
};
use proptest::prelude::*;

const SEQUENCE: SequenceId = SequenceId(70);

fn budget(length: usize) -> Budget {
    Budget {
        max_nodes: length,
        max_depth: length,
        max_branches: 1,
        sources: Sources::ALL,
        max_read: usize::MAX,
        min_path_probability: 0.0,
        min_confidence: 0.0,
    }
}

/// One request, as an engine would make it.
struct Ask {
    sequence: SequenceId,
    tokens: Vec<Token>,
    budget: Budget,
    position_limit: usize,
    deadline: Option<Instant>,
    params: SamplerParams,
}

impl Ask {
    fn new(tokens: &[Token], length: usize) -> Self {
        let (sequence, tokens) = (SEQUENCE, tokens.to_vec());
        Self {
            sequence,
            tokens,
            budget: budget(length),
            position_limit: 1000,
            deadline: None,
            params: open_params(0.0),
        }
    }
}

/// Drafts for several sequences at once.
fn draft_all(drafter: &mut dyn Drafter, asks: &[Ask]) -> (Result<(), DraftError>, Vec<TokenTree>) {
    let snapshots: Vec<_> = asks
        .iter()
        .map(|ask| Sampler::new(ask.params.clone(), 5, &ask.tokens).snapshot())
        .collect();
    let mut trees = vec![TokenTree::default(); asks.len()];
    let mut requests: Vec<_> = asks
        .iter()
        .zip(&snapshots)
        .zip(&mut trees)
        .map(|((ask, sampler), tree)| Request {
            sequence: ask.sequence,
            tokens: &ask.tokens,
            hidden: None,
            sampler,
            budget: ask.budget,
            position_limit: ask.position_limit,
            grammar: None,
            deadline: ask.deadline,
            tree,
        })
        .collect();
    let outcome = drafter.draft(&mut requests);
    drop(requests);
    (outcome, trees)
}

/// The chain drafted for one request.
fn draft(drafter: &mut dyn Drafter, ask: &Ask) -> Vec<Token> {
    let (outcome, trees) = draft_all(drafter, std::slice::from_ref(ask));
    outcome.unwrap();
    assert!(
        trees[0]
            .nodes()
            .iter()
            .zip(0..)
            .all(|(node, at)| node.parent == u32::checked_sub(at, 1))
    );
    assert!(trees[0].nodes().iter().all(|node| node.source == Source::Model));
    trees[0].nodes().iter().map(|node| node.token).collect()
}

/// A model that counts upwards, sure of itself.
fn counting(vocab_size: usize) -> ScriptedModel {
    ScriptedModel::new(vocab_size, move |path, logits| {
        logits.fill(0.0);
        logits[(path[path.len() - 1] as usize + 1) % vocab_size] = 20.0;
    })
}

#[test]
fn the_budget_is_kept() {
    let check = |edit: fn(&mut Ask), expected: &[Token]| {
        let mut ask = Ask::new(&[1, 2, 3], 4);
        edit(&mut ask);
        let model = counting(50).with_end_of_generation(vec![9]);
        assert_eq!(draft(&mut ModelDrafter::new(model, 50), &ask), expected);
    };
    check(|_| {}, &[4, 5, 6, 7]);
    check(|ask| ask.budget.max_nodes = 2, &[4, 5]);
    check(|ask| ask.budget.max_depth = 3, &[4, 5, 6]);
    check(|ask| ask.budget.max_nodes = 0, &[]);
    check(|ask| ask.budget.max_depth = 0, &[]);
    check(|ask| ask.position_limit = 5, &[4, 5]); // positions 3 and 4
    check(|ask| ask.position_limit = 3, &[]);
    check(|ask| ask.position_limit = 0, &[]);
    check(|ask| ask.budget = budget(99), &[4, 5, 6, 7, 8]); // 9 ends the generation
    check(|ask| ask.budget.min_confidence = 1.1, &[]);
    check(|ask| ask.budget.min_path_probability = 1.1, &[4]); // not worth a second step
    check(|ask| ask.deadline = Some(Instant::now()), &[]);
    check(
        |ask| ask.deadline = Some(Instant::now() + Duration::from_secs(3600)),
        &[4, 5, 6, 7],
    );
    check(|ask| ask.tokens.clear(), &[]);
    check(
        |ask| {
            ask.budget = Budget {
                max_nodes: usize::MAX,
                max_depth: usize::MAX,
                max_branches: 1,
                sources: Sources::ALL,
                max_read: usize::MAX,
                ..ask.budget
            }
        },
        &[4, 5, 6, 7, 8],
    );
}

#[test]
fn the_draft_ends_before_the_token_that_it_is_not_sure_of() {
    // Sure of itself up to 6, then torn between 7 and 0.
    let torn = ScriptedModel::new(10, |path, logits| {
        logits.fill(0.0);
        let next = path[path.len() - 1] as usize + 1;
        logits[next % 10] = 20.0;
        logits[0] = if next == 7 { 19.9 } else { 0.0 };
    });
    for temperature in [0.0, 0.3] {
        let mut ask = Ask::new(&[3], 8);
        ask.params = open_params(temperature);
        assert!(draft(&mut ModelDrafter::new(torn.clone(), 10), &ask).len() == 8);
        ask.budget.min_confidence = 0.8;
        let drafted = draft(&mut ModelDrafter::new(torn.clone(), 10), &ask);
        assert!(drafted.starts_with(&[4, 5, 6]), "{drafted:?}");
        if temperature == 0.0 {
            assert_eq!(drafted, [4, 5, 6]);
        }
    }
    // After 7: 0.52 · 1 falls below the least path probability, so that no step follows.
    let mut ask = Ask::new(&[3], 8);
    ask.budget.min_path_probability = 0.6;
    assert_eq!(draft(&mut ModelDrafter::new(torn, 10), &ask), [4, 5, 6, 7]);
}

#[test]
fn nothing_is_evaluated_before_the_first_draft_and_the_prompt_then_in_chunks() {
    let mut drafter = ModelDrafter::new(counting(50), 50).with_prompt_chunk(4);
    let prompt: Vec<Token> = (0..11).collect();
    drafter.begin(SEQUENCE, &prompt).unwrap();
    assert_eq!(drafter.model().passes(), 0);
    assert_eq!(draft(&mut drafter, &Ask::new(&prompt, 3)), [11, 12, 13]);
    let rows: Vec<usize> = (0..5)
        .map(|pass| {
            drafter
                .model()
                .evaluations()
                .iter()
                .filter(|e| e.pass == pass)
                .count()
        })
        .collect();
    assert_eq!(rows, [4, 4, 3, 1, 1]);
    let times = drafter.times().unwrap();
    assert_eq!((times.passes, times.prompt_rows, times.eval_rows), (5, 11, 2));
    drafter.end(SEQUENCE);
    assert_eq!(drafter.model().open_sequences(), 0);
    drafter.end(SEQUENCE);
}

#[test]
fn after_a_round_only_what_is_missing_is_evaluated() {
    /// Tokens committed after a draft of 4, 5, 6, 7 behind 1, 2, 3; what is evaluated for the next draft,
    /// by position; and that draft.
    fn check(committed: &[Token], evaluated: &[(usize, Token)], drafted: &[Token]) {
        let mut drafter = ModelDrafter::new(counting(50), 50);
        drafter.begin(SEQUENCE, &[1, 2, 3]).unwrap();
        assert_eq!(draft(&mut drafter, &Ask::new(&[1, 2, 3], 4)), [4, 5, 6, 7]);
        let before = drafter.model().evaluations().len();
        let tokens = [&[1, 2, 3], committed].concat();
        drafter.observe(
            SEQUENCE,
            &Committed {
                tokens: committed.to_vec(),
                ..Default::default()
            },
        );
        assert_eq!(draft(&mut drafter, &Ask::new(&tokens, 2)), drafted);
        let rows = drafter.model().evaluations()[before..].iter();
        assert_eq!(rows.map(|e| (e.position, e.token)).collect::<Vec<_>>(), evaluated);
    }
    check(&[30], &[(3, 30), (4, 31)], &[31, 32]); // nothing accepted
    check(&[4, 30], &[(4, 30), (5, 31)], &[31, 32]);
    check(&[4, 5, 6, 30], &[(6, 30), (7, 31)], &[31, 32]);
    check(&[4, 5, 6, 7, 30], &[(6, 7), (7, 30), (8, 31)], &[31, 32]); // all: the last drafted, too
    // The tree was cut before it was verified, and the target said what had been drafted next.
    check(&[4, 5, 6], &[(6, 7)], &[7, 8]);
    check(&[4, 5], &[], &[6, 7]);
    check(&[4, 5, 6, 7], &[(6, 7), (7, 8)], &[8, 9]);
    // Several tokens without a draft between.
    check(&[30, 40, 41], &[(3, 30), (4, 40), (5, 41), (6, 42)], &[42, 43]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn no_token_is_evaluated_twice(
        (seed, key) in any::<(u64, u64)>(),
        temperature in prop_oneof![Just(0f32), 0.2f32..1.5],
        blur in prop_oneof![Just(0f32), 0f32..1.0],
        prompt in prop::collection::vec(0u32..20, 1..40),
        length in 1usize..12,
        min_confidence in 0f32..0.6,
        chunk in 1usize..20,
    ) {
        let mut target = ScriptedModel::random(20, seed, 2.0);
        let mut drafter = ModelDrafter::new(target.blurred(1, blur), 20).with_prompt_chunk(chunk);
        let task = Task { params: open_params(temperature), key, prompt: prompt.clone(), max_tokens: 60 };
        let plain = decode_plain(&mut target, &task).unwrap();
        let budget = Budget { min_confidence, ..budget(length) };
        let run = decode_drafted(&mut target, &mut drafter, budget, &task).unwrap();
        prop_assert_eq!(&run.tokens, &plain.tokens);
        // A row is the same evaluation if all tokens up to it are.
        let mut path = Vec::new();
        let mut seen = HashSet::new();
        for row in drafter.model().evaluations() {
            prop_assert!(row.position <= path.len(), "rows follow rows");
            path.truncate(row.position);
            path.push(row.token);
            prop_assert!(seen.insert(path.clone()), "evaluated twice: {:?}", row);
        }
    }

    #[test]
    fn a_history_that_shrinks_or_changes_is_followed(
        histories in prop::collection::vec(prop::collection::vec(0u32..6, 1..30), 1..12),
        context in 2usize..40,
        length in 1usize..6,
        seed: u64,
    ) {
        let model = ScriptedModel::random(6, seed, 2.0).with_context(context);
        let mut drafter = ModelDrafter::new(model.clone(), 6);
        drafter.begin(SEQUENCE, &histories[0]).unwrap();
        for history in &histories {
            let drafted = draft(&mut drafter, &Ask::new(history, length));
            prop_assert!(!drafted.is_empty() && drafted.len() <= length);
            // The same from scratch, as long as the whole history fits.
            if history.len() + length <= context && context >= 24 && histories.iter().all(|h| h.len() + length <= context) {
                let mut path = history.clone();
                for token in drafted {
                    let mut sampler = Sampler::new(open_params(0.0), 5, &path);
                    prop_assert_eq!(token, sampler.sample(&model.logits_after(&path)).unwrap());
                    path.push(token);
                }
            }
        }
    }
}

#[test]
fn sequences_share_passes_and_nothing_else() {
    let model = ScriptedModel::random(30, 4, 2.0);
    let asks: Vec<Ask> = (0..4u32)
        .map(|i| Ask {
            sequence: SequenceId(u64::from(i)),
            params: open_params(0.5 * i as f32),
            ..Ask::new(&(i..4 * i + 2).collect::<Vec<_>>(), 3 + i as usize)
        })
        .collect();
    let mut together = ModelDrafter::new(model.clone(), 30);
    asks.iter()
        .for_each(|ask| together.begin(ask.sequence, &ask.tokens).unwrap());
    let (outcome, trees) = draft_all(&mut together, &asks);
    outcome.unwrap();
    for (ask, tree) in asks.iter().zip(&trees) {
        assert_eq!(tree.len(), ask.budget.max_nodes);
        let alone: Vec<Token> = draft(&mut ModelDrafter::new(model.clone(), 30), ask);
        assert_eq!(tree.nodes().iter().map(|n| n.token).collect::<Vec<_>>(), alone);
    }
    assert_eq!(together.model().passes(), 6); // as many as the deepest draft
}

#[test]
fn a_sequence_longer_than_the_draft_context_is_drafted_through_a_window() {
    // The models look at three tokens only, so that a window of more sees all there is.
    let mut target = ScriptedModel::random(20, 12, 2.0);
    for temperature in [0.0, 0.8] {
        for prompt_length in [1, 20, 31, 32, 33, 100] {
            let prompt: Vec<Token> = (0..prompt_length).map(|i| i * 7 % 20).collect();
            let task = Task {
                params: open_params(temperature),
                key: 3,
                prompt,
                max_tokens: 120,
            };
            let plain = decode_plain(&mut target, &task).unwrap();
            let mut drafter = ModelDrafter::new(target.blurred(0, 0.0).with_context(32), 20);
            let run = decode_drafted(&mut target, &mut drafter, budget(4), &task).unwrap();
            assert_eq!(run.tokens, plain.tokens);
            let c = run.counters;
            assert_eq!(
                c.accepted + c.discarded_by_cut,
                c.drafted,
                "noise goes by absolute positions"
            );
            assert_eq!(c.rounds, 24, "five tokens a round");
            // The window moves once in about 16 tokens and then shows 16 again.
            let rows = drafter.model().evaluations().len();
            assert!(rows < prompt_length as usize + 120 * 5 / 2, "{rows} rows");
        }
    }
}

#[test]
fn vocabularies_may_differ_by_padding() {
    let spread = |vocab_size: usize| {
        let model = ScriptedModel::random(40, 9, 2.0);
        ScriptedModel::new(vocab_size, move |path, logits| {
            let known = model.logits_after(path);
            // Padding is what a model would say, were it allowed to.
            logits.fill(90.0);
            logits.iter_mut().zip(known).for_each(|(x, known)| *x = known);
        })
    };
    // A draft model with more padding than the target: nothing beyond the target's vocabulary is proposed.
    let mut target = spread(40);
    let task = Task {
        params: open_params(0.9),
        key: 3,
        prompt: vec![1, 2],
        max_tokens: 50,
    };
    let plain = decode_plain(&mut target, &task).unwrap();
    let run = decode_drafted(
        &mut target,
        &mut ModelDrafter::new(spread(48), 40),
        budget(4),
        &task,
    )
    .unwrap();
    assert_eq!(run.tokens, plain.tokens);
    assert_eq!(run.counters.acceptance_rate(), Some(1.0));
    // A smaller one: tokens that it does not have are shown to it as another.
    let mut target = counting(48);
    let task = Task {
        params: open_params(0.9),
        key: 3,
        prompt: vec![38],
        max_tokens: 50,
    };
    let plain = decode_plain(&mut target, &task).unwrap();
    assert!(plain.tokens.contains(&47));
    let run = decode_drafted(
        &mut target,
        &mut ModelDrafter::new(counting(40), 48),
        budget(4),
        &task,
    )
    .unwrap();
    assert_eq!((run.tokens, run.draft_errors), (plain.tokens, 0));
}

#[test]
fn a_head_may_cover_a_part_of_the_vocabulary() {
    let part: Vec<Token> = (0..100).filter(|t| t % 3 != 1).collect();
    let mut target = counting(100);
    let drafter = |inputs| {
        let map = part.clone();
        let head = ScriptedModel::new(part.len(), move |path, logits| {
            logits.fill(0.0);
            let next = (path[path.len() - 1] + 1) % 100;
            map.binary_search(&next)
                .into_iter()
                .for_each(|i| logits[i] = 20.0);
        });
        // The scripted model's input is limited to its row; the drafter must not be.
        ModelDrafter::new(head.with_input_vocab(inputs), 100)
            .with_vocabulary(part.clone())
            .unwrap()
    };
    let task = Task {
        params: open_params(0.5),
        key: 3,
        prompt: vec![95],
        max_tokens: 40,
    };
    let plain = decode_plain(&mut target, &task).unwrap();
    // The second one cannot read the prompt.
    for mut drafter in [drafter(100), drafter(95).with_inputs(95)] {
        let run = decode_drafted(&mut target, &mut drafter, budget(4), &task).unwrap();
        assert_eq!((&run.tokens, run.draft_errors), (&plain.tokens, 0));
        assert!(run.counters.accepted >= 20, "{:?}", run.counters);
    }

    let check = |vocabulary: Vec<Token>, target: usize, message: &str| {
        let error = ModelDrafter::new(counting(3), target)
            .with_vocabulary(vocabulary)
            .unwrap_err();
        assert_eq!(error.to_string(), message);
    };
    check(vec![1, 2], 100, "the draft vocabulary has 2 tokens for 3 logits");
    check(
        vec![1, 5, 5],
        100,
        "the draft vocabulary is not ascending: 5 follows 5",
    );
    check(
        vec![1, 5, 100],
        100,
        "the draft model: token 100 is outside the vocabulary of 100",
    );
}

#[test]
fn a_failed_pass_is_an_error_and_the_next_draft_is_right() {
    for pass in 0..7 {
        let broken = ModelError::Backend("broken".to_owned());
        let model = counting(50).failing_at(pass, broken.clone());
        let mut drafter = ModelDrafter::new(model, 50).with_prompt_chunk(2);
        let ask = Ask::new(&[1, 2, 3, 4, 5], 5);
        let (outcome, trees) = draft_all(&mut drafter, std::slice::from_ref(&ask));
        assert_eq!(outcome, Err(DraftError::Model(broken)));
        assert_eq!(trees[0].len(), pass.saturating_sub(2));
        assert_eq!(draft(&mut drafter, &ask), [6, 7, 8, 9, 10]);
    }
}

#[test]
fn a_draft_can_be_cancelled() {
    let mut drafter = ModelDrafter::new(counting(50), 50);
    let ask = Ask::new(&[1], 5);
    drafter.cancel().cancel();
    let (outcome, _) = draft_all(&mut drafter, std::slice::from_ref(&ask));
    assert_eq!(outcome, Err(DraftError::Model(ModelError::Cancelled)));
    drafter.cancel().reset();
    assert_eq!(draft(&mut drafter, &ask), [2, 3, 4, 5, 6]);
}

#[test]
fn a_sequence_without_room_does_not_stop_the_others() {
    // Three pages of four tokens: the prompts take one and two, so that the first finds no second page.
    let mut drafter = ModelDrafter::new(counting(50).with_pages(4, 3), 50);
    let ask = |id, tokens: &[Token]| Ask {
        sequence: SequenceId(id),
        ..Ask::new(tokens, 3)
    };
    let asks = [ask(1, &[1, 2, 3, 4]), ask(2, &[5, 6, 7, 8, 9])];
    let (outcome, trees) = draft_all(&mut drafter, &asks);
    assert_eq!(outcome, Ok(()));
    assert_eq!((trees[0].len(), trees[1].len()), (1, 3));
    // Once the other is gone, there is room.
    drafter.end(SequenceId(2));
    let (outcome, trees) = draft_all(&mut drafter, &asks[..1]);
    assert_eq!((outcome, trees[0].len()), (Ok(()), 3));

    // A prompt that does not fit as a whole costs nothing, as often as it is asked for.
    let mut drafter = ModelDrafter::new(counting(50).with_pages(4, 3), 50).with_prompt_chunk(2);
    let asks = [ask(1, &[1, 2, 3]), ask(2, &[5, 6, 7, 8, 9, 10, 11, 12, 13])];
    for _ in 0..3 {
        let (outcome, trees) = draft_all(&mut drafter, &asks);
        assert_eq!((outcome, trees[0].len(), trees[1].len()), (Ok(()), 3, 0));
    }
    assert!(drafter.model().evaluations().iter().all(|row| row.token < 9));
    drafter.end(SequenceId(1));
    assert_eq!(draft(&mut drafter, &asks[1]), [14, 15, 16]);
}

#[test]
fn a_draft_model_that_says_nonsense_is_an_error() {
    let nonsense = ScriptedModel::new(10, |path, logits| {
        logits.fill(0.0);
        logits[5] = if path.len() > 2 { f32::NAN } else { 1.0 };
    });
    let mut drafter = ModelDrafter::new(nonsense, 10);
    let (outcome, _) = draft_all(&mut drafter, &[Ask::new(&[1, 2], 4)]);
    assert_eq!(outcome, Err(LogitError::NotFinite { token: 5 }.into()));
}

#[test]
fn a_draft_vocabulary_that_a_request_bans_is_no_error() {
    let model = ScriptedModel::new(2, |_, logits| logits.fill(1.0));
    let mut drafter = ModelDrafter::new(model, 10).with_vocabulary(vec![3, 7]).unwrap();
    let banned = SamplerParams {
        logit_bias: vec![(3, f32::NEG_INFINITY), (7, f32::NEG_INFINITY)],
        ..SamplerParams::default()
    };
    let ask = Ask {
        params: banned,
        ..Ask::new(&[1], 4)
    };
    assert_eq!(draft(&mut drafter, &ask), []);
}

#[test]
fn begin_forgets_what_was() {
    let mut drafter = ModelDrafter::new(counting(50), 50);
    drafter.begin(SEQUENCE, &[1]).unwrap();
    assert_eq!(draft(&mut drafter, &Ask::new(&[1], 2)), [2, 3]);
    drafter.begin(SEQUENCE, &[1]).unwrap();
    assert_eq!(drafter.model().open_sequences(), 1);
    let before = drafter.model().evaluations().len();
    assert_eq!(draft(&mut drafter, &Ask::new(&[1], 2)), [2, 3]);
    assert_eq!(drafter.model().evaluations().len() - before, 2);
}
