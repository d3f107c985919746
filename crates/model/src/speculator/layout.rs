//! Which tensors a speculator has, their names and shapes.
use super::SpeculatorInfo;
use foretoken_spec::Token;

/// What stands before the names of a GGUF file's tensors.
pub(crate) const PREFIX: &str = "spec.";

/// A part of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Projection,
    NormWeight,
    NormBias,
    /// The embeddings, or what the target's are multiplied with.
    Embedding,
    /// What makes logits, or what makes the input of the target's head.
    Head,
}

impl Part {
    pub const ALL: [Self; 5] = [
        Self::Projection,
        Self::NormWeight,
        Self::NormBias,
        Self::Embedding,
        Self::Head,
    ];

    /// The name without prefix, which published files share.
    pub fn name(self, head: usize, factored: bool) -> String {
        match (self, factored) {
            (Self::Projection, _) => format!("proj.{head}.weight"),
            (Self::NormWeight, _) => format!("ln.{head}.weight"),
            (Self::NormBias, _) => format!("ln.{head}.bias"),
            (Self::Embedding, false) => format!("emb.{head}.weight"),
            (Self::Embedding, true) => format!("emb_proj.{head}.weight"),
            (Self::Head, false) => format!("head.{head}.weight"),
            (Self::Head, true) => format!("head_proj.{head}.weight"),
        }
    }
}

/// A tensor that a file must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub part: Part,
    pub head: usize,
    /// Without prefix.
    pub name: String,
    /// `[rows, cols]`, or the length of a vector.
    pub dims: Vec<usize>,
}

impl Stored {
    pub fn cols(&self) -> usize {
        self.dims.last().copied().unwrap_or(0)
    }

    pub fn rows(&self) -> usize {
        self.dims[..self.dims.len() - 1].iter().product()
    }
}

impl SpeculatorInfo {
    /// The head whose tensor serves `head`: with tied weights all have the first's, but for the projection, which in the first
    /// head has another input.
    pub(crate) fn owner(&self, part: Part, head: usize) -> usize {
        match (self.config.tied, part) {
            (false, _) => head,
            (true, Part::Projection) => head.min(1),
            (true, _) => 0,
        }
    }

    /// All tensors, head by head.
    pub(crate) fn stored(&self) -> Vec<Stored> {
        let heads = 0..self.config.heads;
        let all = heads.flat_map(|head| Part::ALL.map(|part| (part, head)));
        all.filter(|&(part, head)| self.owner(part, head) == head)
            .map(|(part, head)| Stored {
                part,
                head,
                name: part.name(head, self.factored),
                dims: self.dims(part, head),
            })
            .collect()
    }

    fn dims(&self, part: Part, head: usize) -> Vec<usize> {
        let config = &self.config;
        let (hidden, inner) = (config.hidden_size, config.inner_size);
        let logits = (self.draft_vocabulary.as_deref()).map_or(config.vocab_size, <[Token]>::len);
        match (part, self.factored) {
            (Part::Projection, _) if head == 0 => vec![inner, hidden],
            (Part::Projection, _) => vec![inner, inner],
            (Part::NormWeight | Part::NormBias, _) => vec![inner],
            (Part::Embedding, false) => vec![config.vocab_size, inner],
            (Part::Embedding, true) => vec![inner, hidden],
            (Part::Head, false) => vec![logits, inner],
            (Part::Head, true) => vec![hidden, inner],
        }
    }
}
