//! Branch and bound: by increasing lower bound, layouts are opened, candidates bounded tightly, and solved.
//!
//! A layout is bounded by the times of its blocks; all costs of its layers are computed when it is opened, its pipelines are
//! bounded before their candidates. Where there are more layouts than are bounded at a time, the most promising come first, and
//! candidates of these are solved before the next are bounded.

use super::candidate_trial::Trial;
use super::search_space::SearchSpace;
use crate::candidate::Candidate;
use crate::verdict::{PlannerError, Progress};
use rayon::prelude::*;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::ops::Range;
use trainwright_sim::Stop;
use trainwright_spec::mesh::Mesh;
use trainwright_spec::plan::Plan;
use trainwright_spec::units::{Bytes, Picoseconds, Seconds};

/// How much work is done side by side before times are compared, in simulations. Fixed, so that the answer does not
/// depend on the number of threads.
const BATCH: usize = 64;

/// How many candidates are solved side by side at first, twice as many each time: the times of the first drop others.
const FIRST_SOLVED: usize = 8;

/// How many bounds weigh as much as a simulation.
const BOUNDS: usize = 16;

/// How many layouts are bounded before some candidates are solved.
const LAYOUTS: usize = 1024;

/// Of how many solved candidates more is proved at most.
const PROOFS: usize = 24;

/// How many candidates whose activations do not fit are remembered.
const REMEMBERED: usize = 64;

/// How many candidates a search solves at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Looks {
    /// As many as there are until nothing that is left can be better.
    Unlimited,
    /// So many, unless nothing can be better before.
    UpTo(usize),
    /// So many, or as many as there are up to the first that fits.
    UpToFirstFit(usize),
}

/// Where a search leads.
pub(crate) struct Goal<'a> {
    /// How many plans are sought.
    pub keep: usize,
    /// Which layouts are looked at.
    pub layouts: &'a (dyn Fn(&Candidate) -> bool + Sync),
    /// Which of their candidates.
    pub candidates: &'a (dyn Fn(&Candidate) -> bool + Sync),
    /// The cutoff of a candidate: plans whose expected time is no less are not sought, even if no other plan is known; infinite
    /// without a cutoff. Called for candidates with the layer costs of their layouts.
    pub cutoff: &'a (dyn Fn(&Candidate) -> Seconds + Sync),
    /// How many candidates are solved.
    pub looks: Looks,
    /// With more ranks than this that have the same weights, candidates are solved by their closed-form bound: what a tight one
    /// takes grows with these ranks, to seconds for tens of thousands, and nothing interrupts it.
    pub tight_up_to: usize,
    /// Whether to stop.
    pub out_of_time: Stop<'a>,
}

impl<'a> Goal<'a> {
    /// The `keep` fastest plans of a space, or as far as the time suffices.
    pub fn fastest(keep: usize, out_of_time: Stop<'a>) -> Self {
        Self {
            keep,
            layouts: &|_| true,
            candidates: &|_| true,
            cutoff: &|_| Seconds::new(f64::INFINITY),
            looks: Looks::Unlimited,
            tight_up_to: usize::MAX,
            out_of_time,
        }
    }

    /// The same with bounds that take no longer than a search with a time limit may be late.
    pub fn in_time(self) -> Self {
        Self { tight_up_to: FEW_COPIES, ..self }
    }

    /// Whether a candidate with a tight bound gets that of its whole blocks before it is solved. A search for a plan that fits does
    /// without: candidates without such a bound would come first, and be solved in vain.
    fn bounds_whole_blocks(&self, candidate: &Candidate) -> bool {
        self.looks == Looks::Unlimited && candidate.virtual_stages == 1
    }

    /// The smaller of `most` and a candidate's cutoff.
    fn most_of(&self, candidate: &Candidate, most: Option<Seconds>) -> Option<Seconds> {
        let cutoff = Some((self.cutoff)(candidate)).filter(|cutoff| cutoff.get().is_finite());
        cutoff.into_iter().chain(most).reduce(Seconds::min)
    }

    /// Whether a candidate gets a tight bound before it is solved.
    fn is_tight(&self, candidate: &Candidate) -> bool {
        candidate.mesh.weight_copies() <= self.tight_up_to
    }
}

/// Ranks with the same weights up to which a search with a time limit computes tight bounds.
pub(super) const FEW_COPIES: usize = 2048;

/// A candidate that was solved.
pub(crate) struct Seen {
    pub candidate: Candidate,
    /// No plan of it is expected to be faster.
    pub bound: Seconds,
    pub trial: Trial,
}

