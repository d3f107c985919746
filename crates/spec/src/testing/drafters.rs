//! Drafters that know nothing, everything, or better.

use std::fmt;

use crate::noise::{Noise, key, mix};
use crate::{
    Committed, DraftError, Drafter, Needs, Node, NodeId, Request, Sampler, SequenceId, Source, Token,
    TokenTree,
};

/// Proposes random tokens: a chain, or a tree in which every node has up to `width` children.
#[derive(Clone, Debug)]
pub struct RandomDrafter {
    vocab_size: usize,
    width: usize,
    seed: u64,
}

impl RandomDrafter {
    /// A drafter of trees of this width; 1 is a chain.
    pub fn new(vocab_size: usize, width: usize, seed: u64) -> Self {
        Self {
            vocab_size,
            width,
            seed,
        }
    }
}

impl Drafter for RandomDrafter {
    fn name(&self) -> &str {
        "random"
    }

    fn begin(&mut self, _sequence: SequenceId, _prompt: &[Token]) -> Result<(), DraftError> {
        Ok(())
    }

    fn draft(&mut self, requests: &mut [Request<'_>]) -> Result<(), DraftError> {
        for request in requests {
            let random = Noise::at(key(self.seed, request.sequence.0), request.tokens.len() as u64);
            let mut drawn = 0;
            let (mut parents, mut added) = (vec![None], 0);
            for depth in 0..depth_within(request) {
                let mut children: Vec<Option<NodeId>> = Vec::new();
                for &parent in &parents {
                    for rank in 0..self.width {
                        if added == request.budget.max_nodes {
                            break;
                        }
                        let token = (random.bits(drawn) % self.vocab_size as u64) as Token;
                        drawn += 1;
                        let confidence = 1.0 / (depth + 2) as f32;
                        let before = request.tree.len();
                        let node = push(request.tree, parent, token, confidence, rank);
                        added += request.tree.len() - before;
                        children.push(Some(node));
                    }
                }
                parents = children;
            }
        }
        Ok(())
    }

    fn end(&mut self, _sequence: SequenceId) {}
}

/// Whole texts, prompt and continuation, of which a sequence is the beginning.
#[derive(Clone, Debug, Default)]
struct Recorded(Vec<Vec<Token>>);

impl Recorded {
    /// What comes after `tokens`.
    fn after(&self, tokens: &[Token]) -> &[Token] {
        self.0
            .iter()
            .find_map(|text| text.strip_prefix(tokens))
            .unwrap_or(&[])
    }
}

/// Proposes what is known to come: the continuation of the first recorded text that begins with the
/// sequence's tokens. (Where nothing is recorded, a [`ModelDrafter`](crate::drafters::ModelDrafter) over a
/// second handle to the target is always right too.)
#[derive(Clone, Debug)]
pub struct OracleDrafter(Recorded);

impl OracleDrafter {
    /// Texts are prompt and continuation in one.
    pub fn new(texts: Vec<Vec<Token>>) -> Self {
        Self(Recorded(texts))
    }
}

impl Drafter for OracleDrafter {
    fn name(&self) -> &str {
        "oracle"
    }

    fn begin(&mut self, _sequence: SequenceId, _prompt: &[Token]) -> Result<(), DraftError> {
        Ok(())
    }

    fn draft(&mut self, requests: &mut [Request<'_>]) -> Result<(), DraftError> {
        for request in requests {
            let most = depth_within(request).min(request.budget.max_nodes);
            let mut parent = None;
            for &token in self.0.after(request.tokens).iter().take(most) {
                parent = Some(push(request.tree, parent, token, 1.0, 0));
            }
        }
        Ok(())
    }

    fn end(&mut self, _sequence: SequenceId) {}
}

/// Proposes what is known not to come: chains whose first token is not that of the recorded text. Sequences
/// of which nothing is recorded get no draft.
#[derive(Clone, Debug)]
pub struct AlwaysWrongDrafter {
    recorded: Recorded,
    vocab_size: usize,
}

impl AlwaysWrongDrafter {
    /// Texts are prompt and continuation in one; the vocabulary must have two tokens.
    pub fn new(texts: Vec<Vec<Token>>, vocab_size: usize) -> Self {
        Self {
            recorded: Recorded(texts),
            vocab_size,
        }
    }
}

impl Drafter for AlwaysWrongDrafter {
    fn name(&self) -> &str {
        "wrong"
    }

    fn begin(&mut self, _sequence: SequenceId, _prompt: &[Token]) -> Result<(), DraftError> {
        Ok(())
    }

