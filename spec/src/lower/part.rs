//! The parts of a block as data: what each runs forward and backward, and what it keeps in between.

use crate::collective::CollectiveKind;
use crate::plan::Plan;
use crate::precision::Precision;
use crate::program::{Access, Axis, Kernel};
use crate::stack::Stack;
use crate::tensor::{LayerStep, Linear, Parts, Role, TensorGrid, TensorScheme};
use crate::units::Bytes;

/// The sizes every part is made for: one microbatch on one rank.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape<'a> {
    /// Sequences on a rank.
    pub batch: usize,
    /// Tokens in each.
    pub sequence: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Ranks of the tensor axis.
    pub tensor: usize,
    /// How they share a layer.
    pub scheme: &'static dyn TensorScheme,
    /// In which grid.
    pub grid: TensorGrid,
    /// In how many parts that cuts what is on a rank.
    pub parts: Parts,
    /// Whether norms and dropouts work on 1/t of the tokens.
    pub sequence_parallel: bool,
    /// Precision of matrix products.
    pub precision: Precision,
    /// Whether activations are dropped out.
    pub dropout: bool,
    /// The software.
    pub stack: &'a Stack,
}

impl<'a> Shape<'a> {
    /// The sizes of one microbatch of `plan`.
    pub fn of(plan: &'a Plan) -> Self {
        let (scheme, grid) = (plan.tensor_scheme(), plan.tensor_grid());
        let parts = scheme.parts(&grid);
        Self {
            batch: plan.micro_batch / parts.batch,
            sequence: plan.job.sequence,
            hidden: plan.model.hidden,
            tensor: plan.mesh.tensor,
            scheme,
            grid,
            parts,
            sequence_parallel: plan.sequence_parallel && plan.mesh.tensor > 1,
            precision: plan.job.precision,
            dropout: plan.model.dropout,
            stack: &plan.stack,
        }
    }

    /// Tokens of a microbatch on this rank.
    pub fn tokens(&self) -> usize {
        self.batch * self.sequence
    }

    /// Tokens that this rank's norms and dropouts see.
    pub fn own_tokens(&self) -> usize {
        self.tokens().div_ceil(self.parts.sequence)
    }

    /// Width of what they see.
    pub fn own_hidden(&self) -> usize {
        self.hidden / self.parts.hidden
    }

    /// Whether every rank of the tensor axis has all that lies between layers.
    pub fn is_whole(&self) -> bool {
        self.parts.batch * self.parts.sequence * self.parts.hidden == 1
    }

    /// Tokens of a microbatch on all ranks.
    pub fn all_tokens(&self) -> usize {
        self.tokens() * self.parts.batch
    }

    /// Size of `elements` activations.
    pub fn activations(&self, elements: usize) -> Bytes {
        self.precision.storage_bytes() * elements as f64
    }

    /// Bytes of one accumulated gradient element.
    pub fn gradient_bytes(&self) -> Bytes {
        self.stack.gradient_precision(self.precision).storage_bytes()
    }

    /// How many of `whole` equal pieces this rank has.
    pub fn share(&self, whole: usize) -> usize {
        whole.div_ceil(self.parts.width)
    }
}

/// A module of a block.
#[derive(Debug, Clone, Default)]
pub(crate) struct Part {
    /// What runs from input to output.
    pub forward: Vec<Step>,
    /// What runs from the output's gradient to the input's and the weights'.
    pub backward: Vec<Step>,
    /// What forward keeps for backward.
    pub kept: Bytes,
    /// In the attention core: the part of `kept` that selective recompute does not keep.
    pub core: Option<Bytes>,
}

/// One op of a part.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    /// A kernel and the size of the result that lives while it runs and no longer.
    Kernel {
        /// Name of the span.
        module: &'static str,
        /// The call.
        kernel: Kernel,
        /// Temporary memory.
        working: Bytes,
    },
    /// A collective inside the layer.
    Collective {
        /// Name of the span.
        module: &'static str,
        /// Which operation.
        kind: CollectiveKind,
        /// Over which axis.
        axis: Axis,
        /// Size of the whole tensor.
        bytes: Bytes,
        /// Whether the next kernel need not wait for it: only the one after that.
        beside_next: bool,
    },
}

impl Step {
    /// A kernel that goes through memory element by element.
    pub fn streaming(module: &'static str, read: Bytes, written: Bytes) -> Step {
        let kernel = Kernel::Streaming { access: Access::Elementwise, read, written };
        Step::Kernel { module, kernel, working: written }
    }

    /// A kernel that sums along a dim.
    pub fn reduction(module: &'static str, read: Bytes, written: Bytes) -> Step {
        let kernel = Kernel::Streaming { access: Access::Reduction, read, written };
        Step::Kernel { module, kernel, working: written }
    }

    /// The same with more temporary memory, if it is a kernel.
    fn holding(self, more: Bytes) -> Step {
        match self {
            Step::Kernel { module, kernel, working } => {
                Step::Kernel { module, kernel, working: working + more }
            }
            collective @ Step::Collective { .. } => collective,
        }
    }

    /// A matrix product of activations: (m × k) · (k × n), `count` times.
    pub fn gemm(module: &'static str, count: usize, [m, n, k]: [usize; 3], precision: Precision) -> Step {
        let working = precision.storage_bytes() * (count * m * n) as f64;
        Step::Kernel { module, kernel: Kernel::Gemm { count, m, n, k, precision }, working }
    }
}

pub(crate) use crate::tensor::{Input, Output};

