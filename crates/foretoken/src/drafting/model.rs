//! A draft model: a smaller model of the same vocabulary.

use std::path::Path;
use std::sync::Arc;

use foretoken_kernels::Compute;
use foretoken_model::{CpuModel, LoadOptions};
use foretoken_spec::drafters::ModelDrafter;
use foretoken_spec::{Cancel, ModelError, Source, TargetModel};

use super::{Draft, Network, Shared, chosen_vocabulary, costs};
use crate::costs::{in_turn, one_row};
use crate::session::{LoadedModel, SessionError, SessionOptions, load_model};

/// Where rounds are to be short, a draft model reads prompts in passes of this part of one, and in no longer ones than this.
const READING_PASSES: f64 = 8.0;
const MOST_PROMPT_ROWS: usize = 256;

/// A loaded draft model.
pub(super) struct DraftModel {
    pub drafter: Shared<ModelDrafter<CpuModel>>,
    pub cancel: Cancel,
}

impl Draft {
    /// As [`load`](Self::load), of a draft model.
    pub(super) fn load_model(
        path: &Path,
        target: &LoadedModel,
        options: &SessionOptions,
        kv_positions: Option<usize>,
        compute: &Arc<Compute>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, SessionError> {
        let info = target.model.info();
        let (mut vocabulary, mut learned) = (None, None);
        let loaded = load_model(path, compute, progress, |config, tokenizer| {
            let size = config.vocab_size.min(info.vocab_size);
            (vocabulary, learned) = chosen_vocabulary(options, tokenizer, size);
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
            path: path.to_owned(),
            network: Network::Model(DraftModel {
                cancel: drafter.cancel(),
                drafter: Shared::new(drafter, Source::Model, None),
            }),
            cost,
            load: loaded.time,
            vocab_size,
            learned,
        })
    }
}

impl DraftModel {
    /// Seconds of a pass over one row, of the target and of this model.
    pub fn one_row_beside(&self, target: &mut CpuModel) -> Result<[f64; 2], ModelError> {
        let mut drafter = self.drafter.get();
        in_turn([&mut || one_row(target), &mut || one_row(drafter.model_mut())])
    }
}
