//! What a draft model is worth to a sequence: how far it should go, and how much of the text it may read for that.

use std::time::Instant;

use crate::{Budget, CostModel, DraftError, PlainReason, Request};

use super::{CostlyDrafter, MARGIN};

/// What is expected of a draft model's tokens before any was seen.
const ACCEPTANCE: f64 = 0.75;
/// Tokens by which its drafts are expected to exceed those that cost nothing, likewise.
const ADVANTAGE: f64 = 0.4;
/// How many rounds these expectations count for, and the most that the rounds of all sequences do.
const PRIOR: f64 = 4.0;
const ALL: f64 = 1.0;
/// What remains of a round after the next one of its class.
const DECAY: f64 = 0.95;
/// What remains of what was seen after a round in which the model was not asked, so that it gets another chance; and after a
/// whole sequence without it.
const FORGET: f64 = 0.995;
const FORGET_SEQUENCE: f64 = 0.9;
/// Rows of a pass of the draft model that a step is priced for: most evaluate the end of one path, or two.
const STEP_ROWS: usize = 2;
/// A window of fewer tokens tells a draft model too little.
const LEAST_WINDOW: usize = 32;
/// Rounds are alike that are expected to gain so many tokens, at most, without the model.
const CLASSES: [f64; 4] = [1.2, 1.6, 2.2, 3.2];

/// What rounds with the model's drafts gained and cost, of one class: discounted sums.
#[derive(Clone, Copy, Debug, Default)]
struct Rounds {
    count: f64,
    tokens: f64,
    /// In passes over one row.
    cost: f64,
}

impl Rounds {
    fn add(&mut self, tokens: f64, cost: f64) {
        self.scale(DECAY);
        self.count += 1.0;
        self.tokens += tokens;
        self.cost += cost;
    }

    fn scale(&mut self, by: f64) {
        self.count *= by;
        self.tokens *= by;
        self.cost *= by;
    }

    fn plus(self, other: Self, most: f64) -> Self {
        let share = (most / other.count.max(1e-9)).min(1.0);
        Self {
            count: self.count + share * other.count,
            tokens: self.tokens + share * other.tokens,
            cost: self.cost + share * other.cost,
        }
    }
}

type Seen = [Rounds; CLASSES.len() + 1];

fn class(free_tokens: f64) -> usize {
    CLASSES.partition_point(|&most| most < free_tokens)
}

/// A draft model, and what it was worth to all sequences so far.
pub(super) struct DraftModel {
    pub costly: CostlyDrafter,
    seen: Seen,
}

/// What it is worth to one sequence.
#[derive(Debug, Default)]
pub(super) struct Worth {
    seen: Seen,
    /// The class of the round for which it was asked.
    asked: Option<usize>,
    ever_asked: bool,
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
    /// The best that can be had without the model: tokens of a round, and tokens a second.
    pub free_tokens: f64,
    pub free_rate: f64,
    /// Tokens that are still expected.
    pub expected: f64,
    /// Seconds that reading may take, and seconds that a round may lose.
    pub allowance: f64,
    pub headroom: f64,
}

impl DraftModel {
    pub fn new(costly: CostlyDrafter) -> Self {
        Self {
            costly,
            seen: Seen::default(),
        }
    }

