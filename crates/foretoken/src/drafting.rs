//! What a session drafts with: a draft model or a speculator, which several drafters share, texts, costs.

mod model;
mod speculator;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foretoken_kernels::Compute;
use foretoken_model::{CpuModel, Special, SpeculatorFile, Tokenizer};
use foretoken_spec::drafters::Corpus;
use foretoken_spec::{
    Cancel, CostModel, CostlyDrafter, DraftError, DraftTimes, Drafter, Needs, Request, SequenceId, Source,
    Token,
};

use crate::costs::pass_costs;
use crate::session::{LoadedModel, SessionError, SessionOptions};
use crate::vocabulary::{Learned, Ranking, draft_vocabulary};

/// What drafts for a target, loaded.
pub(crate) struct Draft {
    path: PathBuf,
    network: Network,
    /// What its passes or steps cost.
    pub cost: CostModel,
    /// What loading took.
    pub load: Duration,
    /// Tokens that it may draft.
    pub vocab_size: usize,
    /// Where to keep what requests hold, if the draft vocabulary is a part of a whole one for which no ranking is shipped.
    learned: Option<Learned>,
}

/// The two kinds of it.
enum Network {
    Model(model::DraftModel),
    Speculator(speculator::DraftSpeculator),
}

/// What is to draft, before it is loaded.
pub(crate) enum DraftFile<'a> {
    /// No speculator, so a draft model's file.
    Model(&'a Path),
    Speculator(Box<SpeculatorFile>),
}

impl<'a> DraftFile<'a> {
    /// Tells the kinds apart, and opens a speculator.
    ///
    /// # Errors
    /// If what is wrong with a speculator shows already.
    pub fn open(path: &'a Path) -> Result<Self, SessionError> {
        let speculator = SpeculatorFile::open_if_one(path).map_err(|e| SessionError::load(path, e))?;
        Ok(speculator.map_or(Self::Model(path), |file| Self::Speculator(Box::new(file))))
    }

    /// Checks that it is what this drafter needs.
    ///
    /// # Errors
    /// If it is a speculator where a draft model is needed, or the other way round.
    pub fn check(&self, drafter: Source) -> Result<(), SessionError> {
        let (path, found) = match self {
            Self::Model(path) => (*path, Source::Model),
            Self::Speculator(file) => (file.path(), Source::Mlp),
        };
        // What is not there is said by whoever opens it.
        match found == drafter || !path.exists() {
            true => Ok(()),
            false => Err(SessionError::OtherDraft {
                path: path.to_owned(),
                drafter,
                found,
            }),
        }
    }
}

