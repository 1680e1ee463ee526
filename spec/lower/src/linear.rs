//! Linear layers as parts: the tensor scheme's steps, quantisation of operands, and the gradient of the weight.

use crate::adapters::{Weights, beside, freeze};
use crate::part::Part;
use crate::shape::Shape;
use crate::step::{Half, Step};
use crate::weight_gradient::{accumulation, of_weight, weight_gradient};
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::precision::{Precision, Quantisation};
use trainwright_spec::program::{Axis, Does, Grid, Value};
use trainwright_spec::tensor::{self, Input, LayerStep, Linear, Output};
use trainwright_spec::units::Bytes;

/// A product with a weight that is split by column: from (tokens × `inner`) to this rank's (tokens × `width`).
pub(crate) fn column(
    shape: &Shape,
    module: &'static str,
    input: Input,
    [inner, width]: [usize; 2],
    bias: bool,
) -> Part {
    let mut part = linear(shape, module, tensor::Role::Column(input), [inner, width * shape.parts.width]);
    part.backward.extend(bias.then(|| bias_gradient(shape, width)));
    part
}

/// A product with a weight that is split by row: from this rank's (tokens × `width`) to (tokens × `outer`).
pub(crate) fn row(shape: &Shape, module: &'static str, leaves: bool, width: usize, outer: usize) -> Part {
    let output = if leaves { Output::Leaves } else { Output::Added };
    linear(shape, module, tensor::Role::Row(output), [width * shape.parts.width, outer])
}

/// The product with the output embedding: from (tokens × `inner`) to this rank's (tokens × `width`) logits.
pub(crate) fn head(shape: &Shape, [inner, width]: [usize; 2], bias: bool) -> Part {
    let mut part = linear(shape, "logits", tensor::Role::Head, [inner, width * shape.parts.width]);
    part.backward.extend(bias.then(|| bias_gradient(shape, width)));
    part
}

fn bias_gradient(shape: &Shape, width: usize) -> Step {
    let gradient = shape.activations(shape.tokens() * width);
    Step::reduction("bias gradient", gradient, Bytes::ZERO).doing(Does::VectorGradient)
}

/// A linear layer as the scheme runs it; backward makes the input's gradient first, then the weight's.
///
/// Below 16 bits the input is made an operand before it is gathered, as what is gathered for a first product is its
/// input, and the output's gradient after it has come together.
fn linear(shape: &Shape, module: &'static str, role: tensor::Role, [inner, outer]: [usize; 2]) -> Part {
    let layer = Linear { tokens: shape.all_tokens(), inner, outer, role };
    let steps = shape.scheme.linear(&shape.grid, &layer);
    let gathered =
        if matches!(role, tensor::Role::Row(_)) { shape.activations(1) } else { shape.operands(1) };
    let [forward, backward] =
        [shape.precision, shape.precision.of_backward()].map(|product| Numbers { module, product, gathered });
    let mut part = Part { kept: shape.operands(steps.kept), ..Part::default() };
    if role != tensor::Role::Column(Input::Shared) {
        part.forward.extend(quantise(shape, forward.product, steps.kept));
    }
    part.forward.extend(lowered(shape, forward, &steps.forward, [Value::Input, Value::Output]));
    let input_gradient =
        lowered(shape, backward, &steps.input_gradient, [Value::OutputGradient, Value::InputGradient]);
    match steps.weight_gradient[..] {
        [LayerStep::Product { size, held }] => {
            let [inner, outer, tokens] = size;
            let is_waited = |step: &&Step| !step.is_kernel() && !step.is_beside_next();
            let before = input_gradient.iter().take_while(is_waited).count();
            part.backward.extend(&input_gradient[..before]);
            part.backward.extend(quantise(shape, backward.product, tokens * outer));
            part.backward.extend(&input_gradient[before..]);
            part.backward.extend(restore(shape, tokens * inner));
            let held = shape.gathered_beside(gathered) * held as f64;
            part.backward.extend(weight_gradient(shape, module, 1, size).map(|step| step.holding(held)));
            part.quantised_weights = quantised(shape, 1, inner, outer);
        }
        // What is summed over ranks first cannot be added to the accumulated gradient by the product itself.
        _ => {
            let weight_gradient =
                lowered(shape, backward, &steps.weight_gradient, [Value::Input, Value::WeightGradient]);
            let accumulation = accumulation(shape, steps.weight);
            part.backward.extend(input_gradient);
            part.backward.extend(weight_gradient.into_iter().chain([accumulation]).map(of_weight));
        }
    }
    read_by_weight_gradient(&mut part.backward);
    let narrow = role != tensor::Role::Head;
    let tokens = shape.all_tokens();
    freeze(shape, &mut part, &Weights { module, tokens, elements: steps.weight, narrow });
    let shared = role == tensor::Role::Column(Input::Shared);
    if shared && !beside(shape, module).is_empty() && beside(shape, "qkv").is_empty() {
        // Who shares the input does not keep it.
        part.kept += shape.activations(tokens * inner);
    }
    part
}