    /// How far the model should go for a request, and the seconds in which it reads what it does not know, if its rate is the
    /// best.
    pub fn budget(
        &self,
        worth: &mut Worth,
        request: &Request<'_>,
        prospect: &Prospect<'_>,
    ) -> Result<(Budget, f64), PlainReason> {
        worth.asked = None;
        if worth.off.is_some() {
            return Err(PlainReason::NothingProposed);
        }
        let (cost, target) = (&self.costly.cost, prospect.target);
        let context = request.tokens.len();
        let (step, row) = (cost.seconds(STEP_ROWS, context), target.seconds(1, context));
        let most = request.budget.max_depth.min(request.budget.max_nodes);
        let depths = (1..=most).take_while(|&depth| {
            depth as f64 * step + target.seconds(1 + depth, context) - row <= prospect.headroom
        });
        let max_depth = depths.last().ok_or(PlainReason::LossBudget)?;

        let behind = context.saturating_sub(worth.read).max(1);
        let reading = |tokens: usize| cost.seconds(tokens, 0) - cost.seconds(1, 0);
        let mut window = behind;
        while reading(window) > prospect.allowance && window > 1 {
            window = window * 7 / 8;
        }
        if window < behind.min(LEAST_WINDOW) {
            return Err(PlainReason::LossBudget);
        }
        let reading = reading(window);

        let class = class(prospect.free_tokens);
        let expected = worth.seen[class]
            .plus(self.seen[class], ALL)
            .plus(self.prior(prospect, step, context, max_depth), PRIOR);
        // What is read now serves all tokens that are still to come.
        let per_token = expected.cost * row / expected.tokens + reading / prospect.expected;
        let rate = per_token.recip();
        if rate <= MARGIN * prospect.free_rate {
            return Err(PlainReason::NotWorthIt);
        }
        worth.asked = Some(class);
        let budget = Budget {
            max_depth,
            max_read: match window < behind {
                true => window,
                false => request.budget.max_read,
            },
            min_path_probability: request.budget.min_path_probability.max((rate * step) as f32),
            ..request.budget
        };
        Ok((budget, reading))
    }

    /// What is expected of a round with the model before any was seen: a chain of the best length.
    fn prior(&self, prospect: &Prospect<'_>, step: f64, context: usize, max_depth: usize) -> Rounds {
        let row = prospect.target.seconds(1, context);
        let (mut tokens, mut path) = (1.0, 1.0);
        let mut best = Rounds::default();
        for depth in 1..=max_depth {
            path *= ACCEPTANCE;
            tokens += path;
            let cost = (depth as f64 * step + prospect.target.seconds(1 + depth, context)) / row;
            if best.count == 0.0 || tokens / cost > best.tokens / best.cost {
                best = Rounds {
                    count: 1.0,
                    tokens,
                    cost,
                };
            }
        }
        best.tokens = best.tokens.max(prospect.free_tokens + ADVANTAGE);
        best.scale(PRIOR);
        best
    }

    /// Lets the model draft for the requests, and returns the seconds that it took: of drafting, and of reading what it did not
    /// know.
    pub fn draft(&mut self, requests: &mut [Request<'_>]) -> (Result<(), DraftError>, f64, f64) {
        let CostlyDrafter { drafter, cost } = &mut self.costly;
        let (start, before) = (Instant::now(), drafter.times());
        let outcome = drafter.draft(requests);
        let (Some(before), Some(after)) = (before, drafter.times()) else {
            return (outcome, start.elapsed().as_secs_f64(), 0.0);
        };
        let spent = after.since(&before);
        let (reading, eval) = (spent.prompt.as_secs_f64(), spent.eval.as_secs_f64());
        if spent.prompt_rows == 0 && spent.passes > 0 {
            let passes = spent.passes as f64;
            let rows = (spent.eval_rows as f64 / passes).round() as usize;
            let context = requests.iter().map(|r| r.tokens.len()).sum::<usize>() / requests.len().max(1);
            cost.observe(rows, context, eval / passes);
        }
        (outcome, eval + spent.sample.as_secs_f64(), reading)
    }

    /// What came of a round: tokens, and the passes over one row that would have taken as long; `None` if that tells nothing.
    pub fn observe(&mut self, worth: &mut Worth, outcome: Option<(usize, f64)>) {
        match (worth.asked.take(), outcome) {
            (Some(class), Some((tokens, cost))) => {
                worth.ever_asked = true;
                worth.seen[class].add(tokens as f64, cost);
                self.seen[class].add(tokens as f64, cost);
            }
            (Some(_), None) => {}
            (None, _) => worth.seen.iter_mut().for_each(|rounds| rounds.scale(FORGET)),
        }
    }

    /// A sequence is over.
    pub fn end(&mut self, worth: &Worth) {
        if !worth.ever_asked {
            self.seen
                .iter_mut()
                .for_each(|rounds| rounds.scale(FORGET_SEQUENCE));
        }
    }
}

impl Worth {
    /// Seconds of reading that its drafts have yet to repay.
    pub fn owed(&self) -> f64 {
        self.owed
    }

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
