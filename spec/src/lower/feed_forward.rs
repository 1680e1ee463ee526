//! Feed-forward layers, dense and of experts.

use super::elementwise::activation;
use super::part::{Input, Part, Role, Shape, Step, column, grouped, leave, replicated, row};
use crate::model::{Experts, FeedForward};
use crate::plan::Piece;
use crate::units::Bytes;

/// The parts of a dense feed-forward layer. `leaves` as for `row`.
pub(crate) fn feed_forward(shape: &Shape, mlp: &FeedForward, input: Input, leaves: bool) -> Vec<Part> {
    let own = shape.share(mlp.width);
    let mut second = row(shape, "fc2", leaves, own, shape.hidden);
    second.join(Piece::Activation, Role::Reads, second.kept);
    vec![
        column(shape, "fc1", input, [shape.hidden, columns(mlp) * own], mlp.bias),
        activation(shape, mlp, shape.tokens(), own),
        second,
    ]
}

/// The parts of a mixture of experts: router, dispatch, the experts' matrices as grouped products, combination.
///
/// Every rank of the tensor axis holds 1/t of each expert, and tokens spread evenly over the experts.
pub(crate) fn experts(shape: &Shape, experts: &Experts) -> Vec<Part> {
    let tokens = shape.tokens();
    let visits = tokens * experts.per_token;
    let rows = visits.div_ceil(experts.count);
    let own = shape.share(experts.expert.width);
    let whole = shape.activations(tokens * shape.hidden);
    let moved = shape.activations(visits * shape.hidden);

    let mut parts =
        vec![replicated(&shape.base(), "router", shape.hidden, experts.count), top_k(shape, experts)];
    // Entering the region: the tokens are gathered, then copied to where their experts read them.
    let mut dispatch = Part {
        forward: vec![Step::streaming("dispatch", moved, moved)],
        backward: vec![Step::streaming("dispatch", moved, whole)],
        kept: Bytes::ZERO,
        ..Part::default()
    };
    let mut enter = Part::default();
    leave(shape, whole, &mut enter);
    dispatch.forward.splice(0..0, enter.backward);
    dispatch.backward.extend(enter.forward);
    parts.push(dispatch);

    let grouped = |module, inner: usize, outer: usize| {
        let mut part = grouped(shape, module, experts.count, rows, [inner, outer]);
        part.kept = shape.operands(visits * inner);
        part
    };
    parts.push(grouped("expert fc1", shape.hidden, columns(&experts.expert) * own));
    parts.push(activation(shape, &experts.expert, visits, own));
    let mut second = grouped("expert fc2", own, shape.hidden);
    second.join(Piece::Activation, Role::Reads, second.kept);
    parts.push(second);
    if let Some(shared) = &experts.shared {
        let mut shared = feed_forward(shape, shared, Input::Shared, false);
        shared[0].join(Piece::Norm, Role::Reads, Bytes::ZERO);
        parts.extend(shared);
    }
    let mut combine = Part {
        forward: vec![Step::streaming("combine", moved, whole)],
        backward: Vec::new(),
        // The experts' outputs, for the gradient of the gates.
        kept: moved,
        ..Part::default()
    };
    leave(shape, whole, &mut combine);
    combine.backward.push(Step::streaming("combine", whole + moved, moved));
    parts.push(combine);
    parts
}

/// The router's softmax and choice of experts, in fp32.
fn top_k(shape: &Shape, experts: &Experts) -> Part {
    let scores = Bytes::new(4.0 * (shape.own_tokens() * experts.count) as f64);
    Part {
        forward: vec![Step::reduction("top-k", 2.0 * scores, scores)],
        backward: vec![Step::reduction("top-k", 2.0 * scores, scores)],
        kept: scores,
        ..Part::default()
    }
}

/// Matrices of the first layer: a gated one has two side by side.
fn columns(mlp: &FeedForward) -> usize {
    if mlp.gated { 2 } else { 1 }
}
