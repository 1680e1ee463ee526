//! The parts of a block as data: what each runs forward and backward, and what it keeps in between.

use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::context::ContextScheme;
use trainwright_spec::experts::Routing;
use trainwright_spec::mesh::Mesh;
use trainwright_spec::plan::{Piece, Pieces, Plan};
use trainwright_spec::precision::{Precision, Quantisation};
use trainwright_spec::program::{Access, Axis, Does, Grid, Kernel, Module};
use trainwright_spec::stack::Stack;
use trainwright_spec::tensor::{self, LayerStep, Linear, Parts, TensorGrid, TensorScheme};
use trainwright_spec::units::Bytes;

/// The sizes every part is made for: one microbatch on one rank.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape<'a> {
    /// Sequences on a rank.
    pub batch: usize,
    /// Tokens in each, over all ranks of the context axis.
    pub sequence: usize,
    /// Ranks of the context axis.
    pub context: usize,
    /// How they share attention.
    pub context_scheme: &'static dyn ContextScheme,
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
    /// All axes.
    pub mesh: &'a Mesh,
    /// How tokens come to their experts.
    pub routing: &'a Routing,
    /// Index of the block that is lowered.
    pub layer: usize,
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
        let (scheme, grid) = (plan.tensor_scheme(), plan.tensor_grid());
        let parts = scheme.parts(&grid);
        Self {
            batch: plan.micro_batch / parts.batch,
            sequence: plan.job.sequence,
            context: plan.mesh.context,
            context_scheme: plan.context_scheme(),
            hidden: plan.model.hidden,
            tensor: plan.mesh.tensor,
            scheme,
            grid,
            parts,
            mesh: &plan.mesh,
            routing: &plan.experts,
            layer: 0,
            sequence_parallel: plan.sequence_parallel && plan.mesh.tensor > 1,
            precision: plan.job.precision,
            dropout: plan.model.dropout && !plan.stack.dropout_in_kernels,
            gradient: plan.state_bytes().gradient,
            stack: &plan.stack,
        }
    }

    /// Tokens of a microbatch that this rank's context axis does not give to others.
    pub fn tokens(&self) -> usize {
        self.batch * self.sequence / self.context
    }

    /// Tokens that this rank's norms and dropouts see.
    pub fn own_tokens(&self) -> usize {
        if self.sequence_parallel { self.tokens().div_ceil(self.tensor) } else { self.tokens() }
    }

    /// Width of what they see.
    pub fn own_hidden(&self) -> usize {
        self.hidden / self.parts.hidden
    }

    /// Whether every rank of the tensor axis has all that lies between layers.
    pub fn is_whole(&self) -> bool {
        self.parts.batch * self.parts.sequence * self.parts.hidden == 1
    }

    /// Tokens of a microbatch on all ranks of the tensor axis.
    pub fn all_tokens(&self) -> usize {
        self.tokens() * self.parts.batch
    }

    /// The same for what is not computed below 16 bits.
    pub fn base(&self) -> Self {
        Self { precision: self.precision.base(), ..*self }
    }

    /// Size of `elements` activations as an operand of a product, which is how the product keeps them.
    pub fn operands(&self, elements: usize) -> Bytes {
        self.precision.operand_bytes() * elements as f64
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
        whole.div_ceil(self.parts.width)
    }
}

/// A module of a block.
#[derive(Debug, Clone, Default)]
pub(crate) struct Part {
    /// Which one, for who runs it.
    pub module: Module,
    /// What runs from input to output.
    pub forward: Vec<Step>,
    /// What runs from the output's gradient to the input's and the weights'.
    pub backward: Vec<Step>,
    /// What forward keeps for backward.
    pub kept: Bytes,
    /// The pieces that it belongs to: what it does when one of them is computed again.
    pub again: Vec<Again>,
    /// Elements of its weights that are kept quantised beside what the optimizer updates.
    pub quantised_weights: u64,
}

/// A part's place in a piece that can be computed again by itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Again {
    /// Which piece.
    pub piece: Piece,
    /// Whether its forward runs again.
    pub role: Role,
    /// What of its `kept` is not kept then.
    pub dropped: Bytes,
}

/// What a part has to do with a piece. The parts of a piece follow each other, perhaps with others between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The first whose forward runs again.
    First,
    /// Its forward runs again too.
    Runs,
    /// It only reads what those make.
    Reads,
}

