//! The end of a step on one rank: what was not overlapped, the gradients' norm, the optimizer on GPU or host.

use super::emit::Emitter;
use super::offload::{Bucket, host_update, late_gradients, own_part, updated_weights};
use super::part::Shape;
use super::stage::{Stage, gather_weights, reduce_gradients};
use super::{gathers, reduces};
use crate::collective::CollectiveKind;
use crate::plan::Plan;
use crate::program::{Access, Axis, CopyDirection, HostUpdate, Kernel, Pass, Place, Segment, Stream, Work};
use crate::units::Bytes;

/// The last call of `pipeline_rank`.
pub(crate) fn segment(plan: &Plan, stages: &[Stage], pipeline_rank: usize) -> Segment {
    let shape = Shape::of(plan);
    let own = own_stages(plan, stages, pipeline_rank);
    let parameters: u64 = own.clone().map(Stage::parameters).sum();
    let replicated: u64 = own.clone().flat_map(Stage::layers).map(|layer| layer.replicated).sum();
    let gradient = shape.gradient_bytes();
    let all_reduce = |axis, bytes| Work::Collective { kind: CollectiveKind::AllReduce, axis, bytes };
    let streaming = |access, read, written| Kernel::Streaming { access, read, written };
    let mut emitter = Emitter::new(false);

    if reduces(plan) {
        let join = emitter.push("gradients reduced", Pass::Update, Stream::Data, Work::Join, Vec::new());
        emitter.wait_for(join);
    } else if plan.mesh.data > 1 {
        emitter.in_line("reduce gradients", Pass::Update, reduce_gradients(plan, parameters));
    }
    // Norms and other whole weights saw only this rank's part of the sequence.
    if shape.sequence_parallel && replicated > 0 {
        let work = all_reduce(Axis::Tensor, gradient * replicated as f64);
        emitter.in_line("reduce norm gradients", Pass::Update, work);
    }
    let ends = pipeline_rank == 0 || pipeline_rank + 1 == plan.mesh.pipeline;
    if plan.model.head.tied && plan.mesh.pipeline > 1 && ends {
        let work = all_reduce(Axis::Embedding, gradient * tied_embedding(plan) as f64);
        emitter.in_line("reduce embedding", Pass::Update, work);
    }
    let updated =
        if plan.shards_optimizer() { parameters.div_ceil(plan.mesh.data as u64) } else { parameters };
    let updated = updated as f64;
    let by_host = plan.offload.updated_by_host();
    let by_gpu = (1.0 - by_host) * updated;
    let left = (by_host > 0.0).then(|| {
        let late = own_part(plan, late_gradients(plan, own.clone())) * by_host;
        copy_late_gradients(plan, late, &mut emitter)
    });
    if plan.job.gradient_clipping {
        match plan.offload.gradients {
            None => {
                let norm = streaming(Access::Reduction, gradient * updated, Bytes::ZERO);
                emitter.in_line("gradient norm", Pass::Update, Work::Compute(norm));
            }
            Some(place) => {
                let memory = gradient * updated;
                let nvme_read = if place == Place::Nvme { memory } else { Bytes::ZERO };
                let work = Work::HostUpdate(HostUpdate { memory, nvme_read, ..HostUpdate::default() });
                let after = left.into_iter().collect();
                let norm = emitter.push("gradient norm", Pass::Update, Stream::Host, work, after);
                emitter.wait_for(norm);
            }
        }
        // The squares of all parts of the gradients: data ranks have different parts only where they are sharded.
        let parts = [
            (Axis::Tensor, plan.mesh.tensor > 1),
            (Axis::Pipeline, plan.mesh.pipeline > 1),
            (Axis::Data, plan.shards_optimizer()),
        ];
        for (axis, _) in parts.into_iter().filter(|(_, divided)| *divided) {
            emitter.in_line("reduce norm", Pass::Update, all_reduce(axis, Bytes::new(4.0)));
        }
        // The processors clip what they read as they update.
        if by_gpu > 0.0 {
            let scale = streaming(Access::Elementwise, gradient * by_gpu, gradient * by_gpu);
            emitter.in_line("clip", Pass::Update, Work::Compute(scale));
        }
    }
    let clipped = emitter.frontier();
    if by_gpu > 0.0 {
        let (read, written) = plan.state_bytes().update_traffic();
        let update = streaming(Access::Elementwise, read * by_gpu, written * by_gpu);
        emitter.in_line("optimizer", Pass::Update, Work::Compute(update));
    }
    if let Some(left) = left {
        let after = clipped.into_iter().chain([left]).collect();
        let buckets: Vec<Bucket> = own.flat_map(|stage| Bucket::all(plan, stage)).collect();
        let last = update_on_host(plan, &buckets, after, &mut emitter);
        last.into_iter().for_each(|copy| emitter.wait_for(copy));
    }
    if plan.shards_optimizer() && !gathers(plan) {
        emitter.in_line("gather weights", Pass::Update, gather_weights(plan, parameters));
    }
    Segment { name: format!("rank {pipeline_rank} update"), ops: emitter.ops }
}

