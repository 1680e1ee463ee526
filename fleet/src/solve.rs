//! From an instance to a schedule with a proved bound: heuristics, local search, the integer program.

use crate::bound::{Moving, by_patterns, lower_bound};
use crate::check::check;
use crate::heuristics::HEURISTICS;
use crate::improve::{Search, improve};
use crate::instance::{FleetError, Instance};
use crate::list::{Sequence, place, schedule};
use crate::objective::{Objective, Score};
use crate::order_search;
use crate::program::{Known, solve as solve_program};
use crate::schedule::Schedule;
use rayon::prelude::*;
use std::time::Instant;
use trainwright_planner::solver::Limits;
use trainwright_spec::units::Seconds;

/// Nodes of branch and bound of a program times its columns.
const NODES: f64 = 5e4;
/// Branches of the search over orders.
const BRANCHES: f64 = 400_000.0;
/// The most jobs for which it is tried.
const MOST_ORDERED: usize = 12;
/// Local searches, each with its seed.
const SEARCHES: u64 = 4;
/// Rounds of them, each from the best schedule so far.
const ROUNDS: u64 = 5;
/// The makespan that a search allows choices, between the bound and the best one: a job's long choice, once the others have
/// settled around it, does not change any more.
const WITHIN: [f64; SEARCHES as usize] = [0.25, 0.25, 0.5, 1.0];
/// Objectives that are nearer than this part are equal.
const SAME: f64 = 1e-9;

/// How far a search goes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Effort {
    /// Multiplies the steps of local search and the nodes of branch and bound.
    pub factor: f64,
    /// An end by the clock; with it alone the answer depends on the speed of the machine.
    pub time: Option<Seconds>,
}

impl Default for Effort {
    fn default() -> Self {
        Self { factor: 1.0, time: None }
    }
}

/// A schedule and what is known of others.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The best schedule that was found.
    pub schedule: Schedule,
    /// Its score.
    pub score: Score,
    /// What no schedule (that keeps all deadlines, if this one does) is below.
    pub bound: f64,
    /// The schedule of each heuristic, in the order of their table.
    pub heuristics: Vec<Rival>,
    /// The integer program, if one was small enough.
    pub program: Option<Tried>,
    /// Whether it is proved that no schedule keeps all deadlines.
    pub keeps_none: bool,
}

/// A heuristic's schedule.
#[derive(Debug, Clone, PartialEq)]
pub struct Rival {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub summary: &'static str,
    /// Whether people do so today.
    pub is_current_practice: bool,
    /// Its schedule.
    pub schedule: Schedule,
    /// Its score.
    pub score: Score,
}

/// How large the integer programs were.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tried {
    /// Columns of the largest.
    pub columns: usize,
    /// Nodes of branch and bound of all.
    pub nodes: usize,
}

impl Answer {
    /// By which part the bound is below the schedule's value.
    pub fn gap(&self) -> f64 {
        let value = self.score.value();
        if value > 0.0 { (1.0 - self.bound / value).max(0.0) } else { 0.0 }
    }

    /// Whether no schedule is better.
    pub fn is_proved(&self) -> bool {
        self.score.0[0] == 0.0 && self.gap() <= SAME
    }
}

