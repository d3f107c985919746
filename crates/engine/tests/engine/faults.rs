//! What goes wrong, and what does not go wrong with it.

use std::sync::{Arc, Mutex};

use foretoken_engine::{
    FinishReason, GenerationRequest, MAX_STOP_BYTES, MAX_STOPS, RequestError, SequenceError,
};
use foretoken_spec::testing::{FailingDrafter, OracleDrafter, RandomDrafter, ScriptedModel};
use foretoken_spec::{
    Capabilities, Committed, DraftError, Drafter, HiddenNeed, LogitError, ModelError, Needs, Request,
    SamplerParams, SequenceId, Token,
};

use crate::common::{answer, engine, finish, fixed, greedy, reference, request};

const VOCAB: usize = 32;

#[test]
fn requests_that_cannot_be_served_are_refused() {
    let model = ScriptedModel::random(VOCAB, 1, 2.0).with_context(16);
    let mut engine = engine(&model, None, fixed(4));
    let mut check = |change: &dyn Fn(&mut GenerationRequest), expected: &str| {
        let mut request = request(&[1, 2], 5, greedy(), 0);
        change(&mut request);
        let error: RequestError = engine.add(request).unwrap_err();
        assert_eq!(error.to_string(), expected);
    };
    check(&|r| r.prompt.clear(), "the prompt is empty");
    check(
        &|r| r.prompt = vec![1; 16],
        "the prompt of 16 tokens leaves no room in a context of 16",
    );
    check(
        &|r| r.prompt = vec![1; 99],
        "the prompt of 99 tokens leaves no room in a context of 16",
    );
    check(
        &|r| r.prompt.push(32),
        "the prompt has token 32, which is outside the vocabulary of 32",
    );
    check(&|r| r.max_tokens = Some(0), "max_tokens must be at least 1");
    check(
        &|r| r.stops = vec!["a".into(), String::new()],
        "stop: a string is empty",
    );
    check(
        &|r| r.stops = vec!["x".repeat(MAX_STOP_BYTES + 1)],
        "stop: a string of 1025 bytes is longer than 1024",
    );
    check(
        &|r| r.stops = vec!["x".into(); MAX_STOPS + 1],
        "stop: 65 strings are more than 64",
    );
    check(
        &|r| r.sampler.logit_bias = vec![(32, 1.0)],
        "logit_bias names token 32, which is outside the vocabulary of 32",
    );
    let mut bad = request(
        &[1],
        1,
        SamplerParams {
            temperature: f32::NAN,
            ..greedy()
        },
        0,
    );
    assert!(matches!(engine.add(bad.clone()), Err(RequestError::Sampler(_))));
    bad.sampler.temperature = 0.0;
    assert!(engine.is_idle() && engine.add(bad).is_ok());
}

#[test]
fn a_logit_that_is_no_number_fails_its_own_sequence() {
    // After token 9 the model computes nonsense; one sequence is led there, the other is not.
    let model = |nonsense: f32| {
        ScriptedModel::new(VOCAB, move |path, logits| {
            logits.fill(0.0);
            logits[(*path.last().unwrap() as usize + 1) % VOCAB] = 60.0;
            if path.last() == Some(&9) {
                logits[17] = nonsense;
            }
        })
    };
    for nonsense in [f32::NAN, f32::INFINITY] {
        for k in [0, 2, 8] {
            let texts = vec![(5..15).collect(), (10..30).collect()];
            let oracle = OracleDrafter::new(texts);
            let mut engine = engine(&model(nonsense), Some(Box::new(oracle)), fixed(k));
            let led = engine.add(request(&[5], 20, greedy(), 0)).unwrap();
            let other = engine.add(request(&[10], 10, greedy(), 0)).unwrap();
            let answers = finish(&mut engine, &[led, other]);
            let nonsense = LogitError::NotFinite { token: 17 };
            assert_eq!(answers[0].outcome, Err(nonsense.into()));
            assert_eq!(
                answers[0].ids(),
                [6, 7, 8, 9],
                "what came before it is given, {k} tokens"
            );
            assert_eq!(answers[1].outcome, Ok(FinishReason::Length));
            assert_eq!(answers[1].ids(), (11..21).collect::<Vec<Token>>());
            assert_eq!(engine.model().open_sequences(), 0);
        }
    }
}

#[test]
fn a_pass_that_fails_ends_its_sequences_and_no_other() {
    for pass in 0..6 {
        let broken = ModelError::Backend("the machine is on fire".into());
        let model = ScriptedModel::random(VOCAB, 1, 2.0).failing_at(pass, broken.clone());
        let mut engine = engine(&model, Some(Box::new(RandomDrafter::new(VOCAB, 1, 1))), fixed(2));
        let request = request(&[1, 2, 3], 20, greedy(), 0);
        let expected = reference(&ScriptedModel::random(VOCAB, 1, 2.0), &request);
        let failed = answer(&mut engine, request.clone());
        assert_eq!(failed.outcome, Err(SequenceError::Model(broken)));
        assert!(expected.starts_with(&failed.ids()));
        assert_eq!(answer(&mut engine, request).ids(), expected);
        assert_eq!(engine.model().open_sequences(), 0);
    }
}