impl Part {
    /// Adds it to a piece.
    pub fn join(&mut self, piece: Piece, role: Role, dropped: Bytes) {
        self.again.push(Again { piece, role, dropped });
    }

    /// Its places in the pieces of a recompute choice. The whole feed-forward part contains its activation.
    pub fn chosen(&self, pieces: Pieces) -> impl Iterator<Item = &Again> {
        let within = |piece| self.again.iter().any(|again| again.piece == piece && pieces.contains(piece));
        let contained = within(Piece::Mlp) || within(Piece::Experts);
        let chosen = self.again.iter().filter(move |again| pieces.contains(again.piece));
        chosen.filter(move |again| !(contained && again.piece == Piece::Activation))
    }
}

impl Part {
    /// The same under its name.
    pub fn named(self, module: Module) -> Self {
        Self { module, ..self }
    }

    /// The steps of one half of backward, in order.
    ///
    /// A collective that stands before the part's first kernel without being waited for by it brings what the product
    /// of the weight's gradient reads; it goes with that. One that would run beside a kernel of the other half has
    /// nothing to hide behind.
    pub fn backward_half(&self, half: Half) -> Vec<Step> {
        let is_kernel = |step: &Step| matches!(step, Step::Kernel { .. });
        let first_kernel = self.backward.iter().position(is_kernel).unwrap_or(self.backward.len());
        let half_of = |index: usize| match self.backward[index] {
            Step::Kernel { half, .. } => half,
            Step::Collective { beside_next: true, does: None, .. } if index < first_kernel => Half::Weight,
            Step::Collective { .. } => Half::Input,
        };
        let own = (0..self.backward.len()).filter(|index| half_of(*index) == half);
        own.map(|index| match self.backward[index] {
            Step::Collective { module, kind, axis, bytes, beside_next, does } => {
                let hides = index + 1 == self.backward.len() || half_of(index + 1) == half;
                Step::Collective { module, kind, axis, bytes, beside_next: beside_next && hides, does }
            }
            kernel @ Step::Kernel { .. } => kernel,
        })
        .collect()
    }

    /// What the second half of backward needs of the first: for each product (inner × rows) · (rows × outer) that makes
    /// a weight's gradient the gradient of its output, rows × outer. None if there is no second half; then nothing
    /// that forward kept is needed after the first. Else it is: a part with products keeps their input.
    pub fn output_gradient(&self) -> Option<Bytes> {
        let size = |step: &Step| match step {
            Step::Kernel {
                kernel: Kernel::Gemm { count, n, k, precision, .. }, half: Half::Weight, ..
            } => Some(precision.storage_bytes() * (count * n * k) as f64),
            _ => None,
        };
        self.backward.iter().filter_map(size).reduce(|sum, size| sum + size)
    }
}

/// The halves of a backward pass, which some schedules run apart.
///
/// The matrix products that make weights' gradients, and what adds those up, are the second half. All else is the
/// first, also the gradients of norms, biases and the embedding: they take little time, and read what only lives while
/// the first half runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Half {
    /// Leads to the gradient of the input.
    Input,
    /// Makes the gradients of weights.
    Weight,
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
        /// Which half of backward it belongs to.
        half: Half,
        /// What it makes.
        does: Does,
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
        /// What it does; left out, it moves the tensor that its place among the part's kernels says.
        does: Option<Does>,
    },
}

impl Step {
    /// A kernel that goes through memory element by element.
    pub fn streaming(module: &'static str, read: Bytes, written: Bytes) -> Step {
        let kernel = Kernel::Streaming { access: Access::Elementwise, read, written };
        Step::Kernel { module, kernel, working: written, half: Half::Input, does: Does::Run }
    }

    /// A kernel that sums along a dim.
    pub fn reduction(module: &'static str, read: Bytes, written: Bytes) -> Step {
        let kernel = Kernel::Streaming { access: Access::Reduction, read, written };
        Step::Kernel { module, kernel, working: written, half: Half::Input, does: Does::Run }
    }

    /// The same without temporary memory, if it is a kernel.
    pub fn in_place(self) -> Step {
        match self {
            Step::Kernel { module, kernel, half, does, .. } => {
                Step::Kernel { module, kernel, working: Bytes::ZERO, half, does }
            }
            collective @ Step::Collective { .. } => collective,
        }
    }

