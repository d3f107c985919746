//! What a speculator is like: sizes and what is known of it, from a published `config.json` or from GGUF keys.
//!
//! Not here: tensors (`layout`).
use foretoken_gguf::{Array, Error, Gguf, Value, Writer};
use foretoken_spec::Token;
use foretoken_spec::drafters::embedding_weight;
use serde_json::{Map, Value as Json, json};

/// The value of `general.architecture`, and the prefix of keys.
pub(crate) const ARCHITECTURE: &str = "mlp-speculator";
/// What a published configuration calls the architecture. There are others of the same `model_type`.
const PUBLISHED: &str = "MLPSpeculatorPreTrainedModel";

/// Upper bounds: far above every published speculator, low enough that no product of two overflows.
const MAX_HEADS: u64 = 64;
const MAX_WIDTH: u64 = 1 << 20;
const MAX_VOCAB: u64 = 1 << 24;

/// Sizes and forms of a speculator. All sizes are greater than zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpeculatorConfig {
    /// Rows of the target's embedding matrix, padding included.
    pub vocab_size: usize,
    /// Length of the target's hidden state.
    pub hidden_size: usize,
    /// Length of the states between heads.
    pub inner_size: usize,
    /// Heads, each of which looks one token further ahead (`n_predict`).
    pub heads: usize,
    /// All heads share their weights, but for the first one's projection.
    pub tied: bool,
    /// The target's state is normed and divided by √2 first.
    pub scale_input: bool,
    /// For trees: how many tokens each head is to propose. `[heads]`.
    pub top_k: Vec<usize>,
    /// For trees: how many paths are to be kept.
    pub candidates: usize,
}

impl SpeculatorConfig {
    /// α, what the token's embedding is multiplied with beside the state.
    pub fn embedding_weight(&self) -> f32 {
        embedding_weight(self.heads, self.inner_size)
    }
}

/// A speculator's configuration, and what else its file says of it.
#[derive(Clone, Debug, PartialEq)]
pub struct SpeculatorInfo {
    /// Sizes and forms.
    pub config: SpeculatorConfig,
    /// Embeddings and heads are products with the target's own.
    pub factored: bool,
    /// The tokens that logits are of, ascending; `None` is the whole vocabulary.
    pub draft_vocabulary: Option<Vec<Token>>,
    /// The model that it was made for.
    pub target_name: Option<String>,
    /// That model's [`Tokenizer::fingerprint`](crate::Tokenizer::fingerprint).
    pub tokenizer_fingerprint: Option<u64>,
    /// By head, the share of held-out tokens that it foretold where those before it were right; empty if nobody measured.
    pub acceptance: Vec<f32>,
    /// How it was trained, in its trainer's words.
    pub recipe: Option<String>,
}

impl SpeculatorInfo {
    /// Reads a published `config.json`. Keys that are missing have the defaults of the class that writes them, which
    /// leaves those out.
    ///
    /// # Errors
    /// What of it is wrong.
    pub(crate) fn from_json(text: &[u8]) -> Result<Self, String> {
        let json: Map<String, Json> = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let model_type = json.get("model_type").and_then(Json::as_str).unwrap_or("absent");
        if model_type != "mlp_speculator" {
            return Err(format!(
                "model_type is {model_type:?}; \"mlp_speculator\" is needed"
            ));
        }
        let architectures = json.get("architectures").and_then(Json::as_array);
        let architectures: Vec<&str> = architectures
            .into_iter()
            .flatten()
            .filter_map(Json::as_str)
            .collect();
        if architectures != [PUBLISHED] {
            return Err(format!(
                "architectures is {architectures:?}; {:?} alone is known",
                [PUBLISHED]
            ));
        }
        let uint = |key: &str, default: u64| match json.get(key) {
            None | Some(Json::Null) => Ok(default),
            Some(value) => value
                .as_u64()
                .ok_or_else(|| format!("{key} is {value}; a whole number is needed")),
        };
        let flag = |key: &str| match json.get(key) {
            None | Some(Json::Null) => Ok(false),
            Some(value) => value
                .as_bool()
                .ok_or_else(|| format!("{key} is {value}; true or false is needed")),
        };
        let top_k = match json.get("top_k_tokens_per_head") {
            None | Some(Json::Null) => Some(vec![5, 4, 3]),
            Some(Json::Array(values)) => values.iter().map(Json::as_u64).collect(),
            Some(_) => None,
        };
        let top_k = top_k.ok_or("top_k_tokens_per_head is not an array of whole numbers")?;
        let hidden_size = uint("emb_dim", 4096)?;
        let inner_size = match uint("inner_dim", 0)? {
            0 => hidden_size,
            size => size,
        };
        let heads = size("n_predict", uint("n_predict", 3)?, MAX_HEADS)?;
        Ok(Self {
            config: SpeculatorConfig {
                vocab_size: size("vocab_size", uint("vocab_size", 32000)?, MAX_VOCAB)?,
                hidden_size: size("emb_dim", hidden_size, MAX_WIDTH)?,
                inner_size: size("inner_dim", inner_size, MAX_WIDTH)?,
                heads,
                tied: flag("tie_weights")?,
                scale_input: flag("scale_input")?,
                top_k: check_top_k("top_k_tokens_per_head", &top_k, heads)?,
                candidates: size("n_candidates", uint("n_candidates", 5)?, MAX_VOCAB)?,
            },
            factored: false,
            draft_vocabulary: None,
            target_name: None,
            tokenizer_fingerprint: None,
            acceptance: Vec::new(),
            recipe: None,
        })
    }

