//! The planner from question to verdict: explores the space, forecasts the best plans, and explains them.

mod clock;
mod fewer_nodes;
mod forecasts;
mod node_orders;
#[cfg(test)]
mod tests;

use crate::candidate::Candidate;
use crate::cost::CachedCosts;
use crate::explain::{alternatives, broken, finalists, front, infeasible};
use crate::explore::{Goal, Looks, SearchSpace, Seen, search_summary};
use crate::question::{Breadth, Pins, Question};
use crate::space::{OFFLOAD, tried_offload};
use crate::verdict::{Finalist, Found, KEPT, PlannerError, Progress, Ranked, Verdict};
pub(crate) use clock::Clock;
use fewer_nodes::plan_up_to;
use forecasts::ranked;
use node_orders::{best_of, node_orders};
use trainwright_sim::Stop;
use trainwright_spec::units::Seconds;

/// How far a search goes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scope {
    /// How long; `None`: until nothing that is left can be among the proved. Zero: until there is a plan, however long that
    /// takes. Forecasts of the plans are part of the time.
    pub time: Option<Seconds>,
    /// How many of the ranked plans are proved: no other with the first one's number of nodes is faster than the last of these.
    /// The rest are the best of those that were seen on the way.
    pub proved: usize,
    /// Whether it says what became of the choices that one would expect and which plans save memory, and proves a closer bound
    /// than the search needs.
    pub explained: bool,
    /// Which nodes plans use.
    pub nodes: Nodes,
}

/// Which nodes of a cluster plans use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nodes {
    /// All.
    All,
    /// All, or the first of them where a plan with fewer is faster. Nodes of several kinds are all used.
    UpToAll,
}

impl Scope {
    /// The best plan, which is that of the default with all nodes: what is improved are the fastest plans that a search has seen, so
    /// that one with less to prove may end with another best.
    pub const BEST: Scope = Scope { time: None, proved: KEPT, explained: false, nodes: Nodes::All };
}

