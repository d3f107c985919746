//! Quantisation formats: what a block of each GGUF type consists of.
//!
//! Every quantised format is one instance of the same sentence, and its [`Spec`] fills in the blanks:
//! `w[k] = d · scale[group of k] · (code[k] − offset) − dmin · min[group of k]`, with `d` and `dmin` in f16,
//! scales and mins small integers or absent, codes of 2 to 8 bits. (Q4_1 and Q5_1 have one `+ m` a block.)
//!
//! Not here: where the bits lie in a file (`block`) or in a packed matrix (`packed`).

/// How a matrix's weights are stored in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, non_camel_case_types)]
pub enum Format {
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

impl Format {
    /// Every format.
    pub const ALL: [Self; 13] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2_K,
        Self::Q3_K,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
    ];

    /// The field's name for it, such as `Q4_K`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q2_K => "Q2_K",
            Self::Q3_K => "Q3_K",
            Self::Q4_K => "Q4_K",
            Self::Q5_K => "Q5_K",
            Self::Q6_K => "Q6_K",
        }
    }

    /// Weights in a block: a matrix's columns are a multiple of it.
    pub const fn block_len(self) -> usize {
        match self.spec() {
            None => 1,
            Some(spec) => spec.block,
        }
    }

    /// Bytes of a block in a file.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q2_K => 84,
            Self::Q3_K => 110,
            Self::Q4_K => 144,
            Self::Q5_K => 176,
            Self::Q6_K => 210,
        }
    }

    /// The structure of a block; `None` for the float formats.
    pub(crate) const fn spec(self) -> Option<Spec> {
        Some(match self {
            Self::F32 | Self::F16 | Self::BF16 => return None,
            Self::Q4_0 => Spec::per_32(4, 8, Mins::None),
            Self::Q4_1 => Spec::per_32(4, 0, Mins::PerBlock),
            Self::Q5_0 => Spec::per_32(5, 16, Mins::None),
            Self::Q5_1 => Spec::per_32(5, 0, Mins::PerBlock),
            Self::Q8_0 => Spec {
                signed: true,
                ..Spec::per_32(8, 0, Mins::None)
            },
            Self::Q2_K => Spec {
                scales: Scales::Nibbles,
                ..Spec::per_256(16, 2, 0, Mins::PerGroup)
            },
            Self::Q3_K => Spec::per_256(16, 3, 4, Mins::None),
            Self::Q4_K => Spec::per_256(32, 4, 0, Mins::PerGroup),
            Self::Q5_K => Spec::per_256(32, 5, 0, Mins::PerGroup),
            Self::Q6_K => Spec::per_256(16, 6, 32, Mins::None),
        })
    }
}

/// The structure of a quantised block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spec {
    /// Weights with one `d`.
    pub block: usize,
    /// Weights with one integer scale; the block where there are none.
    pub group: usize,
    /// Bits of a code.
    pub bits: usize,
    /// Codes are two's complement.
    pub signed: bool,
    /// What a code of weight zero is.
    pub offset: u8,
    /// Integer scales of the groups.
    pub scales: Scales,
    /// What is added to all weights of a block or group.
    pub mins: Mins,
}

/// Integer scales of a block's groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scales {
    /// None: `d` is the scale.
    None,
    /// One i8 a group.
    Bytes,
    /// Four bits a group, which share a byte with the group's min.
    Nibbles,
}

/// What is added to all weights of a block or group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mins {
    /// Nothing.
    None,
    /// `m`, an f16.
    PerBlock,
    /// `−dmin · min[group]`, min of at most 6 bits.
    PerGroup,
}

impl Spec {
    const fn per_32(bits: usize, offset: u8, mins: Mins) -> Self {
        Self {
            block: 32,
            group: 32,
            bits,
            signed: false,
            offset,
            scales: Scales::None,
            mins,
        }
    }

    const fn per_256(group: usize, bits: usize, offset: u8, mins: Mins) -> Self {
        Self {
            block: 256,
            group,
            bits,
            signed: false,
            offset,
            scales: Scales::Bytes,
            mins,
        }
    }

    /// Groups in a block.
    pub const fn groups(&self) -> usize {
        self.block / self.group
    }
}