impl Seen {
    /// The time to order it by, from its simulated time; if it fits.
    pub fn time(&self) -> Option<Picoseconds> {
        self.trial.simulated().map(|(_, expected)| expected)
    }
}

/// What a search has seen.
#[derive(Default)]
pub(crate) struct Explored {
    /// Candidates that were solved, in that order.
    pub seen: Vec<Seen>,
    /// Candidates whose weights, gradients and optimizer do not fit.
    pub state_out_of_memory: usize,
    /// By mesh the one of them that lacks least, and what it needs.
    pub infeasible_states: BTreeMap<Mesh, (Bytes, Candidate)>,
    /// Candidates whose activations do not fit by their bound.
    pub activations_out_of_memory: usize,
    /// The first of them.
    pub infeasible_activations: Vec<Candidate>,
    /// Whether nothing that is left can be better.
    pub ended: bool,
    /// No plan that was looked for is expected to be faster.
    pub bound: Option<Seconds>,
    /// Nor any of what was not solved than this.
    bound_of_rest: Option<Seconds>,
}

/// A part of the space. Small: there may be millions, so candidates are made when they are looked at.
#[derive(Clone, Copy)]
struct Branch {
    bound: Seconds,
    /// Which layout.
    layout: u32,
    /// Which of its candidates, or the first of several.
    position: u32,
    part: Part,
}

/// What a branch holds.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    /// All candidates with its layout.
    Layout,
    /// Those with its candidate's pipeline.
    Pipeline,
    /// A candidate with its closed-form bound.
    Candidate,
    /// A candidate with its tight bound.
    Tight,
    /// A candidate with that of its whole blocks too.
    WholeBlocks,
}

impl PartialEq for Branch {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Branch {}

impl PartialOrd for Branch {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Branch {
    /// The greatest has the lowest bound: it is the most promising.
    fn cmp(&self, other: &Self) -> Ordering {
        let place = |branch: &Self| (branch.layout, branch.position);
        other.bound.get().total_cmp(&self.bound.get()).then(place(other).cmp(&place(self)))
    }
}

/// What became of a branch.
enum Step {
    /// The parts of a branch, and of its candidates those whose state does not fit, with what they need.
    Opened(Vec<Branch>, Vec<(Bytes, Candidate)>),
    /// A layout or a candidate with a tighter bound.
    Tightened(Branch),
    Solved(Box<Seen>),
    /// Nothing, since the time was up.
    Left(Branch),
}

impl SearchSpace<'_> {
    /// Looks at branches by increasing lower bound until nothing else can be among the `keep` fastest.
    ///
    /// # Errors
    /// As `plan`.
    pub fn explore(&self, goal: &Goal, watch: &(dyn Fn(Progress) + Sync)) -> Result<Explored, PlannerError> {
        self.explore_from(Vec::new(), goal, watch)
    }

    /// The same, with candidates of this space that were solved before.
    ///
    /// # Errors
    /// As `plan`.
    pub fn explore_from(
        &self,
        seeds: Vec<Seen>,
        goal: &Goal,
        watch: &(dyn Fn(Progress) + Sync),
    ) -> Result<Explored, PlannerError> {
        self.explore_below(None, seeds, goal, watch)
    }

