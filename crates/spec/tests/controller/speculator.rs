//! A speculator among the drafters: it reads nothing, so that it drafts from the first round on.

use std::sync::{Arc, Mutex};

use foretoken_spec::{
    Budget, CostlyDrafter, CostlyKind, DraftError, Drafter, Node, Request, SequenceId, Source, Token,
};

use crate::model::timed;
use crate::{BUDGET, Chain, LOSS_BUDGET, chance, controller, flat, free, run, run_within, table, uniform};

const HEADS: usize = 3;

/// A speculator that is as sure of each token, and took so many seconds for a step.
pub fn speculator(confidence: f32, step: f64, known: Option<f64>) -> CostlyDrafter {
    let chain = Chain {
        source: Source::Mlp,
        length: HEADS,
        confidence,
        fails: false,
    };
    let acceptance = vec![known; HEADS];
    timed(chain, step, CostlyKind::Speculator { acceptance })
}

#[test]
fn it_drafts_from_the_first_round_on_where_that_pays() {
    let mut short = controller(Vec::new(), Some(speculator(0.8, 0.002, Some(0.8))), table(flat));
    let outcome = run(&mut short, 4, |_| true, |rows, _| flat(rows));
    assert!(
        outcome.rounds == 1 && outcome.sources == [Source::Mlp; HEADS],
        "{outcome:?}"
    );
    let mut long = controller(Vec::new(), Some(speculator(0.8, 0.002, Some(0.8))), table(flat));
    let outcome = run(&mut long, 600, chance(0.8), |rows, _| flat(rows));
    assert!(outcome.speedup() > 2.0, "{}", outcome.speedup());
    assert_eq!(long.times().unwrap().prompt_rows, 0);
}

#[test]
fn what_its_file_tells_is_believed_until_it_drafts() {
    let first = |known, step| {
        let mut controller = controller(Vec::new(), Some(speculator(0.8, step, known)), table(flat));
        !run(&mut controller, 2, |_| true, |rows, _| flat(rows))
            .sources
            .is_empty()
    };
    // A step of half a pass: worth it where heads are nearly always right.
    assert!(first(Some(0.95), 0.03) && !first(Some(0.2), 0.03));
    // What is not known is taken for half: of a cheap step that is enough.
    assert!(first(None, 0.002) && !first(None, 0.03));
    // What is known to be bad is not asked, however cheap.
    assert!(!first(Some(0.05), 0.002));
}

#[test]
fn what_never_comes_true_loses_the_budgets_share_and_a_round() {
    for step in [0.001, 0.01, 0.03] {
        let wrong = speculator(0.9, step, Some(0.9));
        let mut controller = controller(Vec::new(), Some(wrong), table(flat));
        let outcome = run(&mut controller, 1000, |_| false, |rows, _| flat(rows));
        let allowed = (1.0 + LOSS_BUDGET) * outcome.plain + outcome.longest_round;
        assert!(outcome.seconds <= allowed * 1.002, "{outcome:?}");
    }
}

#[test]
fn a_request_may_do_without_it() {
    let sources = |without: bool| {
        let mut controller = controller(free(1, 0.5), Some(speculator(0.9, 0.001, Some(0.9))), table(flat));
        let budget = Budget {
            sources: match without {
                true => BUDGET.sources.without(Source::Mlp),
                false => BUDGET.sources,
            },
            ..BUDGET
        };
        run_within(&mut controller, budget, 20, 100, chance(0.9), |rows, _| {
            flat(rows)
        })
        .sources
    };
    assert!(sources(false).contains(&Source::Mlp));
    let without = sources(true);
    assert!(
        !without.is_empty() && !without.contains(&Source::Mlp),
        "{without:?}"
    );
}

/// A chain whose tokens come true as often as it says, each with a confidence of its own.
struct Calibrated {
    confidences: Arc<Mutex<Vec<f32>>>,
    random: Box<dyn FnMut() -> f64 + Send>,
}

impl Drafter for Calibrated {
    fn name(&self) -> &str {
        "calibrated"
    }
    fn begin(&mut self, _: SequenceId, _: &[Token]) -> Result<(), DraftError> {
        Ok(())
    }
    fn draft(&mut self, requests: &mut [Request<'_>]) -> Result<(), DraftError> {
        let mut confidences = self.confidences.lock().unwrap();
        confidences.clear();
        let request = &mut requests[0];
        let (mut parent, mut path) = (None, 1.0);
        for token in 0..2.min(request.budget.max_depth) {
            if token > 0 && path < request.budget.min_path_probability {
                break;
            }
            let confidence = (self.random)() as f32;
            path *= confidence;
            confidences.push(confidence);
            parent = Some(request.tree.push(Node {
                token: token as Token,
                parent,
                confidence,
                source: Source::Mlp,
                rank: 0,
            }));
        }
        Ok(())
    }
    fn end(&mut self, _: SequenceId) {}
}

#[test]
fn it_goes_on_where_chance_was_against_it() {
    // Right half of the time: always drafting two would gain a factor of 1.4. Answers of 200 tokens, each with luck of its own.
    let pass = |rows: usize| 0.01 * (1.0 + 0.05 * (rows - 1) as f64);
    let mut speedups = 0.0;
    for seed in 0..40 {
        let confidences = Arc::new(Mutex::new(Vec::new()));
        let chain = Calibrated {
            confidences: confidences.clone(),
            random: Box::new(uniform(seed)),
        };
        let acceptance = vec![Some(0.5); 2];
        let costly = timed(chain, 0.0006, CostlyKind::Speculator { acceptance });
        let mut controller = controller(Vec::new(), Some(costly), table(pass));
        let mut random = uniform(1000 + seed);
        let right = |depth: usize| random() < confidences.lock().unwrap()[depth - 1].into();
        speedups += run(&mut controller, 200, right, |rows, _| pass(rows)).speedup();
    }
    assert!(speedups / 40.0 > 1.38, "{}", speedups / 40.0);
}
