//! A plan that fits although some stage exceeds its even share of its rank's memory: measured by `plan_memory` itself, of a
//! rank whose block has changed alone.

use super::rank_memory::{MemoryMeter, RankMemoryUse};
use crate::candidate::even_lengths;
use crate::partition::{LayerClass, Problem, Run, Stage};
use crate::question::Question;
use crate::space::recompute_choices;
use std::cmp::Reverse;
use trainwright_sim::Stop;
use trainwright_spec::plan::{Plan, Recompute, StageBlocks};
use trainwright_spec::units::{Bytes, Seconds};

/// How many blocks are moved to other stages at most.
const MOVES: usize = 32;

/// A plan that fits and its objective; or the fullest rank when stages are even and all blocks keep least. `None` if it was
/// stopped.
pub(super) fn repair(
    question: &Question,
    empty: &Plan,
    problem: &Problem,
    meter: &MemoryMeter,
    stop: Stop,
) -> Option<Result<(Plan, Seconds), RankMemoryUse>> {
    let mut draft = Draft::even(question, problem, meter, empty);
    let fullest = RankMemoryUse::fullest(&draft.ranks);
    for _ in 0..MOVES {
        if draft.fits() {
            break;
        }
        if stop() {
            return None;
        }
        let of = |part: fn(&RankMemoryUse) -> Bytes| draft.ranks.iter().map(part).sum::<Bytes>();
        if of(|rank| rank.needs) > of(|rank| rank.has) {
            return Some(Err(fullest));
        }
        if !draft.move_block() {
            break;
        }
    }
    if !draft.fits() {
        return Some(Err(fullest));
    }
    draft.recompute_less(stop)?;
    let objective = problem.objective(&draft.times());
    Some(Ok((Plan { stages: draft.plan.stages, ..empty.clone() }, objective)))
}

/// A plan that fits, with less recomputation as far as its ranks' memory allows, and its objective. `None` if it was stopped.
///
/// Where the partition problem gives each stage of a rank an even share of its memory, stages leave of theirs what is less than a
/// block keeps, and a rank's stages may leave several blocks' in all.
pub(super) fn recompute_less(
    question: &Question,
    plan: &Plan,
    problem: &Problem,
    meter: &MemoryMeter,
    stop: Stop,
) -> Option<(Plan, Seconds)> {
    let mut draft = Draft::of(question, problem, meter, plan);
    if !draft.fits() {
        return Some((plan.clone(), problem.objective(&draft.times())));
    }
    draft.recompute_less(stop)?;
    let objective = problem.objective(&draft.times());
    Some((Plan { stages: draft.plan.stages, ..plan.clone() }, objective))
}

/// Stages in the making.
struct Draft<'a> {
    problem: &'a Problem,
    meter: &'a MemoryMeter,
    /// With the step that the meter looks at.
    plan: Plan,
    ranks: Vec<RankMemoryUse>,
    options: Vec<Recompute>,
    /// The class of each block.
    classes: Vec<usize>,
    /// Blocks of each stage.
    lengths: Vec<usize>,
    /// For each block, the index into its class's choices, and into `options`.
    taken: Vec<usize>,
}

impl<'a> Draft<'a> {
    /// The stages of a plan.
    fn of(question: &Question, problem: &'a Problem, meter: &'a MemoryMeter, plan: &Plan) -> Self {
        let options = recompute_choices(question);
        let option = |choice: &Recompute| options.iter().position(|option| option == choice);
        let taken = plan.stages.iter().flat_map(|stage| &stage.0);
        let taken = taken.map(|choice| option(choice).expect("a plan's choices are among the question's"));
        Self {
            problem,
            meter,
            taken: taken.collect(),
            plan: meter.measured(plan.clone()),
            ranks: meter.ranks(&meter.measured(plan.clone())),
            classes: classes(problem),
            lengths: plan.stages.iter().map(|stage| stage.0.len()).collect(),
            options,
        }
    }

    /// Even stages whose blocks keep as little as they can.
    fn even(question: &Question, problem: &'a Problem, meter: &'a MemoryMeter, empty: &Plan) -> Self {
        let classes = classes(problem);
        // A choice keeps the same on every device.
        let keeping_least = |class: &usize| {
            let class = &problem.classes[0][*class];
            let kept = |option: &usize| class.choices[*option].kept.get();
            let options = 0..class.choices.len();
            options.min_by(|a, b| kept(a).total_cmp(&kept(b))).expect("a class has choices")
        };
        let (blocks, stages) = (classes.len(), problem.stages.len());
        let mut draft = Self {
            problem,
            meter,
            plan: meter.measured(empty.clone()),
            ranks: Vec::new(),
            options: recompute_choices(question),
            taken: classes.iter().map(keeping_least).collect(),
            lengths: even_lengths(blocks, stages),
            classes,
        };
        draft.write();
        draft.ranks = meter.ranks(&draft.plan);
        draft
    }

