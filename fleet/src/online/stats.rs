//! What an outcome means: completion times, makespan, utilisation.

use super::{Outcome, Question};
use trainwright_spec::units::Seconds;

/// Figures of an outcome.
#[derive(Debug, Clone, PartialEq)]
pub struct Stats {
    /// From arrival to end, the mean over jobs.
    pub mean: Seconds,
    /// The same, weighted with the weights of the jobs.
    pub weighted: Seconds,
    /// The completion times that half, 90 % and 99 % of the jobs do not exceed (nearest rank).
    pub quantiles: [Seconds; 3],
    /// From arrival to the first start, the mean over jobs.
    pub waiting: Seconds,
    /// From the first arrival to the last end.
    pub makespan: Seconds,
    /// The part of all GPUs' time in the makespan in which jobs hold them.
    pub utilisation: f64,
    /// How often jobs began anew after their first start.
    pub restarts: usize,
}

/// Figures of an outcome of at least one job.
pub fn stats(question: &Question, outcome: &Outcome) -> Stats {
    let pairs = || question.jobs.iter().zip(&outcome.jobs);
    let mut times: Vec<f64> = pairs().map(|(of, done)| done.end.get() - of.arrival.get()).collect();
    let count = times.len() as f64;
    let weight: f64 = question.jobs.iter().map(|of| of.weight).sum();
    let weighted: f64 = question.jobs.iter().zip(&times).map(|(of, time)| of.weight * time).sum();
    let mean = times.iter().sum::<f64>() / count;
    let waiting = pairs().map(|(of, done)| done.start.get() - of.arrival.get()).sum::<f64>() / count;
    times.sort_by(f64::total_cmp);
    let quantile = |part: f64| Seconds::new(times[((part * count).ceil() as usize).max(1) - 1]);
    let first = question.jobs.iter().map(|of| of.arrival.get()).fold(f64::INFINITY, f64::min);
    let makespan = outcome.jobs.iter().map(|done| done.end.get()).fold(0.0, f64::max) - first;
    let held = |segment: &super::Segment| segment.gpus.len() as f64 * (segment.to.get() - segment.from.get());
    let gpus: usize = question.kinds.iter().map(|kind| kind.nodes * kind.gpus).sum();
    let all = gpus as f64 * makespan;
    Stats {
        mean: Seconds::new(mean),
        weighted: Seconds::new(weighted / weight),
        quantiles: [quantile(0.5), quantile(0.9), quantile(0.99)],
        waiting: Seconds::new(waiting),
        makespan: Seconds::new(makespan),
        utilisation: outcome.segments.iter().map(held).sum::<f64>() / all,
        restarts: outcome.jobs.iter().map(|done| done.restarts).sum(),
    }
}
