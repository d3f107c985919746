//! Weights from a file into kernel layout, tensor by tensor: one is mapped, packed and unmapped before the
//! next, so that memory holds the packed weights and one tensor of the file at most.
//!
//! Every tensor of a file is either used or an error: an extra bias or norm that is passed over would
//! change the computation silently.
//!
//! Not here: what the weights are multiplied with ([`crate::pass`]).
use crate::{Config, LoadError};
use foretoken_gguf::{Gguf, TensorInfo, TensorType};
use foretoken_kernels::vector::RopeTable;
use foretoken_kernels::{Arena, Compute, Format, Matrix};
use foretoken_spec::Token;
use half::f16;
use std::collections::HashSet;
use std::sync::Arc;

/// A matrix and what is added to its product.
#[derive(Debug)]
pub(crate) struct Linear {
    pub matrix: Matrix,
    /// `[matrix.rows()]`.
    pub bias: Option<Vec<f32>>,
}

/// One transformer layer.
#[derive(Debug)]
pub(crate) struct Layer {
    pub attention_norm: Vec<f32>,
    pub query: Linear,
    pub key: Linear,
    pub value: Linear,
    pub output: Linear,
    pub feed_forward_norm: Vec<f32>,
    pub gate: Matrix,
    pub up: Matrix,
    pub down: Matrix,
}

/// All weights of a model.
#[derive(Debug)]
pub(crate) struct Weights {
    /// `[vocab_size, hidden_size]`.
    pub embedding: Arc<Matrix>,
    pub layers: Vec<Layer>,
    pub final_norm: Vec<f32>,
    /// `[logits, hidden_size]`, which turns hidden states into logits; the embedding matrix where that serves (tied) and all of
    /// it.
    pub head: Arc<Matrix>,
    pub rope: RopeTable,
}

impl Weights {
    /// Loads all weights; `positions` is how far the rope table reaches, `head_tokens` (below the vocabulary's
    /// size) the tokens that get logits, by default all. `progress(done, total)` is told bytes of tensor data.
    pub fn load(
        gguf: &Gguf,
        compute: &Compute,
        config: &Config,
        positions: usize,
        head_tokens: Option<&[Token]>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, LoadError> {
        let mut loader = Loader::new(gguf, compute, progress);
        let (hidden, inner) = (config.hidden_size, config.feed_forward_size);
        let (queries, keys) = (config.query_size(), config.kv_size());
        let embedding = Arc::new(loader.vocabulary_matrix(EMBEDDING, config)?);
        let mut layers = Vec::with_capacity(config.layers);
        for at in 0..config.layers {
            let name = |part: &str| format!("blk.{at}.{part}");
            layers.push(Layer {
                attention_norm: loader.vector(&name("attn_norm.weight"), hidden)?,
                query: loader.linear(&name("attn_q"), queries, hidden)?,
                key: loader.linear(&name("attn_k"), keys, hidden)?,
                value: loader.linear(&name("attn_v"), keys, hidden)?,
                output: loader.linear(&name("attn_output"), hidden, queries)?,
                feed_forward_norm: loader.vector(&name("ffn_norm.weight"), hidden)?,
                gate: loader.matrix(&name("ffn_gate.weight"), inner, hidden)?,
                up: loader.matrix(&name("ffn_up.weight"), inner, hidden)?,
                down: loader.matrix(&name("ffn_down.weight"), hidden, inner)?,
            });
        }
        let final_norm = loader.vector("output_norm.weight", hidden)?;
        let head = match (head_tensor(gguf), head_tokens) {
            (name, Some(tokens)) => {
                let (rows, cols) = (config.vocab_size, config.hidden_size);
                Arc::new(loader.rows_of_tokens(name, rows, cols, tokens)?)
            }
            (EMBEDDING, None) => Arc::clone(&embedding),
            (name, None) => Arc::new(loader.vocabulary_matrix(name, config)?),
        };
        let factors = loader.vector_if_present("rope_freqs.weight", config.rope.dims / 2)?;
        if factors
            .iter()
            .flatten()
            .any(|&factor| !(factor > 0.0 && factor.is_finite()))
        {
            return Err(tensor_error(
                "rope_freqs.weight",
                "holds a factor that is not above zero",
            ));
        }
        loader.check_all_used()?;

        let rope = &config.rope;
        let rope = RopeTable::new(
            rope.dims,
            rope.freq_base,
            factors.as_deref(),
            rope.position_divisor,
            positions,
        )
        .map_err(|error| LoadError::Cache(format!("the rope table of {positions} positions: {error}")))?;
        Ok(Self {
            embedding,
            layers,
            final_norm,
            head,
            rope,
        })
    }

    /// What a pass costs.
    pub fn cost(&self, config: &Config) -> PassCost {
        let bytes = |matrix: &Matrix| matrix.packed_bytes() as u64;
        let multiply_adds = |matrix: &Matrix| (matrix.rows() * matrix.cols()) as u64;
        let layers = || self.layers.iter().flat_map(Layer::matrices);
        PassCost {
            weight_bytes: layers().chain([self.head.as_ref()]).map(bytes).sum(),
            row_multiply_adds: layers().map(multiply_adds).sum(),
            head_multiply_adds: multiply_adds(&self.head),
            kv_bytes_per_position: (config.layers * 2 * config.kv_size() * size_of::<u16>()) as u64,
        }
    }
}

impl Layer {
    fn matrices(&self) -> [&Matrix; 7] {
        let Self {
            query,
            key,
            value,
            output,
            gate,
            up,
            down,
            ..
        } = self;
        [
            &query.matrix,
            &key.matrix,
            &value.matrix,
            &output.matrix,
            gate,
            up,
            down,
        ]
    }
}

/// What a pass has to read and to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassCost {
    /// Bytes of all matrices, each read once; of the embedding only rows are looked up.
    pub weight_bytes: u64,
    /// Multiply-adds with weights that each row takes, without the head.
    pub row_multiply_adds: u64,
    /// Multiply-adds of the head, for each row with logits.
    pub head_multiply_adds: u64,
    /// Bytes of keys and values of one position, over all layers.
    pub kv_bytes_per_position: u64,
}

