//! Solves and simulates one candidate.

use super::search_space::SearchSpace;
use crate::candidate::Candidate;
use crate::cost::{CostModel, LayoutCosts};
use crate::stages::{RankMemoryUse, Staged, stage};
use crate::verdict::PlannerError;
use trainwright_lower::messages_in_line;
use trainwright_sim::{Halt, Stop, step_time_for_ranking_until};
use trainwright_spec::mesh::{Mesh, RankOrder};
use trainwright_spec::plan::{Plan, StageBlocks};
use trainwright_spec::units::{Picoseconds, Seconds};

/// What came of a candidate that was solved.
#[derive(Debug)]
pub(crate) enum Trial {
    /// Its best plan, by the integer program's estimate or the fastest that is known, and the time to order that plan by.
    Simulated { plan: Box<Plan>, estimate: Seconds, expected: Picoseconds },
    /// It does not fit: the rank that lacks most.
    OutOfMemory(RankMemoryUse),
    /// Its best plan by that estimate, which has these stages, cannot be fast enough.
    TooSlow(Vec<StageBlocks>),
    /// The solver gave up.
    Undecided,
}

impl Trial {
    /// The plan and the time to order it by, if it was simulated.
    pub fn simulated(&self) -> Option<(&Plan, Picoseconds)> {
        match self {
            Trial::Simulated { plan, expected, .. } => Some((plan, *expected)),
            Trial::OutOfMemory(_) | Trial::TooSlow(_) | Trial::Undecided => None,
        }
    }

    /// The rank that lacks most memory, if it does not fit.
    pub fn shortage(&self) -> Option<RankMemoryUse> {
        match self {
            Trial::OutOfMemory(shortage) => Some(*shortage),
            Trial::Simulated { .. } | Trial::TooSlow(_) | Trial::Undecided => None,
        }
    }
}

impl SearchSpace<'_> {
    /// Solves and simulates a candidate; spares the simulation if that cannot be expected to take less than `most`. `None` if
    /// it was stopped.
    pub fn trial(
        &self,
        candidate: &Candidate,
        most: Option<Seconds>,
        stop: Stop,
    ) -> Result<Option<Trial>, PlannerError> {
        let Some(staged) = self.staged(candidate, stop) else { return Ok(None) };
        if let (Staged::Plan(plan, _), Some(most)) = (&staged, most)
            && self.bound_of(candidate, plan) >= most
        {
            return Ok(Some(Trial::TooSlow(plan.stages.clone())));
        }
        simulate(staged, self.model(), candidate, stop)
    }

    /// The candidate's best stages: those of the one with the other order of ranks, where nothing that they depend on differs.
    /// `None` if it was stopped: then all that comes later is too.
    fn staged(&self, candidate: &Candidate, stop: Stop) -> Option<Staged> {
        let mesh = Mesh { order: RankOrder::default(), ..candidate.mesh };
        let usual = Candidate { mesh, ..*candidate };
        let in_line = messages_in_line(&candidate.plan(self.question(), Vec::new())).is_some();
        let order_matters = in_line || !candidate.offload.is_none() || self.question().cluster.is_mixed();
        if !self.several_orders || order_matters || !LayoutCosts::are_alike(&usual, candidate) {
            return stage(self.model(), candidate, stop);
        }
        let mut known = self.staged.lock().expect("no holder of the lock panics");
        let of_usual = known.entry(format!("{usual:?}")).or_default().clone();
        drop(known);
        Some(match of_usual.get_or_init(|| stage(self.model(), candidate, stop)).clone()? {
            Staged::Plan(plan, estimate) => {
                Staged::Plan(Box::new(Plan { mesh: candidate.mesh, ..*plan }), estimate)
            }
            other => other,
        })
    }
}

/// Simulates what came of a candidate. `None` if it was stopped.
pub(crate) fn simulate(
    staged: Staged,
    model: &CostModel,
    candidate: &Candidate,
    stop: Stop,
) -> Result<Option<Trial>, PlannerError> {
    Ok(Some(match staged {
        Staged::Plan(plan, estimate) => {
            let Some(time) = unless_stopped(step_time_for_ranking_until(&plan, &model.costs, stop))? else {
                return Ok(None);
            };
            let expected = model.outlook(candidate).expected_exactly(time);
            Trial::Simulated { plan, estimate, expected }
        }
        Staged::OutOfMemory(shortage) => Trial::OutOfMemory(shortage),
        Staged::Undecided => Trial::Undecided,
    }))
}

/// What came of a simulation; `None` if it was stopped.
pub(crate) fn unless_stopped<T>(simulated: Result<T, Halt>) -> Result<Option<T>, PlannerError> {
    match simulated {
        Ok(result) => Ok(Some(result)),
        Err(Halt::Stopped) => Ok(None),
        Err(Halt::Deadlock(deadlock)) => Err(deadlock.into()),
    }
}
