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

struct Layout {
    ty: TensorType,
    id: u32,
    name: &'static str,
    block_len: u64,
    block_bytes: u64,
}

const fn layout(ty: TensorType, id: u32, name: &'static str, block_len: u64, block_bytes: u64) -> Layout {
    Layout {
        ty,
        id,
        name,
        block_len,
        block_bytes,
    }
}

/// In the order of the enum, so that a type is its own index.
const LAYOUTS: [Layout; 13] = [
    layout(TensorType::F32, 0, "F32", 1, 4),
    layout(TensorType::F16, 1, "F16", 1, 2),
    layout(TensorType::BF16, 30, "BF16", 1, 2),
    layout(TensorType::Q4_0, 2, "Q4_0", 32, 18),
    layout(TensorType::Q4_1, 3, "Q4_1", 32, 20),
    layout(TensorType::Q5_0, 6, "Q5_0", 32, 22),
    layout(TensorType::Q5_1, 7, "Q5_1", 32, 24),
    layout(TensorType::Q8_0, 8, "Q8_0", 32, 34),
    layout(TensorType::Q2_K, 10, "Q2_K", 256, 84),
    layout(TensorType::Q3_K, 11, "Q3_K", 256, 110),
    layout(TensorType::Q4_K, 12, "Q4_K", 256, 144),
    layout(TensorType::Q5_K, 13, "Q5_K", 256, 176),
    layout(TensorType::Q6_K, 14, "Q6_K", 256, 210),
];

/// Types that files may carry and this crate does not read; named so that a refusal can name them.
const UNSUPPORTED: [(u32, &str); 30] = [
    (4, "Q4_2"),
    (5, "Q4_3"),
    (9, "Q8_1"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (36, "IQ4_NL_4_4"),
    (37, "IQ4_NL_4_8"),
    (38, "IQ4_NL_8_8"),
    (39, "MXFP4"),
    (40, "NVFP4"),
    (41, "Q1_0"),
    (42, "Q2_0"),
];

impl TensorType {
    /// Every type, in no particular order.
    pub fn all() -> impl Iterator<Item = Self> {
        LAYOUTS.iter().map(|l| l.ty)
    }

    /// The type with this id; `None` if it is unknown or not supported.
    pub fn from_id(id: u32) -> Option<Self> {
        LAYOUTS.iter().find(|l| l.id == id).map(|l| l.ty)
    }

    /// The id in files.
    pub fn id(self) -> u32 {
        self.layout().id
    }

    /// The usual name: `Q4_K`.
    pub fn name(self) -> &'static str {
        self.layout().name
    }

    /// Elements in a block; 1 for the plain float types.
    pub fn block_len(self) -> u64 {
        self.layout().block_len
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> u64 {
        self.layout().block_bytes
    }

    /// Bytes of a tensor of this type with these dimensions, fastest first.
    ///
    /// # Errors
    /// What is wrong with the dimensions: none or more than four, a zero among them, a row that is not whole
    /// blocks, or a size beyond 64 bits.
    pub fn data_len(self, dims: &[u64]) -> Result<u64, String> {
        if dims.is_empty() || dims.len() > 4 {
            return Err(format!("{} dimensions; a tensor has 1 to 4", dims.len()));
        }
        if dims.contains(&0) {
            return Err(format!("{dims:?} contains a zero"));
        }
        if !dims[0].is_multiple_of(self.block_len()) {
            let (name, block_len) = (self.name(), self.block_len());
            return Err(format!(
                "{dims:?}: rows of {} elements are not whole {name} blocks of {block_len}",
                dims[0]
            ));
        }
        dims.iter()
            .try_fold(1u64, |product, &dim| product.checked_mul(dim))
            .and_then(|elements| (elements / self.block_len()).checked_mul(self.block_bytes()))
            .ok_or_else(|| format!("{dims:?}: the size overflows 64 bits"))
    }

    fn layout(self) -> &'static Layout {
        &LAYOUTS[self as usize]
    }
}

impl std::fmt::Display for TensorType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// Says why an id that [`TensorType::from_id`] does not know is refused.
pub(crate) fn refusal(id: u32) -> String {
    match UNSUPPORTED.iter().find(|(known, _)| *known == id) {
        Some((_, name)) => format!("{name} is not supported"),
        None => format!("unknown type id {id}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn tables_are_consistent() {
        let mut ids = HashSet::new();
        for (index, l) in LAYOUTS.iter().enumerate() {
            assert_eq!(l.ty as usize, index, "{}", l.name);
            assert_eq!(format!("{:?}", l.ty), l.name);
            assert_eq!(TensorType::from_id(l.id), Some(l.ty));
            assert!(ids.insert(l.id), "{}", l.name);
        }
        for (id, name) in UNSUPPORTED {
            assert!(ids.insert(id), "{name}");
            assert_eq!(TensorType::from_id(id), None, "{name}");
        }
        // No gap among the ids that the format has given out.
        assert!((0..=42).all(|id| ids.contains(&id)));
    }

    #[test]
    fn data_len() {
        #[track_caller]
        fn check(ty: TensorType, dims: &[u64], expected: Result<u64, &str>) {
            match (ty.data_len(dims), expected) {
                (Ok(len), Ok(expected)) => assert_eq!(len, expected),
                (Err(problem), Err(part)) => assert!(problem.contains(part), "{problem}"),
                (got, expected) => panic!("{got:?} for {expected:?}"),
            }
        }
        check(TensorType::F32, &[3], Ok(12));
        check(TensorType::F16, &[3, 5, 7, 2], Ok(420));
        check(TensorType::Q8_0, &[64, 3], Ok(204));
        check(TensorType::Q4_K, &[256, 2], Ok(288));
        check(TensorType::Q4_K, &[128, 2], Err("not whole Q4_K blocks of 256"));
        check(TensorType::F32, &[], Err("0 dimensions"));
        check(TensorType::F32, &[1; 5], Err("5 dimensions"));
        check(TensorType::F32, &[4, 0], Err("zero"));
        check(TensorType::F32, &[1 << 32, 1 << 32], Err("overflows"));
        check(TensorType::F32, &[1 << 62], Err("overflows"));
        check(TensorType::Q4_0, &[1 << 63], Ok((1 << 58) * 18));
    }
}
