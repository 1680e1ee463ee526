//! The discrete-event engine: queues of ops, dependencies, an integer clock.
//!
//! It knows nothing of training. Ops of one queue run one after the other; an op is *posted* when its queue has
//! come to it and all that it waits for has ended. What happens then is its `Timing`. Events are ordered by
//! (time, op number), so a run is the same bit for bit wherever it runs.
//!
//! The duration of an op is what it takes alone. Ops may say what they do with the devices they run on (`Load`): when
//! one of them starts or ends, the others on its devices go on faster or slower, at a rate that depends only on which
//! ops are there, and they end sooner or later. An op that runs alone costs no more than its event.

mod events;
mod load;
mod running;
#[cfg(test)]
mod tests;
mod turns;

pub use load::{Load, Mixture, Traffic};
pub use turns::Scheduling;

use crate::index::index;
use events::Events;
use running::Running;
use std::collections::BTreeMap;
use thiserror::Error;
use trainwright_spec::units::Picoseconds;

index! {
    /// The number of an op, in the order in which they were added.
    pub OpId
}

index! {
    /// The number of a queue.
    pub QueueId
}

index! {
    /// The number of a rendezvous.
    pub RendezvousId
}

/// When a posted op starts and ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timing {
    /// It starts at once and takes this long.
    Takes(Picoseconds),
    /// It starts when all members of the rendezvous are posted and takes this long.
    Rendezvous(RendezvousId, Picoseconds),
    /// It ends when that op has ended, but not before it is posted.
    EndsWith(OpId),
}

/// Ops and what they wait for.
#[derive(Debug, Clone, Default)]
pub struct Graph {
    timings: Vec<Timing>,
    /// What ops wait for besides the op before them in their queue: the earlier one first.
    waits: Vec<(OpId, OpId)>,
    queue_tails: Vec<Option<OpId>>,
    queues: Vec<QueueId>,
    /// The op behind each op in its queue, or `NOBODY`.
    behind: Vec<OpId>,
    rendezvous_sizes: Vec<u32>,
    /// The uses of devices of all ops.
    uses: Vec<Use>,
    /// Which of `uses` are an op's; empty while no op has any.
    uses_of_ops: Vec<UseRange>,
    devices: u32,
    /// Of each device whose threads take turns.
    scheduling: BTreeMap<u32, Scheduling>,
}

/// The use of one device by an op.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Use {
    /// The number of the device.
    pub device: u32,
    /// Its load of the device.
    pub load: Load,
    /// The thread that runs it, where threads take turns on the device's cores.
    pub thread: Option<u32>,
}

/// Some of a graph's uses: what one op does with its devices, or several ops of the same kind each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UseRange {
    first: u32,
    count: u32,
}

/// When every op was posted, started and ended, by op number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// When its queue and dependencies let it go.
    pub posted: Vec<Picoseconds>,
    /// When it began to do its work.
    pub started: Vec<Picoseconds>,
    /// When it was done.
    pub ended: Vec<Picoseconds>,
}

/// Ops that wait for each other.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
#[error("deadlock: {stuck} of {ops} ops never start; the first is op {}", first.0)]
pub struct Deadlock {
    /// How many never ended.
    pub stuck: usize,
    /// How many there are.
    pub ops: usize,
    /// The first of the stuck ones.
    pub first: OpId,
}

/// Asked again and again during long work: whether to stop it.
pub type Stop<'a> = &'a (dyn Fn() -> bool + Sync);

/// Why a run that can be stopped has no outcome.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum Halt {
    /// Its ops wait for each other.
    #[error(transparent)]
    Deadlock(#[from] Deadlock),
    /// It was stopped.
    #[error("stopped")]
    Stopped,
}

/// How many events pass between two questions whether to stop: about a hundredth of a second.
const EVENTS_BETWEEN_CHECKS: usize = 1 << 13;

