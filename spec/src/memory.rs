//! Memory of a rank in closed form.

use crate::lower::part::Shape;
use crate::lower::{Stage, own_stages};
use crate::optimizer::state_bytes;
use crate::plan::Plan;
use crate::program::{Allocation, Axis, MemoryKind};
use crate::schedule::{Action, ActionKind};
use crate::units::Bytes;
use serde::{Deserialize, Serialize};

/// The peak memory of one rank by kind.
///
/// Weights, gradients and optimizer state stay for the whole step; activations are those of the microbatches in
/// flight at the schedule's peak; buffers hold what backward computes again, the largest temporary, communicators,
/// libraries and what the allocator loses. Where the halves of backward run apart, what the second one needs is held
/// from the first one to it.
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
    let shards = if plan.shards_optimizer() { plan.mesh.weight_copies() as f64 } else { 1.0 };
    let optimizer = state_bytes(plan.job.optimizer(), plan.job.precision);
    (plan.job.precision.storage_bytes(), Shape::of(plan).gradient_bytes(), optimizer / shards)
}

/// Bytes of optimizer state for each parameter of a routed expert on a rank: ZeRO-1 divides them by the ranks that
/// hold the same expert.
fn apart_optimizer(plan: &Plan) -> Bytes {
    let shards = if plan.shards_optimizer() { plan.mesh.size(Axis::ExpertData) as f64 } else { 1.0 };
    state_bytes(plan.job.optimizer(), plan.job.precision) / shards
}

/// Memory that libraries and communicators take.
pub fn fixed_overhead(plan: &Plan) -> Bytes {
    let experts = [Axis::Expert, Axis::ExpertData].map(|axis| plan.mesh.size(axis));
    let experts = if plan.mesh.experts_apart() { experts } else { [plan.mesh.expert, 1] };
    let own = [plan.mesh.tensor, plan.mesh.weight_copies(), plan.mesh.pipeline, plan.mesh.context];
    let mirror = usize::from(plan.mesh.pipeline > 1 && plan.schedule().copies() > 1);
    let communicators =
        (own.into_iter().chain(experts).filter(|ranks| *ranks > 1).count() + mirror) as f64;
    plan.stack.context_memory.value + plan.stack.communicator_memory.value * communicators
}

/// The closed form for every pipeline rank of a plan.
pub fn plan_memory(plan: &Plan) -> Vec<RankMemory> {
    stages_memory(plan, &Stage::all(plan))
}

/// The closed form for every pipeline rank of a plan with these stages.
pub(crate) fn stages_memory(plan: &Plan, stages: &[Stage]) -> Vec<RankMemory> {
    let held: Vec<Held> = stages.iter().map(Held::of).collect();
    let lists = plan.schedule().lists(plan.pipeline_shape()).ranks;
    lists
        .iter()
        .enumerate()
        .map(|(rank, actions)| rank_memory(plan, stages, &held, (rank, actions)))
        .collect()
}

/// What one microbatch holds of a stage.
struct Held {
    /// From forward to backward, or to its first half.
    kept: Bytes,
    /// Between the halves of backward.
    between: Bytes,
}

impl Held {
    fn of(stage: &Stage) -> Self {
        Held { kept: stage.kept(), between: stage.held_between() }
    }

    /// What an action adds to it.
    fn change(&self, kind: ActionKind) -> Bytes {
        match kind {
            ActionKind::Forward => self.kept,
            ActionKind::Backward => Bytes::ZERO - self.kept,
            ActionKind::Input => self.between - self.kept,
            ActionKind::Weight => Bytes::ZERO - self.between,
        }
    }
}

fn rank_memory(
    plan: &Plan,
    stages: &[Stage],
    held: &[Held],
    (pipeline_rank, actions): (usize, &Vec<Action>),
) -> RankMemory {
    let own = || own_stages(plan, stages, pipeline_rank);
    let parameters = own().map(Stage::parameters).sum::<u64>() as f64;
    let (weights, gradients, optimizer) = state_per_parameter(plan);
    let routed = own().map(Stage::routed).sum::<u64>() as f64;
    let apart = if plan.mesh.experts_apart() { routed } else { 0.0 };
    let levels = actions.iter().scan(Bytes::ZERO, |level, action| {
        *level += held[action.stage].change(action.kind);
        Some(*level)
    });
    let activations = levels.fold(Bytes::ZERO, Bytes::max);
    let runs = |kind| actions.iter().any(|action| action.kind == kind);
    let most = |of: fn(&Stage) -> Bytes| own().map(of).fold(Bytes::ZERO, Bytes::max);
    let whole = if runs(ActionKind::Backward) { most(Stage::backward_peak) } else { Bytes::ZERO };
    let halves = if runs(ActionKind::Input) { most(Stage::halves_peak) } else { Bytes::ZERO };
    let temporaries = whole.max(halves);
    let lost = plan.stack.fragmentation.value * (activations + temporaries);
    RankMemory {
        weights: weights * parameters * plan.schedule().weight_versions() as f64,
        gradients: gradients * parameters,
        optimizer: optimizer * (parameters - apart) + apart_optimizer(plan) * apart,
        activations,
        temporaries,
        overhead: fixed_overhead(plan) + lost,
    }
}
