//! A new schedule when reality differs from the forecast: what has ended is gone, what runs may stay, all else is placed anew.
//!
//! A job that stays takes what is left of it; one that begins again takes what is left since it last saved, and a restart: so it
//! moves only where that brings more than it costs. First all stay; then jobs are moved one by one, as long as the objective falls.
//! Times count from now. Where all nodes are up and nothing ran, this is a schedule of list scheduling and local search.

use crate::bound::{Moving, lower_bound};
use crate::check::check;
use crate::instance::{Choice, FleetError, FleetJob, Instance};
use crate::list::{Sequence, place};
use crate::objective::{Objective, Score};
use crate::observed::Observed;
use crate::schedule::Schedule;
use crate::{Answer, Rival};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use std::cmp::Reverse;

/// Placements of a job on a node that one search looks at, from nothing and from an earlier schedule.
const WORK: usize = 4_000_000;
const WORK_FROM_BEFORE: usize = 50_000;
/// The most steps of one search.
const MOST_STEPS: usize = 4_000;
/// By which part a step may be worse at the beginning.
const THRESHOLD: f64 = 0.2;
/// How long a node that is down is taken to be so.
const DOWN: u64 = 1 << 40;

/// A new schedule, and what it is about.
#[derive(Debug, Clone, PartialEq)]
pub struct Rescheduled {
    /// The jobs that have not ended, each with its choice in each of the three schedules; times from now.
    pub instance: Instance,
    /// The place of each of them in the old instance.
    pub jobs: Vec<usize>,
    /// The jobs that keep their GPUs, and those that ran and are moved, by their places in the new instance.
    pub kept: Vec<usize>,
    /// See there.
    pub moved: Vec<usize>,
    /// The schedule, beside it that in which all stay and that in which all begin again.
    pub answer: Answer,
}

/// What is to be done, and with what stays.
struct Problem<'a> {
    old: &'a Instance,
    observed: &'a Observed,
    objective: Objective,
    /// Jobs that have not ended.
    jobs: Vec<usize>,
    /// The order of jobs and their choices in an earlier schedule.
    before: &'a [(usize, usize)],
}

/// Jobs, then a stand-in for each node that is down; its schedule; the nodes of those that cannot choose.
#[derive(Clone)]
struct Found {
    instance: Instance,
    schedule: Schedule,
    score: Score,
    stays: Vec<bool>,
}

/// The new schedule. `before` has the jobs of an earlier schedule in its order, each with its choice: the
/// search begins with this order and these choices too, where all jobs have one. It may be empty.
///
/// # Errors
/// A job that fits on no nodes that are up.
pub fn reschedule(
    old: &Instance,
    objective: Objective,
    observed: &Observed,
    before: &[(usize, usize)],
) -> Result<Rescheduled, FleetError> {
    let jobs: Vec<usize> = (0..old.jobs.len()).filter(|job| !observed.jobs[*job].has_ended).collect();
    let problem = Problem { old, observed, objective, jobs, before };
    problem.fits()?;
    let runs: Vec<bool> = problem.jobs.iter().map(|job| observed.jobs[*job].running.is_some()).collect();
    let may_move = |place: usize| runs[place] && old.jobs[problem.jobs[place]].restart.is_some();
    let all_stay = problem.search(runs.clone());
    let all_move = problem.search((0..runs.len()).map(|place| runs[place] && !may_move(place)).collect());
    let first = if all_move.score.is_worth_a_move(&all_stay.score) { &all_move } else { &all_stay };
    let mut best = first.clone();
    loop {
        let flip = |place: usize| {
            let mut stays = best.stays.clone();
            stays[place] = !stays[place];
            stays
        };
        let others =
            (0..runs.len()).filter(|place| may_move(*place)).map(|place| problem.search(flip(place)));
        let next = others.min_by(|one, other| one.score.compare(&other.score));
        match next {
            Some(next) if next.score.is_worth_a_move(&best.score) => best = next,
            _ => break,
        }
    }
    let (instance, mut schedules) = problem.joined([&best, &all_stay, &all_move]);
    let of = |stays: bool| {
        let is = |place: &usize| runs[*place] && best.stays[*place] == stays;
        (0..runs.len()).filter(is).collect()
    };
    let bound =
        lower_bound(&problem.relaxed(), objective, Moving::No, best.score.value()).min(best.score.value());
    let mut rival = |name, summary, score| {
        let schedule = schedules.remove(1);
        Rival { name, summary, is_current_practice: false, schedule, score }
    };
    let heuristics = vec![
        rival("all-stay", "every job that runs stays where it is", all_stay.score),
        rival("all-move", "every job that runs and may move begins again", all_move.score),
    ];
    let schedule = schedules.remove(0);
    let answer = Answer { schedule, score: best.score, bound, heuristics, program: None, keeps_none: false };
    Ok(Rescheduled { kept: of(true), moved: of(false), instance, jobs: problem.jobs, answer })
}

