//! The one cut: stops, limits, text.

use foretoken_engine::{Engine, FinishReason, GenerationRequest};
use foretoken_spec::testing::{OracleDrafter, RandomDrafter, ScriptedModel};
use foretoken_spec::{Source, Token};

use crate::common::{Answer, Table, answer, engine, fixed, greedy, request};

const VOCAB: usize = 32;
const STOP: Token = 31;

/// A model that says `tokens` after a prompt of one, drafted `k` at a time by someone who knows.
fn said(tokens: &[Token], k: usize, change: impl FnOnce(&mut GenerationRequest)) -> Answer {
    let model = ScriptedModel::saying(VOCAB, 1, tokens.to_vec()).with_end_of_generation(vec![STOP]);
    let oracle = OracleDrafter::new(vec![[&[0], tokens].concat()]);
    let mut request = request(&[0], 1000, greedy(), 0);
    change(&mut request);
    let answer = answer(&mut engine(&model, Some(Box::new(oracle)), fixed(k)), request);
    assert!(answer.stats.speculation.accepted <= answer.tokens.len());
    answer
}

#[test]
fn a_stop_token_inside_an_accepted_run_ends_it() {
    for k in 0..10 {
        let answer = said(&[10, 11, STOP, 20, 21], k, |_| ());
        assert_eq!(answer.ids(), [10, 11]);
        assert_eq!(answer.text, "kl");
        assert_eq!(answer.outcome, Ok(FinishReason::Stop));
        assert_eq!(answer.stats.generated, 2);
    }
    // The first token is the prompt's; of the draft 11, STOP, 20, 21 one token is output.
    let speculation = said(&[10, 11, STOP, 20, 21], 4, |_| ()).stats.speculation;
    assert_eq!(
        (speculation.rounds, speculation.proposed, speculation.drafted),
        (1, 4, 1)
    );
    assert_eq!((speculation.accepted, speculation.discarded_by_cut), (1, 3));
    assert_eq!(speculation.accepted_per_position, [1]);
    assert_eq!(speculation.acceptance_rate(), Some(1.0));
}

#[test]
fn a_stop_token_first_of_all_is_an_empty_answer() {
    let answer = said(&[STOP, 5], 4, |_| ());
    assert_eq!(
        (answer.ids(), answer.text.as_str(), answer.outcome),
        (vec![], "", Ok(FinishReason::Stop))
    );
    assert_eq!(answer.stats.speculation.rounds, 0);
}

#[test]
fn stop_strings_are_found_at_every_split() {
    // "abc…": the stop string of every length at every place, inside runs of every length.
    let tokens: Vec<Token> = (0..26).collect();
    let letters = "abcdefghijklmnopqrstuvwxyz";
    for start in [0, 1, 2, 7, 20] {
        for len in 1..=5 {
            for k in [0, 1, 3, 8] {
                let stop = &letters[start..start + len];
                let answer = said(&tokens, k, |r| r.stops = vec!["zzz".into(), stop.into()]);
                assert_eq!(answer.text, letters[..start], "{stop}, {k} tokens");
                assert_eq!(
                    answer.ids(),
                    tokens[..start + len],
                    "the token that completes it is the last"
                );
                assert_eq!(answer.outcome, Ok(FinishReason::Stop));
            }
        }
    }
}

#[test]
fn text_that_might_have_become_a_stop_string_comes_out() {
    let tokens: Vec<Token> = (0..8).collect();
    for k in [0, 4] {
        let answer = said(&tokens, k, |r| {
            r.stops = vec!["cdx".into(), "ghi".into()];
            r.max_tokens = Some(8);
        });
        assert_eq!(
            (answer.text.as_str(), answer.outcome),
            ("abcdefgh", Ok(FinishReason::Length))
        );
    }
}

#[test]
fn never_more_tokens_than_asked_for() {
    let tokens: Vec<Token> = (0..26).collect();
    for max in 1..12 {
        for k in [0, 1, 2, 8, 16] {
            let answer = said(&tokens, k, |r| r.max_tokens = Some(max));
            assert_eq!(answer.ids(), tokens[..max]);
            assert_eq!(answer.outcome, Ok(FinishReason::Length));
            assert_eq!(
                answer.stats.speculation.discarded_by_cut, 0,
                "the draft is not longer than the limit"
            );
        }
    }
}

