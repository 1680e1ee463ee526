//! HostCopies between a GPU and its host in the passes of a stage, and what the copied layers hold of the GPU.
//!
//! ```text
//! forward:   block k        runs once its weights are there; those of k + 1 are fetched meanwhile
//!            its activations leave when it has ended; block k + 2 waits until they have
//! backward:  block k        runs once its weights and activations are there; those of k − 1 are fetched meanwhile
//!            its gradients leave when their bucket is complete; the bucket after the next waits until they have
//! ```
//!
//! So a GPU holds two layers, or two buckets, of whatever is offloaded. A pass begins when the copies of earlier passes
//! that it would add to have left, and fetches nothing before it begins.
//! These are the two buffers of ZeRO-Offload (arXiv 2101.06840, section 4) and the prefetching of ZeRO-Infinity
//! (arXiv 2104.07857, section 6), of one layer.

use crate::data::{Copies, buckets};
use crate::emit::Emitter;
use crate::recompute::backward_peak;
use crate::stage::{Layer, Stage, late_parameters};
use trainwright_spec::plan::Plan;
use trainwright_spec::program::{
    CopyDirection, HostUpdate, LayerSpan, MemoryKind, Pass, Place, Stream, Task, Work,
};
use trainwright_spec::units::Bytes;

/// The copies of one pass of a stage, emitted as its layers come by.
pub(crate) struct HostCopies<'a> {
    plan: &'a Plan,
    pass: Pass,
    /// In the order of the pass.
    layers: Vec<&'a Layer>,
    /// Whether the activations of each are offloaded.
    activations: Vec<bool>,
    buckets: Vec<Bucket>,
    /// When the pass begins; `None` if nothing is offloaded.
    begin: Option<usize>,
    /// When all copies of earlier passes to the host have ended; `None` if nothing is copied there.
    left: Option<usize>,
    /// The fetches that the next layer waits for.
    fetched: Vec<usize>,
    /// HostCopies of activations out of the GPU by the layer that they belong to.
    leaving: Vec<(usize, usize)>,
    /// HostCopies of gradients out of the GPU by bucket.
    leaving_gradients: Vec<usize>,
}

/// Consecutive layers whose gradients are reduced and copied together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bucket {
    /// Its first layer in the order of backward.
    pub first: usize,
    /// Its last.
    pub last: usize,
    /// Parameters of those layers.
    pub copies: Copies,
    /// Those of them whose gradients are complete only after backward.
    pub late: u64,
}

impl Bucket {
    /// The buckets of a stage.
    pub fn all(plan: &Plan, stage: &Stage) -> Vec<Bucket> {
        let layers: Vec<&Layer> = stage.layers().rev().collect();
        let mut rest = buckets(plan, stage.layers().rev()).into_iter().peekable();
        let mut all = Vec::new();
        while let Some((first, copies)) = rest.next() {
            let end = rest.peek().map_or(layers.len(), |(next, _)| *next);
            let late = layers[first..end].iter().map(|layer| late_parameters(plan, layer)).sum();
            all.push(Bucket { first, last: end - 1, copies, late });
        }
        all
    }

    /// Its gradients that leave during backward.
    fn gradients(&self, plan: &Plan) -> Bytes {
        plan.state_bytes().gradient * (self.copies.total() - self.late) as f64
    }

    /// Those of them that this rank's processors have use for.
    fn gradients_for_host(&self, plan: &Plan) -> Bytes {
        let parameters = self.copies.mean_share(plan) - Copies::dense(self.late).mean_share(plan);
        plan.state_bytes().gradient * parameters * plan.offload.updated_by_host()
    }
}

impl<'a> HostCopies<'a> {
    /// Emits what the pass waits for before it begins, and the fetches of its first layer.
    pub fn begin(plan: &'a Plan, stage: &'a Stage, pass: Pass, emitter: &mut Emitter) -> Self {
        let mut layers: Vec<&Layer> = stage.layers().collect();
        let first_block = usize::from(stage.embedding.is_some());
        let is_offloaded = |(number, layer): (usize, &&Layer)| {
            layer.block.is_some() && plan.offload.takes_activations(number - first_block)
        };
        let mut activations: Vec<bool> = layers.iter().enumerate().map(is_offloaded).collect();
        if pass == Pass::Backward {
            layers.reverse();
            activations.reverse();
        }
        let any_activations = activations.contains(&true);
        let fetches = plan.offload.parameters.is_some() || (pass == Pass::Backward && any_activations);
        let leaves = plan.offload.gradients.is_some() || any_activations;
        let mut join = |stream| emitter.push("begin", pass, stream, Work::Join, Vec::new());
        let mut copies = HostCopies {
            plan,
            pass,
            layers,
            activations,
            buckets: if plan.offload.is_none() { Vec::new() } else { Bucket::all(plan, stage) },
            begin: fetches.then(|| join(Stream::Compute)),
            left: leaves.then(|| join(Stream::ToHost)),
            fetched: Vec::new(),
            leaving: Vec::new(),
            leaving_gradients: Vec::new(),
        };
        copies.fetch(0, emitter);
        copies
    }

