//! Prefixes that are computed once, prompts that leave room for others, and what one request may ask of its drafts.

use std::time::Duration;

use foretoken_engine::{DraftLimits, EngineOptions, GenerationRequest, PromptPace};
use foretoken_spec::testing::{RandomDrafter, ScriptedModel};
use foretoken_spec::{CostModel, CostPoint, LogProbs, Sources, TargetModel, Token};
use proptest::prelude::*;

use crate::common::{answer, engine, finish, finish_after, fixed, greedy, reference, request};

const VOCAB: usize = 32;

fn remembering(prefixes: usize) -> EngineOptions {
    EngineOptions {
        prefixes,
        ..EngineOptions::default()
    }
}

/// A prompt of `len` tokens that only prompts of the same `kind` begin like.
fn prompt(kind: Token, len: usize) -> Vec<Token> {
    (0..len as Token)
        .map(|at| (at * 7 + kind) % VOCAB as Token)
        .collect()
}

#[test]
fn what_an_ended_sequence_held_is_not_computed_again() {
    let model = ScriptedModel::random(VOCAB, 1, 2.0);
    let mut engine = engine(&model, None, remembering(2));
    let first = request(&prompt(1, 40), 10, greedy(), 0);
    let said = answer(&mut engine, first.clone());
    assert_eq!(said.stats.cached_tokens, 0);

    // The conversation goes on.
    let mut longer = first.prompt.clone();
    longer.extend(said.ids());
    longer.extend([3, 4, 5]);
    let second = request(&longer, 10, greedy(), 0);
    let before = engine.model().evaluations().len();
    let went_on = answer(&mut engine, second.clone());
    assert_eq!(went_on.ids(), reference(&model, &second));
    // The last token of the first answer was drawn, not evaluated.
    assert_eq!(went_on.stats.cached_tokens, 49);
    assert_eq!(engine.model().evaluations().len() - before, 1 + 3 + 9);

    // The same again: all but the last token is there.
    let again = answer(&mut engine, second.clone());
    assert_eq!(again.ids(), went_on.ids());
    assert_eq!(again.stats.cached_tokens, longer.len() - 1);

    // Others are remembered in its place, the least recently used is forgotten first.
    for kind in [5, 6] {
        answer(&mut engine, request(&prompt(kind, 30), 3, greedy(), 0));
    }
    assert_eq!(answer(&mut engine, second).stats.cached_tokens, 0);
    engine.forget_prefixes();
    assert_eq!(engine.model().open_sequences(), 0);
}

#[test]
fn a_prompt_that_many_have_is_computed_once() {
    let model = ScriptedModel::random(VOCAB, 1, 2.0);
    let mut options = fixed(3);
    options.prompt_rows = 8;
    let mut engine = engine(&model, Some(Box::new(RandomDrafter::new(VOCAB, 2, 1))), options);
    let requests: Vec<GenerationRequest> = (0..4)
        .map(|choice| {
            let mut sampler = greedy();
            sampler.temperature = 1.0;
            request(&prompt(1, 50), 12, sampler, choice)
        })
        .collect();
    let ids: Vec<_> = requests.iter().map(|r| engine.add(r.clone()).unwrap()).collect();
    let answers = finish(&mut engine, &ids);
    for (answer, request) in answers.iter().zip(&requests) {
        assert_eq!(answer.ids(), reference(&model, request));
    }
    let cached: Vec<usize> = answers.iter().map(|a| a.stats.cached_tokens).collect();
    // The last of eight tokens a round: to wait for one more is not worth it.
    assert_eq!(cached, [0, 48, 48, 48]);
    let of_the_prompt = engine.model().evaluations().iter().filter(|e| e.position < 48);
    assert_eq!(of_the_prompt.count(), 48);
}

#[test]
fn remembered_pages_are_given_up_for_those_who_need_them() {
    let unlimited = ScriptedModel::random(VOCAB, 1, 2.0);
    let model = unlimited.clone().with_pages(4, 20);
    let mut engine = engine(&model, None, remembering(9));
    let start = engine.model().pages();
    for kind in 0..6 {
        let request = request(&prompt(kind, 30), 10, greedy(), 0);
        assert_eq!(
            answer(&mut engine, request.clone()).ids(),
            reference(&unlimited, &request)
        );
    }
    assert!(engine.model().pages().free < start.free);
    let long = request(&prompt(9, 60), 18, greedy(), 0);
    assert_eq!(
        answer(&mut engine, long.clone()).ids(),
        reference(&unlimited, &long)
    );
    engine.forget_prefixes();
    assert_eq!(engine.model().pages(), start);
}

#[test]
fn a_short_prompt_does_not_wait_for_a_long_one() {
    let model = ScriptedModel::random(VOCAB, 1, 2.0);
    let point = |rows: usize| CostPoint {
        rows,
        seconds: 0.01 * rows as f64,
    };
    let cost = CostModel::new(vec![point(1), point(8), point(16)]);
    let options = EngineOptions {
        pace: Some(PromptPace::new(cost, Duration::from_millis(165))),
        ..EngineOptions::default()
    };
    let mut engine = engine(&model, None, options);
    let decoding = engine.add(request(&[9], 60, greedy(), 0)).unwrap();
    let mut events = engine.step();
    let long = engine.add(request(&prompt(1, 400), 4, greedy(), 0)).unwrap();
    events.extend(engine.step());
    let short = engine.add(request(&prompt(2, 20), 4, greedy(), 0)).unwrap();
    let passes = engine.model().passes();
    let progressed = |events: &[foretoken_engine::Event], of| {
        events
            .iter()
            .any(|event| matches!(event, foretoken_engine::Event::Progress { id, .. } if *id == of))
    };
    while !progressed(&events, short) {
        let step = engine.step();
        assert!(
            progressed(&step, decoding),
            "the stream goes on beside the prompts"
        );
        events.extend(step);
    }
    assert!(!progressed(&events, long));
    assert!(
        engine.model().passes() - passes <= 4,
        "{}",
        engine.model().passes() - passes
    );
    let answers = finish_after(&mut engine, events, &[decoding, long, short]);
    assert!(answers.iter().all(|answer| answer.outcome.is_ok()));
}