#[test]
fn a_failing_drafter_is_turned_off_and_says_why() {
    let model = ScriptedModel::random(VOCAB, 1, 2.0);
    let requests: Vec<_> = (1..4).map(|n| request(&[n, n], 30, greedy(), 0)).collect();
    let texts = requests
        .iter()
        .map(|r| [r.prompt.clone(), reference(&model, r)].concat())
        .collect();
    let failing = FailingDrafter::new(OracleDrafter::new(texts), 1, 1);
    let mut engine = engine(&model, Some(Box::new(failing)), fixed(4));
    let ids: Vec<_> = requests.iter().map(|r| engine.add(r.clone()).unwrap()).collect();
    for (answer, request) in finish(&mut engine, &ids).iter().zip(&requests) {
        assert_eq!(answer.ids(), reference(&model, request));
        assert_eq!(answer.warnings, ["told to fail"]);
        assert_eq!(
            answer.stats.speculation.off_reason.as_deref(),
            Some("told to fail")
        );
        assert_eq!(
            (answer.stats.speculation.drafted, answer.stats.speculation.rounds),
            (0, 29)
        );
    }
}

/// Refuses every sequence, or asks for everything and notes what it is shown.
struct Watcher {
    needs: Needs,
    refuses: bool,
    seen: Arc<Mutex<Vec<Committed>>>,
    hidden: Arc<Mutex<Vec<Option<Vec<f32>>>>>,
}

impl Drafter for Watcher {
    fn name(&self) -> &str {
        "watcher"
    }

    fn needs(&self) -> Needs {
        self.needs
    }

    fn begin(&mut self, _sequence: SequenceId, _prompt: &[Token]) -> Result<(), DraftError> {
        if self.refuses {
            Err(DraftError::Other("not this one".into()))
        } else {
            Ok(())
        }
    }

    fn draft(&mut self, requests: &mut [Request<'_>]) -> Result<(), DraftError> {
        self.hidden
            .lock()
            .unwrap()
            .extend(requests.iter().map(|r| r.hidden.map(<[f32]>::to_vec)));
        RandomDrafter::new(VOCAB, 2, 1).draft(requests)
    }

    fn observe(&mut self, _sequence: SequenceId, committed: &Committed) {
        self.seen.lock().unwrap().push(committed.clone());
    }

    fn end(&mut self, _sequence: SequenceId) {}
}

fn watcher(needs: Needs, refuses: bool) -> Watcher {
    Watcher {
        needs,
        refuses,
        seen: Arc::default(),
        hidden: Arc::default(),
    }
}

#[test]
fn a_drafter_that_cannot_serve_a_sequence_is_off_for_it() {
    let needs = Needs {
        hidden: HiddenNeed::LastRow,
        top_logits: 0,
    };
    let no_hidden = Capabilities {
        trees: true,
        hidden: false,
        row_invariant: true,
    };
    let random = ScriptedModel::random(VOCAB, 1, 2.0);
    for (model, drafter, reason) in [
        (random.clone(), watcher(Needs::default(), true), "not this one"),
        (
            random.with_capabilities(no_hidden),
            watcher(needs, false),
            "the target model gives no hidden states",
        ),
    ] {
        let request = request(&[1, 2], 10, greedy(), 0);
        let got = answer(
            &mut engine(&model, Some(Box::new(drafter)), fixed(4)),
            request.clone(),
        );
        assert_eq!(got.ids(), reference(&model, &request));
        assert_eq!(got.warnings, [reason]);
        assert_eq!(got.stats.speculation.off_reason.as_deref(), Some(reason));
    }
}

#[test]
fn a_drafter_sees_the_rows_it_asks_for() {
    let model = ScriptedModel::random(VOCAB, 1, 2.0);
    let watcher = watcher(
        Needs {
            hidden: HiddenNeed::EveryRow,
            top_logits: 3,
        },
        false,
    );
    let (seen, shown) = (watcher.seen.clone(), watcher.hidden.clone());
    let options = foretoken_engine::EngineOptions {
        prompt_rows: 4,
        ..fixed(5)
    };
    let request = request(&[1, 2, 3, 4, 5, 6], 8, greedy(), 0);
    let got = answer(
        &mut engine(&model, Some(Box::new(watcher)), options),
        request.clone(),
    );
    let seen = seen.lock().unwrap();
    // Two chunks of the prompt, each row with its hidden state, then the rounds.
    assert_eq!(seen[0].tokens, [1, 2, 3, 4]);
    assert_eq!(seen[1].tokens, [5, 6]);
    assert!(
        seen[..2]
            .iter()
            .all(|c| c.accepted.is_empty() && c.rows.len() == c.tokens.len())
    );
    assert!(
        seen.iter()
            .flat_map(|c| &c.rows)
            .all(|row| row.hidden.as_ref().is_some_and(|h| h.len() == 4))
    );
    let all: Vec<Token> = seen.iter().flat_map(|c| c.tokens.clone()).collect();
    assert_eq!(
        all,
        [request.prompt.clone(), got.ids()].concat(),
        "every token once, in order"
    );
    let mut path = request.prompt.clone();
    for round in &seen[2..] {
        let root = &round.rows[0];
        let logits = model.logits_after(&path);
        let best = (0..)
            .zip(&logits)
            .max_by(|a: &(Token, _), b| a.1.total_cmp(b.1))
            .unwrap()
            .0;
        assert_eq!(
            (root.node, root.top_logits[0].0, root.top_logits.len()),
            (None, best, 3)
        );
        path.extend(&round.tokens);
    }
    // The hidden state before a draft is that of the row that its root was drawn from.
    let shown = shown.lock().unwrap();
    for (draft, round) in shown.iter().zip(&seen[2..]) {
        let row = round.accepted.last().map_or(0, |&node| node as usize + 1);
        assert_eq!(draft.as_ref(), round.rows[row].hidden.as_ref());
    }
}
