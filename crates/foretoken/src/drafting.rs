//! What a session drafts with: a draft model that several drafters share, texts, costs.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foretoken_kernels::Compute;
use foretoken_model::{CpuModel, Special, Tokenizer};
use foretoken_spec::drafters::{Corpus, ModelDrafter};
use foretoken_spec::{Cancel, CostModel, DraftError, DraftTimes, Drafter, Request, SequenceId, Token};

use crate::SessionError;
use crate::costs::pass_costs;

/// A loaded draft model.
pub(crate) struct DraftModel {
    pub drafter: Shared,
    pub cancel: Cancel,
    /// What its passes cost.
    pub cost: CostModel,
}

impl DraftModel {
    pub fn new(drafter: ModelDrafter<CpuModel>, cost: CostModel) -> Self {
        Self {
            cancel: drafter.cancel(),
            drafter: Shared(Arc::new(Mutex::new(drafter))),
            cost,
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
