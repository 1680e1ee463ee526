//! Norms, activations, dropout and residual additions: bound by memory.

use crate::part::{Again, Part, Role};
use crate::shape::Shape;
use crate::step::Step;
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::model::{FeedForward, Norm};
use trainwright_spec::plan::Piece;
use trainwright_spec::program::{Does, Grid};
use trainwright_spec::stack::Fusion;
use trainwright_spec::units::Bytes;

/// A norm over the last dim of this rank's `tokens`; it keeps its input, as separate kernels also what is normalised
/// but has no gain yet.
pub(crate) fn norm(shape: &Shape, tokens: usize, width: usize) -> Part {
    let size = shape.activations(tokens * width);
    // The gradients of gain and bias and that of the input each read the input and the output's gradient.
    let weight_gradient =
        Step::reduction("norm weight gradient", 2.0 * size, Bytes::ZERO).doing(Does::VectorGradient);
    let gradient = Step::reduction("norm", 2.0 * size, size);
    match shape.stack.norms {
        Fusion::Fused => Part {
            forward: vec![Step::reduction("norm", size, size)],
            backward: vec![weight_gradient, gradient],
            kept: size,
            ..Part::default()
        },
        Fusion::Separate if shape.stack.norm_element.is_some() => wide_norm(shape, tokens * width),
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
            made: size,
            ..Part::default()
        },
    }
}

/// A norm of separate kernels that work on wider elements than activations have: casts around it, squares, their mean,
/// the product with its root, and the gain. It keeps its input as it is and wide, and what has no gain yet.
fn wide_norm(shape: &Shape, elements: usize) -> Part {
    let size = shape.activations(elements);
    let element = shape.stack.norm_element.as_ref().map_or(Bytes::ZERO, |element| element.value);
    let wide = element * elements as f64;
    Part {
        forward: vec![
            Step::streaming("norm cast", size, wide),
            Step::streaming("norm squares", wide, wide),
            Step::reduction("norm mean", wide, Bytes::ZERO),
            Step::streaming("norm", wide, wide),
            Step::streaming("norm cast", wide, size),
            Step::streaming("norm gain", size, size),
        ],
        backward: vec![
            Step::reduction("norm weight gradient", 2.0 * size, Bytes::ZERO).doing(Does::VectorGradient),
            Step::streaming("norm gain", size, size),
            Step::streaming("norm cast", size, wide),
            Step::reduction("norm sums", 2.0 * wide, Bytes::ZERO),
            Step::streaming("norm", 2.0 * wide, wide),
            Step::streaming("norm squares", 2.0 * wide, wide),
            Step::streaming("norm cast", wide, size),
        ],
        kept: 2.0 * size + wide,
        made: size + wide,
        ..Part::default()
    }
}

/// A norm over the hidden dim. Where ranks hold parts of it they sum two fp32 numbers per token, both ways: Σ x and
/// Σ x² forward, and in backward the sums of the gradient and of its product with the normalised input; a root mean
/// square needs the second of each (Xu et al. 2021, arXiv 2104.05343, section 3.2.2). A fused kernel is preceded by one
/// that makes these sums; separate kernels make them anyway.
pub(crate) fn hidden_norm(shape: &Shape, kind: Norm) -> Part {
    let (tokens, width) = (shape.local_tokens(), shape.local_hidden());
    let mut part = norm(shape, tokens, width);
    let Some(axis) = shape.scheme.hidden_axis() else { return part };
    let numbers = if kind == Norm::RmsNorm { 1 } else { 2 };
    let bytes = Bytes::new(4.0 * (numbers * tokens) as f64);
    let does = Does::Grid(Grid::SumStatistics);
    let exchange = Step::collective("reduce norm statistics", CollectiveKind::AllReduce, axis, bytes, does);
    match shape.stack.norms {
        Fusion::Fused => {
            let read = shape.activations(tokens * width);
            let statistics = Does::Grid(Grid::Statistics);
            let sum = |read| [Step::reduction("norm statistics", read, bytes).doing(statistics), exchange];
            part.forward.splice(0..0, sum(read));
            part.backward.splice(1..1, sum(2.0 * read));
        }
        // Behind the reductions: mean and variance, and the sums of backward.
        Fusion::Separate => {
            part.forward.insert(2, exchange);
            part.backward.insert(3, exchange);
        }
    }
    part
}

/// Bias, dropout and the addition of the residual; it keeps the dropout's mask, a byte per element. Backward sums the
/// bias's gradient, and adds the gradient that came past the sublayer to the one that came through it.
pub(crate) fn add_residual(shape: &Shape, bias: bool) -> Part {
    let elements = shape.local_tokens() * shape.local_hidden();
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
        backward.push(Step::reduction("bias gradient", size, Bytes::ZERO).doing(Does::VectorGradient));
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
