//! Local search over sequences: an order of the jobs and a choice for each.
//!
//! Each step changes the choice of a job, moves a job in the order, or swaps two. A worse result is kept with a
//! probability that falls with the steps (Kirkpatrick, Gelatt & Vecchi 1983, Science 220, 671–680). The random numbers have a fixed
//! seed: the same instance gives the same schedule.

use crate::gaps::schedule_in_gaps;
use crate::instance::Instance;
use crate::list::{Lister, Sequence};
use crate::objective::{Objective, Score};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

/// Placements of a job on a node that a search looks at, which bounds its work.
const WORK: usize = 200_000_000;
/// The most steps for each job.
const STEPS_OF_JOB: usize = 2_500;
/// Steps from one filling of gaps to the next, after which the order is that of the starts.
const FILLS: usize = 100;
/// The most jobs for which gaps are filled.
const MOST_FILLED: usize = 100;
/// The temperature at the beginning, as a part of the value: searches with different seeds have different ones.
const TEMPERATURES: [f64; 4] = [0.001, 0.002, 0.003, 0.004];
/// The exponent of the mean of times from which on GPUs are free.
const EXPONENT: i32 = 16;

/// How a search goes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Search {
    /// Multiplies the steps.
    pub effort: f64,
    /// Of the random numbers.
    pub seed: u64,
    /// A makespan, in seconds: choices with which a job alone exceeds it are left out, where it has others.
    pub within: f64,
}

/// The best sequence that is found from `start`, with its score; `stop` ends it early.
pub fn improve(
    instance: &Instance,
    objective: Objective,
    start: &Sequence,
    how: Search,
    stop: &dyn Fn() -> bool,
) -> (Sequence, Score) {
    let jobs = instance.jobs.len();
    let mut lister = Lister::new(instance);
    let mut ends = Vec::with_capacity(jobs);
    let mut score = |sequence: &Sequence, unit: Option<&Energy>| {
        ends.clear();
        lister.run(sequence, &[], &mut |put| {
            ends.push((put.job, put.time.1, instance.jobs[put.job].choices[put.choice].cost));
        });
        let score = objective.score_of(instance, ends.iter().copied());
        let energy = unit.map_or(0.0, |unit| unit.energy(&score, lister.free().nodes()));
        (score, energy)
    };
    let mut best = (start.clone(), score(start, None).0);
    if jobs == 0 {
        return best;
    }
    let work = (WORK / (jobs * instance.nodes().len().max(1))).min(STEPS_OF_JOB * jobs);
    let steps = (work as f64 * how.effort) as usize;
    let scale = Energy { units: best.1.0.map(|unit| if unit > 0.0 { unit } else { 1.0 }), objective };
    let choices = choices(instance, how.within);
    let mut random = ChaCha8Rng::seed_from_u64(how.seed);
    let mut current = start.clone();
    for (job, choices) in choices.iter().enumerate() {
        if !choices.contains(&current.choices[job]) {
            current.choices[job] = choices[0];
        }
    }
    let mut energy = score(&current, Some(&scale)).1;
    let mut next = current.clone();
    for step in 0..steps {
        if step % 64 == 0 && stop() {
            break;
        }
        next.clone_from(&current);
        match step % FILLS {
            0 if jobs <= MOST_FILLED => next.order = schedule_in_gaps(instance, &next).order(),
            _ => change(&choices, &mut next, &mut random),
        }
        let (value, next_energy) = score(&next, Some(&scale));
        let cooled = (1.0 - step as f64 / steps as f64).powi(2);
        let temperature = TEMPERATURES[(how.seed % 4) as usize] * cooled + 1e-9;
        let worse = next_energy - energy;
        if worse <= 0.0 || random.random_range(0.0..1.0) < libm::exp(-worse / temperature) {
            energy = next_energy;
            std::mem::swap(&mut current, &mut next);
            if value.is_below(&best.1) {
                best = (current.clone(), value);
            }
        }
    }
    best
}

/// The choices of each job that are tried: those with room that alone end within a makespan, else the shortest; by their GPUs.
fn choices(instance: &Instance, within: f64) -> Vec<Vec<usize>> {
    let (ends, tails) = (instance.earliest_ends(), instance.tails());
    let of_job = |job: usize| {
        let shortest = instance.shortest(job);
        let around = ends[job] - shortest + tails[job];
        let of = &instance.jobs[job].choices;
        let mut all: Vec<usize> = (0..of.len()).collect();
        all.retain(|index| {
            let duration = of[*index].duration;
            let fits = (around + duration) as f64 <= within || duration == shortest;
            fits && instance.has_room(job, &of[*index])
        });
        all.sort_by_key(|index| (of[*index].kind, of[*index].gpus));
        all
    };
    (0..instance.jobs.len()).map(of_job).collect()
}

/// Scores as one number, with the first score as unit. In place of the makespan stands the mean of the times from which on GPUs
/// are free, with an exponent: it falls, too, where the last end stays and others come earlier.
struct Energy {
    units: [f64; 3],
    objective: Objective,
}

impl Energy {
    fn energy(&self, score: &Score, free: &[Vec<u64>]) -> f64 {
        let parts: [f64; 3] = std::array::from_fn(|index| score.0[index] / self.units[index]);
        if self.objective != Objective::Makespan {
            return 10.0 * parts[0] + parts[1] + 0.1 * parts[2];
        }
        let gpus: usize = free.iter().map(Vec::len).sum();
        let powers = free.iter().flatten().map(|time| (*time as f64 / self.units[1]).powi(EXPONENT));
        10.0 * parts[0] + libm::pow(powers.sum::<f64>() / gpus as f64, 1.0 / f64::from(EXPONENT))
    }
}

/// A random change: mostly small ones, to a neighbouring choice or place.
fn change(choices: &[Vec<usize>], sequence: &mut Sequence, random: &mut ChaCha8Rng) {
    let jobs = sequence.order.len();
    let place = random.random_range(0..jobs);
    let job = sequence.order[place];
    let of_job = &choices[job];
    let near = |random: &mut ChaCha8Rng, at: usize, all: usize, reach: usize| {
        let (low, high) = (at.saturating_sub(reach), (at + reach).min(all - 1));
        random.random_range(low..=high)
    };
    let reach = if random.random_range(0..3) == 0 { 6 } else { jobs };
    match random.random_range(0..10) {
        0..4 if of_job.len() > 1 => {
            let at = of_job.iter().position(|choice| *choice == sequence.choices[job]).unwrap_or(0);
            sequence.choices[job] = of_job[near(random, at, of_job.len(), 1)];
        }
        4 if of_job.len() > 1 => sequence.choices[job] = of_job[random.random_range(0..of_job.len())],
        5..7 => sequence.order.swap(place, near(random, place, jobs, reach)),
        _ => {
            sequence.order.remove(place);
            sequence.order.insert(near(random, place, jobs, reach), job);
        }
    }
}
