//! The planner from question to verdict: explores the space, forecasts the best plans, and explains them.

mod node_orders;
#[cfg(test)]
mod tests;

use crate::candidate::Candidate;
use crate::cost::CachedCosts;
use crate::explain::{alternatives, finalists, front, infeasible, limited_by};
use crate::explore::{Explored, Goal, SearchSpace, Seen, Trial, search_summary};
use crate::question::{Breadth, Pins, Question};
use crate::space::{OFFLOAD, tried_offload};
use crate::verdict::{Found, KEPT, PlannerError, Progress, Ranked, Verdict};
use node_orders::{best_of, node_orders};
use rayon::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use trainwright_sim::forecast;
use trainwright_spec::units::Seconds;

/// How far a search goes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scope {
    /// How long; `None`: until nothing that is left can be among the proved.
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

/// The best plans for a question. `watch` is called with the progress, from several threads.
///
/// # Errors
/// `NoCandidate` if no combination of choices is legal, `BadPin` for a pin that means nothing; what does not fit in
/// memory is a verdict, not an error.
pub fn plan(question: &Question, watch: &(dyn Fn(Progress) + Sync)) -> Result<Verdict, PlannerError> {
    plan_within(question, Scope::default(), watch)
}

/// The best plans as far as `scope` goes: those found when the time is up. Only a time limit makes the answer depend on the
/// speed of the machine.
///
/// # Errors
/// As `plan`.
pub fn plan_within(
    question: &Question,
    scope: Scope,
    watch: &(dyn Fn(Progress) + Sync),
) -> Result<Verdict, PlannerError> {
    let began = Instant::now();
    let clock = Clock { began, limit: scope.time };
    if !question.cluster.is_mixed() {
        return plan_in_order(question, scope, &clock, watch);
    }
    let answer = |ordered: Question| {
        let answer = plan_in_order(&ordered, scope, &clock, watch);
        (ordered.cluster, answer)
    };
    best_of(node_orders(question).into_iter().map(answer).collect())
}

/// When a search began, and how long it may take.
struct Clock {
    began: Instant,
    limit: Option<Seconds>,
}

impl Clock {
    /// Whether this part of the time is over; never without a limit.
    fn has_passed(&self, part: f64) -> bool {
        self.limit.is_some_and(|limit| self.began.elapsed().as_secs_f64() > part * limit.get())
    }
}

/// The part of the time after which a search ends, and the forecasts of what it has found begin.
const ON_SEARCH: f64 = 0.8;

/// The part of the time that a search of a wide space spends on the space that suits the model before.
const ON_NARROWER: f64 = 0.4;