/// The tensor of embeddings.
pub(crate) const EMBEDDING: &str = "token_embd.weight";

/// Rows of a model's embedding matrix, padding included; 0 if it has none.
pub fn embedding_rows(gguf: &Gguf) -> usize {
    let rows = gguf.tensor(EMBEDDING).and_then(|tensor| tensor.dims.get(1));
    rows.map_or(0, |&rows| rows as usize)
}

/// The tensor that is multiplied with hidden states: the embeddings where there is none of its own.
pub(crate) fn head_tensor(gguf: &Gguf) -> &'static str {
    match gguf.tensor("output.weight") {
        Some(_) => "output.weight",
        None => EMBEDDING,
    }
}

/// Takes tensors from a file.
pub(crate) struct Loader<'a> {
    gguf: &'a Gguf,
    compute: &'a Compute,
    /// All matrices together, in the order in which a pass reads them.
    arena: Arena,
    progress: &'a mut dyn FnMut(u64, u64),
    done: u64,
    total: u64,
    used: HashSet<String>,
}

impl<'a> Loader<'a> {
    /// A loader that has taken nothing yet.
    pub fn new(gguf: &'a Gguf, compute: &'a Compute, progress: &'a mut dyn FnMut(u64, u64)) -> Self {
        Self {
            gguf,
            compute,
            arena: Arena::new(),
            progress,
            done: 0,
            total: gguf.tensors().iter().map(|tensor| tensor.len).sum(),
            used: HashSet::new(),
        }
    }

