//! Improves the stages of simulated plans by the simulator itself.
//!
//! ```text
//! stages of the integer program ──► neighbours ── bound, memory ──► simulated ──► the fastest, if it is faster: again from it
//! ```
//!
//! The integer program weighs the passes of a step and leaves out what its ranks exchange on the data axis, which hides behind
//! passes on some stages and not on others, and paces several stages of a rank as if all were equal. Neighbours differ by one
//! block: on another stage, or with another recompute choice; or a stage at an end gives all its blocks away, or takes some.
//! Each is a plan of the same candidate, so that what bounds the candidate bounds it.

use super::branch_and_bound::{Explored, Goal, Seen};
use super::candidate_trial::Trial;
use super::search_space::SearchSpace;
use crate::candidate::Candidate;
use crate::cost::enough_microbatches;
use crate::space::recompute_choices;
use crate::stages::{MemoryLimits, estimate};
use crate::verdict::PlannerError;
use rayon::prelude::*;
use std::collections::BTreeSet;
use trainwright_sim::step_time_for_ranking;
use trainwright_spec::plan::{Plan, Recompute, StageBlocks};
use trainwright_spec::units::{Picoseconds, Seconds};

/// How many plans are improved side by side before times are compared. Fixed, so that the answer does not depend on the number of
/// threads.
const BATCH: usize = 8;

/// How many neighbours of a plan are simulated before it is compared with other plans again.
const NEIGHBOURS: usize = 8;

/// How much all improvements may cost, in simulated passes: about half a second of one core.
const WORK: usize = 1 << 16;

/// Up to how many stages neighbours of neighbours are looked at, which are about the fourth power of that.
const FEW_STAGES: usize = 8;

/// How many neighbours are bounded for the work of one simulation.
const BOUNDS: usize = 64;

/// A simulated plan on its way to faster neighbours.
struct Walk<'a> {
    /// Which of the candidates that were solved.
    index: usize,
    candidate: &'a Candidate,
    plan: Plan,
    time: Picoseconds,
    memory: MemoryLimits,
    /// Neighbours that were not simulated, by decreasing bound.
    open: Vec<(Seconds, Plan)>,
    /// Which neighbours are bounded next.
    next: Reach,
    /// How many looks at neighbours found none that is faster, since one did.
    fruitless: usize,
    /// Whether a faster neighbour was found.
    improved: bool,
}

/// How far neighbours are from a plan.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    OneBlock,
    TwoBlocks,
    Nothing,
}