impl Graph {
    /// An empty graph with room for `ops`.
    pub fn with_capacity(ops: usize) -> Self {
        Self {
            timings: Vec::with_capacity(ops),
            waits: Vec::with_capacity(ops),
            queues: Vec::with_capacity(ops),
            behind: Vec::with_capacity(ops),
            ..Self::default()
        }
    }

    /// Adds an empty queue.
    pub fn add_queue(&mut self) -> QueueId {
        self.queue_tails.push(None);
        QueueId(self.queue_tails.len() as u32 - 1)
    }

    /// Adds a rendezvous of `size` ops.
    pub fn add_rendezvous(&mut self, size: usize) -> RendezvousId {
        self.rendezvous_sizes.push(size as u32);
        RendezvousId(self.rendezvous_sizes.len() as u32 - 1)
    }

    /// Appends an op to a queue.
    pub fn add(&mut self, queue: QueueId, timing: Timing) -> OpId {
        let op = OpId(self.timings.len() as u32);
        self.timings.push(timing);
        self.queues.push(queue);
        self.behind.push(NOBODY);
        if let Some(tail) = self.queue_tails[queue].replace(op) {
            self.behind[tail] = op;
        }
        op
    }

    /// The last op of a queue so far.
    pub fn last_of(&self, queue: QueueId) -> Option<OpId> {
        self.queue_tails[queue]
    }

    /// Makes `op` wait for `earlier`.
    pub fn wait(&mut self, op: OpId, earlier: OpId) {
        // Those of one queue run one after the other in any case.
        if self.queues[op] != self.queues[earlier] || op <= earlier {
            self.waits.push((earlier, op));
        }
    }

    /// Sets what an op ends with, where that was not known when it was added.
    pub fn set_timing(&mut self, op: OpId, timing: Timing) {
        self.timings[op] = timing;
    }

    /// Remembers what ops do with devices, for `set_uses`.
    pub fn add_uses(&mut self, uses: &[Use]) -> UseRange {
        let first = self.uses.len() as u32;
        self.uses.extend(uses);
        self.devices = uses.iter().fold(self.devices, |devices, used| devices.max(used.device + 1));
        UseRange { first, count: uses.len() as u32 }
    }

    /// Lets the threads of a device take turns on its cores, rather than share them all the time.
    pub fn take_turns(&mut self, device: u32, rules: Scheduling) {
        self.devices = self.devices.max(device + 1);
        self.scheduling.insert(device, rules);
    }

    /// Sets what an op does with devices. An op without is alone wherever it runs.
    pub fn set_uses(&mut self, op: OpId, uses: UseRange) {
        if uses.count > 0 {
            let ops = self.timings.capacity();
            self.uses_of_ops.reserve_exact(ops - self.uses_of_ops.len().min(ops));
            self.uses_of_ops.resize(self.timings.len(), UseRange::default());
            self.uses_of_ops[op] = uses;
        }
    }

    /// The same ops with other durations: `time` gives that of each op, and of each rendezvous that of its first member.
    pub fn with_times(&self, mut time: impl FnMut(OpId, Picoseconds) -> Picoseconds) -> Graph {
        let mut of_rendezvous: Vec<Option<Picoseconds>> = vec![None; self.rendezvous_sizes.len()];
        let timings = (0..).map(OpId).zip(&self.timings).map(|(op, timing)| match *timing {
            Timing::Takes(before) => Timing::Takes(time(op, before)),
            Timing::Rendezvous(rendezvous, before) => {
                let known = &mut of_rendezvous[rendezvous];
                Timing::Rendezvous(rendezvous, *known.get_or_insert_with(|| time(op, before)))
            }
            Timing::EndsWith(other) => Timing::EndsWith(other),
        });
        Graph { timings: timings.collect(), ..self.clone() }
    }

    /// When each op starts and ends.
    pub fn timings(&self) -> &[Timing] {
        &self.timings
    }

