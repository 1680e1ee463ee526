//! A plan that fits although some stage exceeds its even share of its rank's memory: measured by `plan_memory` itself.

use super::Fullest;
use crate::partition::{LayerClass, Problem, Run, Stage};
use crate::space::recompute_choices;
use crate::verdict::Question;
use std::cmp::Reverse;
use trainwright_spec::memory::{RankMemory, plan_memory};
use trainwright_spec::plan::{Plan, Recompute, StageBlocks};
use trainwright_spec::units::{Bytes, Seconds};

/// How many blocks are moved to other stages at most.
const MOVES: usize = 32;

/// A plan that fits and its objective; or the rank that lacks memory, and what it needs, when stages are even and all
/// blocks keep least.
pub(super) fn repair(
    question: &Question,
    empty: &Plan,
    problem: &Problem,
    fullest: &dyn Fn(&Plan) -> Fullest,
) -> Result<(Plan, Seconds), Fullest> {
    let has: Vec<Bytes> = (0..empty.mesh.pipeline).map(|rank| empty.node(rank).gpu.memory.value).collect();
    let mut draft = Draft::even(question, problem);
    let lacking = fullest(&draft.plan(empty));
    let mut fits = lacking.fits();
    for _ in 0..MOVES {
        if fits {
            break;
        }
        let plan = draft.plan(empty);
        let held: Vec<Bytes> = plan_memory(&plan).iter().map(RankMemory::total).collect();
        if held.iter().copied().sum::<Bytes>() > has.iter().copied().sum() {
            return Err(lacking);
        }
        let lacks: Vec<Bytes> = held.iter().zip(&has).map(|(held, has)| *held - *has).collect();
        draft.move_block(&plan, &lacks);
        fits = fullest(&draft.plan(empty)).fits();
    }
    if !fits {
        return Err(lacking);
    }
    draft.hasten(|draft| fullest(&draft.plan(empty)).fits());
    Ok((draft.plan(empty), problem.objective(&draft.times())))
}

/// Stages in the making.
#[derive(Clone)]
struct Draft<'a> {
    problem: &'a Problem,
    options: Vec<Recompute>,
    /// The class of each block.
    classes: Vec<usize>,
    /// Blocks of each stage.
    lengths: Vec<usize>,
    /// For each block, the index into its class's choices, and into `options`.
    taken: Vec<usize>,
}

impl<'a> Draft<'a> {
    /// Even stages whose blocks keep as little as they can.
    fn even(question: &Question, problem: &'a Problem) -> Self {
        let of_run = |run: &Run| vec![run.class; run.count];
        let classes: Vec<usize> = problem.runs.iter().flat_map(of_run).collect();
        // A choice keeps the same on every device.
        let keeping_least = |class: &usize| {
            let class = &problem.classes[0][*class];
            let kept = |option: &usize| class.choices[*option].kept.get();
            let options = 0..class.choices.len();
            options.min_by(|a, b| kept(a).total_cmp(&kept(b))).expect("a class has choices")
        };
        let (blocks, stages) = (classes.len(), problem.stages.len());
        let share = |stage: usize| blocks / stages + usize::from(stage < blocks % stages);
        Self {
            problem,
            options: recompute_choices(question),
            taken: classes.iter().map(keeping_least).collect(),
            lengths: (0..stages).map(share).collect(),
            classes,
        }
    }

    fn plan(&self, empty: &Plan) -> Plan {
        let mut taken = self.taken.iter().map(|option| self.options[*option]);
        let blocks = |length: &usize| StageBlocks(taken.by_ref().take(*length).collect());
        Plan { stages: self.lengths.iter().map(blocks).collect(), ..empty.clone() }
    }

    /// The class of a block that stands on a stage.
    fn class(&self, stage: usize, block: usize) -> &'a LayerClass {
        &self.problem.classes[self.problem.stages[stage].device][self.classes[block]]
    }

    /// Each stage's time for one microbatch.
    fn times(&self) -> Vec<Seconds> {
        let mut next = 0;
        let of_stage = |(index, (stage, length)): (usize, (&Stage, &usize))| {
            let own = next..next + length;
            next = own.end;
            stage.time
                + own.map(|block| self.class(index, block).choices[self.taken[block]].time).sum::<Seconds>()
        };
        self.problem.stages.iter().zip(&self.lengths).enumerate().map(of_stage).collect()
    }

    /// Moves a block from the fullest rank to the emptiest: from the longest stage of the one to the shortest of the
    /// other; among equals from the first, which holds most microbatches, to the last.
    fn move_block(&mut self, plan: &Plan, lacks: &[Bytes]) {
        let (schedule, shape) = (plan.schedule(), plan.pipeline_shape());
        let by_lack = |a: &usize, b: &usize| lacks[*a].get().total_cmp(&lacks[*b].get());
        let full = (0..lacks.len()).max_by(by_lack).expect("a plan has ranks");
        let empty = (0..lacks.len()).min_by(by_lack).expect("a plan has ranks");
        let own = |rank: usize| {
            (0..self.lengths.len()).filter(move |stage| schedule.rank_of(*stage, shape) == rank)
        };
        let from = own(full).max_by_key(|stage| (self.lengths[*stage], Reverse(*stage)));
        let to = own(empty).min_by_key(|stage| (self.lengths[*stage], Reverse(*stage)));
        let (from, to) = (from.expect("a rank has stages"), to.expect("a rank has stages"));
        if self.lengths[from] > 1 {
            self.lengths[from] -= 1;
            self.lengths[to] += 1;
        }
    }

    /// Lets blocks recompute less as long as the draft `fits`: always a block of the slowest stage that still can.
    fn hasten(&mut self, fits: impl Fn(&Self) -> bool) {
        let mut open: Vec<usize> = (0..self.lengths.len()).collect();
        loop {
            let times = self.times();
            let slowest = (0..open.len())
                .max_by(|a, b| times[open[*a]].get().total_cmp(&times[open[*b]].get()).then(b.cmp(a)));
            let Some(position) = slowest else { break };
            match self.hastened(open[position], &fits) {
                Some(better) => *self = better,
                None => {
                    open.remove(position);
                }
            }
        }
    }

    /// The draft with one block of a stage as fast as still fits; none if no block of it can be faster.
    fn hastened(&self, stage: usize, fits: &impl Fn(&Self) -> bool) -> Option<Self> {
        let start: usize = self.lengths[..stage].iter().sum();
        let alike = |a: usize, b: usize| self.classes[a] == self.classes[b] && self.taken[a] == self.taken[b];
        // What its neighbour cannot do, a block that is like it cannot either.
        for block in
            (start..start + self.lengths[stage]).filter(|block| *block == start || !alike(block - 1, *block))
        {
            let choices = &self.class(stage, block).choices;
            let now = choices[self.taken[block]].time;
            let mut faster: Vec<usize> = (0..choices.len()).filter(|to| choices[*to].time < now).collect();
            faster.sort_by(|a, b| choices[*a].time.get().total_cmp(&choices[*b].time.get()));
            for option in faster {
                let mut changed = self.clone();
                changed.taken[block] = option;
                if fits(&changed) {
                    return Some(changed);
                }
            }
        }
        None
    }
}