#[test]
fn a_request_may_be_decoded_plainly_or_drafted_less() {
    let model = ScriptedModel::random(VOCAB, 1, 2.0);
    let mut engine = engine(&model, Some(Box::new(RandomDrafter::new(VOCAB, 1, 1))), fixed(6));
    let whole = request(&[1, 2], 40, greedy(), 0);
    let none = DraftLimits {
        sources: Sources::NONE,
        ..DraftLimits::default()
    };
    let check = |engine: &mut _, drafts, most_rows: usize, name: Option<&str>| {
        let said = answer(
            engine,
            GenerationRequest {
                drafts,
                ..whole.clone()
            },
        );
        assert_eq!(said.ids(), reference(&model, &whole));
        let rows = said.stats.speculation.rows_histogram.keys().max().copied();
        assert_eq!(rows, Some(most_rows));
        assert_eq!(said.stats.speculation.drafter.as_deref(), name);
    };
    check(&mut engine, DraftLimits::default(), 7, Some("random"));
    check(
        &mut engine,
        DraftLimits {
            max: 2,
            ..DraftLimits::default()
        },
        3,
        Some("random"),
    );
    check(
        &mut engine,
        DraftLimits {
            max: 0,
            ..DraftLimits::default()
        },
        1,
        None,
    );
    check(&mut engine, none, 1, None);
}

#[test]
fn log_probabilities_are_the_models_own_with_drafts_and_without() {
    let model = ScriptedModel::random(VOCAB, 1, 2.0);
    let mut sampler = greedy();
    sampler.temperature = 1.0;
    sampler.logit_bias = vec![(3, 5.0)];
    let asking = GenerationRequest {
        logprobs: Some(2),
        ..request(&[1, 2], 30, sampler, 7)
    };
    let logprobs = |drafter: Option<Box<dyn foretoken_spec::Drafter>>| {
        let mut engine = engine(&model, drafter, fixed(4));
        let id = engine.add(asking.clone()).unwrap();
        let (mut tokens, mut logprobs) = (Vec::new(), Vec::new());
        while !engine.is_idle() {
            for event in engine.step() {
                if let foretoken_engine::Event::Progress { id: of, progress } = event {
                    assert_eq!(of, id);
                    assert_eq!(progress.tokens.len(), progress.logprobs.len());
                    tokens.extend(progress.tokens.iter().map(|t| t.token));
                    logprobs.extend(progress.logprobs);
                }
            }
        }
        (tokens, logprobs)
    };
    let (tokens, plain) = logprobs(None);
    assert_eq!(
        (&tokens, &plain),
        (
            &logprobs(Some(Box::new(RandomDrafter::new(VOCAB, 2, 1)))).0,
            &plain
        )
    );
    assert_eq!(plain, logprobs(Some(Box::new(RandomDrafter::new(VOCAB, 2, 1)))).1);
    let mut path = asking.prompt.clone();
    for (&token, got) in tokens.iter().zip(&plain) {
        assert_eq!(*got, LogProbs::new(&model.logits_after(&path), token, 2));
        path.push(token);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Requests with common beginnings that come and go at any time, in too little memory: each says what it says alone.
    #[test]
    fn sharing_changes_no_token(
        arrivals in prop::collection::vec((0usize..4, 1usize..40, 1usize..25, 0u64..3, 0usize..6, prop::bool::weighted(0.2)), 1..10),
        pages in 18usize..60,
        prefixes in 0usize..4,
        prompt_rows in 1usize..40,
    ) {
        let unlimited = ScriptedModel::random(VOCAB, 1, 2.0);
        let model = unlimited.clone().with_pages(4, pages);
        let mut options = fixed(3);
        (options.prefixes, options.prompt_rows) = (prefixes, prompt_rows);
        let mut engine = engine(&model, Some(Box::new(RandomDrafter::new(VOCAB, 2, 1))), options);
        let start = engine.model().pages();
        let (mut events, mut ids, mut requests) = (Vec::new(), Vec::new(), Vec::new());
        for (kind, len, tokens, key, steps, cancelled) in arrivals {
            let mut sampler = greedy();
            sampler.temperature = 0.5 * key as f32;
            // Kinds 0 and 1 begin alike, and so do 2 and 3.
            let mut text = prompt(kind as Token / 2, len);
            text.push(kind as Token);
            let request = request(&text, tokens, sampler, key);
            let id = engine.add(request.clone()).unwrap();
            (0..steps).for_each(|_| events.extend(engine.step()));
            if cancelled {
                engine.cancel(id);
            }
            ids.push(id);
            requests.push(request);
        }
        for (answer, request) in finish_after(&mut engine, events, &ids).iter().zip(&requests) {
            let expected = reference(&unlimited, request);
            let said = answer.ids();
            prop_assert!(answer.outcome.is_ok());
            if answer.outcome == Ok(foretoken_engine::FinishReason::Cancelled) {
                prop_assert_eq!(&said[..], &expected[..said.len()]);
            } else {
                prop_assert_eq!(said, expected);
            }
        }
        engine.forget_prefixes();
        prop_assert_eq!(engine.model().open_sequences(), 0);
        prop_assert_eq!(engine.model().pages(), start);
    }
}