/// What came of the space that suits the model, for a search of a wider one with a time limit to begin with.
fn seeds_of_narrower(
    question: &Question,
    costs: &CachedCosts,
    scope: Scope,
    clock: &Clock,
    watch: &(dyn Fn(Progress) + Sync),
) -> Result<Vec<Seen>, PlannerError> {
    let narrower =
        Question { pins: Pins { breadth: Breadth::Auto, ..question.pins.clone() }, ..question.clone() };
    let space = match SearchSpace::sharing(&narrower, costs.clone()) {
        Ok(space) => space,
        Err(PlannerError::NoCandidate { .. }) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let out_of_time = || clock.has_passed(ON_NARROWER);
    let goal = Goal::fastest(scope.proved, &out_of_time);
    Ok(space.explore_from(space.seeds()?, &goal, watch)?.seen)
}

/// The answer with the nodes in the order in which they stand.
fn plan_in_order(
    question: &Question,
    scope: Scope,
    clock: &Clock,
    watch: &(dyn Fn(Progress) + Sync),
) -> Result<Verdict, PlannerError> {
    let costs = CachedCosts::new(&question.cluster);
    let is_wide = matches!(question.pins.breadth, Breadth::Usual | Breadth::Whole);
    let seeds = match (clock.limit, is_wide) {
        (Some(_), true) => seeds_of_narrower(question, &costs, scope, clock, watch)?,
        _ => Vec::new(),
    };
    let space = SearchSpace::sharing(question, costs)?;
    let seeds = match (clock.limit, seeds.is_empty()) {
        (Some(_), true) => space.seeds()?,
        _ => space.own(seeds),
    };
    let out_of_time = || clock.has_passed(1.0);
    let searched = || clock.has_passed(ON_SEARCH);
    let goal = Goal::fastest(scope.proved, &searched);
    let mut explored = space.explore_from(seeds, &goal, watch)?;
    // The way to the fastest plan may lead over some that are slower than the fastest so far.
    space.improve(&mut explored, scope.proved.max(KEPT), &searched)?;
    let search = search_summary(question, &space.legal, &explored);
    let (ranked, tied) = ranked(&space, &explored, &out_of_time, watch)?;
    let Some((winner, best)) = ranked.first() else {
        return match &space.legal.left_out {
            _ if search.unseen > 0 => Ok(Verdict::OutOfTime(search)),
            Some(why) => {
                Err(PlannerError::NoCandidate { reason: format!("{why}, and nothing with fewer fits") })
            }
            None => match with_offload(question) {
                Some(wider) => match plan_in_order(&wider, scope, clock, watch)? {
                    Verdict::Infeasible(_) => Ok(Verdict::Infeasible(infeasible(&space, &explored, search))),
                    verdict => Ok(verdict),
                },
                None => Ok(Verdict::Infeasible(infeasible(&space, &explored, search))),
            },
        };
    };
    let alternatives = match !scope.alternatives || out_of_time() {
        true => Vec::new(),
        false => alternatives(&space, &explored, winner, best, &out_of_time)?,
    };
    let ranked = ranked.into_iter().map(|(_, plan)| plan).collect();
    let (front, finalists) = (front(&explored, space.model())?, finalists(&explored, space.model()));
    Ok(Verdict::Found(Found { ranked, tied, alternatives, front, finalists, search }))
}

/// The question with offload, if it asks for what suits the model and leaves that choice to the planner.
fn with_offload(question: &Question) -> Option<Question> {
    let free = question.pins.pinned(OFFLOAD).is_none();
    let suits = question.pins.breadth == Breadth::Auto && question.cluster.node.processors.is_some();
    let mut wider = question.clone();
    let tried = tried_offload().filter(|kind| !question.pins.forbids(OFFLOAD, kind));
    wider.pins.only.extend(tried.map(|kind| (OFFLOAD.to_string(), kind.to_string())));
    (free && suits && wider.pins != question.pins).then_some(wider)
}

/// The fastest simulated plans with their forecasts by expected time, and how many of the first cannot be told apart. When the
/// time is up, no forecast but that of the fastest is begun.
fn ranked(
    space: &SearchSpace,
    explored: &Explored,
    out_of_time: &(dyn Fn() -> bool + Sync),
    watch: &(dyn Fn(Progress) + Sync),
) -> Result<(Vec<(Candidate, Ranked)>, usize), PlannerError> {
    let mut best: Vec<&Seen> = explored.seen.iter().filter(|seen| seen.time().is_some()).collect();
    // Stable: of equal times, the one with the lower bound comes first.
    best.sort_by_key(|seen| seen.time());
    best.truncate(KEPT);
    let done = AtomicUsize::new(0);
    let mut ranked = best
        .par_iter()
        .enumerate()
        .filter(|(place, _)| *place == 0 || !out_of_time())
        .filter_map(|(_, seen)| match &seen.trial {
            Trial::Simulated { plan, estimate, .. } => Some((seen.candidate, plan.as_ref(), *estimate)),
            Trial::OutOfMemory(_) | Trial::TooSlow(_) | Trial::Undecided => None,
        })
        .map(|(candidate, plan, estimate)| {
            let (forecast, _) = forecast(plan, &space.model().costs)?;
            let limited_by = limited_by(&forecast);
            let done = 1 + done.fetch_add(1, Ordering::Relaxed);
            watch(Progress { phase: "simulations", done, total: best.len() });
            let outlook = *space.model().outlook(&candidate);
            let expected = outlook.expected(forecast.step_time);
            let plan = plan.clone();
            Ok((candidate, Ranked { plan, forecast, expected, estimate, limited_by, outlook }))
        })
        .collect::<Result<Vec<(Candidate, Ranked)>, PlannerError>>()?;
    // Long steps were extrapolated to rank them; the forecasts are of the whole steps.
    let tied = Ranked::sort(&mut ranked, |(_, plan)| plan);
    Ok((ranked, tied))
}

/// The bounds of a question's candidates alone, on one thread: for measuring how fast they are.
pub struct Bounds<'a>(SearchSpace<'a>);

impl<'a> Bounds<'a> {
    /// Prepares them.
    ///
    /// # Errors
    /// As `plan`.
    pub fn of(question: &'a Question) -> Result<Self, PlannerError> {
        Ok(Self(SearchSpace::new(question)?))
    }

    /// Evaluates those of time and memory of `count` candidates or more, or of all; returns of how many.
    pub fn evaluate(&self, count: usize) -> usize {
        let mut plan = self.0.any_plan();
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
