//! The integer program: which choice, which nodes and which start for each job.
//!
//! ```text
//! x_jcpt ∈ {0, 1}   job j runs with choice c on place p from grid point t on; e_t is the earliest start that t stands for
//!
//! min  M                                  makespan, or
//!      Σ v_j(e_t + d_c) x_jcpt            the objective of each job's end: weighted completion, cost or lateness
//! s.t. Σ_cpt x_jcpt = 1                                                  every job once
//!      Σ_jcp Σ_{t ≤ s < t + l_c} u_pr x_jcpt ≤ U_r                       no GPU twice, on resource r at grid point s
//!      Σ_cp Σ_{t + l_c > s} x_icpt + Σ_cp Σ_{t ≤ s} x_jcpt ≤ 1           j after i: at no s has j begun and i not ended
//!      Σ_cpt (e_t + d_c + q_j) x_jcpt ≤ M                                every job, with the shortest chain q_j after it
//! ```
//!
//! d_c is the duration in seconds, l_c the number of grid points that it surely covers, u_pr the GPUs that place p takes of
//! resource r. A resource is a node; or all nodes of a kind, where they can stand for each other: where every choice takes whole
//! nodes one at a time, or there is one node; or the quota of a user, of which all GPUs of its jobs are taken.
//!
//! **Exact grid.** Where the unit Δ divides all durations and releases, l_c = d_c / Δ, e_t = t Δ and the program is the problem: the
//! list schedule of a best schedule's order has all starts on the grid.
//!
//! **Coarse grid.** Else l_c = ⌊d_c / Δ⌋ and e_t = (t − 1) Δ + 1, or 0 for t = 0. Then the program is a relaxation. Let a schedule
//! begin job j at s: it covers the grid points ⌈s / Δ⌉ to ⌈s / Δ⌉ + l_c − 1, for these lie in [s, s + d_c); and
//! s ≥ (⌈s / Δ⌉ − 1) Δ + 1 in whole seconds. So the optimum of the program is a lower bound, and its order and choices, list
//! scheduled with the durations themselves, are a schedule.
//!
//! Columns are left out that no schedule better than the best known one can use: for the makespan, those with
//! e_t + d_c + q_j ≥ the known one, for a sum those that exceed it with the least that all other jobs add. If no values are left, the known one is an optimum.

use crate::instance::{Choice, Instance};
use crate::list::Sequence;
use crate::objective::Objective;
use std::ops::Range;
use trainwright_planner::solver::{IntegerProgram, Limits, Relation, search};

/// The most columns of a program.
const MOST_COLUMNS: usize = 2_500;
/// The most entries of its rows.
const MOST_ENTRIES: usize = 60_000;
/// Grid points that are tried for the horizon, the finest grid first.
const GRIDS: [u64; 6] = [240, 160, 100, 64, 40, 24];

/// What the program says; its schedule must be made and checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Solved {
    /// Order, choices and nodes; `None` without a solution.
    pub sequence: Option<(Sequence, Vec<Option<Vec<usize>>>)>,
    /// What no schedule is below; infinite if none is better than the known one and this one.
    pub bound: f64,
    /// Columns of the program.
    pub columns: usize,
    /// Nodes of branch and bound.
    pub nodes: usize,
}

/// A known schedule's value, and whether it keeps all deadlines.
#[derive(Debug, Clone, Copy)]
pub struct Known {
    /// The objective's value.
    pub value: f64,
    /// The weight of missed deadlines; zero for lateness as objective.
    pub missed: f64,
}

/// Solves the finest program that is small enough; `None` if none is, or if the solver gave up without a bound.
pub fn solve(
    instance: &Instance,
    objective: Objective,
    known: Known,
    limits: &dyn Fn(usize) -> Limits,
) -> Option<Solved> {
    let program = grids(instance, objective, known)
        .find_map(|grid| Program::build(instance, objective, known, grid))?;
    let searched = search(&program.rows, limits(program.columns.len()));
    let bound = match &searched.values {
        None if searched.proved => f64::INFINITY,
        Some(_) if searched.proved && program.is_exact => f64::INFINITY,
        // The relaxation of a node is exact up to its tolerance.
        _ => searched.bound? * program.scale * (1.0 - 1e-7),
    };
    let sequence = searched.values.map(|values| program.sequence(instance, &values));
    Some(Solved { sequence, bound, columns: program.columns.len(), nodes: searched.nodes })
}

