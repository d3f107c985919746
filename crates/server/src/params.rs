//! Parameters that both kinds of completions share, and what of OpenAI's API is accepted without effect.

use std::collections::BTreeMap;

use foretoken_engine::{DraftLimits, GenerationRequest};
use foretoken_spec::{Cancel, Grammar, Sampler, SamplerParams, Source, Sources, Token};
use serde::Deserialize;
use serde_json::Value;

use crate::error::ApiError;
use crate::fields::Fields;
use crate::messages::content_text;
use crate::served::Served;

/// Most choices of a request.
const MOST_CHOICES: usize = 16;

/// Most entries of `logit_bias`.
const MOST_BIASES: usize = 1024;

/// Fields that change no text: accounting, routing and caching.
pub(crate) const WITHOUT_EFFECT: [&str; 8] = [
    "user",
    "metadata",
    "service_tier",
    "store",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "cache_prompt",
];

/// How a request is to be answered.
#[derive(Debug)]
pub(crate) struct Params {
    sampler: SamplerParams,
    seed: u64,
    pub choices: usize,
    max_tokens: Option<usize>,
    stops: Vec<String>,
    drafts: DraftLimits,
    /// What the answer will mostly be.
    pub prediction: Option<String>,
    /// Tell how likely the tokens were, and so many of the likeliest.
    pub logprobs: Option<usize>,
    pub stream: Option<StreamOptions>,
    /// The ids of the tokens, too.
    pub token_ids: bool,
    /// What was drafted in each round, too.
    pub return_drafts: bool,
}

/// A request's texts as the engine takes them.
pub(crate) struct Encoded {
    pub prompts: Vec<Vec<Token>>,
    pub grammar: Option<Box<dyn Grammar>>,
    pub prediction: Vec<Token>,
}

/// What a stream tells besides text.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StreamOptions {
    /// A last chunk with the usage.
    pub usage: bool,
    /// The usage so far in every chunk.
    pub continuous_usage: bool,
}

/// OpenAI's seeds are signed, others' are not.
#[derive(Deserialize)]
#[serde(untagged, expecting = "is not a whole number of 64 bits")]
enum Seed {
    Unsigned(u64),
    Signed(i64),
}

/// One text, or several.
#[derive(Deserialize)]
#[serde(untagged, expecting = "is neither a text nor an array of texts")]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl Params {
    /// Takes the shared fields. Without a limit of their own, answers have at most `max_tokens`.
    pub fn take(fields: &mut Fields, served: &Served, max_tokens: Option<usize>) -> Result<Self, ApiError> {
        let model: Option<String> = fields.take("model")?;
        if let Some(model) = model.filter(|model| !served.is_called(model)) {
            return Err(served.unknown(&model));
        }
        fields.ignore(&WITHOUT_EFFECT);
        let default = SamplerParams {
            // OpenAI's: the model's own distribution, uncut.
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            ..SamplerParams::default()
        };
        let bias: BTreeMap<String, f32> = fields.take("logit_bias")?.unwrap_or_default();
        if bias.len() > MOST_BIASES {
            return Err(ApiError::field(
                "logit_bias",
                format!("has more than {MOST_BIASES} entries"),
            ));
        }
        let sampler = SamplerParams {
            temperature: fields.take("temperature")?.unwrap_or(default.temperature),
            top_k: fields.take("top_k")?.unwrap_or(default.top_k),
            top_p: fields.take("top_p")?.unwrap_or(default.top_p),
            min_p: fields.take("min_p")?.unwrap_or(default.min_p),
            repeat_penalty: fields.take("repeat_penalty")?.unwrap_or(default.repeat_penalty),
            repeat_last_n: fields.take("repeat_last_n")?.unwrap_or(default.repeat_last_n),
            presence_penalty: fields
                .take("presence_penalty")?
                .unwrap_or(default.presence_penalty),
            frequency_penalty: fields
                .take("frequency_penalty")?
                .unwrap_or(default.frequency_penalty),
            logit_bias: bias.into_iter().map(token_bias).collect::<Result<_, _>>()?,
        };
        let seed = match fields.take("seed")? {
            Some(Seed::Unsigned(seed)) => seed,
            Some(Seed::Signed(seed)) => seed.cast_unsigned(),
            None => random()?,
        };
        let choices = fields.take("n")?.unwrap_or(1);
        if !(1..=MOST_CHOICES).contains(&choices) {
            return Err(ApiError::field(
                "n",
                format!("must be between 1 and {MOST_CHOICES}"),
            ));
        }
        let stops = match fields.take("stop")? {
            None => Vec::new(),
            Some(OneOrMany::One(stop)) => vec![stop],
            Some(OneOrMany::Many(stops)) => stops,
        };
        let limits = [fields.take("max_completion_tokens")?, fields.take("max_tokens")?];
        let max_tokens = match limits {
            [Some(a), Some(b)] if a != b => {
                return Err(ApiError::field(
                    "max_tokens",
                    "differs from max_completion_tokens",
                ));
            }
            [a, b] => a.or(b).or(max_tokens),
        };
        let stream = match fields.take("stream")?.unwrap_or(false) {
            true => Some(StreamOptions::take(fields)?),
            false if fields.object("stream_options")?.is_some() => {
                return Err(ApiError::field("stream_options", "needs stream to be true"));
            }
            false => None,
        };
        Ok(Self {
            sampler,
            seed,
            choices,
            max_tokens,
            stops,
            drafts: drafts(fields, served)?,
            prediction: prediction(fields)?,
            logprobs: None,
            stream,
            token_ids: fields.take("return_token_ids")?.unwrap_or(false),
            return_drafts: fields.take("return_drafts")?.unwrap_or(false),
        })
    }

    /// Whether texts end the answer.
    pub fn stops(&self) -> bool {
        !self.stops.is_empty()
    }

    /// The request for one choice of a prompt, which was in `field`, checked against the model.
    pub fn request(
        &self,
        served: &Served,
        encoded: &Encoded,
        prompt: &[Token],
        choice: usize,
        field: &str,
    ) -> Result<GenerationRequest, ApiError> {
        let request = GenerationRequest {
            prompt: prompt.to_vec(),
            sampler: self.sampler.clone(),
            key: Sampler::key(self.seed, choice as u64),
            max_tokens: self.max_tokens,
            stops: self.stops.clone(),
            grammar: encoded.grammar.clone(),
            prediction: encoded.prediction.clone(),
            drafts: self.drafts,
            logprobs: self.logprobs,
            cancel: Cancel::default(),
        };
        let checked = request.check(served.info());
        checked.map_err(|error| ApiError::request(field, &error))?;
        Ok(request)
    }
}