    /// The same where only plans that are expected to take less than `below` are of use.
    ///
    /// # Errors
    /// As `plan`.
    pub fn explore_below(
        &self,
        below: Option<Seconds>,
        seeds: Vec<Seen>,
        goal: &Goal,
        watch: &(dyn Fn(Progress) + Sync),
    ) -> Result<Explored, PlannerError> {
        let layouts = self.by_promise().iter().filter(|index| (goal.layouts)(&self.legal.layouts[**index]));
        let mut unbounded: VecDeque<usize> = layouts.copied().collect();
        let total = unbounded.len();
        let known: Vec<Candidate> = seeds.iter().map(|seed| seed.candidate).collect();
        let mut kept: Vec<Picoseconds> = seeds.iter().filter_map(Seen::time).collect();
        kept.sort_unstable();
        kept.truncate(goal.keep);
        let mut explored = Explored { seen: seeds, ..Explored::default() };
        let mut heap: BinaryHeap<Branch> = BinaryHeap::new();
        let mut solves = FIRST_SOLVED;
        loop {
            let last = kept.get(goal.keep - 1).map(|time| Seconds::from(*time));
            let most = last.into_iter().chain(below).reduce(Seconds::min);
            for step in self.bound_layouts(&mut unbounded, goal, most)? {
                match step {
                    Step::Left(branch) => unbounded.push_front(branch.layout as usize),
                    Step::Tightened(branch) if most.is_none_or(|most| branch.bound < most) => {
                        heap.push(branch)
                    }
                    _ => {}
                }
            }
            let batch = self.next_batch(&mut heap, most, solves, goal);
            if batch.is_empty() && unbounded.is_empty() {
                explored.ended = true;
                break;
            }
            let steps: Result<Vec<Step>, PlannerError> = batch
                .into_par_iter()
                .map_init(|| self.any_plan(), |plan, branch| self.step(branch, goal, &known, most, plan))
                .collect();
            let (mut fits, mut solved) = (false, 0);
            for step in steps? {
                match step {
                    Step::Opened(branches, infeasible) => {
                        heap.extend(branches);
                        explored.add_infeasible_states(infeasible);
                    }
                    Step::Tightened(branch) if branch.bound.get().is_infinite() => {
                        explored.add_infeasible_activations(self.candidate(&branch))
                    }
                    Step::Tightened(branch) if most.is_some_and(|most| branch.bound >= most) => {}
                    Step::Tightened(branch) | Step::Left(branch) => heap.push(branch),
                    Step::Solved(seen) => {
                        if let Some(time) = seen.time() {
                            fits = true;
                            kept.push(time);
                            kept.sort_unstable();
                            kept.truncate(goal.keep);
                        }
                        explored.seen.push(*seen);
                        solved += 1;
                    }
                }
            }
            if solved == solves {
                solves = BATCH.min(2 * solves);
            }
            let left = heap.len() + unbounded.len();
            explored.bound_of_rest = self.bound_of_rest(&heap, &unbounded);
            explored.bound = explored.bound_so_far();
            watch(Progress {
                best: kept.first().map(|time| Seconds::from(*time)),
                bound: explored.bound,
                ..Progress::of("partitions", total - total.min(left), total)
            });
            let looked = match goal.looks {
                Looks::Unlimited => false,
                Looks::UpTo(looks) => explored.seen.len() >= looks,
                Looks::UpToFirstFit(looks) => fits || explored.seen.len() >= looks,
            };
            if looked || (goal.out_of_time)() {
                break;
            }
        }
        if let (true, Some(best)) = (explored.ended, kept.first()) {
            self.tighten(&mut explored.seen[..known.len()], goal, Seconds::from(*best));
        }
        explored.bound_of_rest = self.bound_of_rest(&heap, &unbounded);
        explored.bound = explored.bound_so_far();
        Ok(explored)
    }

    /// Bounds candidates that were solved before this search as it bounds its own: the first plans of a search with a time limit are
    /// found by bounds in closed form, and one of these would be the bound of the whole search.
    fn tighten(&self, seeds: &mut [Seen], goal: &Goal, best: Seconds) {
        let is_open = |seed: &&mut Seen| seed.bound < best && goal.is_tight(&seed.candidate);
        let open: Vec<&mut Seen> = seeds.iter_mut().filter(is_open).collect();
        open.into_par_iter().for_each_init(
            || self.any_plan(),
            |plan, seed| {
                if (goal.out_of_time)() {
                    return;
                }
                seed.candidate.apply_to(plan);
                let outlook = self.model().outlook(&seed.candidate);
                let most = best / outlook.time;
                let mut bound = self.bounds.tight(&seed.candidate, plan, Some(most));
                if bound < most && goal.bounds_whole_blocks(&seed.candidate) {
                    bound = bound.max(self.bounds.whole_blocks(&seed.candidate, plan, Some(most)));
                }
                seed.bound = seed.bound.max(outlook.expected(bound));
            },
        );
    }

    /// A time that no plan of what is left is expected to be below.
    fn bound_of_rest(&self, heap: &BinaryHeap<Branch>, unbounded: &VecDeque<usize>) -> Option<Seconds> {
        let unbounded = unbounded.iter().map(|index| self.least_times[*index]);
        heap.peek().map(|branch| branch.bound).into_iter().chain(unbounded).reduce(Seconds::min)
    }

