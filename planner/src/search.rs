//! The search: bounds for all candidates, an integer program for those that could win, a simulation for each of
//! its answers, until no other candidate's bound is below the kept times.

#[cfg(test)]
mod tests;

use crate::bound::{memory_bound, step_bound};
use crate::candidate::{Candidate, Candidates};
use crate::explain::{alternatives, limited_by};
use crate::infeasible::infeasible;
use crate::layers::LayerCosts;
use crate::stages::{Staged, stage};
use crate::verdict::{Found, PlannerError, Progress, Question, Ranked, Search, Verdict};
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use trainwright_sim::costs::{ClusterCosts, Costs};
use trainwright_sim::{forecast, step_time_for_ranking};
use trainwright_spec::plan::Plan;
use trainwright_spec::units::{Bytes, Picoseconds, Seconds};

/// How many plans are ranked.
pub const KEPT: usize = 5;

/// How many candidates are solved side by side before their times are compared. Fixed, so that the answer does not
/// depend on the number of threads.
const BATCH: usize = 16;

/// The best plans for a question. `watch` is told how far the search is, from several threads.
///
/// # Errors
/// `NoCandidate` if no combination of choices is legal; what does not fit in memory is a verdict, not an error.
pub fn plan(question: &Question, watch: &(dyn Fn(Progress) + Sync)) -> Result<Verdict, PlannerError> {
    let space = Space::new(question, watch)?;
    let mut seen = Seen::default();
    let mut kept: Vec<Picoseconds> = Vec::new();
    for batch in space.order.chunks(BATCH) {
        let hopeful = |index: &&usize| match kept.last() {
            Some(worst) if kept.len() == KEPT => Picoseconds::from(space.bounds[**index]) < *worst,
            _ => true,
        };
        let batch: Vec<usize> = batch.iter().filter(hopeful).copied().collect();
        if batch.is_empty() {
            break;
        }
        for (index, trial) in space.tried(&batch)? {
            if let Trial::Simulated { time, .. } = &trial {
                kept.push(*time);
                kept.sort_unstable();
                kept.truncate(KEPT);
            }
            seen.add(index, trial);
        }
        watch(Progress { phase: "partitions", done: seen.order.len(), total: space.order.len() });
    }
    let search = seen.search(&space);
    let mut best: Vec<Simulated> = seen.simulated().collect();
    // Stable: of equal times, the one that was more hopeful comes first.
    best.sort_by_key(|simulated| simulated.time);
    best.truncate(KEPT);
    if best.is_empty() {
        return match space.left_out {
            Some(why) => {
                Err(PlannerError::NoCandidate { reason: format!("{why}, and nothing with fewer fits") })
            }
            None => Ok(Verdict::Infeasible(infeasible(&space, &seen, search))),
        };
    }
    let done = AtomicUsize::new(0);
    let mut ranked = best
        .par_iter()
        .map(|&Simulated { index, plan, estimate, .. }| {
            let (forecast, _) = forecast(plan, &space.costs)?;
            let limited_by = limited_by(&forecast);
            let done = 1 + done.fetch_add(1, Ordering::Relaxed);
            watch(Progress { phase: "simulations", done, total: best.len() });
            Ok((index, Ranked { plan: plan.clone(), forecast, estimate, limited_by }))
        })
        .collect::<Result<Vec<(usize, Ranked)>, PlannerError>>()?;
    // Long steps were extrapolated to rank them; the forecasts are of the whole steps.
    ranked.sort_by_key(|(_, plan)| Picoseconds::from(plan.forecast.step_time));
    let winner = space.candidates[ranked[0].0];
    let alternatives = alternatives(&space, &seen, &winner, &ranked[0].1)?;
    let ranked = ranked.into_iter().map(|(_, plan)| plan).collect();
    Ok(Verdict::Found(Found { ranked, alternatives, search }))
}

/// All candidates with their bounds.
pub(crate) struct Space<'a> {
    pub question: &'a Question,
    pub costs: ClusterCosts<'a>,
    pub candidates: Vec<Candidate>,
    left_out: Option<String>,
    pub layers: LayerCosts,
    /// No step of the candidate is faster.
    pub bounds: Vec<Seconds>,
    /// No plan of the candidate needs less.
    pub memory: Vec<Bytes>,
    /// Candidates whose memory bound fits, the most hopeful first.
    pub order: Vec<usize>,
}

