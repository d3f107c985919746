//! What a draft model is worth to a sequence: how far it should go, and how much of the text it may read for that.

use crate::drafter::DraftTimes;
use crate::{Budget, CostModel, DraftError, NodeId, Request, Source, TokenTree};

use super::{CostlyDrafter, MARGIN, MOST_NODES};

/// What is expected of a draft model's tokens before any was seen.
const ACCEPTANCE: f32 = 0.75;
/// Rows of a pass of the draft model, that is, ends of a tree that it evaluates together.
const FRONTIER: usize = 2;
/// A window of fewer tokens tells a draft model too little.
const LEAST_WINDOW: usize = 32;
/// What is forgotten in a round without the model's drafts, so that it gets another chance.
const FORGET: f32 = 0.01;
/// What is forgotten over a whole sequence without them.
const FORGET_SEQUENCE: f32 = 0.1;

/// The share of places at each depth where one of the model's tokens came true.
#[derive(Clone, Debug)]
struct Depths([f32; MOST_NODES]);

impl Default for Depths {
    fn default() -> Self {
        Self([ACCEPTANCE; MOST_NODES])
    }
}

impl Depths {
    fn observe(&mut self, depth: usize, accepted: bool) {
        /// How fast old rounds are forgotten.
        const GAIN: f32 = 0.08;
        // What happens at one depth says something of the others too.
        for (at, share) in self.0.iter_mut().enumerate() {
            let gain = if at + 1 == depth { GAIN } else { GAIN / 4.0 };
            *share += gain * (f32::from(u8::from(accepted)) - *share);
        }
    }

    fn forget(&mut self, share: f32) {
        for at in &mut self.0 {
            *at += share * (ACCEPTANCE - *at);
        }
    }
}

/// A draft model, and what it was worth to all sequences so far.
pub(super) struct DraftModel {
    pub costly: CostlyDrafter,
    depths: Depths,
}

/// What it is worth to one sequence.
#[derive(Debug, Default)]
pub(super) struct Worth {
    depths: Depths,
    observed: bool,
    /// Tokens that it has read.
    read: usize,
    /// Seconds of reading that its drafts have yet to repay, and how many of them each token does.
    owed: f64,
    repaid_by_token: f64,
    /// Why it does not take part any more.
    pub off: Option<String>,
}

/// What is known when it is to be decided.
pub(super) struct Prospect<'a> {
    pub target: &'a CostModel,
    /// The best rate without the model, in tokens a second.
    pub free_rate: f64,
    /// Tokens that are still expected.
    pub expected: f64,
    /// Seconds that reading may take.
    pub allowance: f64,
}

impl DraftModel {
    pub fn new(costly: CostlyDrafter) -> Self {
        Self {
            costly,
            depths: Depths::default(),
        }
    }

    /// A new sequence.
    pub fn worth(&self) -> Worth {
        Worth {
            depths: self.depths.clone(),
            ..Worth::default()
        }
    }

    /// How far the model should go for a request, if its rate is the best.
    pub fn budget(&self, worth: &Worth, request: &Request<'_>, prospect: &Prospect<'_>) -> Option<Budget> {
        if worth.off.is_some() {
            return None;
        }
        let cost = &self.costly.cost;
        let context = request.tokens.len();
        let step = cost.seconds(FRONTIER, context);
        let behind = context.saturating_sub(worth.read).max(1);
        let reading = |tokens: usize| cost.seconds(tokens, 0) - cost.seconds(1, 0);
        let mut window = behind;
        while reading(window) > prospect.allowance && window > 1 {
            window = window * 7 / 8;
        }
        if window < behind.min(LEAST_WINDOW) {
            return None;
        }
        let reading = reading(window) / prospect.expected;
        let most = request.budget.max_depth.min(request.budget.max_nodes);
        let (mut tokens, mut path, mut best) = (1.0, 1.0, (0, 0.0));
        for (depth, share) in (1..=most).zip(worth.depths.0) {
            path *= f64::from(share);
            tokens += path;
            let rounds = depth as f64 * step + prospect.target.seconds(1 + depth, context);
            // What is read now serves all tokens that are still to come.
            let rate = tokens / (rounds + reading * tokens);
            if rate > best.1 {
                best = (depth, rate);
            }
        }
        let (depth, rate) = best;
        (depth > 0 && rate > MARGIN * prospect.free_rate).then_some(Budget {
            // The expected depth is a mean: where the model is sure of itself it may go further.
            max_depth: most.min(2 * depth),
            max_nodes: MOST_NODES.min(request.budget.max_nodes),
            max_read: if window < behind {
                window
            } else {
                request.budget.max_read
            },
            min_path_probability: (rate * step) as f32,
            ..request.budget
        })
    }

