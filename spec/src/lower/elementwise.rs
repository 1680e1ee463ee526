//! Norms, activations, dropout and residual additions: bound by memory.

use super::part::{Part, Shape, Step};
use crate::model::FeedForward;
use crate::units::Bytes;

/// A norm over the last dim of this rank's `tokens`; it keeps its input.
pub(crate) fn norm(shape: &Shape, tokens: usize, width: usize) -> Part {
    let size = shape.activations(tokens * width);
    Part {
        forward: vec![Step::streaming("norm", size, size)],
        // Backward reads the output's gradient, the input, and the gradient that came past the block.
        backward: vec![Step::streaming("norm", 3.0 * size, size)],
        kept: size,
        core: None,
    }
}

/// Bias, dropout and the addition of the residual; it keeps the dropout's mask, a byte per element.
pub(crate) fn add_residual(shape: &Shape) -> Part {
    let elements = shape.own_tokens() * shape.hidden;
    let size = shape.activations(elements);
    let mask = if shape.dropout { Bytes::new(elements as f64) } else { Bytes::ZERO };
    let forward = match (shape.stack.fused_elementwise, shape.dropout) {
        (true, _) => vec![Step::streaming("add residual", 2.0 * size, size + mask)],
        (false, true) => vec![
            Step::streaming("bias", size, size),
            Step::streaming("dropout", size, size + mask),
            Step::streaming("add residual", 2.0 * size, size),
        ],
        (false, false) => {
            vec![Step::streaming("bias", size, size), Step::streaming("add residual", 2.0 * size, size)]
        }
    };
    let backward = match shape.dropout {
        true => vec![Step::streaming("dropout", size + mask, size)],
        false => Vec::new(),
    };
    Part { forward, backward, kept: mask, core: None }
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
        core: None,
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
        }
    }
    part
}
