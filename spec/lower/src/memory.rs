//! Memory of a rank in closed form, and host memory of its node.

mod divided;
mod offloaded;

pub use offloaded::{NodeMemory, most_on_a_node, node_memory};

pub use crate::data::divisor;

use crate::data::{Copies, Trained, kept_quantised};
use crate::stage::{Stage, stages_on};
use divided::Undivided;
use offloaded::with_offload;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use trainwright_spec::data::Divided;
use trainwright_spec::optimizer::Rule;
use trainwright_spec::plan::Plan;
use trainwright_spec::precision::Precision;
use trainwright_spec::program::{Allocation, Axis, MemoryKind, Place};
use trainwright_spec::schedule::{Action, ActionKind, ActionLists};
use trainwright_spec::stack::{ExtraState, MemoryReport};
use trainwright_spec::units::Bytes;

/// The peak memory of one rank by kind.
///
/// Weights, gradients and optimizer state stay for the whole step; activations are those of the microbatches in
/// flight at the schedule's peak; buffers hold what backward computes again, the largest temporary, communicators,
/// libraries and what the allocator loses. Where the halves of backward run apart, what the second one needs is held
/// from the first one to it.
///
/// What is offloaded counts with the two layers or buckets of it that a GPU holds, at the peak of a backward
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
    /// Undivided weights that are gathered from parts, at their peak.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub gathered: Bytes,
    /// Undivided gradients before they are reduced to parts, at their peak.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unreduced: Bytes,
    /// By how much activations, temporaries and these two at their peaks are more than the most of them together.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub apart: Bytes,
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
        let state = self.weights + self.gradients + self.optimizer;
        state
            + self.activations
            + self.temporaries
            + self.overhead
            + (self.gathered + self.unreduced - self.apart)
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

/// What each parameter on a rank takes during the whole step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ParameterBytes {
    /// Its weight.
    pub weights: Bytes,
    /// Its accumulated gradient.
    pub gradients: Bytes,
    /// Its master weight and moments.
    pub optimizer: Bytes,
}

impl ParameterBytes {
    /// All of it.
    pub fn total(&self) -> Bytes {
        self.weights + self.gradients + self.optimizer
    }
}

/// Bytes of weights, gradients and optimizer state for each parameter that the ranks of `axis` have in common.
///
/// Mixed-precision Adam: 2 + 2 + 12 with 16-bit gradients, 2 + 4 + 12 with fp32 ones. Divided over d ranks: ZeRO-1
/// 4 + 12/d, ZeRO-2 2 + 14/d, ZeRO-3 16/d (Rajbhandari et al. 2020, arXiv 1910.02054). Where gradients are not reduced
/// in every microbatch they stay undivided until the last. Extra state of the stack counts as gradients.
///
/// Those of a parameter with that rule.
pub fn state_per_parameter(plan: &Plan, axis: Axis, rule: Rule) -> ParameterBytes {
    let ranks = divisor(plan, axis) as f64;
    let part = |divided, bytes| if divided { bytes / ranks } else { bytes };
    let state = plan.state_bytes_by(rule);
    let extra = plan.stack.extra_state.as_ref().map_or(Bytes::ZERO, |extra| {
        let of_bf16 = extra.divided_bf16.as_ref().filter(|_| plan.job.precision.base() == Precision::Bf16);
        let in_parts = of_bf16.map_or(extra.divided_part.value / ranks, |bytes| bytes.value);
        let divided = extra.divided_whole.value + in_parts;
        let is_held = !extra.always_in_reduction || plan.mesh.weight_copies() > 1;
        let always = if is_held { extra.always.value } else { Bytes::ZERO };
        always + if has_divided_optimizer(plan, extra) { divided } else { Bytes::ZERO }
    });
    ParameterBytes {
        weights: part(plan.divides(Divided::Weights), state.weight),
        gradients: part(plan.shards_gradients(), state.gradient) + extra,
        optimizer: part(plan.shards_optimizer(), state.optimizer()),
    }
}

/// Whether the stack runs its optimizer of divided state.
fn has_divided_optimizer(plan: &Plan, extra: &ExtraState) -> bool {
    let on_one_rank = extra.divided_on_one_rank && plan.data_scheme().divides() >= Divided::Optimizer;
    plan.shards_optimizer() || on_one_rank
}