    /// Proves more of the solved candidates that have several stages on a rank: that their blocks, in the order of the passes and in
    /// what the ranks can hold, take longer than their bounds say. Those with the lowest bounds come first, and no more than
    /// `PROOFS`, since each program takes longer than all bounds before it.
    pub fn prove_more(&self, explored: &mut Explored, stop: Stop) {
        let Some(best) = explored.seen.iter().filter_map(Seen::time).min().map(Seconds::from) else { return };
        let is_open = |seen: &&mut Seen| {
            let decided = matches!(seen.trial, Trial::OutOfMemory(_));
            seen.candidate.virtual_stages > 1 && !decided && seen.bound < best
        };
        let mut open: Vec<&mut Seen> = explored.seen.iter_mut().filter(is_open).collect();
        open.sort_by(|a, b| a.bound.get().total_cmp(&b.bound.get()));
        open.truncate(PROOFS);
        open.into_par_iter().for_each_init(
            || self.any_plan(),
            |plan, seen| {
                if !stop() {
                    seen.candidate.apply_to(plan);
                    let outlook = self.model().outlook(&seen.candidate);
                    let bound = self.bounds.whole_blocks(&seen.candidate, plan, Some(best / outlook.time));
                    seen.bound = seen.bound.max(outlook.expected(bound));
                }
            },
        );
        explored.bound = explored.bound_so_far();
    }

    /// Bounds the next layouts that may be below `most` by their blocks' times; those that cannot be are dropped.
    fn bound_layouts(
        &self,
        unbounded: &mut VecDeque<usize>,
        goal: &Goal,
        most: Option<Seconds>,
    ) -> Result<Vec<Step>, PlannerError> {
        let mut next = Vec::new();
        while next.len() < LAYOUTS
            && let Some(index) = unbounded.pop_front()
        {
            if most.is_none_or(|most| self.least_times[index] < most) {
                next.push(index);
            }
        }
        let bounded = |index: usize| {
            let layout = &self.legal.layouts[index];
            let branch = |bound| Branch { bound, layout: index as u32, position: 0, part: Part::Layout };
            if (goal.out_of_time)() {
                return Ok(Step::Left(branch(self.least_times[index])));
            }
            let bound = self.model().outlook(layout).expected(self.bounds.layout(layout)?);
            Ok(Step::Tightened(branch(bound.max(self.least_times[index]))))
        };
        next.into_par_iter().map(bounded).collect()
    }

    /// What becomes of a branch when nothing above `most` is of use. `plan` is any plan that answers the question.
    fn step(
        &self,
        branch: Branch,
        goal: &Goal,
        known: &[Candidate],
        most: Option<Seconds>,
        plan: &mut Plan,
    ) -> Result<Step, PlannerError> {
        if (goal.out_of_time)() {
            return Ok(Step::Left(branch));
        }
        if branch.part == Part::Layout {
            return self.open_layout(&branch, goal, most);
        }
        let candidate = self.candidate(&branch);
        let most = goal.most_of(&candidate, most);
        if most.is_some_and(|most| branch.bound >= most) {
            return Ok(Step::Opened(Vec::new(), Vec::new()));
        }
        if branch.part == Part::Pipeline {
            return Ok(self.open_pipeline(&branch, goal, known, most, plan));
        }
        let has_more = branch.part == Part::Candidate || goal.bounds_whole_blocks(&candidate);
        if branch.part != Part::WholeBlocks && goal.is_tight(&candidate) && has_more {
            candidate.apply_to(plan);
            let outlook = self.model().outlook(&candidate);
            let most = most.map(|most| most / outlook.time);
            let (bound, part) = match branch.part {
                Part::Candidate => (self.bounds.tight(&candidate, plan, most), Part::Tight),
                _ => (self.bounds.whole_blocks(&candidate, plan, most), Part::WholeBlocks),
            };
            let bound = outlook.expected(bound).max(branch.bound);
            return Ok(Step::Tightened(Branch { bound, part, ..branch }));
        }
        Ok(match self.trial(&candidate, most, goal.out_of_time)? {
            Some(trial) => Step::Solved(Box::new(Seen { candidate, bound: branch.bound, trial })),
            None => Step::Left(branch),
        })
    }

    /// The candidate of a branch that holds one.
    fn candidate(&self, branch: &Branch) -> Candidate {
        self.legal.candidates(&self.legal.layouts[branch.layout as usize]).at(branch.position as usize)
    }

