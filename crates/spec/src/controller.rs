//! The controller: decides each round what to draft, and whether to draft at all.
//!
//! It is a [`Drafter`] made of others. Those that cost nothing propose first; a draft model or a speculator is asked where its
//! predicted rate, with the passes that it takes, beats what is there already; then the trees of all sequences are cut
//! together to the rows that maximise
//!
//! `(sequences + Σ path probabilities) / (seconds of drafting + T(rows))`,
//!
//! and no row at all is always a choice. Probabilities are lower bounds of observed acceptance, seconds
//! what passes took on this machine ([`CostModel`]).
//!
//! Each sequence has an account: what its rounds took against what plain decoding would have taken for the same tokens.
//! No round may be so long that, if nothing of its draft came true, the sequence had lost more than the loss budget's share of
//! plain decoding's time, and one round. So whatever is predicted of drafts, it loses no more than that, as far as passes cost what they did. What
//! a draft model reads before its first draft is spread over the tokens that are still expected, and is no more than the budget allows for
//! these, and one round more: of a long text it reads the end. Every so often a round is plain all the same, for the price of one row to stay true.
//!
//! Not here: how costs are measured at start, and where they are kept.

mod account;
mod calibration;
mod costly;

use std::collections::HashMap;
use std::time::Instant;

use crate::{
    Budget, Committed, CostModel, DraftError, DraftTimes, Drafter, HiddenNeed, ModelError, Needs, Request,
    SequenceId, TokenTree,
};
use account::{Account, Round, expected};
use calibration::{Calibration, Chance};
use costly::{Costly, Prospect};
pub use costly::{CostlyDrafter, CostlyKind};

/// Most draft tokens of a sequence and round: beyond, each row costs what a pass over it alone does.
const MOST_NODES: usize = 15;
/// Paths below this probability pay on no machine.
const LEAST_PROBABILITY: f32 = 0.01;
/// One in so many rounds at least has no draft.
const REFRESH: usize = 64;
/// What another way of drafting must promise to be taken, relative to the best other.
const MARGIN: f64 = 1.02;
/// Settings of a [`ControlledDrafter`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ControllerParams {
    /// The share of plain decoding's time that may be lost.
    pub loss_budget: f64,
}

impl Default for ControllerParams {
    fn default() -> Self {
        Self { loss_budget: 0.02 }
    }
}

/// Why a round of a sequence had no draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PlainReason {
    /// No drafter proposed anything.
    NothingProposed,
    /// What was proposed would have cost more than it was likely to save.
    NotWorthIt,
    /// Earlier drafts lost more than the budget allows.
    LossBudget,
    /// To measure what a pass over one row costs now.
    Refresh,
}

impl PlainReason {
    /// A name for reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::NothingProposed => "nothing_proposed",
            Self::NotWorthIt => "not_worth_it",
            Self::LossBudget => "loss_budget",
            Self::Refresh => "refresh",
        }
    }
}

/// What is expected of a round before it is run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Forecast {
    /// Tokens that a sequence gains.
    pub tokens: f64,
    /// Seconds of the round, drafting included.
    pub seconds: f64,
    /// Tokens per second of plain decoding.
    pub plain_rate: f64,
    /// Why there is no draft; `None` if there is one.
    pub plain: Option<PlainReason>,
}

/// What a target pass took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PassTime {
    /// Rows.
    pub rows: usize,
    /// Positions that a row followed, on average.
    pub context: usize,
    /// Seconds.
    pub seconds: f64,
}

/// Drafts with several drafters, as far as it pays.
pub struct ControlledDrafter {
    params: ControllerParams,
    free: Vec<Box<dyn Drafter>>,
    costly: Option<Costly>,
    target: CostModel,
    calibration: Calibration,
    accounts: HashMap<SequenceId, Account>,
    /// Rounds since the last without any draft.
    since_plain: usize,
    passes: u64,
    round: Round,
}

/// A way to go on with a round.
struct Best {
    nodes: usize,
    /// Tokens that it gains, by the lower bounds of their probabilities, and tokens a second.
    tokens: f64,
    rate: f64,
}

