//! Carries a schedule out on one machine: starts jobs, hears of their ends, and schedules the others anew after each.
//!
//! ```text
//! schedule ─► start of jobs ─► Workers ─► ends ─► log ─► observed::read ─► reschedule ─► start of jobs …
//! ```
//!
//! The log is all that is known of the past: whoever carries on with the same log finds the same state. A job that fails is begun
//! again a few times; after that it, and what waits for it, is skipped.

mod simulated;

pub use simulated::simulate;

use crate::instance::Instance;
use crate::objective::Objective;
use crate::observed::{self, Observed};
use crate::reschedule::reschedule;
use crate::schedule::{Placed, Schedule};
use serde::Deserialize;
use std::collections::BTreeSet;

/// The first line of a log.
pub const HEADER: &str = "time_s,event,name,value\n";

/// What runs jobs.
pub trait Workers {
    /// Why it cannot go on.
    type Error;

    /// Seconds since the fleet began; never less than before.
    fn now(&self) -> f64;
    /// Starts a job on some cores, from what it saved.
    ///
    /// # Errors
    /// If it cannot be started.
    fn start(&mut self, job: usize, gpus: usize) -> Result<(), Self::Error>;
    /// Asks a job that runs to save its state and to end.
    fn stop(&mut self, job: usize);
    /// The part of a job that is done and saved, 0 to 1.
    fn saved(&self, job: usize) -> f64;
    /// Waits until jobs save or end, somebody interrupts, or it is `until`, in seconds.
    fn wait(&mut self, until: f64) -> Vec<(usize, Event)>;
    /// Whether somebody wants all jobs to stop.
    fn is_interrupted(&self) -> bool;
    /// Keeps a line of the log.
    ///
    /// # Errors
    /// If it cannot be kept.
    fn keep(&mut self, line: &str) -> Result<(), Self::Error>;
}

/// What a job that runs does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It saved its state, just now.
    Saved,
    /// It ends: all is done.
    Done,
    /// It ends as it was asked to, and saved its state.
    Stopped,
    /// A fault ends it.
    Failed {
        /// In words.
        why: String,
        /// Whether the same could go well another time.
        again: bool,
    },
}

/// How it went.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FleetOutcome {
    /// Jobs that failed for good, each with the reason.
    pub failed: Vec<(usize, String)>,
    /// Jobs that wait for these.
    pub skipped: Vec<usize>,
    /// Whether somebody stopped all jobs.
    pub is_interrupted: bool,
}

/// Carries the jobs out that a log does not have as ended, beginning with a schedule if the log is empty. A job that fails is begun
/// again at most `retries` times. The machine is the only
/// node of the instance. `log` grows by what happens.
///
/// # Errors
/// What `workers` cannot do.
///
/// # Panics
/// If the instance has several nodes, or the log is none of it.
pub fn carry_out<W: Workers>(
    (instance, objective): (&Instance, Objective),
    first: &Schedule,
    retries: usize,
    log: &mut String,
    workers: &mut W,
) -> Result<FleetOutcome, W::Error> {
    assert_eq!(instance.nodes().len(), 1, "a fleet is carried out on one machine");
    if log.is_empty() {
        *log = HEADER.into();
        workers.keep(HEADER.trim_end())?;
    }
    let open = job_runs(log, instance).into_iter().filter(|piece| piece.end.is_none()).map(|piece| piece.job);
    let open: Vec<usize> = open.collect();
    let runs = vec![None; instance.jobs.len()];
    let tries = vec![0; instance.jobs.len()];
    let (stopping, carried) = (BTreeSet::new(), FleetOutcome::default());
    let mut runner = Runner { instance, objective, retries, log, workers, runs, stopping, tries, carried };
    // They ended with whoever carried them out before.
    open.into_iter().try_for_each(|job| runner.take(job, Event::Stopped))?;
    runner.run(first)
}

/// The state of a fleet that is carried out.
struct Runner<'a, W> {
    instance: &'a Instance,
    objective: Objective,
    /// How often a job that failed is begun again.
    retries: usize,
    log: &'a mut String,
    workers: &'a mut W,
    /// The cores of each job that runs.
    runs: Vec<Option<usize>>,
    /// Jobs that were asked to stop and have not ended.
    stopping: BTreeSet<usize>,
    /// How often each job failed.
    tries: Vec<usize>,
    carried: FleetOutcome,
}

