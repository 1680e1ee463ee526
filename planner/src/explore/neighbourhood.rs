//! Improves the stages of simulated plans by the simulator itself.
//!
//! ```text
//! stages of the integer program ──► neighbours ── bound, memory ──► simulated ──► the fastest, if it is faster: again from it
//! ```
//!
//! The integer program weighs the passes of a step and leaves out what its ranks exchange on the data axis, which hides behind
//! passes on some stages and not on others, and takes all stages of a rank to be as long as the slowest. Neighbours differ by one
//! block: on another stage, or with another recompute choice; or a stage at an end gives all its blocks away, or takes some.
//! Each is a plan of the same candidate, so that what bounds the candidate bounds it. Where a candidate has few splits, all are its
//! plan's neighbours.

use super::branch_and_bound::{Explored, Seen};
use super::candidate_trial::{Trial, unless_stopped};
use super::search_space::SearchSpace;
use crate::candidate::Candidate;
use crate::cost::enough_microbatches;
use crate::space::recompute_choices;
use crate::stages::{
    MemoryLimits, every_split, filled_from_behind, moved, neighbours, recomputed_to_fit, relieved, rounded,
    second_neighbours,
};
use crate::verdict::PlannerError;
use rayon::prelude::*;
use trainwright_sim::{Stop, step_time_for_ranking_until};
use trainwright_spec::plan::{Plan, Recompute, StageBlocks};
use trainwright_spec::units::{Picoseconds, Seconds};

/// How many plans are improved side by side before times are compared. Fixed, so that the answer does not depend on the number of
/// threads.
const BATCH: usize = 4;

/// How many neighbours of a plan are simulated before it is compared with other plans again.
const NEIGHBOURS: usize = 4;

/// How much the plans that the order of passes suggests may cost, in simulated passes: about a fifth of a second of one core.
const WORK_IN_ORDER: usize = 1 << 16;

/// How much all other improvements may cost: about a quarter of a second of one core.
const WORK: usize = 1 << 16;

/// The same as long as there are walks over all splits, which end.
const WORK_OF_EVERY_SPLIT: usize = 1 << 17;

/// How much the improvement of the fastest plans may cost after that: about half a second of one core.
const WORK_OF_FASTEST: usize = 1 << 17;

/// How many looks at neighbours that is at least; plans of which these take longer do without.
const LOOKS_OF_FASTEST: usize = 8;

/// Up to how many stages neighbours of neighbours are looked at, which are about the fourth power of that.
const FEW_STAGES: usize = 8;

/// Up to how many splits of a candidate are looked at without any choice among them.
const FEW_SPLITS: usize = 1024;

/// How many neighbours are bounded for the work of one simulation.
const BOUNDS: usize = 64;

/// What the program of whole blocks costs, in simulated passes: some milliseconds.
const PROGRAM: usize = 512;

/// The time of a plan that was not simulated.
const UNKNOWN: Picoseconds = Picoseconds(u64::MAX);

/// A simulated plan on its way to faster neighbours.
struct Walk<'a> {
    /// Which of the candidates that were solved.
    index: usize,
    candidate: &'a Candidate,
    /// No plan of the candidate is expected to be faster.
    least: Seconds,
    plan: Plan,
    /// This plan is not expected to be faster.
    bound: Seconds,
    /// `UNKNOWN` if it was not simulated.
    time: Picoseconds,
    memory: MemoryLimits,
    /// Neighbours that were not simulated, by decreasing bound.
    open: Vec<(Seconds, Vec<StageBlocks>)>,
    /// Whether these are all splits of the candidate.
    has_every_split: bool,
    /// That of the integer program.
    estimate: Seconds,
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
    /// All splits of the candidate.
    EverySplit,
    /// The plans that the order of its passes suggests, where the partition's program knows too little of it.
    InOrder,
    OneBlock,
    TwoBlocks,
    Nothing,
}

impl Walk<'_> {
    /// Whether there are neighbours to look at, and the passes leave time for these to be below `most`.
    ///
    /// Neighbours are looked at to save what comes on top of the passes. With one stage on each rank the stages of the integer
    /// program have about the least time that a candidate's passes take in their order, and a plan at which a walk arrived is not
    /// far from it: where that time is no less than `most`, other stages are not expected to be faster.
    fn may_be_below(&self, most: Option<Seconds>) -> bool {
        let of_candidate = matches!(self.next, Reach::EverySplit | Reach::InOrder);
        let bound = if of_candidate { self.least } else { self.bound };
        (!self.open.is_empty() || self.next != Reach::Nothing) && most.is_none_or(|most| bound < most)
    }
}

