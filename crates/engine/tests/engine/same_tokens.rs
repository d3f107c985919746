//! The same tokens, whatever the drafter, its length, the chunks and the company.

use foretoken_engine::{DraftPolicy, Engine, EngineOptions, GenerationRequest};
use foretoken_spec::drafters::{ModelDrafter, RecyclingDrafter, SpeculatorDrafter, SuffixDrafter};
use foretoken_spec::testing::{
    AlwaysWrongDrafter, FailingDrafter, OracleDrafter, RandomDrafter, ScriptedModel, ScriptedNetwork,
};
use foretoken_spec::{Capabilities, Drafter, SamplerParams, Token};

use crate::common::{answer, engine, finish, finish_after, fixed, reference, request};

const VOCAB: usize = 29;

fn model() -> ScriptedModel {
    ScriptedModel::random(VOCAB, 7, 2.0).with_end_of_generation(vec![3])
}

fn penalties(temperature: f32) -> SamplerParams {
    SamplerParams {
        temperature,
        repeat_penalty: 1.2,
        presence_penalty: 0.3,
        frequency_penalty: 0.2,
        logit_bias: vec![(5, 1.0), (6, f32::NEG_INFINITY)],
        ..SamplerParams::default()
    }
}

fn requests() -> Vec<GenerationRequest> {
    let prompts: [&[Token]; 5] = [
        &[1],
        &[4, 5, 6, 7, 8, 9],
        &[1, 2, 1, 2, 1, 2, 1],
        &[28; 40],
        &[9, 8, 7],
    ];
    let temperatures = [0.0, 0.7, 1.3];
    let all = prompts.iter().enumerate().flat_map(|(at, prompt)| {
        temperatures.map(|t| request(prompt, 40 + at, penalties(t), 11 * at as u64))
    });
    all.collect()
}

/// Every kind of drafter that knows the answers to `requests`.
fn drafters(model: &ScriptedModel, requests: &[GenerationRequest]) -> Vec<Box<dyn Drafter>> {
    let whole = |r: &GenerationRequest| [r.prompt.clone(), reference(model, r)].concat();
    let texts: Vec<Vec<Token>> = requests.iter().map(whole).collect();
    let speculator = |model: ScriptedModel, heads| {
        SpeculatorDrafter::new(ScriptedNetwork::new(model, heads), VOCAB, vec![3])
    };
    let wrong = AlwaysWrongDrafter::new(texts.clone(), VOCAB);
    vec![
        Box::new(RandomDrafter::new(VOCAB, 1, 1)),
        Box::new(RandomDrafter::new(VOCAB, 3, 2)),
        Box::new(OracleDrafter::new(texts.clone())),
        Box::new(wrong),
        Box::new(SuffixDrafter::default()),
        Box::new(RecyclingDrafter::default()),
        Box::new(ModelDrafter::new(model.clone(), VOCAB)),
        Box::new(ModelDrafter::new(model.blurred(5, 1.0), VOCAB)),
        Box::new(ModelDrafter::new(model.blurred(5, 1.0).with_context(16), VOCAB)),
        Box::new(speculator(model.clone(), 4)),
        Box::new(speculator(model.blurred(5, 1.0), 3)),
        Box::new(FailingDrafter::new(OracleDrafter::new(texts), 3, 4)),
    ]
}

#[test]
fn any_drafter_gives_the_tokens_of_plain_decoding() {
    let model = model();
    for request in requests() {
        let expected = reference(&model, &request);
        assert_eq!(
            answer(&mut engine(&model, None, fixed(8)), request.clone()).ids(),
            expected
        );
        for k in [0, 1, 2, 3, 5, 8, 16] {
            for drafter in drafters(&model, std::slice::from_ref(&request)) {
                let name = drafter.name().to_string();
                let got = answer(&mut engine(&model, Some(drafter), fixed(k)), request.clone());
                assert_eq!(got.ids(), expected, "{name}, {k} tokens, {:?}", request.sampler);
            }
        }
    }
}

#[test]
fn adaptive_lengths_change_nothing() {
    let model = model();
    for request in requests() {
        let expected = reference(&model, &request);
        for (max, min, p_min) in [(8, 0, 0.5), (4, 3, 0.2), (16, 16, 0.0)] {
            let policy = DraftPolicy {
                max,
                min,
                p_min,
                fixed: None,
            };
            let options = EngineOptions {
                policy,
                ..EngineOptions::default()
            };
            let drafter = ModelDrafter::new(model.blurred(2, 0.7), VOCAB);
            let got = answer(
                &mut engine(&model, Some(Box::new(drafter)), options),
                request.clone(),
            );
            assert_eq!(got.ids(), expected);
        }
    }
}

#[test]
fn together_is_as_alone() {
    let model = model();
    let requests = requests();
    let expected: Vec<Vec<Token>> = requests.iter().map(|r| reference(&model, r)).collect();
    for drafter in drafters(&model, &requests) {
        let name = drafter.name().to_string();
        let mut engine = engine(&model, Some(drafter), fixed(4));
        // They come one after another, a few rounds apart, and meet in all phases.
        let (mut ids, mut early) = (Vec::new(), Vec::new());
        for request in &requests {
            ids.push(engine.add(request.clone()).unwrap());
            early.extend((0..3).flat_map(|_| engine.step()));
        }
        let answers = finish_after(&mut engine, early, &ids);
        for (answer, expected) in answers.iter().zip(&expected) {
            assert_eq!(answer.ids(), *expected, "{name}");
        }
        assert_eq!(engine.model().open_sequences(), 0);
    }
}