    fn draft(&mut self, requests: &mut [Request<'_>]) -> Result<(), DraftError> {
        for request in requests {
            let most = depth_within(request).min(request.budget.max_nodes);
            let mut parent = None;
            for &token in self.recorded.after(request.tokens).iter().take(most) {
                let wrong = (token + 1) % self.vocab_size as Token;
                parent = Some(push(request.tree, parent, wrong, 1.0, 0));
            }
        }
        Ok(())
    }

    fn end(&mut self, _sequence: SequenceId) {}
}

/// Another drafter, with faults: in the rounds for which a hash of seed and round says so, it fails after it
/// has drafted.
pub struct FailingDrafter<D> {
    inner: D,
    seed: u64,
    one_in: u64,
    round: u64,
}

impl<D> FailingDrafter<D> {
    /// A drafter that fails in about one round of `one_in`.
    pub fn new(inner: D, seed: u64, one_in: u64) -> Self {
        Self {
            inner,
            seed,
            one_in: one_in.max(1),
            round: 0,
        }
    }
}

impl<D: fmt::Debug> fmt::Debug for FailingDrafter<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FailingDrafter")
            .field("inner", &self.inner)
            .finish()
    }
}

impl<D: Drafter> Drafter for FailingDrafter<D> {
    fn name(&self) -> &str {
        "failing"
    }

    fn needs(&self) -> Needs {
        self.inner.needs()
    }

    fn begin(&mut self, sequence: SequenceId, prompt: &[Token]) -> Result<(), DraftError> {
        self.inner.begin(sequence, prompt)
    }

    fn observe(&mut self, sequence: SequenceId, committed: &Committed) {
        self.inner.observe(sequence, committed);
    }

    fn draft(&mut self, requests: &mut [Request<'_>]) -> Result<(), DraftError> {
        self.inner.draft(requests)?;
        self.round += 1;
        if mix(mix(self.seed) ^ self.round).is_multiple_of(self.one_in) {
            return Err(DraftError::Other("told to fail".to_owned()));
        }
        Ok(())
    }

    fn end(&mut self, sequence: SequenceId) {
        self.inner.end(sequence);
    }
}

/// Another drafter, made to draw with noise of its own: what acceptance would be without shared noise. (At
/// temperature 0 there is no noise, and no difference.) Repetition penalties see the same tokens, presence and
/// frequency penalties none.
#[derive(Debug)]
pub struct OwnNoiseDrafter<D> {
    inner: D,
    key: u64,
}

impl<D> OwnNoiseDrafter<D> {
    /// A drafter with this key.
    pub fn new(inner: D, key: u64) -> Self {
        Self { inner, key }
    }
}

impl<D: Drafter> Drafter for OwnNoiseDrafter<D> {
    fn name(&self) -> &str {
        "own noise"
    }

    fn needs(&self) -> Needs {
        self.inner.needs()
    }

    fn begin(&mut self, sequence: SequenceId, prompt: &[Token]) -> Result<(), DraftError> {
        self.inner.begin(sequence, prompt)
    }

    fn draft(&mut self, requests: &mut [Request<'_>]) -> Result<(), DraftError> {
        let own = |r: &Request<'_>| Sampler::new(r.sampler.params().clone(), self.key, r.tokens).snapshot();
        let snapshots: Vec<_> = requests.iter().map(own).collect();
        let mut requests: Vec<_> = requests
            .iter_mut()
            .zip(&snapshots)
            .map(|(r, sampler)| Request {
                sampler,
                tree: &mut *r.tree,
                grammar: None,
                ..*r
            })
            .collect();
        self.inner.draft(&mut requests)
    }

    fn submitted(&mut self, sequence: SequenceId, tree: &TokenTree) {
        self.inner.submitted(sequence, tree);
    }

    fn observe(&mut self, sequence: SequenceId, committed: &Committed) {
        self.inner.observe(sequence, committed);
    }

    fn end(&mut self, sequence: SequenceId) {
        self.inner.end(sequence);
    }
}

/// How deep a tree may be by the budget and the position limit.
fn depth_within(request: &Request<'_>) -> usize {
    request
        .budget
        .max_depth
        .min(request.position_limit.saturating_sub(request.tokens.len()))
}

fn push(tree: &mut TokenTree, parent: Option<NodeId>, token: Token, confidence: f32, rank: usize) -> NodeId {
    tree.push(Node {
        token,
        parent,
        confidence,
        source: Source::Scripted,
        rank: rank as u16,
    })
}