/// The part of it that stays in the GPU's memory for the whole step.
pub fn gpu_state_per_parameter(plan: &Plan, axis: Axis, rule: Rule) -> ParameterBytes {
    let (offload, state) = (&plan.offload, state_per_parameter(plan, axis, rule));
    let unless = |place: Option<Place>, bytes| if place.is_some() { Bytes::ZERO } else { bytes };
    ParameterBytes {
        weights: unless(offload.parameters, state.weights),
        gradients: unless(offload.gradients, state.gradients),
        optimizer: state.optimizer * (1.0 - offload.updated_by_host()),
    }
}

/// Memory that libraries, communicators and buffers of a fixed size take.
pub fn fixed_overhead(plan: &Plan) -> Bytes {
    outside_allocator(plan) + gather_buffers(plan)
}

/// Buffers that stay allocated, into which several tensor ranks gather the tokens of a microbatch.
fn gather_buffers(plan: &Plan) -> Bytes {
    let tokens = plan.micro_batch * plan.job.sequence / plan.mesh.context;
    let gathers = plan.mesh.tensor > 1;
    let bytes =
        plan.stack.gather_buffers.as_ref().filter(|_| gathers).map_or(Bytes::ZERO, |bytes| bytes.value);
    bytes * (tokens * plan.model.hidden) as f64
}

/// Memory that libraries and communicators allocate by themselves, and buffers of the optimizer.
fn outside_allocator(plan: &Plan) -> Bytes {
    let [shard, replica] = match plan.mesh.shard {
        Some(shard) => [shard, plan.mesh.weight_copies() / shard],
        None => [plan.mesh.weight_copies(), 1],
    };
    let experts = [Axis::Expert, Axis::ExpertData].map(|axis| plan.mesh.size(axis));
    let experts = if plan.mesh.experts_apart() { experts } else { [plan.mesh.expert, 1] };
    let axes = [plan.mesh.tensor, shard, replica, plan.mesh.pipeline, plan.mesh.context];
    let grid = [Axis::TensorRow, Axis::TensorColumn, Axis::TensorDepth];
    let grid = grid.map(|axis| if plan.mesh.tensor_rows > 1 { plan.mesh.size(axis) } else { 1 });
    let mirror = usize::from(plan.mesh.pipeline > 1 && plan.schedule().copies() > 1);
    let communicators =
        (axes.into_iter().chain(experts).chain(grid).filter(|ranks| *ranks > 1).count() + mirror) as f64;
    let extra = plan.stack.extra_state.as_ref().filter(|extra| has_divided_optimizer(plan, extra));
    let buffers =
        extra.and_then(|extra| extra.divided_buffers.as_ref()).map_or(Bytes::ZERO, |bytes| bytes.value);
    plan.stack.context_memory.value + plan.stack.communicator_memory.value * communicators + buffers
}

/// What the plan's software prints as its memory, given that of its pipeline ranks.
pub fn reported_memory(plan: &Plan, ranks: &[RankMemory]) -> Bytes {
    let most = |of: fn(&RankMemory) -> Bytes| ranks.iter().map(of).fold(Bytes::ZERO, Bytes::max);
    match &plan.stack.memory_report {
        MemoryReport::Peak => most(RankMemory::total),
        MemoryReport::PeakOfTensors => most(|rank| rank.total() - rank.overhead),
        MemoryReport::BetweenSteps => {
            ranks[0].weights + ranks[0].gradients + ranks[0].optimizer + gather_buffers(plan)
        }
    }
}

/// What the framework's allocator has reserved at the peak of the fullest rank: everything but the memory of libraries and
/// communicators, which they allocate by themselves.
pub fn reserved_memory(plan: &Plan, ranks: &[RankMemory]) -> Bytes {
    let most = ranks.iter().map(RankMemory::total).fold(Bytes::ZERO, Bytes::max);
    most - outside_allocator(plan)
}

/// The closed form for every pipeline rank of a plan.
pub fn plan_memory(plan: &Plan) -> Vec<RankMemory> {
    stages_memory(plan, &Stage::all(plan))
}

