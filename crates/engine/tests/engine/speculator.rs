//! A speculator drafts from the hidden state of the row from which the last token was drawn. Here the states name their rows, and the
//! network is right if it is given the right one: then nothing is ever rejected.

use std::time::Duration;

use foretoken_engine::{DraftPolicy, EngineOptions, GenerationRequest, PromptPace};
use foretoken_spec::drafters::SpeculatorDrafter;
use foretoken_spec::testing::{ScriptedModel, ScriptedNetwork, open_params};
use foretoken_spec::{
    ControlledDrafter, ControllerParams, CostModel, CostPoint, CostlyDrafter, CostlyKind, DraftError,
    Drafter, Needs, Node, Request, SequenceId, Source, Token,
};

use crate::common::{Answer, answer, engine, finish, finish_after, fixed, greedy, reference, request};

const VOCAB: usize = 32;
const HEADS: usize = 3;

fn model() -> ScriptedModel {
    ScriptedModel::random(VOCAB, 1, 2.0)
}

fn speculator(model: &ScriptedModel) -> Box<dyn Drafter> {
    let network = ScriptedNetwork::new(model.clone(), HEADS);
    Box::new(SpeculatorDrafter::new(network, VOCAB, Vec::new()))
}

/// A prompt of `len` tokens that only prompts of the same `kind` begin like.
fn prompt(kind: Token, len: usize) -> Vec<Token> {
    (0..len as Token)
        .map(|at| (at * 7 + kind) % VOCAB as Token)
        .collect()
}

/// The tokens of plain decoding, and no draft token that was wrong.
fn check(answer: &Answer, request: &GenerationRequest, what: &str) {
    assert_eq!(answer.ids(), reference(&model(), request), "{what}");
    let spec = &answer.stats.speculation;
    assert!(spec.drafted > 0, "{what}: nothing was drafted");
    assert_eq!(
        spec.accepted + spec.discarded_by_cut,
        spec.drafted,
        "{what}: a state was not that of the right row"
    );
    assert_eq!(spec.by_source[&Source::Mlp].accepted, spec.accepted);
}

#[test]
fn after_chunks_of_prompts() {
    for rows in [1, 3, 8, 39, 40, 1000] {
        for (len, temperature) in [(1, 0.0), (40, 0.0), (41, 0.9)] {
            let options = EngineOptions {
                prompt_rows: rows,
                ..fixed(HEADS)
            };
            let asked = request(&prompt(1, len), 30, open_params(temperature), 3);
            let got = answer(
                &mut engine(&model(), Some(speculator(&model())), options),
                asked.clone(),
            );
            check(&got, &asked, &format!("{rows} rows of {len}"));
            // All but the first token came by rounds of four, all of them right.
            assert_eq!(got.stats.speculation.rounds, 29usize.div_ceil(HEADS + 1));
        }
    }
}

#[test]
fn after_drafts_that_are_partly_right() {
    // Other drafts among the speculator's rows, and its own that are wrong: it goes on from wherever the round ended.
    let model = model();
    for (seed, k) in [(1, 1), (2, 2), (3, 3), (4, 8)] {
        let asked = request(&prompt(2, 9), 80, open_params(1.0), seed);
        let network = ScriptedNetwork::new(model.blurred(seed, 1.0), HEADS);
        let blurred = SpeculatorDrafter::new(network, VOCAB, Vec::new());
        let text = [asked.prompt.clone(), reference(&model, &asked)].concat();
        let both = Beside(Watched(blurred), text);
        let mut unsure = engine(&model, Some(Box::new(both)), trees(8 + k));
        let got = answer(&mut unsure, asked.clone());
        assert_eq!(got.ids(), reference(&model, &asked));
        let spec = &got.stats.speculation;
        assert!(spec.accepted > 0 && spec.accepted < spec.drafted, "{spec:?}");
        for source in [Source::Mlp, Source::Suffix] {
            assert!(spec.by_source[&source].accepted > 0, "{spec:?}");
        }
    }
}

/// Trees of up to so many nodes.
fn trees(max: usize) -> EngineOptions {
    EngineOptions {
        policy: DraftPolicy {
            max,
            ..DraftPolicy::default()
        },
        ..EngineOptions::default()
    }
}

