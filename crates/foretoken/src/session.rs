//! Models loaded and ready to answer: what the command line and a user of the library begin with.

mod error;
mod options;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use foretoken_engine::{
    DraftPolicy, Engine, EngineOptions, Event, FinishReason, GenerationRequest, Progress, PromptPace, Stats,
    TokenBytes,
};
use foretoken_gguf::Gguf;
use foretoken_grammar::Grammars;
use foretoken_kernels::Compute;
use foretoken_model::{
    ChatTemplate, Config, CpuModel, LoadOptions, Message, PromptEncoder, PromptError, Tokenizer,
};
use foretoken_spec::drafters::{Corpus, PredictionDrafter, RecyclingDrafter, SuffixDrafter};
use foretoken_spec::{
    Cancel, ControlledDrafter, ControllerParams, CostModel, Drafter, Source, TargetModel, Token,
};

use crate::drafting::{Draft, DraftFile, corpus, costs};
pub use error::SessionError;
pub use options::{Drafting, KvSize, SessionOptions};

/// What is being loaded, for a progress bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loading {
    /// The target model.
    Target,
    /// The draft model; a speculator is loaded in no time.
    Draft,
}

/// What loading took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoadReport {
    /// The target model.
    pub target: Duration,
    /// The draft model or speculator; zero where there is none.
    pub draft: Duration,
}

/// A finished generation.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// The tokens, without one that ended the generation.
    pub tokens: Vec<Token>,
    /// Their text, up to a stop string.
    pub text: String,
    /// Why it ended.
    pub finish: FinishReason,
    /// What it cost and what drafts were worth.
    pub stats: Stats,
}

/// A tokenizer as the engine sees it.
#[derive(Clone, Debug)]
pub struct TokenText(pub Arc<Tokenizer>);

impl TokenBytes for TokenText {
    fn bytes(&self, token: Token) -> &[u8] {
        self.0.bytes(token)
    }
}

/// A model file, opened, with its tokenizer and weights.
#[derive(Debug)]
pub struct LoadedModel {
    /// The model.
    pub model: CpuModel,
    /// Its tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// The file.
    pub gguf: Gguf,
    /// What loading took.
    pub time: Duration,
}

/// A target model, perhaps a draft model or a speculator, and their tokenizer.
pub struct Session {
    engine: Engine<CpuModel>,
    tokenizer: Arc<Tokenizer>,
    prompts: Arc<PromptEncoder>,
    path: PathBuf,
    compute: Arc<Compute>,
    load: LoadReport,
    draft: Option<Draft>,
    corpus: Option<Arc<Corpus>>,
    /// What the target's passes cost, once that was asked for.
    cost: Option<CostModel>,
    /// The options that drafters are made by.
    policy: DraftPolicy,
    loss_budget: f64,
    force_accept: Option<f64>,
    max_stall: Option<Duration>,
    prefixes: usize,
}

impl Session {
    /// Loads what the options name.
    pub fn load(options: &SessionOptions) -> Result<Self, SessionError> {
        Self::load_with_progress(options, &mut |_, _, _| ())
    }