impl ControlledDrafter {
    /// Of drafters whose time does not count, and perhaps one that runs a network, for a target with these costs.
    pub fn new(
        params: ControllerParams,
        free: Vec<Box<dyn Drafter>>,
        costly: Option<CostlyDrafter>,
        target: CostModel,
    ) -> Self {
        Self {
            params,
            free,
            costly: costly.map(Costly::new),
            target,
            calibration: Calibration::default(),
            accounts: HashMap::new(),
            since_plain: 0,
            passes: 0,
            round: Round::default(),
        }
    }

    /// What the target's passes are taken to cost now.
    pub fn target_cost(&self) -> &CostModel {
        &self.target
    }

    /// Seconds that a sequence may lose yet in its next round: of the share of plain decoding's time, and a round. Where a
    /// draft model has read what its drafts have yet to repay, the share of what is expected counts too, and another round.
    fn headroom(&self, request: &Request<'_>) -> f64 {
        let account = &self.accounts[&request.sequence];
        let row = self.target.seconds(1, request.tokens.len());
        let expected = match account.worth.owed() > 0.0 {
            true => self.params.loss_budget * expected(account, request) * row + row,
            false => 0.0,
        };
        self.params.loss_budget * account.plain + row + expected - account.lost()
    }

    /// Seconds that a draft model may read for a sequence: a round less, so that one is left to draft.
    fn allowance(&self, request: &Request<'_>) -> f64 {
        let account = &self.accounts[&request.sequence];
        let row = self.target.seconds(1, request.tokens.len());
        self.params.loss_budget * (account.plain + expected(account, request) * row) + row - account.lost()
    }

    /// Chances of a tree's nodes to be accepted, from the root on.
    fn paths(&self, sequence: SequenceId, tree: &TokenTree) -> Vec<Chance> {
        let account = &self.accounts[&sequence];
        let own = &account.calibration;
        let root = account.trust();
        let root = Chance {
            mean: root,
            lower: root,
        };
        let mut depths: Vec<usize> = Vec::with_capacity(tree.len());
        let mut paths: Vec<Chance> = Vec::with_capacity(tree.len());
        for node in tree.nodes() {
            let (depth, before) = match node.parent {
                Some(parent) => (depths[parent as usize] + 1, paths[parent as usize]),
                None => (1, root),
            };
            let chance = self.calibration.chance(own, node, depth);
            depths.push(depth);
            paths.push(Chance {
                mean: (before.mean * chance.mean).min(1.0),
                lower: (before.lower * chance.lower).min(1.0),
            });
        }
        paths
    }

    /// The best number of nodes of all trees together, their paths given in descending order, of those that lose no more
    /// than `headroom` seconds if no node comes true.
    fn best(
        &self,
        sequences: usize,
        context: usize,
        drafting: f64,
        headroom: f64,
        paths: impl Iterator<Item = f32>,
    ) -> Best {
        let seconds = |nodes: usize| self.target.seconds(sequences + nodes, context);
        let plain = seconds(0);
        let mut tokens = sequences as f64;
        let mut best = Best {
            nodes: 0,
            tokens,
            rate: tokens / (drafting + plain),
        };
        for (at, path) in paths.enumerate() {
            let seconds = seconds(at + 1);
            if seconds - plain > headroom {
                break;
            }
            tokens += f64::from(path);
            let rate = tokens / (drafting + seconds);
            if rate > best.rate {
                best = Best {
                    nodes: at + 1,
                    tokens,
                    rate,
                };
            }
        }
        best
    }

    /// How far the costly drafter should go for a request, if its rate is the best; others' reading takes so many seconds of this
    /// round already.
    fn costly_budget(
        &mut self,
        request: &Request<'_>,
        requests: usize,
        others: f64,
    ) -> Option<(Budget, f64)> {
        let costly = (self.costly.as_ref())
            .filter(|costly| request.budget.sources.contains(costly.with.kind.source()))?;
        let account = &self.accounts[&request.sequence];
        let context = request.tokens.len();
        let paths = self.paths(request.sequence, request.tree);
        let mut lower: Vec<f32> = paths.iter().map(|path| path.lower).collect();
        lower.sort_by(|a, b| b.total_cmp(a));
        let headroom = self.headroom(request);
        let free = self.best(1, context, 0.0, headroom, lower.into_iter());
        let prospect = Prospect {
            target: &self.target,
            requests,
            free_tokens: free.tokens,
            free_rate: free.rate,
            generated: account.generated,
            expected: expected(account, request),
            allowance: self.allowance(request) - others,
            headroom: headroom - others,
        };
        let account = self.accounts.get_mut(&request.sequence).expect("begun");
        let answer = costly.budget(&mut account.worth, request, &prospect);
        account.declined = answer.as_ref().err().copied();
        answer.ok()
    }

