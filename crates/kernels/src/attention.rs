//! Attention of a few rows over a paged cache in f16.
use crate::Compute;

/// Positions in a page of the cache.
pub const PAGE: usize = 32;

/// Sizes of one attention layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Multiplies the scores.
    pub scale: f32,
}

/// The stored keys and values of one layer, f16 bits, `[page][kv_head][PAGE][head_dim]`. A slot is
/// `page * PAGE + offset`.
#[derive(Clone, Copy, Debug)]
pub struct KvPages<'a> {
    /// Keys.
    pub keys: &'a [u16],
    /// Values.
    pub values: &'a [u16],
}

/// Where the keys of one row lie: slots in order of position, its own the last.
#[derive(Clone, Copy, Debug)]
pub struct RowPath<'a> {
    /// Committed positions, shared (the same slice) by all rows of a sequence.
    pub prefix: &'a [u32],
    /// Ancestors within the pass, and the row itself.
    pub tail: &'a [u32],
}

/// `out[r] = softmax(q[r]·Kᵀ·scale)·V` per head; `q` and `out` are `[rows][heads][head_dim]`. Consecutive
/// rows with the same prefix slice read it once.
pub fn attention(_compute: &Compute, _shape: AttentionShape, _kv: KvPages<'_>, _q: &[f32], _rows: &[RowPath<'_>], _out: &mut [f32]) {
    todo!()
}