#[test]
fn drafts_shrink_near_the_context() {
    const CONTEXT: usize = 64;
    for room in [1, 2, 8] {
        for width in [1, 3] {
            let model = ScriptedModel::random(VOCAB, 3, 2.0).with_context(CONTEXT);
            let random = RandomDrafter::new(VOCAB, width, 1);
            let mut engine = engine(&model, Some(Box::new(random)), fixed(16));
            let mut request = request(&vec![1; CONTEXT - room], 1000, greedy(), 0);
            for max_tokens in [Some(1000), None] {
                request.max_tokens = max_tokens;
                let answer = answer(&mut engine, request.clone());
                assert_eq!(answer.tokens.len(), room);
                assert_eq!(answer.outcome, Ok(FinishReason::Context));
            }
            assert!(
                engine
                    .model()
                    .evaluations()
                    .iter()
                    .all(|e| e.position < CONTEXT - 1)
            );
        }
    }
}

#[test]
fn a_cut_leaves_nothing_behind() {
    // The same engine after a cut in the middle of a run: the next request starts from nothing.
    let tokens: Vec<Token> = (0..26).collect();
    let model = ScriptedModel::saying(VOCAB, 1, tokens.clone());
    let oracle = OracleDrafter::new(vec![[&[0], &tokens[..]].concat()]);
    let mut engine = engine(&model, Some(Box::new(oracle)), fixed(8));
    let mut first = request(&[0], 20, greedy(), 0);
    first.stops = vec!["de".into()];
    assert_eq!(answer(&mut engine, first).text, "abc");
    assert_eq!(engine.model().open_sequences(), 0);
    assert_eq!(
        answer(&mut engine, request(&[0], 20, greedy(), 0)).ids(),
        tokens[..20]
    );
}

#[test]
fn sources_and_rejections_are_told() {
    let tokens: Vec<Token> = (0..9).collect();
    let answer = said(&tokens, 3, |r| r.max_tokens = Some(9));
    let drafted: Vec<bool> = answer
        .tokens
        .iter()
        .map(|t| t.source == Some(Source::Scripted))
        .collect();
    // The prompt's token, then rounds of three drafted and one of the target's own.
    assert_eq!(drafted, [false, true, true, true, false, true, true, true, false]);
    assert_eq!(answer.rejected, []);

    let model = ScriptedModel::saying(VOCAB, 1, vec![7; 40]);
    let random = RandomDrafter::new(7, 1, 1);
    let got = crate::common::answer(
        &mut engine(&model, Some(Box::new(random)), fixed(2)),
        request(&[0], 5, greedy(), 0),
    );
    assert_eq!(got.ids(), [7; 5]);
    // Rounds of 2, 2, 1 and 0 draft tokens; what a finished sequence rejected is of no interest.
    assert_eq!(got.rejected.len(), 5);
    assert!(got.rejected.iter().all(|&token| token < 7));
}

#[test]
fn characters_are_never_broken() {
    let text = "aß€😀.";
    for per_token in 1..=text.len() {
        let pieces: Vec<Vec<u8>> = text.as_bytes().chunks(per_token).map(<[u8]>::to_vec).collect();
        let tokens: Vec<Token> = (0..pieces.len() as Token).collect();
        for k in [0, 2, 8] {
            let model = ScriptedModel::saying(VOCAB, 1, tokens.clone());
            let oracle = OracleDrafter::new(vec![[&[0], &tokens[..]].concat()]);
            let table = Table(pieces.clone());
            let mut engine: Engine<ScriptedModel> =
                Engine::new(model, table, Some(Box::new(oracle)), fixed(k));
            let whole = answer(&mut engine, request(&[0], tokens.len(), greedy(), 0));
            assert_eq!(whole.text, text);
            // Cut off anywhere, the incomplete character is one that says so.
            for max in 1..tokens.len() {
                let cut = answer(&mut engine, request(&[0], max, greedy(), 0));
                assert_eq!(cut.text, String::from_utf8_lossy(&pieces[..max].concat()));
            }
        }
    }
}
