//! Mixtures of experts: router, dispatch, the experts' matrices as grouped products, combination.

use crate::elementwise::activation;
use crate::feed_forward::{columns, feed_forward};
use crate::linear::{grouped, leave, replicated};
use crate::part::{Part, Role};
use crate::shape::Shape;
use crate::step::Step;
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::experts::{Gate, Move, Visits, nodes_of_a_token};
use trainwright_spec::model::Experts;
use trainwright_spec::plan::Piece;
use trainwright_spec::program::{Axis, CollectiveCall, Does, Module, Value};
use trainwright_spec::stack::ExpertGates;
use trainwright_spec::tensor::Input;
use trainwright_spec::units::Bytes;

/// The parts of a mixture of experts.
///
/// Of F · E neighbouring ranks each holds 1/F of 1/E of the experts. Where the expert-tensor ranks are the tensor axis's
/// and have the same tokens (they always do without sequence parallelism; with it they gather them if the experts
/// are not spread), the layer is one region of the tensor axis, left by summing the ranks' outputs. Elsewhere every rank
/// dispatches different tokens, and shared experts are a region by themselves.
pub(crate) fn experts(shape: &Shape, experts: &Experts) -> Vec<Part> {
    let region = is_region(shape);
    let visits = visits(shape, experts, region);
    let moves = shape.routing.dispatcher().moves(&visits);
    let output = shape.activations(shape.tokens() * shape.hidden);
    let width = experts.expert.width.div_ceil(shape.mesh.expert_tensor());

    let mut parts = router(shape, experts);
    let mut dispatch = Part::default();
    let mut enter = Part::default();
    if region {
        leave(shape, output, &mut enter);
    }
    dispatch.forward = [enter.backward, there(shape, "dispatch", &moves, Weighed::No)].concat();
    dispatch.backward = [back(shape, "dispatch", &moves), enter.forward].concat();
    parts.push(dispatch.named(Module::Dispatch));

    let count = experts.count / visits.expert;
    let rows = visits.rows.div_ceil(count);
    let grouped = |module, inner: usize, outer: usize| {
        let mut part = grouped(shape, module, count, rows, [inner, outer]);
        // The products of frozen weights keep nothing.
        if shape.adapters.is_none() {
            part.kept = shape.operands(visits.rows * inner);
        }
        part
    };
    parts
        .push(grouped("expert fc1", shape.hidden, columns(&experts.expert) * width).named(Module::ExpertFc1));
    parts.push(expert_activation(shape, experts, visits.rows, width).named(Module::ExpertActivation));
    let mut second = grouped("expert fc2", width, shape.hidden);
    second.join(Piece::Activation, Role::Reads, second.kept);
    parts.push(second.named(Module::ExpertFc2));
    if let Some(shared) = &experts.shared {
        let input = if region { Input::Shared } else { Input::Region };
        let mut shared = feed_forward(shape, shared, input, !region);
        let kept = shared[0].kept;
        shared[0].join(Piece::Norm, Role::Reads, kept);
        parts.extend(shared);
    }
    let (weighed, kept) = match shape.stack.expert_gates {
        ExpertGates::Combine => (Weighed::Yes, weighed(&moves)),
        ExpertGates::Activation => (Weighed::No, Bytes::ZERO),
    };
    let mut combine = Part { forward: back(shape, "combine", &moves), kept, ..Part::default() };
    if region {
        leave(shape, output, &mut combine);
    }
    combine.backward.extend(there(shape, "combine", &moves, weighed));
    parts.push(combine.named(Module::Combine));
    parts
}

/// Whether the layer is one region of the tensor axis.
fn is_region(shape: &Shape) -> bool {
    let mesh = shape.mesh;
    mesh.expert_tensor() == mesh.tensor && (mesh.expert == 1 || !shape.sequence_parallel)
}

/// Where a microbatch's tokens go.
fn visits(shape: &Shape, experts: &Experts, region: bool) -> Visits {
    let (mesh, routing) = (shape.mesh, shape.routing);
    let tokens = if region { shape.tokens() } else { shape.local_tokens() };
    let expert_tensor = if region { 1 } else { mesh.expert_tensor() };
    let copies = (tokens * experts.per_token) as f64;
    let of_ranks = routing.spread(experts, shape.layer, mesh.expert);
    let nodes = mesh.expert / mesh.expert_inner;
    let of_nodes = routing.spread(experts, shape.layer, nodes);
    // What is sent to the same experts together: tokens, or what the group has of a sentence.
    let together = match routing.gate {
        Gate::Token => 1,
        Gate::Sentence => {
            let sharing = if region { mesh.context } else { mesh.tensor * mesh.context };
            tokens.div_ceil(shape.batch) * sharing.min(mesh.expert * expert_tensor)
        }
    };
    let rows = (copies * expert_tensor as f64 * of_ranks.busiest).ceil() as usize;
    // A node gets a token once at most.
    let once = (nodes_of_a_token(experts, nodes) * of_nodes.busiest).min(nodes as f64);
    let once_a_rank = (nodes_of_a_token(experts, mesh.expert) * of_ranks.busiest).min(mesh.expert as f64);
    Visits {
        token: shape.activations(shape.hidden),
        tokens,
        sent: (copies * of_ranks.mean).ceil() as usize,
        rows: rows.next_multiple_of(together),
        node_rows: tokens as f64 * once,
        rank_rows: tokens as f64 * once_a_rank,
        expert: mesh.expert,
        inner: mesh.expert_inner,
        expert_tensor,
    }
}

