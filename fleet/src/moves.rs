//! Schedules in which jobs stop and go on on other GPUs, from their checkpoints.
//!
//! Time goes from one end or release to the next. At each, the jobs that have not ended are scheduled anew by `reschedule`: those that
//! run stay or move, and a job that moves loses its restart. This is done from several schedules without moves; the best is kept, or
//! the best of those without moves.

use crate::bound::{Moving, lower_bound};
use crate::instance::{FleetError, Instance};
use crate::objective::Objective;
use crate::observed::{Observed, Running, State};
use crate::reschedule::reschedule;
use crate::schedule::{Placed, Schedule};
use crate::solve::{Answer, Effort, Rival, solve};
use rayon::prelude::*;

/// The part of a second by which what is left is less than a whole number of seconds, so that it does not become one more.
const ROUNDING: f64 = 1e-6;
/// The part of a job that is left at least, while it has not ended.
const LEAST_LEFT: f64 = 1e-9;

/// The best schedule that is found if jobs with a restart may move. Its bound is one for all schedules with moves.
///
/// # Errors
/// As `solve`.
pub fn solve_with_moves(
    instance: &Instance,
    objective: Objective,
    effort: Effort,
) -> Result<Answer, FleetError> {
    let mut answer = solve(instance, objective, effort)?;
    let first =
        std::iter::once(&answer.schedule).chain(answer.heuristics.iter().map(|rival| &rival.schedule));
    let first: Vec<&Schedule> = first.collect();
    let moved: Vec<Schedule> = first.par_iter().map(|first| with_moves(instance, objective, first)).collect();
    let scored = moved.into_iter().map(|schedule| (objective.score(instance, &schedule), schedule));
    let best = scored.min_by(|one, other| one.0.compare(&other.0)).expect("there is a schedule");
    let (name, summary) = ("without-moves", "every job keeps its GPUs until its end");
    let (schedule, score) = (answer.schedule.clone(), answer.score);
    answer.heuristics.insert(0, Rival { name, summary, is_current_practice: false, schedule, score });
    if best.0.is_below(&answer.score) {
        (answer.score, answer.schedule) = best;
    }
    let bound = lower_bound(instance, objective, Moving::Yes, answer.score.value());
    answer.bound = bound.min(answer.score.value());
    answer.keeps_none = false;
    Ok(answer)
}

/// A schedule that begins like another one, with moves where they make it better by what is known at each end and release.
pub fn with_moves(instance: &Instance, objective: Objective, first: &Schedule) -> Schedule {
    let jobs =
        vec![Progress { left: 1.0, has_begun: false, has_ended: false, run: None }; instance.jobs.len()];
    let mut clock = Clock { instance, objective, now: 0, jobs, done: Vec::new() };
    let mut planned = first.placed.clone();
    loop {
        clock.start(&planned);
        let Some(next) = clock.next(&planned) else { break };
        clock.now = next;
        clock.end();
        if clock.jobs.iter().any(|job| !job.has_ended) {
            planned = clock.plan(&planned);
        }
    }
    Schedule::with_gpus(instance, clock.done)
}

/// What became of a job so far.
#[derive(Clone)]
struct Progress {
    /// The part that was left when its run began, or is.
    left: f64,
    has_begun: bool,
    has_ended: bool,
    run: Option<Run>,
}

/// A run of a job: where and until when, and from when on it works.
#[derive(Clone)]
struct Run {
    entry: Placed,
    ready: u64,
}

struct Clock<'a> {
    instance: &'a Instance,
    objective: Objective,
    /// Seconds.
    now: u64,
    jobs: Vec<Progress>,
    /// Runs that are over.
    done: Vec<Placed>,
}

