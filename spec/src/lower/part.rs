//! The parts of a block as data: what each runs forward and backward, and what it keeps in between.

use crate::collective::CollectiveKind;
use crate::plan::Plan;
use crate::precision::Precision;
use crate::program::{Access, Axis, Kernel};
use crate::stack::Stack;
use crate::units::Bytes;

/// The sizes every part is made for: one microbatch on one rank.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape<'a> {
    /// Sequences.
    pub batch: usize,
    /// Tokens in each.
    pub sequence: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Ranks of the tensor axis.
    pub tensor: usize,
    /// Whether norms and dropouts work on 1/t of the tokens.
    pub sequence_parallel: bool,
    /// Precision of matrix products.
    pub precision: Precision,
    /// Whether activations are dropped out.
    pub dropout: bool,
    /// Bytes of one accumulated gradient element.
    pub gradient: Bytes,
    /// The software.
    pub stack: &'a Stack,
}

impl<'a> Shape<'a> {
    /// The sizes of one microbatch of `plan`.
    pub fn of(plan: &'a Plan) -> Self {
        Self {
            batch: plan.micro_batch,
            sequence: plan.job.sequence,
            hidden: plan.model.hidden,
            tensor: plan.mesh.tensor,
            sequence_parallel: plan.sequence_parallel && plan.mesh.tensor > 1,
            precision: plan.job.precision,
            dropout: plan.model.dropout,
            gradient: plan.state_bytes().gradient,
            stack: &plan.stack,
        }
    }

    /// Tokens of a microbatch.
    pub fn tokens(&self) -> usize {
        self.batch * self.sequence
    }

    /// Tokens that this rank's norms and dropouts see.
    pub fn own_tokens(&self) -> usize {
        if self.sequence_parallel { self.tokens().div_ceil(self.tensor) } else { self.tokens() }
    }

    /// Size of `elements` activations.
    pub fn activations(&self, elements: usize) -> Bytes {
        self.precision.storage_bytes() * elements as f64
    }

    /// Bytes of one accumulated gradient element.
    pub fn gradient_bytes(&self) -> Bytes {
        self.gradient
    }

    /// How many of `whole` equal pieces this rank has.
    pub fn share(&self, whole: usize) -> usize {
        whole.div_ceil(self.tensor)
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

/// Where a column-parallel product's input comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Input {
    /// From the residual stream: enters the tensor-parallel region here.
    Region,
    /// The same tensor as an earlier product's, which has gathered it and keeps it.
    Shared,
}

/// A product whose weight is cut by column: every rank computes its part of the output from the whole input.
///
/// Backward reduces the input's gradient over the tensor axis beside the weight's gradient. With sequence
/// parallelism the input is gathered in forward and once more in backward, and the gradient reduce-scattered.
/// Source: Shoeybi et al. 2019, arXiv 1909.08053, section 3; Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.2.
pub(crate) fn column(
    shape: &Shape,
    module: &'static str,
    input: Input,
    [inner, own]: [usize; 2],
    bias: bool,
) -> Part {
    let tokens = shape.tokens();
    let whole = shape.activations(tokens * inner);
    let enters = input == Input::Region && shape.tensor > 1;
    let gather = |beside_next| Step::Collective {
        module: "gather sequence",
        kind: CollectiveKind::AllGather,
        axis: Axis::Tensor,
        bytes: whole,
        beside_next,
    };
    let mut part = Part::default();
    let mut gathered = Bytes::ZERO;
    if enters && shape.sequence_parallel {
        part.forward.push(gather(false));
        part.backward.push(gather(true));
        gathered = whole;
    }
    let product = |size| Step::gemm(module, 1, size, shape.precision).holding(gathered);
    part.forward.push(product([tokens, own, inner]));
    part.backward.push(product([tokens, inner, own]));
    if enters {
        let kind =
            if shape.sequence_parallel { CollectiveKind::ReduceScatter } else { CollectiveKind::AllReduce };
        let module = "reduce gradient";
        let axis = Axis::Tensor;
        part.backward.push(Step::Collective { module, kind, axis, bytes: whole, beside_next: true });
    }
    let weight = weight_gradient(shape, module, 1, [inner, own, tokens]);
    part.backward.extend(weight.map(|step| step.holding(gathered)));
    if bias {
        let gradient = shape.activations(tokens * own);
        part.backward.push(Step::reduction("bias gradient", gradient, Bytes::ZERO));
    }
    part.kept = match input {
        Input::Region if shape.sequence_parallel => shape.activations(shape.own_tokens() * inner),
        Input::Region => whole,
        Input::Shared => Bytes::ZERO,
    };
    part
}

/// A product whose weight is cut by row: every rank's output is a summand of the whole.
///
/// `leaves` says whether the sum is taken here; parallel blocks add attention and MLP first and sum once.
pub(crate) fn row(shape: &Shape, module: &'static str, leaves: bool, own: usize, outer: usize) -> Part {
    let tokens = shape.tokens();
    let whole = shape.activations(tokens * outer);
    let mut part = Part { kept: shape.activations(tokens * own), ..Part::default() };
    part.forward.push(Step::gemm(module, 1, [tokens, outer, own], shape.precision));
    if leaves {
        leave(shape, whole, &mut part);
    }
    part.backward.push(Step::gemm(module, 1, [tokens, own, outer], shape.precision));
    part.backward.extend(weight_gradient(shape, module, 1, [own, outer, tokens]));
    part
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
    let gradient = shape.gradient_bytes();
    let elements = (count * size[0] * size[1]) as f64;
    let product = match Step::gemm(module, count, size, shape.precision) {
        Step::Kernel { module, kernel, .. } if shape.stack.fused_gradient_accumulation => {
            Step::Kernel { module, kernel, working: Bytes::ZERO }
        }
        other => other,
    };
    let add = Step::streaming(
        "accumulate gradient",
        (shape.precision.storage_bytes() + gradient) * elements,
        gradient * elements,
    );
    let add = (!shape.stack.fused_gradient_accumulation).then_some(add);
    std::iter::once(product).chain(add)
}
