//! A random choice of each job, and a random order, with a fixed seed.

use super::Heuristic;
use crate::instance::Instance;
use crate::list::{Sequence, schedule};
use crate::objective::Objective;
use crate::schedule::Schedule;
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

/// Chance.
pub struct Random;

impl Heuristic for Random {
    fn name(&self) -> &'static str {
        "random"
    }

    fn summary(&self) -> &'static str {
        "a random plan of each job in a random order, with a fixed seed"
    }

    fn schedule(&self, instance: &Instance, _objective: Objective) -> Schedule {
        let mut random = ChaCha8Rng::seed_from_u64(0);
        let mut order: Vec<usize> = (0..instance.jobs.len()).collect();
        for last in (1..order.len()).rev() {
            order.swap(last, random.random_range(0..=last));
        }
        let mut choice = |job: usize| {
            let choices = &instance.jobs[job].choices;
            let fits: Vec<usize> =
                (0..choices.len()).filter(|index| instance.has_room(job, &choices[*index])).collect();
            fits[random.random_range(0..fits.len())]
        };
        let choices = (0..instance.jobs.len()).map(&mut choice).collect();
        schedule(instance, &Sequence { order, choices })
    }
}
