//! Branch and bound over the space: what is most hopeful is looked at first, until nothing can be better than what is kept.
//!
//! ```text
//! layout ── bound ──► its candidates ── bound ──► tight bound ──► partition, simulation
//! ```

mod branch;
#[cfg(test)]
mod tests;

use crate::bound::{layout_bound, plan_bound};
use crate::candidate::Candidate;
use crate::explain::{alternatives, limited_by};
use crate::infeasible::infeasible;
use crate::known::KnownCosts;
use crate::layers::LayerCosts;
use crate::orders::{best_of, orders};
use crate::question::Question;
use crate::sensitivity::{finalists, front};
use crate::space::LegalCandidates;
use crate::space::recompute_choices;
use crate::stages::{Staged, stage};
use crate::verdict::{Found, KEPT, PlannerError, Progress, Ranked, Search, Verdict};
pub(crate) use branch::{Explored, Goal, Seen};
use rayon::prelude::*;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;
use trainwright_sim::costs::Costs;
use trainwright_sim::{forecast, step_time_for_ranking};
use trainwright_spec::lower::messages_in_line;
use trainwright_spec::mesh::{Mesh, RankOrder};
use trainwright_spec::plan::Plan;
use trainwright_spec::units::{Bytes, Picoseconds, Seconds};

/// How far a search goes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scope {
    /// How long; none: until nothing that is left can be among the proved.
    pub time: Option<Seconds>,
    /// How many of the ranked plans are proved: no other is faster than the last of these. The rest are the best of those
    /// that were seen on the way.
    pub proved: usize,
    /// Whether it says what became of the choices that one would expect.
    pub alternatives: bool,
}

impl Scope {
    /// The best plan.
    pub const BEST: Scope = Scope { time: None, proved: 1, alternatives: false };
}

impl Default for Scope {
    fn default() -> Self {
        Self { time: None, proved: KEPT, alternatives: true }
    }
}

/// The best plans for a question. `watch` is told how far the search is, from several threads.
///
/// # Errors
/// `NoCandidate` if no combination of choices is legal, `BadPin` for a pin that means nothing; what does not fit in
/// memory is a verdict, not an error.
pub fn plan(question: &Question, watch: &(dyn Fn(Progress) + Sync)) -> Result<Verdict, PlannerError> {
    plan_within(question, Scope::default(), watch)
}

/// The same as far as `scope` goes: what has been found when the time is up. Only that depends on how fast the machine is.
///
/// # Errors
/// As `plan`.
pub fn plan_within(
    question: &Question,
    scope: Scope,
    watch: &(dyn Fn(Progress) + Sync),
) -> Result<Verdict, PlannerError> {
    let began = Instant::now();
    let out_of_time = || scope.time.is_some_and(|limit| began.elapsed().as_secs_f64() > limit.get());
    if !question.cluster.is_mixed() {
        return plan_in_order(question, scope, &out_of_time, watch);
    }
    let answer = |ordered: Question| {
        let answer = plan_in_order(&ordered, scope, &out_of_time, watch);
        (ordered.cluster, answer)
    };
    best_of(orders(question).into_iter().map(answer).collect())
}

