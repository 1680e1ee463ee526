//! What a plan's step does about the state of some layers, whatever they compute: for bounds, which must not restate how a data
//! scheme gathers, reduces and updates.

use crate::adapters::Frozen;
use crate::data::divisor;
use crate::matrices::Matrices;
use crate::part::Part;
use crate::passes::BackwardPart;
use crate::stage::{Layer, Stage, Variant};
use crate::step::{Half, Step};
use crate::{process, update};
use trainwright_spec::plan::{Plan, Recompute};
use trainwright_spec::precision::Precision;
use trainwright_spec::program::{Axis, Kernel, Module, Segment};
use trainwright_spec::units::Bytes;

/// Parameters of a layer on one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LayerParameters {
    /// Those that the ranks of the data axis have in common.
    pub dense: u64,
    /// Those of routed experts, where other ranks have these in common.
    pub routed: u64,
    /// Those in matrices that the optimizer updates as such: of the former, and of the latter.
    pub matrices: [u64; 2],
    /// Weights that are not trained.
    pub frozen: Frozen,
}

/// The segments of a stage whose layers have parameters and compute nothing: of all that their ops do, only what moves and updates
/// state takes time.
#[derive(Debug, Clone)]
pub struct StateSegments {
    /// Forward of a microbatch; the second of each pair carries what the data axis does once in a step.
    pub forward: [Segment; 2],
    /// Whole backward passes.
    pub backward: [Segment; 2],
    /// The first halves of backward, which make the input's gradient.
    pub input: [Segment; 2],
    /// The second halves.
    pub weight: [Segment; 2],
}

impl StateSegments {
    /// Those of a stage of these layers, in the order of forward. The plan need not have stages.
    pub fn of(plan: &Plan, layers: &[LayerParameters]) -> Self {
        let stage = stage(layers);
        let variants = [Variant::Plain, Variant::Data];
        let backward = |part| variants.map(|variant| stage.backward(plan, part, variant));
        Self {
            forward: variants.map(|variant| stage.forward(plan, variant)),
            backward: backward(BackwardPart::Whole),
            input: backward(BackwardPart::Input),
            weight: backward(BackwardPart::Weight),
        }
    }
}

/// The update of a rank with these parameters, fewer by the remainders that its data axis leaves when it divides them. Of what it
/// does with whole matrices there is nothing: their sizes are not given.
pub fn update_segment(plan: &Plan, parameters: LayerParameters) -> Segment {
    let even = |axis, parameters: u64| match parameters {
        0 => 0,
        some => some - some % divisor(plan, axis) as u64,
    };
    let LayerParameters { dense, routed, matrices, frozen } = parameters;
    let parts = [(Axis::Data, dense, matrices[0]), (Axis::ExpertData, routed, matrices[1])];
    let [dense, routed] =
        parts.map(|(axis, all, matrices)| [even(axis, all - matrices), even(axis, matrices)]);
    let shard = LayerParameters {
        dense: dense.iter().sum(),
        routed: routed.iter().sum(),
        matrices: [dense[1], routed[1]],
        frozen,
    };
    let mut segment = update::segment(plan, &[stage(&[shard])], 0);
    process::add_traffic(plan, &mut segment);
    segment
}

/// The first stage of a pipeline, which is all of it.
fn stage(layers: &[LayerParameters]) -> Stage {
    // The smallest part that has both halves of backward.
    let kernel = Kernel::Gemm { count: 1, m: 1, n: 1, k: 1, precision: Precision::Fp32, adds_to: None };
    let step = |half| Step { half, ..Step::kernel("none", kernel, Bytes::ZERO) };
    let part = Part {
        module: Module::Unnamed,
        forward: vec![step(Half::Input)],
        backward: vec![step(Half::Input), step(Half::Weight)],
        ..Part::default()
    };
    let parts = std::rc::Rc::new(vec![part]);
    let layer = |(index, parameters): (usize, &LayerParameters)| Layer {
        block: Some(index),
        parts: parts.clone(),
        recompute: Recompute::None,
        parameters: parameters.dense + parameters.routed,
        routed: parameters.routed,
        matrices: Matrices::without_sizes(parameters.matrices),
        frozen: parameters.frozen,
        summands: Vec::new(),
        tensors: 1,
        quantised: 0,
    };
    Stage::of_blocks(layers.iter().enumerate().map(layer).collect())
}
