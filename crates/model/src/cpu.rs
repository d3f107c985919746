//! The CPU engine: a [`TargetModel`] over weights, cache and pass.
//!
//! Not here: the arithmetic ([`crate::pass`]), the cache's bookkeeping ([`crate::kv`]).
use crate::kv::KvCache;
use crate::pass::{Pass, Workspace};
use crate::weights::{PassCost, Weights};
use crate::{Config, LoadError, Tokenizer};
use foretoken_gguf::Gguf;
use foretoken_kernels::attention::KvLayout;
use foretoken_kernels::{Compute, Matrix};
use foretoken_spec::{
    Batch, Cancel, Capabilities, ModelError, ModelInfo, OutOfPages, Pages, RowId, Scores, SequenceId,
    TargetModel, Token,
};
use std::sync::Arc;

/// How to load a model.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// Most positions of a sequence; `None` is the model's own context length, at most 4096.
    pub context: Option<usize>,
    /// Positions that the cache holds over all sequences; `None` is one context.
    pub kv_positions: Option<usize>,
    /// The tokens that get logits, ascending and distinct: the head is loaded for them alone, and logit `i` is that of
    /// `head_tokens[i]`. Every token can still be read. `None` is the whole vocabulary.
    pub head_tokens: Option<Vec<Token>>,
}

/// A model whose passes run on the CPU. Each row's scores are the same bits whatever else is in its pass,
/// and for every number of threads.
#[derive(Debug)]
pub struct CpuModel {
    config: Config,
    info: ModelInfo,
    /// Logits of tokens that only pad the vocabulary: they are −∞.
    padding: Vec<usize>,
    compute: Arc<Compute>,
    weights: Weights,
    cache: KvCache,
    space: Workspace,
}

impl CpuModel {
    /// Loads weights into kernel layout. `tokenizer` is the file's; it says which tokens end a generation.
    /// `progress(done, total)` is told bytes of tensor data.
    ///
    /// # Errors
    /// What of the file is missing, wrong or not supported, and options that cannot be honoured.
    pub fn load(
        gguf: &Gguf,
        tokenizer: &Tokenizer,
        compute: Arc<Compute>,
        options: &LoadOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, LoadError> {
        let config = Config::from_gguf(gguf)?;
        let context_length = context_length(options.context, &config)?;
        let head_tokens = options.head_tokens.as_deref();
        check_head_tokens(head_tokens, config.vocab_size)?;
        let layout = KvLayout {
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
        };
        let positions = options.kv_positions.unwrap_or(context_length);
        let cache = KvCache::new(compute.isa(), config.layers, layout, positions)
            .map_err(|error| LoadError::Cache(error.to_string()))?;
        let weights = Weights::load(gguf, &compute, &config, context_length, head_tokens, progress)?;

        let known = |token: &Token| (*token as usize) < config.vocab_size;
        let logit = |token: Token| match head_tokens {
            Some(tokens) => tokens.binary_search(&token).ok(),
            None => Some(token as usize).filter(|&token| token < config.vocab_size),
        };
        let info = ModelInfo {
            vocab_size: weights.head.rows(),
            hidden_size: config.hidden_size,
            context_length,
            end_of_generation: tokenizer
                .end_of_generation()
                .iter()
                .copied()
                .filter(known)
                .collect(),
            capabilities: Capabilities {
                trees: true,
                hidden: true,
                row_invariant: true,
            },
        };
        Ok(Self {
            padding: tokenizer.padding().filter_map(logit).collect(),
            config,
            info,
            compute,
            weights,
            cache,
            space: Workspace::default(),
        })
    }

    /// The hyperparameters.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What a pass has to read and to compute.
    pub fn cost(&self) -> PassCost {
        self.weights.cost(&self.config)
    }

    /// The embedding matrix, `[vocab_size, hidden_size]`: what a factored speculator shares.
    pub fn embedding(&self) -> Arc<Matrix> {
        Arc::clone(&self.weights.embedding)
    }

    /// The matrix of the head, `[logits, hidden_size]`.
    pub(crate) fn head(&self) -> Arc<Matrix> {
        Arc::clone(&self.weights.head)
    }

    /// A token's row of the embedding matrix.
    ///
    /// # Panics
    /// If the token is outside the vocabulary or `out` no hidden state long.
    pub fn embedding_row(&self, token: Token, out: &mut [f32]) {
        self.weights.embedding.dequantize_row(token as usize, out);
    }

    /// The row of the head that a token's logit comes from (of a model with the whole vocabulary's head).
    ///
    /// # Panics
    /// If the token has no logit or `out` is no hidden state long.
    pub fn head_row(&self, token: Token, out: &mut [f32]) {
        self.weights.head.dequantize_row(token as usize, out);
    }
}

/// The context to use.
fn context_length(asked: Option<usize>, config: &Config) -> Result<usize, LoadError> {
    let most = config.context_length;
    match asked {
        None => Ok(config.default_context()),
        Some(asked) if (1..=most).contains(&asked) => Ok(asked),
        Some(asked) => Err(LoadError::Context { asked, most }),
    }
}

/// Whether tokens can be a head's rows, in a vocabulary of `vocab_size`.
pub(crate) fn check_head_tokens(tokens: Option<&[Token]>, vocab_size: usize) -> Result<(), LoadError> {
    let Some(tokens) = tokens else { return Ok(()) };
    let error = |problem| Err(LoadError::HeadTokens(problem));
    if let Some(pair) = tokens.windows(2).find(|pair| pair[0] >= pair[1]) {
        return error(format!("{} follows {}; they must ascend", pair[1], pair[0]));
    }
    match tokens.last() {
        None => error("there are none".to_owned()),
        Some(&last) if last as usize >= vocab_size => error(format!(
            "{last} is out of range: the vocabulary has {vocab_size} tokens"
        )),
        Some(_) => Ok(()),
    }
}

impl TargetModel for CpuModel {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn open(&mut self) -> SequenceId {
        self.cache.open()
    }

