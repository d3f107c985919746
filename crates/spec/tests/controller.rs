//! The controller in a world of made-up times: what it drafts, what it costs, and what it never loses.

use std::collections::HashMap;
use std::time::Duration;

use foretoken_spec::{
    Budget, Committed, ControlledDrafter, ControllerParams, CostModel, CostPoint, CostlyDrafter, DraftError,
    DraftTimes, Drafter, ModelError, Node, NodeId, PassTime, PlainReason, Request, Sampler, SamplerParams,
    SequenceId, Source, Token, TokenTree,
};

const SEQUENCE: SequenceId = SequenceId(1);
const LOSS_BUDGET: f64 = 0.02;

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
                path *= self.confidence;
                if path < budget.min_path_probability {
                    break;
                }
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

/// A chain that a model drafts: each of its passes takes time, and first it reads what it does not know.
struct TimedChain {
    chain: Chain,
    /// Seconds of a pass, and of a token read.
    step: f64,
    row: f64,
    read: HashMap<SequenceId, usize>,
    times: DraftTimes,
}

impl Drafter for TimedChain {
    fn name(&self) -> &str {
        "timed chain"
    }
    fn begin(&mut self, _: SequenceId, _: &[Token]) -> Result<(), DraftError> {
        Ok(())
    }
    fn draft(&mut self, requests: &mut [Request<'_>]) -> Result<(), DraftError> {
        for request in requests.iter() {
            let known = self.read.insert(request.sequence, request.tokens.len());
            let unread = request.tokens.len().saturating_sub(known.unwrap_or(0));
            let rows = unread.min(request.budget.max_read);
            if known.is_none() || rows > 4 {
                self.times.prompt_rows += rows as u64;
                self.times.prompt += Duration::from_secs_f64(rows as f64 * self.row);
            }
        }
        let before: usize = requests.iter().map(|r| r.tree.len()).sum();
        self.chain.draft(requests)?;
        let steps = requests.iter().map(|r| r.tree.len()).sum::<usize>() - before;
        self.times.passes += steps as u64;
        self.times.eval_rows += steps as u64;
        self.times.eval += Duration::from_secs_f64(steps as f64 * self.step);
        Ok(())
    }
    fn times(&self) -> Option<DraftTimes> {
        Some(self.times)
    }
    fn end(&mut self, sequence: SequenceId) {
        self.read.remove(&sequence);
    }
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
                budget: Budget {
                    max_nodes: 16,
                    max_depth: 16,
                    max_branches: 4,
                    max_read: usize::MAX,
                    min_path_probability: 0.0,
                    min_confidence: 0.0,
                },
                position_limit: prompt + tokens,
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
    let mut state = 0x1234_5678_9abc_def0u64;
    move |_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) as f64) < probability * (1u64 << 31) as f64
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

fn model(confidence: f32, fails: bool, step: f64) -> CostlyDrafter {
    let chain = Chain {
        source: Source::Model,
        length: 15,
        confidence,
        fails,
    };
    CostlyDrafter {
        drafter: Box::new(TimedChain {
            chain,
            step,
            row: step / 5.0,
            read: HashMap::new(),
            times: DraftTimes::default(),
        }),
        cost: table(move |rows| step * (1.0 + 0.2 * (rows - 1) as f64)),
    }
}

#[test]
fn a_draft_model_is_asked_where_its_passes_pay() {
    let with_model = |step: f64, acceptance: f64, free_drafts: Vec<Box<dyn Drafter>>| {
        let mut controller = controller(free_drafts, Some(model(0.8, false, step)), table(flat));
        run(&mut controller, 600, chance(acceptance), |rows, _| flat(rows))
    };
    let cheap = with_model(0.005, 0.85, Vec::new());
    assert!(
        cheap.sources.contains(&Source::Model) && cheap.speedup() > 1.7,
        "{}",
        cheap.speedup()
    );
    // As dear as the target itself.
    let dear = with_model(0.06, 0.85, Vec::new());
    assert!(dear.sources.is_empty(), "{:?}", dear.reasons);
    // Free drafts that are as good make it needless.
    let beside = with_model(0.03, 0.9, free(15, 0.9));
    let asked = beside.sources.iter().filter(|&&s| s == Source::Model).count();
    assert!(
        asked * 10 < beside.sources.len(),
        "{asked} of {}",
        beside.sources.len()
    );
}

