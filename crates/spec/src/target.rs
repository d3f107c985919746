//! What the engine asks of a model: rows in, scores out, and a cache that keeps the accepted ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A token id: an index into the model's vocabulary.
pub type Token = u32;

/// The index of a row within its [`Batch`].
pub type RowId = u32;

/// A sequence that a model has opened. Ids are not reused within one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(pub u64);

/// What a row's scores should hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    /// Nothing: the row only fills the cache (all but the last row of a prompt).
    #[default]
    None,
    /// The hidden state after the final norm.
    Hidden,
    /// The logits over the whole vocabulary.
    Logits,
    /// Hidden state and logits.
    Both,
}

impl Output {
    /// Whether logits are wanted.
    pub fn logits(self) -> bool {
        matches!(self, Output::Logits | Output::Both)
    }

    /// Whether the hidden state is wanted.
    pub fn hidden(self) -> bool {
        matches!(self, Output::Hidden | Output::Both)
    }
}

/// One token to score. Its position follows from its ancestors: a row without a parent continues its
/// sequence's committed tokens, a row with one continues that row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The sequence that the row belongs to.
    pub sequence: SequenceId,
    /// The token to evaluate.
    pub token: Token,
    /// The row that this one continues: an earlier one of the same sequence and batch.
    pub parent: Option<RowId>,
    /// What to compute for it.
    pub output: Output,
}

/// Rows to score in one pass: prompt chunks (chains), plain decoding and token trees, of many sequences.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    rows: Vec<Row>,
}

impl Batch {
    /// Removes all rows; keeps the memory.
    pub fn clear(&mut self) {
        self.rows.clear();
    }

    /// Appends a row and returns its index.
    ///
    /// # Panics
    /// If the parent is not an earlier row of the same sequence: a fault of the caller, not of any input.
    pub fn push(&mut self, row: Row) -> RowId {
        if let Some(parent) = row.parent {
            let parent = self
                .rows
                .get(parent as usize)
                .expect("a row's parent stands before it");
            assert_eq!(
                parent.sequence, row.sequence,
                "a row continues a row of its own sequence"
            );
        }
        self.rows.push(row);
        (self.rows.len() - 1) as RowId
    }

    /// The rows, in the order pushed.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

/// Logits and hidden states of the rows that asked for them. The buffers are the caller's and are reused
/// from pass to pass.
#[derive(Clone, Debug, Default)]
pub struct Scores {
    vocab_size: usize,
    hidden_size: usize,
    logits: Vec<f32>,
    hidden: Vec<f32>,
    logits_at: Vec<Option<u32>>,
    hidden_at: Vec<Option<u32>>,
}

impl Scores {
    /// Makes room for what the rows of `batch` ask for. Called by the model at the start of a pass.
    pub fn prepare(&mut self, batch: &Batch, vocab_size: usize, hidden_size: usize) {
        self.vocab_size = vocab_size;
        self.hidden_size = hidden_size;
        self.logits_at.clear();
        self.hidden_at.clear();
        let (mut with_logits, mut with_hidden) = (0, 0);
        for row in batch.rows() {
            self.logits_at.push(row.output.logits().then_some(with_logits));
            self.hidden_at.push(row.output.hidden().then_some(with_hidden));
            with_logits += u32::from(row.output.logits());
            with_hidden += u32::from(row.output.hidden());
        }
        self.logits.resize(with_logits as usize * vocab_size, 0.0);
        self.hidden.resize(with_hidden as usize * hidden_size, 0.0);
    }

    /// The logits of a row, `[vocab_size]`; `None` if the row did not ask for them.
    pub fn logits(&self, row: RowId) -> Option<&[f32]> {
        let at = (*self.logits_at.get(row as usize)?)? as usize;
        Some(&self.logits[at * self.vocab_size..][..self.vocab_size])
    }

    /// The hidden state of a row after the final norm, `[hidden_size]`; `None` if it did not ask for it.
    pub fn hidden(&self, row: RowId) -> Option<&[f32]> {
        let at = (*self.hidden_at.get(row as usize)?)? as usize;
        Some(&self.hidden[at * self.hidden_size..][..self.hidden_size])
    }

    /// All logits, `[rows that asked][vocab_size]` in row order, for the model to fill.
    pub fn logits_buffer(&mut self) -> &mut [f32] {
        &mut self.logits
    }

