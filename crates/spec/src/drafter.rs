//! What the engine asks of a drafter. A drafter can change speed, never output; an empty tree is fine.

use std::time::{Duration, Instant};

use crate::{
    Forecast, Grammar, LogitError, ModelError, NodeId, PassTime, SamplerSnapshot, SequenceId, Sources, Token,
    TokenTree, grammar,
};

/// Which hidden states of the target a drafter reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HiddenNeed {
    /// None.
    #[default]
    None,
    /// That of the last committed row.
    LastRow,
    /// Those of all rows.
    EveryRow,
}

/// What a drafter wants to see of the target's passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Hidden states.
    pub hidden: HiddenNeed,
    /// How many of the best logits of each verified row.
    pub top_logits: usize,
}

/// How far a draft may go. Data, not a closure: it crosses threads and wires.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    /// Who may draft: a drafter of another kind leaves the tree alone.
    pub sources: Sources,
    /// Most nodes that the drafter may add.
    pub max_nodes: usize,
    /// Greatest depth of a node.
    pub max_depth: usize,
    /// Most nodes that the drafter may let follow one place: 1 makes a chain.
    pub max_branches: usize,
    /// Most committed tokens that a draft model may read before it drafts: of more that it has not read, it reads the end.
    pub max_read: usize,
    /// Least path probability that is worth one more draft step.
    pub min_path_probability: f32,
    /// Least confidence of a single node: a drafter stops before a token below it.
    pub min_confidence: f32,
}

/// A request for a draft of one sequence.
#[derive(Debug)]
pub struct Request<'a> {
    /// The target's name for the sequence.
    pub sequence: SequenceId,
    /// Prompt and committed tokens. The last is the tree's root: sampled, but not yet evaluated.
    pub tokens: &'a [Token],
    /// The target's hidden state, after its final norm, of the row from which the last token was sampled, if asked for.
    pub hidden: Option<&'a [f32]>,
    /// The target's sampler as it stands before the next token.
    pub sampler: &'a SamplerSnapshot,
    /// What the answer must look like, as it stands before the next token; every call that moves it moves it back.
    pub grammar: Option<&'a mut (dyn Grammar + 'static)>,
    /// How far to go.
    pub budget: Budget,
    /// No node may be drawn at this absolute position or beyond.
    pub position_limit: usize,
    /// When the draft must be there, whatever is in it.
    pub deadline: Option<Instant>,
    /// The tree to *extend*: it may already hold another drafter's nodes.
    pub tree: &'a mut TokenTree,
}

impl Request<'_> {
    /// Cuts what the grammar forbids from the tree, and adds what it forces: see [`grammar::apply`].
    pub fn apply_grammar(&mut self) {
        if let Some(grammar) = self.grammar.as_deref_mut() {
            grammar::apply(grammar, self.tree, &self.budget);
        }
    }
}

/// A row that the target has scored.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VerifiedRow {
    /// The tree's node; `None` for the root, or for a row of the prompt.
    pub node: Option<NodeId>,
    /// The best logits, best first, as many as [`Needs::top_logits`] asked for.
    pub top_logits: Vec<(Token, f32)>,
    /// The hidden state, if asked for.
    pub hidden: Option<Vec<f32>>,
}

/// What a round made of a sequence, or what a prompt chunk put before it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Committed {
    /// Tokens that the sequence gained: accepted draft tokens and the target's own last one; of a prompt
    /// chunk, its tokens.
    pub tokens: Vec<Token>,
    /// The accepted nodes in path order. Empty for a prompt chunk.
    pub accepted: Vec<NodeId>,
    /// All rows of the pass that were verified, rejected ones too. Empty unless [`Needs`] asks for them.
    pub rows: Vec<VerifiedRow>,
}

/// Why a drafter gave up. The engine goes on without drafts and says so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DraftError {
    /// The draft model's pass failed.
    #[error("the draft model: {0}")]
    Model(#[from] ModelError),
    /// Its pass gave no usable logits.
    #[error("the draft model: {0}")]
    Logits(#[from] LogitError),
    /// Something of the drafter's own.
    #[error("{0}")]
    Other(String),
}

/// Where the time of a drafter that runs a network went, summed over all sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftTimes {
    /// Passes of the draft model, or steps of a speculator.
    pub passes: u64,
    /// Rows by which it read prompts and other text that it did not know, and windows moved.
    pub prompt_rows: u64,
    /// The time of passes with such rows.
    pub prompt: Duration,
    /// All other rows.
    pub eval_rows: u64,
    /// The time of all other passes.
    pub eval: Duration,
    /// The time to turn scores into proposals.
    pub sample: Duration,
}

impl DraftTimes {
    /// What was added since these were `before`.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            passes: self.passes.saturating_sub(before.passes),
            prompt_rows: self.prompt_rows.saturating_sub(before.prompt_rows),
            prompt: self.prompt.saturating_sub(before.prompt),
            eval_rows: self.eval_rows.saturating_sub(before.eval_rows),
            eval: self.eval.saturating_sub(before.eval),
            sample: self.sample.saturating_sub(before.sample),
        }
    }
}

/// A source of drafts. It may keep state per sequence, in any thread; calls for one sequence come in the
/// order `begin`, then rounds of `draft`, `submitted`, `observe`, then `end`.
pub trait Drafter: Send {
    /// A short name for statistics: `model`, `lookup`.
    fn name(&self) -> &str;

    /// What the engine should show this drafter.
    fn needs(&self) -> Needs {
        Needs::default()
    }

    /// A sequence starts with this prompt.
    fn begin(&mut self, sequence: SequenceId, prompt: &[Token]) -> Result<(), DraftError>;

    /// What the answer to the prompt will mostly be, if its request says so; called after `begin`.
    fn predicted(&mut self, _sequence: SequenceId, _prediction: &[Token]) {}

    /// Extends the tree of each request; one draft pass serves them all.
    fn draft(&mut self, requests: &mut [Request<'_>]) -> Result<(), DraftError>;

    /// This tree is being verified now; an asynchronous drafter goes on from it.
    fn submitted(&mut self, _sequence: SequenceId, _tree: &TokenTree) {}

    /// The round's outcome; also called for prompt chunks.
    fn observe(&mut self, _sequence: SequenceId, _committed: &Committed) {}

    /// What the pass over what was submitted took; called before the round's outcome is told.
    fn timed(&mut self, _pass: &PassTime) {}

    /// What is expected of the round that was drafted last, by a drafter that predicts.
    fn forecast(&self, _sequence: SequenceId) -> Option<Forecast> {
        None
    }

    /// Why a part of the drafter does not serve the sequence any more, though the rest does.
    fn off_reason(&self, _sequence: SequenceId) -> Option<&str> {
        None
    }

    /// What whoever reads its statistics should know of it, if anything.
    fn note(&self) -> Option<&str> {
        None
    }

    /// Where the time went, for drafters that run a model.
    fn times(&self) -> Option<DraftTimes> {
        None
    }

    /// The sequence is over.
    fn end(&mut self, sequence: SequenceId);
}
