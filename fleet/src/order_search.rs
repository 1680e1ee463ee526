//! Branch and bound over the order of starts: exact for any durations, for the few jobs for which it ends.
//!
//! Some optimal schedule is found by placing jobs in the order of their starts, each on some nodes as early as these allow without
//! using gaps: list an optimal schedule in that order, and again in the order that results, until the starts, which never grow, stay.
//! So a branch is (job, choice, nodes) with a start not before the last one. It is cut where a bound is not below the best value:
//!
//! - each job that is left ends no earlier than from the last start on with its shortest choice, and its chain follows;
//! - for the makespan, the GPU-time that the jobs left need fits between the times from which on GPUs are free and the end.
//!
//! Nodes of a kind with GPUs that become free at the same times are tried once, where no job has several. Of equal jobs the first
//! begins first.

use crate::instance::Instance;
use crate::list::{Free, Sequence};
use crate::objective::Objective;

/// What the search found.
#[derive(Debug, Clone, PartialEq)]
pub struct Ordered {
    /// A better sequence than the known value, with the nodes of each job; the best one if `is_complete`.
    pub sequence: Option<(Sequence, Vec<Option<Vec<usize>>>)>,
    /// Whether nothing is better.
    pub is_complete: bool,
}

struct OrderSearch<'a> {
    instance: &'a Instance,
    objective: Objective,
    tails: Vec<u64>,
    shortest: Vec<u64>,
    area: Vec<u64>,
    twin: Vec<Option<usize>>,
    shared: Vec<bool>,
    ends: Vec<u64>,
    path: Vec<(usize, usize, Vec<usize>)>,
    best: f64,
    found: Option<Vec<(usize, usize, Vec<usize>)>>,
    left: usize,
}

/// Searches for a schedule with a value below `known` that keeps all deadlines; looks at `most` branches.
pub fn search(instance: &Instance, objective: Objective, known: f64, most: usize) -> Ordered {
    let jobs = instance.jobs.len();
    let several = |kind: usize| {
        let mut choices = instance.jobs.iter().flat_map(|job| &job.choices);
        choices.any(|choice| choice.kind == kind && choice.gpus > instance.kinds[kind].gpus)
    };
    let mut search = OrderSearch {
        instance,
        objective,
        tails: instance.tails(),
        shortest: (0..jobs).map(|job| instance.shortest(job)).collect(),
        area: (0..jobs).map(|job| instance.least_area(job)).collect(),
        twin: (0..jobs).map(|job| (0..job).rev().find(|other| are_equal(instance, *other, job))).collect(),
        shared: (0..instance.kinds.len()).map(|kind| !several(kind)).collect(),
        ends: vec![u64::MAX; jobs],
        path: Vec::new(),
        best: known,
        found: None,
        left: most,
    };
    search.branch(&Free::new(instance), 0, 0.0);
    let sequence = search.found.map(|path| {
        let order = path.iter().map(|(job, ..)| *job).collect();
        let (mut choices, mut nodes) = (vec![0; jobs], vec![None; jobs]);
        for (job, choice, on) in path {
            choices[job] = choice;
            nodes[job] = Some(on);
        }
        (Sequence { order, choices }, nodes)
    });
    Ordered { sequence, is_complete: search.left > 0 }
}

/// Whether two jobs can stand for each other.
fn are_equal(instance: &Instance, one: usize, other: usize) -> bool {
    let (of_one, of_other) = (&instance.jobs[one], &instance.jobs[other]);
    let waits = |job: usize| instance.jobs.iter().any(|waiting| waiting.after.contains(&job));
    of_one.choices == of_other.choices
        && (of_one.release, of_one.deadline, of_one.weight)
            == (of_other.release, of_other.deadline, of_other.weight)
        && of_one.after == of_other.after
        && of_one.user == of_other.user
        && !waits(one)
        && !waits(other)
}

impl OrderSearch<'_> {
    /// Places the jobs that are left, none before `last`; `value` is the objective of those that are placed.
    fn branch(&mut self, free: &Free, last: u64, value: f64) {
        if self.path.len() == self.ends.len() {
            self.best = value;
            self.found = Some(self.path.clone());
            return;
        }
        for job in 0..self.ends.len() {
            let waits = |before: &usize| self.ends[*before] == u64::MAX;
            if self.ends[job] != u64::MAX
                || self.instance.jobs[job].after.iter().any(waits)
                || self.twin[job].iter().any(waits)
            {
                continue;
            }
            let instance = self.instance;
            let ready = instance.ready(job, &self.ends).max(last);
            for (index, choice) in instance.jobs[job].choices.iter().enumerate() {
                if !instance.has_room(job, choice) {
                    continue;
                }
                let (kind, first) = (&instance.kinds[choice.kind], instance.first_node(choice.kind));
                let (per_node, count) = (choice.gpus.min(kind.gpus), instance.nodes_of(choice));
                let ready = free.of_user(instance, job, choice.gpus, ready);
                for node in first..=first + kind.nodes - count {
                    let nodes = free.nodes();
                    if self.shared[choice.kind] && (first..node).any(|other| nodes[other] == nodes[node]) {
                        continue;
                    }
                    let start = match count {
                        1 => free.on_node(node, per_node, ready),
                        _ => free.on_window(node, count, ready),
                    };
                    let end = start + choice.duration;
                    let is_late = instance.jobs[job].deadline.is_some_and(|deadline| end > deadline);
                    if self.left == 0 || is_late && self.objective != Objective::Deadlines {
                        continue;
                    }
                    let now = match self.objective {
                        Objective::Makespan => value.max((end + self.tails[job]) as f64),
                        other => value + other.of_job(instance, job, end, choice.cost),
                    };
                    let mut next = free.clone();
                    (node..node + count).for_each(|node| next.take(node, per_node, start, end));
                    next.take_of_user(instance, job, choice.gpus, start, end);
                    self.ends[job] = end;
                    if !self.is_cut(&next, start, now) {
                        self.left -= 1;
                        self.path.push((job, index, (node..node + count).collect()));
                        self.branch(&next, start, now);
                        self.path.pop();
                    }
                    self.ends[job] = u64::MAX;
                }
            }
        }
    }

    /// Whether no schedule of the jobs that are left is better than the best one.
    fn is_cut(&self, free: &Free, last: u64, value: f64) -> bool {
        let (mut ends, mut area) = (value, 0);
        for (job, of) in self.instance.jobs.iter().enumerate() {
            if self.ends[job] != u64::MAX {
                continue;
            }
            let placed = of.after.iter().map(|before| self.ends[*before]).filter(|end| *end != u64::MAX);
            let start = placed.max().unwrap_or(0).max(of.release).max(last);
            let end = start + self.shortest[job];
            area += self.area[job];
            match self.objective {
                Objective::Makespan => ends = ends.max((end + self.tails[job]) as f64),
                Objective::Cost => {
                    ends +=
                        self.instance.fitting(job).map(|choice| choice.cost).fold(f64::INFINITY, f64::min);
                }
                other => ends += other.of_job(self.instance, job, end, 0.0),
            }
        }
        let enough = self.best * (1.0 - 1e-12);
        if ends >= enough {
            return true;
        }
        if self.objective != Objective::Makespan || area == 0 || !self.best.is_finite() {
            return false;
        }
        // An end below the best one is at most the whole second before it.
        let limit = (self.best as u64).saturating_sub(1);
        let room: u64 =
            free.nodes().iter().flatten().map(|time| limit.saturating_sub((*time).max(last))).sum();
        area > room
    }
}