impl<W: Workers> Runner<'_, W> {
    fn run(mut self, first: &Schedule) -> Result<FleetOutcome, W::Error> {
        let mut schedule = first.clone();
        let mut is_new = *self.log == HEADER;
        loop {
            if self.workers.is_interrupted() {
                return self.interrupted();
            }
            if !std::mem::take(&mut is_new) {
                let moved;
                (schedule, moved) = self.planned(&schedule);
                for job in moved {
                    if self.stopping.insert(job) {
                        self.workers.stop(job);
                    }
                }
            }
            let until = self.start(&schedule)?;
            if self.runs.iter().all(Option::is_none) && until.is_infinite() {
                return Ok(self.carried);
            }
            let mut has_changed = false;
            while !has_changed && !self.workers.is_interrupted() && self.workers.now() < until {
                for (job, event) in self.workers.wait(until) {
                    has_changed |= event != Event::Saved;
                    self.take(job, event)?;
                }
            }
        }
    }

    /// What the log says, without the jobs that are skipped.
    fn observed(&self) -> Observed {
        let observed = observed::read(self.log, self.instance);
        let mut observed = observed.unwrap_or_else(|fault| panic!("a log that was written here: {fault}"));
        let failed = self.carried.failed.iter().map(|(job, _)| job);
        for job in failed.chain(&self.carried.skipped) {
            observed.jobs[*job].has_ended = true;
        }
        observed
    }

    /// The schedule of the jobs that are left, and those that run and are to move.
    fn planned(&self, before: &Schedule) -> (Schedule, BTreeSet<usize>) {
        let mut order: Vec<&Placed> = before.placed.iter().collect();
        order.sort_by_key(|entry| (entry.start, entry.job));
        let before: Vec<(usize, usize)> = order.iter().map(|entry| (entry.job, entry.choice)).collect();
        let mut observed = self.observed();
        observed.now = observed.now.max(self.workers.now().ceil() as u64);
        let new = reschedule(self.instance, self.objective, &observed, &before);
        let new = new.expect("every job had room before, and the machine is the same");
        let old = |entry: &Placed| {
            let job = new.jobs[entry.job];
            let gpus = entry.choice_of(&new.instance).gpus;
            let choice = self.instance.jobs[job].choices.iter().position(|choice| choice.gpus == gpus);
            Placed { job, choice: choice.expect("a choice of the job"), ..entry.clone() }
        };
        let placed = new.answer.schedule.placed.iter().map(old).collect();
        (Schedule { placed }, new.moved.iter().map(|job| new.jobs[*job]).collect())
    }

    /// Starts the jobs whose turn it is; the time until which nothing changes by itself.
    fn start(&mut self, schedule: &Schedule) -> Result<f64, W::Error> {
        let cores = self.instance.gpus();
        let mut until = f64::INFINITY;
        for job in schedule.order() {
            let entry = schedule.placed.iter().find(|entry| entry.job == job).expect("it is in the order");
            let gpus = entry.choice_of(self.instance).gpus;
            let held: usize = self.runs.iter().flatten().sum();
            let user = self.instance.jobs[job].user;
            let of_user = (0..self.runs.len()).filter(|other| self.instance.jobs[*other].user == user);
            let held_by_user: usize = of_user.filter_map(|other| self.runs[other]).sum();
            let quota = self.instance.quota_of(job).unwrap_or(cores);
            if self.runs[job].is_some() || entry.start > 0 && self.instance.jobs[job].release == 0 {
                continue;
            }
            let release = self.instance.jobs[job].release as f64;
            if release > self.workers.now() {
                until = until.min(release);
            } else if entry.start == 0
                && held + gpus <= cores
                && (user.is_none() || held_by_user + gpus <= quota)
            {
                self.record("start", job, &format!("{gpus}@0"))?;
                self.workers.start(job, gpus)?;
                self.runs[job] = Some(gpus);
            }
        }
        Ok(until)
    }

    /// Takes what a job does.
    fn take(&mut self, job: usize, event: Event) -> Result<(), W::Error> {
        if matches!(event, Event::Saved | Event::Stopped) {
            self.progress(job)?;
        }
        if event == Event::Saved {
            return Ok(());
        }
        self.stopping.remove(&job);
        self.runs[job] = None;
        if event == Event::Done {
            return self.record("end", job, "");
        }
        self.record("stop", job, "")?;
        if let Event::Failed { why, again } = event {
            self.tries[job] += 1;
            if !again || self.tries[job] > self.retries {
                self.carried.failed.push((job, why));
                self.skip_dependents(job);
            }
        }
        Ok(())
    }

    /// Skips all jobs that wait for one.
    fn skip_dependents(&mut self, gone: usize) {
        for job in 0..self.instance.jobs.len() {
            if self.instance.jobs[job].after.contains(&gone) && !self.carried.skipped.contains(&job) {
                self.carried.skipped.push(job);
                self.skip_dependents(job);
            }
        }
    }

    /// Stops all jobs and waits for them.
    fn interrupted(mut self) -> Result<FleetOutcome, W::Error> {
        let running: Vec<usize> = (0..self.runs.len()).filter(|job| self.runs[*job].is_some()).collect();
        running.into_iter().for_each(|job| self.workers.stop(job));
        while self.runs.iter().any(Option::is_some) {
            for (job, event) in self.workers.wait(f64::INFINITY) {
                self.take(job, event)?;
            }
        }
        Ok(FleetOutcome { is_interrupted: true, ..self.carried })
    }

    /// Records what a job has saved. A speed that `observed` takes for a mistake is skipped.
    fn progress(&mut self, job: usize) -> Result<(), W::Error> {
        let line = self.line("progress", job, &format!("{:.6}", self.workers.saved(job)));
        match observed::read(&(self.log.clone() + &line), self.instance) {
            Ok(_) => self.keep(&line),
            Err(_) => Ok(()),
        }
    }

    fn record(&mut self, event: &str, job: usize, value: &str) -> Result<(), W::Error> {
        let line = self.line(event, job, value);
        self.keep(&line)
    }

    fn line(&self, event: &str, job: usize, value: &str) -> String {
        let mut writer = csv::Writer::from_writer(Vec::new());
        let time = format!("{:.3}", self.workers.now());
        let written = writer.write_record([time.as_str(), event, &self.instance.jobs[job].name, value]);
        written.expect("memory can be written to");
        String::from_utf8(writer.into_inner().expect("memory can be written to")).expect("fields are text")
    }

    fn keep(&mut self, line: &str) -> Result<(), W::Error> {
        self.log.push_str(line);
        self.workers.keep(line.trim_end())
    }
}

