//! What a rank holds on its GPU and on its host or drives if something is offloaded.

use super::{RankMemory, by_number, fixed_overhead};
use crate::data::Copies;
use crate::offload::{Bucket, Held, late_copies};
use crate::stage::{Layer, Stage, stages_on};
use serde::Serialize;
use std::ops::Range;
use trainwright_spec::cluster::Processors;
use trainwright_spec::plan::Plan;
use trainwright_spec::program::Place;
use trainwright_spec::schedule::{ActionLists, peak_in_flight};
use trainwright_spec::units::Bytes;

/// What each stage keeps of a microbatch, and of how many it does at its rank's peak.
struct InFlight {
    kept: Vec<Bytes>,
    microbatches: Vec<usize>,
}

impl InFlight {
    fn of(lists: &ActionLists, kept: Vec<Bytes>) -> Self {
        let microbatches = peak_in_flight(lists, |stage| kept[stage].get());
        Self { kept, microbatches }
    }

    fn bytes(&self, stage: usize) -> Bytes {
        self.kept[stage] * self.microbatches[stage] as f64
    }
}

/// The memory of ranks with what they offload.
pub(super) fn with_offload(
    plan: &Plan,
    stages: &[Stage],
    lists: &ActionLists,
    (ranks, memory): (Range<usize>, Vec<RankMemory>),
) -> Vec<RankMemory> {
    let offloaded = by_number(plan, stages, |stage| stage.kept_offloaded(plan));
    let on_gpu = by_number(plan, stages, |stage| stage.kept() - stage.kept_offloaded(plan));
    let (offloaded, on_gpu) = (InFlight::of(lists, offloaded), InFlight::of(lists, on_gpu));
    let ranks = ranks.zip(memory);
    ranks.map(|(rank, all)| rank_with_offload(plan, stages, (&on_gpu, &offloaded), (rank, all))).collect()
}

/// The memory of a rank with what it offloads: on the GPU what one stage's backward holds at its peak, one
/// of its microbatches among those in flight.
///
/// Beside the GPU, for each of the N parameters that the rank updates there: master weight and moments, the
/// gradients that arrive (twice if updates are delayed, since the last step's are still read), and the weights where
/// those are fetched. What is on the drives passes through two buckets of host memory.
fn rank_with_offload(
    plan: &Plan,
    stages: &[Stage],
    (on_gpu, offloaded): (&InFlight, &InFlight),
    (pipeline_rank, all): (usize, RankMemory),
) -> RankMemory {
    let offload = &plan.offload;
    let here = || stages_on(plan, stages, pipeline_rank);
    let state = plan.state_bytes();
    let copies = Copies::of_all(plan, here().flat_map(Stage::layers));
    let by_host = offload.updated_by_host();

    let kept: Bytes = here().map(|stage| on_gpu.bytes(stage.number)).sum();
    let (others, held) = here()
        .map(|stage| {
            let rest = on_gpu.kept[stage.number] * on_gpu.microbatches[stage.number].saturating_sub(1) as f64;
            (kept - on_gpu.bytes(stage.number) + rest, Held::fullest(plan, stage))
        })
        .reduce(|most, next| if next.0 + next.1.total() > most.0 + most.1.total() { next } else { most })
        .unwrap_or_default();
    let late = match offload.gradients {
        Some(_) => state.gradient * late_copies(plan, here()).total() as f64,
        None => all.gradients,
    };
    let resident_weights = if offload.parameters.is_some() { Bytes::ZERO } else { all.weights };
    let activations = others + held.activations;
    let lost = plan.stack.lost_part(plan.mesh.tensor) * (activations + held.temporaries);

    let updated = copies.mean_share(plan) * by_host;
    let arriving = if offload.delayed_update { 2.0 } else { 1.0 };
    let fetched = if offload.parameters.is_some() { copies.total() as f64 } else { 0.0 };
    let bucket = here().flat_map(|stage| Bucket::all(plan, stage)).map(|bucket| bucket.copies.total()).max();
    let staged = 2.0 * bucket.unwrap_or_default() as f64 * by_host;
    let mut memory = RankMemory {
        weights: resident_weights + held.weights,
        gradients: late + held.gradients,
        optimizer: all.optimizer,
        activations,
        temporaries: held.temporaries,
        overhead: fixed_overhead(plan) + lost,
        fetched_weights: held.weights,
        leaving_gradients: held.gradients,
        ..RankMemory::default()
    };
    memory.keep_beside(offload.optimizer, state.optimizer() * updated, state.optimizer() * staged);
    if offload.optimizer.is_some() {
        let gradients = state.gradient * (arriving * updated);
        memory.keep_beside(Some(offload.gradients_place()), gradients, state.gradient * staged);
    }
    memory.keep_beside(offload.parameters, state.weight * fetched, state.weight * staged);
    let kept: Bytes = here().map(|stage| offloaded.bytes(stage.number)).sum();
    let largest = here().flat_map(|stage| stage.blocks.iter()).map(Layer::kept).fold(Bytes::ZERO, Bytes::max);
    memory.keep_beside(offload.activations, kept, 2.0 * largest);
    memory
}

