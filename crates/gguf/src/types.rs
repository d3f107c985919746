//! Tensor types: ids, names, block sizes.

/// How a tensor's elements are stored. Ids are those of the GGUF format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs, non_camel_case_types)]
pub enum TensorType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
}

impl TensorType {
    /// The type with this id.
    pub fn from_id(_id: u32) -> Option<Self> {
        todo!()
    }
    /// The id in files.
    pub fn id(self) -> u32 {
        todo!()
    }
    /// The usual name: `Q4_K`.
    pub fn name(self) -> &'static str {
        todo!()
    }
    /// Elements in a block.
    pub fn block_len(self) -> u64 {
        todo!()
    }
    /// Bytes of a block.
    pub fn block_bytes(self) -> u64 {
        todo!()
    }
}
