//! A speculator as drafter: a small network that goes on from the target's own hidden state.
//!
//! Head i of the network makes logits for the i-th draft token from the state that the head before left, and from the token that was
//! drawn last. So the tree grows level by level: one step of the network takes one head over the likeliest places of all
//! requests' trees, and what it proposes there, drawn with the target's own noise, penalties and filters through the
//! sampler's snapshot, is the next level. In the end the likeliest nodes of all levels are proposed.
//!
//! It keeps nothing of a sequence but memory for its sampler: each draft begins from the hidden state of the row from which the
//! target drew the last token. Without one nothing is drafted.
//!
//! Not here: the network's arithmetic ([`Network`]), files of speculators.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::time::Instant;

use super::Network;
use super::propose::{ROW, check_vocabulary, propose};
use crate::drafter::DraftTimes;
use crate::{
    DraftError, Drafter, HiddenNeed, Needs, Node, NodeId, Request, Sampler, SequenceId, Source, Token,
};

/// Rows up to which a step costs little more than over one.
pub(crate) const ROWS: usize = 4;

/// Drafts with a speculator network.
#[derive(Debug)]
pub struct SpeculatorDrafter<N> {
    network: N,
    target_vocab_size: usize,
    vocabulary: Option<Vec<Token>>,
    end_of_generation: Vec<Token>,
    samplers: HashMap<SequenceId, Sampler>,
    times: DraftTimes,
    tokens: Vec<Token>,
    states: Vec<f32>,
    next: Vec<f32>,
    logits: Vec<f32>,
}

/// A request that is being drafted.
struct Job<'r, 'a> {
    request: &'r mut Request<'a>,
    sampler: Sampler,
    /// What was proposed, level by level; parents are indices into it.
    grown: Vec<Grown>,
    /// Where the last level begins.
    level: usize,
    /// Greatest depth of a node.
    depth: usize,
}

/// A proposed node.
struct Grown {
    node: Node,
    /// Of the path that ends in it.
    probability: f32,
    /// The row of the last step that proposed it, with the state to go on from.
    row: usize,
}

/// A place that a step evaluates: what may follow the last committed token, or a node that was grown.
#[derive(Clone, Copy)]
struct Place {
    job: usize,
    node: Option<NodeId>,
}

impl Job<'_, '_> {
    /// The tokens up to a node.
    fn path(&self, node: Option<NodeId>) -> Vec<Token> {
        let up = std::iter::successors(node, |&at| self.grown[at as usize].node.parent);
        let mut path: Vec<Token> = up.map(|at| self.grown[at as usize].node.token).collect();
        path.reverse();
        path
    }

    /// Nodes, the likeliest first, each after its parent, which is never less likely.
    fn by_probability(&self) -> Vec<NodeId> {
        let mut order: Vec<NodeId> = (0..self.grown.len() as NodeId).collect();
        let probability = |node: NodeId| self.grown[node as usize].probability;
        order.sort_by(|&a, &b| probability(b).total_cmp(&probability(a)).then(a.cmp(&b)));
        order
    }

    /// The nodes of the last level that may be worth a row of the next step, likeliest first: those that would leave room for what
    /// follows them.
    fn ends(&self, levels: usize) -> Vec<NodeId> {
        let budget = &self.request.budget;
        let least = ROW * budget.min_path_probability;
        if levels >= self.depth || is_late(self.request) {
            return Vec::new();
        }
        let mut best = self.by_probability();
        best.truncate(budget.max_nodes.saturating_sub(1));
        best.retain(|&node| node as usize >= self.level && self.grown[node as usize].probability >= least);
        let worth_a_step =
            |&node: &NodeId| self.grown[node as usize].probability >= budget.min_path_probability;
        match best.first().is_some_and(worth_a_step) {
            true => best,
            false => Vec::new(),
        }
    }