    /// Like [`load`](Self::load), and tells `progress` which model is being loaded, and how many bytes of
    /// how many are done.
    pub fn load_with_progress(
        options: &SessionOptions,
        progress: &mut dyn FnMut(Loading, u64, u64),
    ) -> Result<Self, SessionError> {
        // Before anything large is read.
        let draft_file = match (&options.draft_model, options.drafting) {
            (None, _) | (_, Drafting::None) => None,
            (Some(path), _) => Some(DraftFile::open(path)?),
        };
        options.drafting.check(draft_file.as_ref())?;
        let threads = options.threads.unwrap_or_else(available_threads);
        let compute = Arc::new(Compute::new(threads));
        let mut kv_positions = None;
        let target = load_model(
            &options.model,
            &compute,
            &mut |done, total| progress(Loading::Target, done, total),
            |config, _| {
                let context = options.context.unwrap_or_else(|| config.default_context());
                kv_positions = options.kv.map(|kv| kv.positions(config, context));
                LoadOptions {
                    context: options.context,
                    kv_positions,
                    head_tokens: None,
                }
            },
        )?;
        if let Some(positions) = kv_positions
            && positions < target.model.info().context_length
        {
            return Err(SessionError::KvTooSmall {
                positions,
                context_length: target.model.info().context_length,
            });
        }
        let template =
            ChatTemplate::from_gguf(&target.gguf).map_err(|e| SessionError::load(&options.model, e))?;
        let mut load = LoadReport {
            target: target.time,
            ..LoadReport::default()
        };
        let draft = match draft_file {
            Some(file) => {
                let draft = Draft::load(
                    file,
                    &target,
                    options,
                    kv_positions,
                    &compute,
                    &mut |done, total| progress(Loading::Draft, done, total),
                )?;
                load.draft = draft.load;
                Some(draft)
            }
            None => None,
        };
        let corpus = match options.corpus.is_empty() {
            true => None,
            false => Some(Arc::new(corpus(&options.corpus, &target.tokenizer)?)),
        };
        let context_length = target.model.info().context_length;
        let prompts = PromptEncoder::new(target.tokenizer.clone(), template, context_length);
        let text = TokenText(target.tokenizer.clone());
        let mut session = Self {
            engine: Engine::new(target.model, text, None, EngineOptions::default()),
            tokenizer: target.tokenizer,
            prompts: Arc::new(prompts),
            path: options.model.clone(),
            compute,
            load,
            draft,
            corpus,
            cost: None,
            policy: options.policy,
            loss_budget: options.loss_budget,
            force_accept: options.force_accept,
            max_stall: options.max_stall,
            prefixes: options.prefixes,
        };
        if session.max_stall.is_some() {
            session.measured_cost()?;
        }
        session.set_drafting(options.drafting)?;
        Ok(session)
    }

    /// Drafts from here on as `drafting` says, by drafters that know nothing of what was answered before. A draft model or a
    /// speculator takes part if the session has loaded one.
    ///
    /// # Errors
    /// If [`Drafting::Model`] or [`Drafting::Mlp`] lacks what it needs, or a pass to measure costs fails.
    ///
    /// # Panics
    /// If a request is under way.
    pub fn set_drafting(&mut self, drafting: Drafting) -> Result<(), SessionError> {
        let drafter = self.drafter(drafting)?;
        self.install(drafter);
        Ok(())
    }

    /// Drafts with this drafter, which may have served before, and returns the one that was.
    ///
    /// # Panics
    /// If a request is under way.
    pub fn install(&mut self, drafter: Option<Box<dyn Drafter>>) -> Option<Box<dyn Drafter>> {
        let options = EngineOptions {
            policy: self.policy,
            force_accept: self.force_accept.filter(|_| drafter.is_some()),
            pace: self
                .max_stall
                .zip(self.cost.clone())
                .map(|(stall, cost)| PromptPace::new(cost, stall)),
            prefixes: self.prefixes,
            ..EngineOptions::default()
        };
        self.engine.set_drafter(drafter, options)
    }

