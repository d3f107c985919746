//! Pages: cancelled sequences, sequences that wait, sequences that never fit.

use foretoken_engine::{FinishReason, GenerationRequest, SequenceError};
use foretoken_spec::drafters::ModelDrafter;
use foretoken_spec::testing::{RandomDrafter, ScriptedModel};
use foretoken_spec::{
    Cancel, DraftError, Drafter, OutOfPages, Request, SamplerParams, SequenceId, TargetModel, Token,
};

use crate::common::{answer, engine, finish, finish_after, fixed, greedy, reference, request};

const VOCAB: usize = 32;

#[test]
fn cancelled_sequences_return_their_pages() {
    let model = ScriptedModel::random(VOCAB, 1, 2.0).with_pages(4, 100);
    let mut engine = engine(&model, Some(Box::new(RandomDrafter::new(VOCAB, 1, 1))), fixed(4));
    let cancelled = engine.add(request(&[1; 30], 500, greedy(), 0)).unwrap();
    let other = request(&[2, 3], 50, greedy(), 0);
    let kept = engine.add(other.clone()).unwrap();
    let mut before: Vec<_> = (0..5).flat_map(|_| engine.step()).collect();
    engine.cancel(cancelled);
    let evaluated = engine.model().evaluations().len();
    before.extend(engine.step());
    let ended = before.iter().any(|event| {
        matches!(event, foretoken_engine::Event::Finished { id, outcome: Ok(FinishReason::Cancelled), .. } if *id == cancelled)
    });
    assert!(ended, "it ends at the next round");
    assert_eq!(engine.model().open_sequences(), 1);
    let sequences: Vec<_> = engine.model().evaluations()[evaluated..]
        .iter()
        .map(|e| e.sequence)
        .collect();
    assert!(
        sequences.windows(2).all(|pair| pair[0] == pair[1]),
        "nothing is computed for it"
    );
    // Over already: no effect.
    engine.cancel(cancelled);
    let whole = finish_after(&mut engine, before, &[kept]).remove(0);
    assert_eq!(whole.ids(), reference(&model, &other));
    assert_eq!(engine.model().open_sequences(), 0);
}

/// Cancels a request while it drafts: after the round began, before its pass.
struct Canceller(Cancel);

impl Drafter for Canceller {
    fn name(&self) -> &str {
        "canceller"
    }

    fn begin(&mut self, _sequence: SequenceId, _prompt: &[Token]) -> Result<(), DraftError> {
        Ok(())
    }