impl StreamOptions {
    fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        let Some(mut options) = fields.object("stream_options")? else {
            return Ok(Self::default());
        };
        let taken = Self {
            usage: options.take("include_usage")?.unwrap_or(false),
            continuous_usage: options.take("continuous_usage_stats")?.unwrap_or(false),
        };
        // Padding against guesses by length: the text is the same.
        options.ignore(&["include_obfuscation"]);
        options.finish()?;
        Ok(taken)
    }
}

/// `prediction`: the text that the answer will mostly be.
fn prediction(fields: &mut Fields) -> Result<Option<String>, ApiError> {
    let Some(mut prediction) = fields.object("prediction")? else {
        return Ok(None);
    };
    let kind: String = prediction.require("type")?;
    if kind != "content" {
        let problem = format!("{kind:?} is not supported; there is content");
        return Err(ApiError::field(prediction.name("type"), problem));
    }
    let name = prediction.name("content");
    let text = content_text(&name, prediction.require("content")?)?;
    prediction.finish()?;
    Ok(Some(text))
}

/// `speculation`: false, or who may draft and how much.
fn drafts(fields: &mut Fields, served: &Served) -> Result<DraftLimits, ApiError> {
    let mut limits = DraftLimits::default();
    let value: Option<Value> = fields.take("speculation")?;
    match value {
        None | Some(Value::Bool(true)) => return Ok(limits),
        Some(Value::Bool(false)) => limits.sources = Sources::NONE,
        Some(value) => {
            let mut wanted = Fields::new(value, fields.name("speculation"))?;
            let drafter: Option<String> = wanted.take("drafter")?;
            limits.max = wanted.take("max")?.unwrap_or(limits.max);
            let name = wanted.name("drafter");
            wanted.finish()?;
            limits.sources = match drafter.as_deref() {
                None | Some("auto") => Sources::ALL,
                Some("none") => Sources::NONE,
                Some(drafter) => {
                    let source = served.drafters().iter().find(|source| source.name() == drafter);
                    Sources::only(*source.ok_or_else(|| ApiError::field(name, unknown_drafter(served)))?)
                }
            };
        }
    }
    Ok(limits)
}

fn unknown_drafter(served: &Served) -> String {
    let known: Vec<&str> = served
        .drafters()
        .iter()
        .map(|source: &Source| source.name())
        .collect();
    format!(
        "this server has auto, none{}{}",
        if known.is_empty() { "" } else { ", " },
        known.join(", ")
    )
}

/// An entry of `logit_bias`.
fn token_bias((token, bias): (String, f32)) -> Result<(Token, f32), ApiError> {
    let error = |problem: &str| ApiError::field("logit_bias", format!("{token:?} {problem}"));
    let id = token.parse().map_err(|_| error("is not the id of a token"))?;
    match bias {
        // OpenAI's -100 bans a token, and so does it here.
        -100.0 => Ok((id, f32::NEG_INFINITY)),
        bias if (-100.0..=100.0).contains(&bias) => Ok((id, bias)),
        _ => Err(error("has a bias outside -100 to 100")),
    }
}

/// A seed from the system.
pub(crate) fn random() -> Result<u64, ApiError> {
    getrandom::u64()
        .map_err(|error| ApiError::internal(format!("the system gives no random numbers: {error}")))
}
