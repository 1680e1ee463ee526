//! Memory of a rank in closed form.

use crate::lower::part::Shape;
use crate::lower::{Stage, own_stages};
use crate::optimizer::state_bytes;
use crate::plan::Plan;
use crate::program::{Allocation, MemoryKind};
use crate::schedule::peak_in_flight;
use crate::units::Bytes;
use serde::{Deserialize, Serialize};

/// The peak memory of one rank by kind.
///
/// Weights, gradients and optimizer state stay for the whole step; activations are those of the microbatches in
/// flight at the schedule's peak; buffers hold what backward computes again, the largest temporary, communicators,
/// libraries and what the allocator loses.
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
}

impl RankMemory {
    /// Everything.
    pub fn total(&self) -> Bytes {
        self.weights + self.gradients + self.optimizer + self.activations + self.temporaries + self.overhead
    }

    /// What is held during the whole step.
    pub fn resident(&self) -> Vec<Allocation> {
        let held = [
            (MemoryKind::Weights, self.weights),
            (MemoryKind::Gradients, self.gradients),
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
    let shards = if plan.shards_optimizer() { plan.mesh.data as f64 } else { 1.0 };
    let optimizer = state_bytes(plan.job.optimizer(), plan.job.precision);
    (plan.job.precision.storage_bytes(), Shape::of(plan).gradient_bytes(), optimizer / shards)
}

/// Bytes of the copies of a weight that products below 16 bits read.
fn quantised_bytes(plan: &Plan) -> Bytes {
    let precision = plan.job.precision;
    precision
        .quantisation()
        .map_or(Bytes::ZERO, |quantisation| quantisation.copies as f64 * precision.operand_bytes())
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
    let kept: Vec<Bytes> = stages.iter().map(Stage::kept).collect();
    let in_flight = peak_in_flight(plan.schedule(), plan.pipeline_shape(), |stage| kept[stage].get());
    let rank = |rank| rank_memory(plan, stages, &kept, &in_flight, rank);
    (0..plan.mesh.pipeline).map(rank).collect()
}

fn rank_memory(
    plan: &Plan,
    stages: &[Stage],
    kept: &[Bytes],
    in_flight: &[usize],
    pipeline_rank: usize,
) -> RankMemory {
    let own = || own_stages(plan, stages, pipeline_rank);
    let parameters = own().map(Stage::parameters).sum::<u64>() as f64;
    let quantised = own().map(Stage::quantised).sum::<u64>() as f64;
    let (weights, gradients, optimizer) = state_per_parameter(plan);
    let activations: Bytes = own().map(|stage| kept[stage.index] * in_flight[stage.index] as f64).sum();
    let temporaries = own().map(Stage::backward_peak).fold(Bytes::ZERO, Bytes::max);
    let lost = plan.stack.fragmentation.value * (activations + temporaries);
    RankMemory {
        weights: weights * parameters + quantised_bytes(plan) * quantised,
        gradients: gradients * parameters,
        optimizer: optimizer * parameters,
        activations,
        temporaries,
        overhead: fixed_overhead(plan) + lost,
    }
}
