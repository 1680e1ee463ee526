//! The attention core: what its context scheme says, in kernels of the stack.

use crate::adapters::beside;
use crate::part::{Again, Part, Role};
use crate::shape::Shape;
use crate::step::Step;
use trainwright_spec::context::{SharedAttention, Step as Shared, Tile};
use trainwright_spec::model::{Attention, Mask};
use trainwright_spec::plan::Piece;
use trainwright_spec::precision::Precision;
use trainwright_spec::program::{Direction, Does, FlashVersion, FusedAttention, Kernel, Module, Share};
use trainwright_spec::stack::AttentionKernel;
use trainwright_spec::units::Bytes;

/// From queries, keys and values to the heads' outputs, which are the projection's input and kept there.
///
/// A fused kernel keeps queries, keys, values and fp32 softmax statistics. Else the scores are in memory: Q Kᵀ, softmax,
/// dropout, P V keep the s/c × s tensors, which with dropout and one rank are 5 a s² b bytes in 16 bits (Korthikanti et
/// al. 2022, arXiv 2205.05198, section 4.1). Computed again, the core begins with the rank's queries, keys and
/// values.
pub(crate) fn core(shape: &Shape, attention: &Attention) -> Part {
    let layer = SharedAttention::of(attention, &shape.parts, shape.mesh, [shape.batch, shape.sequence]);
    let scheme = shape.context_scheme;
    let lowered = |direction, steps: Vec<Shared>| -> Vec<Step> {
        let kernels = Kernels { shape, layer: &layer, direction };
        steps.into_iter().flat_map(|step| kernels.step(step)).collect()
    };
    let steps = scheme.forward(&layer);
    let stores_scores = steps.iter().any(|step| match step {
        Shared::Attend(_) => shape.stack.attention.version().is_none(),
        step => matches!(step, Shared::Softmax { .. }),
    });
    let mut forward = lowered(Direction::Forward, steps);
    if stores_scores {
        // The heads' outputs are brought into one row per token.
        let output = shape.activations(layer.output());
        forward.push(Step::streaming("join heads", output, output).doing(Does::Arrange));
    }
    let mut backward = lowered(Direction::Backward, scheme.backward(&layer));
    // The gradients of queries, keys and values are copied into one tensor, the output's gradient of their projection.
    let inputs = shape.activations(layer.inputs());
    backward.push(Step::streaming("join gradients", inputs, inputs).doing(Does::Arrange));

    let kept = shape.activations(scheme.kept(&layer));
    let inner = match stores_scores {
        true => {
            let (scores, mask) = scores(shape, layer.scores());
            scores + if shape.dropout { scores + mask } else { Bytes::ZERO }
        }
        false => {
            let output = if keeps_output(shape) { shape.activations(layer.output()) } else { Bytes::ZERO };
            Bytes::new(4.0 * layer.rows() as f64) + output
        }
    };
    let again = Again { piece: Piece::Core, role: Role::First, dropped: kept - inputs + inner };
    let part = Part { forward, backward, kept: kept + inner, again: vec![again], ..Part::default() };
    part.named(Module::Attention)
}

/// Whether a fused core keeps its output for itself: the projection keeps it quantised, and not once for both, or not at all, as its
/// weights are frozen and have no adapter beside them.
fn keeps_output(shape: &Shape) -> bool {
    let quantised = shape.precision.quantisation().is_some();
    let once_for_both = quantised && shape.stack.kept_attention_output_element.is_some();
    let projection_keeps = match shape.adapters {
        None => !quantised,
        Some(_) => !beside(shape, "projection").is_empty(),
    };
    !projection_keeps && !once_for_both
}

/// Bytes of that many scores, and of the mask of their dropout.
fn scores(shape: &Shape, elements: usize) -> (Bytes, Bytes) {
    let mask = if shape.dropout { Bytes::new(elements as f64) } else { Bytes::ZERO };
    (shape.activations(elements), mask)
}

/// What the steps of a scheme run in one direction.
struct Kernels<'a> {
    shape: &'a Shape<'a>,
    layer: &'a SharedAttention,
    direction: Direction,
}

