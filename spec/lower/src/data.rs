//! What the data axis sends in the passes of a stage: weights before they are used, gradients when they are complete.
//!
//! ```text
//! weights divided, 1 unit gathered ahead          gradients divided
//! data     gather 0  gather 1  gather 2 …         data                reduce 3  gather 1  reduce 2 …
//! compute            unit 0    unit 1   …         compute   unit 3    unit 2    unit 1
//! ```
//!
//! A gather waits until the unit that was in use before those gathered ahead is given up, and backward of a unit for the
//! reduction of the last but one: no more units than that are held whole.

use crate::adapters::Frozen;
use crate::emit::Emitter;
use crate::matrices::elements_of_matrices;
use crate::stage::{Layer, Variant};
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::data::{Divided, Reduction, Reshard};
use trainwright_spec::plan::Plan;
use trainwright_spec::program::{
    Axis, CollectiveCall, LayerSpan, MemoryKind, Pass, State, Stream, Task, Work,
};
use trainwright_spec::units::Bytes;

/// Trained parameters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Trained {
    /// All.
    pub all: u64,
    /// Those of them in matrices that the optimizer updates as such.
    pub matrices: u64,
}

/// What a rank holds of the model, by the axis over which it is replicated.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Copies {
    /// Parameters that are trained.
    trained: Vec<(Axis, u64)>,
    /// Those of them in matrices that the optimizer updates as such.
    matrices: Vec<(Axis, u64)>,
    /// Bytes of weights that are not.
    frozen: Vec<(Axis, u64)>,
}

impl Copies {
    /// Those of a layer: routed experts' weights are on other ranks than the dense ones unless their ranks are those of
    /// the tensor axis.
    pub fn of(plan: &Plan, layer: &Layer) -> Self {
        let by_axis = |all: u64, routed: u64| {
            let apart = if plan.mesh.experts_apart() { routed } else { 0 };
            let pairs = [(Axis::Data, all - apart), (Axis::ExpertData, apart)];
            pairs.into_iter().filter(|(_, amount)| *amount > 0).collect()
        };
        let Frozen { dense, routed } = layer.frozen;
        let matrices = elements_of_matrices(&layer.matrices);
        Self {
            trained: by_axis(layer.parameters, layer.routed),
            matrices: by_axis(matrices.iter().sum(), matrices[1]),
            frozen: by_axis(dense + routed, routed),
        }
    }

    /// Of dense weights.
    pub fn dense(parameters: u64) -> Self {
        Self { trained: vec![(Axis::Data, parameters)], ..Self::default() }
    }

    /// Those of several layers.
    pub fn of_all<'a>(plan: &Plan, layers: impl Iterator<Item = &'a Layer>) -> Self {
        layers.fold(Self::default(), |mut all, layer| {
            all.add(&Self::of(plan, layer));
            all
        })
    }

    fn add(&mut self, other: &Self) {
        let parts = [
            (&mut self.trained, &other.trained),
            (&mut self.matrices, &other.matrices),
            (&mut self.frozen, &other.frozen),
        ];
        for (sums, others) in parts {
            for (axis, amount) in others {
                match sums.iter_mut().find(|(known, _)| known == axis) {
                    Some((_, sum)) => *sum += amount,
                    None => sums.push((*axis, *amount)),
                }
            }
        }
    }

    /// Each axis and its trained parameters.
    pub fn iter(&self) -> impl Iterator<Item = (Axis, Trained)> {
        let matrices =
            |axis| self.matrices.iter().find(|(of, _)| *of == axis).map_or(0, |(_, amount)| *amount);
        self.trained.iter().map(move |(axis, all)| (*axis, Trained { all: *all, matrices: matrices(*axis) }))
    }

    /// Bytes of the weights that are not trained, as this rank holds them.
    pub fn frozen(&self, plan: &Plan) -> Bytes {
        let divided = |(axis, bytes): &(Axis, u64)| match plan.divides(Divided::Weights) {
            true => *bytes as f64 / divisor(plan, *axis) as f64,
            false => *bytes as f64,
        };
        Bytes::new(self.frozen.iter().map(divided).sum())
    }

    /// Trained parameters on every axis.
    pub fn total(&self) -> u64 {
        self.trained.iter().map(|(_, parameters)| parameters).sum()
    }

    /// Parameters that this rank updates: its part of each where the optimizer is divided.
    pub fn updated(&self, plan: &Plan) -> Trained {
        let divided = |(axis, parameters): &(Axis, u64)| match plan.data_scheme().divides() {
            Divided::Nothing => *parameters,
            _ => parameters.div_ceil(divisor(plan, *axis) as u64),
        };
        let [all, matrices] =
            [&self.trained, &self.matrices].map(|by_axis| by_axis.iter().map(divided).sum());
        Trained { all, matrices }
    }

    /// The mean of `updated` over the ranks that share parameters: it is not rounded up.
    pub fn mean_share(&self, plan: &Plan) -> f64 {
        let divided = |(axis, parameters): &(Axis, u64)| match plan.shards_optimizer() {
            true => *parameters as f64 / divisor(plan, *axis) as f64,
            false => *parameters as f64,
        };
        self.trained.iter().map(divided).sum()
    }

    fn on_several(&self, plan: &Plan) -> impl Iterator<Item = (Sharing, f64)> {
        on_several(plan, &self.trained)
    }
}