impl Draft {
    /// Loads what is to draft for `target`, both named in `options`; a draft model gets a cache of so many positions.
    ///
    /// # Errors
    /// If it cannot be loaded or is not for this target, or a pass to measure costs fails; each names the file.
    pub fn load(
        file: DraftFile<'_>,
        target: &LoadedModel,
        options: &SessionOptions,
        kv_positions: Option<usize>,
        compute: &Arc<Compute>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, SessionError> {
        match file {
            DraftFile::Speculator(file) => Self::load_speculator(*file, target, options, compute),
            DraftFile::Model(path) => {
                Self::load_model(path, target, options, kv_positions, compute, progress)
            }
        }
    }

    /// What its drafts are counted as.
    pub fn source(&self) -> Source {
        match self.network {
            Network::Model(_) => Source::Model,
            Network::Speculator(_) => Source::Mlp,
        }
    }

    /// Checks that it is what this drafter needs.
    ///
    /// # Errors
    /// If it is not.
    pub fn check(&self, drafter: Source) -> Result<(), SessionError> {
        match self.source() {
            found if found == drafter => Ok(()),
            found => Err(SessionError::OtherDraft {
                path: self.path.clone(),
                drafter,
                found,
            }),
        }
    }

    /// The drafter, another handle to it.
    pub fn drafter(&self) -> Box<dyn Drafter> {
        match &self.network {
            Network::Model(model) => Box::new(model.drafter.clone()),
            Network::Speculator(speculator) => Box::new(speculator.drafter.clone()),
        }
    }

    /// The drafter for a controller.
    pub fn costly(&self) -> CostlyDrafter {
        CostlyDrafter {
            drafter: self.drafter(),
            cost: self.cost.clone(),
            kind: match &self.network {
                Network::Model(_) => foretoken_spec::CostlyKind::Model,
                Network::Speculator(speculator) => speculator.kind(),
            },
        }
    }

    /// The longest path that it can draft, if there is a limit.
    pub fn reach(&self) -> Option<usize> {
        match &self.network {
            Network::Model(_) => None,
            Network::Speculator(speculator) => Some(speculator.heads()),
        }
    }

    /// Stops a running pass of a draft model. A speculator's steps are short.
    pub fn cancel(&self) -> Option<Cancel> {
        match &self.network {
            Network::Model(model) => Some(model.cancel.clone()),
            Network::Speculator(_) => None,
        }
    }

    /// What its user should know of it, if anything.
    pub fn note(&self) -> Option<&str> {
        match &self.network {
            Network::Model(_) => None,
            Network::Speculator(speculator) => speculator.drafter.note(),
        }
    }

    /// Brings the costs of the target and its own to what the machine does now.
    ///
    /// # Errors
    /// If a pass fails.
    pub fn compare(
        &mut self,
        path: &Path,
        target: &mut CpuModel,
        target_cost: &mut CostModel,
    ) -> Result<(), SessionError> {
        let seconds = match &self.network {
            Network::Model(model) => model.one_row_beside(target),
            Network::Speculator(speculator) => speculator.one_row_beside(target),
        };
        let [target, draft] = seconds.map_err(|source| SessionError::Costs {
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

/// The draft vocabulary that the options ask for, of the first `size` tokens, and where to keep what it learns; `None` is the whole
/// vocabulary.
fn chosen_vocabulary(
    options: &SessionOptions,
    tokenizer: &Tokenizer,
    size: usize,
) -> (Option<Vec<Token>>, Option<Learned>) {
    let fingerprint = tokenizer.vocabulary_fingerprint();
    let learns = options.draft_vocab > 0 && options.learn && Ranking::shipped(fingerprint).is_none();
    let learned = learns.then(|| Learned::new(fingerprint));
    let seen = learned.as_ref().map(Learned::seen).unwrap_or_default();
    let vocabulary = draft_vocabulary(tokenizer, size, options.draft_vocab, &seen);
    let learned = learned.filter(|_| vocabulary.is_some());
    (vocabulary, learned)
}

/// A drafter whose network is loaded once and serves one drafting after another. It needs neither to be told what is submitted nor
/// what came of it.
struct Shared<D> {
    drafter: Arc<Mutex<D>>,
    source: Source,
    needs: Needs,
    note: Option<Arc<str>>,
}

// Not derived: that would ask for a clone of the drafter.
impl<D> Clone for Shared<D> {
    fn clone(&self) -> Self {
        Self {
            drafter: Arc::clone(&self.drafter),
            note: self.note.clone(),
            ..*self
        }
    }
}

impl<D: Drafter> Shared<D> {
    fn new(drafter: D, source: Source, note: Option<String>) -> Self {
        Self {
            needs: drafter.needs(),
            drafter: Arc::new(Mutex::new(drafter)),
            source,
            note: note.map(Arc::from),
        }
    }

    fn get(&self) -> MutexGuard<'_, D> {
        self.drafter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D: Drafter> Drafter for Shared<D> {
    fn name(&self) -> &str {
        self.source.name()
    }

    fn needs(&self) -> Needs {
        self.needs
    }

    fn begin(&mut self, sequence: SequenceId, prompt: &[Token]) -> Result<(), DraftError> {
        self.get().begin(sequence, prompt)
    }

    fn draft(&mut self, requests: &mut [Request<'_>]) -> Result<(), DraftError> {
        self.get().draft(requests)
    }

    fn note(&self) -> Option<&str> {
        self.note.as_deref()
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
