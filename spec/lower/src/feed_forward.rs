//! Dense feed-forward layers.

use crate::elementwise::activation;
use crate::linear::{column, row};
use crate::part::{Part, Role};
use crate::shape::Shape;
use trainwright_spec::model::FeedForward;
use trainwright_spec::plan::Piece;
use trainwright_spec::program::Module;
use trainwright_spec::tensor::Input;

/// The parts of a dense feed-forward layer. `leaves` as for `row`.
pub(crate) fn feed_forward(shape: &Shape, mlp: &FeedForward, input: Input, leaves: bool) -> Vec<Part> {
    let width = shape.share(mlp.width);
    let mut second = row(shape, "fc2", leaves, width, shape.hidden);
    second.join(Piece::Activation, Role::Reads, second.kept);
    let first = column(shape, "fc1", input, [shape.hidden, columns(mlp) * width], mlp.bias);
    let between = activation(shape, mlp, shape.tokens(), width);
    vec![first.named(Module::Fc1), between.named(Module::Activation), second.named(Module::Fc2)]
}

/// Matrices of the first layer: a gated one has two side by side.
pub(crate) fn columns(mlp: &FeedForward) -> usize {
    if mlp.gated { 2 } else { 1 }
}