impl Default for Scope {
    fn default() -> Self {
        Self { time: None, proved: KEPT, explained: true, nodes: Nodes::All }
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
    plan_until(question, scope, &|| false, watch)
}

/// The same, unless it is stopped before: then the best plans so far. `stop` is asked often, from several threads; once it
/// says so, it must go on saying so.
///
/// # Errors
/// As `plan`.
pub fn plan_until(
    question: &Question,
    scope: Scope,
    stop: Stop,
    watch: &(dyn Fn(Progress) + Sync),
) -> Result<Verdict, PlannerError> {
    let clock = Clock::new(scope.time, stop);
    let watch = |progress: Progress| watch(Progress { left: clock.left(), ..progress });
    let fewer = scope.nodes == Nodes::UpToAll && question.cluster.nodes > 1;
    if fewer && !question.cluster.is_mixed() {
        return plan_up_to(question, scope, &clock, &watch);
    }
    if !question.cluster.is_mixed() {
        return plan_in_order(question, scope, &clock, &watch);
    }
    let orders = node_orders(question);
    let shares = (1..=orders.len()).rev();
    let answer = |(ordered, left): (Question, usize)| {
        let answer = plan_in_order(&ordered, scope, &clock.share(left), &watch);
        (ordered.cluster, answer)
    };
    best_of(orders.into_iter().zip(shares).map(answer).collect())
}

/// What came of the space that suits the model, with its fastest plans improved, for a search of a wider one to begin with: the
/// answer of that is then no slower. A way over neighbours that the narrower search goes may not begin with any of the fastest
/// plans of the wider one.
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
    let out_of_time = || clock.ends_narrower();
    let goal = Goal::fastest(scope.proved, &out_of_time);
    let (goal, seeds) = match clock.is_limited() {
        true => (goal.in_time(), space.seeds(&|| clock.ends_first_plan())?),
        false => (goal, Vec::new()),
    };
    let mut explored = space.explore_from(seeds, &goal, watch)?;
    space.improve(&mut explored, scope.proved.max(KEPT), &out_of_time)?;
    Ok(explored.seen)
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
    let seeds = match is_wide && !clock.seeks_first_plan() {
        true => seeds_of_narrower(question, &costs, scope, clock, watch)?,
        false => Vec::new(),
    };
    let space = SearchSpace::sharing(question, costs)?;
    let seeds = space.own(seeds);
    let seeds = match clock.is_limited() && seeds.iter().all(|seed| seed.time().is_none()) {
        true => space.seeds(&|| clock.ends_first_plan())?,
        false => seeds,
    };
    let seeds = match clock.is_limited() && space.has_unlike_ranks() {
        true => space.explore_alike_ranks(seeds, scope.proved, &|| clock.ends_narrower(), watch)?,
        false => seeds,
    };
    let out_of_time = || clock.is_over();
    let searched = || clock.ends_search();
    let unplanned = || clock.ends_first_plan();
    let goal = match clock.seeks_first_plan() && seeds.iter().all(|seed| seed.time().is_none()) {
        // However long it takes, until a plan fits.
        true => {
            Goal { looks: Looks::UpToFirstFit(usize::MAX), tight_up_to: 0, ..Goal::fastest(1, &unplanned) }
        }
        false if clock.is_limited() => Goal::fastest(scope.proved, &searched).in_time(),
        false => Goal::fastest(scope.proved, &searched),
    };
    let mut explored = space.explore_from(seeds, &goal, watch)?;
    if clock.is_stopped() && !explored.ended && explored.seen.iter().all(|seen| seen.time().is_none()) {
        // Who stops a search wants an answer.
        let seeds = space.seeds(&|| false)?.into_iter();
        explored.seen.extend(seeds.filter(|seed| seed.time().is_some()));
    }
    // The way to the fastest plan may lead over some that are slower than the fastest so far.
    space.improve(&mut explored, scope.proved.max(KEPT), &searched)?;
    if explored.ended && scope.explained {
        space.prove_more(&mut explored, &searched);
    }
    let search = search_summary(question, &space.legal, &explored);
    let mut ranked = ranked(&space, &explored, clock, watch)?;
    // Long steps were extrapolated to rank them; the forecasts are of the whole steps.
    let tied = Ranked::sort(&mut ranked, |(_, plan)| plan);
    let nothing_fits = |search| infeasible(&space, &explored, search, &out_of_time);
    let Some((winner, _)) = ranked.first() else {
        return match &space.legal.left_out {
            _ if search.unseen > 0 => Ok(Verdict::OutOfTime(search)),
            Some(why) => {
                Err(PlannerError::NoCandidate { reason: format!("{why}, and nothing with fewer fits") })
            }
            None => match with_offload(question) {
                Some(wider) => match plan_in_order(&wider, scope, clock, watch)? {
                    Verdict::Infeasible(wider) => {
                        Ok(Verdict::Infeasible(nothing_fits(search).with_wider(wider)))
                    }
                    verdict => Ok(verdict),
                },
                None => Ok(Verdict::Infeasible(nothing_fits(search))),
            },
        };
    };
    let alternatives = match !scope.explained || out_of_time() {
        true => Vec::new(),
        false => {
            let plans: Vec<&Ranked> = ranked.iter().map(|(_, plan)| plan).collect();
            alternatives(&space, &explored, winner, &plans, &out_of_time)?
        }
    };
    let ranked: Vec<Ranked> = ranked.into_iter().map(|(_, plan)| plan).collect();
    let front = match scope.explained {
        true => front(&explored, space.model(), &ranked, &out_of_time)?,
        false => Vec::new(),
    };
    let finalists = finalists(&explored, space.model());
    Ok(Verdict::Found(Found { ranked, tied, alternatives, front, finalists, nodes: None, search }))
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

/// What a part of a larger question has.
#[derive(Clone)]
pub(crate) enum PartAnswer {
    /// The fastest simulated plans of different meshes, the fastest first. Empty if a cutoff excludes all that fit.
    Plans(Vec<Finalist>),
    /// Nothing fits: the plan that comes closest needs this many times the memory that it may use, without end if none is known.
    Short(f64),
}

/// How well a part is planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effort {
    /// The stages are those of the integer program.
    Quick,
    /// As `plan` does.
    Whole,
}

