//! Memory of a rank in closed form, and of what its node has beside the GPUs.

use crate::lower::offload::{Bucket, Held, late_gradients, own_part};
use crate::lower::{Layer, Stage, own_stages};
use crate::plan::Plan;
use crate::program::{Allocation, MemoryKind, Place};
use crate::schedule::peak_in_flight;
use crate::units::Bytes;
use serde::{Deserialize, Serialize};

/// The peak memory of one rank by kind.
///
/// Weights, gradients and optimizer state stay for the whole step; activations are those of the microbatches in
/// flight at the schedule's peak; buffers hold what backward computes again, the largest temporary, communicators,
/// libraries and what the allocator loses.
///
/// What is offloaded counts with the two layers or buckets of it that a GPU holds, at the fullest moment of a backward
/// pass.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct RankMemory {
    /// Weights in the precision of the matrix products.
    pub weights: Bytes,
    /// Accumulated gradients.
    pub gradients: Bytes,
    /// Master weights and moments.
    pub optimizer: Bytes,
    /// Activations kept between forward and backward.
    pub activations: Bytes,
    /// Temporaries at the peak.
    pub temporaries: Bytes,
    /// Libraries, communicators, fragmentation: held all the time.
    pub overhead: Bytes,
    /// Of `weights`, those that are fetched and dropped again.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub fetched_weights: Bytes,
    /// Of `gradients`, those that are on their way out.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub leaving_gradients: Bytes,
    /// In the memory of the node's processors, not on the GPU.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub host: Bytes,
    /// On the node's drives.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub nvme: Bytes,
}

fn is_zero(bytes: &Bytes) -> bool {
    *bytes == Bytes::ZERO
}

impl RankMemory {
    /// Everything.
    pub fn total(&self) -> Bytes {
        self.weights + self.gradients + self.optimizer + self.activations + self.temporaries + self.overhead
    }

    /// What is held during the whole step.
    pub fn resident(&self) -> Vec<Allocation> {
        let held = [
            (MemoryKind::Weights, self.weights - self.fetched_weights),
            (MemoryKind::Gradients, self.gradients - self.leaving_gradients),
            (MemoryKind::Optimizer, self.optimizer),
            (MemoryKind::Buffers, self.overhead),
        ];
        held.into_iter().map(|(kind, bytes)| Allocation { kind, bytes }).collect()
    }
}

/// Bytes of weights, gradients and optimizer state for each parameter on a rank: (weights, gradients, optimizer).
///
/// Mixed-precision Adam: 2 + 2 + 12 with 16-bit gradients, 2 + 4 + 12 with fp32 ones; ZeRO-1 over d ranks divides the
/// optimizer's by d (Rajbhandari et al. 2020, arXiv 1910.02054).
pub fn state_per_parameter(plan: &Plan) -> (Bytes, Bytes, Bytes) {
    let state = plan.state_bytes();
    (state.weight, state.gradient, own_part(plan, state.optimizer()))
}

/// Memory that libraries and communicators take.
pub fn fixed_overhead(plan: &Plan) -> Bytes {
    let axes = [plan.mesh.tensor, plan.mesh.data, plan.mesh.pipeline];
    let communicators = axes.iter().filter(|ranks| **ranks > 1).count() as f64;
    plan.stack.context_memory.value + plan.stack.communicator_memory.value * communicators
}

/// The closed form for every pipeline rank of a plan.
pub fn plan_memory(plan: &Plan) -> Vec<RankMemory> {
    stages_memory(plan, &Stage::all(plan))
}

/// The closed form for every pipeline rank of a plan with these stages.
pub(crate) fn stages_memory(plan: &Plan, stages: &[Stage]) -> Vec<RankMemory> {
    let beside: Vec<Bytes> = stages.iter().map(|stage| stage.kept_beside(plan)).collect();
    let on_gpu: Vec<Bytes> =
        stages.iter().zip(&beside).map(|(stage, beside)| stage.kept() - *beside).collect();
    let (beside, on_gpu) = (InFlight::of(plan, beside), InFlight::of(plan, on_gpu));
    let rank = |rank| {
        let memory = rank_memory(plan, stages, &on_gpu, rank);
        if plan.offload.is_none() {
            memory
        } else {
            with_offload(plan, stages, &on_gpu, &beside, rank, memory)
        }
    };
    (0..plan.mesh.pipeline).map(rank).collect()
}

/// What each stage keeps of a microbatch, and of how many it does at its rank's peak.
struct InFlight {
    kept: Vec<Bytes>,
    microbatches: Vec<usize>,
}

impl InFlight {
    fn of(plan: &Plan, kept: Vec<Bytes>) -> Self {
        let shape = plan.pipeline_shape();
        let microbatches = peak_in_flight(plan.schedule(), shape, |stage| kept[stage].get());
        Self { kept, microbatches }
    }

