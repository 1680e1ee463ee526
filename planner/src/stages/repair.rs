//! A plan that fits although some stage exceeds its even share of its rank's memory: measured by `plan_memory` itself.

use crate::partition::{LayerClass, Problem, Run};
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
    fullest: &dyn Fn(&Plan) -> (usize, Bytes),
) -> Result<(Plan, Seconds), (usize, Bytes)> {
    let has = question.cluster.node.gpu.memory.value;
    let mut draft = Draft::even(question, problem);
    let lacking = fullest(&draft.plan(empty));
    let mut most = lacking.1;
    for _ in 0..MOVES {
        if most <= has {
            break;
        }
        let plan = draft.plan(empty);
        let held: Vec<Bytes> = plan_memory(&plan).iter().map(RankMemory::total).collect();
        if held.iter().copied().sum::<Bytes>() > has * held.len() as f64 {
            return Err(lacking);
        }
        draft.move_block(&plan, &held);
        most = fullest(&draft.plan(empty)).1;
    }
    if most > has {
        return Err(lacking);
    }
    draft.hasten(|draft| fullest(&draft.plan(empty)).1 <= has);
    Ok((draft.plan(empty), problem.objective(&draft.times())))
}

/// Stages in the making.
#[derive(Clone)]
struct Draft<'a> {
    problem: &'a Problem,
    options: Vec<Recompute>,
    /// The class of each block.
    classes: Vec<&'a LayerClass>,
    /// Blocks of each stage.
    lengths: Vec<usize>,
    /// For each block, the index into its class's choices, and into `options`.
    taken: Vec<usize>,
}

impl<'a> Draft<'a> {
    /// Even stages whose blocks keep as little as they can.
    fn even(question: &Question, problem: &'a Problem) -> Self {
        let of_run = |run: &Run| vec![&problem.classes[0][run.class]; run.count];
        let classes: Vec<&LayerClass> = problem.runs.iter().flat_map(of_run).collect();
        let keeping_least = |class: &&LayerClass| {
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

    /// Each stage's time for one microbatch.
    fn times(&self) -> Vec<Seconds> {
        let mut blocks =
            self.classes.iter().zip(&self.taken).map(|(class, option)| class.choices[*option].time);
        let stages = self.problem.stages.iter().zip(&self.lengths);
        stages.map(|(stage, length)| stage.time + blocks.by_ref().take(*length).sum::<Seconds>()).collect()
    }

    /// Moves a block from the fullest rank to the emptiest: from the longest stage of the one to the shortest of the
    /// other; among equals from the first, which holds most microbatches, to the last.
    fn move_block(&mut self, plan: &Plan, held: &[Bytes]) {
        let (schedule, shape) = (plan.schedule(), plan.pipeline_shape());
        let by_held = |a: &usize, b: &usize| held[*a].get().total_cmp(&held[*b].get());
        let full = (0..held.len()).max_by(by_held).expect("a plan has ranks");
        let empty = (0..held.len()).min_by(by_held).expect("a plan has ranks");
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
        let alike = |a: usize, b: usize| {
            std::ptr::eq(self.classes[a], self.classes[b]) && self.taken[a] == self.taken[b]
        };
        // What its neighbour cannot do, a block that is like it cannot either.
        for block in
            (start..start + self.lengths[stage]).filter(|block| *block == start || !alike(block - 1, *block))
        {
            let choices = &self.classes[block].choices;
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
