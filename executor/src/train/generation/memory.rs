//! The memory that generating takes, stated and compared with the host's before anything is allocated.

use super::weight_format::WeightFormat;
use crate::train::parameters::{Layer, Parameter, parameters};
use crate::train::sizes::Sizes;
use std::ops::Range;
use trainwright_lower::lower_every_rank;
use trainwright_spec::model::{Mlp, Model};
use trainwright_spec::plan::Plan;
use trainwright_spec::units::Bytes;

/// Bytes that ranks of one host take together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GenerationMemory {
    /// Weights, as they are kept.
    pub weights: Bytes,
    /// Keys and values of the tokens that are kept at once.
    pub cache: Bytes,
    /// Activations of the largest pass, and a weight on its way from its file.
    pub rest: Bytes,
}

impl GenerationMemory {
    /// All of it.
    pub fn total(&self) -> Bytes {
        self.weights + self.cache + self.rest
    }
}

/// What the passes of a run need at most.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LargestPass {
    /// How weights are kept.
    pub weights: WeightFormat,
    /// Tokens whose keys and values are kept at once.
    pub cached: usize,
    /// New tokens of a pass.
    pub tokens: usize,
    /// Sequences whose logits are wanted.
    pub sampled: usize,
}

/// What `ranks` of a layout take.
pub(crate) fn memory(plan: &Plan, largest_pass: LargestPass, ranks: Range<usize>) -> GenerationMemory {
    let LargestPass { weights: format, cached, tokens, sampled } = largest_pass;
    let program = lower_every_rank(plan);
    let (mut weights, mut cache, mut rest) = (0, 0, 0);
    for rank in ranks {
        let sizes = Sizes::of(plan, rank);
        let layers = program.layers_of(&program.ranks[rank]);
        let copies_embedding = !layers.contains(&Layer::Embedding);
        let mut largest = 0;
        for layer in layers {
            let all = parameters(&plan.model, layer, &sizes, copies_embedding);
            weights += all.iter().map(|parameter| format.bytes(parameter)).sum::<usize>();
            let full = all.iter().map(|parameter| parameter.full_shape.iter().product()).max();
            let local: usize = all.iter().map(Parameter::padded_length).sum();
            // A parameter as its file has it, as f32, in the parameter's order, and the rank's part of its layer.
            largest = largest.max(12 * full.unwrap_or(0) + 4 * local);
            if let Layer::Block(index) = layer {
                cache += 4 * cached * cached_row(&plan.model, index) / sizes.parts;
            }
        }
        rest += largest + 4 * tokens * widest(&plan.model) + 8 * sampled * plan.model.vocab;
    }
    let [weights, cache, rest] = [weights, cache, rest].map(|bytes| Bytes::new(bytes as f64));
    GenerationMemory { weights, cache, rest }
}

/// Numbers of a token in a block's cache, over all tensor ranks.
fn cached_row(model: &Model, index: usize) -> usize {
    let attention = &crate::train::parameters::block(model, index).attention;
    attention.kv_heads * (attention.head_dim + attention.value_head_dim)
}

/// Numbers of a token that a block has at once: the residual stream twice, and input and output of its widest module.
fn widest(model: &Model) -> usize {
    let of_block = |block: &trainwright_spec::model::Block| {
        let attention = &block.attention;
        let qkv = attention.heads * attention.head_dim
            + attention.kv_heads * (attention.head_dim + attention.value_head_dim);
        let feed_forward = match &block.mlp {
            Mlp::Dense(mlp) => mlp.width * if mlp.gated { 3 } else { 2 },
            Mlp::Experts(experts) => experts.per_token * experts.expert.width * 3,
        };
        qkv.max(feed_forward) + 4 * model.hidden
    };
    model.blocks.iter().map(|run| of_block(&run.block)).max().unwrap_or(0)
}
