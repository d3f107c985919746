//! A [`TargetModel`] whose logits are a function of the path.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use crate::noise::{Noise, mix};
use crate::{
    Batch, Cancel, Capabilities, ModelError, ModelInfo, OutOfPages, Pages, RowId, Scores, SequenceId,
    TargetModel, Token,
};

/// Fills the logits of the row that ends a path.
type Logits = Arc<dyn Fn(&[Token], &mut [f32]) + Send + Sync>;

/// A row that a [`ScriptedModel`] has evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Evaluation {
    /// Whose row it was.
    pub sequence: SequenceId,
    /// Its index in its path.
    pub position: usize,
    /// Its token.
    pub token: Token,
    /// The pass in which it was, counted from 0.
    pub pass: usize,
}

/// A model without weights: a row's logits are a function of the tokens on its path, its own the last, and its hidden state names
/// the row by the path's length and its last three tokens. It keeps sequences as a real one does, can run out of pages, and fails when told to.
#[derive(Clone)]
pub struct ScriptedModel {
    info: ModelInfo,
    logits: Logits,
    /// Tokens below this can be evaluated.
    input_vocab: usize,
    sequences: BTreeMap<SequenceId, Vec<Token>>,
    reserved: HashMap<SequenceId, usize>,
    next: u64,
    /// The rows of the last pass that may be committed: sequence, parent, token.
    last: Vec<(SequenceId, Option<RowId>, Token)>,
    /// Tokens a page, and pages.
    pages: Option<(usize, usize)>,
    faults: BTreeMap<usize, ModelError>,
    passes: usize,
    evaluations: Vec<Evaluation>,
}

impl fmt::Debug for ScriptedModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptedModel")
            .field("info", &self.info)
            .field("sequences", &self.sequences)
            .finish()
    }
}

impl ScriptedModel {
    /// A model with these logits.
    pub fn new(vocab_size: usize, logits: impl Fn(&[Token], &mut [f32]) + Send + Sync + 'static) -> Self {
        Self {
            info: ModelInfo {
                vocab_size,
                hidden_size: 4,
                context_length: 1 << 20,
                end_of_generation: Vec::new(),
                capabilities: Capabilities {
                    trees: true,
                    hidden: true,
                    row_invariant: true,
                },
            },
            logits: Arc::new(logits),
            input_vocab: vocab_size,
            sequences: BTreeMap::new(),
            reserved: HashMap::new(),
            next: 0,
            last: Vec::new(),
            pages: None,
            faults: BTreeMap::new(),
            passes: 0,
            evaluations: Vec::new(),
        }
    }

    /// Random logits, of about the given spread in nats, that depend on the last three tokens of the path.
    pub fn random(vocab_size: usize, seed: u64, spread: f32) -> Self {
        Self::new(vocab_size, move |path, logits| {
            random_logits(path, seed, spread, logits)
        })
    }

    /// A model that resembles this one: to each logit, random noise of about the given spread is added.
    pub fn blurred(&self, seed: u64, spread: f32) -> Self {
        let sharp = Arc::clone(&self.logits);
        let mut blurred = Self::new(self.info.vocab_size, move |path, logits| {
            sharp(path, logits);
            let mut noise = vec![0.0; logits.len()];
            random_logits(path, seed, spread, &mut noise);
            logits.iter_mut().zip(noise).for_each(|(x, n)| *x += n);
        });
        blurred.info = self.info.clone();
        blurred
    }

    /// A model that says these tokens, whatever the prompt, greedily and at moderate temperatures. The first
    /// follows a prompt of `prompt` tokens; the last is said for ever.
    pub fn saying(vocab_size: usize, prompt: usize, tokens: Vec<Token>) -> Self {
        Self::new(vocab_size, move |path, logits| {
            logits.fill(0.0);
            let at = (path.len() - prompt.min(path.len())).min(tokens.len().saturating_sub(1));
            if let Some(logit) = tokens.get(at).and_then(|&token| logits.get_mut(token as usize)) {
                *logit = 60.0;
            }
        })
    }

    /// Lets the model read more tokens than its row of logits is long, as one with a reduced head does.
    pub fn with_input_vocab(mut self, size: usize) -> Self {
        self.input_vocab = size;
        self
    }

    /// Sets the context's length.
    pub fn with_context(mut self, length: usize) -> Self {
        self.info.context_length = length;
        self
    }

    /// Sets the tokens that end a generation.
    pub fn with_end_of_generation(mut self, mut tokens: Vec<Token>) -> Self {
        tokens.sort_unstable();
        self.info.end_of_generation = tokens;
        self
    }

