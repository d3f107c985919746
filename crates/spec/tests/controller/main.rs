//! The controller in a world of made-up times: what it drafts, what it costs, and what it never loses.
//!
//! Here: one sequence with drafts that cost nothing. `model`: a draft model. `speculator`: a speculator. `batch`: several sequences, and prompts.

mod batch;
mod model;
mod speculator;

use foretoken_spec::{
    Budget, Committed, ControlledDrafter, ControllerParams, CostModel, CostPoint, CostlyDrafter, DraftError,
    Drafter, Node, NodeId, PassTime, PlainReason, Request, Sampler, SamplerParams, SequenceId, Source,
    Sources, Token, TokenTree,
};

const SEQUENCE: SequenceId = SequenceId(1);
const LOSS_BUDGET: f64 = 0.02;
const BUDGET: Budget = Budget {
    max_nodes: 16,
    max_depth: 16,
    max_branches: 4,
    sources: Sources::ALL,
    max_read: usize::MAX,
    min_path_probability: 0.0,
    min_confidence: 0.0,
};

/// Proposes a chain, as sure of each token as it is told to be.
struct Chain {
    source: Source,
    length: usize,
    confidence: f32,
    fails: bool,
}

impl Drafter for Chain {
    fn name(&self) -> &str {
        "chain"
    }
    fn begin(&mut self, _: SequenceId, _: &[Token]) -> Result<(), DraftError> {
        Ok(())
    }
    fn draft(&mut self, requests: &mut [Request<'_>]) -> Result<(), DraftError> {
        if self.fails {
            return Err(DraftError::Other("no luck".into()));
        }
        for request in requests {
            let mut parent = None;
            let budget = request.budget;
            let most = budget.max_nodes.min(budget.max_depth).min(self.length);
            let mut path = 1.0;
            for token in 0..most {
                // The first step is decided already.
                if token > 0 && path < budget.min_path_probability {
                    break;
                }
                path *= self.confidence;
                parent = Some(request.tree.push(Node {
                    token: 100 + token as Token,
                    parent,
                    confidence: self.confidence,
                    source: self.source,
                    rank: 0,
                }));
            }
        }
        Ok(())
    }
    fn end(&mut self, _: SequenceId) {}
}

fn free(length: usize, confidence: f32) -> Vec<Box<dyn Drafter>> {
    vec![Box::new(Chain {
        source: Source::Suffix,
        length,
        confidence,
        fails: false,
    })]
}

/// Four rows for little more than one, then each row its price: seconds of a pass.
fn flat(rows: usize) -> f64 {
    0.06 + 0.001 * rows as f64 + 0.012 * rows.saturating_sub(4) as f64
}

/// Each row costs what the first does.
fn steep(rows: usize) -> f64 {
    0.06 * rows as f64
}

fn table(seconds: impl Fn(usize) -> f64) -> CostModel {
    let rows = [1, 2, 3, 4, 6, 8, 12, 16];
    CostModel::new(
        rows.map(|rows| CostPoint {
            rows,
            seconds: seconds(rows),
        })
        .to_vec(),
    )
}

fn controller(
    free: Vec<Box<dyn Drafter>>,
    model: Option<CostlyDrafter>,
    cost: CostModel,
) -> ControlledDrafter {
    let params = ControllerParams {
        loss_budget: LOSS_BUDGET,
    };
    let mut controller = ControlledDrafter::new(params, free, model, cost);
    controller.begin(SEQUENCE, &[1]).unwrap();
    controller
}

/// What came of some rounds.
#[derive(Debug, Default)]
struct Outcome {
    tokens: usize,
    seconds: f64,
    /// What plain decoding would have taken.
    plain: f64,
    rounds: usize,
    plain_rounds: usize,
    longest_round: f64,
    predicted_tokens: f64,
    predicted_seconds: f64,
    reasons: Vec<PlainReason>,
    sources: Vec<Source>,
}

impl Outcome {
    fn speedup(&self) -> f64 {
        self.plain / self.seconds
    }
}

/// Runs rounds until so many tokens are there. `right(depth)` says whether a draft token is, if those before it were;
/// `pass(rows, tokens so far)` what a pass takes.
fn run(
    controller: &mut ControlledDrafter,
    tokens: usize,
    right: impl FnMut(usize) -> bool,
    pass: impl Fn(usize, usize) -> f64,
) -> Outcome {
    run_after(controller, 20, tokens, right, pass)
}

/// Like [`run`], after a prompt of so many tokens, whose pass takes no time.
fn run_after(
    controller: &mut ControlledDrafter,
    prompt: usize,
    tokens: usize,
    right: impl FnMut(usize) -> bool,
    pass: impl Fn(usize, usize) -> f64,
) -> Outcome {
    run_within(controller, BUDGET, prompt, tokens, right, pass)
}

/// Like [`run_after`], for a request with this budget.
fn run_within(
    controller: &mut ControlledDrafter,
    budget: Budget,
    prompt: usize,
    tokens: usize,
    mut right: impl FnMut(usize) -> bool,
    pass: impl Fn(usize, usize) -> f64,
) -> Outcome {
    let mut outcome = Outcome::default();
    let mut text = vec![1; prompt];
    let model_seconds = |controller: &ControlledDrafter| {
        let times = controller.times().unwrap_or_default();
        (times.prompt + times.eval).as_secs_f64()
    };
    let mut tree = TokenTree::default();
    let params = SamplerParams {
        temperature: 0.0,
        ..SamplerParams::default()
    };
    while outcome.tokens < tokens {
        tree.clear();
        let sampler = Sampler::new(params.clone(), 0, &text).snapshot();
        let before = model_seconds(controller);
        controller
            .draft(&mut [Request {
                sequence: SEQUENCE,
                tokens: &text,
                hidden: None,
                sampler: &sampler,
                budget,
                position_limit: prompt + tokens,
                grammar: None,
                deadline: None,
                tree: &mut tree,
            }])
            .unwrap();
        controller.submitted(SEQUENCE, &tree);
        let forecast = controller.forecast(SEQUENCE).unwrap();
        assert_eq!(forecast.plain.is_some(), tree.is_empty());
        let rows = 1 + tree.len();
        let drafting = model_seconds(controller) - before;
        let seconds = pass(rows, outcome.tokens);
        controller.timed(&PassTime {
            rows,
            context: text.len(),
            seconds,
        });
        let mut accepted: Vec<NodeId> = Vec::new();
        while accepted.len() < tree.len() && right(accepted.len() + 1) {
            accepted.push(accepted.len() as NodeId);
        }
        let gained = accepted.len() + 1;
        outcome.plain += (0..gained).map(|at| pass(1, outcome.tokens + at)).sum::<f64>();
        outcome.tokens += gained;
        let seconds = seconds + drafting;
        outcome.seconds += seconds;
        outcome.longest_round = outcome.longest_round.max(seconds);
        outcome.rounds += 1;
        outcome.plain_rounds += usize::from(tree.is_empty());
        outcome.predicted_tokens += forecast.tokens;
        outcome.predicted_seconds += forecast.seconds;
        outcome.reasons.extend(forecast.plain);
        outcome.sources.extend(tree.nodes().iter().map(|n| n.source));
        let committed = Committed {
            tokens: vec![7; gained],
            accepted,
            rows: Vec::new(),
        };
        controller.observe(SEQUENCE, &committed);
        text.extend(&committed.tokens);
    }
    outcome
}

/// True with this probability.
fn chance(probability: f64) -> impl FnMut(usize) -> bool {
    let mut random = uniform(0x1234_5678_9abc_def0);
    move |_| random() < probability
}

/// Numbers from 0 to 1.
fn uniform(seed: u64) -> impl FnMut() -> f64 {
    let mut state = seed;
    move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f64 / (1u64 << 31) as f64
    }
}