    /// Adds the best of what was grown to the request's tree.
    fn finish(&mut self) {
        let order = self.by_probability();
        let Request { budget, tree, .. } = &mut *self.request;
        let least = ROW * budget.min_path_probability;
        let mut ids: Vec<Option<NodeId>> = vec![None; self.grown.len()];
        let mut added = 0;
        for at in order {
            let Grown {
                node, probability, ..
            } = &self.grown[at as usize];
            if added == budget.max_nodes || *probability < least {
                break;
            }
            let parent = node
                .parent
                .map(|parent| ids[parent as usize].expect("it stands before"));
            let before = tree.len();
            ids[at as usize] = Some(tree.push(Node { parent, ..*node }));
            added += tree.len() - before;
        }
    }
}

impl<N: Network> SpeculatorDrafter<N> {
    /// A drafter for a target whose rows of logits are `target_vocab_size` long; ids beyond are not proposed, nor are the tokens in
    /// `end_of_generation`.
    pub fn new(network: N, target_vocab_size: usize, end_of_generation: Vec<Token>) -> Self {
        Self {
            network,
            target_vocab_size,
            vocabulary: None,
            end_of_generation,
            samplers: HashMap::new(),
            times: DraftTimes::default(),
            tokens: Vec::new(),
            states: Vec::new(),
            next: Vec::new(),
            logits: Vec::new(),
        }
    }

    /// For a network whose heads cover a part of the vocabulary: the token of each of its logits, ascending.
    ///
    /// # Errors
    /// If these are not as many as the network has logits, not ascending, or not tokens of the target.
    pub fn with_vocabulary(mut self, vocabulary: Vec<Token>) -> Result<Self, DraftError> {
        check_vocabulary(&vocabulary, self.network.vocab_size(), self.target_vocab_size)?;
        self.vocabulary = Some(vocabulary);
        Ok(self)
    }

    /// The network, to measure it.
    pub fn network_mut(&mut self) -> &mut N {
        &mut self.network
    }

    fn prepare<'r, 'a>(&mut self, request: &'r mut Request<'a>) -> Job<'r, 'a> {
        let sampler = self.samplers.remove(&request.sequence);
        let mut sampler = sampler.unwrap_or_else(|| request.sampler.sampler());
        sampler.restore(request.sampler);
        let budget = &request.budget;
        let room = request.position_limit.saturating_sub(request.tokens.len());
        let asked = request.hidden.is_some()
            && budget.sources.contains(Source::Mlp)
            && budget.max_nodes > 0
            && !request.tokens.is_empty()
            && !is_late(request);
        Job {
            depth: if asked { budget.max_depth.min(room) } else { 0 },
            request,
            sampler,
            grown: Vec::new(),
            level: 0,
        }
    }

    /// Grows the trees of all jobs, one head after another.
    fn grow(&mut self, jobs: &mut [Job<'_, '_>]) -> Result<(), DraftError> {
        self.states.clear();
        let mut places: Vec<Place> = Vec::new();
        for (at, job) in jobs.iter().enumerate().filter(|(_, job)| job.depth > 0) {
            let state = job.request.hidden.unwrap_or_default();
            if is_finite(state) {
                self.states.extend_from_slice(state);
                places.push(Place { job: at, node: None });
            }
        }
        for head in 0..self.network.heads() {
            if places.is_empty() {
                break;
            }
            self.step(head, jobs, &places)?;
            places = next_places(jobs, head + 1);
            let inner = self.network.inner_size();
            self.states.clear();
            places.retain(|place| {
                let row = jobs[place.job].grown[place.node.expect("it was grown") as usize].row;
                let state = &self.next[row * inner..][..inner];
                let sound = is_finite(state);
                if sound {
                    self.states.extend_from_slice(state);
                }
                sound
            });
        }
        Ok(())
    }

    /// One head over the places, and the level that it proposes.
    fn step(&mut self, head: usize, jobs: &mut [Job<'_, '_>], places: &[Place]) -> Result<(), DraftError> {
        let start = Instant::now();
        self.tokens.clear();
        self.tokens.extend(places.iter().map(|place| {
            let job = &jobs[place.job];
            match place.node {
                Some(node) => job.grown[node as usize].node.token,
                None => *job.request.tokens.last().expect("there is one"),
            }
        }));
        let Self {
            network,
            tokens,
            states,
            next,
            logits,
            ..
        } = self;
        network.step(head, tokens, states, next, logits).map_err(failed)?;
        let evaluated = Instant::now();
        self.times.passes += 1;
        self.times.eval_rows += places.len() as u64;
        self.times.eval += evaluated - start;
        for job in jobs.iter_mut() {
            job.level = job.grown.len();
        }
        for (row, &place) in places.iter().enumerate() {
            self.reach(&mut jobs[place.job], place.node, row);
        }
        self.times.sample += evaluated.elapsed();
        Ok(())
    }

