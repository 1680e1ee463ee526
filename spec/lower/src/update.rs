//! The end of a step on one rank: what was not overlapped, the gradients' norm, the optimizer on GPU or host.

use crate::data::{
    Copies, Trained, divisor, gathers, gathers_matrices, gathers_updated, reductions, shard_axis,
};
use crate::emit::Emitter;
use crate::linear::quantise;
use crate::matrices::{Matrices, MatrixWork};
use crate::offload::{Bucket, host_update, late_copies, updated_weights};
use crate::process::close_step;
use crate::shape::Shape;
use crate::stage::{Layer, Stage, stages_on, sums_tied_embedding, tied_embedding};
use crate::step::StepWork;
use std::collections::BTreeMap;
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::data::{Divided, Reduction};
use trainwright_spec::optimizer::Rule;
use trainwright_spec::plan::Plan;
use trainwright_spec::program::{
    Access, Axis, CollectiveCall, CopyDirection, HostUpdate, Kernel, LayerSpan, Pass, Place, Segment, Stream,
    Task, UpdateStep, Work,
};
use trainwright_spec::stack::{Fusion, WeightGather};
use trainwright_spec::units::Bytes;

/// The last call of `pipeline_rank`.
pub(crate) fn segment(plan: &Plan, stages: &[Stage], pipeline_rank: usize) -> Segment {
    let stages: Vec<&Stage> = stages_on(plan, stages, pipeline_rank).collect();
    let copies = Copies::of_all(plan, stages.iter().flat_map(|stage| stage.layers()));
    let gradient = Shape::of(plan).gradient_bytes();
    let updated = copies.updated(plan);
    let by_gpu = (1.0 - plan.offload.updated_by_host()) * updated.all as f64;
    let emitter = Emitter::new(false);
    let mut update = Update { plan, pipeline_rank, stages, copies, updated, gradient, by_gpu, emitter };
    update.reduce_gradients();
    update.sum_shared_gradients();
    let copied = (plan.offload.updated_by_host() > 0.0).then(|| update.copy_late_gradients());
    if plan.job.gradient_clipping {
        update.clip(copied);
    }
    update.reduce_ratios();
    update.multiply_matrices();
    let clipped = update.emitter.frontier();
    update.optimize_on_gpu();
    if let Some(copied) = copied {
        update.optimize_on_host(clipped.into_iter().chain([copied]).collect());
    }
    update.gather_weights();
    update.quantise_weights();
    close_step(plan, &mut update.emitter);
    Segment { name: format!("rank {pipeline_rank} update"), ops: update.emitter.ops }
}

/// The update of one pipeline rank under construction: each method adds the ops of one of its steps.
struct Update<'a> {
    plan: &'a Plan,
    pipeline_rank: usize,
    /// The stages of the rank.
    stages: Vec<&'a Stage>,
    /// Their parameters on one rank.
    copies: Copies,
    /// Those that it updates.
    updated: Trained,
    /// Bytes of one accumulated gradient element.
    gradient: Bytes,
    /// Parameters that this rank's GPU updates.
    by_gpu: f64,
    emitter: Emitter,
}

impl<'a> Update<'a> {
    /// A step of the update, in line with the kernels.
    fn step(&mut self, module: &'static str, step: UpdateStep, work: Work) {
        let op = self.emitter.in_line(module, Pass::Update, work);
        self.emitter.ops[op].task = Task::Update(step);
    }

    fn all_reduce(&mut self, module: &'static str, step: UpdateStep, axis: Axis, bytes: Bytes) {
        let call = CollectiveCall::Single;
        self.step(module, step, Work::Collective { kind: CollectiveKind::AllReduce, axis, bytes, call });
    }

