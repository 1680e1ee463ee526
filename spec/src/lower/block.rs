//! A block as the list of its parts.

use super::attention::attention;
use super::elementwise::{add_residual, norm};
use super::experts::experts;
use super::feed_forward::feed_forward;
use super::part::{Input, Part, Shape};
use crate::model::{Block, Mlp};

/// The parts of a block in the order of forward. Norms come before what they feed; a post-norm block has the same
/// parts in another order, hence the same costs.
pub(crate) fn block_parts(shape: &Shape, block: &Block) -> Vec<Part> {
    let norm = || norm(shape, shape.own_tokens(), shape.hidden);
    let mlp = |input, leaves| match &block.mlp {
        Mlp::Dense(mlp) => feed_forward(shape, mlp, input, leaves),
        Mlp::Experts(layer) => experts(shape, layer),
    };
    let mlp_bias = match &block.mlp {
        Mlp::Dense(mlp) => mlp.bias,
        Mlp::Experts(_) => false,
    };
    let mut parts: Vec<Part> = Vec::new();
    if block.parallel {
        parts.extend((0..block.norms).map(|_| norm()));
        parts.extend(attention(shape, &block.attention, Input::Region, false));
        // With a norm each, attention and MLP read different tensors (GPT-NeoX); else the same (Falcon, GPT-J).
        let input = if block.norms > 1 { Input::Region } else { Input::Shared };
        parts.extend(mlp(input, true));
        parts.push(add_residual(shape, mlp_bias || block.attention.output_bias));
        return parts;
    }
    let attentions = std::iter::once(&block.attention).chain(&block.cross_attention);
    let sublayers = 1 + attentions.clone().count();
    // Norms beyond one for each sublayer stand behind the sublayers (Gemma 2).
    let after = |index: usize| block.norms > sublayers + index;
    for (index, layer) in attentions.enumerate() {
        parts.push(norm());
        parts.extend(attention(shape, layer, Input::Region, true));
        parts.extend(after(index).then(norm));
        parts.push(add_residual(shape, layer.output_bias));
    }
    parts.push(norm());
    parts.extend(mlp(Input::Region, true));
    parts.extend(after(sublayers - 1).then(norm));
    parts.push(add_residual(shape, mlp_bias));
    parts
}