    /// All hidden states, `[rows that asked][hidden_size]` in row order, for the model to fill.
    pub fn hidden_buffer(&mut self) -> &mut [f32] {
        &mut self.hidden
    }
}

/// A flag that stops a pass between two layers. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Asks for the stop.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Takes the request back, for the next pass.
    pub fn reset(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Whether the stop was asked for.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What a model can do beyond scoring chains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Rows may branch.
    pub trees: bool,
    /// Hidden states can be had.
    pub hidden: bool,
    /// A row's bits do not depend on the other rows of its pass. Where this is false, identical tokens are
    /// not promised, and whoever shows its output should say so.
    pub row_invariant: bool,
}

/// What the engine must know of a model.
#[derive(Clone, Debug)]
pub struct ModelInfo {
    /// Length of a row of logits.
    pub vocab_size: usize,
    /// Length of a hidden state.
    pub hidden_size: usize,
    /// Most positions that a sequence may hold.
    pub context_length: usize,
    /// Tokens that end a generation, in ascending order.
    pub end_of_generation: Vec<Token>,
    /// What the model can do.
    pub capabilities: Capabilities,
}

impl ModelInfo {
    /// Whether `token` ends a generation.
    pub fn is_end_of_generation(&self, token: Token) -> bool {
        self.end_of_generation.binary_search(&token).is_ok()
    }
}

/// The cache has no room for what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the KV cache is full: {needed} more pages are needed, {free} are free")]
pub struct OutOfPages {
    /// Pages that the request needs beyond those it has.
    pub needed: usize,
    /// Pages that are free.
    pub free: usize,
}

/// Why a pass was not made. None of these changes a sequence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// See [`OutOfPages`].
    #[error(transparent)]
    OutOfPages(#[from] OutOfPages),
    /// [`Cancel`] was set.
    #[error("the pass was cancelled")]
    Cancelled,
    /// A row names a sequence that is not open.
    #[error("sequence {0:?} is not open")]
    UnknownSequence(SequenceId),
    /// A row's token is not in the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocab_size}")]
    TokenOutOfRange {
        /// The offending id.
        token: Token,
        /// The size of the vocabulary.
        vocab_size: usize,
    },
    /// A row would stand past the end of the context.
    #[error("position {position} is past the context of {context_length}")]
    ContextFull {
        /// Where the row would stand.
        position: usize,
        /// The length of the context.
        context_length: usize,
    },
    /// Something of the backend's own.
    #[error("{0}")]
    Backend(String),
}

/// Pages of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    /// How many there are.
    pub total: usize,
    /// Those that belong to no sequence.
    pub free: usize,
}

/// A language model that scores rows and caches those that are kept.
pub trait TargetModel {
    /// Sizes, special ids and capabilities.
    fn info(&self) -> &ModelInfo;

    /// Opens an empty sequence.
    fn open(&mut self) -> SequenceId;

    /// The number of committed tokens of a sequence: the one truth for positions. 0 if it is not open.
    fn len(&self, sequence: SequenceId) -> usize;

    /// Pages of the cache; none where the model has no bound.
    fn pages(&self) -> Pages {
        Pages::default()
    }

    /// Secures room for `rows` more rows of a sequence beyond its committed tokens, so that the next
    /// [`forward`](Self::forward) of so many cannot run out of pages.
    fn reserve(&mut self, sequence: SequenceId, rows: usize) -> Result<(), OutOfPages>;

    /// Scores all rows of `batch`. An error changes no sequence; cancellable between layers.
    fn forward(&mut self, batch: &Batch, scores: &mut Scores, cancel: &Cancel) -> Result<(), ModelError>;

    /// Keeps the given rows of the last pass, which form a path that continues the committed tokens. Rows
    /// that are not committed are gone at the next pass. Rows that are no such path are ignored from the
    /// first that is not on: this function and those below never fail. Call it at
    /// most once for a sequence and pass.
    fn commit(&mut self, sequence: SequenceId, rows: &[RowId]);

    /// Forgets all but the first `len` committed tokens, and with them rows of the last pass and what was reserved. With more
    /// than it has, nothing.
    fn truncate(&mut self, sequence: SequenceId, len: usize);

    /// Replaces what a sequence holds by the first `len` committed tokens of another one, or all if it has fewer, and shares
    /// their memory.
    fn share(&mut self, sequence: SequenceId, from: SequenceId, len: usize);

    /// Opens a sequence with the same committed tokens, sharing their memory.
    fn fork(&mut self, sequence: SequenceId) -> SequenceId {
        let fork = self.open();
        self.share(fork, sequence, self.len(sequence));
        fork
    }

    /// Closes a sequence and gives its memory back.
    fn release(&mut self, sequence: SequenceId);
}
