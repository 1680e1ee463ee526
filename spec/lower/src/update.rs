//! The end of a step on one rank: what was not overlapped, the gradients' norm, the optimizer on GPU or host.

use crate::data::{Copies, gathers, gathers_updated, reductions, shard_axis};
use crate::emit::Emitter;
use crate::linear::quantise;
use crate::offload::{Bucket, host_update, late_copies, updated_weights};
use crate::process::close_step;
use crate::shape::Shape;
use crate::stage::{Stage, ends_apart, own_stages, tied_embedding};
use crate::step::StepWork;
use std::collections::BTreeMap;
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::data::{Divided, Reduction};
use trainwright_spec::plan::Plan;
use trainwright_spec::program::{
    Access, Axis, CopyDirection, HostUpdate, Kernel, LayerSpan, Pass, Place, Segment, Stream, Task,
    UpdateStep, Work,
};
use trainwright_spec::stack::Fusion;
use trainwright_spec::units::Bytes;

/// The last call of `pipeline_rank`.
pub(crate) fn segment(plan: &Plan, stages: &[Stage], pipeline_rank: usize) -> Segment {
    let shape = Shape::of(plan);
    let own = own_stages(plan, stages, pipeline_rank);
    let copies = Copies::of_all(plan, own.clone().flat_map(Stage::layers));
    let mut summands: BTreeMap<Axis, u64> = BTreeMap::new();
    for (axis, elements) in own.clone().flat_map(Stage::layers).flat_map(|layer| &layer.summands) {
        *summands.entry(*axis).or_default() += elements;
    }
    let gradient = shape.gradient_bytes();
    let all_reduce = |axis, bytes| Work::Collective { kind: CollectiveKind::AllReduce, axis, bytes };
    let streaming = |access, read, written| Kernel::Streaming { access, read, written };
    let mut emitter = Emitter::new(false);

    let several = plan.replicates_weights();
    if several && plan.stack.overlap_gradient_reduction {
        let join = emitter.push("gradients reduced", Pass::Update, Stream::Data, Work::Join, Vec::new());
        emitter.wait_for(join);
    } else if several && plan.reduction() == Reduction::LastMicrobatch {
        for work in reductions(plan, &copies) {
            step(&mut emitter, "reduce gradients", UpdateStep::ReduceGradients, work);
        }
    }
    // A rank sums what it still holds of the gradients.
    let held = if plan.shards_gradients() { gradient / plan.mesh.shard() as f64 } else { gradient };
    // Norms and other weights that several ranks hold saw only this rank's tokens.
    for (axis, elements) in summands {
        let work = all_reduce(axis, held * elements as f64);
        step(&mut emitter, "reduce norm gradients", UpdateStep::SumWhole, work);
    }
    // Both copies of a stage have seen half of the microbatches.
    let both_ways = plan.schedule().copies() > 1;
    if both_ways && plan.mesh.pipeline > 1 {
        let work = all_reduce(Axis::Mirror, gradient * copies.updated(plan) as f64);
        step(&mut emitter, "reduce copies", UpdateStep::SumCopies, work);
    }
    // With two copies the ends hold the same: their sum is that of all copies of the tied embedding.
    let ends = pipeline_rank == 0 || pipeline_rank + 1 == plan.mesh.pipeline;
    if plan.model.head.tied && ends_apart(plan) && ends && !both_ways {
        let work = all_reduce(Axis::Embedding, held * tied_embedding(plan) as f64);
        step(&mut emitter, "reduce embedding", UpdateStep::SumEmbedding, work);
    }
    let updated = copies.updated(plan) as f64;
    let by_host = plan.offload.updated_by_host();
    let by_gpu = (1.0 - by_host) * updated;
    let left = (by_host > 0.0).then(|| {
        let late = late_copies(plan, own.clone()).own(plan) * by_host;
        copy_late_gradients(plan, gradient * late, &mut emitter)
    });
    if plan.job.gradient_clipping {
        match plan.offload.gradients {
            None => {
                let norm = streaming(Access::Reduction, gradient * updated, Bytes::ZERO);
                step(&mut emitter, "gradient norm", UpdateStep::SquareNorm, Work::Compute(norm));
            }
            Some(place) => {
                let memory = gradient * updated;
                let nvme_read = if place == Place::Nvme { memory } else { Bytes::ZERO };
                let work = Work::HostUpdate(HostUpdate { memory, nvme_read, ..HostUpdate::default() });
                let after = left.into_iter().collect();
                let norm = emitter.push("gradient norm", Pass::Update, Stream::Host, work, after);
                emitter.ops[norm].task = Task::Update(UpdateStep::SquareNorm);
                emitter.wait_for(norm);
            }
        }
        // The squares of all parts of the gradients: data ranks have different parts only where they are sharded.
        for axis in dividing_axes(plan) {
            let work = all_reduce(axis, Bytes::new(4.0));
            step(&mut emitter, "reduce norm", UpdateStep::SumNorm, work);
        }
        // The processors clip what they read as they update.
        if by_gpu > 0.0 {
            let scale = streaming(Access::Elementwise, gradient * by_gpu, gradient * by_gpu);
            step(&mut emitter, "clip", UpdateStep::Clip, Work::Compute(scale));
        }
    }
    // A layer-wise optimizer compares each tensor with its update: all parts of both.
    if plan.job.optimizer().extra_traffic() > Bytes::ZERO {
        let tensors: u64 = own.clone().flat_map(Stage::layers).map(|layer| layer.tensors).sum();
        for axis in dividing_axes(plan).filter(|axis| *axis != Axis::Pipeline) {
            let work = all_reduce(axis, Bytes::new(8.0 * tensors as f64));
            step(&mut emitter, "reduce ratios", UpdateStep::SumRatios, work);
        }
    }
    let clipped = emitter.frontier();
    if by_gpu > 0.0 {
        let (read, written) = plan.state_bytes().update_traffic();
        let launches = pieces(plan.stack.optimizer, own.clone());
        let by_gpu = by_gpu / launches as f64;
        let update = streaming(Access::Elementwise, read * by_gpu, written * by_gpu);
        for _ in 0..launches {
            step(&mut emitter, "optimizer", UpdateStep::Optimize, Work::Compute(update));
        }
    }
    if let Some(left) = left {
        let after = clipped.into_iter().chain([left]).collect();
        let all = |stage: &Stage| {
            let (number, layers) = (stage.number, stage.layers().count());
            let tasks = move |bucket: Bucket| {
                let layers = LayerSpan::of_pass(Pass::Backward, bucket.first, bucket.last + 1, layers);
                (bucket, Task::UpdateBeside { stage: number, layers })
            };
            Bucket::all(plan, stage).into_iter().map(tasks).collect::<Vec<_>>()
        };
        let buckets: Vec<(Bucket, Task)> = own.clone().flat_map(all).collect();
        let last = update_on_host(plan, &buckets, after, &mut emitter);
        last.into_iter().for_each(|copy| emitter.wait_for(copy));
    }
    if plan.shards_optimizer() && !plan.divides(Divided::Weights) && !gathers_updated(plan) {
        let pieces = pieces(plan.stack.weight_gather, own);
        for work in gathers(plan, &copies).into_iter().flat_map(|work| divided(work, pieces)) {
            step(&mut emitter, "gather weights", UpdateStep::GatherWeights, work);
        }
    }
    let quantised = own_stages(plan, stages, pipeline_rank).map(Stage::quantised).sum::<u64>() as usize;
    for own in quantise(&shape, plan.job.precision, quantised).filter(|_| quantised > 0) {
        if let StepWork::Kernel { kernel, .. } = own.work {
            step(&mut emitter, "quantise weights", UpdateStep::QuantiseWeights, Work::Compute(kernel));
        }
    }
    close_step(plan, &mut emitter);
    Segment { name: format!("rank {pipeline_rank} update"), ops: emitter.ops }
}

