//! Forecasts of the plans that a search has found, op by op: the figures that `simulate` gives of the same plans.

use super::clock::Clock;
use crate::candidate::Candidate;
use crate::explain::limited_by;
use crate::explore::{Explored, SearchSpace, Seen, Trial, unless_stopped};
use crate::verdict::{KEPT, PlannerError, Progress, Ranked};
use rayon::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use trainwright_sim::{Detail, Stop, forecast_until};
use trainwright_timeline::actions::outline;

/// The fastest plans with their forecasts, the fastest by its simulated time first: all of the `KEPT` fastest, or the fastest and
/// those others that the time suffices for.
pub(super) fn ranked(
    space: &SearchSpace,
    explored: &Explored,
    clock: &Clock,
    watch: &(dyn Fn(Progress) + Sync),
) -> Result<Vec<(Candidate, Ranked)>, PlannerError> {
    let mut best = by_time(&explored.seen);
    best.truncate(KEPT);
    let Some(fastest) = best.first() else { return Ok(Vec::new()) };
    let done = AtomicUsize::new(0);
    let forecasts = best.par_iter().enumerate().filter_map(|(index, seen)| {
        // A second at most, for a step of millions of ops.
        let forecast = forecast(space, seen, &|| index > 0 && clock.is_over()).transpose()?;
        let done = 1 + done.fetch_add(1, Ordering::Relaxed);
        let time = fastest.time().map(Into::into);
        let progress = Progress::of("simulations", done, best.len());
        watch(Progress { best: time, bound: explored.bound, ..progress });
        Some(forecast)
    });
    forecasts.collect()
}

/// The simulated ones, the fastest first; of equal times, the one with the lower bound.
fn by_time(seen: &[Seen]) -> Vec<&Seen> {
    let mut simulated: Vec<&Seen> = seen.iter().filter(|seen| seen.time().is_some()).collect();
    simulated.sort_by_key(|seen| seen.time());
    simulated
}

/// A simulated plan with its forecast; `None` if it was stopped, or was not simulated.
fn forecast(
    space: &SearchSpace,
    seen: &Seen,
    stop: Stop,
) -> Result<Option<(Candidate, Ranked)>, PlannerError> {
    let Trial::Simulated { plan, estimate, .. } = &seen.trial else { return Ok(None) };
    let simulated = forecast_until(plan, &space.model().costs, Detail::Ops, stop);
    let Some((forecast, timeline)) = unless_stopped(simulated)? else { return Ok(None) };
    let outlook = *space.model().outlook(&seen.candidate);
    let ranked = Ranked {
        plan: plan.as_ref().clone(),
        expected: outlook.expected(forecast.step_time),
        estimate: *estimate,
        limited_by: limited_by(&(&forecast).into()),
        outline: outline(&timeline),
        forecast,
        outlook,
    };
    Ok(Some((seen.candidate, ranked)))
}