/// What several ranks have, of what each axis has.
fn on_several(plan: &Plan, by_axis: &[(Axis, u64)]) -> impl Iterator<Item = (Sharing, f64)> {
    let shared = by_axis.iter().map(|(axis, amount)| (Sharing::of(plan, *axis), *amount as f64));
    shared.filter(|(sharing, amount)| sharing.shard * sharing.replicas > 1 && *amount > 0.0)
}

/// How the ranks of an axis divide what they hold.
#[derive(Debug, Clone, Copy)]
struct Sharing {
    shard_axis: Axis,
    /// Ranks that divide it.
    shard: usize,
    /// Sets of them.
    replicas: usize,
}

impl Sharing {
    fn of(plan: &Plan, axis: Axis) -> Self {
        let mesh = &plan.mesh;
        match (axis, mesh.shard) {
            (Axis::Data, Some(shard)) => {
                Self { shard_axis: Axis::Shard, shard, replicas: mesh.weight_copies() / shard }
            }
            _ => {
                let ranks = mesh.size(axis);
                Self { shard_axis: axis, shard: ranks, replicas: 1 }
            }
        }
    }
}

/// Among how many ranks of an axis divided state is divided: all that share it, or the servers.
pub fn divisor(plan: &Plan, axis: Axis) -> usize {
    plan.servers().unwrap_or(Sharing::of(plan, axis).shard)
}

/// The axis over which divided parameters are pieced together.
pub(crate) fn shard_axis(plan: &Plan) -> Axis {
    Sharing::of(plan, Axis::Data).shard_axis
}

/// The sum of gradients over all ranks that have the same parameters: to all, or to each its part.
pub(crate) fn reductions(plan: &Plan, copies: &Copies) -> Vec<Work> {
    let gradient = plan.state_bytes().gradient;
    let call = CollectiveCall::Single;
    let mut works = Vec::new();
    for (Sharing { shard_axis, shard, replicas }, parameters) in copies.on_several(plan) {
        let bytes = gradient * parameters;
        if plan.servers().is_some() {
            works.push(served(plan, shard_axis, shard, bytes));
            continue;
        }
        let kind = match plan.data_scheme().divides() {
            Divided::Nothing => CollectiveKind::AllReduce,
            _ => CollectiveKind::ReduceScatter,
        };
        if shard > 1 {
            works.push(Work::Collective { kind, axis: shard_axis, bytes, call });
        }
        if replicas > 1 {
            let bytes = bytes / shard as f64;
            works.push(Work::Collective {
                kind: CollectiveKind::AllReduce,
                axis: Axis::Replica,
                bytes,
                call,
            });
        }
    }
    works
}

/// The trained weights, gathered from the ranks that hold or have updated a shard of them.
pub(crate) fn gathers(plan: &Plan, copies: &Copies) -> Vec<Work> {
    let weight = plan.job.precision.storage_bytes();
    let trained = copies.on_several(plan).map(|(sharing, parameters)| (sharing, weight * parameters));
    trained.filter(|(sharing, _)| sharing.shard > 1).map(|part| gather(plan, part)).collect()
}

/// All elements of the matrices that the optimizer updates as such, gathered from the ranks that hold parts.
pub(crate) fn gathers_matrices(plan: &Plan, copies: &Copies, element: Bytes) -> Vec<Work> {
    let matrices =
        on_several(plan, &copies.matrices).map(|(sharing, elements)| (sharing, element * elements));
    let divided = matrices.filter(|(sharing, _)| sharing.shard > 1 && plan.shards_optimizer());
    divided.map(|part| gather(plan, part)).collect()
}