/// A collective of backward for which the first product does not wait brings the input that the product of the weight's
/// gradient reads. It belongs to that half of backward, unless kernels stand before it.
fn read_by_weight_gradient(backward: &mut [Step]) {
    let is_product = |step: &Step| step.is_kernel() && step.does != Does::Quantise;
    let product = backward.iter().position(is_product).unwrap_or(backward.len());
    let kernel = backward.iter().position(Step::is_kernel).unwrap_or(backward.len());
    for (index, step) in backward[..product].iter_mut().enumerate().filter(|(_, step)| step.is_beside_next())
    {
        step.does = match step.does {
            Does::Move(_) => Does::Move(Value::Input),
            does => does,
        };
        if index < kernel && matches!(step.does, Does::Move(_)) {
            step.half = Half::Weight;
        }
    }
}

/// What a layer's products compute in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Numbers {
    /// Name of their spans.
    pub module: &'static str,
    /// Precision of their operands.
    pub product: Precision,
    /// Size of an element of gathered and of held tensors.
    pub gathered: Bytes,
}

/// The steps of a scheme as steps of a part. Collectives move the first of the two values before the first product, and the
/// second one after it.
pub(crate) fn lowered(
    shape: &Shape,
    numbers: Numbers,
    steps: &[LayerStep],
    [before, after]: [Value; 2],
) -> Vec<Step> {
    let gathered = |elements| numbers.gathered * elements as f64;
    let is_product = |step: &LayerStep| !matches!(step, LayerStep::Collective { .. });
    let first_product = steps.iter().position(is_product).unwrap_or(steps.len());
    let lowered = |(index, step): (usize, &LayerStep)| match *step {
        LayerStep::Collective { name, kind, axis, elements, beside_next } => {
            let gathers = kind == CollectiveKind::AllGather;
            let bytes = if gathers { gathered(elements) } else { shape.activations(elements) };
            let does = match kind {
                CollectiveKind::Broadcast => Does::Grid(Grid::Broadcast),
                CollectiveKind::Reduce => Does::Grid(Grid::Reduce),
                _ => Does::Move(if index < first_product { before } else { after }),
            };
            Step::collective(name, kind, axis, bytes, does).beside(beside_next)
        }
        LayerStep::Product { size, held } => {
            let does = if shape.parts.hidden > 1 { Does::Grid(Grid::Multiply) } else { Does::Run };
            let held = shape.gathered_beside(numbers.gathered) * held as f64;
            Step::gemm(numbers.module, 1, size, numbers.product).holding(held).doing(does)
        }
        LayerStep::Sum { parts, elements } => {
            Step::reduction("sum pieces", shape.activations(parts * elements), shape.activations(elements))
        }
    };
    steps.iter().enumerate().map(lowered).collect()
}

