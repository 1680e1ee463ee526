//! Which layers of a model are whose.

use crate::train::parameters::Layer;
use crate::train::sizes::Sizes;
use std::collections::BTreeSet;
use trainwright_spec::plan::Plan;

/// The layers that a rank holds.
pub(crate) fn layers_of(plan: &Plan, sizes: &Sizes) -> BTreeSet<Layer> {
    let layers = stage_layers(plan);
    let runs = |stage: &usize| plan.schedule().rank_of(*stage, plan.pipeline_shape()) == sizes.at.pipeline;
    let stages = (0..plan.schedule().copies() * layers.len()).filter(runs);
    stages.flat_map(|stage| layers[stage % layers.len()].clone()).collect()
}

/// The layers of each stage in the order of forward.
pub(crate) fn stage_layers(plan: &Plan) -> Vec<Vec<Layer>> {
    let stages = plan.stage_blocks();
    let layers = |(stage, blocks): (usize, &Vec<_>)| {
        let embedding = (stage == 0).then_some(Layer::Embedding);
        let head = (stage + 1 == stages.len()).then_some(Layer::Head);
        let blocks = blocks.iter().map(|(index, ..): &(usize, _, _)| Layer::Block(*index));
        embedding.into_iter().chain(blocks).chain(head).collect()
    };
    stages.iter().enumerate().map(layers).collect()
}