    /// Sets what the model claims to be able to do.
    pub fn with_capabilities(mut self, capabilities: Capabilities) -> Self {
        self.info.capabilities = capabilities;
        self
    }

    /// Limits the cache. Pages are not shared between forks.
    pub fn with_pages(mut self, tokens_per_page: usize, pages: usize) -> Self {
        self.pages = Some((tokens_per_page, pages));
        self
    }

    /// Makes a pass fail, counted from 0 over the model's life.
    pub fn failing_at(mut self, pass: usize, error: ModelError) -> Self {
        self.faults.insert(pass, error);
        self
    }

    /// The tokens in a sequence's cache; empty if it is not open.
    pub fn committed(&self, sequence: SequenceId) -> &[Token] {
        self.sequences.get(&sequence).map_or(&[], Vec::as_slice)
    }

    /// Sequences that are open.
    pub fn open_sequences(&self) -> usize {
        self.sequences.len()
    }

    /// Passes made, failed ones too.
    pub fn passes(&self) -> usize {
        self.passes
    }

    /// All rows evaluated, in order.
    pub fn evaluations(&self) -> &[Evaluation] {
        &self.evaluations
    }

    /// The logits of the row that ends `path`, without a sequence.
    pub fn logits_after(&self, path: &[Token]) -> Vec<f32> {
        let mut logits = vec![0.0; self.info.vocab_size];
        (self.logits)(path, &mut logits);
        logits
    }

    fn pages_of(&self, length: usize) -> usize {
        self.pages.map_or(0, |(tokens, _)| length.div_ceil(tokens))
    }

    /// Pages that a sequence holds or has reserved.
    fn held(&self, sequence: SequenceId) -> usize {
        let reserved = self.reserved.get(&sequence).copied().unwrap_or(0);
        self.pages_of(self.committed(sequence).len()).max(reserved)
    }

    /// The tokens on a row's way from the start of its sequence.
    fn path(&self, batch: &Batch, row: RowId) -> Vec<Token> {
        let rows = batch.rows();
        let up = std::iter::successors(Some(row), |&r| rows[r as usize].parent);
        let mut path: Vec<Token> = up.map(|r| rows[r as usize].token).collect();
        path.extend(self.committed(rows[row as usize].sequence).iter().rev());
        path.reverse();
        path
    }
}

/// The hidden state of the row that ends a path: its length and its last three tokens, the very last first.
pub(super) fn name_row(path: &[Token], hidden: &mut [f32]) {
    hidden.fill(0.0);
    let last = path.iter().rev().map(|&token| token as f32);
    let named = std::iter::once(path.len() as f32).chain(last);
    hidden
        .iter_mut()
        .zip(named)
        .for_each(|(value, named)| *value = named);
}

/// Roughly normal numbers of the given spread, from the path's last three tokens.
fn random_logits(path: &[Token], seed: u64, spread: f32, logits: &mut [f32]) {
    let last = &path[path.len().saturating_sub(3)..];
    let context = last
        .iter()
        .fold(seed, |h, &token| mix(h ^ mix(u64::from(token) + 1)));
    let bits = Noise::at(context, 0);
    for (token, logit) in logits.iter_mut().enumerate() {
        let bits = bits.bits(token as Token);
        let sum: u64 = (0..4).map(|i| bits >> (16 * i) & 0xffff).sum();
        // Four uniform numbers: mean 2, variance 1/3.
        *logit = (sum as f32 / 65536.0 - 2.0) * 3f32.sqrt() * spread;
    }
}

impl TargetModel for ScriptedModel {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn open(&mut self) -> SequenceId {
        let sequence = SequenceId(self.next);
        self.next += 1;
        self.sequences.insert(sequence, Vec::new());
        sequence
    }

    fn len(&self, sequence: SequenceId) -> usize {
        self.committed(sequence).len()
    }

    fn pages(&self) -> Pages {
        let total = self.pages.map_or(0, |(_, pages)| pages);
        let used: usize = self.sequences.keys().map(|&s| self.held(s)).sum();
        Pages {
            total,
            free: total.saturating_sub(used),
        }
    }

    fn reserve(&mut self, sequence: SequenceId, rows: usize) -> Result<(), OutOfPages> {
        if self.pages.is_none() {
            return Ok(());
        }
        let free = self.pages().free;
        let wanted = self.pages_of(self.len(sequence) + rows);
        let needed = wanted.saturating_sub(self.held(sequence));
        if needed > free {
            return Err(OutOfPages { needed, free });
        }
        if self.sequences.contains_key(&sequence) {
            let reserved = self.reserved.entry(sequence).or_insert(0);
            *reserved = wanted.max(*reserved);
        }
        Ok(())
    }