/// The unit of time, and whether it divides all durations and releases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Grid {
    unit: u64,
    is_exact: bool,
}

/// Grids from the finest to the coarsest.
fn grids(instance: &Instance, objective: Objective, known: Known) -> impl Iterator<Item = Grid> {
    let of_job = |job: &crate::instance::FleetJob| {
        job.choices.iter().map(|choice| choice.duration).chain([job.release]).fold(0, greatest_divisor)
    };
    let exact = instance.jobs.iter().map(of_job).fold(0, greatest_divisor).max(1);
    let horizon = horizon(instance, objective, known);
    let coarse =
        GRIDS.into_iter().map(move |points| horizon.div_ceil(points)).filter(move |unit| *unit > exact);
    let coarse = coarse.map(|unit| Grid { unit, is_exact: false });
    [Grid { unit: exact, is_exact: true }].into_iter().chain(coarse)
}

fn greatest_divisor(one: u64, other: u64) -> u64 {
    if other == 0 { one } else { greatest_divisor(other, one % other) }
}

/// A time by which all jobs have ended in some schedule that is better than the known one, if there is any.
fn horizon(instance: &Instance, objective: Objective, known: Known) -> u64 {
    let longest = |job: usize| instance.fitting(job).map(|choice| choice.duration).max().unwrap_or(0);
    let release = instance.jobs.iter().map(|job| job.release).max().unwrap_or(0);
    let serial = release + (0..instance.jobs.len()).map(longest).sum::<u64>();
    match objective {
        Objective::Makespan if known.missed == 0.0 => serial.min(known.value as u64),
        _ => serial,
    }
}

/// A column with what it stands for.
struct Start {
    job: usize,
    choice: usize,
    /// The first node, and how many.
    nodes: (usize, usize),
    /// Grid points: first, and one after the last that it surely covers.
    points: (u64, u64),
}

struct Program {
    rows: IntegerProgram,
    columns: Vec<Start>,
    /// The objective of the program times this is that of the problem.
    scale: f64,
    is_exact: bool,
    pooled: Vec<bool>,
}

