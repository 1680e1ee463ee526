//! How long a schedule takes when durations differ from their forecasts.
//!
//! Each sample draws a duration for every job out of its choice's equally likely ones; jobs keep their order, choices and nodes, and
//! begin as early as these allow. Draws are a Latin hypercube with a fixed seed: in the samples of a job every likely duration has
//! the same share. Jobs of one group share their draw: forecasts of one model with one software are wrong together.

use crate::instance::Instance;
use crate::list::{Sequence, place};
use crate::schedule::Schedule;
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

/// Samples.
pub const SAMPLES: usize = 1_000;

/// Makespans of the samples, ascending, in seconds.
///
/// `groups` has the group of each job.
pub fn makespans(instance: &Instance, schedule: &Schedule, groups: &[usize]) -> Vec<u64> {
    let mut random = ChaCha8Rng::seed_from_u64(0);
    let count = groups.iter().max().map_or(0, |last| last + 1);
    let strata: Vec<Vec<usize>> = (0..count)
        .map(|_| {
            let mut order: Vec<usize> = (0..SAMPLES).collect();
            for last in (1..SAMPLES).rev() {
                order.swap(last, random.random_range(0..=last));
            }
            order
        })
        .collect();
    let sequence = Sequence { order: schedule.order(), choices: schedule.choices() };
    let nodes: Vec<Option<Vec<usize>>> =
        schedule.placed.iter().map(|entry| Some(entry.nodes.clone())).collect();
    let mut drawn = instance.clone();
    let mut all: Vec<u64> = (0..SAMPLES)
        .map(|sample| {
            for (job, choice) in sequence.choices.iter().enumerate() {
                let known = &instance.jobs[job].choices[*choice];
                let place = strata[groups[job]][sample] * known.spread.len() / SAMPLES;
                let factor = known.spread.get(place).copied().unwrap_or(1.0);
                let duration = (known.duration as f64 * factor).round().max(1.0);
                drawn.jobs[job].choices[*choice].duration = duration as u64;
            }
            place(&drawn, &sequence, &nodes).iter().map(|entry| entry.end).max().unwrap_or(0)
        })
        .collect();
    all.sort_unstable();
    all
}

/// The makespan that this fraction of the samples stays below.
pub fn quantile(makespans: &[u64], fraction: f64) -> u64 {
    let place = (fraction * makespans.len() as f64).ceil() as usize;
    makespans.get(place.saturating_sub(1).min(makespans.len().saturating_sub(1))).copied().unwrap_or(0)
}
