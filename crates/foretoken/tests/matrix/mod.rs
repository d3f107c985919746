//! The comparison behind "the same tokens": one target model, every drafter, every temperature, one and two
//! threads, sequences alone and together, against plain decoding.
//!
//! Used by the test `same_tokens`, which runs a part of it, and by the example of the same name, which runs
//! all of it and prints what it compared.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use foretoken::engine::{EngineOptions, Event, RequestId};
use foretoken::spec::drafters::{RecyclingDrafter, SuffixDrafter};
use foretoken::spec::testing::{OracleDrafter, OwnNoiseDrafter, RandomDrafter};
use foretoken::spec::{DraftError, Drafter, Needs, Request, SequenceId, TargetModel};
use foretoken::{
    CpuModel, DraftPolicy, Drafting, Engine, GenerationRequest, Sampler, SamplerParams, Session,
    SessionError, SessionOptions, Special, Stats, Token,
};

/// The key of noise that is not the target's.
const OWN_KEY: u64 = 0x0dd_ba11;

/// Where drafts come from in one row of the matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Drafts {
    /// Plain decoding.
    None,
    /// So many tokens of the draft model.
    Model(usize),
    /// The same with noise of its own: what acceptance is without shared noise.
    ModelOwnNoise(usize),
    /// A tree of so many tokens of the draft model.
    ModelTree(usize),
    /// So many tokens of the speculator.
    Speculator(usize),
    /// A tree of so many tokens of the speculator.
    SpeculatorTree(usize),
    /// All of them, as far as the controller thinks that it pays.
    Auto,
    /// Repetitions.
    Suffix,
    /// What the target thought before.
    Recycling,
    /// Tokens drawn at random.
    Random,
    /// What plain decoding said.
    Right,
}

impl fmt::Display for Drafts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("no drafts"),
            Self::Model(k) => write!(f, "draft model, {k} tokens"),
            Self::ModelOwnNoise(k) => write!(f, "draft model with noise of its own, {k} tokens"),
            Self::ModelTree(n) => write!(f, "draft model, a tree of {n} tokens"),
            Self::Speculator(k) => write!(f, "speculator, {k} tokens"),
            Self::SpeculatorTree(n) => write!(f, "speculator, a tree of {n} tokens"),
            Self::Auto => f.write_str("auto"),
            Self::Suffix => f.write_str("suffix"),
            Self::Recycling => f.write_str("recycling"),
            Self::Random => f.write_str("random drafts"),
            Self::Right => f.write_str("right drafts"),
        }
    }
}

/// What to compare.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The target model.
    pub target: PathBuf,
    /// The draft model; may be the target itself.
    pub draft: PathBuf,
    /// The speculator, if there is one.
    pub speculator: Option<PathBuf>,
    /// Raw texts.
    pub prompts: Vec<String>,
    /// Temperatures.
    pub temperatures: Vec<f32>,
    /// Drafters.
    pub drafts: Vec<Drafts>,
    /// Numbers of threads.
    pub threads: Vec<usize>,
    /// Tokens of each answer.
    pub tokens: usize,
    /// Let answers end where the model ends them; otherwise tokens that end a generation are banned.
    pub natural_ends: bool,
    /// How many sequences to run together; 0 leaves that out.
    pub together: usize,
    /// Length of a long prompt; 0 leaves it out.
    pub long_prompt: usize,
}

/// One line of the result.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// What was compared with plain decoding.
    pub what: String,
    /// Tokens compared.
    pub compared: usize,
    /// Those that differed, or were missing or too many.
    pub differed: usize,
    /// Verified draft tokens.
    pub drafted: usize,
    /// Those accepted.
    pub accepted: usize,
}

impl Row {
    /// Takes in an answer and what it should have been.
    fn compare(&mut self, expected: &[Token], got: &Answer) {
        let same = expected.iter().zip(&got.tokens).filter(|(a, b)| a == b).count();
        let longest = expected.len().max(got.tokens.len());
        self.compared += longest;
        self.differed += longest - same;
        self.drafted += got.stats.speculation.drafted;
        self.accepted += got.stats.speculation.accepted;
    }

    /// Accepted per verified draft token, in percent; `None` without drafts.
    pub fn acceptance(&self) -> Option<f64> {
        (self.drafted > 0).then(|| 100.0 * self.accepted as f64 / self.drafted as f64)
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} compared, {} differed",
            self.what, self.compared, self.differed
        )?;
        match self.acceptance() {
            Some(percent) => write!(
                f,
                ", {} of {} accepted ({percent:.1} %)",
                self.accepted, self.drafted
            ),
            None => Ok(()),
        }
    }
}

