//! List scheduling: the jobs in an order, each as early as its choice can begin.
//!
//! A GPU's state is the time from which on it is free; a job never begins in a gap before that. Nevertheless some order, with
//! some choices and nodes, gives an optimum for every objective that no later end improves: take the jobs of an optimal
//! schedule in the order of their starts. By induction none begins later than there.

use crate::instance::Instance;
use crate::schedule::{Placed, Schedule};

/// The order of the jobs and the choice of each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sequence {
    /// Every job once. A job that waits for later ones is taken when these are placed.
    pub order: Vec<usize>,
    /// The choice of each job.
    pub choices: Vec<usize>,
}

/// Times from which on GPUs are free.
#[derive(Debug, Clone)]
pub struct Free {
    /// Of each node, ascending.
    nodes: Vec<Vec<u64>>,
}

/// Where and when a job can begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// The start.
    pub start: u64,
    /// The first node.
    pub node: usize,
}

impl Free {
    /// All GPUs are free.
    pub fn new(instance: &Instance) -> Self {
        let of = |kind: usize| vec![0; instance.kinds[kind].gpus];
        Self { nodes: instance.nodes().into_iter().map(of).collect() }
    }

    /// The times of each node's GPUs, ascending.
    pub fn nodes(&self) -> &[Vec<u64>] {
        &self.nodes
    }

    /// When `gpus` of a node are free, not before `ready`.
    pub fn on_node(&self, node: usize, gpus: usize, ready: u64) -> u64 {
        self.nodes[node][gpus - 1].max(ready)
    }

    /// When the nodes from `first` on are free.
    pub fn on_window(&self, first: usize, count: usize, ready: u64) -> u64 {
        let last = |node: &Vec<u64>| node.last().copied().unwrap_or(0);
        self.nodes[first..first + count].iter().map(last).max().unwrap_or(0).max(ready)
    }

    /// The idle GPU-seconds between now and `start` of the `gpus` GPUs of a node that a job takes.
    fn idle(&self, node: usize, gpus: usize, start: u64) -> u64 {
        let until = self.nodes[node].partition_point(|free| *free <= start);
        self.nodes[node][until - gpus..until].iter().map(|free| start - free).sum()
    }

    /// Takes GPUs of a node from `start` to `end`: those that became free last, which are worth least to others.
    pub fn take(&mut self, node: usize, gpus: usize, start: u64, end: u64) {
        let of = &mut self.nodes[node];
        let until = of.partition_point(|free| *free <= start);
        of[until - gpus..until].fill(end);
        of.sort_unstable();
    }

    /// The nodes on which a choice begins first; of equals, those that were idle for the shortest time.
    fn best(&self, instance: &Instance, kind: usize, gpus: usize, ready: u64) -> (u64, Vec<usize>) {
        let (of, first) = (&instance.kinds[kind], instance.first_node(kind));
        let nodes = first..first + of.nodes;
        if gpus <= of.gpus {
            let key = |node: usize| {
                let start = self.on_node(node, gpus, ready);
                (start, self.idle(node, gpus, start), node)
            };
            let (start, _, node) = nodes.map(key).min().expect("the kind has nodes");
            return (start, vec![node]);
        }
        let count = gpus / of.gpus;
        let last = |node: usize| self.nodes[node].last().copied().unwrap_or(0);
        if !instance.contiguous {
            let mut by_time: Vec<(u64, usize)> = nodes.map(|node| (last(node), node)).collect();
            by_time.sort_unstable();
            let start = by_time[count - 1].0.max(ready);
            // Of the nodes that are free by then, those that became free last.
            let until = by_time.partition_point(|(free, _)| *free <= start);
            let mut chosen: Vec<usize> =
                by_time[until - count..until].iter().map(|(_, node)| *node).collect();
            chosen.sort_unstable();
            return (start, chosen);
        }
        let key = |window: usize| {
            let start = self.on_window(window, count, ready);
            let idle: u64 = (window..window + count).map(|node| start - last(node).min(start)).sum();
            (start, idle, window)
        };
        let (start, _, window) =
            (first..=first + of.nodes - count).map(key).min().expect("the kind has as many nodes");
        (start, (window..window + count).collect())
    }
}

/// Jobs with their starts, in the order in which they were placed; `nodes` are given for the jobs that must have certain ones.
pub fn place(instance: &Instance, sequence: &Sequence, nodes: &[Option<Vec<usize>>]) -> Vec<Placed> {
    let mut free = Free::new(instance);
    let mut ends = vec![u64::MAX; instance.jobs.len()];
    let mut placed = Vec::with_capacity(instance.jobs.len());
    let mut waiting: Vec<usize> = Vec::new();
    let mut put = |job: usize, ends: &mut Vec<u64>| {
        let index = sequence.choices[job];
        let choice = &instance.jobs[job].choices[index];
        let ready = instance.ready(job, ends);
        let per_node = choice.gpus.min(instance.kinds[choice.kind].gpus);
        let (start, on) = match nodes.get(job) {
            Some(Some(on)) => {
                let when = on.iter().map(|node| free.on_node(*node, per_node, ready)).max();
                (when.unwrap_or(ready), on.clone())
            }
            _ => free.best(instance, choice.kind, choice.gpus, ready),
        };
        let end = start + choice.duration;
        for node in &on {
            free.take(*node, per_node, start, end);
        }
        ends[job] = end;
        placed.push(Placed { job, choice: index, start, end, nodes: on, gpus: Vec::new() });
    };
    let can =
        |job: usize, ends: &[u64]| instance.jobs[job].after.iter().all(|before| ends[*before] != u64::MAX);
    for &job in &sequence.order {
        if !can(job, &ends) {
            waiting.push(job);
            continue;
        }
        put(job, &mut ends);
        while let Some(place) = waiting.iter().position(|job| can(*job, &ends)) {
            put(waiting.remove(place), &mut ends);
        }
    }
    placed
}

/// The schedule of a sequence.
pub fn schedule(instance: &Instance, sequence: &Sequence) -> Schedule {
    Schedule::with_gpus(instance, place(instance, sequence, &[]))
}
