//! From a plan to its program.
//!
//! Each stage becomes a few segments: forward, backward, and variants of them that carry what the data axis does once a
//! step (the first forward gathers weights, the last backward reduces gradients). A last segment per rank
//! finishes the step: what was not overlapped, gradient norm, optimizer.

mod attention;
mod attention_core;
mod block;
pub(crate) mod data;
mod elementwise;
pub(crate) mod emit;
mod ends;
mod experts;
mod feed_forward;
pub(crate) mod offload;
pub(crate) mod part;
mod process;
mod stage;
mod state;
mod update;

pub(crate) use stage::{Layer, Stage};
pub use stage::{StageCost, messages_in_line};
pub use state::{LayerParameters, StateSegments, update_segment};
pub(crate) use update::own_stages;

use crate::memory::stages_memory;
use crate::mesh::{Coordinates, RankOrder, Stride};
use crate::plan::Plan;
use crate::program::{Axis, Call, Group, Program, RankProgram, Segment};
use crate::schedule::{Action, ActionKind, PipelineShape};
use stage::{BackwardPart, Variant};
use std::collections::{BTreeMap, BTreeSet};

/// The program of one rank for each class of ranks that do the same at the same times. The plan must have passed
/// `Plan::check`.
///
/// With g GPUs in a node, s from a rank of a group to the next and n ranks in it, S ranks in a stage:
///
/// - The groups of an axis lie alike in the nodes if s divides g or g divides s (so do those that begin at
///   neighbouring ranks), and s·n divides g or g divides s·n, or is S (so do those further on).
/// - Messages between stages are alike if the next stage, S ranks further, is in another node for all of them or for
///   none: S ≥ g, or S divides g.
/// - Where pipelines are numbered before data, B = T · C ranks of a stage are neighbours: the next stage is B ranks further, and
///   messages are alike if B divides by g, or g by B · P, so that all of a pipeline lies in a node; so are then groups over
///   several such blocks, each of which lies like the next in its nodes.
/// - Where these hold for all axes, one rank speaks for a stage. Otherwise the places of the groups in the nodes
///   repeat after a number of ranks that g and all s·n divide, and ranks are alike again.
pub fn lower(plan: &Plan) -> Program {
    lower_steps(plan, 1)
}