    fn forward(&mut self, batch: &Batch, scores: &mut Scores, cancel: &Cancel) -> Result<(), ModelError> {
        let pass = self.passes;
        self.passes += 1;
        if let Some(error) = self.faults.get(&pass) {
            return Err(error.clone());
        }
        if cancel.is_cancelled() {
            return Err(ModelError::Cancelled);
        }
        let ModelInfo {
            vocab_size,
            hidden_size,
            context_length,
            ..
        } = self.info;
        let mut rows = BTreeMap::<SequenceId, usize>::new();
        for (at, row) in batch.rows().iter().enumerate() {
            if !self.sequences.contains_key(&row.sequence) {
                return Err(ModelError::UnknownSequence(row.sequence));
            }
            if row.token as usize >= self.input_vocab {
                let vocab_size = self.input_vocab;
                return Err(ModelError::TokenOutOfRange {
                    token: row.token,
                    vocab_size,
                });
            }
            let position = self.path(batch, at as RowId).len() - 1;
            if position >= context_length {
                return Err(ModelError::ContextFull {
                    position,
                    context_length,
                });
            }
            *rows.entry(row.sequence).or_insert(0) += 1;
        }
        for (sequence, rows) in rows {
            self.reserve(sequence, rows)?;
        }
        scores.prepare(batch, vocab_size, hidden_size);
        self.last.clear();
        let (mut with_logits, mut with_hidden) = (0, 0);
        for (at, row) in batch.rows().iter().enumerate() {
            let path = self.path(batch, at as RowId);
            if row.output.logits() {
                let logits = &mut scores.logits_buffer()[with_logits * vocab_size..][..vocab_size];
                (self.logits)(&path, logits);
                with_logits += 1;
            }
            if row.output.hidden() {
                let hidden = &mut scores.hidden_buffer()[with_hidden * hidden_size..][..hidden_size];
                name_row(&path, hidden);
                with_hidden += 1;
            }
            self.last.push((row.sequence, row.parent, row.token));
            let (sequence, token) = (row.sequence, row.token);
            self.evaluations.push(Evaluation {
                sequence,
                position: path.len() - 1,
                token,
                pass,
            });
        }
        Ok(())
    }

    fn commit(&mut self, sequence: SequenceId, rows: &[RowId]) {
        let mut parent = None;
        for &row in rows {
            let Some(&(of, from, token)) = self.last.get(row as usize) else {
                break;
            };
            let Some(tokens) = self.sequences.get_mut(&sequence) else {
                break;
            };
            if of != sequence || from != parent {
                break;
            }
            tokens.push(token);
            parent = Some(row);
        }
        // What was committed, or now is a stranger to the committed tokens, cannot be committed again.
        self.last
            .iter_mut()
            .filter(|row| row.0 == sequence)
            .for_each(|row| row.1 = Some(RowId::MAX));
        self.reserved.remove(&sequence);
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize) {
        if let Some(tokens) = self.sequences.get_mut(&sequence) {
            tokens.truncate(len);
        }
        self.reserved.remove(&sequence);
    }

    fn share(&mut self, sequence: SequenceId, from: SequenceId, len: usize) {
        let shared = self.committed(from);
        let shared = shared[..len.min(shared.len())].to_vec();
        if let Some(tokens) = self.sequences.get_mut(&sequence) {
            *tokens = shared;
        }
        self.reserved.remove(&sequence);
    }

    fn release(&mut self, sequence: SequenceId) {
        self.sequences.remove(&sequence);
        self.reserved.remove(&sequence);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Output, Row};

    fn row(sequence: SequenceId, token: Token, parent: Option<RowId>) -> Row {
        Row {
            sequence,
            token,
            parent,
            output: Output::Both,
        }
    }

    /// A pass over rows of one sequence.
    fn pass(
        model: &mut ScriptedModel,
        sequence: SequenceId,
        rows: &[(Token, Option<RowId>)],
    ) -> Result<Scores, ModelError> {
        let (mut batch, mut scores) = (Batch::default(), Scores::default());
        rows.iter()
            .for_each(|&(token, parent)| _ = batch.push(row(sequence, token, parent)));
        model
            .forward(&batch, &mut scores, &Cancel::default())
            .map(|()| scores)
    }