    /// Which op waits for which: the earlier one first. Those of a queue come before all others.
    pub fn edges(&self) -> impl Iterator<Item = (OpId, OpId)> {
        let queued = (0..).map(OpId).zip(&self.behind).filter(|(_, behind)| **behind != NOBODY);
        queued.map(|(op, behind)| (op, *behind)).chain(self.waits.iter().copied())
    }

    fn uses_of(&self, op: OpId) -> &[Use] {
        match self.uses_of_ops.get(usize::from(op)) {
            None => &[],
            Some(range) => &self.uses[range.first as usize..(range.first + range.count) as usize],
        }
    }

    /// How many ops there are.
    pub fn len(&self) -> usize {
        self.timings.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.timings.is_empty()
    }

    /// The queue of each op.
    pub fn queues(&self) -> &[QueueId] {
        &self.queues
    }

    /// Runs all ops.
    ///
    /// # Errors
    /// `Deadlock` if some op can never start.
    pub fn run(&self) -> Result<Outcome, Deadlock> {
        Ok(Run::new(self).finish(&|| false)?.expect("nobody stops it"))
    }

    /// The same, unless it is stopped before its end.
    ///
    /// # Errors
    /// `Deadlock` as `run`, `Stopped` if `stop` said so.
    pub fn run_until(&self, stop: Stop) -> Result<Outcome, Halt> {
        Run::new(self).finish(stop)?.ok_or(Halt::Stopped)
    }
}

/// The ops that wait for each op besides the one behind it in its queue, one list behind the other.
struct Successors {
    first: Vec<u32>,
    ops: Vec<OpId>,
}

impl Successors {
    fn new(ops: usize, waits: &[(OpId, OpId)]) -> Self {
        // How many there are of each op; then, where its list ends; then, where it begins.
        let mut first = vec![0u32; ops + 1];
        for (from, _) in waits {
            first[*from] += 1;
        }
        let mut end = 0;
        for count in &mut first {
            end += *count;
            *count = end;
        }
        let mut list = vec![NOBODY; waits.len()];
        for (from, to) in waits.iter().rev() {
            let slot = &mut first[*from];
            *slot -= 1;
            list[*slot as usize] = *to;
        }
        Self { first, ops: list }
    }

    fn range(&self, op: OpId) -> std::ops::Range<usize> {
        self.first[op] as usize..self.first[usize::from(op) + 1] as usize
    }
}

const NEVER: Picoseconds = Picoseconds(u64::MAX);
const NOBODY: OpId = OpId(u32::MAX);

struct Run<'a> {
    graph: &'a Graph,
    successors: Successors,
    missing: Vec<u32>,
    /// The op that ends with an op.
    follower: Vec<OpId>,
    /// Posted members of each rendezvous.
    present: Vec<Vec<OpId>>,
    /// When ops are due. Some come too early or too late: see `Running::is_due`.
    events: Events,
    outcome: Outcome,
    running: Running<'a>,
    done: usize,
}

impl<'a> Run<'a> {
    fn new(graph: &'a Graph) -> Self {
        let ops = graph.len();
        let mut missing = vec![0u32; ops];
        for to in graph.behind.iter().filter(|behind| **behind != NOBODY) {
            missing[*to] = 1;
        }
        for (_, to) in &graph.waits {
            missing[*to] += 1;
        }
        let mut follower = Vec::new();
        for (op, timing) in (0..).map(OpId).zip(&graph.timings) {
            if let Timing::EndsWith(other) = timing {
                follower.resize(ops, NOBODY);
                follower[*other] = op;
            }
        }
        let never = vec![NEVER; ops];
        Self {
            graph,
            successors: Successors::new(ops, &graph.waits),
            missing,
            follower,
            present: vec![Vec::new(); graph.rendezvous_sizes.len()],
            events: Events::default(),
            outcome: Outcome { posted: never.clone(), started: never.clone(), ended: never },
            running: Running::new(graph),
            done: 0,
        }
    }