impl Program {
    /// `None` if it is too large.
    fn build(instance: &Instance, objective: Objective, known: Known, grid: Grid) -> Option<Self> {
        let pooled: Vec<bool> = (0..instance.kinds.len()).map(|kind| is_pooled(instance, kind)).collect();
        let columns = columns(instance, objective, known, grid, &pooled)?;
        let scale = known.value.max(1.0);
        let mut rows = IntegerProgram::default();
        for start in &columns {
            let end = earliest(start.points.0, grid) + choice(instance, start).duration;
            let value = objective.of_job(instance, start.job, end, choice(instance, start).cost);
            rows.binary(value / scale);
        }
        let mut entries = 0;
        let mut add = |rows: &mut IntegerProgram, terms: Vec<(usize, f64)>, relation, right| {
            entries += terms.len();
            rows.row(terms, relation, right);
            entries <= MOST_ENTRIES
        };
        let of_job = |job: usize| columns.iter().enumerate().filter(move |(_, start)| start.job == job);
        for job in 0..instance.jobs.len() {
            add(&mut rows, of_job(job).map(|(index, _)| (index, 1.0)).collect(), Relation::Equal, 1.0);
        }
        if objective == Objective::Makespan {
            let tails = instance.tails();
            let most = horizon(instance, objective, known) as f64 / scale;
            let last = rows.column(1.0, most.max(1.0));
            for (job, tail) in tails.iter().enumerate() {
                let end =
                    |start: &Start| earliest(start.points.0, grid) + choice(instance, start).duration + tail;
                let mut terms: Vec<(usize, f64)> =
                    of_job(job).map(|(index, start)| (index, end(start) as f64 / scale)).collect();
                terms.push((last, -1.0));
                add(&mut rows, terms, Relation::AtMost, 0.0);
            }
        }
        let points: Vec<u64> = {
            let mut all: Vec<u64> = columns.iter().map(|start| start.points.0).collect();
            all.sort_unstable();
            all.dedup();
            all
        };
        // Only where something begins can a resource become too small.
        for (capacity, resource) in resources(instance, &pooled) {
            for point in &points {
                let covers = |start: &Start| start.points.0 <= *point && *point < start.points.1;
                let terms: Vec<(usize, f64)> = columns
                    .iter()
                    .enumerate()
                    .filter(|(_, start)| covers(start))
                    .map(|(index, start)| (index, resource.taken(instance, start) as f64))
                    .filter(|(_, gpus)| *gpus > 0.0)
                    .collect();
                let most: f64 = terms.iter().map(|(_, gpus)| gpus).sum();
                if most > capacity as f64 && !add(&mut rows, terms, Relation::AtMost, capacity as f64) {
                    return None;
                }
            }
        }
        for job in 0..instance.jobs.len() {
            for &before in &instance.jobs[job].after {
                for point in &points {
                    let late = of_job(before).filter(|(_, start)| start.points.1 > *point);
                    let begun = of_job(job).filter(|(_, start)| start.points.0 <= *point);
                    let terms: Vec<(usize, f64)> = late.chain(begun).map(|(index, _)| (index, 1.0)).collect();
                    if !add(&mut rows, terms, Relation::AtMost, 1.0) {
                        return None;
                    }
                }
            }
        }
        Some(Self { rows, columns, scale, is_exact: grid.is_exact, pooled })
    }

    /// The order of the starts, with choices and nodes.
    fn sequence(&self, instance: &Instance, values: &[f64]) -> (Sequence, Vec<Option<Vec<usize>>>) {
        let mut chosen: Vec<&Start> = self
            .columns
            .iter()
            .zip(values)
            .filter(|(_, value)| **value > 0.5)
            .map(|(start, _)| start)
            .collect();
        chosen.sort_by_key(|start| (start.points.0, start.points.1, start.job));
        let mut choices = vec![0; instance.jobs.len()];
        let mut nodes = vec![None; instance.jobs.len()];
        for start in &chosen {
            choices[start.job] = start.choice;
            if !self.pooled[choice(instance, start).kind] {
                nodes[start.job] = Some((start.nodes.0..start.nodes.0 + start.nodes.1).collect());
            }
        }
        (Sequence { order: chosen.iter().map(|start| start.job).collect(), choices }, nodes)
    }
}

fn choice<'a>(instance: &'a Instance, start: &Start) -> &'a Choice {
    &instance.jobs[start.job].choices[start.choice]
}

/// GPUs that a choice takes of each of its nodes.
fn per_node(instance: &Instance, choice: &Choice) -> usize {
    choice.gpus.min(instance.kinds[choice.kind].gpus)
}

/// The earliest start that a grid point stands for, in seconds.
fn earliest(point: u64, grid: Grid) -> u64 {
    match (grid.is_exact, point) {
        (true, _) => point * grid.unit,
        (false, 0) => 0,
        (false, _) => (point - 1) * grid.unit + 1,
    }
}

/// Whether the nodes of a kind can stand for each other at any time: there is one, or every choice takes one whole node.
fn is_pooled(instance: &Instance, kind: usize) -> bool {
    let of = &instance.kinds[kind];
    let mut choices = instance.jobs.iter().flat_map(|job| &job.choices).filter(|choice| choice.kind == kind);
    of.nodes == 1 || choices.all(|choice| choice.gpus == of.gpus)
}

/// What has a number of GPUs.
enum Resource {
    Nodes(Range<usize>),
    /// The quota of a user.
    User(usize),
}

