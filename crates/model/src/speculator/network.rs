//! The network: one head over a few rows. Each row's results are the same bits whatever rows are beside it.
use super::layout::Part;
use super::shards::error;
use super::{SpeculatorFile, SpeculatorInfo};
use crate::cpu::check_head_tokens;
use crate::weights::{Loader, embedding_rows, head_tensor};
use crate::{CpuModel, LoadError};
use foretoken_gguf::Gguf;
use foretoken_kernels::vector::rms_norm;
use foretoken_kernels::{Arena, Compute, Matrix, Product, Scratch, matmul};
use foretoken_spec::drafters::Network;
use foretoken_spec::{ModelError, Token};
use std::f32::consts::FRAC_1_SQRT_2;
use std::sync::Arc;

/// Added to the mean square in norms.
const EPS: f32 = 1e-6;

/// A speculator's weights, and buffers for its steps.
#[derive(Debug)]
pub struct Speculator {
    info: SpeculatorInfo,
    /// The tokens of the logits; `None` if they are all that the target knows.
    draft_vocabulary: Option<Vec<Token>>,
    compute: Arc<Compute>,
    heads: Vec<Head>,
    /// The target's embeddings and head, of a factored speculator.
    target: Option<Target>,
    /// What the token's embedding is multiplied with.
    embedding_weight: f32,
    /// The weights of the input's norm, which divide by √2 too.
    input_norm: Option<Vec<f32>>,
    logits: usize,
    space: Space,
}

/// Tied heads share what they can.
#[derive(Clone, Debug)]
struct Head {
    projection: Arc<Matrix>,
    norm_weight: Arc<[f32]>,
    norm_bias: Arc<[f32]>,
    embedding: Arc<Matrix>,
    head: Arc<Matrix>,
}

#[derive(Debug)]
struct Target {
    embedding: Arc<Matrix>,
    head: Arc<Matrix>,
}

#[derive(Debug, Default)]
struct Space {
    products: Scratch,
    /// The normed input.
    input: Vec<f32>,
    /// Rows of the target's embeddings.
    rows: Vec<f32>,
    /// Embeddings of the tokens.
    tokens: Vec<f32>,
    /// State and token together, before the norm.
    mixed: Vec<f32>,
    /// The input of the target's head.
    hidden: Vec<f32>,
}

