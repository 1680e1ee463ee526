//! Ours: whenever jobs come or go, the jobs that are there are planned anew to their ends by forecast remaining times, in a few ways;
//! the way with the least Σ weight · end, or the earliest last end, is followed until the next change.
//!
//! A way splits GPUs such that Σ weight · t^(−a) is largest, where t is the time a job would need to its end: with a small exponent a
//! all jobs get something, with a large one the shortest get most. t has the restart of a job that changes its GPUs, so that jobs
//! stay where moving costs more than it brings. For the end of the last job exponents are negative: every job that fits gets
//! something, and Σ t^|a| is least. A way is followed to the end of all jobs with the same exponent at every end of a
//! job; no arrivals are foreseen. One more way keeps every job as it is and gives what is left to the others.
//! Source: rolling horizon; choosing among base policies by simulating each is a rollout (Bertsekas, Tsitsiklis & Wu 1997, Journal of
//! Heuristics 3, 245–262).

use super::split::{Worth, grants, split};
use super::{Decide, Policy};
use crate::online::{Grant, View};

/// Exponents of the ways.
const EXPONENTS: [f64; 5] = [0.25, 0.5, 1.0, 1.5, 2.0];
/// The same for the end of the last job: negative ones give most to the longest jobs.
const FOR_MAKESPAN: [f64; 3] = [-4.0, -2.0, -1.0];
/// The exponent where following ways to their ends would be too much work.
const ALONE: f64 = 1.0;
/// Work of following one way up to which it is done: jobs² · choices · GPUs, or choices · jobs with several kinds.
const MOST_WORK: f64 = 5e7;
/// Numbers of GPUs that are tried grow at least by this factor, apart from that which a job asks for.
const GROWTH: f64 = 1.25;

/// Plans to the end, again at every change.
pub struct Rolling(pub Least);

/// What a plan makes least.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Least {
    /// Σ weight · end.
    Completion,
    /// The end of the last job.
    Makespan,
}

impl Policy for Rolling {
    fn name(&self) -> &'static str {
        match self.0 {
            Least::Completion => "trainwright",
            Least::Makespan => "trainwright-makespan",
        }
    }

    fn summary(&self) -> &'static str {
        match self.0 {
            Least::Completion => {
                "ours, elastic: at every change, plans to the end by forecast remaining times"
            }
            Least::Makespan => "the same, for the end of the last job",
        }
    }

    fn begin(&self) -> Box<dyn Decide> {
        Box::new(State { least: self.0, jobs: Vec::new() })
    }
}

/// The jobs of the last plan.
struct State {
    least: Least,
    jobs: Vec<usize>,
}

/// A job in a plan.
#[derive(Clone)]
struct Planned {
    weight: f64,
    remaining: f64,
    restart: f64,
    /// Kind, GPUs, speed.
    choices: Vec<(usize, usize, f64)>,
    held: Option<(usize, usize)>,
    /// How long it still restarts, if it keeps what it holds.
    restarting: f64,
}

impl Planned {
    /// Seconds to the end with a choice.
    fn time(&self, (kind, gpus, speed): (usize, usize, f64)) -> f64 {
        let stays = self.held == Some((kind, gpus));
        (if stays { self.restarting } else { self.restart }) + self.remaining / speed
    }

    fn worth(&self, exponent: f64, base: f64) -> Vec<Worth> {
        let value = |choice: &(usize, usize, f64)| {
            let power = libm::pow(self.time(*choice).max(1e-9), -exponent);
            (choice.0, choice.1, if exponent > 0.0 { self.weight * power } else { base - power })
        };
        self.choices.iter().map(value).collect()
    }
}

/// What each choice of each job is worth. With a negative exponent all jobs that fit get something first.
fn worths<'a>(jobs: impl Iterator<Item = &'a Planned> + Clone, exponent: f64) -> Vec<Vec<Worth>> {
    let times = jobs.clone().flat_map(|job| job.choices.iter().map(|choice| job.time(*choice)));
    let longest = times.filter(|time| time.is_finite()).fold(1.0, f64::max);
    let base = 2.0 * jobs.clone().count() as f64 * libm::pow(longest, -exponent);
    jobs.map(|job| job.worth(exponent, base)).collect()
}