fn gather(plan: &Plan, (Sharing { shard_axis, shard, .. }, bytes): (Sharing, Bytes)) -> Work {
    let (kind, call) = (CollectiveKind::AllGather, CollectiveCall::Single);
    match plan.servers() {
        Some(_) => served(plan, shard_axis, shard, bytes),
        None => Work::Collective { kind, axis: shard_axis, bytes, call },
    }
}

/// All weights of a unit that are divided, gathered from the ranks that hold a shard of them.
fn gathers_of_divided(plan: &Plan, copies: &Copies) -> Vec<Work> {
    let divided = on_several(plan, &copies.frozen).filter(|(sharing, _)| sharing.shard > 1);
    let frozen = divided.map(|(sharing, bytes)| gather(plan, (sharing, Bytes::new(bytes))));
    gathers(plan, copies).into_iter().chain(frozen).collect()
}

/// `bytes` of every rank to the servers, or back: (d − 1) n / S through each server's link, as through every link in an
/// all-to-all of d n / S.
fn served(plan: &Plan, axis: Axis, ranks: usize, bytes: Bytes) -> Work {
    let servers = plan.servers().unwrap_or(1) as f64;
    let kind = CollectiveKind::AllToAll;
    Work::Collective { kind, axis, bytes: bytes * (ranks as f64 / servers), call: CollectiveCall::Single }
}

/// Whether weights that every rank holds are gathered bucket by bucket in the first forward pass.
pub(crate) fn gathers_updated(plan: &Plan) -> bool {
    plan.shards_optimizer() && !plan.divides(Divided::Weights) && plan.stack.overlap_weight_gather
}

/// Whether a backward pass reduces gradients. What leaves the GPU leaves it reduced.
fn reduces(plan: &Plan, variant: Variant) -> bool {
    plan.replicates_weights()
        && match plan.reduction() {
            Reduction::EveryMicrobatch => true,
            Reduction::LastMicrobatch => {
                let leaves = variant == Variant::Data || plan.offload.gradients.is_some();
                leaves && plan.stack.overlap_gradient_reduction
            }
        }
}

/// Whether a pass gathers divided weights.
fn gathers_divided(plan: &Plan, pass: Pass, variant: Variant) -> bool {
    plan.divides(Divided::Weights)
        && match (plan.reshard(), pass) {
            (Reshard::AfterForward, _) => true,
            (Reshard::AfterBackward, pass) => pass == Pass::Forward,
            (Reshard::AfterStep, pass) => pass == Pass::Forward && variant == Variant::Data,
        }
}

/// Whether a pass gives up gathered weights after each unit.
fn gives_up(plan: &Plan, pass: Pass, variant: Variant) -> bool {
    plan.divides(Divided::Weights)
        && match (plan.reshard(), pass) {
            (Reshard::AfterForward, _) => true,
            (Reshard::AfterBackward, pass) => pass == Pass::Backward,
            (Reshard::AfterStep, pass) => pass == Pass::Backward && variant == Variant::Data,
        }
}

/// Whether the first forward pass is another than the rest.
pub(crate) fn first_forward_differs(plan: &Plan) -> bool {
    gathers_updated(plan) || plan.divides(Divided::Weights) && plan.reshard() == Reshard::AfterStep
}

/// Whether the last backward pass is another than the rest.
pub(crate) fn last_backward_differs(plan: &Plan) -> bool {
    let keeps = plan.divides(Divided::Weights) && plan.reshard() == Reshard::AfterStep;
    reduces(plan, Variant::Data) && plan.reduction() == Reduction::LastMicrobatch || keeps
}

/// The buckets whose gradients are reduced together, of layers in the order of their backward: their first layers' numbers
/// and what is in them.
///
/// Divided weights: each layer. Fusion: as many layers as fit its buffer. Else: layers until there are as many parameters
/// as the stack wants.
pub(crate) fn buckets<'a>(plan: &Plan, layers: impl Iterator<Item = &'a Layer>) -> Vec<(usize, Copies)> {
    let gradient = plan.state_bytes().gradient;
    let mut buckets: Vec<(usize, Copies)> = Vec::new();
    for (number, layer) in layers.enumerate() {
        let of_layer = Copies::of(plan, layer);
        let has_room = |bucket: &Copies| match plan.data_scheme().fusion() {
            _ if plan.divides(Divided::Weights) => false,
            Some(buffer) => gradient * (bucket.total() + of_layer.total()) as f64 <= buffer,
            None => bucket.total() < plan.bucket_parameters() as u64,
        };
        match buckets.last_mut().filter(|(_, bucket)| has_room(bucket)) {
            Some((_, bucket)) => bucket.add(&of_layer),
            None => buckets.push((number, of_layer)),
        }
    }
    buckets
}