    #[test]
    fn a_row_sees_its_path_and_nothing_else() {
        let mut model = ScriptedModel::random(9, 1, 1.0);
        let (a, b) = (model.open(), model.open());
        pass(&mut model, b, &[(8, None)]).unwrap();
        model.commit(b, &[0]);
        pass(&mut model, a, &[(1, None), (2, Some(0))]).unwrap();
        model.commit(a, &[0, 1]);
        let scores = pass(&mut model, a, &[(3, None), (4, None), (5, Some(0)), (6, Some(1))]).unwrap();
        for (row, path) in [
            (0, &[1, 2, 3][..]),
            (1, &[1, 2, 4]),
            (2, &[1, 2, 3, 5]),
            (3, &[1, 2, 4, 6]),
        ] {
            assert_eq!(scores.logits(row).unwrap(), model.logits_after(path));
        }
        assert_ne!(scores.hidden(2), scores.hidden(3));
    }

    #[test]
    fn commit_keeps_a_path_as_far_as_it_is_one() {
        let check = |rows: &[RowId], kept: &[Token]| {
            let mut model = ScriptedModel::random(9, 1, 1.0);
            let sequence = model.open();
            pass(
                &mut model,
                sequence,
                &[(1, None), (2, None), (3, Some(0)), (4, Some(1)), (5, Some(2))],
            )
            .unwrap();
            model.commit(sequence, rows);
            assert_eq!(model.committed(sequence), kept);
            // Once only, and only of the last pass.
            model.commit(sequence, rows);
            assert_eq!(model.committed(sequence), kept);
        };
        check(&[0, 2, 4], &[1, 3, 5]);
        check(&[1, 3], &[2, 4]);
        check(&[0, 3], &[1]);
        check(&[2], &[]);
        check(&[0, 2, 77], &[1, 3]);
        check(&[], &[]);
    }

    #[test]
    fn cutting_forking_and_releasing_never_fail() {
        let mut model = ScriptedModel::random(9, 1, 1.0);
        let a = model.open();
        pass(&mut model, a, &[(1, None), (2, Some(0)), (3, Some(1))]).unwrap();
        model.commit(a, &[0, 1, 2]);
        let b = model.fork(a);
        model.truncate(a, 1);
        model.truncate(a, 5);
        assert_eq!(
            (model.committed(a), model.committed(b)),
            (&[1][..], &[1, 2, 3][..])
        );
        model.release(a);
        model.release(a);
        model.truncate(a, 0);
        model.commit(a, &[0]);
        assert_eq!((model.len(a), model.open_sequences()), (0, 1));
        assert_eq!(
            pass(&mut model, a, &[(1, None)]).unwrap_err(),
            ModelError::UnknownSequence(a)
        );
    }

    #[test]
    fn a_pass_that_cannot_be_made_changes_nothing() {
        let mut model = ScriptedModel::random(9, 1, 1.0)
            .with_context(3)
            .with_pages(2, 2)
            .failing_at(1, ModelError::Cancelled);
        let (a, b) = (model.open(), model.open());
        pass(&mut model, a, &[(1, None)]).unwrap();
        model.commit(a, &[0]);
        let check =
            |model: &mut ScriptedModel, sequence, rows: &[(Token, Option<RowId>)], error: ModelError| {
                let before = model.clone();
                assert_eq!(pass(model, sequence, rows).unwrap_err(), error);
                assert_eq!(model.committed(a), before.committed(a));
                assert_eq!(model.evaluations(), before.evaluations());
            };
        check(&mut model, a, &[(1, None)], ModelError::Cancelled);
        check(
            &mut model,
            a,
            &[(9, None)],
            ModelError::TokenOutOfRange {
                token: 9,
                vocab_size: 9,
            },
        );
        let long = [(1, None), (1, Some(0)), (1, Some(1))];
        check(
            &mut model,
            a,
            &long,
            ModelError::ContextFull {
                position: 3,
                context_length: 3,
            },
        );
        check(&mut model, b, &long, OutOfPages { needed: 2, free: 1 }.into());
        assert_eq!(model.reserve(b, 1), Ok(()));
        assert_eq!(model.reserve(a, 2), Err(OutOfPages { needed: 1, free: 0 }));
        model.release(b);
        assert_eq!(model.reserve(a, 2), Ok(()));
        assert_eq!(model.passes(), 5);
    }

    #[test]
    fn a_script_is_said() {
        let model = ScriptedModel::saying(9, 2, vec![5, 6, 7]);
        let says = |path: &[Token]| {
            let logits = model.logits_after(path);
            (0..9).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap()
        };
        assert_eq!(
            [&[1, 1][..], &[1, 1, 5], &[1, 1, 5, 6], &[1, 1, 5, 6, 7]].map(says),
            [5, 6, 7, 7]
        );
    }
}