/// No more is lost than the budget, and one round.
fn check_loss(outcome: &Outcome) {
    let allowed = (1.0 + LOSS_BUDGET) * outcome.plain + outcome.longest_round;
    assert!(outcome.seconds <= allowed * 1.002, "{outcome:?}");
}

#[test]
fn drafts_that_come_true_are_taken_and_pay() {
    let mut controller = controller(free(15, 0.9), None, table(flat));
    let outcome = run(&mut controller, 2000, chance(0.9), |rows, _| flat(rows));
    assert!(outcome.speedup() > 2.5, "{}", outcome.speedup());
    let rate = outcome.predicted_tokens / outcome.predicted_seconds;
    let actual = outcome.tokens as f64 / outcome.seconds;
    assert!(
        (rate / actual - 1.0).abs() < 0.1,
        "{rate} predicted, {actual} came of it"
    );
    // The price of a row is asked for every now and then.
    assert!(outcome.reasons.contains(&PlainReason::Refresh) && outcome.plain_rounds * 50 < outcome.rounds);
}

#[test]
fn sure_and_always_wrong_loses_no_more_than_the_budget() {
    for cost in [flat as fn(usize) -> f64, steep] {
        let mut controller = controller(free(15, 0.99), None, table(cost));
        let outcome = run(&mut controller, 1000, |_| false, |rows, _| cost(rows));
        check_loss(&outcome);
        assert!(
            outcome.plain_rounds as f64 > 0.8 * outcome.rounds as f64,
            "{outcome:?}"
        );
    }
}

#[test]
fn where_rows_are_dear_only_sure_drafts_are_verified() {
    let mut unsure = controller(free(15, 0.5), None, table(steep));
    let outcome = run(&mut unsure, 500, chance(0.5), |rows, _| steep(rows));
    check_loss(&outcome);
    assert!(
        outcome.reasons.iter().all(|&r| r == PlainReason::NotWorthIt),
        "{:?}",
        outcome.reasons
    );
}

#[test]
fn a_table_that_is_wrong_is_found_out() {
    // It says that rows cost nothing; in truth each costs what the first does.
    let mut controller = controller(free(15, 0.6), None, table(|rows| 0.06 + 1e-6 * rows as f64));
    let outcome = run(&mut controller, 1500, chance(0.6), |rows, _| steep(rows));
    check_loss(&outcome);
}

#[test]
fn a_machine_that_slows_down_in_the_middle_stays_in_the_budget() {
    for acceptance in [0.0, 0.5, 0.9] {
        let mut controller = controller(free(8, 0.8), None, table(flat));
        let pass = |rows: usize, tokens: usize| {
            if tokens < 500 {
                flat(rows)
            } else {
                2.5 * flat(rows)
            }
        };
        let outcome = run(&mut controller, 1000, chance(acceptance), pass);
        check_loss(&outcome);
        assert!(
            acceptance < 0.9 || outcome.speedup() > 2.0,
            "{}",
            outcome.speedup()
        );
    }
}

#[test]
fn it_does_not_oscillate_at_the_break_even() {
    // One draft token of two rows at 1.5 times one row, right half of the time: worth exactly its price.
    let cost = |rows: usize| 0.06 * (1.0 + 0.5 * (rows - 1) as f64);
    let mut controller = controller(free(1, 0.5), None, table(cost));
    let outcome = run(&mut controller, 2000, chance(0.5), |rows, _| cost(rows));
    assert!((outcome.speedup() - 1.0).abs() < 0.03, "{}", outcome.speedup());
}