impl SearchSpace<'_> {
    /// Improves the stages of the simulated plans that may then be among the `keep` fastest.
    ///
    /// Plans with several stages on a rank first become those that the order of their passes suggests, until `WORK_IN_ORDER` is
    /// done. Then every plan gets a look at its most promising neighbours, the fastest plan first; those that found a faster one go
    /// on before the others get a look; until no plan has such neighbours, or `WORK` is done. Then the fastest plans go on until
    /// they have no faster neighbours, or `WORK_OF_FASTEST` is done.
    pub fn improve(
        &self,
        explored: &mut Explored,
        keep: usize,
        out_of_time: Stop,
    ) -> Result<(), PlannerError> {
        let mut times: Vec<Picoseconds> =
            explored.seen.iter().map(|seen| seen.time().unwrap_or(UNKNOWN)).collect();
        let kept = |times: &[Picoseconds]| {
            let mut times = times.to_vec();
            times.sort_unstable();
            times.get(keep - 1).filter(|time| **time < UNKNOWN).map(|time| Seconds::from(*time))
        };
        let most = kept(&times);
        let below = |seen: &&Seen| most.is_none_or(|most| seen.bound < most);
        let seen: Vec<(usize, &Seen)> =
            explored.seen.iter().enumerate().filter(|(_, seen)| below(seen)).collect();
        let in_time = seen.into_par_iter().filter(|_| !out_of_time());
        let walks = in_time.filter_map(|(index, seen)| self.walk(index, seen));
        let mut walks: Vec<Walk> = walks.filter(|walk| walk.may_be_below(most)).collect();
        let (mut work, mut in_order) = (0, 0);
        while !out_of_time() {
            for walk in &walks {
                times[walk.index] = walk.time;
            }
            let most = kept(&times);
            let mut open: Vec<&mut Walk> = walks.iter_mut().filter(|walk| walk.may_be_below(most)).collect();
            let in_order_first =
                in_order < WORK_IN_ORDER && open.iter().any(|walk| walk.next == Reach::InOrder);
            open.sort_by_key(|walk| {
                (in_order_first && walk.next != Reach::InOrder, walk.fruitless, walk.time)
            });
            let has_every_split = |walk: &&mut Walk| walk.has_every_split || walk.next == Reach::EverySplit;
            let limit = if open.iter().any(has_every_split) { WORK_OF_EVERY_SPLIT } else { WORK };
            open.truncate(BATCH);
            if open.is_empty() || work >= limit {
                break;
            }
            let steps = open.into_par_iter().map(|walk| self.look_around(walk, most, out_of_time));
            let done = steps.collect::<Result<Vec<usize>, PlannerError>>()?.into_iter().sum::<usize>();
            if in_order_first {
                in_order += done;
            } else {
                work += done;
            }
        }
        // Where ranks wait for the data axis, neighbours with low bounds are not the fast ones: the fastest plans look at more of them.
        let mut work = 0;
        while work < WORK_OF_FASTEST && !out_of_time() {
            for walk in &walks {
                times[walk.index] = walk.time;
            }
            let most = kept(&times);
            walks.sort_by_key(|walk| walk.time);
            let takes = |walk: &Walk| NEIGHBOURS * self.simulated_passes(walk.candidate);
            let open = walks
                .iter_mut()
                .take(BATCH)
                .find(|walk| walk.may_be_below(most) && takes(walk) <= WORK_OF_FASTEST / LOOKS_OF_FASTEST);
            let Some(walk) = open else { break };
            work += self.look_around(walk, most, out_of_time)?;
        }
        let improved = walks.into_iter().filter(|walk| walk.improved);
        let improved: Vec<(usize, Trial)> = improved
            .map(|walk| {
                let estimate = match walk.candidate.schedule().flushes() {
                    true => self.bounds.of_plan(walk.candidate, &walk.plan),
                    // Passes of steps that do not wait for each other have no such bound.
                    false => walk.estimate,
                };
                (walk.index, Trial::Simulated { plan: Box::new(walk.plan), estimate, expected: walk.time })
            })
            .collect();
        for (index, trial) in improved {
            explored.seen[index].trial = trial;
        }
        Ok(())
    }

    /// The way from a candidate's plan; `None` if it has none, or was not simulated and the integer program knows all that counts.
    fn walk<'a>(&self, index: usize, seen: &'a Seen) -> Option<Walk<'a>> {
        let candidate = &seen.candidate;
        let (plan, time, estimate) = match &seen.trial {
            Trial::Simulated { plan, expected, estimate } => (plan.as_ref().clone(), *expected, *estimate),
            Trial::TooSlow(stages)
                if candidate.virtual_stages > 1 || every_split(stages, FEW_SPLITS).is_some() =>
            {
                (candidate.plan(self.question(), stages.clone()), UNKNOWN, Seconds::ZERO)
            }
            Trial::TooSlow(_) | Trial::OutOfMemory(_) | Trial::Undecided => return None,
        };
        let memory = MemoryLimits::of(self.model(), candidate, &plan);
        let next = match candidate.virtual_stages {
            _ if every_split(&plan.stages, FEW_SPLITS).is_some() => Reach::EverySplit,
            1 => Reach::OneBlock,
            _ => Reach::InOrder,
        };
        Some(Walk {
            index,
            candidate,
            least: seen.bound,
            bound: self.bound_of(candidate, &plan),
            plan,
            time,
            memory,
            estimate,
            open: Vec::new(),
            has_every_split: false,
            next,
            fruitless: 0,
            improved: false,
        })
    }

    /// A time that a plan of the candidate is not expected to be below.
    pub fn bound_of(&self, candidate: &Candidate, plan: &Plan) -> Seconds {
        self.model().outlook(candidate).expected(self.bounds.of_plan(candidate, plan))
    }

    /// The plan of a candidate that comes from `plan` by moving single blocks from the busiest rank to the one with least work, or
    /// else by relieving the busiest rank of a block or of computing it again, as long as its passes then take less in their order;
    /// with its bound, and how many others were bounded.
    ///
    /// The partition's program takes all stages of a rank to be as long as the slowest. Their order tells that a long one may make up
    /// for a short one.
    pub fn in_order(&self, candidate: &Candidate, plan: Plan, out_of_time: Stop) -> (Plan, Seconds, usize) {
        let memory = MemoryLimits::of(self.model(), candidate, &plan);
        let shape = plan.pipeline_shape();
        let stages_of = |rank: usize| {
            (0..shape.stages()).filter(move |stage| candidate.schedule().rank_of(*stage, shape) == rank)
        };
        let (mut bound, mut best, mut looks) = (self.bound_of(candidate, &plan), plan, 0);
        let options = recompute_choices(self.question());
        let mut lowest = |all: Vec<Vec<StageBlocks>>, bound: Seconds, best: &Plan| {
            looks += all.len();
            let plans = all.into_iter().map(|stages| Plan { stages, ..best.clone() });
            let bounded = plans.map(|plan| (self.bound_of(candidate, &plan), plan));
            let mut less: Vec<(Seconds, Plan)> = bounded.filter(|(less, _)| *less < bound).collect();
            less.sort_by(|a, b| a.0.get().total_cmp(&b.0.get()));
            less.into_iter().find(|(_, plan)| !out_of_time() && memory.fit(plan))
        };
        loop {
            let (busiest, idlest) = self.bounds.busiest_and_idlest(candidate, &best);
            let to_idlest = moved(&best.stages, stages_of(busiest), stages_of(idlest));
            let less = lowest(to_idlest, bound, &best).or_else(|| {
                let relieved = relieved(&best.stages, stages_of(busiest), &options);
                lowest(relieved, bound, &best)
            });
            match less {
                Some(less) => (bound, best) = less,
                None => break,
            }
        }
        (best, bound, looks)
    }

    /// The plan of a walk's candidate that is nearest to the answer of the program of whole blocks, which knows the order of the passes
    /// and what ranks hold, and answers with parts of blocks; `None` if there is none that fits.
    fn least_in_order(&self, walk: &Walk) -> Option<Plan> {
        let parts = self.bounds.blocks_by_stage(walk.candidate, &walk.plan)?;
        let options = recompute_choices(self.question());
        let stages = rounded(&parts, &options, self.question().model.layers());
        let most = *options.iter().min().expect("there is a choice");
        recomputed_to_fit(&walk.memory, Plan { stages, ..walk.plan.clone() }, most)
    }

    /// A plan of the walk's candidate whose first stages are short and whose others have the same number of blocks, as few as that takes,
    /// where the head counts as blocks: with short stages first, the pipeline fills fast. Blocks are recomputed as those of the walk's
    /// plan are in the mean. `None` if there is none that fits.
    fn filled_from_behind(&self, walk: &Walk) -> Option<Plan> {
        let question = self.question();
        let (options, blocks) = (recompute_choices(question), question.model.layers());
        let head = question.model.head_in_blocks(question.job.sequence);
        let count = |option: &Recompute| {
            let choices = walk.plan.stages.iter().flat_map(|stage| &stage.0);
            choices.filter(|choice| *choice == option).count()
        };
        let shares: Vec<f64> = options.iter().map(|option| count(option) as f64 / blocks as f64).collect();
        let of_stage = |length: usize| shares.iter().map(|share| share * length as f64).collect();
        let lengths = filled_from_behind(walk.plan.stages.len(), blocks, head);
        let parts: Vec<Vec<f64>> = lengths.into_iter().map(of_stage).collect();
        let stages = rounded(&parts, &options, blocks);
        let most = *options.iter().min().expect("there is a choice");
        recomputed_to_fit(&walk.memory, Plan { stages, ..walk.plan.clone() }, most)
    }

    /// How many passes are simulated to rank a plan of the candidate.
    fn simulated_passes(&self, candidate: &Candidate) -> usize {
        let shape = candidate.shape(self.question().job.global_batch);
        2 * shape.stages() * enough_microbatches(candidate, shape)
    }

    /// Simulates the neighbours with the lowest bounds of those that may be faster than the plan and below `most`, and goes to
    /// the fastest of them if it is faster. Returns what that costs, in simulated passes.
    fn look_around(
        &self,
        walk: &mut Walk,
        most: Option<Seconds>,
        out_of_time: Stop,
    ) -> Result<usize, PlannerError> {
        let passes = self.simulated_passes(walk.candidate);
        let time = walk.time;
        let below = |bound: Seconds| bound < Seconds::from(time) && most.is_none_or(|most| bound < most);
        let (mut work, mut in_order) = (0, false);
        if walk.open.is_empty() {
            let stages = &walk.plan.stages;
            let bounded = |all: Vec<Vec<StageBlocks>>| {
                let in_time = all.into_par_iter().filter(|_| !out_of_time());
                let bounded = in_time.map_init(
                    || walk.plan.clone(),
                    |plan, stages| {
                        plan.stages = stages;
                        let bound = self.bound_of(walk.candidate, plan);
                        (bound, std::mem::take(&mut plan.stages))
                    },
                );
                let bounded: Vec<(Seconds, Vec<StageBlocks>)> = bounded.collect();
                (bounded.len(), bounded)
            };
            in_order = walk.next == Reach::InOrder;
            walk.has_every_split = walk.next == Reach::EverySplit;
            let ((looks, open), next) = match walk.next {
                Reach::EverySplit => {
                    let all = every_split(stages, FEW_SPLITS).expect("the walk began with few splits");
                    let only = recompute_choices(self.question()).len() == 1;
                    (bounded(all), if only { Reach::Nothing } else { Reach::OneBlock })
                }
                Reach::InOrder => {
                    let least = if out_of_time() { None } else { self.least_in_order(walk) };
                    work += PROGRAM;
                    let filled = if out_of_time() { None } else { self.filled_from_behind(walk) };
                    let begins = [Some(walk.plan.clone()), least, filled].into_iter().flatten();
                    let ends = begins.map(|begin| self.in_order(walk.candidate, begin, out_of_time));
                    let ends: Vec<(Plan, Seconds, usize)> = ends.collect();
                    let looks = ends.iter().map(|(.., looks)| looks).sum();
                    let open = ends.into_iter().map(|(plan, bound, _)| (bound, plan.stages));
                    ((looks, open.collect()), Reach::OneBlock)
                }
                Reach::OneBlock => {
                    let few = stages.len() <= FEW_STAGES;
                    let next = if few { Reach::TwoBlocks } else { Reach::Nothing };
                    (bounded(neighbours(stages, &recompute_choices(self.question()))), next)
                }
                Reach::TwoBlocks => (bounded(second_neighbours(stages)), Reach::Nothing),
                Reach::Nothing => ((0, Vec::new()), Reach::Nothing),
            };
            (walk.open, walk.next) = (open, next);
            work += passes * looks / BOUNDS;
            walk.open.retain(|(bound, _)| below(*bound));
            // Stable: of equal bounds, the one that comes first is simulated first.
            walk.open.reverse();
            walk.open.sort_by(|a, b| b.0.get().total_cmp(&a.0.get()));
        }
        let mut promising = Vec::new();
        while promising.len() < NEIGHBOURS
            && let Some((bound, stages)) = walk.open.pop()
        {
            let plan = Plan { stages, ..walk.plan.clone() };
            if below(bound) && walk.memory.fit(&plan) {
                promising.push((bound, plan));
            }
        }
        work += passes * promising.len();
        let timed = promising.into_par_iter().filter_map(|(bound, plan)| {
            let simulated = step_time_for_ranking_until(&plan, &self.model().costs, out_of_time);
            let time = unless_stopped(simulated).transpose()?;
            Some(time.map(|time| (self.model().outlook(walk.candidate).expected_exactly(time), bound, plan)))
        });
        let timed = timed.collect::<Result<Vec<(Picoseconds, Seconds, Plan)>, PlannerError>>()?;
        match timed.into_iter().min_by_key(|(time, ..)| *time) {
            Some((time, bound, plan)) if time < walk.time => {
                (walk.time, walk.bound, walk.plan, walk.improved) = (time, bound, plan, true);
                walk.fruitless = 0;
                if !walk.has_every_split {
                    (walk.open, walk.next) = (Vec::new(), Reach::OneBlock);
                }
            }
            _ => walk.fruitless += usize::from(!in_order),
        }
        Ok(work)
    }
}