impl Decide for State {
    fn decide(&mut self, view: &View) -> Vec<Grant> {
        let jobs: Vec<usize> = view.jobs.iter().map(|job| job.job).collect();
        if jobs == self.jobs {
            return view.jobs.iter().filter_map(|job| job.held).collect();
        }
        self.jobs = jobs;
        let capacity = view.capacity();
        let planned: Vec<Planned> = view.jobs.iter().map(|job| plan(view, job)).collect();
        let by = |exponent: f64| split(&capacity, &worths(planned.iter(), exponent));
        if work(&capacity, &planned) > MOST_WORK {
            return grants(view, &by(ALONE));
        }
        let mut best: Option<([f64; 2], Split)> = None;
        let exponents: &[f64] = match self.least {
            Least::Completion => &EXPONENTS,
            Least::Makespan => &FOR_MAKESPAN,
        };
        for &exponent in exponents {
            for first in [by(exponent), kept(&capacity, &planned, exponent)] {
                let (sum, last) = follow(&capacity, &planned, &first, exponent);
                let value = match self.least {
                    Least::Completion => [sum, last],
                    Least::Makespan => [last, sum],
                };
                if best.as_ref().is_none_or(|(known, _)| value < *known) {
                    best = Some((value, first));
                }
            }
        }
        best.map_or(Vec::new(), |(_, split)| grants(view, &split))
    }
}

type Split = Vec<Option<(usize, usize)>>;

fn plan(view: &View, job: &crate::online::Active) -> Planned {
    let mut choices: Vec<(usize, usize, f64)> = Vec::new();
    let held = job.held.map(|held| (held.kind, held.gpus));
    for choice in view.choices(job) {
        let last = choices.last().filter(|last| last.0 == choice.0).map_or(0.0, |last| last.1 as f64);
        let is_named = choice.1 == job.of.gpus || held == Some((choice.0, choice.1));
        if is_named || choice.1 as f64 >= last * GROWTH {
            choices.push(choice);
        }
    }
    let (restart, executed) = (job.restart.get(), job.executed.get());
    Planned {
        weight: job.of.weight,
        remaining: job.remaining,
        restart,
        choices,
        held,
        // It may have restarted more than once; then this is too little, never too much.
        restarting: (restart - executed).max(0.0),
    }
}

fn work(capacity: &[usize], jobs: &[Planned]) -> f64 {
    let choices = jobs.iter().map(|job| job.choices.len()).max().unwrap_or(0) as f64;
    let count = jobs.len() as f64;
    let each = match capacity {
        [gpus] => *gpus as f64,
        _ => choices * count,
    };
    count * count * choices * each
}

/// Every job keeps what it holds; the others share what is left.
fn kept(capacity: &[usize], jobs: &[Planned], exponent: f64) -> Split {
    let mut free = capacity.to_vec();
    jobs.iter().filter_map(|job| job.held).for_each(|(kind, gpus)| free[kind] -= gpus);
    let mut worth = worths(jobs.iter(), exponent);
    jobs.iter().zip(&mut worth).filter(|(job, _)| job.held.is_some()).for_each(|(_, worth)| worth.clear());
    let others = split(&free, &worth);
    jobs.iter().zip(others).map(|(job, other)| job.held.or(other)).collect()
}

/// Σ weight · time to the end, and the time to the last end, if GPUs are split by an exponent whenever a job ends.
fn follow(capacity: &[usize], jobs: &[Planned], first: &Split, exponent: f64) -> (f64, f64) {
    let mut jobs = jobs.to_vec();
    let mut now = first.clone();
    let (mut clock, mut sum) = (0.0, 0.0);
    while !jobs.is_empty() {
        let chosen = |job: usize| {
            let of: &Planned = &jobs[job];
            now[job].and_then(|held| of.choices.iter().find(|choice| (choice.0, choice.1) == held).copied())
        };
        let times: Vec<f64> = (0..jobs.len())
            .map(|job| chosen(job).map_or(f64::INFINITY, |choice| jobs[job].time(choice)))
            .collect();
        let step = times.iter().copied().fold(f64::INFINITY, f64::min);
        if step == f64::INFINITY {
            return (f64::INFINITY, f64::INFINITY);
        }
        clock += step;
        let choices: Vec<Option<(usize, usize, f64)>> = (0..jobs.len()).map(chosen).collect();
        let mut left = Vec::with_capacity(jobs.len());
        for (mut job, (choice, time)) in jobs.into_iter().zip(choices.into_iter().zip(times)) {
            if time <= step {
                sum += job.weight * clock;
                continue;
            }
            if let Some((kind, gpus, speed)) = choice {
                let stays = job.held == Some((kind, gpus));
                let restart = if stays { job.restarting } else { job.restart };
                job.remaining -= speed * (step - restart).max(0.0);
                job.restarting = (restart - step).max(0.0);
            }
            job.held = choice.map(|choice| (choice.0, choice.1));
            left.push(job);
        }
        jobs = left;
        now = split(capacity, &worths(jobs.iter(), exponent));
    }
    (sum, clock)
}