/// The gathers of divided weights in one pass of a stage.
pub(crate) struct Gathers {
    pass: Pass,
    /// By unit: bytes of other ranks' shards, and the op that gathers them. Empty if the pass gathers nothing.
    units: Vec<(Bytes, Vec<Work>)>,
    /// The last op of each unit's gather.
    done: Vec<Option<usize>>,
    gives_up: bool,
}

impl Gathers {
    /// Those of a pass over `layers`, each a unit, and the first of them in `emitter`.
    pub fn begin<'a>(
        plan: &Plan,
        (pass, variant): (Pass, Variant),
        layers: impl Iterator<Item = &'a Layer>,
        emitter: &mut Emitter,
    ) -> Self {
        let units = layers
            .map(|layer| (gathered_weights(plan, layer), gathers_of_divided(plan, &Copies::of(plan, layer))));
        let gathering = gathers_divided(plan, pass, variant);
        let units: Vec<_> =
            units.map(|(bytes, works)| (bytes, if gathering { works } else { Vec::new() })).collect();
        let mut gathers = Self { pass, units, done: Vec::new(), gives_up: gives_up(plan, pass, variant) };
        if gathering {
            // The pass before has given up its units when this is reached.
            emitter.in_line("pass begins", pass, Work::Join);
            (0..=plan.prefetch()).for_each(|_| gathers.next(emitter));
        }
        gathers
    }

    /// Before the ops of a unit.
    pub fn enter(&self, unit: usize, emitter: &mut Emitter) {
        if let Some(gathered) = self.done.get(unit).copied().flatten() {
            emitter.wait_for(gathered);
        }
    }

    /// After them.
    pub fn leave(&mut self, unit: usize, emitter: &mut Emitter) {
        if self.gives_up {
            let nothing = |emitter: &mut Emitter| emitter.in_line("pass begins", self.pass, Work::Join);
            let last = emitter.last_kernel().unwrap_or_else(|| nothing(emitter));
            emitter.free(last, MemoryKind::Weights, self.units[unit].0);
        }
        if !self.done.is_empty() {
            self.next(emitter);
        }
    }

    /// The gather of the next unit, if there is one.
    fn next(&mut self, emitter: &mut Emitter) {
        let Some((bytes, works)) = self.units.get(self.done.len()) else { return };
        let mut last = None;
        for work in works {
            let after = if last.is_none() { emitter.frontier() } else { Vec::new() };
            let op = emitter.push("gather weights", self.pass, Stream::Data, *work, after);
            let unit = self.done.len();
            let span = LayerSpan::of_pass(self.pass, unit, unit + 1, self.units.len());
            emitter.ops[op].task = Task::Layers(State::Weights, span);
            if last.is_none() {
                emitter.allocate(op, MemoryKind::Weights, *bytes);
            }
            last = Some(op);
        }
        self.done.push(last);
    }
}

/// The reductions of gradients in one backward pass of a stage.
pub(crate) struct Reductions<'a> {
    plan: &'a Plan,
    buckets: Vec<(usize, Copies)>,
    /// The last op of each bucket's reduction so far.
    done: Vec<Option<usize>>,
    layers: usize,
}

impl<'a> Reductions<'a> {
    /// None at all.
    pub fn none(plan: &'a Plan) -> Self {
        Self { plan, buckets: Vec::new(), done: Vec::new(), layers: 0 }
    }