impl Clock<'_> {
    /// Starts the jobs whose turn it is.
    fn start(&mut self, planned: &[Placed]) {
        for entry in planned.iter().filter(|entry| entry.start == self.now) {
            let job = &mut self.jobs[entry.job];
            if job.has_ended || job.run.is_some() {
                continue;
            }
            let restart = if job.has_begun { self.instance.jobs[entry.job].restart.unwrap_or(0) } else { 0 };
            job.run = Some(Run { entry: entry.clone(), ready: self.now + restart });
            job.has_begun = true;
        }
    }

    /// The next end, release or start.
    fn next(&self, planned: &[Placed]) -> Option<u64> {
        let waits = |job: usize| !self.jobs[job].has_begun;
        let ends = self.jobs.iter().filter_map(|job| job.run.as_ref()).map(|run| run.entry.end);
        let releases = self.instance.jobs.iter().enumerate().filter(|(job, _)| waits(*job));
        let releases = releases.map(|(_, job)| job.release);
        let starts = planned.iter().filter(|entry| {
            let job = &self.jobs[entry.job];
            job.run.is_none() && !job.has_ended
        });
        let starts = starts.map(|entry| entry.start);
        ends.chain(releases).chain(starts).filter(|time| *time > self.now).min()
    }

    /// Ends the runs that are over now.
    fn end(&mut self) {
        for job in &mut self.jobs {
            if let Some(run) = job.run.take_if(|run| run.entry.end == self.now) {
                self.done.push(run.entry);
                job.has_ended = true;
            }
        }
    }

    /// The part of a job that is left.
    fn left(&self, job: usize) -> f64 {
        let progress = &self.jobs[job];
        let worked = progress.run.as_ref().map_or(0.0, |run| {
            let seconds = self.now.saturating_sub(run.ready) as f64;
            seconds / run.entry.choice_of(self.instance).duration as f64
        });
        (progress.left - worked).max(LEAST_LEFT)
    }

    /// What `reschedule` is to know.
    fn state(&self, job: usize) -> State {
        let progress = &self.jobs[job];
        let left_saved = self.left(job);
        let left = progress.run.as_ref().map_or(left_saved, |run| {
            let duration = run.entry.choice_of(self.instance).duration as f64;
            ((run.entry.end - self.now) as f64 - ROUNDING) / duration
        });
        let running = |run: &Run| Running { choice: run.entry.choice, nodes: run.entry.nodes.clone() };
        State {
            has_ended: progress.has_ended,
            has_begun: progress.has_begun,
            running: progress.run.as_ref().map(running),
            left,
            left_saved,
            factor: 1.0,
        }
    }

    /// The schedule of the jobs that have not ended. Jobs that are to move stop.
    fn plan(&mut self, before: &[Placed]) -> Vec<Placed> {
        let mut order: Vec<&Placed> = before.iter().collect();
        order.sort_by_key(|entry| (entry.start, entry.job));
        let before: Vec<(usize, usize)> = order.iter().map(|entry| (entry.job, entry.choice)).collect();
        let jobs = (0..self.jobs.len()).map(|job| self.state(job)).collect();
        let observed = Observed { now: self.now, jobs, down: Vec::new() };
        let new = reschedule(self.instance, self.objective, &observed, &before);
        let new = new.expect("every job had room before, and no node is down");
        for place in &new.moved {
            let job = new.jobs[*place];
            let left = self.left(job);
            if let Some(Run { entry, .. }) =
                self.jobs[job].run.take().filter(|run| run.entry.start < self.now)
            {
                self.done.push(Placed { end: self.now, ..entry });
            }
            self.jobs[job].left = left;
        }
        let entry = |entry: &Placed| {
            let (job, choice) = (new.jobs[entry.job], entry.choice_of(&new.instance));
            let is_same = |of: &crate::instance::Choice| (of.kind, of.gpus) == (choice.kind, choice.gpus);
            let choice = self.instance.jobs[job].choices.iter().position(is_same);
            let (start, end) = (self.now + entry.start, self.now + entry.end);
            Placed { job, choice: choice.expect("a choice of the job"), start, end, ..entry.clone() }
        };
        let planned: Vec<Placed> = new.answer.schedule.placed.iter().map(entry).collect();
        for entry in &planned {
            if let Some(run) = &self.jobs[entry.job].run {
                debug_assert_eq!(run.entry.end, entry.end, "a job that stays ends when it was to end");
            }
        }
        planned
    }
}
