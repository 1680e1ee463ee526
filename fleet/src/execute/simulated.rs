//! Workers whose jobs take what was forecast: what carries jobs out says with them how it will go.

use super::{Event, FleetOutcome, JobRun, Workers, carry_out, job_runs};
use crate::instance::Instance;
use crate::objective::Objective;
use crate::schedule::Schedule;
use std::convert::Infallible;

/// The runs of all jobs if each takes what was forecast and none fails: a job that moves saves all that it did, and loses the
/// seconds of its restart.
pub fn simulate(instance: &Instance, objective: Objective, first: &Schedule) -> Vec<JobRun> {
    let jobs = instance.jobs.len();
    let mut workers =
        Simulated { instance, now: 0.0, left: vec![1.0; jobs], runs: vec![None; jobs], stopping: Vec::new() };
    let mut log = String::new();
    match carry_out((instance, objective), first, 0, &mut log, &mut workers) {
        Ok(carried) => debug_assert_eq!(carried, FleetOutcome::default()),
        Err(never) => match never {},
    }
    job_runs(&log, instance)
}

/// Jobs on a clock that jumps.
struct Simulated<'a> {
    instance: &'a Instance,
    now: f64,
    /// The part of each job that is left when its run begins.
    left: Vec<f64>,
    /// Of jobs that run: when they are ready, and the seconds of all of them.
    runs: Vec<Option<(f64, f64)>>,
    stopping: Vec<usize>,
}

impl Simulated<'_> {
    fn left(&self, job: usize) -> f64 {
        let of = |(ready, seconds): (f64, f64)| self.left[job] - ((self.now - ready).max(0.0) / seconds);
        self.runs[job].map_or(self.left[job], of).max(0.0)
    }
}

impl Workers for Simulated<'_> {
    type Error = Infallible;

    fn now(&self) -> f64 {
        self.now
    }

    fn start(&mut self, job: usize, gpus: usize) -> Result<(), Infallible> {
        let choice = self.instance.jobs[job].choices.iter().find(|choice| choice.gpus == gpus);
        let seconds = choice.expect("a choice of the job").duration as f64;
        let restart = if self.left[job] < 1.0 { self.instance.jobs[job].restart.unwrap_or(0) } else { 0 };
        self.runs[job] = Some((self.now + restart as f64, seconds));
        Ok(())
    }

    fn stop(&mut self, job: usize) {
        self.stopping.push(job);
    }

    fn saved(&self, job: usize) -> f64 {
        1.0 - self.left(job)
    }

    fn wait(&mut self, until: f64) -> Vec<(usize, Event)> {
        if let Some(job) = self.stopping.pop() {
            // It takes no time, so that none of them can end before.
            (self.left[job], self.runs[job]) = (self.left(job), None);
            return vec![(job, Event::Stopped)];
        }
        let end = |job: usize| self.runs[job].map(|(ready, seconds)| ready + self.left[job] * seconds);
        let ends = (0..self.runs.len()).filter_map(|job| Some((end(job)?, job)));
        let next = ends.min_by(|one, other| one.0.total_cmp(&other.0));
        match next.filter(|(time, _)| *time <= until) {
            Some((time, job)) => {
                self.now = time.max(self.now);
                (self.left[job], self.runs[job]) = (0.0, None);
                vec![(job, Event::Done)]
            }
            None => {
                self.now = until.max(self.now);
                Vec::new()
            }
        }
    }

    fn is_interrupted(&self) -> bool {
        false
    }

    fn keep(&mut self, _line: &str) -> Result<(), Infallible> {
        Ok(())
    }
}