impl Speculator {
    /// Loads the weights of a speculator for `target`, which was loaded from `gguf`. A file without a draft vocabulary of its own gets
    /// `draft_vocabulary`, if there is one (ascending and distinct): the heads are loaded for these tokens alone. Without any the
    /// logits are of all tokens that the target knows.
    ///
    /// # Errors
    /// If it was made for a model of other sizes, if the draft vocabulary is no list that a head can have, and what of the weights is
    /// wrong.
    pub fn load(
        file: SpeculatorFile,
        gguf: &Gguf,
        target: &CpuModel,
        compute: Arc<Compute>,
        draft_vocabulary: Option<&[Token]>,
    ) -> Result<Self, LoadError> {
        let info = file.info().clone();
        check_target(&file, gguf, target)?;
        let known = target.config().vocab_size;
        let draft_vocabulary = info.draft_vocabulary.as_deref().or(draft_vocabulary);
        check_head_tokens(draft_vocabulary, known)?;
        let target_tables = match info.factored {
            true => Some(Target::new(gguf, target, &compute, draft_vocabulary)?),
            false => None,
        };
        // The rows of a head to load: all of them, unless they are products with the target's. Rows of padding stay in the file.
        let every: Vec<Token>;
        let rows = match (&info.draft_vocabulary, info.factored, draft_vocabulary) {
            (Some(_), _, _) | (_, true, _) => None,
            (None, false, Some(tokens)) => Some(tokens),
            (None, false, None) if known == info.config.vocab_size => None,
            (None, false, None) => {
                every = (0..known as Token).collect();
                Some(&every[..])
            }
        };

        let mut arena = Arena::new();
        let mut heads: Vec<Head> = Vec::with_capacity(info.config.heads);
        for at in 0..info.config.heads {
            let owned = |part| match info.owner(part, at) {
                owner if owner == at => None,
                owner => heads.get(owner),
            };
            let mut matrix = |part, rows: Option<&[Token]>, of: fn(&Head) -> &Arc<Matrix>| match owned(part) {
                Some(head) => Ok(Arc::clone(of(head))),
                None => file.matrix(&compute, &mut arena, part, at, rows).map(Arc::new),
            };
            let vector = |part, of: fn(&Head) -> &Arc<[f32]>| match owned(part) {
                Some(head) => Ok(Arc::clone(of(head))),
                None => file.vector(&compute, part, at).map(Arc::from),
            };
            let head = Head {
                projection: matrix(Part::Projection, None, |head| &head.projection)?,
                embedding: matrix(Part::Embedding, None, |head| &head.embedding)?,
                head: matrix(Part::Head, rows, |head| &head.head)?,
                norm_weight: vector(Part::NormWeight, |head| &head.norm_weight)?,
                norm_bias: vector(Part::NormBias, |head| &head.norm_bias)?,
            };
            heads.push(head);
        }
        let config = &info.config;
        Ok(Self {
            draft_vocabulary: draft_vocabulary.map(<[Token]>::to_vec),
            logits: draft_vocabulary.map_or(known, <[Token]>::len),
            embedding_weight: config.embedding_weight(),
            input_norm: config
                .scale_input
                .then(|| vec![FRAC_1_SQRT_2; config.hidden_size]),
            info,
            compute,
            heads,
            target: target_tables,
            space: Space::default(),
        })
    }

    /// What its file says of it.
    pub fn info(&self) -> &SpeculatorInfo {
        &self.info
    }

    /// The tokens that logits are of, ascending; `None` if logit `i` is that of token `i`.
    pub fn draft_vocabulary(&self) -> Option<&[Token]> {
        self.draft_vocabulary.as_deref()
    }
}

impl Target {
    fn new(
        gguf: &Gguf,
        target: &CpuModel,
        compute: &Compute,
        draft_vocabulary: Option<&[Token]>,
    ) -> Result<Self, LoadError> {
        let config = target.config();
        let (rows, cols) = (config.vocab_size, config.hidden_size);
        let head = match draft_vocabulary {
            Some(tokens) => {
                let mut quiet = |_, _| ();
                let mut loader = Loader::new(gguf, compute, &mut quiet);
                Arc::new(loader.rows_of_tokens(head_tensor(gguf), rows, cols, tokens)?)
            }
            None if target.head().rows() == rows => target.head(),
            None => {
                let problem = "the target has some tokens' alone, so its head cannot serve a speculator";
                return Err(LoadError::HeadTokens(problem.to_owned()));
            }
        };
        Ok(Self {
            embedding: target.embedding(),
            head,
        })
    }
}

/// Whether a speculator has the target's sizes.
fn check_target(file: &SpeculatorFile, gguf: &Gguf, target: &CpuModel) -> Result<(), LoadError> {
    let made_for = &file.info().config;
    let hidden_size = target.config().hidden_size;
    if made_for.hidden_size != hidden_size {
        let problem = format!(
            "was made for a hidden size of {}; the target's is {hidden_size}",
            made_for.hidden_size
        );
        return Err(error(file.path(), problem));
    }
    // Padding counts: it is the size of the matrix that the speculator was trained beside.
    let rows = embedding_rows(gguf);
    if made_for.vocab_size != rows {
        let problem = format!(
            "was made for a vocabulary of {}; the target's embeddings have {rows} rows",
            made_for.vocab_size
        );
        return Err(error(file.path(), problem));
    }
    Ok(())
}

impl Network for Speculator {
    fn heads(&self) -> usize {
        self.heads.len()
    }

    fn hidden_size(&self) -> usize {
        self.info.config.hidden_size
    }