/// In how many pieces the weights of some stages are updated or gathered.
fn pieces<'a>(fusion: Fusion, stages: impl Iterator<Item = &'a Stage>) -> u64 {
    match fusion {
        Fusion::Fused => 1,
        Fusion::Separate => stages.flat_map(Stage::layers).map(|layer| layer.tensors).sum(),
    }
}

/// A collective as so many equal ones.
fn divided(work: Work, pieces: u64) -> Vec<Work> {
    match work {
        Work::Collective { kind, axis, bytes } => {
            vec![Work::Collective { kind, axis, bytes: bytes * (1.0 / pieces as f64) }; pieces as usize]
        }
        whole => vec![whole],
    }
}

/// The axes whose ranks update different weights, or different pieces of the same.
fn dividing_axes(plan: &Plan) -> impl Iterator<Item = Axis> + use<> {
    let parts = [
        (Axis::Tensor, plan.mesh.tensor > 1),
        (Axis::Pipeline, plan.mesh.pipeline > 1),
        (shard_axis(plan), plan.shards_optimizer()),
        (Axis::ExpertTensor, plan.mesh.experts_apart() && plan.mesh.expert_tensor() > 1),
        (Axis::Expert, plan.mesh.expert > 1),
        (Axis::ExpertData, plan.mesh.experts_apart() && plan.shards_optimizer()),
    ];
    parts.into_iter().filter(|(_, divided)| *divided).map(|(axis, _)| axis)
}

/// A step of the update, in line with the kernels.
fn step(emitter: &mut Emitter, module: &'static str, step: UpdateStep, work: Work) {
    let op = emitter.in_line(module, Pass::Update, work);
    emitter.ops[op].task = Task::Update(step);
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
        let op = emitter.push("gradients out", Pass::Update, Stream::ToHost, work, after);
        emitter.ops[op].task = Task::Carry;
    }
    emitter.push("gradients copied", Pass::Update, Stream::ToHost, Work::Join, Vec::new())
}

/// The processors' update, bucket by bucket, and the copy of the new weights into the GPU beside the next bucket's;
/// returns the last copy. A delayed update has been done during the passes, and its weights come in now.
fn update_on_host(
    plan: &Plan,
    buckets: &[(Bucket, Task)],
    after: Vec<usize>,
    emitter: &mut Emitter,
) -> Option<usize> {
    let mut last = None;
    let delayed = plan
        .offload
        .delayed_update
        .then(|| emitter.push("weights updated", Pass::Update, Stream::Host, Work::Join, after.clone()));
    for (bucket, task) in buckets {
        let updated = delayed.unwrap_or_else(|| {
            let work = Work::HostUpdate(host_update(plan, bucket));
            let op = emitter.push("optimizer", Pass::Update, Stream::Host, work, after.clone());
            emitter.ops[op].task = *task;
            op
        });
        if plan.offload.parameters.is_none() {
            let bytes = updated_weights(plan, bucket);
            let work = Work::Copy { direction: CopyDirection::FromHost, place: Place::Host, bytes };
            let op = emitter.push("weights in", Pass::Update, Stream::FromHost, work, vec![updated]);
            emitter.ops[op].task = Task::Carry;
            last = Some(op);
        }
    }
    last
}