    fn layers(&self) -> impl Iterator<Item = &'a Layer> + use<'_, 'a> {
        self.stages.iter().flat_map(|stage| stage.layers())
    }

    /// Sums gradients over the ranks with the same weights, or waits for the sums that backward began.
    fn reduce_gradients(&mut self) {
        if !self.plan.replicates_weights() {
            return;
        }
        if self.plan.stack.overlap_gradient_reduction {
            let stream = Stream::Data;
            let join = self.emitter.push("gradients reduced", Pass::Update, stream, Work::Join, Vec::new());
            self.emitter.wait_for(join);
        } else if self.plan.reduction() == Reduction::LastMicrobatch {
            for work in reductions(self.plan, &self.copies) {
                self.step("reduce gradients", UpdateStep::ReduceGradients, work);
            }
        }
    }

    /// Sums the gradients of weights that several ranks hold and of which each rank saw a part of the tokens.
    fn sum_shared_gradients(&mut self) {
        let plan = self.plan;
        // A rank sums what it still holds of the gradients.
        let held = match plan.shards_gradients() {
            true => self.gradient / plan.mesh.shard() as f64,
            false => self.gradient,
        };
        let mut summands: BTreeMap<Axis, u64> = BTreeMap::new();
        for (axis, elements) in self.layers().flat_map(|layer| &layer.summands) {
            *summands.entry(*axis).or_default() += elements;
        }
        for (axis, elements) in summands {
            let bytes = held * elements as f64;
            self.all_reduce("reduce norm gradients", UpdateStep::SumReplicated, axis, bytes);
        }
        // Both copies of a stage have seen half of the microbatches.
        let both_ways = plan.schedule().copies() > 1;
        if both_ways && plan.mesh.pipeline > 1 {
            let bytes = self.gradient * self.updated.all as f64;
            self.all_reduce("reduce copies", UpdateStep::SumCopies, Axis::Mirror, bytes);
        }
        // With two copies the ends hold the same: their sum is that of all copies of the tied embedding.
        let ends = self.pipeline_rank == 0 || self.pipeline_rank + 1 == plan.mesh.pipeline;
        if sums_tied_embedding(plan) && ends && !both_ways {
            let bytes = held * tied_embedding(plan) as f64;
            self.all_reduce("reduce embedding", UpdateStep::SumEmbedding, Axis::Embedding, bytes);
        }
    }

    /// Copies the gradients that were not complete during backward; returns the op with which all gradients have left.
    fn copy_late_gradients(&mut self) -> usize {
        let offload = &self.plan.offload;
        let late = late_copies(self.plan, self.stages.iter().copied()).mean_share(self.plan);
        let bytes = self.gradient * (late * offload.updated_by_host());
        let stream = Stream::ToHost;
        if bytes > Bytes::ZERO {
            let place = offload.gradients_place();
            let work = Work::Copy { direction: CopyDirection::ToHost, place, bytes };
            let after = self.emitter.frontier();
            let op = self.emitter.push("gradients out", Pass::Update, stream, work, after);
            self.emitter.ops[op].task = Task::Carry;
        }
        self.emitter.push("gradients copied", Pass::Update, stream, Work::Join, Vec::new())
    }

    /// The norm of all gradients, and the scaling of those that the GPU updates with; the processors scale what they read
    /// as they update. `copied` is the op with which gradients have left the GPU.
    fn clip(&mut self, copied: Option<usize>) {
        let gradients = self.gradient * self.updated.all as f64;
        match self.plan.offload.gradients {
            None => {
                let work = streaming(Access::Reduction, gradients, Bytes::ZERO);
                self.step("gradient norm", UpdateStep::SquareNorm, work);
            }
            Some(place) => {
                let nvme_read = if place == Place::Nvme { gradients } else { Bytes::ZERO };
                let update = HostUpdate { memory: gradients, nvme_read, ..HostUpdate::default() };
                let (work, after) = (Work::HostUpdate(update), copied.into_iter().collect());
                let norm = self.emitter.push("gradient norm", Pass::Update, Stream::Host, work, after);
                self.emitter.ops[norm].task = Task::Update(UpdateStep::SquareNorm);
                self.emitter.wait_for(norm);
            }
        }
        // The squares of all parts of the gradients: data ranks have different parts only where they are sharded.
        for axis in dividing_axes(self.plan) {
            self.all_reduce("reduce norm", UpdateStep::SumNorm, axis, Bytes::new(4.0));
        }
        if self.by_gpu > 0.0 {
            let scaled = self.gradient * self.by_gpu;
            self.step("clip", UpdateStep::Clip, streaming(Access::Elementwise, scaled, scaled));
        }
    }

    /// A layer-wise optimizer compares each tensor with its update: all parts of both.
    fn reduce_ratios(&mut self) {
        if self.plan.job.optimizer().extra_traffic() == Bytes::ZERO {
            return;
        }
        let ratios = Bytes::new(8.0 * self.tensors() as f64);
        for axis in dividing_axes(self.plan).filter(|axis| *axis != Axis::Pipeline) {
            self.all_reduce("reduce ratios", UpdateStep::SumRatios, axis, ratios);
        }
    }

    /// Tensors that the rank updates.
    fn tensors(&self) -> u64 {
        self.layers().map(|layer| layer.tensors).sum()
    }

    /// How many launches or calls go over all tensors: one, or one for each.
    fn launches(&self, fusion: Fusion) -> u64 {
        match fusion {
            Fusion::Fused => 1,
            Fusion::Separate => self.tensors(),
        }
    }

    fn optimize_on_gpu(&mut self) {
        if self.by_gpu <= 0.0 {
            return;
        }
        let launches = self.launches(self.plan.stack.optimizer);
        let matrices = self.updated.matrices as f64;
        let by_rule = [(Rule::Elements, self.by_gpu - matrices), (Rule::Matrices, matrices)];
        let (mut read, mut written) = (Bytes::ZERO, Bytes::ZERO);
        for (rule, parameters) in by_rule {
            let (reads, writes) = self.plan.state_bytes_by(rule).update_traffic();
            let elements = parameters / launches as f64;
            (read, written) = (read + reads * elements, written + writes * elements);
        }
        for _ in 0..launches {
            self.step("optimizer", UpdateStep::Optimize, streaming(Access::Elementwise, read, written));
        }
    }

    /// What an optimizer of matrices computes with them: gathers those that it needs whole, then multiplies.
    fn multiply_matrices(&mut self) {
        let plan = self.plan;
        let Some(rule) = plan.job.optimizer().of_matrices() else { return };
        let matrices: Vec<Matrices> =
            self.layers().flat_map(|layer| layer.matrices.iter().copied()).collect();
        let work = MatrixWork::of(plan, rule, &matrices, |axis| divisor(plan, axis));
        let Some(Kernel::Gemm { precision, .. }) = work.products.first() else { return };
        let element = precision.storage_bytes();
        if rule.needs_whole() {
            for work in gathers_matrices(plan, &self.copies, element) {
                self.step("gather momenta", UpdateStep::GatherMomenta, work);
            }
        }
        for (axis, elements) in work.gathered {
            let (kind, call) = (CollectiveKind::AllGather, CollectiveCall::Single);
            let work = Work::Collective { kind, axis, bytes: element * elements as f64, call };
            self.step("gather momenta", UpdateStep::GatherMomenta, work);
        }
        for kernel in work.products {
            self.step("matrices", UpdateStep::MultiplyMatrices, Work::Compute(kernel));
        }
    }

    /// The processors' update, bucket by bucket, and the copy of the new weights into the GPU during the next bucket's
    /// update. A delayed update has been done during the passes, and its weights come in now.
    fn optimize_on_host(&mut self, after: Vec<usize>) {
        let (plan, emitter) = (self.plan, &mut self.emitter);
        let delayed = plan
            .offload
            .delayed_update
            .then(|| emitter.push("weights updated", Pass::Update, Stream::Host, Work::Join, after.clone()));
        let mut last_copy = None;
        for stage in &self.stages {
            for bucket in Bucket::all(plan, stage) {
                let updated = delayed.unwrap_or_else(|| {
                    let work = Work::HostUpdate(host_update(plan, &bucket));
                    let op = emitter.push("optimizer", Pass::Update, Stream::Host, work, after.clone());
                    let count = stage.layers().count();
                    let layers = LayerSpan::of_pass(Pass::Backward, bucket.first, bucket.last + 1, count);
                    emitter.ops[op].task = Task::UpdateOffloaded { stage: stage.number, layers };
                    op
                });
                if plan.offload.parameters.is_none() {
                    let bytes = updated_weights(plan, &bucket);
                    let work = Work::Copy { direction: CopyDirection::FromHost, place: Place::Host, bytes };
                    let op = emitter.push("weights in", Pass::Update, Stream::FromHost, work, vec![updated]);
                    emitter.ops[op].task = Task::Carry;
                    last_copy = Some(op);
                }
            }
        }
        last_copy.into_iter().for_each(|copy| emitter.wait_for(copy));
    }

    /// Gathers updated weights, if their ranks hold shards of the optimizer's state and whole weights.
    fn gather_weights(&mut self) {
        let plan = self.plan;
        if !plan.shards_optimizer() || plan.divides(Divided::Weights) || gathers_updated(plan) {
            return;
        }
        let (calls, call) = match plan.stack.weight_gather {
            WeightGather::Fused => (1, CollectiveCall::Single),
            WeightGather::Separate => (self.tensors(), CollectiveCall::Single),
            WeightGather::Coalesced => (self.tensors(), CollectiveCall::Coalesced),
        };
        for work in gathers(plan, &self.copies) {
            for work in divided(work, calls, call) {
                self.step("gather weights", UpdateStep::GatherWeights, work);
            }
        }
    }

    /// Makes operands in a narrower format of the updated weights.
    fn quantise_weights(&mut self) {
        let elements: u64 = self.stages.iter().map(|stage| stage.quantised()).sum();
        if elements == 0 || self.plan.job.adapters.is_some() {
            return;
        }
        let shape = Shape::of(self.plan);
        for step in quantise(&shape, self.plan.job.precision, elements as usize) {
            if let StepWork::Kernel { kernel, .. } = step.work {
                self.step("quantise weights", UpdateStep::QuantiseWeights, Work::Compute(kernel));
            }
        }
    }
}

fn streaming(access: Access, read: Bytes, written: Bytes) -> Work {
    Work::Compute(Kernel::Streaming { access, read, written })
}

/// A collective as `parts` equal ones, each performed by `call`.
fn divided(work: Work, parts: u64, call: CollectiveCall) -> Vec<Work> {
    match work {
        Work::Collective { kind, axis, bytes, .. } => {
            let part = Work::Collective { kind, axis, bytes: bytes * (1.0 / parts as f64), call };
            vec![part; parts as usize]
        }
        work => vec![work],
    }
}

/// The axes whose ranks update different weights, or different shards of the same weights.
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

/// The first call of `pipeline_rank` where updates are delayed: the processors' update with the gradients of the step
/// before.
pub(crate) fn delayed(plan: &Plan, stages: &[Stage], pipeline_rank: usize) -> Segment {
    let mut emitter = Emitter::new(false);
    for bucket in stages_on(plan, stages, pipeline_rank).flat_map(|stage| Bucket::all(plan, stage)) {
        let work = Work::HostUpdate(host_update(plan, &bucket));
        emitter.push("optimizer", Pass::Update, Stream::Host, work, Vec::new());
    }
    Segment { name: format!("rank {pipeline_rank} delayed update"), ops: emitter.ops }
}