/// One prompt at one temperature.
#[derive(Clone)]
struct Case {
    temperature: f32,
    /// The plan's long prompt.
    long: bool,
    request: GenerationRequest,
}

/// What came of a request.
#[derive(Clone, Debug, Default)]
struct Answer {
    tokens: Vec<Token>,
    stats: Stats,
}

/// Runs the plan and tells `report` of each row when it is done. Plain decoding with the first number of
/// threads gives the answers with which everything is compared.
pub fn run(plan: &Plan, report: &mut dyn FnMut(&Row)) -> Result<Vec<Row>, SessionError> {
    let mut rows = Vec::new();
    let mut expected: Vec<Vec<Token>> = Vec::new();
    for &threads in &plan.threads {
        let mut bench = Bench::load(plan, threads)?;
        if expected.is_empty() {
            for case in &bench.cases {
                let request = case.request.clone();
                expected.push(answers(bench.session.engine(), vec![request])?.remove(0).tokens);
            }
        }
        let cases = bench.cases.clone();
        let paired: Vec<(&Case, &[Token])> = cases.iter().zip(expected.iter().map(Vec::as_slice)).collect();
        for &drafts in &plan.drafts {
            let mut row = |what: String, groups: &[&[(&Case, &[Token])]]| {
                let mut row = Row {
                    what: format!("{drafts}, {what}, {threads} threads"),
                    ..Row::default()
                };
                for group in groups {
                    bench.compare(drafts, group, &mut row)?;
                }
                report(&row);
                rows.push(row);
                Ok::<_, SessionError>(())
            };
            for &temperature in &plan.temperatures {
                let short = |(case, _): &(&Case, &[Token])| case.temperature == temperature && !case.long;
                let alone: Vec<_> = paired
                    .iter()
                    .filter(|pair| short(pair))
                    .map(std::slice::from_ref)
                    .collect();
                row(format!("temperature {temperature}"), &alone)?;
            }
            if plan.together > 1 {
                // Neighbours differ in prompt and temperature.
                let groups: Vec<_> = paired.chunks(plan.together).collect();
                row(format!("{} together", plan.together), &groups)?;
            }
            let long: Vec<_> = paired
                .iter()
                .filter(|(case, _)| case.long)
                .map(std::slice::from_ref)
                .collect();
            if !long.is_empty() {
                row(format!("a prompt of {} tokens", plan.long_prompt), &long)?;
            }
        }
    }
    Ok(rows)
}

/// Models loaded for one number of threads.
struct Bench {
    session: Session,
    model_drafter: Lent,
    speculator: Option<Lent>,
    cases: Vec<Case>,
}

impl Bench {
    fn load(plan: &Plan, threads: usize) -> Result<Self, SessionError> {
        let load = |drafting, draft: &PathBuf| {
            let mut session = Session::load(&SessionOptions {
                drafting,
                draft_model: Some(draft.clone()),
                policy: DraftPolicy {
                    fixed: Some(1),
                    ..DraftPolicy::default()
                },
                threads: Some(threads),
                ..SessionOptions::new(&plan.target)
            })?;
            let drafter = session.engine().set_drafter(None, EngineOptions::default());
            let drafter = drafter.expect("the options name one");
            Ok::<_, SessionError>((session, Lent(Arc::new(Mutex::new(drafter)))))
        };
        // It holds what it needs of the target.
        let speculator = plan.speculator.as_ref().map(|path| load(Drafting::Mlp, path));
        let speculator = speculator.transpose()?.map(|(_, drafter)| drafter);
        let (session, model_drafter) = load(Drafting::Model, &plan.draft)?;
        let cases = cases(plan, &session);
        Ok(Self {
            session,
            model_drafter,
            speculator,
            cases,
        })
    }