    /// Asks the costly drafter for those whom it serves best.
    fn ask_costly(&mut self, requests: &mut [Request<'_>]) -> Result<(), DraftError> {
        let (mut count, mut reading) = (0, 0.0);
        for at in 0..requests.len() {
            if let Some((budget, seconds)) = self.costly_budget(&requests[at], requests.len(), reading) {
                reading += seconds;
                let context = requests[at].tokens.len();
                let rows =
                    self.target.seconds(1 + budget.max_depth, context) - self.target.seconds(1, context);
                self.round.rows_seconds = self.round.rows_seconds.max(rows);
                requests[at].budget = budget;
                requests.swap(at, count);
                count += 1;
            }
        }
        let Some(costly) = self.costly.as_mut().filter(|_| count > 0) else {
            return Ok(());
        };
        let asked = &mut requests[..count];
        let (outcome, drafting, reading) = costly.draft(asked);
        self.round.draft_seconds += drafting;
        self.round.reading_seconds = reading;
        if outcome == Err(DraftError::Model(ModelError::Cancelled)) {
            return outcome;
        }
        for (at, request) in requests.iter().enumerate() {
            let account = self.accounts.get_mut(&request.sequence).expect("begun");
            if at >= count {
                // It has waited for what others read.
                account.spent += reading;
                continue;
            }
            let expected = expected(account, request);
            account.worth.has_read(request.tokens.len(), reading, expected);
            if let Err(error) = &outcome {
                costly.with.drafter.end(request.sequence);
                account.worth.off = Some(error.to_string());
            }
        }
        Ok(())
    }

    /// Cuts the trees to what is worth its rows, and says what to expect.
    fn prune(&mut self, requests: &mut [Request<'_>]) {
        let Round {
            sequences,
            context,
            draft_seconds,
            reading_seconds,
            rows_seconds,
            ..
        } = self.round;
        let paths: Vec<Vec<Chance>> = requests.iter().map(|r| self.paths(r.sequence, r.tree)).collect();
        let mut order: Vec<(f32, usize, usize)> = Vec::new();
        for (tree, paths) in paths.iter().enumerate() {
            order.extend(
                paths
                    .iter()
                    .enumerate()
                    .map(|(node, path)| (path.lower, tree, node)),
            );
        }
        // A node is never likelier than its parent, which stands before it.
        order.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.2.cmp(&b.2)));
        let mut room: Vec<usize> = requests.iter().map(|r| r.budget.max_nodes).collect();
        order.retain(|&(_, tree, _)| {
            let fits = room[tree] > 0;
            room[tree] -= usize::from(fits);
            fits
        });
        let lower = order
            .iter()
            .map(|&(lower, ..)| lower)
            .take(MOST_NODES * sequences);
        // All wait for the drafts of each. What was drafted is not thrown away because it took longer than planned.
        let headroom = requests.iter().map(|request| self.headroom(request));
        let headroom = (headroom.fold(f64::INFINITY, f64::min) - draft_seconds).max(rows_seconds);
        let best = |headroom| {
            self.best(sequences, context, draft_seconds, headroom, lower.clone())
                .nodes
        };
        let count = best(headroom);
        let refused = count == 0 && best(f64::INFINITY) > 0;
        let mut kept: Vec<Vec<bool>> = paths.iter().map(|paths| vec![false; paths.len()]).collect();
        for &(_, tree, node) in &order[..count] {
            kept[tree][node] = true;
        }
        let seconds = draft_seconds + reading_seconds + self.target.seconds(sequences + count, context);
        let plain_rate = 1.0 / self.target.seconds(sequences, context);
        for ((request, paths), kept) in requests.iter_mut().zip(&paths).zip(&kept) {
            let account = self.accounts.get_mut(&request.sequence).expect("begun");
            let proposed = !request.tree.is_empty();
            request.tree.retain(|node, _| kept[node as usize]);
            let gained: f32 = paths
                .iter()
                .zip(kept)
                .filter(|(_, kept)| **kept)
                .map(|(p, _)| p.mean)
                .sum();
            let plain = match (account.forecast.plain, request.tree.is_empty()) {
                (Some(refused), _) => Some(refused),
                (None, false) => None,
                (None, true) if proposed && refused => Some(PlainReason::LossBudget),
                (None, true) if proposed => Some(PlainReason::NotWorthIt),
                (None, true) => account.declined.or(Some(PlainReason::NothingProposed)),
            };
            account.forecast = Forecast {
                tokens: 1.0 + f64::from(gained),
                seconds,
                plain_rate,
                plain,
            };
        }
    }
}