impl RankMemory {
    /// Adds what is on the host or on the drives; on the drives it passes through `staged` bytes of host memory.
    fn keep_beside(&mut self, place: Option<Place>, bytes: Bytes, staged: Bytes) {
        match place {
            None => {}
            Some(Place::Host) => self.host += bytes,
            Some(Place::Nvme) => {
                self.nvme += bytes;
                self.host += staged.min(bytes);
            }
        }
    }
}

/// What the ranks of one node offload, and the room for it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct NodeMemory {
    /// In the memory of its processors.
    #[serde(rename = "host_bytes")]
    pub host: Bytes,
    /// What that has.
    #[serde(rename = "host_capacity_bytes")]
    pub host_capacity: Bytes,
    /// On its drives.
    #[serde(rename = "nvme_bytes")]
    pub nvme: Bytes,
    /// What those have.
    #[serde(rename = "nvme_capacity_bytes")]
    pub nvme_capacity: Bytes,
}

impl NodeMemory {
    /// Whether everything has room.
    pub fn fits(&self) -> bool {
        self.host <= self.host_capacity && self.nvme <= self.nvme_capacity
    }
}

/// What the ranks of one node have in all, at most; `of_rank` says what each has.
pub fn most_on_a_node(plan: &Plan, of_rank: impl Fn(usize) -> Bytes) -> Bytes {
    let gpus = plan.cluster.node.gpus.value;
    let of_node = |node: usize| -> Bytes { (node * gpus..(node + 1) * gpus).map(&of_rank).sum() };
    (0..plan.cluster.nodes).map(of_node).fold(Bytes::ZERO, Bytes::max)
}

/// Offloaded tensors in the node whose ranks offload most, by the closed form of each pipeline rank; `None` if nothing is
/// offloaded. If nodes differ, its capacity is that of the smallest node.
pub fn node_memory(plan: &Plan, ranks: &[RankMemory]) -> Option<NodeMemory> {
    if plan.offload.is_none() {
        return None;
    }
    let kinds = plan.cluster.kinds().map(|(_, node)| node.processors.as_ref());
    let kinds: Vec<&Processors> = kinds.collect::<Option<_>>()?;
    let most = |kept: fn(&RankMemory) -> Bytes| {
        most_on_a_node(plan, |rank| kept(&ranks[plan.mesh.coordinates(rank).pipeline]))
    };
    let least = |of: fn(&Processors) -> Bytes| {
        kinds.iter().map(|kind| of(kind)).fold(Bytes::new(f64::INFINITY), Bytes::min)
    };
    Some(NodeMemory {
        host: most(|rank| rank.host),
        host_capacity: least(|kind| kind.memory.value),
        nvme: most(|rank| rank.nvme),
        nvme_capacity: least(|kind| kind.drives.as_ref().map_or(Bytes::ZERO, |drives| drives.capacity.value)),
    })
}
