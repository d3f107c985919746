//! Engines over scripted models, and what comes out of them.

use foretoken_engine::{
    DraftPolicy, Engine, EngineOptions, Event, FinishReason, GenerationRequest, OutputToken, RequestId,
    SequenceError, Stats, TokenBytes,
};
use foretoken_spec::testing::{ScriptedModel, Task, decode_plain};
use foretoken_spec::{Drafter, SamplerParams, Token};

/// Each token's bytes; tokens beyond the table have none.
pub struct Table(pub Vec<Vec<u8>>);

impl Table {
    /// Token `n` is the `n`th letter, over and over.
    pub fn letters(vocab_size: usize) -> Self {
        Self((0..vocab_size).map(|n| vec![b'a' + (n % 26) as u8]).collect())
    }
}

impl TokenBytes for Table {
    fn bytes(&self, token: Token) -> &[u8] {
        self.0.get(token as usize).map_or(&[], Vec::as_slice)
    }
}

/// All that an engine said of one request. Before its end the outcome is that of a stop.
#[derive(Debug)]
pub struct Answer {
    pub tokens: Vec<OutputToken>,
    pub text: String,
    pub rejected: Vec<Token>,
    pub warnings: Vec<String>,
    pub outcome: Result<FinishReason, SequenceError>,
    pub stats: Stats,
}

impl Default for Answer {
    fn default() -> Self {
        Self {
            tokens: Vec::new(),
            text: String::new(),
            rejected: Vec::new(),
            warnings: Vec::new(),
            outcome: Ok(FinishReason::Stop),
            stats: Stats::default(),
        }
    }
}

impl Answer {
    pub fn ids(&self) -> Vec<Token> {
        self.tokens.iter().map(|t| t.token).collect()
    }
}

/// Exactly `k` draft tokens a round.
pub fn fixed(k: usize) -> EngineOptions {
    let policy = DraftPolicy {
        fixed: Some(k),
        ..DraftPolicy::default()
    };
    EngineOptions {
        policy,
        ..EngineOptions::default()
    }
}

pub fn engine(
    model: &ScriptedModel,
    drafter: Option<Box<dyn Drafter>>,
    options: EngineOptions,
) -> Engine<ScriptedModel> {
    use foretoken_spec::TargetModel;
    let text = Table::letters(model.info().vocab_size);
    Engine::new(model.clone(), text, drafter, options)
}

/// Steps until every request is over; answers in the order of `ids`.
pub fn finish(engine: &mut Engine<ScriptedModel>, ids: &[RequestId]) -> Vec<Answer> {
    finish_after(engine, Vec::new(), ids)
}

/// Like [`finish`], for an engine that has made steps already: `events` are theirs.
pub fn finish_after(
    engine: &mut Engine<ScriptedModel>,
    mut events: Vec<Event>,
    ids: &[RequestId],
) -> Vec<Answer> {
    let mut answers: Vec<Option<Answer>> = ids.iter().map(|_| None).collect();
    let mut partial: Vec<Answer> = ids.iter().map(|_| Answer::default()).collect();
    for _ in 0..100_000 {
        for event in std::mem::take(&mut events) {
            let (Event::Progress { id, .. } | Event::DraftingOff { id, .. } | Event::Finished { id, .. }) =
                event;
            let Some(at) = ids.iter().position(|&i| i == id) else {
                continue;
            };
            assert!(answers[at].is_none(), "nothing happens to a request that is over");
            match event {
                Event::Progress { progress, .. } => {
                    partial[at].tokens.extend(&progress.tokens);
                    partial[at].rejected.extend(&progress.rejected);
                    partial[at]
                        .text
                        .extend(progress.text.iter().map(|f| f.text.as_str()));
                }
                Event::DraftingOff { reason, .. } => partial[at].warnings.push(reason),
                Event::Finished { outcome, stats, .. } => {
                    let mut answer = std::mem::take(&mut partial[at]);
                    (answer.outcome, answer.stats) = (outcome, *stats);
                    answers[at] = Some(answer);
                }
            }
        }
        if engine.is_idle() {
            return answers
                .into_iter()
                .map(|a| a.expect("an idle engine has finished all"))
                .collect();
        }
        events = engine.step();
    }
    panic!("the engine makes no progress");
}

/// The answer to one request.
pub fn answer(engine: &mut Engine<ScriptedModel>, request: GenerationRequest) -> Answer {
    let id = engine.add(request).expect("the request can be served");
    let answer = finish(engine, &[id]).remove(0);
    assert_eq!(
        answer.stats.generated,
        answer.tokens.len(),
        "usage counts the tokens given"
    );
    answer
}

pub fn request(prompt: &[Token], max_tokens: usize, sampler: SamplerParams, key: u64) -> GenerationRequest {
    GenerationRequest {
        prompt: prompt.to_vec(),
        max_tokens: Some(max_tokens),
        sampler,
        key,
        ..Default::default()
    }
}

pub fn greedy() -> SamplerParams {
    SamplerParams {
        temperature: 0.0,
        ..SamplerParams::default()
    }
}

/// The tokens by a loop that knows no engine, without one that ended them.
pub fn reference(model: &ScriptedModel, request: &GenerationRequest) -> Vec<Token> {
    use foretoken_spec::TargetModel;
    let task = Task {
        params: request.sampler.clone(),
        key: request.key,
        prompt: request.prompt.clone(),
        max_tokens: request.max_tokens.unwrap_or(1 << 30),
    };
    let mut tokens = decode_plain(&mut model.clone(), &task)
        .expect("no pass fails")
        .tokens;
    if tokens
        .last()
        .is_some_and(|&token| model.info().is_end_of_generation(token))
    {
        tokens.pop();
    }
    tokens
}