/// The answer with the nodes in the order in which they stand.
fn plan_in_order(
    question: &Question,
    scope: Scope,
    out_of_time: &(dyn Fn() -> bool + Sync),
    watch: &(dyn Fn(Progress) + Sync),
) -> Result<Verdict, PlannerError> {
    let space = match Space::within(question, out_of_time, watch)? {
        Ok(space) => space,
        Err(search) => return Ok(Verdict::OutOfTime(search)),
    };
    let goal =
        Goal { keep: scope.proved, layouts: &|_| true, candidates: &|_| true, looks: None, out_of_time };
    let explored = space.explore(&goal, watch)?;
    let search = space.search(&explored);
    let mut best: Vec<&Seen> = explored.seen.iter().filter(|seen| seen.time().is_some()).collect();
    // Stable: of equal times, the one that was more hopeful comes first.
    best.sort_by_key(|seen| seen.time());
    best.truncate(KEPT);
    if best.is_empty() {
        return match &space.legal.left_out {
            _ if search.unseen > 0 => Ok(Verdict::OutOfTime(search)),
            Some(why) => {
                Err(PlannerError::NoCandidate { reason: format!("{why}, and nothing with fewer fits") })
            }
            None => Ok(Verdict::Infeasible(infeasible(&space, &explored, search))),
        };
    }
    let done = AtomicUsize::new(0);
    let mut ranked = best
        .par_iter()
        .filter_map(|seen| match &seen.trial {
            Trial::Simulated { plan, estimate, .. } => Some((seen.candidate, plan.as_ref(), *estimate)),
            Trial::OutOfMemory { .. } | Trial::TooSlow | Trial::Undecided => None,
        })
        .map(|(candidate, plan, estimate)| {
            let (forecast, _) = forecast(plan, &space.costs)?;
            let limited_by = limited_by(&forecast);
            let done = 1 + done.fetch_add(1, Ordering::Relaxed);
            watch(Progress { phase: "simulations", done, total: best.len() });
            Ok((candidate, Ranked { plan: plan.clone(), forecast, estimate, limited_by }))
        })
        .collect::<Result<Vec<(Candidate, Ranked)>, PlannerError>>()?;
    // Long steps were extrapolated to rank them; the forecasts are of the whole steps.
    ranked.sort_by_key(|(_, plan)| Picoseconds::from(plan.forecast.step_time));
    let winner = ranked[0].0;
    let alternatives = match !scope.alternatives || out_of_time() {
        true => Vec::new(),
        false => alternatives(&space, &explored, &winner, &ranked[0].1)?,
    };
    let ranked = ranked.into_iter().map(|(_, plan)| plan).collect();
    let (front, finalists) = (front(&explored, &space.costs)?, finalists(&explored));
    Ok(Verdict::Found(Found { ranked, alternatives, front, finalists, search }))
}

/// The bounds of a question's candidates alone, on one thread: for measuring how fast they are.
pub struct Bounds<'a>(Space<'a>);

impl<'a> Bounds<'a> {
    /// Prepares them.
    ///
    /// # Errors
    /// As `plan`.
    pub fn of(question: &'a Question) -> Result<Self, PlannerError> {
        Ok(Self(Space::new(question)?))
    }

    /// Evaluates those of time and memory of `count` candidates or more, or of all; returns of how many.
    pub fn evaluate(&self, count: usize) -> usize {
        let mut plan = self.0.legal.layouts[0].plan(self.0.question, Vec::new());
        let mut evaluated = 0;
        for layout in &self.0.legal.layouts {
            for candidate in self.0.legal.candidates(layout) {
                std::hint::black_box(self.0.limits(&candidate, &mut plan));
                evaluated += 1;
            }
            if evaluated >= count {
                break;
            }
        }
        evaluated
    }
}

/// All layouts with their bounds.
pub(crate) struct Space<'a> {
    pub question: &'a Question,
    pub costs: KnownCosts<'a>,
    pub legal: LegalCandidates<'a>,
    pub layers: LayerCosts,
    /// No step with the layout is faster.
    pub bounds: Vec<Seconds>,
    /// Whether there are several orders of ranks.
    ordered: bool,
    /// What came of candidates that differ in the order of ranks alone.
    twins: Mutex<HashMap<String, Arc<OnceLock<Staged>>>>,
}

impl<'a> Space<'a> {
    /// Prepares a search, as long as that takes.
    ///
    /// # Errors
    /// As `plan`.
    pub fn new(question: &'a Question) -> Result<Self, PlannerError> {
        Ok(Self::within(question, &|| false, &|_| {})?.expect("there is no limit"))
    }

    /// The same, or how far it came, if the time is up before.
    fn within(
        question: &'a Question,
        out_of_time: &(dyn Fn() -> bool + Sync),
        watch: &(dyn Fn(Progress) + Sync),
    ) -> Result<Result<Self, Search>, PlannerError> {
        let costs = KnownCosts::new(&question.cluster);
        let legal = LegalCandidates::of(question)?;
        let total = legal.layouts.len();
        watch(Progress { phase: "bounds", done: 0, total });
        let Some(layers) = LayerCosts::within(question, &legal.layouts, &costs, out_of_time)? else {
            let candidates = legal.layouts.iter().map(|layout| legal.count(layout)).sum();
            return Ok(Err(Search {
                layouts: total,
                candidates,
                plans_log10: plans_log10(question, &legal),
                unseen: candidates,
                ..Search::default()
            }));
        };
        let bound = |layout: &Candidate| layout_bound(question, layout, layers.of(layout));
        let bounds = legal.layouts.par_iter().map(bound).collect();
        watch(Progress { phase: "bounds", done: total, total });
        let ordered = legal.layouts.iter().any(|layout| !layout.mesh.order.is_default());
        Ok(Ok(Self { question, costs, legal, layers, bounds, ordered, twins: Mutex::default() }))
    }