    /// The same with more temporary memory, if it is a kernel.
    pub fn holding(self, more: Bytes) -> Step {
        match self {
            Step::Kernel { module, kernel, working, half, does } => {
                Step::Kernel { module, kernel, working: working + more, half, does }
            }
            collective @ Step::Collective { .. } => collective,
        }
    }

    /// The same with another result, if it is a kernel.
    pub fn doing(self, does: Does) -> Step {
        match self {
            Step::Kernel { module, kernel, working, half, .. } => {
                Step::Kernel { module, kernel, working, half, does }
            }
            collective @ Step::Collective { .. } => collective,
        }
    }

    /// The same as a step towards a weight's gradient, if it is a kernel.
    fn of_weight(self) -> Step {
        match self {
            Step::Kernel { module, kernel, working, .. } => {
                let does = Does::WeightGradient;
                Step::Kernel { module, kernel, working, half: Half::Weight, does }
            }
            collective @ Step::Collective { .. } => collective,
        }
    }

    /// A matrix product of activations: (m × k) · (k × n), `count` times.
    pub fn gemm(module: &'static str, count: usize, [m, n, k]: [usize; 3], precision: Precision) -> Step {
        let working = precision.storage_bytes() * (count * m * n) as f64;
        Step::Kernel {
            module,
            kernel: Kernel::Gemm { count, m, n, k, precision },
            working,
            half: Half::Input,
            does: Does::Run,
        }
    }
}

pub(crate) use trainwright_spec::tensor::{Input, Output};

/// A product whose weight is cut by column: from (tokens × `inner`) to this rank's (tokens × `own`).
pub(crate) fn column(
    shape: &Shape,
    module: &'static str,
    input: Input,
    [inner, own]: [usize; 2],
    bias: bool,
) -> Part {
    let mut part = linear(shape, module, tensor::Role::Column(input), [inner, own * shape.parts.width]);
    part.backward.extend(bias.then(|| bias_gradient(shape, own)));
    part
}

/// A product whose weight is cut by row: from this rank's (tokens × `own`) to (tokens × `outer`).
pub(crate) fn row(shape: &Shape, module: &'static str, leaves: bool, own: usize, outer: usize) -> Part {
    let output = if leaves { Output::Leaves } else { Output::Added };
    linear(shape, module, tensor::Role::Row(output), [own * shape.parts.width, outer])
}

/// The product with the output embedding: from (tokens × `inner`) to this rank's (tokens × `own`) logits.
pub(crate) fn head(shape: &Shape, [inner, own]: [usize; 2], bias: bool) -> Part {
    let mut part = linear(shape, "logits", tensor::Role::Head, [inner, own * shape.parts.width]);
    part.backward.extend(bias.then(|| bias_gradient(shape, own)));
    part
}

fn bias_gradient(shape: &Shape, own: usize) -> Step {
    let gradient = shape.activations(shape.tokens() * own);
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
    part.forward.extend(lowered(shape, forward, &steps.forward));
    let input_gradient = lowered(shape, backward, &steps.input_gradient);
    match steps.weight_gradient[..] {
        [LayerStep::Product { size, held }] => {
            let [inner, outer, tokens] = size;
            let is_waited = |step: &&Step| matches!(step, Step::Collective { beside_next: false, .. });
            let before = input_gradient.iter().take_while(is_waited).count();
            part.backward.extend(&input_gradient[..before]);
            part.backward.extend(quantise(shape, backward.product, tokens * outer));
            part.backward.extend(&input_gradient[before..]);
            part.backward.extend(restore(shape, tokens * inner));
            let held = gathered * held as f64;
            part.backward.extend(weight_gradient(shape, module, 1, size).map(|step| step.holding(held)));
            part.quantised_weights = quantised(shape, 1, inner, outer);
        }
        // What is summed over ranks first cannot be added to the accumulated gradient by the product itself.
        _ => {
            let weight_gradient = lowered(shape, backward, &steps.weight_gradient);
            let accumulation = accumulation(shape, steps.weight);
            part.backward.extend(input_gradient);
            part.backward.extend(weight_gradient.into_iter().chain([accumulation]).map(Step::of_weight));
        }
    }
    part
}