    /// The published `config.json` of it.
    pub(crate) fn to_json(&self) -> Json {
        let config = &self.config;
        json!({
            "architectures": [PUBLISHED],
            "model_type": "mlp_speculator",
            "vocab_size": config.vocab_size,
            "emb_dim": config.hidden_size,
            "inner_dim": config.inner_size,
            "n_predict": config.heads,
            "top_k_tokens_per_head": config.top_k,
            "n_candidates": config.candidates,
            "tie_weights": config.tied,
            "scale_input": config.scale_input,
            "torch_dtype": "float16",
        })
    }

    /// Reads the keys of a GGUF file.
    pub(crate) fn from_gguf(gguf: &Gguf) -> Result<Self, Error> {
        let key = |name: &str| format!("{ARCHITECTURE}.{name}");
        let checked = |name: &str, most| {
            let found = gguf.require_uint(&key(name))?;
            size("it", found, most).map_err(|problem| gguf.metadata_error(&key(name), problem))
        };
        let flag = |name: &str| Ok::<_, Error>(gguf.bool(&key(name))?.unwrap_or(false));
        let text = |name: &str| Ok::<_, Error>(gguf.string(&key(name))?.map(str::to_owned));
        let uints = |name: &str| match gguf.array(&key(name))? {
            None => Ok(None),
            Some(array) => match array.uints() {
                None => Err(gguf.metadata_error(&key(name), "is not an array of whole numbers")),
                some => Ok(some),
            },
        };
        let heads = checked("head_count", MAX_HEADS)?;
        let vocab_size = checked("vocab_size", MAX_VOCAB)?;
        let top_k = uints("top_k")?.unwrap_or_else(|| vec![1; heads]);
        let top_k =
            check_top_k("it", &top_k, heads).map_err(|error| gguf.metadata_error(&key("top_k"), error))?;
        let draft_vocabulary = match uints("draft_vocabulary")? {
            None => None,
            Some(tokens) => Some(
                check_tokens(&tokens, vocab_size)
                    .map_err(|problem| gguf.metadata_error(&key("draft_vocabulary"), problem))?,
            ),
        };
        let tokenizer_fingerprint = match gguf.string(&key("target.tokenizer"))? {
            None => None,
            Some(hex) => Some(u64::from_str_radix(hex, 16).map_err(|_| {
                gguf.metadata_error(
                    &key("target.tokenizer"),
                    "is not a number of 64 bits in hexadecimal",
                )
            })?),
        };
        let acceptance = match gguf.array(&key("acceptance"))? {
            None => Vec::new(),
            Some(Array::F32(shares)) if shares.iter().all(|share| (0.0..=1.0).contains(share)) => {
                shares.clone()
            }
            Some(_) => {
                return Err(gguf.metadata_error(&key("acceptance"), "is not an array of float32 from 0 to 1"));
            }
        };
        Ok(Self {
            config: SpeculatorConfig {
                vocab_size,
                hidden_size: checked("embedding_length", MAX_WIDTH)?,
                inner_size: checked("inner_length", MAX_WIDTH)?,
                heads,
                tied: flag("tied")?,
                scale_input: flag("scale_input")?,
                top_k,
                candidates: checked("candidates", MAX_VOCAB)?,
            },
            factored: flag("factored")?,
            draft_vocabulary,
            target_name: text("target.name")?,
            tokenizer_fingerprint,
            acceptance,
            recipe: text("recipe")?,
        })
    }