#[test]
fn a_draft_model_reads_no_more_than_can_be_repaid() {
    let read = |prompt: usize, step: f64, acceptance: f64| {
        let mut controller = controller(Vec::new(), Some(model(0.8, false, step)), table(flat));
        let outcome = run_after(&mut controller, prompt, 128, chance(acceptance), |rows, _| {
            flat(rows)
        });
        (controller.times().unwrap().prompt_rows as usize, outcome)
    };
    // A short prompt as a whole, of a long one the end.
    let (rows, short) = read(40, 0.01, 0.85);
    assert!(
        rows >= 40 && short.speedup() > 1.4,
        "{rows} rows, {}",
        short.speedup()
    );
    let (rows, long) = read(2000, 0.01, 0.85);
    assert!(
        (32..200).contains(&rows) && long.speedup() > 1.3,
        "{rows} rows, {}",
        long.speedup()
    );
    // Where not even that can be repaid, nothing.
    assert_eq!(read(2000, 0.05, 0.85).0, 0);
    // Drafts that are always wrong lose the budget's share and two rounds, what was read included.
    for prompt in [40, 2000] {
        let (_, wrong) = read(prompt, 0.01, 0.0);
        let allowed = (1.0 + LOSS_BUDGET) * wrong.plain + 2.0 * flat(1);
        assert!(wrong.seconds < allowed, "{} of {allowed}", wrong.seconds);
    }
}

#[test]
fn a_draft_model_that_was_bad_gets_another_chance() {
    let mut controller = controller(Vec::new(), Some(model(0.8, false, 0.005)), table(flat));
    let bad = run(&mut controller, 400, chance(0.05), |rows, _| flat(rows));
    assert!(
        bad.plain_rounds * 2 > bad.rounds,
        "{} of {}",
        bad.plain_rounds,
        bad.rounds
    );
    let good = run(&mut controller, 2000, chance(0.9), |rows, _| flat(rows));
    assert!(good.speedup() > 1.7, "{}", good.speedup());
}

#[test]
fn a_draft_model_that_fails_is_left_out_and_the_rest_goes_on() {
    let mut controller = controller(free(3, 0.3), Some(model(0.9, true, 0.001)), table(flat));
    assert_eq!(controller.off_reason(SEQUENCE), None);
    let outcome = run(&mut controller, 100, chance(0.5), |rows, _| flat(rows));
    assert_eq!(controller.off_reason(SEQUENCE), Some("no luck"));
    assert!(outcome.sources.contains(&Source::Suffix) && !outcome.sources.contains(&Source::Model));

    struct Cancelled;
    impl Drafter for Cancelled {
        fn name(&self) -> &str {
            "cancelled"
        }
        fn begin(&mut self, _: SequenceId, _: &[Token]) -> Result<(), DraftError> {
            Ok(())
        }
        fn draft(&mut self, _: &mut [Request<'_>]) -> Result<(), DraftError> {
            Err(DraftError::Model(ModelError::Cancelled))
        }
        fn end(&mut self, _: SequenceId) {}
    }
    let cancelled = CostlyDrafter {
        drafter: Box::new(Cancelled),
        cost: table(|_| 0.001),
    };
    let mut controller = self::controller(Vec::new(), Some(cancelled), table(flat));
    // It is not asked before the answer has some tokens.
    run(&mut controller, 12, |_| false, |rows, _| flat(rows));
    let mut tree = TokenTree::default();
    let sampler = Sampler::new(SamplerParams::default(), 0, &[1]).snapshot();
    let drafted = controller.draft(&mut [Request {
        sequence: SEQUENCE,
        tokens: &[1],
        hidden: None,
        sampler: &sampler,
        budget: Budget {
            max_nodes: 4,
            max_depth: 4,
            max_branches: 4,
            max_read: usize::MAX,
            min_path_probability: 0.0,
            min_confidence: 0.0,
        },
        position_limit: 500,
        deadline: None,
        tree: &mut tree,
    }]);
    assert_eq!(drafted, Err(DraftError::Model(ModelError::Cancelled)));
}
