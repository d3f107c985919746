//! The CPU engine: the pass over a batch.
use crate::{Config, LoadError};
use foretoken_gguf::Gguf;
use foretoken_kernels::Compute;
use foretoken_spec::*;
use std::sync::Arc;

/// How to load a model.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Context length of a sequence; `None` is the model's own, at most 4096.
    pub context: Option<usize>,
    /// Positions that the cache holds over all sequences; `None` is one context.
    pub kv_positions: Option<usize>,
}

/// A model whose passes run on the CPU.
#[derive(Debug)]
pub struct CpuModel {}

impl CpuModel {
    /// Loads weights into kernel layout. `progress(done, total)` is told bytes.
    pub fn load(_gguf: &Gguf, _compute: Arc<Compute>, _options: &LoadOptions, _progress: &mut dyn FnMut(u64, u64)) -> Result<Self, LoadError> {
        todo!()
    }
    /// The hyperparameters.
    pub fn config(&self) -> &Config {
        todo!()
    }
    /// Bytes of weights that one pass reads.
    pub fn bytes_per_pass(&self) -> u64 {
        todo!()
    }
    /// Free pages of the cache.
    pub fn free_pages(&self) -> usize {
        todo!()
    }
}

impl TargetModel for CpuModel {
    fn info(&self) -> &ModelInfo {
        todo!()
    }
    fn open(&mut self) -> SequenceId {
        todo!()
    }
    fn len(&self, _sequence: SequenceId) -> usize {
        todo!()
    }
    fn reserve(&mut self, _sequence: SequenceId, _rows: usize) -> Result<(), OutOfPages> {
        todo!()
    }
    fn forward(&mut self, _batch: &Batch, _scores: &mut Scores, _cancel: &Cancel) -> Result<(), ModelError> {
        todo!()
    }
    fn commit(&mut self, _sequence: SequenceId, _rows: &[RowId]) {
        todo!()
    }
    fn truncate(&mut self, _sequence: SequenceId, _len: usize) {
        todo!()
    }
    fn fork(&mut self, _sequence: SequenceId) -> SequenceId {
        todo!()
    }
    fn release(&mut self, _sequence: SequenceId) {
        todo!()
    }
}