/// As `plan_memory`, with the lists of the plan's schedule given: for many plans that differ in their stages alone.
pub fn plan_memory_with(plan: &Plan, lists: &ActionLists) -> Vec<RankMemory> {
    memory_with(plan, &Stage::all(plan), lists)
}

/// `plan_memory_with` for one pipeline rank.
pub fn rank_memory_with(plan: &Plan, lists: &ActionLists, rank: usize) -> RankMemory {
    let stages = Stage::of_rank(plan, rank);
    let one = ranks_memory(plan, &stages, lists, rank..rank + 1);
    one.into_iter().next().expect("a rank was asked for")
}

/// The closed form for every pipeline rank of a plan with these stages.
pub(crate) fn stages_memory(plan: &Plan, stages: &[Stage]) -> Vec<RankMemory> {
    memory_with(plan, stages, &plan.schedule().lists(plan.pipeline_shape()))
}

fn memory_with(plan: &Plan, stages: &[Stage], lists: &ActionLists) -> Vec<RankMemory> {
    ranks_memory(plan, stages, lists, 0..lists.ranks.len())
}

/// Of some ranks, all of whose stages are given.
fn ranks_memory(plan: &Plan, stages: &[Stage], lists: &ActionLists, ranks: Range<usize>) -> Vec<RankMemory> {
    let held = by_number(plan, stages, Held::of);
    let actions = lists.ranks[ranks.clone()].iter();
    let memory = ranks.clone().zip(actions).map(|rank| rank_memory(plan, stages, &held, rank)).collect();
    if plan.offload.is_none() { memory } else { with_offload(plan, stages, lists, (ranks, memory)) }
}

/// Something of each stage by its number in actions, and its default for stages that are not given.
fn by_number<T: Default + Clone>(plan: &Plan, stages: &[Stage], of: impl Fn(&Stage) -> T) -> Vec<T> {
    let mut all = vec![T::default(); plan.stages.len() * plan.schedule().copies()];
    stages.iter().for_each(|stage| all[stage.number] = of(stage));
    all
}

/// What one microbatch holds of a stage.
#[derive(Clone, Default)]
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
    let here = || stages_on(plan, stages, pipeline_rank);
    let state = |of: fn(&ParameterBytes) -> Bytes| -> Bytes {
        let copies = Copies::of_all(plan, here().flat_map(Stage::layers));
        let by_rule = copies.iter().flat_map(|(axis, Trained { all, matrices })| {
            [(axis, Rule::Elements, all - matrices), (axis, Rule::Matrices, matrices)]
        });
        by_rule
            .filter(|(.., parameters)| *parameters > 0)
            .map(|(axis, rule, parameters)| {
                of(&gpu_state_per_parameter(plan, axis, rule)) * parameters as f64
            })
            .sum()
    };
    let levels = actions.iter().scan(Bytes::ZERO, |level, action| {
        *level += held[action.stage].change(action.kind);
        Some(*level)
    });
    let activations = levels.fold(Bytes::ZERO, Bytes::max);
    let runs = |kind| actions.iter().any(|action| action.kind == kind);
    let most = |of: fn(&Stage) -> Bytes| here().map(of).fold(Bytes::ZERO, Bytes::max);
    let undivided = if runs(ActionKind::Backward) { most(Stage::backward_peak) } else { Bytes::ZERO };
    let halves = if runs(ActionKind::Input) { most(Stage::halves_peak) } else { Bytes::ZERO };
    let temporaries = undivided.max(halves);
    let Undivided { gathered, unreduced, apart } = Undivided::of(plan, here(), temporaries);
    let lost =
        plan.stack.lost_part(plan.mesh.tensor) * (activations + temporaries + (gathered + unreduced - apart));
    let quantised: Bytes = here().flat_map(Stage::layers).map(|layer| kept_quantised(plan, layer)).sum();
    let frozen = Copies::of_all(plan, here().flat_map(Stage::layers)).frozen(plan);
    RankMemory {
        weights: (state(|state| state.weights) + frozen + quantised)
            * plan.schedule().weight_versions() as f64,
        gradients: state(|state| state.gradients),
        optimizer: state(|state| state.optimizer),
        activations,
        temporaries,
        overhead: fixed_overhead(plan) + lost,
        gathered,
        unreduced,
        apart,
        ..RankMemory::default()
    }
}