/// A product whose weight is cut by column: from (tokens × `inner`) to this rank's (tokens × `own`).
pub(crate) fn column(
    shape: &Shape,
    module: &'static str,
    input: Input,
    [inner, own]: [usize; 2],
    bias: bool,
) -> Part {
    let mut part = linear(shape, module, Role::Column(input), [inner, own * shape.parts.width]);
    part.backward.extend(bias.then(|| bias_gradient(shape, own)));
    part
}

/// A product whose weight is cut by row: from this rank's (tokens × `own`) to (tokens × `outer`).
pub(crate) fn row(shape: &Shape, module: &'static str, leaves: bool, own: usize, outer: usize) -> Part {
    let output = if leaves { Output::Leaves } else { Output::Added };
    linear(shape, module, Role::Row(output), [own * shape.parts.width, outer])
}

/// The product with the output embedding: from (tokens × `inner`) to this rank's (tokens × `own`) logits.
pub(crate) fn head(shape: &Shape, [inner, own]: [usize; 2], bias: bool) -> Part {
    let mut part = linear(shape, "logits", Role::Head, [inner, own * shape.parts.width]);
    part.backward.extend(bias.then(|| bias_gradient(shape, own)));
    part
}

fn bias_gradient(shape: &Shape, own: usize) -> Step {
    let gradient = shape.activations(shape.tokens() * own);
    Step::reduction("bias gradient", gradient, Bytes::ZERO)
}

/// A linear layer as the scheme runs it; backward makes the input's gradient first, then the weight's.
fn linear(shape: &Shape, module: &'static str, role: Role, [inner, outer]: [usize; 2]) -> Part {
    let layer = Linear { tokens: shape.all_tokens(), inner, outer, role };
    let steps = shape.scheme.linear(&shape.grid, &layer);
    let mut part = Part {
        forward: lowered(shape, module, &steps.forward),
        backward: lowered(shape, module, &steps.input_gradient),
        kept: shape.activations(steps.kept),
        core: None,
    };
    match steps.weight_gradient[..] {
        [LayerStep::Product { size, held }] => {
            let held = shape.activations(held);
            part.backward.extend(weight_gradient(shape, module, 1, size).map(|step| step.holding(held)));
        }
        // What is summed over ranks first cannot be added to the accumulated gradient by the product itself.
        _ => {
            part.backward.extend(lowered(shape, module, &steps.weight_gradient));
            part.backward.push(accumulation(shape, steps.weight));
        }
    }
    part
}

/// A scheme's steps as ops.
pub(crate) fn lowered(shape: &Shape, module: &'static str, steps: &[LayerStep]) -> Vec<Step> {
    let lowered = |step: &LayerStep| match *step {
        LayerStep::Collective { name, kind, axis, elements, beside_next } => {
            Step::Collective { module: name, kind, axis, bytes: shape.activations(elements), beside_next }
        }
        LayerStep::Product { size, held } => {
            Step::gemm(module, 1, size, shape.precision).holding(shape.activations(held))
        }
        LayerStep::Sum { parts, elements } => {
            Step::reduction("sum pieces", shape.activations(parts * elements), shape.activations(elements))
        }
    };
    steps.iter().map(lowered).collect()
}

/// The end of a tensor-parallel region: the sum of the ranks' outputs, whole or scattered along the sequence.
pub(crate) fn leave(shape: &Shape, whole: Bytes, part: &mut Part) {
    if shape.tensor == 1 {
        return;
    }
    let (forward, backward) = match shape.sequence_parallel {
        true => (CollectiveKind::ReduceScatter, Some(CollectiveKind::AllGather)),
        false => (CollectiveKind::AllReduce, None),
    };
    let axis = Axis::Tensor;
    let step = |module, kind| Step::Collective { module, kind, axis, bytes: whole, beside_next: false };
    part.forward.push(step("reduce output", forward));
    part.backward.extend(backward.map(|kind| step("gather gradient", kind)));
}

/// A product whose weight every rank holds whole, over this rank's own tokens.
pub(crate) fn replicated(shape: &Shape, module: &'static str, inner: usize, outer: usize) -> Part {
    let tokens = shape.own_tokens();
    let mut backward = vec![Step::gemm(module, 1, [tokens, inner, outer], shape.precision)];
    backward.extend(weight_gradient(shape, module, 1, [inner, outer, tokens]));
    Part {
        forward: vec![Step::gemm(module, 1, [tokens, outer, inner], shape.precision)],
        backward,
        kept: shape.activations(tokens * inner),
        core: None,
    }
}

/// The product that makes a weight's gradient, and the pass that adds it to the accumulated one unless the product
/// does so itself.
pub(crate) fn weight_gradient(
    shape: &Shape,
    module: &'static str,
    count: usize,
    size: [usize; 3],
) -> impl Iterator<Item = Step> {
    let product = match Step::gemm(module, count, size, shape.precision) {
        Step::Kernel { module, kernel, .. } if shape.stack.fused_gradient_accumulation => {
            Step::Kernel { module, kernel, working: Bytes::ZERO }
        }
        other => other,
    };
    let add = accumulation(shape, count * size[0] * size[1]);
    let add = (!shape.stack.fused_gradient_accumulation).then_some(add);
    std::iter::once(product).chain(add)
}

/// The pass that adds a gradient to the accumulated one.
fn accumulation(shape: &Shape, elements: usize) -> Step {
    let (gradient, elements) = (shape.gradient_bytes(), elements as f64);
    let read = (shape.precision.storage_bytes() + gradient) * elements;
    Step::streaming("accumulate gradient", read, gradient * elements)
}
