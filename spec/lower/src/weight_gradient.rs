//! The steps that make the gradient of a weight.

use crate::shape::Shape;
use crate::step::{Half, Step};
use trainwright_spec::program::Does;

/// The product that makes a weight's gradient, and the pass that adds it to the accumulated one unless the product
/// does so itself.
pub(crate) fn weight_gradient(
    shape: &Shape,
    module: &'static str,
    count: usize,
    size: [usize; 3],
) -> impl Iterator<Item = Step> {
    let product = Step::gemm(module, count, size, shape.precision.of_backward());
    let steps = match shape.stack.fused_gradient_accumulation {
        true => vec![product.added_to(shape.gradient_bytes())],
        false => vec![product, accumulation(shape, count * size[0] * size[1])],
    };
    steps.into_iter().map(of_weight)
}

/// The pass that adds a gradient to the accumulated one.
pub(crate) fn accumulation(shape: &Shape, elements: usize) -> Step {
    let (gradient, elements) = (shape.gradient_bytes(), elements as f64);
    let read = (shape.precision.storage_bytes() + gradient) * elements;
    Step::streaming("accumulate gradient", read, gradient * elements)
}

/// A step of the half of backward that makes weights' gradients.
pub(crate) fn of_weight(step: Step) -> Step {
    let does = if step.is_kernel() { Does::WeightGradient } else { step.does };
    Step { does, half: Half::Weight, ..step }
}
