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
use trainwright_spec::schedule::{Action, ActionKind, ActionLists, PipelineShape};

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

/// The programs of a plan for steps of so many microbatches each. They differ in their calls alone, so that segments are lowered
/// once. What ranks hold all the time is that of the longest. The plan must have passed `Plan::check` with each of these numbers.
pub fn lower_lengths(plan: &Plan, microbatches: &[usize]) -> Lengths {
    let lengths: Vec<Length> = microbatches.iter().map(|number| Length::of_step(plan, *number)).collect();
    let mut longest = plan.clone();
    let most = microbatches.iter().max().copied().unwrap_or(plan.microbatches());
    longest.job.global_batch = most * plan.micro_batch * plan.mesh.data;
    Lengths { lowered: Lowered::new(&longest, representatives(plan), &lengths), lengths }
}

/// The programs of a plan's forward passes alone, of so many microbatches each: what computes probabilities or values of given
/// tokens. Their segments are those of training; the weights are there, so that none are gathered but those that are divided
/// between passes. For times: what forward keeps for a backward pass is never released.
pub fn lower_forward(plan: &Plan, microbatches: &[usize]) -> Lengths {
    let lengths: Vec<Length> = microbatches.iter().map(|number| Length::of_forward(plan, *number)).collect();
    Lengths { lowered: Lowered::new(plan, representatives(plan), &lengths), lengths }
}

/// Programs that differ in their calls alone.
pub struct Lengths {
    lowered: Lowered,
    lengths: Vec<Length>,
}

impl Lengths {
    /// The program of one of the lengths, by its index.
    pub fn program(&mut self, index: usize) -> &Program {
        self.lowered.set_calls(&self.lengths[index]);
        &self.lowered.program
    }
}

fn lower_ranks(plan: &Plan, ranks: Vec<usize>, steps: usize) -> Program {
    let length = Length::of_steps(plan, steps);
    let mut lowered = Lowered::new(plan, ranks, std::slice::from_ref(&length));
    lowered.set_calls(&length);
    lowered.program
}

/// The actions of one step or several.
struct Length {
    lists: ActionLists,
    /// In a step.
    microbatches: usize,
    /// How often the lists are run one after the other.
    repeats: usize,
    /// Whether the first forward carries the data axis's collectives.
    gathers: bool,
}

impl Length {
    fn of_step(plan: &Plan, microbatches: usize) -> Self {
        let shape = PipelineShape { microbatches, ..plan.pipeline_shape() };
        Self { lists: plan.schedule().lists(shape), microbatches, repeats: 1, gathers: true }
    }

    /// The forward passes in the schedule's order: what a pass waits for is before it there too.
    fn of_forward(plan: &Plan, microbatches: usize) -> Self {
        let mut length = Self::of_step(plan, microbatches);
        for rank in &mut length.lists.ranks {
            rank.retain(|action| action.kind == ActionKind::Forward);
        }
        length.lists.joint.iter_mut().for_each(Vec::clear);
        Self { gathers: !data::gathers_updated(plan), ..length }
    }

    fn of_steps(plan: &Plan, steps: usize) -> Self {
        let microbatches = plan.microbatches();
        match plan.schedule().flushes() {
            true => Self { repeats: steps, ..Self::of_step(plan, microbatches) },
            false => Self { microbatches, ..Self::of_step(plan, steps * microbatches) },
        }
    }
}

/// A program with the segments that its calls can be made of.
struct Lowered {
    /// The one whose calls were set last.
    program: Program,
    /// By kind of pass and stage: the segments of the plain pass and of the one that carries the data axis's collectives, the same
    /// where these do not differ. Empty for kinds of passes that the schedule does not run.
    passes: [Vec<[usize; 2]>; ActionKind::ALL.len()],
    /// By pipeline rank.
    update: Vec<usize>,
    /// By pipeline rank, the update of the step before, if it is delayed.
    delayed: Vec<Option<usize>>,
}

impl Lowered {
    /// Everything that steps of these lengths call, before the calls are set.
    fn new(plan: &Plan, ranks: Vec<usize>, lengths: &[Length]) -> Self {
        let stages = Stage::all(plan);
        let mut segments = Vec::new();
        let mut add = |mut segment: Segment| {
            process::add_traffic(plan, &mut segment);
            segments.push(segment);
            segments.len() - 1
        };
        let actions = lengths.iter().flat_map(|length| length.lists.ranks.iter().flatten());
        let runs: BTreeSet<ActionKind> = actions.map(|action| action.kind).collect();
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
        let update = (0..plan.mesh.pipeline).map(|rank| add(update::segment(plan, &stages, rank))).collect();
        let delayed = (0..plan.mesh.pipeline)
            .map(|rank| plan.offload.delayed_update.then(|| add(update::delayed(plan, &stages, rank))))
            .collect();
        let (ranks, groups) = rank_programs(plan, &stages, &ranks);
        let stages = stages.iter().map(|stage| program_stage(plan, stage)).collect();
        Self { program: Program { segments, stages, ranks, groups }, passes, update, delayed }
    }

    /// Makes the program that of one of the lengths.
    fn set_calls(&mut self, length: &Length) {
        for rank in &mut self.program.ranks {
            let at = rank.pipeline_rank;
            let (actions, joint) = (&length.lists.ranks[at], &length.lists.joint[at]);
            let outside_actions = |segment: usize| Call { segment, action: None, joint: false };
            let carriers = Carriers::of(actions, length.microbatches);
            let joint: BTreeSet<usize> = joint.iter().copied().collect();
            rank.calls.clear();
            rank.calls.extend(self.delayed[at].map(outside_actions));
            for (position, action) in actions.iter().enumerate() {
                let first = length.gathers && carriers.first.contains(&position);
                let data = first || carriers.last.contains(&position);
                let segment = self.passes[action.kind as usize][action.stage][usize::from(data)];
                let joint = joint.contains(&position) && !carriers.updates.contains(&position);
                rank.calls.push(Call { segment, action: Some(*action), joint });
                if carriers.updates.contains(&position) {
                    rank.calls.push(outside_actions(self.update[at]));
                }
            }
            if length.repeats != 1 {
                rank.calls = rank.calls.repeat(length.repeats);
            }
        }
    }
}

/// The ranks without calls, and the groups in which they communicate.
fn rank_programs(plan: &Plan, stages: &[Stage], ranks: &[usize]) -> (Vec<RankProgram>, Vec<Group>) {
    let memory = stages_memory(plan, stages);
    let mut groups: Vec<Group> = Vec::new();
    let index_of = |rank: usize| ranks.binary_search(&rank).ok();
    let rank_programs = ranks
        .iter()
        .map(|&rank| {
            let at = plan.mesh.coordinates(rank);
            let groups_of_rank = Axis::ALL.map(|axis| {
                let members = plan.mesh.group(rank, axis);
                let unused = axis == Axis::Mirror && plan.schedule().copies() == 1;
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
                calls: Vec::new(),
            }
        })
        .collect();
    (rank_programs, groups)
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