    /// Lets the model draft for the requests, whose worths are given in the same order, and returns the seconds that it took:
    /// of drafting, and of reading what it did not know.
    pub fn draft(
        &mut self,
        requests: &mut [Request<'_>],
        elapsed: impl FnOnce() -> f64,
    ) -> (Result<(), DraftError>, f64, f64) {
        let CostlyDrafter { drafter, cost } = &mut self.costly;
        let before = drafter.times();
        let outcome = drafter.draft(requests);
        let (Some(before), Some(after)) = (before, drafter.times()) else {
            return (outcome, elapsed(), 0.0);
        };
        let spent = DraftTimes {
            passes: after.passes - before.passes,
            prompt_rows: after.prompt_rows - before.prompt_rows,
            prompt: after.prompt.saturating_sub(before.prompt),
            eval_rows: after.eval_rows - before.eval_rows,
            eval: after.eval.saturating_sub(before.eval),
            sample: after.sample.saturating_sub(before.sample),
        };
        let (reading, eval) = (spent.prompt.as_secs_f64(), spent.eval.as_secs_f64());
        if spent.prompt_rows == 0 && spent.passes > 0 {
            let passes = spent.passes as f64;
            let rows = (spent.eval_rows as f64 / passes).round() as usize;
            let context = requests.iter().map(|r| r.tokens.len()).sum::<usize>() / requests.len().max(1);
            cost.observe(rows, context, eval / passes);
        }
        (outcome, eval + spent.sample.as_secs_f64(), reading)
    }

    /// What came of a tree.
    pub fn observe(&mut self, worth: &mut Worth, tree: &TokenTree, accepted: &[NodeId]) {
        let mut drafted = false;
        let places = std::iter::once(None).chain(accepted.iter().copied().map(Some));
        for (depth, place) in (1..).zip(places) {
            let children = || tree.children(place);
            if children().any(|node| tree.nodes()[node as usize].source == Source::Model) {
                let came_true = children().any(|node| accepted.contains(&node));
                worth.depths.observe(depth, came_true);
                self.depths.observe(depth, came_true);
                drafted = true;
            }
        }
        worth.observed |= drafted;
        if !drafted {
            worth.depths.forget(FORGET);
        }
    }

    /// A sequence is over.
    pub fn end(&mut self, worth: &Worth) {
        if !worth.observed {
            self.depths.forget(FORGET_SEQUENCE);
        }
    }
}

impl Worth {
    /// The model has read all of a sequence's tokens, which took so many seconds, for drafts of so many tokens.
    pub fn has_read(&mut self, tokens: usize, seconds: f64, expected: f64) {
        self.read = tokens;
        if seconds > 0.0 {
            self.owed += seconds;
            self.repaid_by_token = self.owed / expected;
        }
    }

    /// The seconds of reading that a round's tokens have to bear.
    pub fn repay(&mut self, tokens: usize) -> f64 {
        let repaid = self.owed.min(self.repaid_by_token * tokens as f64);
        self.owed -= repaid;
        repaid
    }
}
