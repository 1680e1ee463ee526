//! Dense feed-forward layers.

use super::elementwise::activation;
use super::part::{Input, Part, Shape, column, row};
use crate::model::FeedForward;

/// The parts of a dense feed-forward layer. `leaves` as for `row`.
pub(crate) fn feed_forward(shape: &Shape, mlp: &FeedForward, input: Input, leaves: bool) -> Vec<Part> {
    let own = shape.share(mlp.width);
    vec![
        column(shape, "fc1", input, [shape.hidden, columns(mlp) * own], mlp.bias),
        activation(shape, mlp, shape.tokens(), own),
        row(shape, "fc2", leaves, own, shape.hidden),
    ]
}

/// Matrices of the first layer: a gated one has two side by side.
pub(crate) fn columns(mlp: &FeedForward) -> usize {
    if mlp.gated { 2 } else { 1 }
}
