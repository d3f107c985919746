//! A drafter that runs a network, a draft model or a speculator: what it is worth to a sequence, how far it should go, and how much
//! of the text a draft model may read for that.

use std::time::Instant;

use crate::drafters::SPECULATOR_ROWS;
use crate::{Budget, CostModel, DraftError, Drafter, PlainReason, Request, Source};

use super::MARGIN;

/// What is expected of a draft model's tokens before any was seen, and of a speculator's whose file tells nothing.
const MODEL_ACCEPTANCE: f64 = 0.75;
const SPECULATOR_ACCEPTANCE: f64 = 0.5;
/// Tokens by which drafts are expected to exceed those that cost nothing, where no more is known of them.
const ADVANTAGE: f64 = 0.4;
/// How many rounds these expectations count for, and the most that the rounds of all sequences do.
const PRIOR: f64 = 4.0;
const ALL: f64 = 1.0;
/// What remains of a round after the next one of its class.
const DECAY: f64 = 0.95;
/// What remains of what was seen after a round in which the drafter was not asked, so that it gets another chance; and after a
/// whole sequence without it.
const FORGET: f64 = 0.995;
const FORGET_SEQUENCE: f64 = 0.9;
/// Rows that a draft model's pass is priced for: most evaluate the end of one path, or two.
const MODEL_ROWS: usize = 2;
/// A draft model begins when the answer has so many tokens: beginning at 12 lost 7 to 13 % of answers of 15 to 19.
const START: usize = 24;
/// A window of fewer tokens tells a draft model too little.
const LEAST_WINDOW: usize = 32;
/// Rounds are alike that are expected to gain so many tokens, at most, without the drafter.
const CLASSES: [f64; 4] = [1.2, 1.6, 2.2, 3.2];

/// A drafter that runs a network, and what that costs.
pub struct CostlyDrafter {
    /// The drafter.
    pub drafter: Box<dyn Drafter>,
    /// Its model's passes, or its network's steps.
    pub cost: CostModel,
    /// What it drafts with.
    pub kind: CostlyKind,
}

/// What a drafter runs.
#[derive(Clone, Debug, PartialEq)]
pub enum CostlyKind {
    /// A draft model, which has to read the text before it drafts.
    Model,
    /// A speculator, which reads nothing, with as many heads as there are entries.
    Speculator {
        /// The share of each head's tokens that come true where those before did, in 0…1, before any was seen; `None` if that is
        /// not known.
        acceptance: Vec<Option<f64>>,
    },
}

impl CostlyKind {
    /// What its nodes are counted as.
    pub fn source(&self) -> Source {
        match self {
            Self::Model => Source::Model,
            Self::Speculator { .. } => Source::Mlp,
        }
    }

    /// The expected acceptance at a depth, 1 for the first token, given that those before came true; `None` beyond its reach.
    fn acceptance(&self, depth: usize) -> Option<f64> {
        match self {
            Self::Model => Some(MODEL_ACCEPTANCE),
            Self::Speculator { acceptance } => {
                (acceptance.get(depth - 1)).map(|known| known.unwrap_or(SPECULATOR_ACCEPTANCE))
            }
        }
    }

    /// Whether its tokens' acceptance was measured before.
    fn is_known(&self) -> bool {
        match self {
            Self::Model => false,
            Self::Speculator { acceptance } => acceptance.iter().any(Option::is_some),
        }
    }

    /// Rows that steps are priced for where so many requests are drafted together: the first one, and those that follow.
    fn rows(&self, requests: usize) -> [usize; 2] {
        match self {
            Self::Model => [MODEL_ROWS; 2],
            Self::Speculator { .. } => [requests, requests.max(SPECULATOR_ROWS)],
        }
    }
}

/// What rounds with its drafts gained and cost, of one class: discounted sums.
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

/// Such a drafter, and what it was worth to all sequences so far.
pub(super) struct Costly {
    pub with: CostlyDrafter,
    seen: Seen,
}

/// What it is worth to one sequence.
#[derive(Debug, Default)]
pub(super) struct Worth {
    seen: Seen,
    /// The class of the round for which it was asked.
    asked: Option<usize>,
    ever_asked: bool,
    /// Tokens that it has read, if it reads.
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
    /// How many requests may be drafted together.
    pub requests: usize,
    /// The best that can be had without the drafter: tokens of a round, and tokens a second.
    pub free_tokens: f64,
    pub free_rate: f64,
    /// Tokens that the answer has, and that are still expected.
    pub generated: usize,
    pub expected: f64,
    /// Seconds that reading may take, and seconds that a round may lose.
    pub allowance: f64,
    pub headroom: f64,
}

impl Costly {
    pub fn new(with: CostlyDrafter) -> Self {
        Self {
            with,
            seen: Seen::default(),
        }
    }

    /// Seconds of a step over so many rows. A speculator looks back at nothing.
    fn step(&self, rows: usize, context: usize) -> f64 {
        self.with.cost.seconds(rows, self.looks_back(context))
    }

    /// Seconds of the first step of a draft, and of each that follows.
    fn steps(&self, requests: usize, context: usize) -> [f64; 2] {
        self.with.kind.rows(requests).map(|rows| self.step(rows, context))
    }

    fn looks_back(&self, context: usize) -> usize {
        match self.with.kind {
            CostlyKind::Model => context,
            CostlyKind::Speculator { .. } => 0,
        }
    }