    /// Emits what a layer of the pass waits for, and what is fetched while it runs.
    pub fn before(&mut self, number: usize, emitter: &mut Emitter) {
        if number == 0 {
            self.left.into_iter().for_each(|left| emitter.wait_for(left));
        }
        let ready = std::mem::take(&mut self.fetched);
        self.fetch(number + 1, emitter);
        ready.into_iter().for_each(|fetch| emitter.wait_for(fetch));
        self.leaving.retain(|(layer, copy)| {
            let waits = layer + 2 <= number;
            if waits {
                emitter.wait_for(*copy);
            }
            !waits
        });
        let bucket = self.buckets.iter().position(|bucket| bucket.first == number);
        if let (Some(bucket), Pass::Backward, Some(_)) = (bucket, self.pass, self.plan.offload.gradients)
            && let Some(copy) = bucket.checked_sub(2).map(|earlier| self.leaving_gradients[earlier])
        {
            emitter.wait_for(copy);
        }
    }

    /// Emits what leaves after a layer, whose ops begin at `first`.
    pub fn after(&mut self, number: usize, first: usize, emitter: &mut Emitter) {
        let layer = self.layers[number];
        if self.plan.offload.parameters.is_some() {
            let last = emitter.ops.len() - 1;
            emitter.free(last, MemoryKind::Weights, weights(self.plan, layer));
        }
        match self.pass {
            Pass::Backward => {
                let bucket = self.buckets.iter().find(|bucket| bucket.first == number);
                if let (Some(bucket), Some(_)) = (bucket, self.plan.offload.gradients) {
                    emitter.allocate(first, MemoryKind::Gradients, bucket.gradients(self.plan));
                }
            }
            _ => {
                let (Some(place), true) = (self.plan.offload.activations, self.activations[number]) else {
                    return;
                };
                let bytes = layer.kept();
                let copy = self.copy("activations out", CopyDirection::ToHost, place, bytes, emitter);
                emitter.ops[copy].task = Task::Kept(self.span(number));
                emitter.free(copy, MemoryKind::Activations, bytes);
                self.leaving.push((number, copy));
            }
        }
    }

    /// Emits the copy of a bucket's gradients after the op that reduced them, or after all there is. `last` says whether
    /// this is the step's last backward pass of the stage.
    pub fn gradients(&mut self, number: usize, reduced: Option<usize>, last: bool, emitter: &mut Emitter) {
        let offload = &self.plan.offload;
        let Some(bucket) = self.buckets.iter().find(|bucket| bucket.last == number).cloned() else { return };
        if offload.gradients.is_none() && !(last && copies_in_backward(self.plan)) {
            return;
        }
        let moved = bucket.gradients_for_host(self.plan);
        let after = reduced.map_or_else(|| emitter.frontier(), |reduced| vec![reduced]);
        let work =
            Work::Copy { direction: CopyDirection::ToHost, place: offload.gradients_place(), bytes: moved };
        let copy = emitter.push("gradients out", self.pass, Stream::ToHost, work, after);
        emitter.ops[copy].task = Task::Carry;
        if offload.gradients.is_some() {
            emitter.free(copy, MemoryKind::Gradients, bucket.gradients(self.plan));
            self.leaving_gradients.push(copy);
            if !last {
                // The sum is read and written, the summand read; on the drives too if it is there.
                let drives = if offload.gradients == Some(Place::Nvme) { moved } else { Bytes::ZERO };
                let sum = HostUpdate { memory: 3.0 * moved, nvme_read: 2.0 * drives, nvme_written: drives };
                let work = Work::HostUpdate(sum);
                let op = emitter.push("sum gradients", self.pass, Stream::Host, work, vec![copy]);
                emitter.ops[op].task = Task::Carry;
            }
        }
    }

    /// Fetches what a layer needs, if there is such a layer, once all that has been emitted has ended. The memory for all
    /// of it is taken with the first copy.
    fn fetch(&mut self, number: usize, emitter: &mut Emitter) {
        let Some(layer) = self.layers.get(number).copied() else { return };
        let needs_activations = self.pass == Pass::Backward && self.activations[number];
        let needed = [
            ("weights in", MemoryKind::Weights, self.plan.offload.parameters, weights(self.plan, layer)),
            (
                "activations in",
                MemoryKind::Activations,
                self.plan.offload.activations.filter(|_| needs_activations),
                layer.kept(),
            ),
        ];
        let mut first = None;
        for (module, kind, place, bytes) in needed {
            let Some(place) = place else { continue };
            let copy = self.copy(module, CopyDirection::FromHost, place, bytes, emitter);
            emitter.ops[copy].task = match kind {
                MemoryKind::Activations => Task::Kept(self.span(number)),
                _ => Task::Carry,
            };
            emitter.allocate(*first.get_or_insert(copy), kind, bytes);
            self.fetched.push(copy);
        }
    }

    /// The layer that comes so late in the pass.
    fn span(&self, number: usize) -> LayerSpan {
        LayerSpan::of_pass(self.pass, number, number + 1, self.layers.len())
    }