/// The end of a tensor-parallel region: the sum of the ranks' outputs, on every rank or scattered along the sequence.
pub(crate) fn leave(shape: &Shape, output: Bytes, part: &mut Part) {
    if shape.tensor == 1 {
        return;
    }
    let (forward, backward) = match shape.sequence_parallel {
        true => (CollectiveKind::ReduceScatter, Some(CollectiveKind::AllGather)),
        false => (CollectiveKind::AllReduce, None),
    };
    let step = |module, kind| Step::collective(module, kind, Axis::Tensor, output, Does::Route);
    part.forward.push(step("reduce output", forward));
    part.backward.extend(backward.map(|kind| step("gather gradient", kind)));
}

/// A product with a weight that every rank holds, over this rank's tokens.
pub(crate) fn replicated(shape: &Shape, module: &'static str, inner: usize, outer: usize) -> Part {
    products(shape, module, [1, shape.local_tokens()], [inner, outer], false)
}

/// A replicated product over an input that another product has quantised and keeps.
pub(crate) fn replicated_of_kept_input(
    shape: &Shape,
    module: &'static str,
    inner: usize,
    outer: usize,
) -> Part {
    let mut part = replicated(shape, module, inner, outer);
    part.forward.drain(..quantise(shape, shape.precision, shape.local_tokens() * inner).count());
    Part { kept: Bytes::ZERO, ..part }
}

/// `count` products of equal size, each of `rows` with a different weight of `inner` by `outer`.
pub(crate) fn grouped(
    shape: &Shape,
    module: &'static str,
    count: usize,
    rows: usize,
    widths: [usize; 2],
) -> Part {
    products(shape, module, [count, rows], widths, true)
}

/// `count` products of `rows` each; `narrow` says whether their weights, frozen, are stored in fewer bits.
fn products(
    shape: &Shape,
    module: &'static str,
    [count, rows]: [usize; 2],
    [inner, outer]: [usize; 2],
    narrow: bool,
) -> Part {
    let precision = shape.precision;
    let mut part = Part {
        kept: shape.operands(count * rows * inner),
        quantised_weights: quantised(shape, count, inner, outer),
        ..Part::default()
    };
    part.forward.extend(quantise(shape, precision, count * rows * inner));
    part.forward.push(Step::gemm(module, count, [rows, outer, inner], precision));
    part.backward.extend(quantise(shape, precision.of_backward(), count * rows * outer));
    part.backward.push(Step::gemm(module, count, [rows, inner, outer], precision.of_backward()));
    part.backward.extend(restore(shape, count * rows * inner));
    part.backward.extend(weight_gradient(shape, module, count, [inner, outer, rows]));
    let elements = count * inner * outer;
    freeze(shape, &mut part, &Weights { module, tokens: rows, elements, narrow });
    part
}

/// The kernels that make `elements` activations operands of products in `precision`; empty if the products read activations as they are.
pub(crate) fn quantise(shape: &Shape, precision: Precision, elements: usize) -> impl Iterator<Item = Step> {
    let stored = shape.activations(elements);
    let steps = move |quantisation: Quantisation| {
        let operands = precision.operand_bytes() * (quantisation.copies * elements) as f64;
        let maximum = Step::reduction("find maximum", stored, Bytes::ZERO);
        let maximum = quantisation.maximum_first.then_some(maximum);
        let kernels = maximum.into_iter().chain([Step::streaming("quantise", stored, operands)]);
        kernels.map(|step| step.doing(Does::Quantise))
    };
    precision.quantisation().into_iter().flat_map(steps)
}

/// The kernel that makes `elements` kept operands what backward's products read, if those are wider.
fn restore(shape: &Shape, elements: usize) -> Option<Step> {
    let wider = shape.precision.of_backward() != shape.precision;
    wider.then(|| Step::streaming("restore", shape.operands(elements), shape.activations(elements)))
}

/// Elements of `count` weights that are kept quantised.
fn quantised(shape: &Shape, count: usize, inner: usize, outer: usize) -> u64 {
    if shape.precision.quantisation().is_some() { (count * inner * outer) as u64 } else { 0 }
}