impl Drafter for ControlledDrafter {
    fn name(&self) -> &str {
        "auto"
    }

    fn needs(&self) -> Needs {
        let drafters = self
            .free
            .iter()
            .chain(self.costly.as_ref().map(|costly| &costly.with.drafter));
        drafters.fold(Needs::default(), |needs, drafter| {
            let more = drafter.needs();
            Needs {
                hidden: match (needs.hidden, more.hidden) {
                    (HiddenNeed::EveryRow, _) | (_, HiddenNeed::EveryRow) => HiddenNeed::EveryRow,
                    (HiddenNeed::LastRow, _) | (_, HiddenNeed::LastRow) => HiddenNeed::LastRow,
                    _ => HiddenNeed::None,
                },
                top_logits: needs.top_logits.max(more.top_logits),
            }
        })
    }

    fn begin(&mut self, sequence: SequenceId, prompt: &[crate::Token]) -> Result<(), DraftError> {
        for drafter in &mut self.free {
            drafter.begin(sequence, prompt)?;
        }
        if let Some(costly) = &mut self.costly {
            costly.with.drafter.begin(sequence, prompt)?;
        }
        self.accounts.insert(sequence, Account::default());
        Ok(())
    }

    fn predicted(&mut self, sequence: SequenceId, prediction: &[crate::Token]) {
        for drafter in &mut self.free {
            drafter.predicted(sequence, prediction);
        }
    }