/// The first call of `pipeline_rank` where updates are delayed: the processors' update with the gradients of the step
/// before.
pub(crate) fn delayed(plan: &Plan, stages: &[Stage], pipeline_rank: usize) -> Segment {
    let mut emitter = Emitter::new(false);
    for bucket in own_stages(plan, stages, pipeline_rank).flat_map(|stage| Bucket::all(plan, stage)) {
        let work = Work::HostUpdate(host_update(plan, &bucket));
        emitter.push("optimizer", Pass::Update, Stream::Host, work, Vec::new());
    }
    Segment { name: format!("rank {pipeline_rank} delayed update"), ops: emitter.ops }
}

/// Copies the gradients that were not complete during backward; returns the op with which all gradients have left.
fn copy_late_gradients(plan: &Plan, bytes: Bytes, emitter: &mut Emitter) -> usize {
    if bytes > Bytes::ZERO {
        let place = plan.offload.gradients_place();
        let work = Work::Copy { direction: CopyDirection::ToHost, place, bytes };
        let after = emitter.frontier();
        emitter.push("gradients out", Pass::Update, Stream::ToHost, work, after);
    }
    emitter.push("gradients copied", Pass::Update, Stream::ToHost, Work::Join, Vec::new())
}

/// The processors' update, bucket by bucket, and the copy of the new weights into the GPU beside the next bucket's;
/// returns the last copy. A delayed update has been done during the passes, and its weights come in now.
fn update_on_host(
    plan: &Plan,
    buckets: &[Bucket],
    after: Vec<usize>,
    emitter: &mut Emitter,
) -> Option<usize> {
    let mut last = None;
    let delayed = plan
        .offload
        .delayed_update
        .then(|| emitter.push("weights updated", Pass::Update, Stream::Host, Work::Join, after.clone()));
    for bucket in buckets {
        let updated = delayed.unwrap_or_else(|| {
            let work = Work::HostUpdate(host_update(plan, bucket));
            emitter.push("optimizer", Pass::Update, Stream::Host, work, after.clone())
        });
        if plan.offload.parameters.is_none() {
            let bytes = updated_weights(plan, bucket);
            let work = Work::Copy { direction: CopyDirection::FromHost, place: Place::Host, bytes };
            last = Some(emitter.push("weights in", Pass::Update, Stream::FromHost, work, vec![updated]));
        }
    }
    last
}

/// Parameters of the token embedding on one rank.
pub(crate) fn tied_embedding(plan: &Plan) -> u64 {
    let shape = Shape::of(plan);
    let vocabulary = shape.stack.padded_vocabulary(plan.model.vocab, shape.tensor);
    plan.model.embedding_weights(vocabulary)[0].elements_on_rank(shape.tensor)
}

/// The stages on a pipeline rank.
pub(crate) fn own_stages<'a>(
    plan: &'a Plan,
    stages: &'a [Stage],
    pipeline_rank: usize,
) -> impl Iterator<Item = &'a Stage> + Clone {
    let shape = plan.pipeline_shape();
    stages.iter().filter(move |stage| plan.schedule().rank_of(stage.index, shape) == pipeline_rank)
}
