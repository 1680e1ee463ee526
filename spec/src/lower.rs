//! From a plan to its program.
//!
//! Each stage becomes a few segments: forward, backward, and variants of them that carry the data axis's
//! collectives (the first forward gathers weights, the last backward reduces gradients). A last segment per rank
//! finishes the step: what was not overlapped, gradient norm, optimizer.

mod attention;
mod block;
mod elementwise;
mod emit;
mod ends;
mod feed_forward;
pub(crate) mod part;
mod stage;
mod update;

pub(crate) use stage::Stage;
pub use stage::{StageCost, messages_in_line};
pub(crate) use update::own_stages;

use crate::memory::stages_memory;
use crate::mesh::{Coordinates, Mesh};
use crate::plan::Plan;
use crate::program::{Axis, Call, Group, Program, RankProgram, Segment};
use crate::schedule::ActionKind;
use stage::Variant;

/// The program of one rank for each class of ranks that do the same at the same times. The plan must have passed
/// `Plan::check`.
///
/// With T tensor, D data ranks and g GPUs in a node:
///
/// - The ranks of a tensor group are alike if each group lies in one node or fills whole ones: T divides g, or g
///   divides T. Then the data ranks are alike too if the next stage, T·D ranks further, is in another node for all
///   of them or for none: T·D ≥ g, or T·D divides g.
/// - Otherwise some have links that others lack. Where the groups' places in the nodes repeat, after lcm(T, g) ranks,
///   data ranks are alike again.
pub fn lower(plan: &Plan) -> Program {
    let Mesh { tensor, data, .. } = plan.mesh;
    let gpus = plan.cluster.node.gpus.value;
    let stage = tensor * data;
    let tensor_alike = gpus.is_multiple_of(tensor) || tensor.is_multiple_of(gpus);
    let data_alike = tensor_alike && (stage >= gpus || gpus.is_multiple_of(stage));
    let repeat = (1..gpus).find(|groups| (groups * tensor).is_multiple_of(gpus)).unwrap_or(gpus);
    let tensor_ranks = if tensor_alike { 1 } else { tensor };
    let data_ranks = match (data_alike, data.is_multiple_of(repeat)) {
        (true, _) => 1,
        (false, true) => repeat,
        (false, false) => data,
    };
    let speaks = |rank: &usize| {
        let at = plan.mesh.coordinates(*rank);
        at.tensor < tensor_ranks && at.data < data_ranks
    };
    lower_ranks(plan, (0..plan.mesh.ranks()).filter(speaks).collect())
}

/// The program of every rank: what `lower` gives, without use of symmetry.
pub fn lower_every_rank(plan: &Plan) -> Program {
    lower_ranks(plan, (0..plan.mesh.ranks()).collect())
}

fn lower_ranks(plan: &Plan, ranks: Vec<usize>) -> Program {
    let shape = plan.pipeline_shape();
    let schedule = plan.schedule();
    let stages = Stage::all(plan);
    let mut segments = Vec::new();
    let mut add = |segment: Segment| {
        segments.push(segment);
        segments.len() - 1
    };
    // By stage: plain, and the variant that carries the data axis's collectives where it differs.
    let forward: Vec<[usize; 2]> = stages
        .iter()
        .map(|stage| {
            let plain = add(stage.forward(plan, Variant::Plain));
            [plain, if gathers(plan) { add(stage.forward(plan, Variant::Data)) } else { plain }]
        })
        .collect();
    let backward: Vec<[usize; 2]> = stages
        .iter()
        .map(|stage| {
            let plain = add(stage.backward(plan, Variant::Plain));
            [plain, if reduces(plan) { add(stage.backward(plan, Variant::Data)) } else { plain }]
        })
        .collect();
    let update: Vec<usize> =
        (0..plan.mesh.pipeline).map(|rank| add(update::segment(plan, &stages, rank))).collect();

    let calls: Vec<Vec<Call>> = (0..plan.mesh.pipeline)
        .map(|pipeline_rank| {
            let pass = schedule.actions(pipeline_rank, shape).into_iter().map(|action| {
                let segment = match action.kind {
                    ActionKind::Forward => forward[action.stage][usize::from(action.microbatch == 0)],
                    ActionKind::Backward => {
                        backward[action.stage][usize::from(action.microbatch + 1 == shape.microbatches)]
                    }
                    ActionKind::Input | ActionKind::Weight => {
                        unreachable!("`Plan::check` takes schedules with whole backward passes only")
                    }
                };
                Call { segment, action: Some(action) }
            });
            pass.chain([Call { segment: update[pipeline_rank], action: None }]).collect()
        })
        .collect();

    let memory = stages_memory(plan, &stages);
    let mut groups: Vec<Group> = Vec::new();
    let index_of = |rank: usize| ranks.binary_search(&rank).ok();
    let rank_programs = ranks
        .iter()
        .map(|&rank| {
            let at = plan.mesh.coordinates(rank);
            let own_groups = Axis::ALL.map(|axis| {
                let members = plan.mesh.group(rank, axis);
                let apart = axis == Axis::Embedding && !members.contains(&rank);
                if members.len() < 2 || apart {
                    return None;
                }
                let known = groups.iter().position(|group| group.axis == axis && group.ranks == members);
                Some(known.unwrap_or_else(|| {
                    let present = members.iter().filter_map(|&rank| index_of(rank)).collect();
                    groups.push(Group { axis, ranks: members, members: present });
                    groups.len() - 1
                }))
            });
            RankProgram {
                rank,
                stands_for: plan.mesh.ranks() / ranks.len(),
                pipeline_rank: at.pipeline,
                pipeline: (0..plan.mesh.pipeline)
                    .filter_map(|pipeline| index_of(plan.mesh.rank(Coordinates { pipeline, ..at })))
                    .collect(),
                groups: own_groups,
                resident: memory[at.pipeline].resident(),
                calls: calls[at.pipeline].clone(),
            }
        })
        .collect();
    Program { segments, ranks: rank_programs, groups }
}

/// Whether the first forward pass gathers weights that the data axis holds in parts.
fn gathers(plan: &Plan) -> bool {
    plan.shards_optimizer() && plan.stack.overlap_weight_gather
}

/// Whether the last backward pass reduces gradients over the data axis.
fn reduces(plan: &Plan) -> bool {
    plan.mesh.data > 1 && plan.stack.overlap_gradient_reduction
}