impl Problem<'_> {
    /// What is left of a job with a choice.
    fn choice(&self, job: usize, choice: &Choice, stays: bool) -> Choice {
        let state = &self.observed.jobs[job];
        let left = if stays { state.left } else { state.left_saved };
        let seconds = (choice.duration as f64 * state.factor * left).ceil() as u64;
        let restart = if state.has_begun && !stays { self.old.jobs[job].restart.unwrap_or(0) } else { 0 };
        let duration = seconds.max(1) + restart;
        let cost = choice.cost * duration as f64 / choice.duration as f64;
        Choice { duration, cost, ..choice.clone() }
    }

    /// The choices of a job: the one that it has, or all.
    fn choices(&self, job: usize, stays: bool) -> Vec<Choice> {
        let all = &self.old.jobs[job].choices;
        match &self.observed.jobs[job].running {
            Some(running) if stays => vec![self.choice(job, &all[running.choice], true)],
            _ => {
                let up = all.iter().filter(|choice| self.is_up(job, choice));
                up.map(|choice| self.choice(job, choice, false)).collect()
            }
        }
    }

    fn instance(
        &self,
        choices: impl Fn(usize, usize) -> Vec<Choice>,
        stays: impl Fn(usize) -> bool,
    ) -> Instance {
        let now = self.observed.now;
        let of = |(place, job): (usize, &usize)| {
            let old = &self.old.jobs[*job];
            let after = |before: &usize| self.jobs.iter().position(|other| other == before);
            // A job that runs on has begun: what it waited for is over, or the log would not have it.
            let waits = !stays(place);
            FleetJob {
                choices: choices(place, *job),
                release: if waits { old.release.saturating_sub(now) } else { 0 },
                deadline: old.deadline.map(|deadline| deadline.saturating_sub(now)),
                after: if waits { old.after.iter().filter_map(after).collect() } else { Vec::new() },
                ..old.clone()
            }
        };
        let jobs = self.jobs.iter().enumerate().map(of).collect();
        Instance { jobs, ..self.old.emptied() }
    }

    /// The jobs with every way to go on, which may stay or move on any nodes: no new schedule is below a bound of it.
    fn relaxed(&self) -> Instance {
        let choices = |_: usize, job: usize| {
            let mut all = self.choices(job, true);
            all.extend(self.choices(job, false));
            all
        };
        let runs = |place: usize| self.observed.jobs[self.jobs[place]].running.is_some();
        self.instance(choices, runs)
    }

    /// Whether nodes that are up have room for a choice.
    fn is_up(&self, job: usize, choice: &Choice) -> bool {
        let (count, mut row, mut all) = (self.old.nodes_of(choice), 0, 0);
        for (node, kind) in self.old.nodes().into_iter().enumerate() {
            let is_up = kind == choice.kind && !self.observed.down.contains(&node);
            row = if is_up { row + 1 } else { 0 };
            all += usize::from(is_up);
            if row >= count || !self.old.contiguous && all >= count {
                return self.old.has_room(job, choice);
            }
        }
        false
    }

    /// Whether every job fits on the nodes that are up.
    fn fits(&self) -> Result<(), FleetError> {
        for &job in &self.jobs {
            let of = &self.old.jobs[job];
            if !of.choices.iter().any(|choice| self.is_up(job, choice)) {
                let reason = "the nodes that are up do not have GPUs enough".into();
                return Err(FleetError::NeverFits { job: of.name.clone(), reason });
            }
        }
        Ok(())
    }

    /// The best schedule that is found if these jobs stay.
    fn search(&self, stays: Vec<bool>) -> Found {
        let mut instance = self.instance(|place, job| self.choices(job, stays[place]), |place| stays[place]);
        let real = instance.jobs.len();
        let mut nodes: Vec<Option<Vec<usize>>> = (0..real)
            .map(|place| {
                let running = self.observed.jobs[self.jobs[place]].running.as_ref();
                running.filter(|_| stays[place]).map(|running| running.nodes.clone())
            })
            .collect();
        let kinds = self.old.nodes();
        for node in &self.observed.down {
            let kind = kinds[*node];
            let gpus = self.old.kinds[kind].gpus;
            let choice =
                Choice { kind, gpus, duration: DOWN, cost: 0.0, spread: Vec::new(), plan: String::new() };
            instance.jobs.push(FleetJob {
                name: format!("node {node} is down"),
                choices: vec![choice],
                release: 0,
                deadline: None,
                weight: 0.0,
                after: Vec::new(),
                user: None,
                restart: None,
            });
            nodes.push(Some(vec![*node]));
        }
        let free: Vec<usize> = (0..real).filter(|place| !stays[*place]).collect();
        let first: Vec<usize> = (0..instance.jobs.len()).filter(|place| nodes[*place].is_some()).collect();
        let score = |sequence: &Sequence| {
            let placed = place(&instance, sequence, &nodes);
            let ends = placed.iter().filter(|entry| entry.job < real);
            let ends = ends.map(|entry| (entry.job, entry.end, entry.choice_of(&instance).cost));
            self.objective.score_of(&instance, ends)
        };
        let starts =
            starts(&instance, &first, &free).into_iter().chain(self.as_before(&instance, &first, &free));
        let scored = starts.map(|sequence| (score(&sequence), sequence));
        let best = scored.min_by(|one, other| one.0.compare(&other.0));
        let (mut value, mut best) = best.expect("there is a sequence for the longest duration");
        let work = if self.before.is_empty() { WORK } else { WORK_FROM_BEFORE };
        let steps = (work / (instance.jobs.len() * kinds.len()).max(1)).min(MOST_STEPS);
        let mut random = ChaCha8Rng::seed_from_u64(0);
        let (mut current, mut energy) = (best.clone(), value);
        for step in 0..if free.is_empty() { 0 } else { steps } {
            let mut next = current.clone();
            let place = random.random_range(first.len()..next.order.len());
            let other = random.random_range(first.len()..next.order.len());
            let job = next.order[place];
            match random.random_range(0..3) {
                0 => next.choices[job] = random.random_range(0..instance.jobs[job].choices.len()),
                1 => next.order.swap(place, other),
                _ => {
                    next.order.remove(place);
                    next.order.insert(other, job);
                }
            }
            let found = score(&next);
            // Worse ones are kept, too, up to a threshold that falls to zero, as in `improve`.
            let threshold = 1.0 + THRESHOLD * (1.0 - step as f64 / steps as f64);
            if found.0[0] <= energy.0[0] && found.0[1] <= energy.0[1] * threshold {
                (energy, current) = (found, next);
                if energy.is_below(&value) {
                    (value, best) = (energy, current.clone());
                }
            }
        }
        let schedule = Schedule::with_gpus(&instance, place(&instance, &best, &nodes));
        assert_eq!(check(&instance, &schedule), Ok(()), "a new schedule keeps all rules");
        Found { instance, schedule, score: value, stays }
    }

    /// The sequence of the earlier schedule; `None` if it lacks a job, or the nodes that are up have no room for a choice.
    fn as_before(&self, instance: &Instance, first: &[usize], free: &[usize]) -> Option<Sequence> {
        let known = self.before.iter().filter_map(|(job, choice)| {
            let place =
                self.jobs.iter().position(|other| other == job).filter(|place| free.contains(place))?;
            Some((place, &self.old.jobs[*job].choices[*choice]))
        });
        let known: Vec<(usize, &Choice)> = known.collect();
        let mut choices = vec![0; instance.jobs.len()];
        for (place, choice) in &known {
            let is_same = |of: &Choice| of.kind == choice.kind && of.gpus == choice.gpus;
            choices[*place] = instance.jobs[*place].choices.iter().position(is_same)?;
        }
        let order = first.iter().copied().chain(known.iter().map(|(place, _)| *place)).collect();
        (known.len() == free.len()).then_some(Sequence { order, choices })
    }

    /// The jobs alone, each with the choice that it has in each schedule, and these schedules.
    fn joined(&self, all: [&Found; 3]) -> (Instance, Vec<Schedule>) {
        let mut instance = all[0].instance.clone();
        instance.jobs.truncate(self.jobs.len());
        for (place, job) in instance.jobs.iter_mut().enumerate() {
            let choice = |found: &&Found| found.schedule.placed[place].choice_of(&found.instance).clone();
            job.choices = all.iter().map(choice).collect();
        }
        let schedule = |(index, found): (usize, &&Found)| {
            let mut schedule = found.schedule.clone();
            schedule.placed.truncate(self.jobs.len());
            schedule.placed.iter_mut().for_each(|entry| entry.choice = index);
            schedule
        };
        (instance, all.iter().enumerate().map(schedule).collect())
    }
}