    fn inner_size(&self) -> usize {
        self.info.config.inner_size
    }

    fn vocab_size(&self) -> usize {
        self.logits
    }

    fn step(
        &mut self,
        head: usize,
        tokens: &[Token],
        states: &[f32],
        next: &mut Vec<f32>,
        logits: &mut Vec<f32>,
    ) -> Result<(), ModelError> {
        let Some(weights) = self.heads.get(head) else {
            let problem = format!("head {head} of a speculator with {}", self.heads.len());
            return Err(ModelError::Backend(problem));
        };
        let (rows, hidden, inner) = (tokens.len(), self.hidden_size(), self.inner_size());
        check_states(head, rows, if head == 0 { hidden } else { inner }, states)?;
        let compute = &*self.compute;
        let Space {
            products,
            input,
            rows: looked_up,
            tokens: embedded,
            mixed,
            hidden: projected,
        } = &mut self.space;

        let states = match &self.input_norm {
            Some(norm) if head == 0 => {
                input.resize(rows * hidden, 0.0);
                for (x, out) in states.chunks_exact(hidden).zip(input.chunks_exact_mut(hidden)) {
                    rms_norm(compute.isa(), x, norm, EPS, out);
                }
                &input[..]
            }
            _ => states,
        };
        multiply(compute, products, &weights.projection, states, rows, mixed);
        match &self.target {
            None => look_up(&weights.embedding, tokens, embedded),
            Some(target) => {
                look_up(&target.embedding, tokens, looked_up);
                multiply(compute, products, &weights.embedding, looked_up, rows, embedded);
            }
        }
        for (mixed, token) in mixed.iter_mut().zip(&*embedded) {
            *mixed += self.embedding_weight * token;
        }
        next.clear();
        next.resize(rows * inner, 0.0);
        for (x, out) in mixed.chunks_exact(inner).zip(next.chunks_exact_mut(inner)) {
            rms_norm(compute.isa(), x, &weights.norm_weight, EPS, out);
            for (out, bias) in out.iter_mut().zip(&*weights.norm_bias) {
                *out = gelu(*out + bias);
            }
        }
        match &self.target {
            None => multiply(compute, products, &weights.head, next, rows, logits),
            Some(target) => {
                multiply(compute, products, &weights.head, next, rows, projected);
                multiply(compute, products, &target.head, projected, rows, logits);
            }
        }
        Ok(())
    }
}

fn check_states(head: usize, rows: usize, len: usize, states: &[f32]) -> Result<(), ModelError> {
    let problem = if states.len() != rows * len {
        format!(
            "{} values of states for {rows} rows of head {head}, each of {len}",
            states.len()
        )
    } else if states.iter().any(|value| !value.is_finite()) {
        format!("a state before head {head} holds a value that is not finite")
    } else {
        return Ok(());
    };
    Err(ModelError::Backend(problem))
}

/// `out`, resized, is `[rows][matrix.rows()]`.
fn multiply(
    compute: &Compute,
    products: &mut Scratch,
    matrix: &Matrix,
    x: &[f32],
    rows: usize,
    out: &mut Vec<f32>,
) {
    // Every element is written: what stood there may stay until then.
    out.resize(rows * matrix.rows(), 0.0);
    matmul(compute, products, x, rows, &mut [Product { matrix, out }]);
}

/// The tokens' rows, one after the other; those of token 0 where there is none.
fn look_up(matrix: &Matrix, tokens: &[Token], out: &mut Vec<f32>) {
    let cols = matrix.cols();
    out.resize(tokens.len() * cols, 0.0);
    for (&token, out) in tokens.iter().zip(out.chunks_exact_mut(cols)) {
        let row = token as usize;
        matrix.dequantize_row(if row < matrix.rows() { row } else { 0 }, out);
    }
}

/// The exact form, not the one with tanh.
fn gelu(x: f32) -> f32 {
    0.5 * x * (1.0 + libm::erff(x * FRAC_1_SQRT_2))
}
