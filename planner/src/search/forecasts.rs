//! Forecasts of the plans that a search has found, as precise as the time allows.
//!
//! ```text
//! search ends ─► call by call ─► op by op ─► the same figures as without a limit
//!                    │ stopped       └ stopped: call by call for all, so that the plans can be compared
//!                    └─► the first plan of the search, whose forecast was made when it was found
//! ```

use super::clock::Clock;
use crate::candidate::Candidate;
use crate::explain::limited_by;
use crate::explore::{Explored, SearchSpace, Seen, Trial, unless_stopped};
use crate::verdict::{KEPT, PlannerError, Progress, Ranked};
use rayon::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use trainwright_sim::{Detail, Stop, forecast_until};
use trainwright_timeline::actions::outline;

/// The forecast of the fastest of the plans that a search begins with, to have one whenever time is up. `None` if there is
/// no plan, or it was stopped.
pub(super) fn first_forecast(
    space: &SearchSpace,
    seeds: &[Seen],
    stop: Stop,
) -> Result<Option<(Candidate, Ranked)>, PlannerError> {
    match by_time(seeds).first() {
        Some(seen) => forecast(space, seen, Detail::Calls, stop),
        None => Ok(None),
    }
}

/// The fastest plans with their forecasts, the fastest by its simulated time first: all of the `KEPT` fastest, or those that
/// the time suffices for; `first` if it suffices for none.
pub(super) fn ranked(
    space: &SearchSpace,
    explored: &Explored,
    clock: &Clock,
    first: Option<(Candidate, Ranked)>,
    watch: &(dyn Fn(Progress) + Sync),
) -> Result<Vec<(Candidate, Ranked)>, PlannerError> {
    let mut best = by_time(&explored.seen);
    best.truncate(KEPT);
    let Some(fastest) = best.first() else { return Ok(Vec::new()) };
    let done = AtomicUsize::new(0);
    let of_all = |detail: Detail| {
        let forecasts = best.par_iter().filter_map(|seen| {
            let forecast = forecast(space, seen, detail, &|| clock.is_over()).transpose()?;
            let done = 1 + done.fetch_add(1, Ordering::Relaxed);
            let time = fastest.time().map(Into::into);
            let progress = Progress::of("simulations", done.min(best.len()), best.len());
            watch(Progress { best: time, bound: explored.bound, ..progress });
            Some(forecast)
        });
        forecasts.collect::<Result<Vec<(Candidate, Ranked)>, PlannerError>>()
    };
    let coarse = if clock.is_limited() { of_all(Detail::Calls)? } else { Vec::new() };
    let fine = of_all(Detail::Ops)?;
    if fine.len() == best.len() {
        return Ok(fine);
    }
    if coarse.first().is_some_and(|(candidate, _)| *candidate == fastest.candidate) {
        return Ok(coarse);
    }
    let known = match first {
        Some(first) => Some(first),
        None => forecast(space, fastest, Detail::Calls, &|| false)?,
    };
    Ok(known.into_iter().collect())
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
    detail: Detail,
    stop: Stop,
) -> Result<Option<(Candidate, Ranked)>, PlannerError> {
    let Trial::Simulated { plan, estimate, .. } = &seen.trial else { return Ok(None) };
    let simulated = forecast_until(plan, &space.model().costs, detail, stop);
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