impl<'a> Space<'a> {
    pub fn new(question: &'a Question, watch: &(dyn Fn(Progress) + Sync)) -> Result<Self, PlannerError> {
        let costs = ClusterCosts { cluster: &question.cluster };
        let Candidates { found: candidates, left_out } = Candidates::of(question)?;
        watch(Progress { phase: "bounds", done: 0, total: candidates.len() });
        let layers = LayerCosts::new(question, &candidates, &costs)?;
        let limits: Vec<(Seconds, Bytes)> = candidates
            .par_iter()
            .map_init(
                || candidates[0].plan(question, Vec::new()),
                |plan, candidate| {
                    candidate.apply_to(plan);
                    let time = step_bound(question, candidate, plan, &layers, &costs);
                    (time, memory_bound(plan, layers.of(candidate).parameters(question)))
                },
            )
            .collect();
        watch(Progress { phase: "bounds", done: candidates.len(), total: candidates.len() });
        let (bounds, memory): (Vec<Seconds>, Vec<Bytes>) = limits.into_iter().unzip();
        let gpu = question.cluster.node.gpu.memory.value;
        let fits = |index: &usize| memory[*index] <= gpu && bounds[*index].get().is_finite();
        let mut order: Vec<usize> = (0..candidates.len()).filter(fits).collect();
        order.sort_by(|a, b| bounds[*a].get().total_cmp(&bounds[*b].get()).then(a.cmp(b)));
        Ok(Self { question, costs, candidates, left_out, layers, bounds, memory, order })
    }

    /// Solves and simulates some candidates side by side.
    pub fn tried(&self, indices: &[usize]) -> Result<Vec<(usize, Trial)>, PlannerError> {
        indices.par_iter().map(|index| Ok((*index, self.trial(&self.candidates[*index])?))).collect()
    }

    /// Solves and simulates a candidate.
    pub fn trial(&self, candidate: &Candidate) -> Result<Trial, PlannerError> {
        let staged = stage(self.question, candidate, &self.layers, &self.costs);
        trial(staged, &self.costs)
    }
}

/// Simulates what came of a candidate.
pub(crate) fn trial(staged: Staged, costs: &impl Costs) -> Result<Trial, PlannerError> {
    Ok(match staged {
        Staged::Plan(plan, estimate) => {
            let time = step_time_for_ranking(&plan, costs)?;
            Trial::Simulated { plan, estimate, time }
        }
        Staged::OutOfMemory { rank, needs, has } => Trial::OutOfMemory { rank, needs, has },
        Staged::Undecided => Trial::Undecided,
    })
}

/// What came of a candidate that was solved.
pub(crate) enum Trial {
    /// Its best plan by the integer program's estimate, and that plan's simulated time.
    Simulated { plan: Box<Plan>, estimate: Seconds, time: Picoseconds },
    /// It does not fit.
    OutOfMemory { rank: usize, needs: Bytes, has: Bytes },
    /// The solver gave up.
    Undecided,
}

/// Every candidate that was solved, by its index in the space.
#[derive(Default)]
pub(crate) struct Seen {
    trials: BTreeMap<usize, Trial>,
    /// In the order in which they were solved.
    order: Vec<usize>,
}

/// A candidate that was solved and fits.
struct Simulated<'a> {
    index: usize,
    plan: &'a Plan,
    estimate: Seconds,
    time: Picoseconds,
}

impl Seen {
    fn add(&mut self, index: usize, trial: Trial) {
        self.order.push(index);
        self.trials.insert(index, trial);
    }

    /// Those that fit, in the order in which they were solved.
    fn simulated(&self) -> impl Iterator<Item = Simulated<'_>> {
        self.trials().filter_map(|(index, trial)| match trial {
            Trial::Simulated { plan, estimate, time } => {
                Some(Simulated { index, plan, estimate: *estimate, time: *time })
            }
            Trial::OutOfMemory { .. } | Trial::Undecided => None,
        })
    }

    /// What came of each candidate, in the order in which they were solved.
    pub fn trials(&self) -> impl Iterator<Item = (usize, &Trial)> {
        self.order.iter().map(|index| (*index, &self.trials[index]))
    }

    /// What came of a candidate, if it was solved.
    pub fn of(&self, index: usize) -> Option<&Trial> {
        self.trials.get(&index)
    }

    fn search(&self, space: &Space) -> Search {
        let count = |kind: fn(&Trial) -> bool| self.trials.values().filter(|trial| kind(trial)).count();
        let solved_out = count(|trial| matches!(trial, Trial::OutOfMemory { .. }));
        Search {
            candidates: space.candidates.len(),
            out_of_memory: space.candidates.len() - space.order.len() + solved_out,
            bounded_out: space.order.len() - self.trials.len(),
            solved: self.trials.len(),
            simulated: count(|trial| matches!(trial, Trial::Simulated { .. })),
        }
    }
}
