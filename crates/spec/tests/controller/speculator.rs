//! A speculator among the drafters: it reads nothing, so that it drafts from the first round on.

use foretoken_spec::{CostlyDrafter, CostlyKind, Drafter, Source};

use crate::model::timed;
use crate::{Chain, LOSS_BUDGET, chance, controller, flat, free, run, table};

const HEADS: usize = 3;

/// A speculator that is as sure of each token, and took so many seconds for a step.
fn speculator(confidence: f32, step: f64, known: Option<f64>) -> CostlyDrafter {
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
    let dear = speculator(0.5, 0.06, Some(0.5));
    let mut beside = controller(free(15, 0.9), Some(dear), table(flat));
    let outcome = run(&mut beside, 400, chance(0.9), |rows, _| flat(rows));
    assert!(outcome.sources.iter().all(|&source| source == Source::Suffix));
}