impl Resource {
    /// GPUs that a column takes of it.
    fn taken(&self, instance: &Instance, start: &Start) -> usize {
        let (first, count) = start.nodes;
        match self {
            Self::Nodes(nodes) if nodes.start < first + count && first < nodes.end => {
                per_node(instance, choice(instance, start))
            }
            Self::User(user) if instance.jobs[start.job].user == Some(*user) => choice(instance, start).gpus,
            _ => 0,
        }
    }
}

/// Resources, each with its GPUs.
fn resources(instance: &Instance, pooled: &[bool]) -> Vec<(usize, Resource)> {
    let of = |kind: usize| {
        let (first, of) = (instance.first_node(kind), &instance.kinds[kind]);
        match pooled[kind] {
            true => vec![(of.nodes * of.gpus, Resource::Nodes(first..first + of.nodes))],
            false => {
                (first..first + of.nodes).map(|node| (of.gpus, Resource::Nodes(node..node + 1))).collect()
            }
        }
    };
    let of_users =
        (0..instance.users.len()).filter_map(|user| Some((instance.quota(user)?, Resource::User(user))));
    (0..instance.kinds.len()).flat_map(of).chain(of_users).collect()
}

/// Places of a choice: the first node and how many. Equal nodes of a kind on which no job has several are given out so that job j
/// is on one of the first j + 1: any schedule is one of these after its nodes are renamed.
fn places(instance: &Instance, job: usize, choice: &Choice, pooled: &[bool]) -> Vec<(usize, usize)> {
    let (kind, first) = (&instance.kinds[choice.kind], instance.first_node(choice.kind));
    let count = instance.nodes_of(choice);
    if pooled[choice.kind] {
        return vec![(first, 1)];
    }
    let mut others =
        instance.jobs.iter().flat_map(|job| &job.choices).filter(|other| other.kind == choice.kind);
    let last = match others.all(|other| other.gpus <= kind.gpus) {
        true => kind.nodes.min(job + 1),
        false => kind.nodes - count + 1,
    };
    (first..first + last).map(|node| (node, count)).collect()
}

/// The columns; `None` if they are too many.
fn columns(
    instance: &Instance,
    objective: Objective,
    known: Known,
    grid: Grid,
    pooled: &[bool],
) -> Option<Vec<Start>> {
    let horizon = horizon(instance, objective, known);
    let (ends, tails) = (instance.earliest_ends(), instance.tails());
    let least = |job: usize| {
        let values =
            instance.fitting(job).map(|choice| objective.of_job(instance, job, ends[job], choice.cost));
        values.fold(f64::INFINITY, f64::min)
    };
    let least: Vec<f64> = (0..instance.jobs.len()).map(least).collect();
    let all: f64 = least.iter().sum();
    let mut columns = Vec::new();
    for (job, of) in instance.jobs.iter().enumerate() {
        let head = ends[job] - instance.shortest(job);
        let fits = of.choices.iter().enumerate().filter(|(_, choice)| instance.has_room(job, choice));
        for (index, choice) in fits {
            let places = places(instance, job, choice, pooled);
            for point in head.div_ceil(grid.unit)..=horizon.div_ceil(grid.unit) {
                let end = earliest(point, grid).max(head) + choice.duration;
                let is_late =
                    of.deadline.is_some_and(|deadline| end > deadline) && objective != Objective::Deadlines;
                let value = match objective {
                    Objective::Makespan => (end + tails[job]) as f64,
                    _ => all - least[job] + objective.of_job(instance, job, end, choice.cost),
                };
                let is_worse = known.missed == 0.0 && value >= known.value * (1.0 - 1e-12);
                if is_late || is_worse || end + tails[job] > horizon {
                    break;
                }
                let points = (point, point + choice.duration / grid.unit);
                columns.extend(places.iter().map(|nodes| Start {
                    job,
                    choice: index,
                    nodes: *nodes,
                    points,
                }));
                if columns.len() > MOST_COLUMNS {
                    return None;
                }
            }
        }
    }
    Some(columns)
}