    /// Those of a pass over `layers`, the last first.
    pub fn of<'b>(plan: &'a Plan, variant: Variant, layers: impl Iterator<Item = &'b Layer> + Clone) -> Self {
        let count = layers.clone().count();
        let buckets = match reduces(plan, variant) {
            true if plan.stack.overlap_gradient_reduction || plan.shards_gradients() => buckets(plan, layers),
            true => vec![(0, Copies::of_all(plan, layers))],
            false => Vec::new(),
        };
        Self { plan, buckets, done: Vec::new(), layers: count }
    }

    /// Before the ops of a layer: what must wait until there is room for its gradients.
    pub fn enter(&self, layer: usize, emitter: &mut Emitter) {
        let begins = self.buckets.get(self.done.len()).is_some_and(|(first, _)| *first == layer);
        if let (true, Some(before)) = (begins && self.plan.shards_gradients(), self.done.len().checked_sub(2))
            && let Some(reduced) = self.done[before]
        {
            emitter.wait_for(reduced);
        }
    }

    /// After them, the first of them op number `first`; returns the last op of a reduction that follows.
    pub fn leave(&mut self, layer: usize, first: usize, emitter: &mut Emitter) -> Option<usize> {
        let (begins, copies) = self.buckets.get(self.done.len())?;
        let bytes = match self.plan.shards_gradients() {
            true => full_gradients(self.plan, copies),
            false => Bytes::ZERO,
        };
        if *begins == layer {
            emitter.allocate(first, MemoryKind::Gradients, bytes);
        }
        let end = self.buckets.get(self.done.len() + 1).map_or(self.layers, |(next, _)| *next);
        if layer + 1 < end {
            return None;
        }
        let mut last = None;
        for work in reductions(self.plan, copies) {
            let op = match self.plan.stack.overlap_gradient_reduction {
                true => {
                    let after = emitter.frontier();
                    emitter.push("reduce gradients", Pass::Backward, Stream::Data, work, after)
                }
                false => emitter.in_line("reduce gradients", Pass::Backward, work),
            };
            let span = LayerSpan::of_pass(Pass::Backward, *begins, end, self.layers);
            emitter.ops[op].task = Task::Layers(State::Gradients, span);
            last = Some(op);
        }
        if let Some(op) = last {
            emitter.free(op, MemoryKind::Gradients, bytes);
        }
        self.done.push(last);
        last
    }

    /// At the end of the pass: where each reduces its gradients, the next one does not begin before that is done.
    pub fn end(&self, emitter: &mut Emitter) {
        let every = self.plan.reduction() == Reduction::EveryMicrobatch;
        if every && self.plan.stack.overlap_gradient_reduction && !self.done.is_empty() {
            self.done.iter().flatten().for_each(|op| emitter.wait_for(*op));
            emitter.in_line("gradients reduced", Pass::Backward, Work::Join);
        }
    }
}

/// Bytes of the full weights of `copies` that are gathered; zero if weights are not divided.
pub(crate) fn full_weights(plan: &Plan, copies: &Copies) -> Bytes {
    let gathered = plan.divides(Divided::Weights);
    let divided = copies.on_several(plan).filter(|(sharing, _)| gathered && sharing.shard > 1);
    let trained: Bytes = divided.map(|(_, parameters)| plan.job.precision.storage_bytes() * parameters).sum();
    let divided = on_several(plan, &copies.frozen).filter(|(sharing, _)| gathered && sharing.shard > 1);
    trained + Bytes::new(divided.map(|(_, bytes)| bytes).sum())
}

/// Bytes of a layer while its weights are gathered: of those that are divided, and of the copies of them that products below
/// 16 bits read, which are made of what was gathered and given up with it.
pub(crate) fn gathered_weights(plan: &Plan, layer: &Layer) -> Bytes {
    let copies = Copies::of(plan, layer);
    full_weights(plan, &copies)
        + quantised_bytes(plan) * (layer.quantised as f64 * divided_part(plan, &copies))
}

/// Bytes of the copies of a layer's weights that products below 16 bits read and that stay for the whole step.
pub(crate) fn kept_quantised(plan: &Plan, layer: &Layer) -> Bytes {
    let divided = divided_part(plan, &Copies::of(plan, layer));
    quantised_bytes(plan) * (layer.quantised as f64 * (1.0 - divided))
}

/// The part of a layer's weights that the data axis divides.
fn divided_part(plan: &Plan, copies: &Copies) -> f64 {
    if !plan.divides(Divided::Weights) || copies.total() == 0 {
        return 0.0;
    }
    let divided = copies.on_several(plan).filter(|(sharing, _)| sharing.shard > 1);
    divided.map(|(_, parameters)| parameters).sum::<f64>() / copies.total() as f64
}

/// Bytes of the copies of a weight that products below 16 bits read, beside it or instead of it.
fn quantised_bytes(plan: &Plan) -> Bytes {
    let precision = plan.job.precision;
    precision.quantisation().map_or(Bytes::ZERO, |quantisation| {
        let copies = quantisation.copies as f64 * precision.operand_bytes();
        let instead = plan.stack.quantised_weights_only && !plan.divides(Divided::Weights);
        if instead { copies - plan.state_bytes().weight } else { copies }
    })
}

/// What the gradients of `copies` take before they are reduced.
pub(crate) fn full_gradients(plan: &Plan, copies: &Copies) -> Bytes {
    let gradient = plan.state_bytes().gradient;
    gradient * copies.total() as f64
}
