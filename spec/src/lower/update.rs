//! The end of a step on one rank: what was not overlapped, the gradients' norm, the optimizer.

use super::data::{Copies, gathers, gathers_updated, held_again, reductions, shard_axis};
use super::emit::Emitter;
use super::part::{Shape, Step, quantise};
use super::stage::{Stage, ends_apart};
use crate::collective::CollectiveKind;
use crate::data::{Divided, Reduction};
use crate::optimizer::update_traffic;
use crate::plan::Plan;
use crate::program::{Access, Axis, Kernel, Pass, Segment, Stream, Work};
use crate::stack::Fusion;
use crate::units::Bytes;
use std::collections::BTreeMap;

/// The last call of `pipeline_rank`.
pub(crate) fn segment(plan: &Plan, stages: &[Stage], pipeline_rank: usize) -> Segment {
    let shape = Shape::of(plan);
    let own = own_stages(plan, stages, pipeline_rank);
    let copies = Copies::of_all(plan, own.clone().flat_map(Stage::layers));
    let mut summands: BTreeMap<Axis, u64> = BTreeMap::new();
    for (axis, elements) in own.flat_map(Stage::layers).flat_map(|layer| &layer.summands) {
        *summands.entry(*axis).or_default() += elements;
    }
    let gradient = shape.gradient_bytes();
    let all_reduce = |axis, bytes| Work::Collective { kind: CollectiveKind::AllReduce, axis, bytes };
    let streaming = |access, read, written| Kernel::Streaming { access, read, written };
    let mut emitter = Emitter::new(false);

    let several = held_again(plan);
    if several && plan.stack.overlap_gradient_reduction {
        let join = emitter.push("gradients reduced", Pass::Update, Stream::Data, Work::Join, Vec::new());
        emitter.wait_for(join);
    } else if several && plan.reduction() == Reduction::LastMicrobatch {
        for work in reductions(plan, &copies) {
            emitter.in_line("reduce gradients", Pass::Update, work);
        }
    }
    // A rank sums what it still holds of the gradients.
    let held = if plan.shards_gradients() { gradient / plan.mesh.shard() as f64 } else { gradient };
    // Norms and other weights that several ranks hold saw only this rank's tokens.
    for (axis, elements) in summands {
        let work = all_reduce(axis, held * elements as f64);
        emitter.in_line("reduce norm gradients", Pass::Update, work);
    }
    // Both copies of a stage have seen half of the microbatches.
    let both_ways = plan.schedule().copies() > 1;
    if both_ways && plan.mesh.pipeline > 1 {
        let work = all_reduce(Axis::Mirror, gradient * copies.updated(plan) as f64);
        emitter.in_line("reduce copies", Pass::Update, work);
    }
    // With two copies the ends hold the same: their sum is that of all copies of the tied embedding.
    let ends = pipeline_rank == 0 || pipeline_rank + 1 == plan.mesh.pipeline;
    if plan.model.head.tied && ends_apart(plan) && ends && !both_ways {
        let vocabulary = shape.stack.padded_vocabulary(plan.model.vocab, shape.tensor);
        let table = plan.model.embedding_weights(vocabulary)[0];
        let elements = shape.scheme.elements_on_rank(&shape.grid, &table);
        let work = all_reduce(Axis::Embedding, held * elements as f64);
        emitter.in_line("reduce embedding", Pass::Update, work);
    }
    let updated = copies.updated(plan) as f64;
    if plan.job.gradient_clipping {
        let norm = streaming(Access::Reduction, gradient * updated, Bytes::ZERO);
        emitter.in_line("gradient norm", Pass::Update, Work::Compute(norm));
        // The squares of all parts of the gradients: data ranks have different parts only where they are sharded.
        let parts = [
            (Axis::Tensor, plan.mesh.tensor > 1),
            (Axis::Pipeline, plan.mesh.pipeline > 1),
            (shard_axis(plan), plan.shards_optimizer()),
            (Axis::ExpertTensor, plan.mesh.experts_apart() && plan.mesh.expert_tensor() > 1),
            (Axis::Expert, plan.mesh.expert > 1),
            (Axis::ExpertData, plan.mesh.experts_apart() && plan.shards_optimizer()),
        ];
        for (axis, _) in parts.into_iter().filter(|(_, divided)| *divided) {
            emitter.in_line("reduce norm", Pass::Update, all_reduce(axis, Bytes::new(4.0)));
        }
        let scale = streaming(Access::Elementwise, gradient * updated, gradient * updated);
        emitter.in_line("clip", Pass::Update, Work::Compute(scale));
    }
    let (read, written) = update_traffic(plan.job.optimizer(), plan.job.precision, gradient);
    let launches = match plan.stack.optimizer {
        Fusion::Fused => 1,
        Fusion::Separate => {
            own_stages(plan, stages, pipeline_rank).flat_map(Stage::layers).map(|layer| layer.tensors).sum()
        }
    };
    let updated = updated / launches as f64;
    let update = streaming(Access::Elementwise, read * updated, written * updated);
    for _ in 0..launches {
        emitter.in_line("optimizer", Pass::Update, Work::Compute(update));
    }
    if plan.shards_optimizer() && !plan.divides(Divided::Weights) && !gathers_updated(plan) {
        for work in gathers(plan, &copies) {
            emitter.in_line("gather weights", Pass::Update, work);
        }
    }
    let quantised = own_stages(plan, stages, pipeline_rank).map(Stage::quantised).sum::<u64>() as usize;
    for step in quantise(&shape, plan.job.precision, quantised).filter(|_| quantised > 0) {
        if let Step::Kernel { kernel, .. } = step {
            emitter.in_line("quantise weights", Pass::Update, Work::Compute(kernel));
        }
    }
    Segment { name: format!("rank {pipeline_rank} update"), ops: emitter.ops }
}

/// The stages on a pipeline rank.
pub(crate) fn own_stages<'a>(
    plan: &'a Plan,
    stages: &'a [Stage],
    pipeline_rank: usize,
) -> impl Iterator<Item = &'a Stage> + Clone {
    let shape = plan.pipeline_shape();
    stages.iter().filter(move |stage| plan.schedule().rank_of(stage.number, shape) == pipeline_rank)
}
