//! Local search over sequences: an order of the jobs and a choice for each.
//!
//! Each step changes the choice of a job, moves a job in the order, or swaps two. A result that is worse by up to a threshold,
//! which falls to zero, is kept (Dueck & Scheuer 1990, Journal of Computational Physics 90, 161–175). The random numbers have a
//! fixed seed: the same instance gives the same schedule.

use crate::gaps::schedule_in_gaps;
use crate::instance::Instance;
use crate::list::{Sequence, place};
use crate::objective::{Objective, Score};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

/// Placements of a job on a node that a search looks at, which bounds its work.
const WORK: usize = 80_000_000;
/// The most steps.
const MOST_STEPS: usize = 60_000;
/// Steps from one filling of gaps to the next, after which the order is that of the starts.
const FILLS: usize = 100;
/// The most jobs for which gaps are filled.
const MOST_FILLED: usize = 100;
/// The threshold at the beginning, as a part of the value: searches with different seeds have different ones.
const THRESHOLDS: [f64; 4] = [0.004, 0.008, 0.015, 0.03];

/// The best sequence that is found from `start`, with its score; `effort` multiplies the work, `stop` ends it early.
pub fn improve(
    instance: &Instance,
    objective: Objective,
    start: &Sequence,
    (effort, seed): (f64, u64),
    stop: &dyn Fn() -> bool,
) -> (Sequence, Score) {
    let score = |sequence: &Sequence| {
        let placed = place(instance, sequence, &[]);
        let ends = placed.iter().map(|entry| (entry.job, entry.end, entry.choice_of(instance).cost));
        objective.score_of(instance, ends)
    };
    let jobs = instance.jobs.len();
    let mut best = (start.clone(), score(start));
    if jobs == 0 {
        return best;
    }
    let work = WORK as f64 * effort / (jobs * instance.nodes().len().max(1)) as f64;
    let steps = work.min(MOST_STEPS as f64 * effort) as usize;
    let scale = Energy::of(&best.1);
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let (mut current, mut energy) = (start.clone(), scale.energy(&best.1));
    for step in 0..steps {
        if step % 64 == 0 && stop() {
            break;
        }
        let mut next = current.clone();
        match step % FILLS {
            0 if jobs <= MOST_FILLED => next.order = schedule_in_gaps(instance, &next).order(),
            _ => change(instance, &mut next, &mut random),
        }
        let value = score(&next);
        let threshold = THRESHOLDS[(seed % 4) as usize] * (1.0 - step as f64 / steps as f64).powi(2);
        let next_energy = scale.energy(&value);
        if next_energy <= energy + threshold {
            (current, energy) = (next, next_energy);
            if value.is_below(&best.1) {
                best = (current.clone(), value);
            }
        } else if step % 2_000 == 1_999 {
            (current, energy) = (best.0.clone(), scale.energy(&best.1));
        }
    }
    best
}

/// Scores as one number, with the first score as unit.
struct Energy {
    units: [f64; 3],
}

impl Energy {
    fn of(first: &Score) -> Self {
        let unit = |value: f64| if value > 0.0 { value } else { 1.0 };
        Self { units: first.0.map(unit) }
    }

    fn energy(&self, score: &Score) -> f64 {
        let parts: [f64; 3] = std::array::from_fn(|index| score.0[index] / self.units[index]);
        10.0 * parts[0] + parts[1] + 0.1 * parts[2]
    }
}

/// A random change: mostly small ones, to a neighbouring choice or place.
fn change(instance: &Instance, sequence: &mut Sequence, random: &mut ChaCha8Rng) {
    let jobs = sequence.order.len();
    let place = random.random_range(0..jobs);
    let job = sequence.order[place];
    let choices = instance.jobs[job].choices.len();
    let near = |random: &mut ChaCha8Rng, at: usize, all: usize, reach: usize| {
        let (low, high) = (at.saturating_sub(reach), (at + reach).min(all - 1));
        random.random_range(low..=high)
    };
    let reach = if random.random_range(0..3) == 0 { jobs } else { 6 };
    match random.random_range(0..10) {
        0..4 if choices > 1 => sequence.choices[job] = near(random, sequence.choices[job], choices, 1),
        4 if choices > 1 => sequence.choices[job] = random.random_range(0..choices),
        5..7 => sequence.order.swap(place, near(random, place, jobs, reach)),
        _ => {
            sequence.order.remove(place);
            sequence.order.insert(near(random, place, jobs, reach), job);
        }
    }
}