#[test]
fn requests_that_come_later_change_nothing() {
    let model = model();
    let requests = requests();
    let drafter = ModelDrafter::new(model.blurred(9, 0.5), VOCAB);
    let mut engine = engine(&model, Some(Box::new(drafter)), fixed(3));
    let first = engine.add(requests[4].clone()).unwrap();
    let early: Vec<_> = (0..2).flat_map(|_| engine.step()).collect();
    assert!(!early.is_empty(), "the first has begun");
    let second = engine.add(requests[10].clone()).unwrap();
    let answers = finish_after(&mut engine, early, &[first, second]);
    for (answer, request) in answers.iter().zip([&requests[4], &requests[10]]) {
        assert!(!answer.tokens.is_empty());
        assert_eq!(answer.ids(), reference(&model, request));
    }
}

#[test]
fn prompt_chunks_change_nothing() {
    let model = model();
    let requests = requests();
    for prompt_rows in [0, 1, 2, 7, 13, 1000] {
        let options = EngineOptions {
            prompt_rows,
            ..fixed(4)
        };
        let drafter = ModelDrafter::new(model.blurred(9, 0.5), VOCAB);
        let mut engine = engine(&model, Some(Box::new(drafter)), options);
        let ids: Vec<_> = requests.iter().map(|r| engine.add(r.clone()).unwrap()).collect();
        for (answer, request) in finish(&mut engine, &ids).iter().zip(&requests) {
            assert_eq!(answer.ids(), reference(&model, request), "{prompt_rows} rows");
        }
    }
}

#[test]
fn a_draft_equal_to_the_target_is_accepted_whole() {
    let model = model();
    for request in requests() {
        for k in [1, 4, 8] {
            let drafter = ModelDrafter::new(model.clone(), VOCAB);
            let speculation = answer(
                &mut engine(&model, Some(Box::new(drafter)), fixed(k)),
                request.clone(),
            )
            .stats
            .speculation;
            assert_eq!(speculation.accepted, speculation.drafted);
            assert!(speculation.rounds == 0 || speculation.tokens_per_round().unwrap() >= 1.0);
        }
    }
}

#[test]
fn nothing_is_evaluated_twice() {
    let model = ScriptedModel::random(VOCAB, 7, 2.0);
    for request in requests() {
        let text = [request.prompt.clone(), reference(&model, &request)].concat();
        let oracle = OracleDrafter::new(vec![text.clone()]);
        let mut engine = engine(&model, Some(Box::new(oracle)), fixed(5));
        let got = answer(&mut engine, request);
        let mut positions: Vec<usize> = engine.model().evaluations().iter().map(|e| e.position).collect();
        positions.sort_unstable();
        assert_eq!(
            positions,
            (0..text.len() - 1).collect::<Vec<_>>(),
            "each row once, the last token's never"
        );
        let passes = engine.model().passes();
        assert!(
            passes <= 1 + got.tokens.len(),
            "every round commits at least one token"
        );
    }
}

#[test]
fn rows_are_the_prompt_and_each_rounds_last_token_with_its_draft() {
    // No end of generation, so that every draft counts whole.
    let model = ScriptedModel::random(VOCAB, 7, 2.0);
    for request in requests() {
        for drafter in drafters(&model, std::slice::from_ref(&request)) {
            let name = drafter.name().to_string();
            let mut engine = engine(&model, Some(drafter), fixed(5));
            let got = answer(&mut engine, request.clone());
            let speculation = &got.stats.speculation;
            assert_eq!(speculation.discarded_by_cut, 0);
            assert_eq!(
                engine.model().evaluations().len(),
                request.prompt.len() + speculation.rounds + speculation.drafted,
                "{name}: accepted tokens are not verified again"
            );
            assert_eq!(engine.model().passes(), 1 + speculation.rounds);
            assert_eq!(speculation.decided, speculation.rounds + speculation.accepted);
            assert_eq!(
                got.tokens.len(),
                1 + speculation.decided,
                "{name}: one a round at least"
            );
        }
    }
}

#[test]
fn a_model_without_trees_gets_chains() {
    let capabilities = Capabilities {
        trees: false,
        hidden: false,
        row_invariant: true,
    };
    let model = model().with_capabilities(capabilities);
    for request in requests() {
        let random = RandomDrafter::new(VOCAB, 3, 2);
        let mut engine = engine(&model, Some(Box::new(random)), fixed(6));
        assert_eq!(
            answer(&mut engine, request.clone()).ids(),
            reference(&model, &request)
        );
        for pair in engine
            .model()
            .evaluations()
            .windows(2)
            .filter(|pair| pair[0].pass == pair[1].pass)
        {
            assert_eq!(pair[1].position, pair[0].position + 1);
        }
    }
}

#[test]
fn a_second_identical_request_is_drafted_alike() {
    let model = ScriptedModel::saying(VOCAB, 4, [1, 2, 3, 4].repeat(8));
    let mut engine: Engine<ScriptedModel> =
        engine(&model, Some(Box::new(SuffixDrafter::default())), fixed(4));
    let request = request(&[1, 2, 3, 4], 30, crate::common::greedy(), 0);
    let first = answer(&mut engine, request.clone()).stats.speculation;
    let second = answer(&mut engine, request).stats.speculation;
    assert!(first.accepted > 10);
    assert_eq!((first.accepted, first.drafted), (second.accepted, second.drafted));
}