/// What a layer's products compute in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Numbers {
    /// Name of their spans.
    pub module: &'static str,
    /// Precision of their operands.
    pub product: Precision,
    /// Size of an element that is gathered, and of what is held.
    pub gathered: Bytes,
}

/// A scheme's steps as ops.
pub(crate) fn lowered(shape: &Shape, numbers: Numbers, steps: &[LayerStep]) -> Vec<Step> {
    let gathered = |elements| numbers.gathered * elements as f64;
    let lowered = |step: &LayerStep| match *step {
        LayerStep::Collective { name, kind, axis, elements, beside_next } => {
            let gathers = kind == CollectiveKind::AllGather;
            let bytes = if gathers { gathered(elements) } else { shape.activations(elements) };
            let does = match kind {
                CollectiveKind::Broadcast => Some(Does::Grid(Grid::Broadcast)),
                CollectiveKind::Reduce => Some(Does::Grid(Grid::Reduce)),
                _ => None,
            };
            Step::Collective { module: name, kind, axis, bytes, beside_next, does }
        }
        LayerStep::Product { size, held } => {
            let does = if shape.parts.hidden > 1 { Does::Grid(Grid::Multiply) } else { Does::Run };
            Step::gemm(numbers.module, 1, size, numbers.product).holding(gathered(held)).doing(does)
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
    let step = |module, kind| {
        let does = Some(Does::Route);
        Step::Collective { module, kind, axis, bytes: whole, beside_next: false, does }
    };
    part.forward.push(step("reduce output", forward));
    part.backward.extend(backward.map(|kind| step("gather gradient", kind)));
}

/// A product whose weight every rank holds whole, over this rank's own tokens.
pub(crate) fn replicated(shape: &Shape, module: &'static str, inner: usize, outer: usize) -> Part {
    grouped(shape, module, 1, shape.own_tokens(), [inner, outer])
}

/// The same over an input that another product has quantised and keeps.
pub(crate) fn replicated_beside(shape: &Shape, module: &'static str, inner: usize, outer: usize) -> Part {
    let mut part = replicated(shape, module, inner, outer);
    part.forward.drain(..quantise(shape, shape.precision, shape.own_tokens() * inner).count());
    Part { kept: Bytes::ZERO, ..part }
}

/// `count` products alike, each of `rows` with a weight of its own that is `inner` by `outer`.
pub(crate) fn grouped(
    shape: &Shape,
    module: &'static str,
    count: usize,
    rows: usize,
    [inner, outer]: [usize; 2],
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
    part
}

/// The kernels that make `elements` activations operands of products in `precision`; none if they are as they are.
pub(crate) fn quantise(shape: &Shape, precision: Precision, elements: usize) -> impl Iterator<Item = Step> {
    let stored = shape.activations(elements);
    let steps = move |quantisation: Quantisation| {
        let operands = precision.operand_bytes() * (quantisation.copies * elements) as f64;
        let maximum = Step::reduction("find maximum", stored, Bytes::ZERO);
        let maximum = quantisation.maximum_first.then_some(maximum);
        let own = maximum.into_iter().chain([Step::streaming("quantise", stored, operands)]);
        own.map(|step| step.doing(Does::Quantise))
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

/// The product that makes a weight's gradient, and the pass that adds it to the accumulated one unless the product
/// does so itself.
pub(crate) fn weight_gradient(
    shape: &Shape,
    module: &'static str,
    count: usize,
    size: [usize; 3],
) -> impl Iterator<Item = Step> {
    let product = match Step::gemm(module, count, size, shape.precision.of_backward()) {
        Step::Kernel { module, kernel, .. } if shape.stack.fused_gradient_accumulation => {
            Step::Kernel { module, kernel, working: Bytes::ZERO, half: Half::Input, does: Does::Run }
        }
        other => other,
    };
    let add = accumulation(shape, count * size[0] * size[1]);
    let add = (!shape.stack.fused_gradient_accumulation).then_some(add);
    std::iter::once(product).chain(add).map(Step::of_weight)
}

/// The pass that adds a gradient to the accumulated one.
fn accumulation(shape: &Shape, elements: usize) -> Step {
    let (gradient, elements) = (shape.gradient_bytes(), elements as f64);
    let read = (shape.precision.storage_bytes() + gradient) * elements;
    Step::streaming("accumulate gradient", read, gradient * elements)
}
