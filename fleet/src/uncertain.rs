//! How long a schedule takes when durations differ from their forecasts.
//!
//! Each sample draws a duration for every job out of its choice's equally likely ones; jobs keep their order, choices and nodes, and
//! begin as early as these allow; so do the parts of a job that moves. Draws are a Latin hypercube with a fixed seed: in the samples of a job every likely duration has
//! the same share. Jobs of one group share their draw: forecasts of one model with one software are wrong together.

use crate::instance::{Choice, FleetJob, Instance};
use crate::list::{Sequence, place};
use crate::schedule::{Placed, Schedule};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

/// Samples.
pub const SAMPLES: usize = 1_000;

/// Makespans of the samples, ascending, in seconds.
///
/// `groups` has the group of each job.
pub fn makespans(instance: &Instance, schedule: &Schedule, groups: &[usize]) -> Vec<u64> {
    if schedule.placed.len() > instance.jobs.len() {
        let of_parts: Vec<usize> = schedule.placed.iter().map(|entry| groups[entry.job]).collect();
        let (instance, schedule) = parts(instance, schedule);
        return makespans(&instance, &schedule, &of_parts);
    }
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

/// The entries of a schedule as jobs of their own, each after the one before it of the same job.
fn parts(instance: &Instance, schedule: &Schedule) -> (Instance, Schedule) {
    let last = |job: usize| schedule.placed.iter().rposition(|entry| entry.job == job);
    let part = |(index, entry): (usize, &Placed)| {
        let of = &instance.jobs[entry.job];
        let is_first = index == 0 || schedule.placed[index - 1].job != entry.job;
        let after = match is_first {
            true => of.after.iter().filter_map(|before| last(*before)).collect(),
            false => vec![index - 1],
        };
        let choice = Choice { duration: entry.end - entry.start, ..entry.choice_of(instance).clone() };
        FleetJob { choices: vec![choice], after, ..of.clone() }
    };
    let jobs = schedule.placed.iter().enumerate().map(part).collect();
    let placed = |(job, entry): (usize, &Placed)| Placed { job, choice: 0, ..entry.clone() };
    let placed = schedule.placed.iter().enumerate().map(placed).collect();
    (Instance { jobs, ..instance.emptied() }, Schedule { placed })
}

/// The makespan that this fraction of the samples stays below.
pub fn quantile(makespans: &[u64], fraction: f64) -> u64 {
    let place = (fraction * makespans.len() as f64).ceil() as usize;
    makespans.get(place.saturating_sub(1).min(makespans.len().saturating_sub(1))).copied().unwrap_or(0)
}
