//! List scheduling: the jobs in an order, each as early as its choice can begin.
//!
//! A GPU's state is the time from which on it is free; a job never begins in a gap before that. Nevertheless some order, with
//! some choices and nodes, gives an optimum for every objective that no later end improves: take the jobs of an optimal
//! schedule in the order of their starts. By induction none begins later than there.
//!
//! The quota of a user is a resource like a node: as many GPUs as its jobs may hold at a time, each with a time from which on
//! it is free. The same holds with it: in a list as in the optimal schedule, of the jobs before one only those that run at its
//! start hold any.

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

/// Times from which on GPUs are free, and from which on users may have more of them.
#[derive(Debug, Clone)]
pub struct Free {
    /// Of each node, ascending.
    nodes: Vec<Vec<u64>>,
    /// Of each user with a quota, for as many GPUs as it has, ascending; empty without a quota.
    users: Vec<Vec<u64>>,
}

impl Free {
    /// All GPUs are free.
    pub fn new(instance: &Instance) -> Self {
        let of = |kind: usize| vec![0; instance.kinds[kind].gpus];
        let users = (0..instance.users.len()).map(|user| vec![0; instance.quota(user).unwrap_or(0)]);
        Self { nodes: instance.nodes().into_iter().map(of).collect(), users: users.collect() }
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
        self.nodes[first..first + count].iter().map(|node| last(node)).max().unwrap_or(0).max(ready)
    }

    /// When the quota of a job's user leaves it `gpus`, not before `ready`.
    pub fn of_user(&self, instance: &Instance, job: usize, gpus: usize, ready: u64) -> u64 {
        let of = instance.jobs[job].user.map(|user| &self.users[user]).filter(|of| !of.is_empty());
        of.map_or(ready, |of| of[gpus - 1].max(ready))
    }

    /// Takes GPUs of a node from `start` to `end`: those that became free last, which are worth least to others.
    pub fn take(&mut self, node: usize, gpus: usize, start: u64, end: u64) {
        take(&mut self.nodes[node], gpus, (start, end));
    }

    /// Takes GPUs of the quota of a job's user.
    pub fn take_of_user(&mut self, instance: &Instance, job: usize, gpus: usize, start: u64, end: u64) {
        let of = instance.jobs[job].user.map(|user| &mut self.users[user]);
        if let Some(of) = of.filter(|of| !of.is_empty()) {
            take(of, gpus, (start, end));
        }
    }

    /// The nodes on which a choice begins first, which are left in `on`; of equals, those that were idle for the shortest time.
    fn best(
        &self,
        instance: &Instance,
        (kind, gpus): (usize, usize),
        ready: u64,
        on: &mut Vec<usize>,
    ) -> u64 {
        let (of, first) = (&instance.kinds[kind], instance.first_node(kind));
        let nodes = first..first + of.nodes;
        on.clear();
        let mut best = (u64::MAX, u64::MAX);
        if gpus <= of.gpus {
            let mut chosen = first;
            for node in nodes {
                let start = self.on_node(node, gpus, ready);
                if start <= best.0 {
                    let key = (start, idle(&self.nodes[node], gpus, start));
                    if key < best {
                        (best, chosen) = (key, node);
                    }
                }
            }
            on.push(chosen);
            return best.0;
        }
        let count = gpus / of.gpus;
        if !instance.contiguous {
            let mut by_time: Vec<(u64, usize)> = nodes.map(|node| (last(&self.nodes[node]), node)).collect();
            by_time.sort_unstable();
            let start = by_time[count - 1].0.max(ready);
            // Of the nodes that are free by then, those that became free last.
            let until = by_time.partition_point(|(free, _)| *free <= start);
            on.extend(by_time[until - count..until].iter().map(|(_, node)| *node));
            on.sort_unstable();
            return start;
        }
        let mut chosen = first;
        for window in first..=first + of.nodes - count {
            let start = self.on_window(window, count, ready);
            if start <= best.0 {
                let idle =
                    (window..window + count).map(|node| start - last(&self.nodes[node]).min(start)).sum();
                if (start, idle) < best {
                    (best, chosen) = ((start, idle), window);
                }
            }
        }
        on.extend(chosen..chosen + count);
        best.0
    }
}

/// The last of ascending times.
fn last(times: &[u64]) -> u64 {
    times.last().copied().unwrap_or(0)
}

