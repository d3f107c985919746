//! Sizes of a speculator, and where its parameters lie.

use std::ops::Range;

use foretoken_spec::drafters::embedding_weight;
use serde::{Deserialize, Serialize};

/// Sizes and form of a speculator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkShape {
    /// Length of the target's hidden state, d.
    pub hidden_size: usize,
    /// Length of the states between heads, m.
    pub inner_size: usize,
    /// How many tokens it foretells, n.
    pub heads: usize,
    /// Whether all heads share their parameters, but for the first one's `proj`.
    pub tied: bool,
    /// Whether the hidden state is normalised first.
    pub scale_input: bool,
}

impl NetworkShape {
    /// What the embedding's part of a head's sum is multiplied by.
    pub(crate) fn alpha(&self) -> f32 {
        embedding_weight(self.heads, self.inner_size)
    }

    /// Length of the state that head `head` reads.
    pub(crate) fn state_size(&self, head: usize) -> usize {
        if head == 0 {
            self.hidden_size
        } else {
            self.inner_size
        }
    }
}

/// A tensor among the parameters.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    /// Rows and columns, or a length.
    pub(crate) dims: Vec<usize>,
    pub(crate) range: Range<usize>,
}

/// The tensors of a head.
#[derive(Clone, Debug)]
pub(crate) struct HeadTensors {
    /// `[m, d]` of head 0, `[m, m]` of the others.
    pub(crate) proj: Range<usize>,
    /// P, `[m, d]`.
    pub(crate) embedding: Range<usize>,
    /// O, `[d, m]`.
    pub(crate) output: Range<usize>,
    /// `[m]`.
    pub(crate) weight: Range<usize>,
    /// `[m]`.
    pub(crate) bias: Range<usize>,
}

/// Where parameters lie in one long vector: matrices first, then norms.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) tensors: Vec<Tensor>,
    /// One for each head; tied heads have the same ranges.
    pub(crate) heads: Vec<HeadTensors>,
    /// Length of all matrices together.
    pub(crate) matrices: usize,
    /// Length of all parameters.
    pub(crate) len: usize,
}

impl Layout {
    pub(crate) fn new(shape: &NetworkShape) -> Self {
        let NetworkShape {
            hidden_size: d,
            inner_size: m,
            heads,
            tied,
            ..
        } = *shape;
        let mut tensors: Vec<Tensor> = Vec::new();
        let mut len = 0;
        let mut add = |name: String, dims: &[usize]| {
            let range = len..len + dims.iter().product::<usize>();
            len = range.end;
            tensors.push(Tensor {
                name,
                dims: dims.to_vec(),
                range: range.clone(),
            });
            range
        };
        let own = if tied { 1 } else { heads };
        let projections = if tied { heads.min(2) } else { heads };
        let proj: Vec<_> = (0..projections)
            .map(|i| add(format!("spec.proj.{i}.weight"), &[m, shape.state_size(i)]))
            .collect();
        let embedding: Vec<_> = (0..own)
            .map(|i| add(format!("spec.emb_proj.{i}.weight"), &[m, d]))
            .collect();
        let output: Vec<_> = (0..own)
            .map(|i| add(format!("spec.head_proj.{i}.weight"), &[d, m]))
            .collect();
        let weight: Vec<_> = (0..own)
            .map(|i| add(format!("spec.ln.{i}.weight"), &[m]))
            .collect();
        let bias: Vec<_> = (0..own).map(|i| add(format!("spec.ln.{i}.bias"), &[m])).collect();
        let heads = (0..heads)
            .map(|i| HeadTensors {
                proj: proj[i.min(projections - 1)].clone(),
                embedding: embedding[i.min(own - 1)].clone(),
                output: output[i.min(own - 1)].clone(),
                weight: weight[i.min(own - 1)].clone(),
                bias: bias[i.min(own - 1)].clone(),
            })
            .collect();
        let matrices = weight[0].start;
        Self {
            tensors,
            heads,
            matrices,
            len,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_factors() {
        for (heads, inner_size, alpha) in [(3, 4096, 23.07202), (3, 4, 0.721), (5, 6144, 21.37291)] {
            let shape = NetworkShape {
                hidden_size: 8,
                inner_size,
                heads,
                tied: true,
                scale_input: true,
            };
            assert!(
                (shape.alpha() - alpha).abs() < 2e-4,
                "{heads} {inner_size}: {}",
                shape.alpha()
            );
        }
    }
}