    /// Solves and simulates a candidate.
    pub fn trial(&self, candidate: &Candidate) -> Result<Trial, PlannerError> {
        self.trial_below(candidate, None)
    }

    /// The same, but for the simulation if that cannot take less than `most`.
    pub fn trial_below(&self, candidate: &Candidate, most: Option<Seconds>) -> Result<Trial, PlannerError> {
        let staged = self.staged(candidate);
        if let (Staged::Plan(plan, _), Some(most)) = (&staged, most)
            && plan_bound(self.question, candidate, plan, &self.layers, &self.costs) >= most
        {
            return Ok(Trial::TooSlow);
        }
        trial(staged, &self.costs)
    }

    /// The candidate's best stages: those of the one with the other order of ranks, where nothing that they depend on differs.
    fn staged(&self, candidate: &Candidate) -> Staged {
        let mesh = Mesh { order: RankOrder::default(), ..candidate.mesh };
        let usual = Candidate { mesh, ..*candidate };
        let in_line = messages_in_line(&candidate.plan(self.question, Vec::new())).is_some();
        let elsewhere = in_line || !candidate.offload.is_none() || self.question.cluster.is_mixed();
        if !self.ordered || elsewhere || !LayerCosts::are_alike(&usual, candidate) {
            return stage(self.question, candidate, &self.layers, &self.costs);
        }
        let mut twins = self.twins.lock().expect("no holder of the lock panics");
        let own = twins.entry(format!("{usual:?}")).or_default().clone();
        drop(twins);
        let found = own.get_or_init(|| stage(self.question, candidate, &self.layers, &self.costs));
        match found.clone() {
            Staged::Plan(plan, estimate) => {
                Staged::Plan(Box::new(Plan { mesh: candidate.mesh, ..*plan }), estimate)
            }
            other => other,
        }
    }

    /// What a whole search comes to.
    pub fn search(&self, explored: &Explored) -> Search {
        let count = |kind: fn(&Trial) -> bool| explored.seen.iter().filter(|seen| kind(&seen.trial)).count();
        let candidates = self.legal.layouts.iter().map(|layout| self.legal.count(layout)).sum();
        let solved_out = count(|trial| matches!(trial, Trial::OutOfMemory { .. }));
        let too_slow = count(|trial| matches!(trial, Trial::TooSlow));
        let solved = explored.seen.len();
        let out_of_memory = explored.state_out_of_memory + explored.crowded + solved_out;
        let rest = candidates - (out_of_memory + solved - solved_out);
        Search {
            layouts: self.legal.layouts.len(),
            candidates,
            plans_log10: plans_log10(self.question, &self.legal),
            out_of_memory,
            state_out_of_memory: explored.state_out_of_memory,
            bounded_out: too_slow + if explored.ended { rest } else { 0 },
            solved,
            simulated: count(|trial| matches!(trial, Trial::Simulated { .. })),
            unseen: if explored.ended { 0 } else { rest },
            bound: explored.bound,
        }
    }
}

/// The decimal logarithm of Σ C(L − 1, S − 1) Rᴸ over all candidates: S stages of L blocks, one or more each, and R
/// recompute choices for each block.
fn plans_log10(question: &Question, legal: &LegalCandidates) -> f64 {
    let layers = question.model.layers();
    let mut splits = vec![0.0; layers];
    for number in 1..layers {
        splits[number] = splits[number - 1] + ((layers - number) as f64 / number as f64).log10();
    }
    let mut of_stages = vec![0usize; layers + 1];
    for stages in legal.layouts.iter().flat_map(|layout| legal.stages(layout)) {
        of_stages[stages] += 1;
    }
    let logs = (1..=layers).filter(|stages| of_stages[*stages] > 0);
    let logs: Vec<f64> = logs.map(|stages| (of_stages[stages] as f64).log10() + splits[stages - 1]).collect();
    let largest = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logs.iter().map(|log| 10f64.powf(log - largest)).sum();
    largest + sum.log10() + layers as f64 * (recompute_choices(question).len() as f64).log10()
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
#[derive(Debug)]
pub(crate) enum Trial {
    /// Its best plan by the integer program's estimate, and that plan's simulated time.
    Simulated { plan: Box<Plan>, estimate: Seconds, time: Picoseconds },
    /// It does not fit.
    OutOfMemory { rank: usize, needs: Bytes, has: Bytes },
    /// Its best plan by that estimate cannot be fast enough.
    TooSlow,
    /// The solver gave up.
    Undecided,
}