    /// Takes in what a row proposes. Nothing that ends the generation is: it would gain no token. A row whose logits are not usable
    /// proposes nothing: the others are not to blame.
    fn reach(&self, job: &mut Job<'_, '_>, node: Option<NodeId>, row: usize) {
        let length = self.network.vocab_size();
        let logits = &self.logits[row * length..][..length];
        let logits = match &self.vocabulary {
            Some(_) => logits,
            None => &logits[..length.min(self.target_vocab_size)],
        };
        let path = job.path(node);
        let budget = job.request.budget;
        let proposals = propose(
            &mut job.sampler,
            job.request.grammar.as_deref_mut().map(|grammar| grammar as _),
            &path,
            logits,
            self.vocabulary.as_deref(),
            budget.max_branches,
        )
        .unwrap_or_default();
        let before = node.map_or(1.0, |node| job.grown[node as usize].probability);
        for (rank, proposal) in proposals.into_iter().enumerate() {
            if proposal.confidence < budget.min_confidence || self.end_of_generation.contains(&proposal.token)
            {
                continue;
            }
            job.grown.push(Grown {
                node: Node {
                    token: proposal.token,
                    parent: node,
                    confidence: proposal.confidence,
                    source: Source::Mlp,
                    rank: rank as u16,
                },
                probability: before * proposal.confidence,
                row,
            });
        }
    }
}

fn is_late(request: &Request<'_>) -> bool {
    request.deadline.is_some_and(|at| at <= Instant::now())
}

/// Whether a network takes it. What is not finite spoils the drafts of its own sequence, and no other's.
fn is_finite(state: &[f32]) -> bool {
    state.iter().all(|value| value.is_finite())
}

/// What the next step evaluates, after so many levels: the likeliest place of each job, and others as long as the step costs
/// little more for them.
fn next_places(jobs: &[Job<'_, '_>], levels: usize) -> Vec<Place> {
    let mut places = Vec::new();
    let mut others = Vec::new();
    for (job, ends) in jobs.iter().map(|job| job.ends(levels)).enumerate() {
        let mut ends = ends.into_iter().map(|node| Place {
            job,
            node: Some(node),
        });
        places.extend(ends.next());
        others.extend(ends);
    }
    let probability = |place: &Place| {
        let node = place.node.expect("it was grown");
        jobs[place.job].grown[node as usize].probability
    };
    others.sort_by(|a, b| match probability(b).total_cmp(&probability(a)) {
        Ordering::Equal => (a.job, a.node).cmp(&(b.job, b.node)),
        order => order,
    });
    let room = ROWS.saturating_sub(places.len());
    places.extend(others.into_iter().take(room));
    places
}

fn failed(error: impl std::fmt::Display) -> DraftError {
    DraftError::Other(format!("the speculator: {error}"))
}

impl<N: Network> Drafter for SpeculatorDrafter<N> {
    fn name(&self) -> &str {
        Source::Mlp.name()
    }

    fn needs(&self) -> Needs {
        Needs {
            hidden: HiddenNeed::LastRow,
            ..Needs::default()
        }
    }

    fn begin(&mut self, _sequence: SequenceId, _prompt: &[Token]) -> Result<(), DraftError> {
        Ok(())
    }

    fn draft(&mut self, requests: &mut [Request<'_>]) -> Result<(), DraftError> {
        let mut jobs: Vec<_> = requests.iter_mut().map(|request| self.prepare(request)).collect();
        let outcome = self.grow(&mut jobs);
        for mut job in jobs {
            if outcome.is_ok() {
                job.finish();
            }
            self.samplers.insert(job.request.sequence, job.sampler);
        }
        outcome
    }

    fn times(&self) -> Option<DraftTimes> {
        Some(self.times)
    }

    fn end(&mut self, sequence: SequenceId) {
        self.samplers.remove(&sequence);
    }
}