/// A run of a job, from a start to a stop or to its end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct JobRun {
    /// The job.
    pub job: usize,
    /// Its cores.
    pub gpus: usize,
    /// Seconds.
    pub start: f64,
    /// Seconds; `None` while it runs.
    pub end: Option<f64>,
    /// Whether the job was done with it.
    pub is_last: bool,
}

/// The runs of all jobs that a log has, in the order of their starts. Lines that make no sense are left to `observed::read`.
pub fn job_runs(log: &str, instance: &Instance) -> Vec<JobRun> {
    #[derive(Deserialize)]
    struct Line(f64, String, String, String);
    let mut pieces: Vec<JobRun> = Vec::new();
    let mut reader = csv::Reader::from_reader(log.as_bytes());
    for Line(time, event, name, value) in reader.deserialize().flatten() {
        let Some(job) = instance.jobs.iter().position(|job| job.name == name) else { continue };
        let open = pieces.iter_mut().rfind(|piece| piece.job == job && piece.end.is_none());
        match (event.as_str(), open) {
            ("start", _) => {
                let gpus = value.split('@').next().and_then(|gpus| gpus.parse().ok()).unwrap_or(0);
                pieces.push(JobRun { job, gpus, start: time, end: None, is_last: false });
            }
            ("stop" | "end", Some(piece)) => (piece.end, piece.is_last) = (Some(time), event == "end"),
            _ => {}
        }
    }
    pieces
}
