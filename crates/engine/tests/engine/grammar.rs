//! Answers that keep to a grammar: the same tokens with and without drafts, and the grammar's own drafts.

use foretoken_engine::{EngineOptions, FinishReason, GenerationRequest};
use foretoken_spec::drafters::{ModelDrafter, PredictionDrafter, SpeculatorDrafter, SuffixDrafter};
use foretoken_spec::testing::{
    AlwaysWrongDrafter, FixedText, OracleDrafter, RandomDrafter, ScriptedModel, ScriptedNetwork, open_params,
};
use foretoken_spec::{Drafter, Grammar, Source, Token};

use crate::common::{answer, engine, finish, fixed, greedy, request};

const VOCAB: usize = 40;
const END: Token = 39;

/// Has no idea of the grammar.
fn model() -> ScriptedModel {
    ScriptedModel::random(VOCAB, 7, 2.0).with_end_of_generation(vec![END])
}

/// Choices, then no choice, over and over.
fn grammar() -> Box<dyn Grammar> {
    let some: Vec<Token> = (0..30).collect();
    let places: Vec<&[Token]> = [&some[..], &[31], &[32], &[33], &some[5..9], &[34]].repeat(4);
    Box::new(FixedText::new(&places, END))
}

fn kept(ids: &[Token]) -> bool {
    let mut grammar = grammar();
    ids.iter().all(|&token| grammar.accept(token))
}

#[test]
fn drafts_change_nothing_under_a_grammar() {
    let model = model();
    for sampler in [greedy(), open_params(1.0)] {
        for key in 0..6 {
            let asking = GenerationRequest {
                grammar: Some(grammar()),
                ..request(&[1, 2, 3], 60, sampler.clone(), key)
            };
            let plain = answer(
                &mut engine(&model, None, EngineOptions::default()),
                asking.clone(),
            );
            assert_eq!(plain.outcome, Ok(FinishReason::Stop));
            assert_eq!(plain.tokens.len(), 24);
            assert!(kept(&plain.ids()));
            let texts = vec![[asking.prompt.clone(), plain.ids()].concat()];
            let drafters: Vec<Box<dyn Drafter>> = vec![
                Box::new(SuffixDrafter::new(vec![END])),
                Box::new(RandomDrafter::new(VOCAB, 3, key)),
                Box::new(AlwaysWrongDrafter::new(texts.clone(), VOCAB)),
                Box::new(OracleDrafter::new(texts)),
                Box::new(ModelDrafter::new(model.clone(), VOCAB)),
                Box::new(ModelDrafter::new(model.blurred(5, 1.0), VOCAB)),
                Box::new(SpeculatorDrafter::new(
                    ScriptedNetwork::new(model.blurred(5, 1.0), 4),
                    VOCAB,
                    vec![END],
                )),
            ];
            for drafter in drafters {
                let name = drafter.name().to_string();
                let drafted = answer(&mut engine(&model, Some(drafter), fixed(5)), asking.clone());
                assert_eq!(drafted.ids(), plain.ids(), "{name}");
                // Where there is no choice, and nobody surer, the grammar drafts.
                if name == "suffix" {
                    let forced = drafted.stats.speculation.by_source[&Source::Grammar];
                    assert!(forced.accepted > 0, "{forced:?}");
                }
            }
        }
    }
}

#[test]
fn each_sequence_has_its_own() {
    let model = model();
    let mut asking: Vec<GenerationRequest> = (0..4)
        .map(|key| request(&[1, 2], 30, open_params(1.0), key))
        .collect();
    asking[1].grammar = Some(grammar());
    asking[3].grammar = Some(grammar());
    let alone: Vec<_> = asking
        .iter()
        .map(|asking| {
            answer(
                &mut engine(&model, None, EngineOptions::default()),
                asking.clone(),
            )
            .ids()
        })
        .collect();
    let drafter: Box<dyn Drafter> = Box::new(SuffixDrafter::new(vec![END]));
    let mut together = engine(&model, Some(drafter), fixed(4));
    let ids: Vec<_> = asking
        .iter()
        .map(|asking| together.add(asking.clone()).unwrap())
        .collect();
    let answers = finish(&mut together, &ids);
    for (answer, alone) in answers.iter().zip(&alone) {
        assert_eq!(&answer.ids(), alone);
    }
    assert!(kept(&answers[1].ids()) && !kept(&answers[0].ids()));
}

#[test]
fn what_was_predicted_is_drafted() {
    let model = model();
    let asking = request(&[1, 2, 3], 40, open_params(1.0), 5);
    let plain = answer(
        &mut engine(&model, None, EngineOptions::default()),
        asking.clone(),
    );
    let mut prediction = plain.ids();
    prediction[20] = 0;
    let drafter: Box<dyn Drafter> = Box::new(PredictionDrafter::new(vec![END]));
    let mut engine = engine(&model, Some(drafter), fixed(5));
    let predicted = GenerationRequest {
        prediction,
        ..asking.clone()
    };
    let drafted = answer(&mut engine, predicted);
    assert_eq!(drafted.ids(), plain.ids());
    let count = drafted.stats.speculation.by_source[&Source::Prediction];
    assert!(
        count.accepted > plain.tokens.len() / 2 && count.accepted < count.drafted,
        "{count:?}"
    );
    // It is of that request alone.
    let other = answer(&mut engine, asking);
    assert_eq!(other.ids(), plain.ids());
    assert!(other.stats.speculation.by_source.is_empty());
}