    /// The pipelines of a branch's layout that may be below `most` with some state.
    fn open_layout(&self, branch: &Branch, goal: &Goal, most: Option<Seconds>) -> Result<Step, PlannerError> {
        let layout = &self.legal.layouts[branch.layout as usize];
        self.model().compute(layout)?;
        let most = goal.most_of(layout, most);
        let (all, outlook) = (self.legal.candidates(layout), self.model().outlook(layout));
        let pipeline = |positions: Range<usize>| {
            let bound = outlook.expected(self.bounds.pipeline(&all.at(positions.start)));
            let (bound, position) = (bound.max(branch.bound), positions.start as u32);
            Branch { bound, position, part: Part::Pipeline, ..*branch }
        };
        let below = |branch: &Branch| most.is_none_or(|most| branch.bound < most);
        Ok(Step::Opened(all.pipelines().map(pipeline).filter(below).collect(), Vec::new()))
    }

    /// The candidates with a branch's layout and pipeline that may be below `most` and are not `known`.
    fn open_pipeline(
        &self,
        branch: &Branch,
        goal: &Goal,
        known: &[Candidate],
        most: Option<Seconds>,
        plan: &mut Plan,
    ) -> Step {
        let layout = &self.legal.layouts[branch.layout as usize];
        let all = self.legal.candidates(layout);
        let positions = all.of_pipeline(branch.position as usize);
        let first = all.at(positions.start);
        first.apply_to(plan);
        let (outlook, room) = (self.model().outlook(layout), self.mean_room(layout));
        let passes = self.bounds.passes_in_order(&first, plan, most.map(|most| most / outlook.time));
        let known: Vec<&Candidate> = known.iter().filter(|known| known.layout() == *layout).collect();
        let (mut branches, mut infeasible) = (Vec::new(), Vec::new());
        for position in positions {
            let candidate = all.at(position);
            if !(goal.candidates)(&candidate) || known.contains(&&candidate) {
                continue;
            }
            candidate.apply_to(plan);
            let memory = self.bounds.memory(&candidate, plan);
            if memory > room {
                infeasible.push((memory, candidate));
                continue;
            }
            let bound = outlook.expected(self.bounds.with_update(passes, &candidate, plan));
            let bound = bound.max(branch.bound);
            if most.is_none_or(|most| bound < most) {
                branches.push(Branch { bound, position: position as u32, part: Part::Candidate, ..*branch });
            }
        }
        Step::Opened(branches, infeasible)
    }

    /// The branches with the lowest bounds, as many as are worked on side by side, with no more than `solves` candidates that are
    /// solved; empty if no bound is below `most`.
    fn next_batch(
        &self,
        heap: &mut BinaryHeap<Branch>,
        most: Option<Seconds>,
        solves: usize,
        goal: &Goal,
    ) -> Vec<Branch> {
        let mut batch = Vec::new();
        let (mut work, mut solved) = (0, 0);
        let enough = if goal.looks == Looks::Unlimited { BATCH * BOUNDS } else { BOUNDS };
        while work < enough
            && solved < solves
            && let Some(branch) = heap.peek()
            && most.is_none_or(|most| branch.bound < most)
        {
            let is_solved = match branch.part {
                Part::Layout | Part::Pipeline => false,
                Part::Tight => !goal.bounds_whole_blocks(&self.candidate(branch)),
                Part::Candidate => !goal.is_tight(&self.legal.layouts[branch.layout as usize]),
                Part::WholeBlocks => true,
            };
            work += if is_solved { BOUNDS } else { 1 };
            solved += usize::from(is_solved);
            batch.extend(heap.pop());
        }
        batch
    }
}

impl Explored {
    /// A time that no plan is expected to be below: neither what was solved nor what is left.
    fn bound_so_far(&self) -> Option<Seconds> {
        let open = |seen: &&Seen| !matches!(seen.trial, Trial::OutOfMemory(_));
        let seen = self.seen.iter().filter(open).map(|seen| seen.bound);
        seen.chain(self.bound_of_rest).reduce(Seconds::min)
    }

    fn add_infeasible_states(&mut self, infeasible: Vec<(Bytes, Candidate)>) {
        self.state_out_of_memory += infeasible.len();
        for (needs, candidate) in infeasible {
            let mesh = Mesh { shard: None, ..candidate.mesh };
            let least = self.infeasible_states.entry(mesh).or_insert((needs, candidate));
            if needs < least.0 {
                *least = (needs, candidate);
            }
        }
    }

    fn add_infeasible_activations(&mut self, candidate: Candidate) {
        self.activations_out_of_memory += 1;
        if self.infeasible_activations.len() < REMEMBERED {
            self.infeasible_activations.push(candidate);
        }
    }
}
