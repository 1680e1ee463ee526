//! Why the choices that one would expect lost.

use super::bottleneck::limited_by;
use super::expected_choices::{Choice, expected_choices};
use crate::candidate::Candidate;
use crate::cost::CostModel;
use crate::explore::{Explored, Goal, Looks, SearchSpace, Seen, Trial, simulate, unless_stopped};
use crate::stages::{MemoryLimits, Staged, stage};
use crate::verdict::{Alternative, PlannerError, Ranked};
use rayon::prelude::*;
use trainwright_sim::{Detail, Stop, TimeForecast, time_forecast_until};
use trainwright_spec::plan::{Plan, Recompute, StageBlocks};
use trainwright_spec::units::{Bytes, Picoseconds, Seconds};

/// How many candidates with a choice are solved, by increasing lower bound, when the search solved none of them; and how many
/// are simulated when it simulated none.
const LOOKS: usize = 4;

/// What became of the expected choices that the best plan did not make; of as many as the time suffices for.
///
/// Each plan that a choice leads to is forecast once, and not again if it is one of `ranked`, of which the first is the best.
pub(crate) fn alternatives(
    space: &SearchSpace,
    explored: &Explored,
    winner: &Candidate,
    ranked: &[&Ranked],
    out_of_time: Stop,
) -> Result<Vec<Alternative>, PlannerError> {
    let best = ranked[0];
    let choices = expected_choices(space.question(), *winner, &best.plan);
    let judge = |choice: &Choice| match out_of_time() {
        true => Ok(None),
        // A look that was cut short proves nothing.
        false => Ok(judge(space, explored, choice, &best.plan, out_of_time)?.filter(|_| !out_of_time())),
    };
    let judged: Result<Vec<Option<Outcome>>, PlannerError> = choices.par_iter().map(judge).collect();
    let judged = judged?;

    let known = |plan: &Plan| ranked.iter().find(|ranked| ranked.plan == *plan);
    let mut plans: Vec<&Plan> = Vec::new();
    for outcome in judged.iter().flatten() {
        if let Outcome::Slower(plan, _) = outcome
            && known(plan).is_none()
            && !plans.contains(&&**plan)
        {
            plans.push(plan);
        }
    }
    let forecast = |plan: &&Plan| {
        unless_stopped(time_forecast_until(plan, &space.model().costs, Detail::Ops, out_of_time))
    };
    let forecasts: Result<Vec<Option<TimeForecast>>, PlannerError> = plans.par_iter().map(forecast).collect();
    let forecasts = forecasts?;
    let forecast_of = |plan: &Plan| match known(plan) {
        Some(ranked) => Some((&ranked.forecast).into()),
        None => plans.iter().position(|known| **known == *plan).and_then(|index| forecasts[index]),
    };

    let words = |(choice, outcome): (&Choice, &Option<Outcome>)| {
        let reason = match outcome.as_ref()? {
            Outcome::Slower(plan, expected) => {
                let expected = Seconds::from(*expected);
                let forecast: TimeForecast = forecast_of(plan)?;
                let slower = 100.0 * (expected / best.expected - 1.0);
                let of_its_kind = match *space.model().outlook_of(plan) == best.outlook {
                    true => String::new(),
                    false => format!(" ({expected} expected)"),
                };
                format!("{}{of_its_kind}, {slower:+.1} %: {}", forecast.step_time, limited_by(&forecast))
            }
            Outcome::DoesNotFit(reason) => reason.clone(),
        };
        Some(Alternative { choice: choice.words.clone(), reason })
    };
    Ok(choices.iter().zip(&judged).filter_map(words).collect())
}

/// What a choice leads to.
enum Outcome {
    /// A plan, and the time by which it is compared.
    Slower(Box<Plan>, Picoseconds),
    /// Why there is none, in words.
    DoesNotFit(String),
}

/// What a choice leads to; `None` if no candidate makes it.
fn judge(
    space: &SearchSpace,
    explored: &Explored,
    choice: &Choice,
    best: &Plan,
    out_of_time: Stop,
) -> Result<Option<Outcome>, PlannerError> {
    let makes =
        |candidate: &Candidate| (choice.layouts)(&candidate.layout()) && (choice.candidates)(candidate);
    let seen = || explored.seen.iter().filter(|seen| makes(&seen.candidate));
    let looked = match choice.recompute {
        Some(recompute) => {
            let made: Vec<Candidate> = seen().map(|seen| seen.candidate).collect();
            let mut trials = with_recompute(space.model(), &made, recompute, out_of_time)?;
            for candidate in &made {
                trials.extend(in_same_stages(space, candidate, best, recompute, out_of_time)?);
            }
            Looked { trials, infeasible_state: None }
        }
        None => {
            let trials = simulate_dropped(space, seen(), out_of_time)?;
            match trials.is_empty() && seen().all(|seen| seen.trial.simulated().is_none()) {
                true => look(space, choice, seen().next().is_none(), out_of_time)?,
                false => Looked { trials, infeasible_state: None },
            }
        }
    };
    let known = seen().map(|seen| &seen.trial).filter(|_| choice.recompute.is_none());
    let trials: Vec<&Trial> = known.chain(&looked.trials).collect();
    let shortages = trials.iter().filter_map(|trial| trial.shortage());
    let fastest = trials.iter().filter_map(|trial| trial.simulated()).min_by_key(|(_, time)| *time);
    if let Some((plan, expected)) = fastest {
        return Ok(Some(Outcome::Slower(Box::new(plan.clone()), expected)));
    }
    let reason = if let Some(least) = shortages.min_by(|a, b| a.ratio().total_cmp(&b.ratio())) {
        does_not_fit(&format!("{} needs", least.who()), least.needs, least.has)
    } else if let Some((needs, candidate)) = looked.infeasible_state {
        let has = space.mean_room(&candidate);
        let words = does_not_fit("weights, gradients and optimizer alone need", needs, has);
        format!("{words} ({})", candidate.words())
    } else {
        return Ok(None);
    };
    Ok(Some(Outcome::DoesNotFit(reason)))
}

