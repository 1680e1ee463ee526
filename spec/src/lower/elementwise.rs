//! Norms, activations, dropout and residual additions: bound by memory.

use super::part::{Again, Part, Role, Shape, Step};
use crate::model::FeedForward;
use crate::plan::Piece;
use crate::stack::Fusion;
use crate::units::Bytes;

/// A norm over the last dim of this rank's `tokens`; it keeps its input, as separate kernels also what is normalised
/// but has no gain yet.
pub(crate) fn norm(shape: &Shape, tokens: usize, width: usize) -> Part {
    let size = shape.activations(tokens * width);
    // The gradients of gain and bias and that of the input each read the input and the output's gradient.
    let weight_gradient = Step::reduction("norm weight gradient", 2.0 * size, Bytes::ZERO);
    let gradient = Step::reduction("norm", 2.0 * size, size);
    match shape.stack.norms {
        Fusion::Fused => Part {
            forward: vec![Step::reduction("norm", size, size)],
            backward: vec![weight_gradient, gradient],
            kept: size,
            ..Part::default()
        },
        Fusion::Separate => Part {
            forward: vec![
                Step::reduction("norm mean", size, Bytes::ZERO),
                Step::reduction("norm variance", size, Bytes::ZERO),
                Step::streaming("norm", size, size),
                Step::streaming("norm gain", size, size),
            ],
            backward: vec![
                weight_gradient,
                Step::streaming("norm gain", size, size),
                Step::reduction("norm sums", 2.0 * size, Bytes::ZERO),
                Step::streaming("norm", 2.0 * size, size),
            ],
            kept: 2.0 * size,
            ..Part::default()
        },
    }
}

/// Bias, dropout and the addition of the residual; it keeps the dropout's mask, a byte per element. Backward sums the
/// bias's gradient, and adds the gradient that came past the sublayer to the one that came through it.
pub(crate) fn add_residual(shape: &Shape, bias: bool) -> Part {
    let elements = shape.own_tokens() * shape.hidden;
    let size = shape.activations(elements);
    let mask = if shape.dropout { Bytes::new(elements as f64) } else { Bytes::ZERO };
    let forward = match (shape.stack.fused_elementwise, shape.dropout) {
        (true, _) => vec![Step::streaming("add residual", 2.0 * size, size + mask)],
        (false, dropout) => {
            let bias = bias.then(|| Step::streaming("bias", size, size));
            let dropout = dropout.then(|| Step::streaming("dropout", size, size + mask));
            let add = Step::streaming("add residual", 2.0 * size, size);
            bias.into_iter().chain(dropout).chain([add]).collect()
        }
    };
    let mut backward = vec![Step::streaming("add gradient", 2.0 * size, size)];
    if shape.dropout {
        backward.push(Step::streaming("dropout", size + mask, size));
    }
    if bias {
        backward.push(Step::reduction("bias gradient", size, Bytes::ZERO));
    }
    Part { forward, backward, kept: mask, ..Part::default() }
}

/// The nonlinearity between the matrices of a feed-forward layer, over `rows` of this rank's `width` columns; it
/// keeps its input, and a gated one both halves of it.
pub(crate) fn activation(shape: &Shape, mlp: &FeedForward, rows: usize, width: usize) -> Part {
    let size = shape.activations(rows * width);
    let inputs = if mlp.gated { 2.0 } else { 1.0 };
    let mut part = Part {
        forward: vec![Step::streaming("activation", inputs * size, size)],
        backward: vec![Step::streaming("activation", (inputs + 1.0) * size, inputs * size)],
        kept: inputs * size,
        again: vec![Again { piece: Piece::Activation, role: Role::First, dropped: Bytes::ZERO }],
        ..Part::default()
    };
    if !shape.stack.fused_elementwise {
        if mlp.bias {
            part.forward.insert(0, Step::streaming("bias", inputs * size, inputs * size));
        }
        if mlp.gated {
            // The activation's output is stored before it is multiplied by the gate, and kept for that product.
            part.forward.push(Step::streaming("gate", 2.0 * size, size));
            part.backward.push(Step::streaming("gate", 3.0 * size, 2.0 * size));
            part.kept += size;
            part.again[0].dropped = size;
        }
    }
    part
}
