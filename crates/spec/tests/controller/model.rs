//! A draft model among the drafters: when it is asked, how much it reads, and what it may lose.

use std::collections::HashMap;
use std::time::Duration;

use foretoken_spec::{
    CostlyDrafter, CostlyKind, DraftError, DraftTimes, Drafter, ModelError, Request, Sampler, SamplerParams,
    SequenceId, Source, Token, TokenTree,
};

use crate::{BUDGET, Chain, LOSS_BUDGET, SEQUENCE, chance, controller, flat, free, run, run_after, table};

/// A chain that a model drafts: each of its passes takes time, and first it reads what it does not know.
struct TimedChain<D> {
    chain: D,
    /// Seconds of a pass, and of a token read.
    step: f64,
    row: f64,
    reads: bool,
    read: HashMap<SequenceId, usize>,
    times: DraftTimes,
}

impl<D: Drafter> Drafter for TimedChain<D> {
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
            if self.reads && (known.is_none() || rows > 4) {
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

pub fn model(confidence: f32, fails: bool, step: f64) -> CostlyDrafter {
    let chain = Chain {
        source: Source::Model,
        length: 15,
        confidence,
        fails,
    };
    timed(chain, step, CostlyKind::Model)
}

/// A drafter of a chain, each token of which takes a step of so many seconds.
pub fn timed(chain: impl Drafter + 'static, step: f64, kind: CostlyKind) -> CostlyDrafter {
    CostlyDrafter {
        drafter: Box::new(TimedChain {
            chain,
            step,
            row: step / 5.0,
            reads: kind == CostlyKind::Model,
            read: HashMap::new(),
            times: DraftTimes::default(),
        }),
        kind,
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
        kind: CostlyKind::Model,
    };
    let mut controller = crate::controller(Vec::new(), Some(cancelled), table(flat));
    // It is not asked before the answer has some tokens.
    run(&mut controller, 24, |_| false, |rows, _| flat(rows));
    let mut tree = TokenTree::default();
    let sampler = Sampler::new(SamplerParams::default(), 0, &[1]).snapshot();
    let drafted = controller.draft(&mut [Request {
        sequence: SEQUENCE,
        tokens: &[1],
        hidden: None,
        sampler: &sampler,
        budget: BUDGET,
        position_limit: 500,
        grammar: None,
        deadline: None,
        tree: &mut tree,
    }]);
    assert_eq!(drafted, Err(DraftError::Model(ModelError::Cancelled)));
}