    /// `None` if it was stopped.
    fn finish(mut self, stop: Stop) -> Result<Option<Outcome>, Deadlock> {
        for op in (0..self.graph.len() as u32).map(OpId) {
            if self.missing[op] == 0 {
                self.post(op, Picoseconds::ZERO);
            }
        }
        let mut events: usize = 0;
        while let Some((now, op)) = self.next_event() {
            events += 1;
            if events.is_multiple_of(EVENTS_BETWEEN_CHECKS) && stop() {
                return Ok(None);
            }
            if op == NOBODY {
                self.running.turn(now);
            } else if self.outcome.ended[op] == NEVER && self.running.is_due(op, now, &mut self.events) {
                self.end(op, now);
            }
        }
        match self.outcome.ended.iter().position(|end| *end == NEVER) {
            None => Ok(Some(self.outcome)),
            Some(first) => {
                let ops = self.graph.len();
                Err(Deadlock { stuck: ops - self.done, ops, first: OpId(first as u32) })
            }
        }
    }

    /// The next event. Turns are given out before it if it comes later than what they follow from.
    fn next_event(&mut self) -> Option<(Picoseconds, OpId)> {
        while let Some(settled) = self.running.unsettled() {
            if self.events.next_time() == Some(settled) {
                break;
            }
            self.running.settle(&mut self.outcome.started, &mut self.events);
        }
        self.events.pop()
    }

    fn post(&mut self, op: OpId, now: Picoseconds) {
        self.outcome.posted[op] = now;
        match self.graph.timings[op] {
            Timing::Takes(time) => self.start(&[op], now, time),
            Timing::Rendezvous(rendezvous, time) => {
                let present = &mut self.present[rendezvous];
                present.push(op);
                if present.len() == self.graph.rendezvous_sizes[rendezvous] as usize {
                    let members = std::mem::take(present);
                    self.start(&members, now, time);
                }
            }
            Timing::EndsWith(other) if self.outcome.ended[other] != NEVER => {
                self.start(&[op], now, Picoseconds::ZERO);
            }
            Timing::EndsWith(_) => {}
        }
    }

    /// Starts one op, or all members of a rendezvous.
    fn start(&mut self, ops: &[OpId], now: Picoseconds, time: Picoseconds) {
        for op in ops {
            self.outcome.started[*op] = now;
            self.events.push(now + time, *op);
        }
        if time > Picoseconds::ZERO && ops.iter().any(|op| self.running.concerns(*op)) {
            self.running.start(ops, now, &self.outcome.started, &mut self.events);
        }
    }

    fn end(&mut self, op: OpId, now: Picoseconds) {
        self.outcome.ended[op] = now;
        self.done += 1;
        if self.running.concerns(op) && self.outcome.started[op] < now {
            self.running.end(op, now, &self.outcome.started, &mut self.events);
        }
        if let Some(&follower) = self.follower.get(usize::from(op))
            && follower != NOBODY
        {
            let posted = self.outcome.posted[follower];
            if posted != NEVER {
                self.outcome.started[follower] = posted.max(self.outcome.started[op]);
                self.events.push(now, follower);
            }
        }
        // In the order of their numbers, as far as those who wait were added in that order.
        let behind = self.graph.behind[op];
        let mut range = self.successors.range(op);
        while let Some(next) = range.clone().next().map(|index| self.successors.ops[index])
            && next < behind
        {
            self.release(next, now);
            range.start += 1;
        }
        if behind != NOBODY {
            self.release(behind, now);
        }
        for index in range {
            self.release(self.successors.ops[index], now);
        }
    }

    /// One of those that an op waits for has ended.
    fn release(&mut self, op: OpId, now: Picoseconds) {
        let missing = &mut self.missing[op];
        *missing -= 1;
        if *missing == 0 {
            self.post(op, now);
        }
    }
}
