//! What a session drafts with: a draft model that several drafters share, texts, costs.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foretoken_kernels::Compute;
use foretoken_model::{CpuModel, LoadOptions, Special, Tokenizer};
use foretoken_spec::drafters::{Corpus, ModelDrafter};
use foretoken_spec::{
    Cancel, CostModel, DraftError, DraftTimes, Drafter, Request, SequenceId, TargetModel, Token,
};

use crate::costs::{one_row_in_turn, pass_costs};
use crate::session::{LoadedModel, SessionError, SessionOptions, load_model};
use crate::vocabulary::{Learned, Ranking, draft_vocabulary};

/// Where rounds are to be short, a draft model reads prompts in passes of this part of one, and in no longer ones than this.
const READING_PASSES: f64 = 8.0;
const MOST_PROMPT_ROWS: usize = 256;

/// A loaded draft model.
pub(crate) struct DraftModel {
    pub drafter: Shared,
    pub cancel: Cancel,
    /// What its passes cost.
    pub cost: CostModel,
    /// What loading took.
    pub load: Duration,
    /// Tokens that it may draft.
    pub vocab_size: usize,
    /// Where to keep what requests hold, if the draft vocabulary is a part of a whole one for which no ranking is shipped.
    learned: Option<Learned>,
}

impl DraftModel {
    /// Loads the model at `path` to draft for `target`, both named in `options`, with a cache of so many positions.
    ///
    /// # Errors
    /// As [`load_model`]; also if its vocabulary is not the target's, or a pass to measure costs fails.
    pub fn load(
        path: &Path,
        target: &LoadedModel,
        options: &SessionOptions,
        kv_positions: Option<usize>,
        compute: &Arc<Compute>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, SessionError> {
        let info = target.model.info();
        let mut vocabulary = None;
        let mut learned = None;
        let loaded = load_model(path, compute, progress, |config, tokenizer| {
            let fingerprint = tokenizer.vocabulary_fingerprint();
            if options.draft_vocab > 0 && options.learn && Ranking::shipped(fingerprint).is_none() {
                learned = Some(Learned::new(fingerprint));
            }
            let seen = learned.as_ref().map(Learned::seen).unwrap_or_default();
            let size = config.vocab_size.min(info.vocab_size);
            vocabulary = draft_vocabulary(tokenizer, size, options.draft_vocab, &seen);
            LoadOptions {
                // With less context than the target it drafts from a window.
                context: Some(info.context_length.min(config.context_length)),
                kv_positions,
                head_tokens: vocabulary.clone(),
            }
        })?;
        target
            .tokenizer
            .check_draft(&loaded.tokenizer)
            .map_err(|problem| SessionError::Vocabulary {
                draft: path.to_owned(),
                target: options.model.clone(),
                problem,
            })?;
        let mut model = loaded.model;
        let cost = costs(path, compute, &mut model)?;
        let vocab_size = model.info().vocab_size;
        let inputs = model.config().vocab_size;
        let learned = learned.filter(|_| vocabulary.is_some());
        let mut drafter = ModelDrafter::new(model, info.vocab_size);
        if let Some(stall) = options.max_stall {
            // It looks at the time between passes alone.
            let most = stall.as_secs_f64() / READING_PASSES;
            drafter = drafter.with_prompt_chunk(cost.rows_within(most, 0, MOST_PROMPT_ROWS, 0));
        }
        if let Some(tokens) = vocabulary {
            drafter = drafter
                .with_vocabulary(tokens)
                .expect("the tokens that the head was loaded for")
                .with_inputs(inputs);
        }
        Ok(Self {
            cancel: drafter.cancel(),
            drafter: Shared(Arc::new(Mutex::new(drafter))),
            cost,
            load: loaded.time,
            vocab_size,
            learned,
        })
    }

    /// Brings the costs of both models to what the machine does now.
    ///
    /// # Errors
    /// If a pass fails.
    pub fn compare(
        &mut self,
        path: &Path,
        target: &mut CpuModel,
        target_cost: &mut CostModel,
    ) -> Result<(), SessionError> {
        let mut drafter = self.drafter.get();
        let [target, draft] =
            one_row_in_turn(&mut [target, drafter.model_mut()]).map_err(|source| SessionError::Costs {
                path: path.to_owned(),
                source,
            })?;
        target_cost.set_one_row(target);
        self.cost.set_one_row(draft);
        Ok(())
    }

    /// Whether it is to be told what requests hold.
    pub fn learns(&self) -> bool {
        self.learned.is_some()
    }

    /// Counts the tokens of a request and its answer, for the draft vocabulary of the next start.
    pub fn learn(&self, tokens: &[Token]) {
        if let Some(learned) = &self.learned {
            learned.add(tokens);
        }
    }
}

/// The drafter of the draft model, which is loaded once and serves one drafting after another. It needs neither to be told
/// what is submitted nor what came of it.
#[derive(Clone)]
pub(crate) struct Shared(Arc<Mutex<ModelDrafter<CpuModel>>>);

impl Shared {
    fn get(&self) -> MutexGuard<'_, ModelDrafter<CpuModel>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drafter for Shared {
    fn name(&self) -> &str {
        "model"
    }

    fn begin(&mut self, sequence: SequenceId, prompt: &[Token]) -> Result<(), DraftError> {
        self.get().begin(sequence, prompt)
    }

    fn draft(&mut self, requests: &mut [Request<'_>]) -> Result<(), DraftError> {
        self.get().draft(requests)
    }

    fn times(&self) -> Option<DraftTimes> {
        self.get().times()
    }

    fn end(&mut self, sequence: SequenceId) {
        self.get().end(sequence);
    }
}

/// What a model's passes cost.
pub(crate) fn costs(path: &Path, compute: &Compute, model: &mut CpuModel) -> Result<CostModel, SessionError> {
    pass_costs(path, compute, model).map_err(|source| SessionError::Costs {
        path: path.to_owned(),
        source,
    })
}

/// Reads texts to draft from.
pub(crate) fn corpus(paths: &[PathBuf], tokenizer: &Tokenizer) -> Result<Corpus, SessionError> {
    let mut texts = Vec::new();
    let mut room = Corpus::MOST_TOKENS;
    for path in paths {
        let error = |problem: String| SessionError::Corpus {
            path: path.clone(),
            problem,
        };
        let text = std::fs::read_to_string(path).map_err(|e| error(e.to_string()))?;
        let tokens = tokenizer.encode(&text, Special::Text);
        room = room.checked_sub(tokens.len() + 1).ok_or_else(|| {
            error(format!(
                "with this file the texts to draft from have more than {} tokens",
                Corpus::MOST_TOKENS
            ))
        })?;
        texts.push(tokens);
    }
    Ok(Corpus::new(texts.iter().map(Vec::as_slice)))
}
