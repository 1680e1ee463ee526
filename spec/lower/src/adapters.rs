//! Frozen weights and the adapters beside them, in the parts of linear layers.
//!
//! ```text
//! forward    [widen W]  x W ─────────────┐        backward   [widen W]  dy Wᵀ ────────────┐
//!            x A = a    a B = b    s b ──┴─► y               s dy = db  db Bᵀ = da  da Aᵀ ┴─► dx
//!                                                            aᵀ db = dB, xᵀ da = dA beside the sum of dx over the tensor axis
//! ```

use crate::part::Part;
use crate::shape::Shape;
use crate::step::{Half, Step, StepWork};
use crate::weight_gradient::weight_gradient;
use trainwright_spec::adapters::{Adapter, Beside};
use trainwright_spec::model::weights::{Split, Weight};
use trainwright_spec::program::{Does, Kernel, Value};
use trainwright_spec::units::Bytes;

/// The product of a module, if adapters may stand beside it.
fn product(module: &str) -> Option<Beside> {
    Some(match module {
        "qkv" => Beside::Qkv,
        "projection" => Beside::Projection,
        "fc1" => Beside::Fc1,
        "fc2" => Beside::Fc2,
        "logits" => Beside::Logits,
        _ => return None,
    })
}

/// Widths of the adapters beside a product on one rank: of their inputs and of their outputs.
pub(crate) fn beside(shape: &Shape, module: &str) -> Vec<[usize; 2]> {
    let beside = product(module);
    let here = shape.beside.iter().filter(|adapter| Some(adapter.beside) == beside);
    let on_rank = |adapter: &Adapter| match adapter.split {
        Split::Replicated => [adapter.inner.div_ceil(shape.tensor), adapter.outer],
        Split::Tensor => [adapter.inner, adapter.outer.div_ceil(shape.tensor)],
        Split::KeyValue { heads } => [adapter.inner, adapter.outer.div_ceil(shape.tensor.min(heads))],
    };
    here.map(on_rank).collect()
}

/// The weights of a part with products, on this rank.
pub(crate) struct Weights {
    /// Name of the products.
    pub module: &'static str,
    /// Rows of their input.
    pub tokens: usize,
    /// Elements of the weights.
    pub elements: usize,
    /// Whether they are among those that are stored in fewer bits.
    pub narrow: bool,
}

/// Freezes the weights of a part where the job has adapters, and adds those beside it. What such a part keeps is its input, which
/// adapters alone need again.
pub(crate) fn freeze(shape: &Shape, part: &mut Part, weights: &Weights) {
    let Some(adapters) = shape.adapters else { return };
    let Weights { module, tokens, .. } = *weights;
    let beside = beside(shape, module);
    match beside.is_empty() {
        true => {
            part.backward.retain(|step| step.half != Half::Weight && !brings_input(step));
            part.kept = Bytes::ZERO;
        }
        false => {
            // What brings the input to the product of the gradient brings it to the adapters'.
            part.backward.retain(|step| step.half != Half::Weight || !step.is_kernel());
            part.backward.iter_mut().for_each(|step| step.half = Half::Input);
            part.kept = part.kept * (shape.precision.storage_bytes() / shape.precision.operand_bytes());
        }
    }
    if let Some(stored) = adapters.base.stored().filter(|_| weights.narrow) {
        let elements = weights.elements as f64;
        let wide = shape.activations(1) * elements;
        let widen = Step::streaming("widen weight", stored * elements, wide);
        // The wide weight lives until its product has run.
        for steps in [&mut part.forward, &mut part.backward] {
            if let Some(product) = steps.iter_mut().find(|step| is_product(step)) {
                *product = product.holding(wide);
            }
            steps.insert(0, widen);
        }
    }
    let mut gradients = Vec::new();
    for [inner, outer] in beside {
        let rank = adapters.rank;
        let precision = shape.precision.base();
        let [narrow, out] = [rank, outer].map(|width| shape.activations(tokens * width));
        let input = shape.activations(tokens * inner);
        let behind = |steps: &[Step]| steps.iter().rposition(is_product).map_or(0, |last| last + 1);
        let at = behind(&part.forward);
        let mut forward = vec![
            Step::gemm("adapter", 1, [tokens, rank, inner], precision),
            Step::gemm("adapter", 1, [tokens, outer, rank], precision),
        ];
        forward.extend(scaled_and_added(shape, out));
        part.forward.splice(at..at, forward);
        let at = part.backward.iter().position(is_product).map_or(0, |first| first + 1);
        let of_weights = Shape { precision, ..*shape };
        let backward = [
            Step::streaming("scale adapter", out, out),
            Step::gemm("adapter", 1, [tokens, rank, outer], precision),
            Step::gemm("adapter", 1, [tokens, inner, rank], precision),
            Step::streaming("add gradient", 2.0 * input, input),
        ];
        part.backward.splice(at..at, backward);
        gradients.extend(weight_gradient(&of_weights, "adapter", 1, [rank, outer, tokens]));
        gradients.extend(weight_gradient(&of_weights, "adapter", 1, [inner, rank, tokens]));
        part.kept += narrow;
    }
    // Only gradients of weights need not wait for the sum of the input's.
    if gradients.is_empty() {
        part.backward.iter_mut().for_each(|step| *step = step.beside(false));
    }
    part.backward.extend(gradients);
}

/// The scaled result of an adapter, added to that of its product: two kernels, or one where software fuses them.
fn scaled_and_added(shape: &Shape, out: Bytes) -> Vec<Step> {
    let add = Step::streaming("add adapter", 2.0 * out, out);
    match shape.stack.fused_elementwise {
        true => vec![add],
        false => vec![Step::streaming("scale adapter", out, out), add],
    }
}

fn is_product(step: &Step) -> bool {
    matches!(step.work, StepWork::Kernel { kernel: Kernel::Gemm { .. }, .. })
}

fn brings_input(step: &Step) -> bool {
    !step.is_kernel() && step.does == Does::Move(Value::Input)
}

/// Drops what makes gradients of vectors, which are frozen too.
pub(crate) fn freeze_vectors(parts: &mut [Part]) {
    parts.iter_mut().for_each(|part| part.backward.retain(|step| step.does != Does::VectorGradient));
}

/// Bytes of frozen weights on a rank, before the data axis divides them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Frozen {
    /// Of weights that the ranks of the data axis have in common.
    pub dense: u64,
    /// Of routed experts, where other ranks have these in common.
    pub routed: u64,
}

impl Frozen {
    /// Those of a layer with these elements on the rank by weight. Vectors and what is outside the blocks are not stored in fewer
    /// bits.
    pub(crate) fn of(shape: &Shape, in_block: bool, weights: &[(&Weight, u64)]) -> Self {
        let stored = shape.adapters.and_then(|adapters| adapters.base.stored()).filter(|_| in_block);
        let bytes = |routed: bool| -> u64 {
            let here = weights.iter().filter(|(weight, _)| weight.routed == routed);
            let of = |(weight, elements): &(&Weight, u64)| {
                let narrow = stored.filter(|_| !weight.is_vector());
                narrow.unwrap_or(shape.activations(1)).get() * *elements as f64
            };
            here.map(of).sum::<f64>().ceil() as u64
        };
        Self { dense: bytes(false), routed: bytes(true) }
    }
}