    fn draft(&mut self, requests: &mut [Request<'_>]) -> Result<(), DraftError> {
        if requests[0].tokens.len() > 4 {
            self.0.cancel();
        }
        Ok(())
    }

    fn end(&mut self, _sequence: SequenceId) {}
}

#[test]
fn a_pass_is_cancelled_within() {
    let model = ScriptedModel::random(VOCAB, 1, 2.0);
    let cancelled = request(&[1], 50, greedy(), 0);
    let canceller = Canceller(cancelled.cancel.clone());
    let alone = answer(
        &mut engine(&model, Some(Box::new(canceller)), fixed(4)),
        cancelled.clone(),
    );
    assert_eq!(
        (alone.tokens.len(), alone.outcome),
        (4, Ok(FinishReason::Cancelled))
    );

    // In company the pass goes on for the others, and gives the cancelled one nothing.
    let cancelled = GenerationRequest {
        cancel: Cancel::default(),
        ..cancelled
    };
    let other = request(&[2], 50, greedy(), 0);
    let canceller = Canceller(cancelled.cancel.clone());
    let mut engine = engine(&model, Some(Box::new(canceller)), fixed(4));
    let ids = [cancelled, other.clone()].map(|r| engine.add(r).unwrap());
    let answers = finish(&mut engine, &ids);
    assert_eq!(
        (answers[0].tokens.len(), answers[0].outcome.clone()),
        (4, Ok(FinishReason::Cancelled))
    );
    assert_eq!(answers[1].ids(), reference(&model, &other));
    assert_eq!(engine.model().open_sequences(), 0);
}

#[test]
fn sequences_that_wait_for_pages_say_the_same() {
    // Five sequences of up to 60 tokens, room for 96: they displace each other, and all finish.
    let unlimited = ScriptedModel::random(VOCAB, 1, 2.0);
    for (tokens_per_page, pages) in [(1, 70), (4, 24), (16, 6)] {
        let model = unlimited.clone().with_pages(tokens_per_page, pages);
        let mut engine = engine(&model, Some(Box::new(RandomDrafter::new(VOCAB, 2, 1))), fixed(4));
        let requests: Vec<_> = (0..5)
            .map(|n| {
                let params = SamplerParams {
                    temperature: 0.3 * n as f32,
                    ..SamplerParams::default()
                };
                request(&vec![n; 5 * n as usize + 3], 35, params, u64::from(n))
            })
            .collect();
        let ids: Vec<_> = requests.iter().map(|r| engine.add(r.clone()).unwrap()).collect();
        for (answer, request) in finish(&mut engine, &ids).iter().zip(&requests) {
            assert_eq!(answer.ids(), reference(&unlimited, request));
            assert_eq!(answer.outcome, Ok(FinishReason::Length));
        }
        assert_eq!(engine.model().open_sequences(), 0);
    }
}

#[test]
fn one_sequence_that_does_not_fit_is_an_error() {
    let model = ScriptedModel::random(VOCAB, 1, 2.0).with_pages(4, 5);
    let mut engine = engine(&model, Some(Box::new(RandomDrafter::new(VOCAB, 1, 1))), fixed(8));
    let too_long = request(&[1; 10], 40, greedy(), 0);
    let expected = reference(&ScriptedModel::random(VOCAB, 1, 2.0), &too_long);
    let failed = answer(&mut engine, too_long);
    assert_eq!(
        failed.outcome,
        Err(SequenceError::OutOfPages(OutOfPages { needed: 1, free: 0 }))
    );
    // Twenty positions are evaluated, and the last of them still draws a token.
    assert_eq!(
        failed.ids(),
        expected[..11],
        "nothing is lost of what there was room for"
    );
    let short = answer(&mut engine, request(&[1; 10], 10, greedy(), 0));
    assert_eq!(short.ids(), expected[..10]);
    assert_eq!(engine.model().len(foretoken_spec::SequenceId(0)), 0);
}

#[test]
fn a_draft_cache_too_small_for_all_turns_drafting_off_for_none() {
    // The draft model is the target, with eight pages of four tokens. The first sequence lives short and
    // takes five or six, the second long and one at first; the third, of five, has to wait for the first.
    let model = ScriptedModel::random(VOCAB, 1, 2.0);
    let requests = [
        request(&[1; 16], 7, greedy(), 0),
        request(&[2; 2], 10, greedy(), 0),
        request(&[3; 17], 14, greedy(), 0),
    ];
    let drafter = ModelDrafter::new(model.clone().with_pages(4, 8), VOCAB);
    let mut engine = engine(&model, Some(Box::new(drafter)), fixed(2));
    let ids = requests.each_ref().map(|r| engine.add(r.clone()).unwrap());
    let answers = finish(&mut engine, &ids);
    let drafted = answers.iter().zip(&requests).map(|(answer, request)| {
        assert_eq!(answer.ids(), reference(&model, request));
        assert_eq!(answer.outcome, Ok(FinishReason::Length));
        assert_eq!(
            (&answer.warnings[..], &answer.stats.speculation.off_reason),
            (&[][..], &None)
        );
        let speculation = &answer.stats.speculation;
        assert_eq!(speculation.accepted, speculation.drafted);
        (speculation.rounds, speculation.drafted)
    });
    let drafted: Vec<_> = drafted.collect();
    // Six tokens after the first in two rounds of three, nine in three. The third's two rounds beside the
    // first have no draft, then eleven tokens take four.
    assert_eq!(drafted, [(2, 4), (3, 6), (6, 7)]);
}