/// Sequences to begin with: for several T, each job with the choice of least GPU-time that takes no longer; the longest first, the
/// first of the file first, and those first that weigh most for their GPU-time.
fn starts(instance: &Instance, first: &[usize], free: &[usize]) -> Vec<Sequence> {
    let fits = |job: usize| instance.jobs[job].choices.iter().enumerate();
    let mut times: Vec<u64> =
        free.iter().flat_map(|job| fits(*job).map(|(_, choice)| choice.duration)).chain([u64::MAX]).collect();
    times.sort_unstable();
    times.dedup();
    let stride = times.len().div_ceil(32).max(1);
    let some = times.iter().rev().step_by(stride);
    let of_time = |limit: &u64| {
        let choice = |job: usize| {
            let key = |choice: &Choice| {
                let area = choice.area();
                let is_long = choice.duration > *limit;
                (is_long, if is_long { choice.duration } else { area }, choice.duration)
            };
            fits(job).min_by_key(|(_, choice)| key(choice)).map_or(0, |(index, _)| index)
        };
        let choices: Vec<usize> = (0..instance.jobs.len()).map(choice).collect();
        let of = |job: usize| &instance.jobs[job].choices[choices[job]];
        let mut longest = free.to_vec();
        longest.sort_by_key(|job| Reverse(of(*job).duration));
        let mut dearest = free.to_vec();
        let rate = |job: usize| instance.jobs[job].weight / (of(job).gpus as f64 * of(job).duration as f64);
        dearest.sort_by(|one, other| rate(*other).total_cmp(&rate(*one)));
        [longest, free.to_vec(), dearest].map(|order| Sequence {
            order: first.iter().copied().chain(order).collect(),
            choices: choices.clone(),
        })
    };
    some.flat_map(of_time).collect()
}