    fn len(&self, sequence: SequenceId) -> usize {
        self.cache.len(sequence)
    }

    fn pages(&self) -> Pages {
        self.cache.pages()
    }

    fn reserve(&mut self, sequence: SequenceId, rows: usize) -> Result<(), OutOfPages> {
        self.cache.reserve(sequence, rows)
    }

    fn forward(&mut self, batch: &Batch, scores: &mut Scores, cancel: &Cancel) -> Result<(), ModelError> {
        let known = self.config.vocab_size;
        if let Some(row) = batch.rows().iter().find(|row| row.token as usize >= known) {
            return Err(ModelError::TokenOutOfRange {
                token: row.token,
                vocab_size: known,
            });
        }
        let vocab_size = self.info.vocab_size;
        let plan = self.cache.begin_pass(batch, self.info.context_length)?;
        scores.prepare(batch, vocab_size, self.info.hidden_size);
        let Self {
            config,
            padding,
            weights,
            compute,
            cache,
            space,
            ..
        } = self;
        let pass = Pass {
            config,
            weights,
            compute,
            plan: &plan,
        };
        pass.run(batch, cache, space, scores, cancel)?;
        for logits in scores.logits_buffer().chunks_exact_mut(vocab_size) {
            padding.iter().for_each(|&at| logits[at] = f32::NEG_INFINITY);
        }
        self.cache.finish_pass();
        Ok(())
    }

    fn commit(&mut self, sequence: SequenceId, rows: &[RowId]) {
        self.cache.commit(sequence, rows);
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize) {
        self.cache.truncate(sequence, len);
    }

    fn share(&mut self, sequence: SequenceId, from: SequenceId, len: usize) {
        self.cache.share(sequence, from, len);
    }

    fn release(&mut self, sequence: SequenceId) {
        self.cache.release(sequence);
    }
}