    /// Answers a group of requests together, with drafts, and adds the comparison to `row`.
    fn compare(
        &mut self,
        drafts: Drafts,
        group: &[(&Case, &[Token])],
        row: &mut Row,
    ) -> Result<(), SessionError> {
        let whole = |(case, expected): &(&Case, &[Token])| [&case.request.prompt, *expected].concat();
        let vocab_size = self.session.engine().model().info().vocab_size;
        let model = || self.model_drafter.clone();
        let speculator = || self.speculator.clone().expect("the plan names one");
        let chain = |length| DraftPolicy {
            fixed: Some(length),
            ..DraftPolicy::default()
        };
        let tree = |max| DraftPolicy {
            max,
            ..DraftPolicy::default()
        };
        let (drafter, policy): (Option<Box<dyn Drafter>>, _) = match drafts {
            Drafts::None => (None, chain(0)),
            Drafts::Model(k) => (Some(Box::new(model())), chain(k)),
            Drafts::ModelOwnNoise(k) => (Some(Box::new(OwnNoiseDrafter::new(model(), OWN_KEY))), chain(k)),
            Drafts::ModelTree(n) => (Some(Box::new(model())), tree(n)),
            Drafts::Speculator(k) => (Some(Box::new(speculator())), chain(k)),
            Drafts::SpeculatorTree(n) => (Some(Box::new(speculator())), tree(n)),
            Drafts::Auto => {
                self.session.set_policy(DraftPolicy::default());
                (self.session.drafter(Drafting::Auto)?, DraftPolicy::default())
            }
            Drafts::Suffix => (Some(Box::new(SuffixDrafter::default())), tree(8)),
            Drafts::Recycling => (Some(Box::new(RecyclingDrafter::default())), tree(6)),
            Drafts::Random => (Some(Box::new(RandomDrafter::new(vocab_size, 1, 1))), chain(4)),
            Drafts::Right => (
                Some(Box::new(OracleDrafter::new(group.iter().map(whole).collect()))),
                chain(8),
            ),
        };
        let engine = self.session.engine();
        engine.set_drafter(
            drafter,
            EngineOptions {
                policy,
                ..EngineOptions::default()
            },
        );
        let requests = group.iter().map(|(case, _)| case.request.clone()).collect();
        let answers = answers(engine, requests)?;
        for ((_, expected), answer) in group.iter().zip(&answers) {
            row.compare(expected, answer);
        }
        Ok(())
    }
}

/// A drafter that the rows of the matrix use one after another.
#[derive(Clone)]
struct Lent(Arc<Mutex<Box<dyn Drafter>>>);

impl Lent {
    fn lock(&self) -> MutexGuard<'_, Box<dyn Drafter>> {
        self.0.lock().expect("no drafter panicked")
    }
}

impl Drafter for Lent {
    fn name(&self) -> &str {
        "lent"
    }

    fn needs(&self) -> Needs {
        self.lock().needs()
    }

    fn begin(&mut self, sequence: SequenceId, prompt: &[Token]) -> Result<(), DraftError> {
        self.lock().begin(sequence, prompt)
    }

    fn draft(&mut self, requests: &mut [Request<'_>]) -> Result<(), DraftError> {
        self.lock().draft(requests)
    }

    fn end(&mut self, sequence: SequenceId) {
        self.lock().end(sequence);
    }
}

/// The requests of a plan: every prompt at every temperature.
fn cases(plan: &Plan, session: &Session) -> Vec<Case> {
    let tokenizer = session.tokenizer();
    let banned = if plan.natural_ends {
        &[]
    } else {
        tokenizer.end_of_generation()
    };
    let mut prompts: Vec<(Vec<Token>, bool)> = plan
        .prompts
        .iter()
        .map(|text| (session.raw(text).expect("prompts fit"), false))
        .collect();
    if plan.long_prompt > 0 {
        let all = tokenizer.encode(&plan.prompts.join("\n"), Special::Parse);
        prompts.push((all.iter().copied().cycle().take(plan.long_prompt).collect(), true));
    }
    let mut cases = Vec::new();
    for (at, (prompt, long)) in prompts.into_iter().enumerate() {
        for &temperature in &plan.temperatures {
            let sampler = SamplerParams {
                temperature,
                logit_bias: banned.iter().map(|&token| (token, f32::NEG_INFINITY)).collect(),
                ..SamplerParams::default()
            };
            let key = Sampler::key(at as u64, 0);
            let request = GenerationRequest {
                prompt: prompt.clone(),
                sampler,
                key,
                max_tokens: Some(plan.tokens),
                ..GenerationRequest::default()
            };
            cases.push(Case {
                temperature,
                long,
                request,
            });
        }
    }
    cases
}

/// Runs requests together until all are over.
fn answers(
    engine: &mut Engine<CpuModel>,
    requests: Vec<GenerationRequest>,
) -> Result<Vec<Answer>, SessionError> {
    let ids: Vec<RequestId> = requests
        .into_iter()
        .map(|r| engine.add(r))
        .collect::<Result<_, _>>()?;
    let mut answers = vec![Answer::default(); ids.len()];
    while !engine.is_idle() {
        for event in engine.step() {
            match event {
                Event::Progress { id, progress } => {
                    let at = ids.iter().position(|&i| i == id).expect("no other requests");
                    answers[at].tokens.extend(progress.tokens.iter().map(|t| t.token));
                }
                Event::Finished { id, outcome, stats } => {
                    let at = ids.iter().position(|&i| i == id).expect("no other requests");
                    outcome.expect("the models are in order");
                    answers[at].stats = *stats;
                }
                Event::DraftingOff { reason, .. } => panic!("a drafter gave up: {reason}"),
            }
        }
    }
    Ok(answers)
}