/// Another drafter before this one, which knows the text and proposes its next tokens: every other round these, and else others.
struct Beside<D>(D, Vec<Token>);

impl<D: Drafter> Drafter for Beside<D> {
    fn name(&self) -> &str {
        "beside"
    }
    fn needs(&self) -> Needs {
        self.0.needs()
    }
    fn begin(&mut self, sequence: SequenceId, prompt: &[Token]) -> Result<(), DraftError> {
        self.0.begin(sequence, prompt)
    }
    fn draft(&mut self, requests: &mut [Request<'_>]) -> Result<(), DraftError> {
        for request in requests.iter_mut() {
            let at = request.tokens.len();
            let room = request.position_limit.saturating_sub(at).min(2);
            let mut parent = None;
            for &token in self.1[at..].iter().take(room) {
                parent = Some(request.tree.push(Node {
                    token: (token + at as Token % 2) % VOCAB as Token,
                    parent,
                    confidence: 0.5,
                    source: Source::Suffix,
                    rank: 0,
                }));
            }
        }
        self.0.draft(requests)
    }
    fn end(&mut self, sequence: SequenceId) {
        self.0.end(sequence);
    }
}

/// A drafter that checks the state of each request against the row that it must be of.
struct Watched<D>(D);

impl<D: Drafter> Drafter for Watched<D> {
    fn name(&self) -> &str {
        "watched"
    }
    fn needs(&self) -> Needs {
        self.0.needs()
    }
    fn begin(&mut self, sequence: SequenceId, prompt: &[Token]) -> Result<(), DraftError> {
        self.0.begin(sequence, prompt)
    }
    fn draft(&mut self, requests: &mut [Request<'_>]) -> Result<(), DraftError> {
        for request in requests.iter() {
            let before = &request.tokens[..request.tokens.len() - 1];
            let last = before.iter().rev().map(|&token| token as f32);
            let mut row: Vec<f32> = std::iter::once(before.len() as f32).chain(last).take(4).collect();
            row.resize(4, 0.0);
            assert_eq!(request.hidden, Some(&row[..]));
        }
        self.0.draft(requests)
    }
    fn end(&mut self, sequence: SequenceId) {
        self.0.end(sequence);
    }
}

#[test]
fn after_trees() {
    // Leaves of the first level, deep paths, and branches: the accepted path is committed, and its last row is the state's.
    let model = model();
    for max in [1, 2, 4, 7, 15] {
        for (temperature, key) in [(0.0, 0), (0.7, 1), (1.3, 2)] {
            let asked = request(&prompt(3, 12), 60, open_params(temperature), key);
            let network = ScriptedNetwork::new(model.blurred(4, 0.7), HEADS);
            let drafter = SpeculatorDrafter::new(network, VOCAB, Vec::new());
            let mut grown = engine(&model, Some(Box::new(Watched(drafter))), trees(max));
            let got = answer(&mut grown, asked.clone());
            assert_eq!(got.ids(), reference(&model, &asked));
            assert!(got.stats.speculation.accepted > 0);
        }
    }
}

#[test]
fn after_prefixes_from_the_cache() {
    let model = model();
    let options = EngineOptions {
        prefixes: 4,
        ..fixed(HEADS)
    };
    let mut engine = engine(&model, Some(speculator(&model)), options);
    let first = request(&prompt(1, 40), 21, greedy(), 0);
    let said = answer(&mut engine, first.clone());
    check(&said, &first, "first");
    // The whole of it again, and the conversation that goes on.
    let again = answer(&mut engine, first.clone());
    check(&again, &first, "again");
    assert_eq!(again.stats.cached_tokens, 39);
    let longer = [first.prompt.clone(), said.ids(), vec![3, 4, 5]].concat();
    let second = request(&longer, 21, open_params(1.1), 7);
    let went_on = answer(&mut engine, second.clone());
    check(&went_on, &second, "longer");
    assert!(went_on.stats.cached_tokens > 40);
}

#[test]
fn of_several_sequences() {
    let model = model();
    let asked: Vec<GenerationRequest> = (0..7)
        .map(|at| {
            let temperature = [0.0, 0.7, 1.3][at % 3];
            request(
                &prompt(at as Token, 3 + 11 * at),
                25 + at,
                open_params(temperature),
                at as u64,
            )
        })
        .collect();
    let options = EngineOptions {
        prompt_rows: 8,
        ..fixed(HEADS)
    };
    let mut engine = engine(&model, Some(speculator(&model)), options);
    let (mut ids, mut early) = (Vec::new(), Vec::new());
    for request in &asked {
        ids.push(engine.add(request.clone()).unwrap());
        early.extend((0..2).flat_map(|_| engine.step()));
    }
    for (answer, request) in finish_after(&mut engine, early, &ids).iter().zip(&asked) {
        check(
            answer,
            request,
            &format!("{} tokens of prompt", request.prompt.len()),
        );
    }
}

#[test]
fn of_sequences_that_lost_their_pages_and_were_read_again() {
    let small = model().with_pages(4, 24);
    for prompt_rows in [3, 5, 8, 256] {
        let asked: Vec<GenerationRequest> = (0..4)
            .map(|at| request(&prompt(at, 8), 40, open_params(0.8), u64::from(at)))
            .collect();
        let options = EngineOptions {
            prompt_rows,
            ..fixed(HEADS)
        };
        let mut engine = engine(&small, Some(speculator(&model())), options);
        let ids: Vec<_> = asked.iter().map(|r| engine.add(r.clone()).unwrap()).collect();
        let answers = finish(&mut engine, &ids);
        for (answer, request) in answers.iter().zip(&asked) {
            check(answer, request, &format!("chunks of {prompt_rows}"));
        }
        let evaluated = engine.model().evaluations();
        let twice = evaluated.iter().any(|e| {
            evaluated.iter().any(|f| {
                f.pass > e.pass + 1 && (f.sequence, f.position, f.token) == (e.sequence, e.position, e.token)
            })
        });
        assert!(twice, "none lost its pages");
        assert_eq!(engine.model().open_sequences(), 0);
    }
}

/// Costs that make a speculator pay.
fn costs(row: f64) -> CostModel {
    let point = |rows: usize| CostPoint {
        rows,
        seconds: row * (1.0 + 0.05 * rows as f64),
    };
    CostModel::new(vec![point(1), point(4), point(16)])
}

#[test]
fn beside_prompts_that_are_read() {
    // A draft model leaves such rounds alone; a speculator drafts in them too, until the deadline.
    let model = model();
    let speculator = CostlyDrafter {
        drafter: speculator(&model),
        cost: costs(1e-7),
        kind: CostlyKind::Speculator {
            acceptance: vec![Some(0.9); HEADS],
        },
    };
    let params = ControllerParams::default();
    let controlled = ControlledDrafter::new(params, Vec::new(), Some(speculator), costs(1e-3));
    let options = EngineOptions {
        prompt_rows: 4,
        pace: Some(PromptPace::new(costs(1e-3), Duration::from_secs(3600))),
        ..EngineOptions::default()
    };
    let mut engine = engine(&model, Some(Box::new(controlled)), options);
    let decodes = request(&prompt(1, 4), 30, greedy(), 0);
    let reads = request(&prompt(2, 200), 4, greedy(), 0);
    let first = engine.add(decodes.clone()).unwrap();
    let mut early: Vec<_> = (0..2).flat_map(|_| engine.step()).collect();
    let second = engine.add(reads.clone()).unwrap();
    early.extend((0..8).flat_map(|_| engine.step()));
    assert!(
        engine
            .model()
            .evaluations()
            .iter()
            .filter(|e| e.position > 150)
            .count()
            == 0
    );
    let answers = finish_after(&mut engine, early, &[first, second]);
    assert_eq!(answers[0].ids(), reference(&model, &decodes));
    assert_eq!(answers[1].ids(), reference(&model, &reads));
    let spec = &answers[0].stats.speculation;
    assert!(spec.by_source.contains_key(&Source::Mlp), "{spec:?}");
}