impl SearchSpace<'_> {
    /// Improves the stages of the simulated plans that may then be among the `keep` fastest.
    ///
    /// Every plan gets a look at its most promising neighbours, the fastest plan first; those that found a faster one go on
    /// before the others get a second look; until no plan has such neighbours, or `WORK` is done.
    pub fn improve(&self, explored: &mut Explored, goal: &Goal) -> Result<(), PlannerError> {
        let mut walks: Vec<Walk> =
            explored.seen.iter().enumerate().filter_map(|(index, seen)| self.walk(index, seen)).collect();
        let mut work = 0;
        while work < WORK && !(goal.out_of_time)() {
            let mut times: Vec<Picoseconds> = walks.iter().map(|walk| walk.time).collect();
            times.sort_unstable();
            let most = times.get(goal.keep - 1).copied().map(Seconds::from);
            // Stages of the integer program have about the least time that the passes of a candidate take in their order: where
            // that is no less than the times that are kept, other stages are not faster either.
            let mut open: Vec<&mut Walk> =
                walks.iter_mut().filter(|walk| self.may_be_below(walk, most)).collect();
            open.sort_by_key(|walk| (walk.fruitless, walk.time));
            open.truncate(BATCH);
            if open.is_empty() {
                break;
            }
            let steps = open.into_par_iter().map(|walk| self.look_around(walk, most));
            work += steps.collect::<Result<Vec<usize>, PlannerError>>()?.into_iter().sum::<usize>();
        }
        let improved = walks.into_iter().filter(|walk| walk.improved);
        let improved: Vec<(usize, Trial)> = improved
            .map(|walk| {
                let estimate = estimate(self.model(), walk.candidate, &walk.plan);
                (walk.index, Trial::Simulated { plan: Box::new(walk.plan), estimate, expected: walk.time })
            })
            .collect();
        for (index, trial) in improved {
            explored.seen[index].trial = trial;
        }
        Ok(())
    }

    /// The way from a candidate's plan, if it was simulated.
    fn walk<'a>(&self, index: usize, seen: &'a Seen) -> Option<Walk<'a>> {
        let (plan, time) = seen.trial.simulated()?;
        let candidate = &seen.candidate;
        let memory = MemoryLimits::of(self.model(), candidate, plan);
        let plan = plan.clone();
        let (open, next) = (Vec::new(), Reach::OneBlock);
        Some(Walk { index, candidate, plan, time, memory, open, next, fruitless: 0, improved: false })
    }

    /// Whether a plan has neighbours to look at, and its passes leave time for these to be below `most`.
    fn may_be_below(&self, walk: &Walk, most: Option<Seconds>) -> bool {
        (!walk.open.is_empty() || walk.next != Reach::Nothing)
            && most.is_none_or(|most| self.bound_of(walk.candidate, &walk.plan) < most)
    }

    /// A time that a plan of the candidate is not expected to be below.
    fn bound_of(&self, candidate: &Candidate, plan: &Plan) -> Seconds {
        self.model().outlook(candidate).expected(self.bounds.of_plan(candidate, plan))
    }

    /// The plan of a candidate that comes from `plan` by moving single blocks away from the busiest rank, as long as its passes
    /// take less in their order.
    pub fn in_order(&self, candidate: &Candidate, plan: Plan) -> Plan {
        let memory = MemoryLimits::of(self.model(), candidate, &plan);
        let rank_of = |stage: usize| candidate.schedule().rank_of(stage, plan.pipeline_shape());
        let mut best = (self.bound_of(candidate, &plan), plan.clone());
        loop {
            let mut found = Neighbours::of(&best.1.stages, &[]);
            let busiest = self.bounds.busiest_rank(candidate, &best.1);
            let stages = 0..plan.stages.len();
            for from in stages.clone().filter(|stage| rank_of(*stage) == busiest) {
                for to in stages.clone().filter(|stage| rank_of(*stage) != busiest) {
                    found.one_moved(from, to);
                }
            }
            let bounded = found.found.into_iter().map(|stages| {
                let plan = Plan { stages, ..best.1.clone() };
                (self.bound_of(candidate, &plan), plan)
            });
            let mut bounded: Vec<(Seconds, Plan)> = bounded.filter(|(bound, _)| *bound < best.0).collect();
            bounded.sort_by(|a, b| a.0.get().total_cmp(&b.0.get()));
            match bounded.into_iter().find(|(_, plan)| memory.fit(plan)) {
                Some(better) => best = better,
                None => return best.1,
            }
        }
    }

    /// How many passes are simulated to rank a plan of the candidate.
    fn simulated_passes(&self, candidate: &Candidate) -> usize {
        let shape = candidate.shape(self.question().job.global_batch);
        2 * shape.stages() * enough_microbatches(candidate, shape)
    }

    /// Simulates the neighbours with the lowest bounds of those that may be faster than the plan and below `most`, and goes to
    /// the fastest of them if it is faster. Returns what that costs, in simulated passes.
    fn look_around(&self, walk: &mut Walk, most: Option<Seconds>) -> Result<usize, PlannerError> {
        let passes = self.simulated_passes(walk.candidate);
        let time = walk.time;
        let below = |bound: Seconds| bound < Seconds::from(time) && most.is_none_or(|most| bound < most);
        let mut work = 0;
        if walk.open.is_empty() {
            let stages = &walk.plan.stages;
            let (all, next) = match walk.next {
                Reach::OneBlock => {
                    let few = stages.len() <= FEW_STAGES;
                    let next = if few { Reach::TwoBlocks } else { Reach::Nothing };
                    (neighbours(stages, &recompute_choices(self.question())), next)
                }
                Reach::TwoBlocks => (second_neighbours(stages), Reach::Nothing),
                Reach::Nothing => (Vec::new(), Reach::Nothing),
            };
            walk.next = next;
            work += passes * all.len() / BOUNDS;
            let bounded = all.into_par_iter().filter_map(|stages| {
                let plan = Plan { stages, ..walk.plan.clone() };
                let bound = self.bound_of(walk.candidate, &plan);
                below(bound).then_some((bound, plan))
            });
            let mut bounded: Vec<(Seconds, Plan)> = bounded.collect();
            // Stable: of equal bounds, the one that comes first is simulated first.
            bounded.reverse();
            bounded.sort_by(|a, b| b.0.get().total_cmp(&a.0.get()));
            walk.open = bounded;
        }
        let mut promising = Vec::new();
        while promising.len() < NEIGHBOURS
            && let Some((bound, plan)) = walk.open.pop()
        {
            if below(bound) && walk.memory.fit(&plan) {
                promising.push(plan);
            }
        }
        work += passes * promising.len();
        let timed = promising.into_par_iter().map(|plan| {
            let time = step_time_for_ranking(&plan, &self.model().costs)?;
            Ok((self.model().outlook(walk.candidate).expected_exactly(time), plan))
        });
        let timed = timed.collect::<Result<Vec<(Picoseconds, Plan)>, PlannerError>>()?;
        match timed.into_iter().min_by_key(|(time, _)| *time) {
            Some((time, plan)) if time < walk.time => {
                (walk.time, walk.plan, walk.improved) = (time, plan, true);
                (walk.open, walk.next, walk.fruitless) = (Vec::new(), Reach::OneBlock, 0);
            }
            _ => walk.fruitless += 1,
        }
        Ok(work)
    }
}

