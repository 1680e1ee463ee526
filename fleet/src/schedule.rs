//! A schedule: which job runs how, on which GPUs, and when.

use crate::instance::{Choice, Instance};

/// A job with its place and time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// The job.
    pub job: usize,
    /// Which of its choices.
    pub choice: usize,
    /// When it begins, in seconds.
    pub start: u64,
    /// When it ends, in seconds.
    pub end: u64,
    /// Its nodes, ascending.
    pub nodes: Vec<usize>,
    /// Its GPUs on each of these nodes, ascending, counted on the node.
    pub gpus: Vec<usize>,
}

/// Every job with its place and time, in the order of the jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// One entry for each job; several, in the order of their starts, for a job that moves.
    pub placed: Vec<Placed>,
}

impl Placed {
    /// How it runs.
    pub fn choice_of<'a>(&self, instance: &'a Instance) -> &'a Choice {
        &instance.jobs[self.job].choices[self.choice]
    }

    /// US dollars for its GPUs.
    pub fn cost(&self, instance: &Instance) -> f64 {
        let choice = self.choice_of(instance);
        match self.end - self.start {
            all if all == choice.duration => choice.cost,
            part => choice.cost * part as f64 / choice.duration as f64,
        }
    }
}

impl Schedule {
    /// The schedule with jobs on nodes, to which GPUs are given here: each job gets those of its node that are free and have the
    /// lowest numbers. Enough are free where the sum of GPUs on a node is never more than it has.
    pub fn with_gpus(instance: &Instance, mut placed: Vec<Placed>) -> Self {
        placed.sort_by_key(|entry| (entry.start, entry.job));
        let kinds = instance.nodes();
        let mut free: Vec<Vec<u64>> = kinds.iter().map(|kind| vec![0; instance.kinds[*kind].gpus]).collect();
        for entry in &mut placed {
            let per_node = entry.choice_of(instance).gpus.min(instance.kinds[kinds[entry.nodes[0]]].gpus);
            let of_first = &free[entry.nodes[0]];
            let idle = (0..of_first.len()).filter(|gpu| of_first[*gpu] <= entry.start);
            entry.gpus = idle.take(per_node).collect();
            for node in &entry.nodes {
                for gpu in &entry.gpus {
                    free[*node][*gpu] = entry.end;
                }
            }
        }
        placed.sort_by_key(|entry| (entry.job, entry.start));
        Self { placed }
    }

    /// When the last job ends, in seconds.
    pub fn makespan(&self) -> u64 {
        self.placed.iter().map(|entry| entry.end).max().unwrap_or(0)
    }

    /// The entries of each job.
    pub fn of_jobs(&self) -> impl Iterator<Item = &[Placed]> {
        self.placed.chunk_by(|one, other| one.job == other.job)
    }

    /// The last entry of each job.
    pub fn last(&self) -> impl Iterator<Item = &Placed> {
        self.of_jobs().filter_map(<[Placed]>::last)
    }

    /// The mean end of a job in seconds.
    pub fn mean_completion(&self) -> f64 {
        let (sum, jobs) =
            self.last().fold((0.0, 0.0), |(sum, jobs), entry| (sum + entry.end as f64, jobs + 1.0));
        sum / f64::max(jobs, 1.0)
    }

    /// Σ weight · end, in seconds.
    pub fn weighted_completion(&self, instance: &Instance) -> f64 {
        self.last().map(|entry| instance.jobs[entry.job].weight * entry.end as f64).sum()
    }

    /// US dollars for the GPUs of all jobs while they run.
    pub fn cost(&self, instance: &Instance) -> f64 {
        self.placed.iter().map(|entry| entry.cost(instance)).sum()
    }

    /// The end and the cost of each job.
    pub fn ends<'a>(&'a self, instance: &'a Instance) -> impl Iterator<Item = (usize, u64, f64)> + 'a {
        let cost = |entries: &[Placed]| entries.iter().map(|entry| entry.cost(instance)).sum();
        let of = move |entries: &[Placed]| {
            let last = entries.last().expect("a job has an entry");
            (last.job, last.end, cost(entries))
        };
        self.of_jobs().map(of)
    }

    /// The part of all GPUs' time until the last job ends in which jobs hold them.
    pub fn utilisation(&self, instance: &Instance) -> f64 {
        let held = |entry: &Placed| (entry.end - entry.start) as f64 * entry.choice_of(instance).gpus as f64;
        let all = instance.gpus() as f64 * self.makespan() as f64;
        if all > 0.0 { self.placed.iter().map(held).sum::<f64>() / all } else { 0.0 }
    }

    /// Jobs that end after their deadline.
    pub fn missed(&self, instance: &Instance) -> Vec<usize> {
        let late = |entry: &&Placed| instance.jobs[entry.job].deadline.is_some_and(|limit| entry.end > limit);
        self.last().filter(late).map(|entry| entry.job).collect()
    }

    /// The jobs in the order of their starts, if none moves.
    pub fn order(&self) -> Vec<usize> {
        let mut order: Vec<&Placed> = self.placed.iter().collect();
        order.sort_by_key(|entry| (entry.start, entry.job));
        order.into_iter().map(|entry| entry.job).collect()
    }

    /// The choice of each job, if none moves.
    pub fn choices(&self) -> Vec<usize> {
        self.placed.iter().map(|entry| entry.choice).collect()
    }
}
