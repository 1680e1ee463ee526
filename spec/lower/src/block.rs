//! A block as the list of its parts.

use crate::attention::attention;
use crate::elementwise::{add_residual, hidden_norm};
use crate::experts::experts;
use crate::feed_forward::feed_forward;
use crate::part::{Part, Role};
use crate::shape::Shape;
use trainwright_spec::model::{Block, Mlp};
use trainwright_spec::plan::Piece;
use trainwright_spec::program::Module;
use trainwright_spec::tensor::Input;
use trainwright_spec::units::Bytes;

/// The parts of a block in the order of forward. Norms come before what they feed; a post-norm block has the same
/// parts in another order and the same costs.
pub(crate) fn block_parts(shape: &Shape, block: &Block) -> Vec<Part> {
    let norm = || hidden_norm(shape, block.norm);
    let mlp = |input, leaves| {
        let (mut parts, piece) = match &block.mlp {
            Mlp::Dense(mlp) => (feed_forward(shape, mlp, input, leaves), Piece::Mlp),
            Mlp::Experts(layer) => (experts(shape, layer), Piece::Experts),
        };
        from_its_input(&mut parts, piece);
        read_norm(&mut parts);
        parts
    };
    // The next products read the output of this norm.
    let norm_before = |role| {
        let mut part = norm();
        part.join(Piece::Norm, role, Bytes::ZERO);
        part
    };
    let attention = |layer, leaves| {
        let mut parts = attention(shape, layer, Input::Region, leaves);
        read_norm(&mut parts);
        parts
    };
    let mlp_bias = match &block.mlp {
        Mlp::Dense(mlp) => mlp.bias,
        Mlp::Experts(_) => false,
    };
    let mut parts: Vec<Part> = Vec::new();
    if block.parallel {
        parts.push(norm_before(Role::First));
        parts.extend((1..block.norms).map(|_| norm_before(Role::Runs)));
        parts.extend(attention(&block.attention, false));
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
        parts.push(norm_before(Role::First).named(Module::Norm(index)));
        parts.extend(attention(layer, true));
        parts.extend(after(index).then(norm));
        parts.push(add_residual(shape, layer.output_bias).named(Module::Residual(index)));
    }
    parts.push(norm_before(Role::First).named(Module::Norm(sublayers - 1)));
    parts.extend(mlp(Input::Region, true));
    parts.extend(after(sublayers - 1).then(norm));
    parts.push(add_residual(shape, mlp_bias).named(Module::Residual(sublayers - 1)));
    parts
}

/// Makes all of `parts` one piece that keeps only the first one's input.
fn from_its_input(parts: &mut [Part], piece: Piece) {
    for (index, part) in parts.iter_mut().enumerate() {
        match index {
            0 => part.join(piece, Role::First, Bytes::ZERO),
            _ => part.join(piece, Role::Runs, part.kept),
        }
    }
}

/// The first of `parts` reads a norm's output, and keeps it unless an earlier part does.
fn read_norm(parts: &mut [Part]) {
    if let Some(first) = parts.first_mut() {
        first.join(Piece::Norm, Role::Reads, first.kept);
    }
}