impl Kernels<'_> {
    fn step(&self, step: Shared) -> Vec<Step> {
        let bytes = |elements| self.shape.activations(elements);
        match step {
            Shared::Exchange(exchange) => {
                let does = Does::Share(Share::Exchange(exchange.travels));
                let (kind, axis, bytes) = (exchange.kind, exchange.axis, bytes(exchange.elements));
                let step = Step::collective(exchange.what, kind, axis, bytes, does);
                vec![step.beside(exchange.beside_next)]
            }
            Shared::Attend(tile) => match self.shape.stack.attention.version() {
                Some(version) => vec![self.fused(&tile, version)],
                None => self.unfused(&tile),
            },
            Shared::Product { with, size, held } => {
                let module = if with == "keys" { "scores" } else { "values" };
                vec![self.product(module, self.layer.heads, size).holding(bytes(held))]
            }
            Shared::Softmax { queries, keys } => {
                let visible = self.layer.mask.visible_pairs(queries, keys) / (queries * keys) as f64;
                self.softmax(self.layer.batch * self.layer.heads * queries * keys, visible)
            }
            Shared::Add { elements } => {
                let add = Step::streaming("add partial results", 2.0 * bytes(elements), bytes(elements));
                vec![add.doing(Does::Share(Share::Add))]
            }
            Shared::Reorder { elements } => {
                vec![Step::streaming("reorder", bytes(elements), bytes(elements)).doing(Does::Arrange)]
            }
        }
    }

    /// One kernel that never stores the scores.
    fn fused(&self, tile: &Tile, version: FlashVersion) -> Step {
        let layer = self.layer;
        let kernel = Kernel::FusedAttention(FusedAttention {
            direction: self.direction,
            batch: layer.batch,
            heads: tile.heads,
            kv_heads: tile.kv_heads,
            queries: tile.queries,
            keys: tile.keys,
            head_dim: layer.head_dim,
            value_head_dim: layer.value_head_dim,
            mask: tile.mask,
            precision: self.shape.precision.base(),
            version,
        });
        let result = match self.direction {
            Direction::Forward => tile.heads * tile.queries * layer.value_head_dim,
            Direction::Backward => {
                tile.heads * tile.queries * layer.head_dim
                    + tile.kv_heads * tile.keys * (layer.head_dim + layer.value_head_dim)
            }
        };
        let working = self.shape.activations(layer.batch * result + tile.held);
        let does = if layer.ranks > 1 { Does::Share(Share::Attend) } else { Does::Run };
        Step::kernel("attention", kernel, working).doing(does)
    }

    /// Several kernels with the scores in memory between them.
    fn unfused(&self, tile: &Tile) -> Vec<Step> {
        let Tile { queries: q, keys: k, heads, mask, .. } = *tile;
        let (d, dv) = (self.layer.head_dim, self.layer.value_head_dim);
        let held = self.shape.activations(tile.held);
        let gemm = |module, size| self.product(module, heads, size);
        let softmax =
            self.softmax(self.layer.batch * heads * q * k, mask.visible_pairs(q, k) / (q * k) as f64);
        let (mut steps, last) = match self.direction {
            Direction::Forward => (vec![gemm("scores", [q, k, d])], vec![gemm("values", [q, dv, k])]),
            Direction::Backward => (
                vec![gemm("values", [q, k, dv]), gemm("values", [k, dv, q])],
                vec![gemm("scores", [q, d, k]), gemm("scores", [k, d, q])],
            ),
        };
        steps.extend(softmax);
        steps.extend(last);
        steps.into_iter().map(|step| step.holding(held)).collect()
    }

    /// A product for each head. Matrix units take 16-bit rows of multiples of 16 bytes; other heads are multiplied without them, as
    /// fast as in fp32.
    ///
    /// Source: NVIDIA, Matrix Multiplication Background User's Guide, section "Tensor Core Requirements"; runs `bloom` of
    /// traces/published/training.csv with heads of 108, 150 and 450 columns.
    fn product(&self, module: &'static str, heads: usize, size: [usize; 3]) -> Step {
        let precision = self.shape.precision.base();
        let step = Step::gemm(module, self.layer.batch * heads, size, precision);
        let is_aligned =
            size.iter().all(|side| (side * precision.storage_bytes().get() as usize).is_multiple_of(16));
        if is_aligned { step } else { step.in_precision(Precision::Fp32) }
    }

    /// All between the two products over that many scores, of which a part is visible.
    ///
    /// One kernel reads what is visible once, both ways, and writes zeros elsewhere (Megatron-LM's
    /// scaled_upper_triang_masked_softmax). A softmax alone has rows too long to keep, and goes over all of them twice
    /// (PyTorch's for more than 1,024 columns: for its sum, and to write).
    fn softmax(&self, elements: usize, visible: f64) -> Vec<Step> {
        let (scores, mask) = scores(self.shape, elements);
        let mut steps = Vec::new();
        if self.direction == Direction::Backward {
            if self.shape.dropout {
                steps.push(Step::streaming("score dropout", scores + mask, scores));
            }
            let read = if self.fuses_softmax() { 2.0 * visible } else { 4.0 };
            steps.push(Step::reduction("softmax", read * scores, scores));
            return steps;
        }
        if self.fuses_softmax() {
            steps.push(Step::reduction("softmax", visible * scores, scores));
        } else {
            steps.push(Step::streaming("scale", scores, scores));
            if self.layer.mask != Mask::Full {
                steps.push(Step::streaming("mask", scores, scores));
            }
            steps.push(Step::reduction("softmax", 2.0 * scores, scores));
        }
        if self.shape.dropout {
            steps.push(Step::streaming("score dropout", scores, scores + mask));
        }
        steps
    }

    /// Whether one kernel does all between the products: it takes scores of 16 bits only (Megatron-LM's
    /// FusedScaleMaskSoftmax.is_kernel_available).
    fn fuses_softmax(&self) -> bool {
        self.shape.stack.attention == AttentionKernel::FusedSoftmax
            && self.shape.precision.storage_bytes() == Bytes::new(2.0)
    }
}