    fn draft(&mut self, requests: &mut [Request<'_>]) -> Result<(), DraftError> {
        let start = Instant::now();
        self.round = Round {
            number: self.round.number + 1,
            drafted: true,
            sequences: requests.len(),
            rows: requests.len(),
            context: requests.iter().map(|r| r.tokens.len()).sum::<usize>() / requests.len().max(1),
            ..Round::default()
        };
        let refresh = self.since_plain >= REFRESH;
        for request in requests.iter_mut() {
            let account = self.accounts.get_mut(&request.sequence).expect("begun");
            account.forecast.plain = refresh.then_some(PlainReason::Refresh);
            account.declined = None;
            account.round = self.round.number;
            request.budget.max_nodes = request.budget.max_nodes.min(MOST_NODES);
            request.budget.min_path_probability = request.budget.min_path_probability.max(LEAST_PROBABILITY);
        }
        if refresh {
            requests.iter_mut().for_each(|request| request.tree.clear());
        } else {
            for drafter in &mut self.free {
                drafter.draft(requests)?;
            }
            requests.iter_mut().for_each(Request::apply_grammar);
            self.round.draft_seconds = start.elapsed().as_secs_f64();
            self.ask_costly(requests)?;
            let start = Instant::now();
            requests.iter_mut().for_each(Request::apply_grammar);
            self.round.draft_seconds += start.elapsed().as_secs_f64();
        }
        self.prune(requests);
        Ok(())
    }

    fn submitted(&mut self, sequence: SequenceId, tree: &TokenTree) {
        for drafter in &mut self.free {
            drafter.submitted(sequence, tree);
        }
        if let Some(costly) = &mut self.costly {
            costly.with.drafter.submitted(sequence, tree);
        }
        if !self.accounts.contains_key(&sequence) {
            return;
        }
        self.round.rows += tree.len();
        let hoped = self
            .paths(sequence, tree)
            .iter()
            .map(|path| f64::from(path.mean))
            .sum();
        let account = self.accounts.get_mut(&sequence).expect("seen above");
        account.hoped = hoped;
        account.tree.clone_from(tree);
    }

    fn timed(&mut self, pass: &PassTime) {
        self.passes += 1;
        let drafted = std::mem::take(&mut self.round.drafted);
        self.round.pass_seconds = pass.seconds;
        self.round.mixed = drafted && pass.rows != self.round.rows;
        // A pass with a part of a prompt tells nothing of rounds.
        if drafted && !self.round.mixed || pass.rows == 1 {
            self.target.observe(pass.rows, pass.context, pass.seconds);
        }
        if self.round.mixed {
            let drafts = self.round.rows - self.round.sequences;
            let without = pass.rows.saturating_sub(drafts).max(1);
            let added =
                self.target.seconds(pass.rows, pass.context) - self.target.seconds(without, pass.context);
            // Not more than their part of the pass, whatever is thought of passes over so many rows.
            let part = pass.seconds * (drafts as f64 / pass.rows.max(1) as f64).min(1.0);
            self.round.draft_rows_seconds = added.min(part);
        }
        if drafted {
            let plain = self.round.rows == self.round.sequences;
            self.since_plain = if plain { 0 } else { self.since_plain + 1 };
        }
    }

    fn observe(&mut self, sequence: SequenceId, committed: &Committed) {
        for drafter in &mut self.free {
            drafter.observe(sequence, committed);
        }
        if let Some(costly) = &mut self.costly {
            costly.with.drafter.observe(sequence, committed);
        }
        let Some(account) = self.accounts.get_mut(&sequence) else {
            return;
        };
        let Round {
            number,
            sequences,
            rows,
            mixed,
            context,
            draft_seconds,
            pass_seconds,
            draft_rows_seconds,
            ..
        } = self.round;
        let counted = std::mem::replace(&mut account.pass, self.passes) == self.passes;
        if number == 0 || std::mem::take(&mut account.round) != number {
            // A part of its prompt, or the token after it.
            if !counted {
                account.plain += pass_seconds;
                account.spent += pass_seconds;
            }
            return;
        }
        let tree = std::mem::take(&mut account.tree);
        self.calibration.observe(&tree, &committed.accepted);
        account.calibration.observe(&tree, &committed.accepted);
        let gained = committed.tokens.len();
        let round = draft_seconds + pass_seconds;
        if let Some(costly) = &mut self.costly {
            // Beside a prompt, what the same round would have taken without it.
            let seconds = match mixed {
                true => draft_seconds + self.target.seconds(rows, context),
                false => round,
            };
            costly.observe(
                &mut account.worth,
                gained,
                seconds / self.target.seconds(1, context),
            );
        }
        account.generated += gained;
        account.foreseen += std::mem::take(&mut account.hoped) / f64::from(account.trust());
        account.accepted += committed.accepted.len() as f64;
        account.spent += round + account.worth.repay(gained);
        let token = self.target.seconds(sequences, context);
        account.plain += if mixed {
            // It would have waited for the prompt all the same, but not for the drafts beside it.
            pass_seconds - draft_rows_seconds + gained.saturating_sub(1) as f64 * token
        } else if rows == sequences && draft_seconds < 0.01 * round {
            // This round was plain decoding: no estimate is better.
            round
        } else {
            gained as f64 * token
        };
        account.tree = tree;
        account.tree.clear();
    }

    fn times(&self) -> Option<DraftTimes> {
        self.costly
            .as_ref()
            .and_then(|costly| costly.with.drafter.times())
    }

    fn note(&self) -> Option<&str> {
        self.costly.as_ref().and_then(|costly| costly.with.drafter.note())
    }

    fn forecast(&self, sequence: SequenceId) -> Option<Forecast> {
        self.accounts.get(&sequence).map(|account| account.forecast)
    }

    fn off_reason(&self, sequence: SequenceId) -> Option<&str> {
        self.accounts.get(&sequence)?.worth.off.as_deref()
    }

    fn end(&mut self, sequence: SequenceId) {
        for drafter in &mut self.free {
            drafter.end(sequence);
        }
        let account = self.accounts.remove(&sequence);
        if let Some(costly) = &mut self.costly {
            costly.with.drafter.end(sequence);
            if let Some(account) = account {
                costly.end(&account.worth);
            }
        }
    }
}