/// The router's product, and its softmax and choice of experts in fp32: over tokens, or over the means of sentences.
fn router(shape: &Shape, experts: &Experts) -> Vec<Part> {
    let scores_of = |rows: usize| {
        let scores = Bytes::new(4.0 * (rows * experts.count) as f64);
        let step = vec![Step::reduction("top-k", 2.0 * scores, scores)];
        Part { forward: step.clone(), backward: step, kept: scores, ..Part::default() }
    };
    match shape.routing.gate {
        Gate::Token => {
            vec![
                replicated(&shape.base(), "router", shape.hidden, experts.count).named(Module::Router),
                scores_of(shape.local_tokens()).named(Module::TopK),
            ]
        }
        Gate::Sentence => {
            let means = Shape { sequence: 1, context: 1, sequence_parallel: false, ..*shape };
            vec![
                mean_of_tokens(shape),
                replicated(&means.base(), "router", shape.hidden, experts.count),
                scores_of(shape.batch),
            ]
        }
    }
}

/// The mean of each sentence's tokens, summed over the ranks that have parts of it.
fn mean_of_tokens(shape: &Shape) -> Part {
    let tokens = shape.activations(shape.local_tokens() * shape.hidden);
    let means = shape.activations(shape.batch * shape.hidden);
    let does = Does::Move(Value::Output);
    let sum = |axis| Step::collective("sum of tokens", CollectiveKind::AllReduce, axis, means, does);
    let parts = [(Axis::Tensor, shape.sequence_parallel), (Axis::Context, shape.mesh.context > 1)];
    let sums = parts.into_iter().filter(|(_, divided)| *divided).map(|(axis, _)| sum(axis));
    Part {
        forward: std::iter::once(Step::reduction("mean of tokens", tokens, means)).chain(sums).collect(),
        backward: vec![Step::streaming("mean of tokens", means, tokens)],
        ..Part::default()
    }
}

/// The activation of experts over `rows` rows and `width` columns.
///
/// Where its inputs are kept in smaller elements, forward writes them beside its output and backward reads them.
fn expert_activation(shape: &Shape, experts: &Experts, rows: usize, width: usize) -> Part {
    let mut part = activation(shape, &experts.expert, rows, width);
    if let Some(element) = &shape.stack.kept_expert_activation_element
        && shape.precision.quantisation().is_some()
    {
        let inputs = columns(&experts.expert) * rows * width;
        let (wide, kept) = (shape.activations(inputs), element.value * inputs as f64);
        part.forward[0] = part.forward[0].moving(Bytes::ZERO, kept);
        part.backward[0] = part.backward[0].moving(kept - wide, Bytes::ZERO);
        part.kept += kept - wide;
    }
    part
}

/// Whether copies are those of outputs, whose gradients and those of the gates both come from them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Weighed {
    Yes,
    No,
}

/// From a rank's tokens to the experts' rows, in the precision that the software sends them in.
fn there(shape: &Shape, module: &'static str, moves: &[Move], weighed: Weighed) -> Vec<Step> {
    let element = shape.activations(1);
    let sent = shape.stack.dispatch_element.as_ref().map_or(element, |size| size.value) / element;
    let mut gathered = Bytes::ZERO;
    let step = |each: &Move| match *each {
        Move::Copy { tokens, copies } => {
            let outputs = if weighed == Weighed::Yes { tokens } else { Bytes::ZERO };
            let copy = Step::streaming(module, outputs + copies, copies).doing(Does::Arrange);
            copy.holding(std::mem::take(&mut gathered))
        }
        Move::Sort(rows) => Step::streaming(module, rows, rows).holding(rows).doing(Does::Arrange),
        Move::Tokens { axis, bytes, over_nodes } => {
            gathered = bytes;
            tokens_step(shape, module, axis, (sent * bytes, over_nodes.map(|bytes| sent * bytes)))
        }
        Move::Exchange { kind, axis, bytes } => {
            gathered = bytes;
            Step::collective(module, kind, axis, sent * bytes, Does::Route)
        }
    };
    moves.iter().map(step).collect()
}

/// The moves of `there` in the other direction.
fn back(shape: &Shape, module: &'static str, moves: &[Move]) -> Vec<Step> {
    let step = |each: &Move| match *each {
        Move::Copy { tokens, copies } => Step::streaming(module, copies, tokens).doing(Does::Arrange),
        Move::Sort(rows) => Step::streaming(module, rows, rows).holding(rows).doing(Does::Arrange),
        Move::Tokens { axis, bytes, over_nodes } => tokens_step(shape, module, axis, (bytes, over_nodes)),
        Move::Exchange { kind, axis, bytes } => {
            Step::collective(module, Move::reversed(kind), axis, bytes, Does::Route)
        }
    };
    moves.iter().rev().map(step).collect()
}

/// An exchange of tokens by the kernels that the stack has for it.
fn tokens_step(
    shape: &Shape,
    module: &'static str,
    axis: Axis,
    (bytes, over_nodes): (Bytes, Option<Bytes>),
) -> Step {
    let step = Step::collective(module, CollectiveKind::AllToAll, axis, bytes, Does::Route);
    match &shape.stack.dispatch_multiprocessors {
        Some(count) => step.called(CollectiveCall::TokenKernel {
            multiprocessors: count.value,
            over_nodes: over_nodes.map(|bytes| bytes.get().ceil() as u64),
            rate: shape.stack.dispatch_rate.as_ref().map(|rate| rate.value.get().round() as u64),
        }),
        None => step,
    }
}

/// The experts' outputs as they are weighed, kept for the gradient of the gates.
fn weighed(moves: &[Move]) -> Bytes {
    let copies = |each: &Move| if let Move::Copy { copies, .. } = each { *copies } else { Bytes::ZERO };
    moves.iter().map(copies).sum()
}
