//! The program of a plan: its segments, the calls of its pipeline ranks, and the groups in which ranks communicate.

use crate::classes::representatives;
use crate::memory::stages_memory;
use crate::passes::BackwardPart;
use crate::stage::{Stage, Variant};
use crate::{data, offload, process, update};
use std::collections::{BTreeMap, BTreeSet};
use trainwright_spec::mesh::Coordinates;
use trainwright_spec::plan::Plan;
use trainwright_spec::program::{Axis, Call, Group, Layer, Program, ProgramStage, RankProgram, Segment};
use trainwright_spec::schedule::{Action, ActionKind, PipelineShape};

/// The program of one rank for each class of ranks with equal ops at equal times. The plan must have passed
/// `Plan::check`.
pub fn lower(plan: &Plan) -> Program {
    lower_steps(plan, 1)
}

/// The program of several steps in a row, of the same ranks. Where the schedule does not flush, a step's microbatches
/// follow those of the step before at once; else its first op waits on its rank for the update before it.
pub fn lower_steps(plan: &Plan, steps: usize) -> Program {
    lower_ranks(plan, representatives(plan), steps)
}

/// The program of every rank: what `lower` gives, without use of symmetry.
pub fn lower_every_rank(plan: &Plan) -> Program {
    lower_ranks(plan, (0..plan.mesh.ranks()).collect(), 1)
}

/// The program of one rank of each tensor group. The ranks of a tensor group wait for each other in every layer, so one
/// of them represents the others even if ranks with equal weights differ.
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
        true => schedule.lists(shape),
        false => schedule.lists(PipelineShape { microbatches: steps * shape.microbatches, ..shape }),
    };
    let runs: BTreeSet<ActionKind> = lists.ranks.iter().flatten().map(|action| action.kind).collect();
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
        let lowered = stages.iter().filter(|_| runs.contains(&kind));
        lowered
            .map(|stage| {
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

    let outside_actions = |segment: usize| Call { segment, action: None, joint: false };
    let calls: Vec<Vec<Call>> = lists
        .ranks
        .iter()
        .zip(&lists.joint)
        .zip(update.iter().zip(&delayed))
        .map(|((actions, joint), (update, delayed))| {
            let carriers = Carriers::of(actions, shape.microbatches);
            let joint: BTreeSet<usize> = joint.iter().copied().collect();
            let mut calls: Vec<Call> = delayed.iter().map(|segment| outside_actions(*segment)).collect();
            for (at, action) in actions.iter().enumerate() {
                let data = carriers.first.contains(&at) || carriers.last.contains(&at);
                let segment = passes[action.kind as usize][action.stage][usize::from(data)];
                let joint = joint.contains(&at) && !carriers.updates.contains(&at);
                calls.push(Call { segment, action: Some(*action), joint });
                if carriers.updates.contains(&at) {
                    calls.push(outside_actions(*update));
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
            let groups_of_rank = Axis::ALL.map(|axis| {
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
                groups: groups_of_rank,
                resident: memory[at.pipeline].resident(),
                calls: calls[at.pipeline].clone(),
            }
        })
        .collect();
    let stages = stages.iter().map(|stage| program_stage(plan, stage)).collect();
    Program { segments, stages, ranks: rank_programs, groups }
}

fn program_stage(plan: &Plan, stage: &Stage) -> ProgramStage {
    let embedding = stage.embedding.iter().map(|_| Layer::Embedding);
    let blocks = stage.blocks.iter().map(|layer| Layer::Block(layer.block.expect("a block has an index")));
    let head = stage.head.iter().map(|_| Layer::Head);
    ProgramStage {
        pipeline_rank: plan.pipeline_rank_of(stage.number),
        layers: embedding.chain(blocks).chain(head).collect(),
    }
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
