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

#[cfg(test)]
mod tests {
    use super::*;

    fn takes(time: u64) -> Timing {
        Timing::Takes(Picoseconds(time))
    }

    fn ends(graph: &Graph) -> Vec<u64> {
        graph.run().unwrap().ended.iter().map(|time| time.0).collect()
    }

    #[test]
    fn a_queue_runs_its_ops_in_turn_and_dependencies_hold_across_queues() {
        let mut graph = Graph::default();
        let (a, b) = (graph.add_queue(), graph.add_queue());
        graph.add(a, takes(3));
        let second = graph.add(a, takes(4));
        let other = graph.add(b, takes(5));
        let last = graph.add(b, takes(1));
        graph.wait(last, second);
        // a: 0-3, 3-7; b: 0-5, then waits for 7: 7-8.
        assert_eq!(ends(&graph), [3, 7, 5, 8]);
        assert_eq!(graph.run().unwrap().posted[last], Picoseconds(7));
        assert_eq!(graph.run().unwrap().started[other], Picoseconds(0));
    }

    #[test]
    fn a_rendezvous_starts_with_its_last_member() {
        let mut graph = Graph::default();
        let (a, b) = (graph.add_queue(), graph.add_queue());
        let rendezvous = graph.add_rendezvous(2);
        graph.add(a, takes(5));
        let first = graph.add(a, Timing::Rendezvous(rendezvous, Picoseconds(2)));
        let second = graph.add(b, Timing::Rendezvous(rendezvous, Picoseconds(2)));
        assert_eq!(ends(&graph), [5, 7, 7]);
        let outcome = graph.run().unwrap();
        assert_eq!(outcome.posted[second], Picoseconds(0));
        assert_eq!(outcome.started[first], Picoseconds(5));
    }

    #[test]
    fn a_receive_ends_with_its_send_but_not_before_it_is_posted() {
        let check = |send_after: u64, receive_after: u64, started: u64, ended: u64| {
            let mut graph = Graph::default();
            let (a, b) = (graph.add_queue(), graph.add_queue());
            graph.add(a, takes(send_after));
            let send = graph.add(a, takes(10));
            graph.add(b, takes(receive_after));
            let receive = graph.add(b, Timing::EndsWith(send));
            let outcome = graph.run().unwrap();
            assert_eq!((outcome.started[receive].0, outcome.ended[receive].0), (started, ended));
        };
        check(5, 0, 5, 15); // posted early: waits for the transfer to start, ends with it
        check(0, 4, 4, 10); // posted during the transfer
        check(0, 30, 30, 30); // posted long after it
    }

    #[test]
    fn a_run_ends_when_it_is_stopped() {
        let mut graph = Graph::default();
        let queue = graph.add_queue();
        for _ in 0..4 * EVENTS_BETWEEN_CHECKS {
            graph.add(queue, takes(1));
        }
        let asked = std::sync::atomic::AtomicUsize::new(0);
        let stop_at = |check: usize| {
            asked.store(0, std::sync::atomic::Ordering::Relaxed);
            let outcome =
                graph.run_until(&|| 1 + asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == check);
            (outcome, asked.load(std::sync::atomic::Ordering::Relaxed))
        };
        assert_eq!(stop_at(1), (Err(Halt::Stopped), 1));
        assert_eq!(stop_at(3), (Err(Halt::Stopped), 3));
        let whole = graph.run().unwrap();
        assert_eq!(whole.ended.last(), Some(&Picoseconds(4 * EVENTS_BETWEEN_CHECKS as u64)));
        assert_eq!(stop_at(5), (Ok(whole), 4));
    }

    #[test]
    fn a_cycle_is_a_deadlock_with_its_first_op() {
        let mut graph = Graph::default();
        let (a, b) = (graph.add_queue(), graph.add_queue());
        graph.add(a, takes(1));
        let first = graph.add(a, takes(1));
        let second = graph.add(b, takes(1));
        graph.wait(first, second);
        graph.wait(second, first);
        assert_eq!(graph.run().unwrap_err(), Deadlock { stuck: 2, ops: 3, first });
    }

    /// Adds an op on a separate queue that does something with a device.
    fn add_loaded(graph: &mut Graph, timing: Timing, device: u32, load: Load) -> OpId {
        let queue = graph.add_queue();
        let op = graph.add(queue, timing);
        let uses = graph.add_uses(&[Use { device, load, thread: None }]);
        graph.set_uses(op, uses);
        op
    }

    #[test]
    fn a_kernel_goes_on_at_the_rate_that_communication_leaves() {
        let mut graph = Graph::default();
        let kernel = Load { multiprocessor_bound: 1.0, ..Load::default() };
        let half = Load::communication(Traffic { multiprocessors: 0.5, ..Traffic::default() });
        add_loaded(&mut graph, takes(100), 0, kernel);
        let first = add_loaded(&mut graph, takes(20), 0, half);
        let second = add_loaded(&mut graph, takes(20), 0, half);
        graph.wait(second, first);
        add_loaded(&mut graph, takes(100), 1, kernel);
        // At half the rate until 40, when 80 are left.
        assert_eq!(ends(&graph), [120, 20, 40, 100]);
    }

    #[test]
    fn a_rendezvous_is_as_slow_as_its_slowest_member() {
        let mut graph = Graph::default();
        let link = Load::communication(Traffic { inside: 1.0, ..Traffic::default() });
        let rendezvous = graph.add_rendezvous(2);
        for device in [0, 1] {
            add_loaded(&mut graph, Timing::Rendezvous(rendezvous, Picoseconds(20)), device, link);
        }
        add_loaded(&mut graph, takes(10), 1, link);
        add_loaded(&mut graph, takes(5), 0, Load::default());
        // On device 1 both get half of the link until 20, when the rendezvous has done 10 of 20 on both devices.
        assert_eq!(ends(&graph), [30, 30, 20, 5]);
    }

    #[test]
    fn what_follows_a_rendezvous_is_slowed_from_its_end_on() {
        let mut graph = Graph::default();
        let half = Load { cores: 0.5, ..Load::default() };
        let rendezvous = graph.add_rendezvous(2);
        let uses = graph.add_uses(&[Use { device: 0, load: half, thread: None }]);
        for _ in 0..2 {
            let queue = graph.add_queue();
            for timing in [Timing::Rendezvous(rendezvous, Picoseconds(20)), takes(20)] {
                let op = graph.add(queue, timing);
                graph.set_uses(op, uses);
            }
        }
        add_loaded(&mut graph, takes(100), 0, half);
        // Three threads of two cores until 60: 20 take 30. Of the third one's 100 another 60 are left.
        assert_eq!(ends(&graph), [30, 60, 30, 60, 120]);
    }
}