/// The program of several steps in a row, of the same ranks. Where the schedule does not flush, a step's microbatches
/// follow those of the step before at once; else its first op waits on its rank for the update before it.
pub fn lower_steps(plan: &Plan, steps: usize) -> Program {
    let mesh = &plan.mesh;
    let gpus = plan.cluster.node.gpus.value;
    let stage = mesh.stage_ranks();
    let divides = |one: usize, other: usize| one.is_multiple_of(other) || other.is_multiple_of(one);
    let inside = |axis: &Axis| !matches!(axis, Axis::Pipeline | Axis::Embedding | Axis::Mirror);
    let axes = || Axis::ALL.into_iter().filter(inside).filter(|axis| mesh.size(*axis) > 1);
    let blocks = || axes().filter_map(|axis| mesh.stride(axis));
    let (next_stage, end, messages_alike) = match mesh.order {
        RankOrder::PipelineLast => (stage, stage, stage >= gpus || gpus.is_multiple_of(stage)),
        RankOrder::DataLast => {
            let block = mesh.tensor * mesh.context;
            let alike = block.is_multiple_of(gpus) || gpus.is_multiple_of(block * mesh.pipeline);
            (block, mesh.ranks(), alike || mesh.pipeline == 1)
        }
    };
    let tensor_alike = divides(gpus, mesh.tensor);
    let all_alike = tensor_alike
        && messages_alike
        && blocks().all(|Stride { stride, count }| {
            divides(gpus, stride) && (stride * count == end || divides(gpus, stride * count))
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
        (false, copies) if copies.is_multiple_of(repeat) && next_stage == stage => repeat,
        (false, copies) => copies,
    };
    let speaks = |rank: &usize| {
        let within = mesh.within_stage(*rank);
        within % mesh.tensor < tensor_ranks && within / mesh.tensor < copies
    };
    lower_ranks(plan, (0..mesh.ranks()).filter(speaks).collect(), steps)
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
    lower_ranks(plan, (0..plan.mesh.ranks()).collect(), 1)
}

/// The program of one rank of each tensor group: whatever else its group does, it meets the others in every layer, so
/// that one speaks for them even where ranks with the same weights are not alike.
pub fn lower_every_copy(plan: &Plan) -> Program {
    let ranks = 0..plan.mesh.ranks();
    lower_ranks(plan, ranks.step_by(plan.mesh.tensor).collect(), 1)
}

fn lower_ranks(plan: &Plan, ranks: Vec<usize>, steps: usize) -> Program {
    let shape = plan.pipeline_shape();
    let schedule = plan.schedule();
    let stages = Stage::all(plan);
    let mut segments = Vec::new();
    let mut add = |mut segment: Segment| {
        process::add_traffic(plan, &mut segment);
        segments.push(segment);
        segments.len() - 1
    };
    let lists = match schedule.flushes() {
        true => schedule.lists(shape).ranks,
        false => schedule.lists(PipelineShape { microbatches: steps * shape.microbatches, ..shape }).ranks,
    };
    let runs: BTreeSet<ActionKind> = lists.iter().flatten().map(|action| action.kind).collect();
    // By stage: plain, and the variant that carries the data axis's collectives where it differs. Nothing is made of
    // the kinds of passes that the schedule does not run.
    let mut pass_of = |kind: ActionKind| -> Vec<[usize; 2]> {
        let varies = match kind {
            ActionKind::Forward => data::first_forward_differs(plan),
            ActionKind::Backward | ActionKind::Weight => {
                data::last_backward_differs(plan) || offload::copies_in_backward(plan)
            }
            ActionKind::Input => false,
        };
        let make = |stage: &Stage, variant| match kind {
            ActionKind::Forward => stage.forward(plan, variant),
            ActionKind::Backward => stage.backward(plan, BackwardPart::Whole, variant),
            ActionKind::Input => stage.backward(plan, BackwardPart::Input, variant),
            ActionKind::Weight => stage.backward(plan, BackwardPart::Weight, variant),
        };
        let own = stages.iter().filter(|_| runs.contains(&kind));
        own.map(|stage| {
            let plain = add(make(stage, Variant::Plain));
            [plain, if varies { add(make(stage, Variant::Data)) } else { plain }]
        })
        .collect()
    };
    let passes = ActionKind::ALL.map(&mut pass_of);
    let update: Vec<usize> =
        (0..plan.mesh.pipeline).map(|rank| add(update::segment(plan, &stages, rank))).collect();
    let delayed: Vec<Option<usize>> = (0..plan.mesh.pipeline)
        .map(|rank| plan.offload.delayed_update.then(|| add(update::delayed(plan, &stages, rank))))
        .collect();

    let calls: Vec<Vec<Call>> = lists
        .iter()
        .zip(&update)
        .zip(&delayed)
        .map(|((actions, update), delayed)| {
            let carriers = Carriers::of(actions, shape.microbatches);
            let mut calls: Vec<Call> =
                delayed.iter().map(|segment| Call { segment: *segment, action: None }).collect();
            for (at, action) in actions.iter().enumerate() {
                let data = carriers.first.contains(&at) || carriers.last.contains(&at);
                let segment = passes[action.kind as usize][action.stage][usize::from(data)];
                calls.push(Call { segment, action: Some(*action) });
                if carriers.updates.contains(&at) {
                    calls.push(Call { segment: *update, action: None });
                }
            }
            let repeats = if schedule.flushes() { steps } else { 1 };
            calls.repeat(repeats)
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
                let unused = axis == Axis::Mirror && schedule.copies() == 1;
                if unused || members.len() < 2 || !members.contains(&rank) {
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
    let summed: u64 = layer.summands.iter().map(|(_, elements)| elements).sum();
    let shared = layer.block.is_none() && plan.model.head.tied && stage::ends_apart(plan);
    summed + if shared { update::tied_embedding(plan) } else { 0 }
}

/// Positions of the actions of a rank that carry the data axis's collectives or have an update behind them.
struct Carriers {
    /// The first forward of each stage in each step: its weights are needed.
    first: BTreeSet<usize>,
    /// The last backward of each stage in each step: its gradients are complete.
    last: BTreeSet<usize>,
    /// The last of those in each step.
    updates: BTreeSet<usize>,
}

impl Carriers {
    /// Steps of `microbatches` each.
    fn of(actions: &[Action], microbatches: usize) -> Self {
        let (mut first, mut last) = (BTreeMap::new(), BTreeMap::new());
        let mut ends = BTreeMap::new();
        for (at, action) in actions.iter().enumerate() {
            let step = action.microbatch / microbatches;
            match action.kind {
                ActionKind::Forward => {
                    first.entry((step, action.stage)).or_insert(at);
                }
                ActionKind::Backward | ActionKind::Weight => {
                    last.insert((step, action.stage), at);
                    ends.insert(step, at);
                }
                ActionKind::Input => {}
            }
        }
        let positions = |found: BTreeMap<(usize, usize), usize>| found.into_values().collect();
        Carriers { first: positions(first), last: positions(last), updates: ends.into_values().collect() }
    }
}