    /// A new drafter, which knows nothing yet; `None` for plain decoding.
    ///
    /// # Errors
    /// If [`Drafting::Model`] or [`Drafting::Mlp`] lacks what it needs, or a pass to measure costs fails.
    pub fn drafter(&mut self, drafting: Drafting) -> Result<Option<Box<dyn Drafter>>, SessionError> {
        let ends = self.engine.model().info().end_of_generation.clone();
        let mut free: Vec<Box<dyn Drafter>> = Vec::new();
        if matches!(drafting, Drafting::Auto | Drafting::Suffix) {
            let suffix = SuffixDrafter::new(ends.clone());
            free.push(Box::new(match &self.corpus {
                Some(corpus) => suffix.with_corpus(Arc::clone(corpus)),
                None => suffix,
            }));
        }
        if matches!(drafting, Drafting::Auto | Drafting::Recycling) {
            free.push(Box::new(RecyclingDrafter::new(ends.clone())));
        }
        if drafting == Drafting::Auto {
            free.push(Box::new(PredictionDrafter::new(ends)));
        }
        if drafting == Drafting::None {
            return Ok(None);
        }
        if let Some(drafter) = drafting.network() {
            let draft = self.draft.as_ref().ok_or(SessionError::NoDraft { drafter })?;
            draft.check(drafter)?;
        }
        let takes_part = drafting == Drafting::Auto || drafting.network().is_some();
        if self.policy.fixed.is_some() {
            // Exactly one drafts: the network, where there is one.
            let draft = self.draft.as_ref().filter(|_| takes_part).map(Draft::drafter);
            return Ok(draft.or_else(|| free.into_iter().next()));
        }
        let cost = self.measured_cost()?;
        let costly = self.draft.as_ref().filter(|_| takes_part).map(Draft::costly);
        let params = ControllerParams {
            loss_budget: self.loss_budget,
        };
        Ok(Some(Box::new(ControlledDrafter::new(params, free, costly, cost))))
    }

    /// What the target's passes cost: measured when it is first asked for.
    fn measured_cost(&mut self) -> Result<CostModel, SessionError> {
        if let Some(cost) = &self.cost {
            return Ok(cost.clone());
        }
        let mut cost = costs(&self.path, &self.compute, self.engine.model_mut())?;
        if let Some(draft) = &mut self.draft {
            draft.compare(&self.path, self.engine.model_mut(), &mut cost)?;
        }
        Ok(self.cost.insert(cost).clone())
    }

    /// What kind of drafter was loaded beside the target: [`Source::Model`] or [`Source::Mlp`]; `None` if there is none.
    pub fn draft_source(&self) -> Option<Source> {
        self.draft.as_ref().map(Draft::source)
    }

    /// The longest path that it can draft; `None` if there is none, or no limit.
    pub fn draft_reach(&self) -> Option<usize> {
        self.draft.as_ref().and_then(Draft::reach)
    }

    /// What its user should know of it, if anything: that it was made for another model.
    pub fn draft_note(&self) -> Option<&str> {
        self.draft.as_ref().and_then(Draft::note)
    }

    /// What the draft model's passes, or the speculator's steps, cost, as measured at start; `None` if there is none.
    pub fn draft_cost(&self) -> Option<&CostModel> {
        self.draft.as_ref().map(|draft| &draft.cost)
    }

    /// How many tokens it may say; `None` if there is none.
    pub fn draft_vocab(&self) -> Option<usize> {
        self.draft.as_ref().map(|draft| draft.vocab_size)
    }

    /// Bounds of the length of drafts, from the next [`set_drafting`](Self::set_drafting) on. Drafts of a fixed length are
    /// made whether they pay or not.
    pub fn set_policy(&mut self, policy: DraftPolicy) {
        self.policy = policy;
    }

