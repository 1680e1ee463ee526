//! What makes one schedule better than another.

use crate::instance::Instance;
use crate::schedule::Schedule;
use std::cmp::Ordering;

/// What is to be least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Objective {
    /// The end of the last job.
    Makespan,
    /// Σ weight · end.
    Completion,
    /// US dollars for the GPUs of the jobs.
    Cost,
    /// Σ weight · (end − deadline), over the jobs that end after their deadline.
    Deadlines,
}

/// Compared from left to right: the weight of missed deadlines, the objective, and what decides between equals. With
/// `Objective::Deadlines`, lateness is the objective and the first is zero.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Score(pub [f64; 3]);

impl Score {
    /// Whether it is better than another.
    pub fn is_below(&self, other: &Self) -> bool {
        self.compare(other) == Ordering::Less
    }

    /// Whether it misses fewer deadlines or has a better value than another: what decides between equals does not count.
    pub fn is_worth_a_move(&self, other: &Self) -> bool {
        let [missed, value, _] = self.0;
        Self([missed, value, 0.0]).is_below(&Self([other.0[0], other.0[1], 0.0]))
    }

    /// Which one is better.
    pub fn compare(&self, other: &Self) -> Ordering {
        let pairs = self.0.iter().zip(&other.0);
        pairs.fold(Ordering::Equal, |order, (one, other)| order.then(one.total_cmp(other)))
    }

    /// The objective's value: seconds, or dollars.
    pub fn value(&self) -> f64 {
        self.0[1]
    }
}

impl Objective {
    /// Every one with its name.
    pub const ALL: [(&'static str, Objective); 4] = [
        ("makespan", Objective::Makespan),
        ("completion", Objective::Completion),
        ("cost", Objective::Cost),
        ("deadlines", Objective::Deadlines),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, other)| *other == self).map_or("", |(name, _)| name)
    }

    /// What a job that ends at `end` and costs `cost` adds to the objective; zero for the makespan, which is no sum.
    pub fn of_job(self, instance: &Instance, job: usize, end: u64, cost: f64) -> f64 {
        let of = &instance.jobs[job];
        match self {
            Objective::Makespan => 0.0,
            Objective::Completion => of.weight * end as f64,
            Objective::Cost => cost,
            Objective::Deadlines => {
                of.weight * of.deadline.map_or(0.0, |deadline| end.saturating_sub(deadline) as f64)
            }
        }
    }

    /// Whether its value is a whole number for every schedule.
    pub fn is_whole(self, instance: &Instance) -> bool {
        match self {
            Objective::Makespan => true,
            Objective::Completion | Objective::Deadlines => {
                instance.jobs.iter().all(|job| job.weight.fract() == 0.0)
            }
            Objective::Cost => false,
        }
    }

    /// The score of a schedule.
    pub fn score(self, instance: &Instance, schedule: &Schedule) -> Score {
        self.score_of(instance, schedule.ends(instance))
    }

    /// The score of jobs with their ends and costs.
    pub fn score_of(self, instance: &Instance, ends: impl Iterator<Item = (usize, u64, f64)>) -> Score {
        let (mut missed, mut value, mut last, mut sum) = (0.0, 0.0, 0, 0);
        for (job, end, cost) in ends {
            let of = &instance.jobs[job];
            if of.deadline.is_some_and(|deadline| end > deadline) {
                missed += of.weight.max(f64::MIN_POSITIVE);
            }
            value += self.of_job(instance, job, end, cost);
            last = last.max(end);
            sum += end;
        }
        match self {
            Objective::Makespan => Score([missed, last as f64, sum as f64]),
            Objective::Deadlines => Score([0.0, value, last as f64]),
            Objective::Completion | Objective::Cost => Score([missed, value, last as f64]),
        }
    }
}