/// The idle GPU-seconds between now and `start` of the `gpus` GPUs that a job takes.
fn idle(times: &[u64], gpus: usize, start: u64) -> u64 {
    let until = times.partition_point(|free| *free <= start);
    times[until - gpus..until].iter().map(|free| start - free).sum()
}

fn take(times: &mut [u64], gpus: usize, (start, end): (u64, u64)) {
    let until = times.partition_point(|free| *free <= start);
    times[until - gpus..until].fill(end);
    times.sort_unstable();
}

/// Where a job was placed, and when.
#[derive(Debug, Clone, Copy)]
pub struct Put<'a> {
    /// The job.
    pub job: usize,
    /// Which of its choices.
    pub choice: usize,
    /// Start and end.
    pub time: (u64, u64),
    /// Its nodes.
    pub nodes: &'a [usize],
}

/// Places the jobs of one sequence after another in the same memory.
#[derive(Debug)]
pub struct Lister<'a> {
    instance: &'a Instance,
    fresh: Free,
    free: Free,
    ends: Vec<u64>,
    waiting: Vec<usize>,
    on: Vec<usize>,
}

impl<'a> Lister<'a> {
    /// For the jobs of an instance.
    pub fn new(instance: &'a Instance) -> Self {
        let fresh = Free::new(instance);
        let free = fresh.clone();
        let ends = vec![u64::MAX; instance.jobs.len()];
        Self { instance, fresh, free, ends, waiting: Vec::new(), on: Vec::new() }
    }

    /// Places the jobs in their order, and calls `put` with each; `nodes` are given for the jobs that must have certain ones.
    pub fn run(&mut self, sequence: &Sequence, nodes: &[Option<Vec<usize>>], put: &mut dyn FnMut(Put)) {
        self.free.clone_from(&self.fresh);
        self.ends.fill(u64::MAX);
        self.waiting.clear();
        for &job in &sequence.order {
            if !self.can(job) {
                self.waiting.push(job);
                continue;
            }
            self.put(job, sequence, nodes, put);
            while let Some(place) = self.waiting.iter().position(|job| self.can(*job)) {
                let job = self.waiting.remove(place);
                self.put(job, sequence, nodes, put);
            }
        }
    }

    /// When GPUs are free after the last sequence.
    pub fn free(&self) -> &Free {
        &self.free
    }

    fn can(&self, job: usize) -> bool {
        self.instance.jobs[job].after.iter().all(|before| self.ends[*before] != u64::MAX)
    }

    fn put(
        &mut self,
        job: usize,
        sequence: &Sequence,
        nodes: &[Option<Vec<usize>>],
        put: &mut dyn FnMut(Put),
    ) {
        let instance = self.instance;
        let index = sequence.choices[job];
        let choice = &instance.jobs[job].choices[index];
        let ready = self.free.of_user(instance, job, choice.gpus, instance.ready(job, &self.ends));
        let per_node = choice.gpus.min(instance.kinds[choice.kind].gpus);
        let start = match nodes.get(job) {
            Some(Some(given)) => {
                self.on.clone_from(given);
                let when = given.iter().map(|node| self.free.on_node(*node, per_node, ready)).max();
                when.unwrap_or(ready)
            }
            _ => self.free.best(instance, (choice.kind, choice.gpus), ready, &mut self.on),
        };
        let end = start + choice.duration;
        for node in &self.on {
            self.free.take(*node, per_node, start, end);
        }
        self.free.take_of_user(instance, job, choice.gpus, start, end);
        self.ends[job] = end;
        put(Put { job, choice: index, time: (start, end), nodes: &self.on });
    }
}

/// Jobs with their starts, in the order in which they were placed; `nodes` are given for the jobs that must have certain ones.
pub fn place(instance: &Instance, sequence: &Sequence, nodes: &[Option<Vec<usize>>]) -> Vec<Placed> {
    let mut placed = Vec::with_capacity(instance.jobs.len());
    Lister::new(instance).run(sequence, nodes, &mut |put| {
        let (start, end) = put.time;
        let (job, choice, nodes) = (put.job, put.choice, put.nodes.to_vec());
        placed.push(Placed { job, choice, start, end, nodes, gpus: Vec::new() });
    });
    placed
}

/// The schedule of a sequence.
pub fn schedule(instance: &Instance, sequence: &Sequence) -> Schedule {
    Schedule::with_gpus(instance, place(instance, sequence, &[]))
}