    /// Whether a file can say all this: what [`from_gguf`](Self::from_gguf) would refuse is refused here.
    pub(crate) fn check(&self) -> Result<(), String> {
        let config = &self.config;
        for (name, value, most) in [
            ("vocab_size", config.vocab_size, MAX_VOCAB),
            ("hidden_size", config.hidden_size, MAX_WIDTH),
            ("inner_size", config.inner_size, MAX_WIDTH),
            ("heads", config.heads, MAX_HEADS),
            ("candidates", config.candidates, MAX_VOCAB),
        ] {
            size(name, value as u64, most)?;
        }
        let top_k: Vec<u64> = config.top_k.iter().map(|&k| k as u64).collect();
        check_top_k("top_k", &top_k, config.heads)?;
        if let Some(tokens) = &self.draft_vocabulary {
            let tokens: Vec<u64> = tokens.iter().map(|&token| token.into()).collect();
            check_tokens(&tokens, config.vocab_size)
                .map_err(|problem| format!("draft_vocabulary {problem}"))?;
        }
        if self.acceptance.iter().any(|share| !(0.0..=1.0).contains(share)) {
            return Err("acceptance holds a share that is not from 0 to 1".to_owned());
        }
        Ok(())
    }

    /// Puts the keys of a file.
    pub(crate) fn put(&self, writer: &mut Writer) {
        let config = &self.config;
        let mut put = |name: &str, value: Value| {
            writer.metadata(&format!("{ARCHITECTURE}.{name}"), value);
        };
        for (name, value) in [
            ("vocab_size", config.vocab_size),
            ("embedding_length", config.hidden_size),
            ("inner_length", config.inner_size),
            ("head_count", config.heads),
            ("candidates", config.candidates),
        ] {
            put(name, Value::U32(value as u32));
        }
        put("tied", config.tied.into());
        put("scale_input", config.scale_input.into());
        put("factored", self.factored.into());
        let top_k = config.top_k.iter().map(|&k| k as u32).collect();
        put("top_k", Array::U32(top_k).into());
        if let Some(tokens) = &self.draft_vocabulary {
            put("draft_vocabulary", Array::U32(tokens.clone()).into());
        }
        if let Some(name) = &self.target_name {
            put("target.name", name.as_str().into());
        }
        if let Some(fingerprint) = self.tokenizer_fingerprint {
            put("target.tokenizer", format!("{fingerprint:016x}").as_str().into());
        }
        if !self.acceptance.is_empty() {
            put("acceptance", Array::F32(self.acceptance.clone()).into());
        }
        if let Some(recipe) = &self.recipe {
            put("recipe", recipe.as_str().into());
        }
    }
}

fn size(name: &str, value: u64, most: u64) -> Result<usize, String> {
    match value {
        0 => Err(format!("{name} is 0; 1 to {most} is possible")),
        _ if value > most => Err(format!("{name} is {value}; 1 to {most} is possible")),
        _ => Ok(value as usize),
    }
}

fn check_top_k(name: &str, top_k: &[u64], heads: usize) -> Result<Vec<usize>, String> {
    if top_k.len() != heads {
        return Err(format!("{name} has {} numbers for {heads} heads", top_k.len()));
    }
    top_k.iter().map(|&k| size(name, k, MAX_VOCAB)).collect()
}

/// Tokens of a draft vocabulary.
fn check_tokens(tokens: &[u64], vocab_size: usize) -> Result<Vec<Token>, String> {
    if let Some(pair) = tokens.windows(2).find(|pair| pair[0] >= pair[1]) {
        return Err(format!("has {} after {}; tokens must ascend", pair[1], pair[0]));
    }
    match tokens.last() {
        None => Err("is empty".to_owned()),
        Some(&last) if last >= vocab_size as u64 => {
            Err(format!("has {last}; the vocabulary has {vocab_size} tokens"))
        }
        Some(_) => Ok(tokens.iter().map(|&token| token as Token).collect()),
    }
}