/// The best schedule that is found.
///
/// # Errors
/// A job that never fits or cannot keep its deadline, jobs that wait for each other, no GPUs.
pub fn solve(instance: &Instance, objective: Objective, effort: Effort) -> Result<Answer, FleetError> {
    instance.check()?;
    if objective != Objective::Deadlines {
        instance.check_deadlines()?;
    }
    let begun = Instant::now();
    let left = || effort.time.map(|time| time.get() - begun.elapsed().as_secs_f64());
    let stop = || left().is_some_and(|left| left <= 0.0);
    let rivals: Vec<Rival> = HEURISTICS
        .par_iter()
        .map(|heuristic| {
            let schedule = heuristic.schedule(instance, objective);
            let score = objective.score(instance, &schedule);
            let (name, summary) = (heuristic.name(), heuristic.summary());
            let is_current_practice = heuristic.is_current_practice();
            Rival { name, summary, is_current_practice, schedule, score }
        })
        .collect();
    let best =
        rivals.iter().min_by(|one, other| one.score.compare(&other.score)).expect("there are heuristics");
    let mut best = Best { schedule: best.schedule.clone(), score: best.score };
    let mut bound = lower_bound(instance, objective, Moving::No, best.score.value());
    if objective == Objective::Makespan && !best.is_at(bound) {
        bound = by_patterns(instance, bound as u64, best.score.value() as u64) as f64;
    }
    for round in 0..ROUNDS {
        if best.is_at(bound) || stop() {
            break;
        }
        let start = Sequence { order: best.schedule.order(), choices: best.schedule.choices() };
        let seeds = round * SEARCHES..(round + 1) * SEARCHES;
        let search = |seed| {
            let within = match objective {
                Objective::Makespan => {
                    bound + WITHIN[(seed % SEARCHES) as usize] * (best.score.value() - bound)
                }
                _ => f64::INFINITY,
            };
            improve(instance, objective, &start, Search { effort: effort.factor, seed, within }, &|| stop()).0
        };
        let found: Vec<Sequence> = seeds.into_par_iter().map(search).collect();
        found.iter().for_each(|sequence| best.offer(instance, objective, schedule(instance, sequence)));
    }
    let mut keeps_none = false;
    // It knows schedules with successive nodes alone.
    if !best.is_at(bound) && !stop() && instance.contiguous && instance.jobs.len() <= MOST_ORDERED {
        let known = if best.score.0[0] > 0.0 { f64::INFINITY } else { best.score.value() };
        let ordered = order_search::search(instance, objective, known, (BRANCHES * effort.factor) as usize);
        if let Some((sequence, nodes)) = &ordered.sequence {
            let placed = place(instance, sequence, nodes);
            best.offer(instance, objective, Schedule::with_gpus(instance, placed));
        }
        match best.score.0[0] == 0.0 {
            true if ordered.is_complete => bound = best.score.value(),
            false => keeps_none = ordered.is_complete,
            true => {}
        }
    }
    let mut tried = None;
    if !best.is_at(bound) && !stop() {
        let limits = |columns: usize| {
            let nodes = (NODES * effort.factor / columns.max(1) as f64) as u64;
            Limits { time: left().map(Seconds::new), nodes: Some(nodes.max(20)) }
        };
        let known = Known { value: best.score.value(), missed: best.score.0[0] };
        if let Some(solved) = solve_program(instance, objective, known, &limits) {
            tried = Some(Tried { columns: solved.columns, nodes: solved.nodes });
            if let Some((sequence, nodes)) = &solved.sequence {
                let placed = place(instance, sequence, nodes);
                best.offer(instance, objective, Schedule::with_gpus(instance, placed));
            }
            if best.score.0[0] == 0.0 {
                bound = bound.max(solved.bound.min(best.score.value()));
            }
        }
    }
    if objective.is_whole(instance) {
        bound = (bound - 1e-6 * bound.max(1.0)).ceil().max(bound);
    }
    debug_assert_eq!(check(instance, &best.schedule), Ok(()));
    let bound = bound.min(best.score.value());
    Ok(Answer {
        schedule: best.schedule,
        score: best.score,
        bound,
        heuristics: rivals,
        program: tried,
        keeps_none,
    })
}

/// The best schedule so far.
struct Best {
    schedule: Schedule,
    score: Score,
}

impl Best {
    fn is_at(&self, bound: f64) -> bool {
        self.score.0[0] == 0.0 && self.score.value() <= bound * (1.0 + SAME)
    }

    fn offer(&mut self, instance: &Instance, objective: Objective, schedule: Schedule) {
        let score = objective.score(instance, &schedule);
        if score.is_below(&self.score) {
            *self = Self { schedule, score };
        }
    }
}