/// Stages that differ from these by a block, or by the blocks of an end, each once.
fn neighbours(stages: &[StageBlocks], options: &[Recompute]) -> Vec<Vec<StageBlocks>> {
    let mut found = Neighbours::of(stages, options);
    for from in 0..stages.len() {
        found.other_choices(from);
    }
    found.all_moved();
    for end in BTreeSet::from([0, stages.len() - 1]) {
        found.emptied(end);
        found.filled(end);
    }
    found.found
}

/// Stages that differ from these by two blocks, recomputed as before, each once.
fn second_neighbours(stages: &[StageBlocks]) -> Vec<Vec<StageBlocks>> {
    let moved = |stages: &[StageBlocks]| {
        let mut found = Neighbours::of(stages, &[]);
        found.all_moved();
        found.found
    };
    let mut found = Neighbours::of(stages, &[]);
    for once in moved(stages) {
        for twice in moved(&once) {
            found.add(twice);
        }
    }
    found.found
}

/// The neighbours that were found.
struct Neighbours<'a> {
    stages: &'a [StageBlocks],
    options: &'a [Recompute],
    seen: BTreeSet<Vec<Vec<Recompute>>>,
    found: Vec<Vec<StageBlocks>>,
}

impl<'a> Neighbours<'a> {
    fn of(stages: &'a [StageBlocks], options: &'a [Recompute]) -> Self {
        Self { stages, options, seen: BTreeSet::new(), found: Vec::new() }
    }

    fn add(&mut self, stages: Vec<StageBlocks>) {
        if self.seen.insert(stages.iter().map(|stage| stage.0.clone()).collect()) {
            self.found.push(stages);
        }
    }

    /// A block of a stage makes another choice.
    fn other_choices(&mut self, stage: usize) {
        for before in distinct(&self.stages[stage]) {
            for after in self.options.iter().filter(|after| **after != before) {
                let mut stages = self.stages.to_vec();
                take(&mut stages[stage], before);
                put(&mut stages[stage], *after);
                self.add(stages);
            }
        }
    }

    /// A block of any stage stands on any other one.
    fn all_moved(&mut self) {
        for from in 0..self.stages.len() {
            for to in (0..self.stages.len()).filter(|to| *to != from) {
                self.one_moved(from, to);
            }
        }
    }

    /// A block of a stage stands on another one, with its choice or any of the options.
    fn one_moved(&mut self, from: usize, to: usize) {
        if self.stages[from].0.len() <= least_blocks(from, self.stages.len()) {
            return;
        }
        for before in distinct(&self.stages[from]) {
            for after in BTreeSet::from_iter(self.options.iter().copied().chain([before])) {
                let mut stages = self.stages.to_vec();
                take(&mut stages[from], before);
                put(&mut stages[to], after);
                self.add(stages);
            }
        }
    }

    /// The first or the last stage gives all its blocks to another, or each to the shortest of the others.
    fn emptied(&mut self, end: usize) {
        if self.stages.len() == 1 {
            return;
        }
        for to in (0..self.stages.len()).filter(|stage| *stage != end) {
            let mut stages = self.stages.to_vec();
            for choice in std::mem::take(&mut stages[end].0) {
                put(&mut stages[to], choice);
            }
            self.add(stages);
        }
        let mut stages = self.stages.to_vec();
        while let Some(choice) = stages[end].0.pop() {
            let others = (0..stages.len()).filter(|stage| *stage != end);
            let shortest = others.min_by_key(|stage| stages[*stage].0.len()).expect("there are others");
            put(&mut stages[shortest], choice);
        }
        self.add(stages);
    }

    /// The first or the last stage takes blocks from the longest of the others, as long as these have more.
    fn filled(&mut self, end: usize) {
        let mut stages = self.stages.to_vec();
        loop {
            let others = (0..stages.len()).filter(|stage| *stage != end);
            let Some(longest) = others.max_by_key(|stage| stages[*stage].0.len()) else { return };
            if stages[longest].0.len() <= stages[end].0.len() + 1 {
                return;
            }
            let choice = stages[longest].0.pop().expect("it has more than the end");
            put(&mut stages[end], choice);
            self.add(stages.clone());
        }
    }
}

/// How many blocks a stage holds at least: the first may have the embedding alone, the last the head.
fn least_blocks(stage: usize, stages: usize) -> usize {
    usize::from((stage > 0 && stage + 1 < stages) || stages == 1)
}

/// The choices that a stage's blocks make.
fn distinct(stage: &StageBlocks) -> BTreeSet<Recompute> {
    stage.0.iter().copied().collect()
}

/// Takes a block with this choice away, which the stage has.
fn take(stage: &mut StageBlocks, choice: Recompute) {
    let at = stage.0.iter().rposition(|of| *of == choice).expect("a choice of this stage");
    stage.0.remove(at);
}

/// Adds a block with this choice, behind those that recompute as much or more.
fn put(stage: &mut StageBlocks, choice: Recompute) {
    let at = stage.0.iter().rposition(|of| *of <= choice).map_or(0, |at| at + 1);
    stage.0.insert(at, choice);
}