    fn find(&self, name: &str) -> Result<&'a TensorInfo, LoadError> {
        self.gguf
            .tensor(name)
            .ok_or_else(|| tensor_error(name, "is missing"))
    }

    fn linear(&mut self, name: &str, rows: usize, cols: usize) -> Result<Linear, LoadError> {
        let matrix = self.matrix(&format!("{name}.weight"), rows, cols)?;
        let bias = self.vector_if_present(&format!("{name}.bias"), rows)?;
        Ok(Linear { matrix, bias })
    }

    pub fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<Matrix, LoadError> {
        let info = self.find(name)?;
        check_dims(info, &[cols, rows])?;
        self.pack(info, rows, cols)
    }

    /// A tensor with a row for each token, and perhaps rows of padding after them.
    fn vocabulary_tensor(&self, name: &str, rows: usize, cols: usize) -> Result<&'a TensorInfo, LoadError> {
        let info = self.find(name)?;
        match info.dims[..] {
            [width, height] if width == cols as u64 && height >= rows as u64 => Ok(info),
            _ => {
                let problem = format!("is {}; [{cols}, at least {rows}] is needed", shape(&info.dims));
                Err(tensor_error(name, problem))
            }
        }
    }

    /// A matrix with a row for each token. Rows of padding at its end stay in the file.
    fn vocabulary_matrix(&mut self, name: &str, config: &Config) -> Result<Matrix, LoadError> {
        let (rows, cols) = (config.vocab_size, config.hidden_size);
        let info = self.vocabulary_tensor(name, rows, cols)?;
        self.pack(info, rows, cols)
    }

    /// The rows of some tokens out of at least `rows`, each as it stands in the file: rows are whole blocks.
    pub fn rows_of_tokens(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
        tokens: &[Token],
    ) -> Result<Matrix, LoadError> {
        let info = self.vocabulary_tensor(name, rows, cols)?;
        let bytes = self.gguf.map(info)?;
        let row_bytes = bytes.len() / info.dims[1] as usize;
        let mut packed = Vec::with_capacity(tokens.len() * row_bytes);
        for &token in tokens {
            packed.extend_from_slice(&bytes[token as usize * row_bytes..][..row_bytes]);
        }
        self.pack_bytes(info, tokens.len(), cols, &packed)
    }

    /// Packs the first `rows` rows.
    fn pack(&mut self, info: &'a TensorInfo, rows: usize, cols: usize) -> Result<Matrix, LoadError> {
        let bytes = self.gguf.map(info)?;
        let stored_rows = info.dims[1] as usize;
        let used = bytes.len() / stored_rows * rows;
        self.pack_bytes(info, rows, cols, &bytes[..used])
    }

    /// Packs rows of the tensor that have been read.
    fn pack_bytes(
        &mut self,
        info: &'a TensorInfo,
        rows: usize,
        cols: usize,
        bytes: &[u8],
    ) -> Result<Matrix, LoadError> {
        let format = format_of(info)?;
        let matrix = Matrix::pack(self.compute, &mut self.arena, format, rows, cols, bytes)
            .map_err(|error| tensor_error(&info.name, error.to_string()))?;
        self.used(info);
        Ok(matrix)
    }

    fn vector_if_present(&mut self, name: &str, len: usize) -> Result<Option<Vec<f32>>, LoadError> {
        match self.gguf.tensor(name) {
            Some(_) => self.vector(name, len).map(Some),
            None => Ok(None),
        }
    }

    /// Whether all weights of a tensor are finite. A target's are not looked at: it takes a time that its start would feel.
    pub fn check_finite(&self, name: &str) -> Result<(), LoadError> {
        let info = self.find(name)?;
        match format_of(info)?.is_finite(&self.gguf.map(info)?) {
            true => Ok(()),
            false => Err(tensor_error(name, "holds weights that are not finite")),
        }
    }

    pub fn vector(&mut self, name: &str, len: usize) -> Result<Vec<f32>, LoadError> {
        let info = self.find(name)?;
        check_dims(info, &[len])?;
        let bytes = self.gguf.map(info)?;
        let values = match info.ty {
            TensorType::F32 => bytes
                .as_chunks()
                .0
                .iter()
                .map(|&b| f32::from_le_bytes(b))
                .collect(),
            TensorType::F16 => bytes
                .as_chunks()
                .0
                .iter()
                .map(|&b| f16::from_le_bytes(b).to_f32())
                .collect(),
            other => {
                return Err(tensor_error(
                    name,
                    format!("is {}; F32 or F16 is needed", other.name()),
                ));
            }
        };
        self.used(info);
        Ok(values)
    }

    fn used(&mut self, info: &TensorInfo) {
        // An embedding matrix that gives the head its rows is used twice.
        if self.used.insert(info.name.clone()) {
            self.done += info.len;
            (self.progress)(self.done, self.total);
        }
    }

    fn check_all_used(&self) -> Result<(), LoadError> {
        match self
            .gguf
            .tensors()
            .iter()
            .find(|tensor| !self.used.contains(&tensor.name))
        {
            Some(extra) => Err(tensor_error(
                &extra.name,
                "is not part of the architecture as it is supported here",
            )),
            None => Ok(()),
        }
    }
}

pub(crate) fn tensor_error(name: &str, problem: impl Into<String>) -> LoadError {
    LoadError::Tensor {
        name: name.to_owned(),
        problem: problem.into(),
    }
}

fn shape(dims: &[u64]) -> String {
    format!("{dims:?}")
}

pub(crate) fn check_dims(info: &TensorInfo, expected: &[usize]) -> Result<(), LoadError> {
    let same = info
        .dims
        .iter()
        .copied()
        .eq(expected.iter().map(|&dim| dim as u64));
    if same {
        return Ok(());
    }
    let problem = format!("is {}; {expected:?} is needed", shape(&info.dims));
    Err(tensor_error(&info.name, problem))
}

pub(crate) fn format_of(info: &TensorInfo) -> Result<Format, LoadError> {
    Ok(match info.ty {
        TensorType::F32 => Format::F32,
        TensorType::F16 => Format::F16,
        TensorType::BF16 => Format::BF16,
        TensorType::Q4_0 => Format::Q4_0,
        TensorType::Q4_1 => Format::Q4_1,
        TensorType::Q5_0 => Format::Q5_0,
        TensorType::Q5_1 => Format::Q5_1,
        TensorType::Q8_0 => Format::Q8_0,
        TensorType::Q2_K => Format::Q2_K,
        TensorType::Q3_K => Format::Q3_K,
        TensorType::Q4_K => Format::Q4_K,
        TensorType::Q5_K => Format::Q5_K,
        TensorType::Q6_K => Format::Q6_K,
        other => {
            return Err(tensor_error(
                &info.name,
                format!("type {} has no kernel", other.name()),
            ));
        }
    })
}