/// An upper limit on the step time of plans of a part, from the best answer known for the whole question.
#[derive(Clone, Copy)]
pub(crate) struct Cutoff<'a> {
    /// The candidates to which it applies.
    pub applies_to: &'a (dyn Fn(&Candidate) -> bool + Sync),
    /// Forward passes over the microbatches that are counted in addition to the step.
    pub forwards: f64,
    /// Step and forward passes together take less than this; infinite without a limit.
    pub below: Seconds,
}

impl Cutoff<'_> {
    /// The limit as an expected step time of a candidate.
    ///
    /// t_max = (T − f m F / p) q
    ///
    /// T the time, f forward passes of m microbatches over p pipeline ranks, F the forward times of all layers for a microbatch: the
    /// busiest of the ranks has 1 / p of them or more. q the expected ratio of measured to forecast time.
    fn expected_below(&self, space: &SearchSpace, candidate: &Candidate) -> Seconds {
        if self.below.get().is_infinite() || !(self.applies_to)(candidate) {
            return Seconds::new(f64::INFINITY);
        }
        let question = space.question();
        let shape = candidate.shape(question.job.global_batch);
        let of_microbatch = space.model().of(candidate).forward_time(question);
        let forward = of_microbatch * (shape.microbatches as f64 / shape.ranks as f64);
        space.model().outlook(candidate).expected(self.below - self.forwards * forward * CLOCK)
    }

    /// The same of any candidate.
    fn expected_below_any(&self, space: &SearchSpace) -> Option<Seconds> {
        let times = space.legal.layouts.iter().map(|layout| space.model().outlook(layout).time);
        let most = times.fold(0.0, f64::max);
        let all = self.below.get().is_finite() && space.legal.layouts.iter().all(self.applies_to);
        all.then(|| self.below * most)
    }
}

/// What is left of a lower bound for the rounding of the simulator's clock, which is in whole picoseconds.
const CLOCK: f64 = 1.0 - 1e-6;

/// The fastest plans with all nodes, for questions that have this one as a part. With the whole effort the first has the step time
/// of `plan`'s fastest; the others are of those that were simulated on the way. Plans beyond the cutoff may be missing.
///
/// # Errors
/// As `plan`.
pub(crate) fn plan_part(
    question: &Question,
    effort: Effort,
    cutoff: Cutoff,
    costs: CachedCosts,
    stop: Stop,
) -> Result<PartAnswer, PlannerError> {
    let space = SearchSpace::sharing(question, costs)?;
    let proved = if effort == Effort::Whole { KEPT } else { 1 };
    let below = |candidate: &Candidate| cutoff.expected_below(&space, candidate);
    let goal = Goal { cutoff: &below, ..Goal::fastest(proved, stop) };
    let most = cutoff.expected_below_any(&space);
    let mut explored = space.explore_below(most, Vec::new(), &goal, &|_| {})?;
    if effort == Effort::Whole {
        space.improve(&mut explored, KEPT, stop)?;
    }
    if cutoff.below.get().is_finite() {
        let is_below =
            |seen: &Seen| seen.time().is_some_and(|time| Seconds::from(time) < below(&seen.candidate));
        explored.seen.retain(is_below);
        return Ok(PartAnswer::Plans(finalists(&explored, space.model())));
    }
    let plans = finalists(&explored, space.model());
    if !plans.is_empty() {
        return Ok(PartAnswer::Plans(plans));
    }
    let short = broken(&space, &explored, stop).into_iter().map(|broken| broken.needs / broken.has);
    Ok(PartAnswer::Short(short.fold(f64::INFINITY, f64::min)))
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
            for candidate in self.0.legal.candidates(layout).iter() {
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