    fn bytes(&self, stage: usize) -> Bytes {
        self.kept[stage] * self.microbatches[stage] as f64
    }
}

/// The closed form of a rank that holds everything itself but the activations that it offloads.
fn rank_memory(plan: &Plan, stages: &[Stage], on_gpu: &InFlight, pipeline_rank: usize) -> RankMemory {
    let own = || own_stages(plan, stages, pipeline_rank);
    let parameters = own().map(Stage::parameters).sum::<u64>() as f64;
    let (weights, gradients, optimizer) = state_per_parameter(plan);
    let activations: Bytes = own().map(|stage| on_gpu.bytes(stage.index)).sum();
    let temporaries = own().map(Stage::backward_peak).fold(Bytes::ZERO, Bytes::max);
    let lost = plan.stack.fragmentation.value * (activations + temporaries);
    RankMemory {
        weights: weights * parameters,
        gradients: gradients * parameters,
        optimizer: optimizer * parameters,
        activations,
        temporaries,
        overhead: fixed_overhead(plan) + lost,
        ..RankMemory::default()
    }
}

/// The same rank with what is offloaded beside it: on the GPU what one stage's backward holds at its fullest moment, one
/// of its microbatches among those in flight.
///
/// Beside the GPU, for each of the N parameters that the rank updates there: master weight and moments, the
/// gradients that arrive (twice if updates are delayed, since the last step's are still read), and the weights where
/// those are fetched. What is on the drives passes through two buckets of host memory.
fn with_offload(
    plan: &Plan,
    stages: &[Stage],
    on_gpu: &InFlight,
    beside: &InFlight,
    pipeline_rank: usize,
    all: RankMemory,
) -> RankMemory {
    let offload = &plan.offload;
    let own = || own_stages(plan, stages, pipeline_rank);
    let state = plan.state_bytes();
    let parameters = own().map(Stage::parameters).sum::<u64>() as f64;
    let by_host = offload.updated_by_host();

    let (others, held) = own()
        .map(|stage| {
            let rest = on_gpu.kept[stage.index] * on_gpu.microbatches[stage.index].saturating_sub(1) as f64;
            (all.activations - on_gpu.bytes(stage.index) + rest, Held::fullest(plan, stage))
        })
        .reduce(|most, next| if next.0 + next.1.total() > most.0 + most.1.total() { next } else { most })
        .unwrap_or_default();
    let late = if offload.gradients.is_some() { late_gradients(plan, own()) } else { all.gradients };
    let resident_weights = if offload.parameters.is_some() { Bytes::ZERO } else { all.weights };
    let activations = others + held.activations;
    let lost = plan.stack.fragmentation.value * (activations + held.temporaries);

    let updated = own_part(plan, Bytes::new(1.0)).get() * parameters * by_host;
    let arriving = if offload.delayed_update { 2.0 } else { 1.0 };
    let fetched = if offload.parameters.is_some() { parameters } else { 0.0 };
    let bucket = own().flat_map(|stage| Bucket::all(plan, stage)).map(|bucket| bucket.parameters).max();
    let staged = 2.0 * bucket.unwrap_or_default() as f64 * by_host;
    let mut memory = RankMemory {
        weights: resident_weights + held.weights,
        gradients: late + held.gradients,
        optimizer: all.optimizer * (1.0 - by_host),
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
    let kept: Bytes = own().map(|stage| beside.bytes(stage.index)).sum();
    let largest = own().flat_map(|stage| stage.blocks.iter()).map(Layer::kept).fold(Bytes::ZERO, Bytes::max);
    memory.keep_beside(offload.activations, kept, 2.0 * largest);
    memory
}

impl RankMemory {
    /// Adds what is at a place beside the GPU; on the drives it passes through `staged` bytes of host memory.
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

/// What the ranks of one node keep beside its GPUs, and what there is.
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

/// What the node whose ranks keep most beside their GPUs holds there, by the closed form of each pipeline rank; none if
/// nothing is offloaded.
pub fn node_memory(plan: &Plan, ranks: &[RankMemory]) -> Option<NodeMemory> {
    let processors = plan.cluster.node.processors.as_ref().filter(|_| !plan.offload.is_none())?;
    let gpus = plan.cluster.node.gpus.value;
    let most = |kept: fn(&RankMemory) -> Bytes| {
        let of_node = |node: usize| -> Bytes {
            let own = node * gpus..(node + 1) * gpus;
            own.map(|rank| kept(&ranks[plan.mesh.coordinates(rank).pipeline])).sum()
        };
        (0..plan.cluster.nodes).map(of_node).fold(Bytes::ZERO, Bytes::max)
    };
    let drives = processors.drives.as_ref();
    Some(NodeMemory {
        host: most(|rank| rank.host),
        host_capacity: processors.memory.value,
        nvme: most(|rank| rank.nvme),
        nvme_capacity: drives.map_or(Bytes::ZERO, |drives| drives.capacity.value),
    })
}
