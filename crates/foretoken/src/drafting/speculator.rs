//! A speculator: a small network that goes on from the target's hidden states.

use std::sync::Arc;
use std::time::Instant;

use foretoken_kernels::Compute;
use foretoken_model::{CpuModel, Speculator, SpeculatorFile, SpeculatorInfo};
use foretoken_spec::drafters::{Network as _, SpeculatorDrafter};
use foretoken_spec::{CostlyKind, ModelError, Source, TargetModel};

use super::{Draft, Network, Shared, chosen_vocabulary};
use crate::costs::{in_turn, one_row, step_costs, step_seconds};
use crate::session::{LoadedModel, SessionError, SessionOptions};

/// A loaded speculator.
pub(super) struct DraftSpeculator {
    pub drafter: Shared<SpeculatorDrafter<Speculator>>,
    /// As [`CostlyKind::Speculator`] has it.
    acceptance: Vec<Option<f64>>,
}

impl Draft {
    /// As [`load`](Self::load), of a speculator.
    pub(super) fn load_speculator(
        file: SpeculatorFile,
        target: &LoadedModel,
        options: &SessionOptions,
        compute: &Arc<Compute>,
    ) -> Result<Self, SessionError> {
        let start = Instant::now();
        let path = file.path().to_owned();
        let info = target.model.info();
        let (vocabulary, learned) = match &file.info().draft_vocabulary {
            Some(_) => (None, None),
            None => chosen_vocabulary(options, &target.tokenizer, info.vocab_size),
        };
        let note = note(file.info(), target)?;
        let mut network = Speculator::load(
            file,
            &target.gguf,
            &target.model,
            compute.clone(),
            vocabulary.as_deref(),
        )
        .map_err(|source| SessionError::load(&path, source))?;
        let load = start.elapsed();
        let cost = step_costs(&mut network).map_err(|source| SessionError::Costs {
            path: path.clone(),
            source,
        })?;
        let known = &network.info().acceptance;
        let acceptance = (0..network.heads())
            .map(|head| known.get(head).map(|&share| f64::from(share)))
            .collect();
        let vocab_size = network.vocab_size();
        let tokens = network.draft_vocabulary().map(<[_]>::to_vec);
        let mut drafter = SpeculatorDrafter::new(network, info.vocab_size, info.end_of_generation.clone());
        if let Some(tokens) = tokens {
            drafter = drafter
                .with_vocabulary(tokens)
                .expect("the tokens that its heads were loaded for");
        }
        Ok(Self {
            path,
            network: Network::Speculator(DraftSpeculator {
                drafter: Shared::new(drafter, Source::Mlp, note),
                acceptance,
            }),
            cost,
            load,
            vocab_size,
            learned,
        })
    }
}

impl DraftSpeculator {
    /// What it is to a controller.
    pub fn kind(&self) -> CostlyKind {
        CostlyKind::Speculator {
            acceptance: self.acceptance.clone(),
        }
    }

    /// How far it looks ahead.
    pub fn heads(&self) -> usize {
        self.acceptance.len()
    }

    /// Seconds of a pass of the target over one row, and of a step over one.
    pub fn one_row_beside(&self, target: &mut CpuModel) -> Result<[f64; 2], ModelError> {
        let mut drafter = self.drafter.get();
        in_turn([&mut || one_row(target), &mut || {
            step_seconds(drafter.network_mut(), 1)
        }])
    }
}

/// That it was made for another model, if that can be told: its drafts come true less often then.
fn note(info: &SpeculatorInfo, target: &LoadedModel) -> Result<Option<String>, SessionError> {
    let name = target.gguf.string("general.name")?;
    let other_name = match (&info.target_name, name) {
        (Some(made_for), Some(name)) if made_for != name => {
            Some(format!("for {made_for:?}, not for {name:?}"))
        }
        _ => None,
    };
    let fingerprint = target.tokenizer.fingerprint();
    let other_tokens = (info
        .tokenizer_fingerprint
        .is_some_and(|made_for| made_for != fingerprint))
    .then(|| "for another tokenizer".to_owned());
    let problem = other_name.or(other_tokens);
    Ok(
        problem
            .map(|problem| format!("the speculator was made {problem}: fewer of its drafts may come true")),
    )
}