    /// How far the drafter should go for a request, and the seconds in which it reads what it does not know, if its rate is the
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
        if self.with.kind == CostlyKind::Model && prospect.generated < START {
            return Err(PlainReason::NotWorthIt);
        }
        let target = prospect.target;
        let context = request.tokens.len();
        let [first, step] = self.steps(prospect.requests, context);
        let drafting = |depth: usize| first + (depth - 1) as f64 * step;
        let row = target.seconds(1, context);
        let most = request.budget.max_depth.min(request.budget.max_nodes);
        let depths = (1..=most).take_while(|&depth| {
            let lost = drafting(depth) + target.seconds(1 + depth, context) - row;
            self.with.kind.acceptance(depth).is_some() && lost <= prospect.headroom
        });
        let max_depth = depths.last().ok_or(PlainReason::LossBudget)?;

        let (reading, max_read) = self.reading(worth, request, prospect)?;
        let class = class(prospect.free_tokens);
        let seen = worth.seen[class];
        // What was expected is forgotten as what was seen is.
        let prior = PRIOR * (1.0 - (1.0 - DECAY) * seen.count);
        let expected = (seen.plus(self.seen[class], ALL))
            .plus(self.prior(prospect, drafting, context, max_depth), prior);
        // What is read now serves all tokens that are still to come.
        let per_token = expected.cost * row / expected.tokens + reading / prospect.expected;
        let rate = per_token.recip();
        if rate <= MARGIN * prospect.free_rate {
            return Err(PlainReason::NotWorthIt);
        }
        worth.asked = Some(class);
        let budget = Budget {
            max_depth,
            max_read,
            min_path_probability: request.budget.min_path_probability.max((rate * step) as f32),
            ..request.budget
        };
        Ok((budget, reading))
    }

    /// The seconds in which a draft model reads what it does not know, and how many tokens of that at most.
    fn reading(
        &self,
        worth: &Worth,
        request: &Request<'_>,
        prospect: &Prospect<'_>,
    ) -> Result<(f64, usize), PlainReason> {
        if self.with.kind != CostlyKind::Model {
            return Ok((0.0, request.budget.max_read));
        }
        let behind = request.tokens.len().saturating_sub(worth.read).max(1);
        let reading = |tokens: usize| self.step(tokens, 0) - self.step(1, 0);
        let mut window = behind;
        while reading(window) > prospect.allowance && window > 1 {
            window = window * 7 / 8;
        }
        if window < behind.min(LEAST_WINDOW) {
            return Err(PlainReason::LossBudget);
        }
        let max_read = match window < behind {
            true => window,
            false => request.budget.max_read,
        };
        Ok((reading(window), max_read))
    }

    /// What is expected of a round with the drafter before any was seen: a chain of the best length.
    fn prior(
        &self,
        prospect: &Prospect<'_>,
        drafting: impl Fn(usize) -> f64,
        context: usize,
        max_depth: usize,
    ) -> Rounds {
        let row = prospect.target.seconds(1, context);
        let (mut tokens, mut path) = (1.0, 1.0);
        let mut best = Rounds::default();
        for depth in 1..=max_depth {
            path *= self.with.kind.acceptance(depth).unwrap_or(0.0);
            tokens += path;
            let cost = (drafting(depth) + prospect.target.seconds(1 + depth, context)) / row;
            if best.count == 0.0 || tokens / cost > best.tokens / best.cost {
                best = Rounds {
                    count: 1.0,
                    tokens,
                    cost,
                };
            }
        }
        if !self.with.kind.is_known() {
            best.tokens = best.tokens.max(prospect.free_tokens + ADVANTAGE);
        }
        best.scale(PRIOR);
        best
    }

    /// Lets the drafter draft for the requests, and returns the seconds that it took: of drafting, and of reading what it did not
    /// know.
    pub fn draft(&mut self, requests: &mut [Request<'_>]) -> (Result<(), DraftError>, f64, f64) {
        let drafter = &mut self.with.drafter;
        let (start, before) = (Instant::now(), drafter.times());
        let outcome = drafter.draft(requests);
        let (Some(before), Some(after)) = (before, drafter.times()) else {
            return (outcome, start.elapsed().as_secs_f64(), 0.0);
        };
        let spent = after.since(&before);
        // To turn logits into proposals is a part of a step: with a small network no small one.
        let drafting = (spent.eval + spent.sample).as_secs_f64();
        if spent.prompt_rows == 0 && spent.passes > 0 {
            let passes = spent.passes as f64;
            let rows = (spent.eval_rows as f64 / passes).round() as usize;
            let context = requests.iter().map(|r| r.tokens.len()).sum::<usize>() / requests.len().max(1);
            let context = self.looks_back(context);
            self.with.cost.observe(rows, context, drafting / passes);
        }
        (outcome, drafting, spent.prompt.as_secs_f64())
    }

    /// What came of a round: tokens, and the passes over one row that would have taken as long.
    pub fn observe(&mut self, worth: &mut Worth, tokens: usize, cost: f64) {
        match worth.asked.take() {
            Some(class) => {
                worth.ever_asked = true;
                worth.seen[class].add(tokens as f64, cost);
                self.seen[class].add(tokens as f64, cost);
            }
            None => worth.seen.iter_mut().for_each(|rounds| rounds.scale(FORGET)),
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

    /// The drafter has read all of a sequence's tokens, which took so many seconds, for drafts of so many tokens.
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