    fn copy(
        &self,
        module: &'static str,
        direction: CopyDirection,
        place: Place,
        bytes: Bytes,
        emitter: &mut Emitter,
    ) -> usize {
        let mut after = emitter.frontier();
        let stream = match direction {
            CopyDirection::ToHost => Stream::ToHost,
            CopyDirection::FromHost => {
                after.extend(self.begin.into_iter().chain(self.left));
                Stream::FromHost
            }
        };
        emitter.push(module, self.pass, stream, Work::Copy { direction, place, bytes }, after)
    }
}

/// Whether gradients leave during the last backward pass: not where they are reduced only after it.
pub(crate) fn copies_in_backward(plan: &Plan) -> bool {
    plan.offload.optimizer.is_some() && (!plan.replicates_weights() || plan.stack.overlap_gradient_reduction)
}

/// Parameters of a pipeline rank's `stages` whose gradients leave only after backward.
pub(crate) fn late_copies<'a>(plan: &Plan, stages: impl Iterator<Item = &'a Stage>) -> Copies {
    let layers = stages.flat_map(Stage::layers);
    match copies_in_backward(plan) {
        true => Copies::dense(layers.map(|layer| late_parameters(plan, layer)).sum()),
        false => Copies::of_all(plan, layers),
    }
}

/// The processors' update of a bucket.
pub(crate) fn host_update(plan: &Plan, bucket: &Bucket) -> HostUpdate {
    let state = plan.state_bytes();
    let offload = &plan.offload;
    let parameters = offload.updated_by_host() * bucket.copies.mean_share(plan);
    let of_all = |bytes: Bytes| bytes * parameters;
    let on_drives = |place: Option<Place>, bytes: Bytes| {
        if place == Some(Place::Nvme) { of_all(bytes) } else { Bytes::ZERO }
    };
    let (read, written) = state.update_traffic();
    HostUpdate {
        memory: of_all(read + written),
        nvme_read: on_drives(offload.optimizer, state.optimizer())
            + on_drives(offload.gradients, state.gradient),
        nvme_written: on_drives(offload.optimizer, state.optimizer())
            + on_drives(offload.parameters, state.weight),
    }
}

/// The weights of a bucket that the processors have updated.
pub(crate) fn updated_weights(plan: &Plan, bucket: &Bucket) -> Bytes {
    plan.state_bytes().weight * (plan.offload.updated_by_host() * bucket.copies.mean_share(plan))
}

fn weights(plan: &Plan, layer: &Layer) -> Bytes {
    plan.state_bytes().weight * layer.parameters as f64
}

/// What a stage's layers hold of a GPU at one point of a backward pass, beyond what stays for the whole step and what
/// other microbatches keep.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Held {
    /// Fetched weights.
    pub weights: Bytes,
    /// Gradients that have not left.
    pub gradients: Bytes,
    /// Activations of this microbatch.
    pub activations: Bytes,
    /// What backward of the layer holds beyond them.
    pub temporaries: Bytes,
}

impl Held {
    /// Everything.
    pub fn total(&self) -> Bytes {
        self.weights + self.gradients + self.activations + self.temporaries
    }

    /// The point of a stage's backward with most memory held: the start of one of its layers, when the next one's fetches are on
    /// their way and the bucket before still leaves.
    pub fn fullest(plan: &Plan, stage: &Stage) -> Held {
        let mut nothing = Emitter::new(false);
        let copies = HostCopies::begin(plan, stage, Pass::Backward, &mut nothing);
        let count = copies.layers.len();
        let kept: Vec<Bytes> = copies.layers.iter().map(|layer| layer.kept()).collect();
        let at = |number: usize| {
            let next = (number..count).take(2);
            let resident = (number..count).filter(|layer| !copies.activations[*layer]);
            let fetched = next.clone().filter(|layer| copies.activations[*layer]);
            let layer = copies.layers[number];
            let bucket = copies.buckets.iter().position(|bucket| bucket.last >= number).unwrap_or_default();
            let gradients = &copies.buckets[bucket.saturating_sub(1)..=bucket];
            let offload = &plan.offload;
            let if_offloaded = |place: Option<Place>, bytes: Bytes| place.map_or(Bytes::ZERO, |_| bytes);
            Held {
                weights: if_offloaded(
                    offload.parameters,
                    next.map(|layer| weights(plan, copies.layers[layer])).sum(),
                ),
                gradients: if_offloaded(
                    offload.gradients,
                    gradients.iter().map(|bucket| bucket.gradients(plan)).sum(),
                ),
                activations: resident.chain(fetched).map(|layer| kept[layer]).sum(),
                temporaries: backward_peak(&layer.parts, layer.recompute),
            }
        };
        (0..count)
            .map(at)
            .fold(Held::default(), |most, held| if held.total() > most.total() { held } else { most })
    }
}

impl Stage {
    /// Activations that one microbatch keeps off the GPU from forward to backward.
    pub fn kept_offloaded(&self, plan: &Plan) -> Bytes {
        let blocks = self.blocks.iter().enumerate();
        let offloaded = blocks.filter(|(number, _)| plan.offload.takes_activations(*number));
        offloaded.map(|(_, block)| block.kept()).sum()
    }
}