    /// What the target's passes cost, as measured at start; `None` if nothing asked for it.
    pub fn cost(&self) -> Option<&CostModel> {
        self.cost.as_ref()
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// Compiles grammars for the target model. Takes a moment to make.
    ///
    /// # Errors
    /// [`SessionError::Grammar`].
    pub fn grammars(&self) -> Result<Grammars, SessionError> {
        let vocab_size = self.engine.model().info().vocab_size;
        Grammars::new(&self.tokenizer, vocab_size).map_err(|source| SessionError::Grammar {
            path: self.path.clone(),
            source,
        })
    }

    /// The engine alone, for whoever serves it.
    pub fn into_engine(self) -> Engine<CpuModel> {
        self.engine
    }

    /// The engine, for many requests at once.
    pub fn engine(&mut self) -> &mut Engine<CpuModel> {
        &mut self.engine
    }

    /// Threads and instruction set.
    pub fn compute(&self) -> &Compute {
        &self.compute
    }

    /// What loading took.
    pub fn load_report(&self) -> LoadReport {
        self.load
    }

    /// Stops a running pass of the draft model from any thread. Whoever sets it cancels the request too, and
    /// resets it before the next.
    pub fn draft_cancel(&self) -> Option<Cancel> {
        self.draft.as_ref().and_then(Draft::cancel)
    }

    /// Whether drafts are promised to change no token: only a backend whose rows influence each other, or
    /// forced acceptance, takes that away.
    pub fn is_lossless(&self) -> bool {
        self.engine.model().info().capabilities.row_invariant && self.force_accept.is_none()
    }

    /// Makes the tokens of prompts from texts.
    pub fn prompts(&self) -> &Arc<PromptEncoder> {
        &self.prompts
    }

    /// The tokens of a conversation that the model is to go on with: see [`PromptEncoder::chat`].
    pub fn chat(&self, messages: &[Message]) -> Result<Vec<Token>, SessionError> {
        self.prompts
            .chat(messages)
            .map_err(|source| self.prompt_error(source))
    }

    /// The tokens of a prompt as it stands: see [`PromptEncoder::raw`].
    pub fn raw(&self, text: &str) -> Result<Vec<Token>, SessionError> {
        self.prompts.raw(text).map_err(|source| self.prompt_error(source))
    }

    /// The tokens of a plain text: see [`PromptEncoder::plain`].
    pub fn plain(&self, text: &str) -> Result<Vec<Token>, SessionError> {
        self.prompts
            .plain(text)
            .map_err(|source| self.prompt_error(source))
    }

    fn prompt_error(&self, source: PromptError) -> SessionError {
        SessionError::Prompt {
            path: self.path.clone(),
            source,
        }
    }

    /// Answers one request, and shows what each round adds as it comes.
    pub fn generate(
        &mut self,
        request: GenerationRequest,
        mut on_progress: impl FnMut(&Progress),
    ) -> Result<Generation, SessionError> {
        let learns = self.draft.as_ref().filter(|draft| draft.learns());
        let mut held = learns.map(|_| request.prompt.clone());
        let id = self.engine.add(request)?;
        let (mut tokens, mut text) = (Vec::new(), String::new());
        loop {
            for event in self.engine.step() {
                match event {
                    Event::Progress { id: of, progress } if of == id => {
                        tokens.extend(progress.tokens.iter().map(|t| t.token));
                        text.extend(progress.text.iter().map(|fragment| fragment.text.as_str()));
                        on_progress(&progress);
                    }
                    Event::Finished {
                        id: of,
                        outcome,
                        stats,
                    } if of == id => {
                        if let (Some(draft), Some(mut held)) = (&self.draft, held.take()) {
                            held.extend(&tokens);
                            draft.learn(&held);
                        }
                        return Ok(Generation {
                            tokens,
                            text,
                            finish: outcome.map_err(|source| SessionError::Sequence {
                                path: self.path.clone(),
                                source,
                            })?,
                            stats: *stats,
                        });
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Threads that the system offers to this process.
pub fn available_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// Loads a model file. `options` sees what the file says of the model, and its tokenizer; `progress(done, total)` is told bytes
/// of tensor data.
///
/// # Errors
/// What cannot be read, is not supported, or does not fit; each names the file.
pub fn load_model(
    path: &Path,
    compute: &Arc<Compute>,
    progress: &mut dyn FnMut(u64, u64),
    options: impl FnOnce(&Config, &Tokenizer) -> LoadOptions,
) -> Result<LoadedModel, SessionError> {
    let start = Instant::now();
    let gguf = Gguf::open(path)?;
    let at = |source| SessionError::load(path, source);
    // First, since that a model cannot be run matters more than what is wrong with its tokenizer.
    let config = Config::from_gguf(&gguf).map_err(at)?;
    let tokenizer = Arc::new(Tokenizer::from_gguf(&gguf).map_err(at)?);
    let options = options(&config, &tokenizer);
    let model = CpuModel::load(&gguf, &tokenizer, compute.clone(), &options, progress).map_err(at)?;
    Ok(LoadedModel {
        model,
        tokenizer,
        gguf,
        time: start.elapsed(),
    })
}