    /// Writes what was chosen into the plan.
    fn write(&mut self) {
        let mut taken = self.taken.iter().map(|option| self.options[*option]);
        let blocks = |length: &usize| StageBlocks(taken.by_ref().take(*length).collect());
        self.plan.stages = self.lengths.iter().map(blocks).collect();
    }

    fn fits(&self) -> bool {
        self.ranks.iter().all(RankMemoryUse::fits)
    }

    /// The ranks that have a copy of a stage: one, or two where a schedule runs both ways.
    fn ranks_of(&self, stage: usize) -> Vec<usize> {
        let (schedule, shape) = (self.plan.schedule(), self.plan.pipeline_shape());
        let copy = |copy: usize| schedule.rank_of(stage + copy * shape.stages(), shape);
        (0..schedule.copies()).map(copy).collect()
    }

    /// The class of a block that stands on a stage.
    fn class(&self, stage: usize, block: usize) -> &'a LayerClass {
        &self.problem.classes[self.problem.stages[stage].device][self.classes[block]]
    }

    /// Each stage's time for one microbatch.
    fn times(&self) -> Vec<Seconds> {
        let mut next = 0;
        let of_stage = |(index, (stage, length)): (usize, (&Stage, &usize))| {
            let blocks = next..next + length;
            next = blocks.end;
            stage.time
                + blocks
                    .map(|block| self.class(index, block).choices[self.taken[block]].time)
                    .sum::<Seconds>()
        };
        self.problem.stages.iter().zip(&self.lengths).enumerate().map(of_stage).collect()
    }

    /// Moves a block from the fullest rank to the emptiest that has no copy of its stage: from the longest stage of the one to
    /// the shortest of the other; among equals from the first, which holds most microbatches, to the last. Whether there is such
    /// a block.
    fn move_block(&mut self) -> bool {
        let draft = &*self;
        let lacks = |rank: &usize| draft.ranks[*rank].lack();
        let by_lack = |a: &usize, b: &usize| lacks(a).total_cmp(&lacks(b));
        let full = (0..draft.ranks.len()).max_by(by_lack).expect("a plan has ranks");
        let stages_of = |rank: usize| {
            (0..draft.lengths.len()).filter(move |stage| draft.ranks_of(*stage).contains(&rank))
        };
        let from = stages_of(full).max_by_key(|stage| (draft.lengths[*stage], Reverse(*stage)));
        let from = from.expect("a rank has stages");
        let have_it = draft.ranks_of(from);
        let empty = (0..draft.ranks.len()).filter(|rank| !have_it.contains(rank)).min_by(by_lack);
        let Some(empty) = empty.filter(|_| draft.lengths[from] > 1) else { return false };
        let to = stages_of(empty).min_by_key(|stage| (draft.lengths[*stage], Reverse(*stage)));
        let to = to.expect("a rank has stages");
        self.lengths[from] -= 1;
        self.lengths[to] += 1;
        self.write();
        // Other stages have other blocks now, of which some may be of another class.
        self.ranks = self.meter.ranks(&self.plan);
        true
    }

    /// Lets blocks recompute less as long as they fit: always a block of the slowest stage that still can. `None` if it was
    /// stopped.
    fn recompute_less(&mut self, stop: Stop) -> Option<()> {
        let mut open: Vec<usize> = (0..self.lengths.len()).collect();
        while !stop() {
            let times = self.times();
            let slowest = (0..open.len())
                .max_by(|a, b| times[open[*a]].get().total_cmp(&times[open[*b]].get()).then(b.cmp(a)));
            let Some(position) = slowest else { return Some(()) };
            if !self.speed_up(open[position]) {
                open.remove(position);
            }
        }
        None
    }

    /// Makes one block of a stage as fast as still fits; whether any block of it can be faster.
    fn speed_up(&mut self, stage: usize) -> bool {
        let start: usize = self.lengths[..stage].iter().sum();
        let ranks = self.ranks_of(stage);
        for at in 0..self.lengths[stage] {
            let block = start + at;
            let alike = |other: usize| {
                self.classes[other] == self.classes[block] && self.taken[other] == self.taken[block]
            };
            // What its neighbour cannot do, a block that is like it cannot either.
            if at > 0 && alike(block - 1) {
                continue;
            }
            let choices = &self.class(stage, block).choices;
            let before = self.taken[block];
            let mut faster: Vec<usize> =
                (0..choices.len()).filter(|to| choices[*to].time < choices[before].time).collect();
            faster.sort_by(|a, b| choices[*a].time.get().total_cmp(&choices[*b].time.get()));
            for option in faster {
                self.plan.stages[stage].0[at] = self.options[option];
                if ranks.iter().all(|rank| self.meter.rank(&self.plan, *rank).fits()) {
                    self.taken[block] = option;
                    return true;
                }
            }
            self.plan.stages[stage].0[at] = self.options[before];
        }
        false
    }
}

/// The class of each block of the model.
fn classes(problem: &Problem) -> Vec<usize> {
    let of_run = |run: &Run| vec![run.class; run.count];
    problem.runs.iter().flat_map(of_run).collect()
}
