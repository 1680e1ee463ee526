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
pub(crate) mod offload;
pub(crate) mod part;
mod stage;
mod update;

pub(crate) use stage::{Layer, Stage};
pub use stage::{StageCost, messages_in_line};
pub(crate) use update::own_stages;

use crate::memory::stages_memory;
use crate::mesh::{Coordinates, Stride};
use crate::plan::Plan;
use crate::program::{Axis, Call, Group, Program, RankProgram, Segment};
use crate::schedule::ActionKind;
use stage::Variant;

/// The program of one rank for each class of ranks that do the same at the same times. The plan must have passed
/// `Plan::check`.
///
/// With g GPUs in a node, s from a rank of a group to the next and n ranks in it, S ranks in a stage:
///
/// - The groups of an axis lie alike in the nodes if s divides g or g divides s (so do those that begin at
///   neighbouring ranks), and s·n divides g or g divides s·n, or is S (so do those further on).
/// - Messages between stages are alike if the next stage, S ranks further, is in another node for all of them or for
///   none: S ≥ g, or S divides g.
/// - Where both hold for all axes, one rank speaks for a stage. Otherwise the places of the groups in the nodes
///   repeat after a number of ranks that g and all s·n divide, and ranks are alike again.
pub fn lower(plan: &Plan) -> Program {
    let mesh = &plan.mesh;
    let gpus = plan.cluster.node.gpus.value;
    let stage = mesh.stage_ranks();
    let divides = |one: usize, other: usize| one.is_multiple_of(other) || other.is_multiple_of(one);
    let blocks = || {
        let inside = Axis::ALL.into_iter().filter(|axis| *axis != Axis::Pipeline);
        inside.filter_map(|axis| mesh.stride(axis)).filter(|groups| groups.count > 1)
    };
    let tensor_alike = divides(gpus, mesh.tensor);
    let all_alike = tensor_alike
        && (stage >= gpus || gpus.is_multiple_of(stage))
        && blocks().all(|Stride { stride, count }| {
            divides(gpus, stride) && (stride * count == stage || divides(gpus, stride * count))
        });
    // No group but their own tells the ranks of a tensor group apart.
    let tensor_whole = mesh.tensor_rows == 1 && mesh.expert_tensor() == mesh.tensor;
    let repeat = blocks()
        .map(|groups| groups.stride * groups.count)
        .filter(|block| *block < stage)
        .fold(least_common_multiple(gpus, mesh.tensor), least_common_multiple)
        / mesh.tensor;
    let tensor_ranks = if all_alike || tensor_alike && tensor_whole { 1 } else { mesh.tensor };
    let copies = match (all_alike, mesh.weight_copies()) {
        (true, _) => 1,
        (false, copies) if copies.is_multiple_of(repeat) => repeat,
        (false, copies) => copies,
    };
    let speaks = |rank: &usize| {
        let within = rank % stage;
        within % mesh.tensor < tensor_ranks && within / mesh.tensor < copies
    };
    lower_ranks(plan, (0..mesh.ranks()).filter(speaks).collect())
}

fn least_common_multiple(one: usize, other: usize) -> usize {
    let (mut a, mut b) = (one, other);
    while b > 0 {
        (a, b) = (b, a % b);
    }
    one / a * other
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
            [
                plain,
                if reduces(plan) || offload::copies_in_backward(plan) {
                    add(stage.backward(plan, Variant::Data))
                } else {
                    plain
                },
            ]
        })
        .collect();
    let update: Vec<usize> =
        (0..plan.mesh.pipeline).map(|rank| add(update::segment(plan, &stages, rank))).collect();
    let delayed: Vec<Option<usize>> = (0..plan.mesh.pipeline)
        .map(|rank| plan.offload.delayed_update.then(|| add(update::delayed(plan, &stages, rank))))
        .collect();

    let calls: Vec<Vec<Call>> = (0..plan.mesh.pipeline)
        .map(|pipeline_rank| {
            let pass = schedule.actions(pipeline_rank, shape).into_iter().map(|action| {
                let segment = match action.kind {
                    ActionKind::Forward => forward[action.stage][usize::from(action.microbatch == 0)],
                    ActionKind::Backward => {
                        backward[action.stage][usize::from(action.microbatch + 1 == shape.microbatches)]
                    }
                };
                Call { segment, action: Some(action) }
            });
            let outside = |segment| Call { segment, action: None };
            let before = delayed[pipeline_rank].map(outside);
            before.into_iter().chain(pass).chain([outside(update[pipeline_rank])]).collect()
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
                if members.len() < 2 || !members.contains(&rank) {
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

/// Parameters of a layer whose gradients other ranks add to after backward: norms and other whole weights, of which each
/// rank of the tensor axis saw a part of the sequence, and an embedding that both ends of a pipeline hold.
fn late_parameters(plan: &Plan, layer: &Layer) -> u64 {
    let shape = part::Shape::of(plan);
    let replicated = if shape.sequence_parallel { layer.replicated } else { 0 };
    let shared = layer.block.is_none() && plan.model.head.tied && plan.mesh.pipeline > 1;
    replicated + if shared { update::tied_embedding(plan) } else { 0 }
}

/// Whether the first forward pass gathers weights that the data axis holds in parts.
fn gathers(plan: &Plan) -> bool {
    plan.shards_optimizer() && plan.stack.overlap_weight_gather
}

/// Whether the last backward pass reduces gradients over the data axis.
fn reduces(plan: &Plan) -> bool {
    plan.mesh.data > 1 && plan.stack.overlap_gradient_reduction
}