fn does_not_fit(who_needs: &str, needs: Bytes, has: Bytes) -> String {
    format!("does not fit: {who_needs} {:.1} of {:.1} GiB", needs.as_gib(), has.as_gib())
}

/// Simulates plans that the search dropped by their bounds: those with the lowest bounds that may be faster than the fastest that
/// it simulated.
fn simulate_dropped<'a>(
    space: &SearchSpace,
    seen: impl Iterator<Item = &'a Seen> + Clone,
    out_of_time: Stop,
) -> Result<Vec<Trial>, PlannerError> {
    let fastest = seen.clone().filter_map(Seen::time).min().map(Seconds::from);
    let dropped = seen.filter_map(|seen| match &seen.trial {
        Trial::TooSlow(stages) => {
            let plan = seen.candidate.plan(space.question(), stages.clone());
            Some((space.bound_of(&seen.candidate, &plan), seen.candidate, plan))
        }
        Trial::Simulated { .. } | Trial::OutOfMemory(_) | Trial::Undecided => None,
    });
    let mut dropped: Vec<(Seconds, Candidate, Plan)> =
        dropped.filter(|(bound, ..)| fastest.is_none_or(|fastest| *bound < fastest)).collect();
    dropped.sort_by(|a, b| a.0.get().total_cmp(&b.0.get()));
    let simulated = |(bound, candidate, plan): (Seconds, Candidate, Plan)| {
        simulate(Staged::Plan(Box::new(plan), bound), space.model(), &candidate, out_of_time).transpose()
    };
    dropped.into_iter().take(LOOKS).filter_map(simulated).collect()
}

/// What another look at the candidates with a choice finds.
#[derive(Default)]
struct Looked {
    trials: Vec<Trial>,
    /// The candidate whose state alone does not fit but lacks least, and what it needs.
    infeasible_state: Option<(Bytes, Candidate)>,
}

/// Solves the first candidates that make a choice; if none can be solved and the search has `none_seen` either, one whose
/// activations do not fit, for what it lacks.
fn look(
    space: &SearchSpace,
    choice: &Choice,
    none_seen: bool,
    out_of_time: Stop,
) -> Result<Looked, PlannerError> {
    let goal = Goal {
        layouts: &*choice.layouts,
        candidates: &*choice.candidates,
        looks: Looks::UpTo(LOOKS),
        ..Goal::fastest(1, out_of_time)
    };
    let explored = space.explore(&goal, &|_| {})?;
    let states = explored.infeasible_states.values();
    let infeasible_state = states.min_by(|a, b| a.0.get().total_cmp(&b.0.get())).copied();
    let mut trials: Vec<Trial> = explored.seen.into_iter().map(|seen| seen.trial).collect();
    if let (true, Some(candidate)) = (none_seen && trials.is_empty(), explored.infeasible_activations.first())
    {
        trials.extend(space.trial(candidate, None, out_of_time)?);
    }
    Ok(Looked { trials, infeasible_state })
}

/// Simulates the best plan with one recompute choice for every block, if it fits.
fn in_same_stages(
    space: &SearchSpace,
    candidate: &Candidate,
    best: &Plan,
    recompute: Recompute,
    out_of_time: Stop,
) -> Result<Option<Trial>, PlannerError> {
    let everywhere = |stage: &StageBlocks| StageBlocks(vec![recompute; stage.0.len()]);
    let plan = Plan { stages: best.stages.iter().map(everywhere).collect(), ..best.clone() };
    if !MemoryLimits::of(space.model(), candidate, &plan).fit(&plan) {
        return Ok(None);
    }
    let bound = space.bound_of(candidate, &plan);
    simulate(Staged::Plan(Box::new(plan), bound), space.model(), candidate, out_of_time)
}

/// Solves candidates with one recompute choice for every block, as many as the time suffices for.
fn with_recompute(
    model: &CostModel,
    candidates: &[Candidate],
    recompute: Recompute,
    out_of_time: Stop,
) -> Result<Vec<Trial>, PlannerError> {
    let mut question = model.question.clone();
    question.pins.recompute = Some(recompute);
    let model = CostModel::new(&question, candidates, model.costs.clone())?;
    let trial = |candidate: &Candidate| match stage(&model, candidate, out_of_time) {
        Some(staged) => simulate(staged, &model, candidate, out_of_time).transpose(),
        None => None,
    };
    candidates.iter().filter_map(trial).collect()
}
