//! Threads that take turns on the cores of a device.
//!
//! Each core has a separate queue. A thread that wakes goes to the core that it last ran on, or to an idle one if that is
//! taken; it keeps its core from op to op until it waits for something else, or until its slice is over and others wait
//! there. A core that runs out of threads takes one that waits at another core, but only after a while: until then it
//! is idle although there is work.

use super::{NEVER, NOBODY, OpId};
use std::collections::{BTreeMap, VecDeque};
use trainwright_spec::units::Picoseconds;

/// How the threads of a device take turns. Each of them runs on one core at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scheduling {
    /// Cores of the device.
    pub cores: usize,
    /// How long a thread keeps its core while others wait for it.
    pub slice: Picoseconds,
    /// After how long an idle core takes a thread that waits at another one.
    pub balance: Picoseconds,
}

/// The threads of one device.
pub(super) struct Turns {
    rules: Scheduling,
    cores: Vec<Core>,
    /// The core that each thread last ran on or waits at.
    homes: BTreeMap<u32, usize>,
    /// Threads that have wanted a core since turns were last given out.
    woken: Vec<Turn>,
    /// The part of their cores that threads get, 0 to 1: communication may take some of them.
    rate: f64,
    is_unsettled: bool,
    /// The last time that was said at which turns are to be given out.
    alarm: Picoseconds,
}

#[derive(Default)]
struct Core {
    on: Option<Turn>,
    waiting: VecDeque<Turn>,
    idle_since: Picoseconds,
}

/// A thread and what it runs.
#[derive(Clone, Copy)]
struct Turn {
    thread: u32,
    /// Nobody between one op and the next.
    op: OpId,
    /// When it got its core.
    since: Picoseconds,
    /// Whether it has had a core for this op before.
    has_begun: bool,
}

/// The result of giving out turns.
pub(super) struct Given {
    /// Ops that had waited and begin now.
    pub begin: Vec<OpId>,
    /// When turns are to be given out again if nothing happens before, where that is news.
    pub alarm: Option<Picoseconds>,
}

impl Turns {
    /// No threads yet.
    pub fn new(rules: Scheduling) -> Self {
        Self {
            rules,
            cores: (0..rules.cores.max(1)).map(|_| Core::default()).collect(),
            homes: BTreeMap::new(),
            woken: Vec::new(),
            rate: 1.0,
            is_unsettled: false,
            alarm: NEVER,
        }
    }

    /// A thread wants to run an op.
    pub fn want(&mut self, thread: u32, op: OpId) {
        let mut on_cores = self.cores.iter_mut().filter_map(|core| core.on.as_mut());
        // A rank may send while it computes: that is another thread.
        match on_cores.find(|turn| turn.thread == thread && turn.op == NOBODY) {
            Some(turn) => turn.op = op,
            None => self.woken.push(Turn { thread, op, since: Picoseconds::ZERO, has_begun: false }),
        }
        self.is_unsettled = true;
    }

    /// An op has ended, of a thread or not. Its thread keeps its core if it has another op at this time.
    pub fn end(&mut self, op: OpId) {
        let mut on_cores = self.cores.iter_mut().filter_map(|core| core.on.as_mut());
        if let Some(turn) = on_cores.find(|turn| turn.op == op) {
            turn.op = NOBODY;
        }
        self.is_unsettled = true;
    }

    /// Turns are to be given out anew.
    pub fn disturb(&mut self) {
        self.is_unsettled = true;
    }

    /// Whether turns are to be given out anew.
    pub fn is_unsettled(&self) -> bool {
        self.is_unsettled
    }

    /// Gives out turns, behind all that happens at this time; `left` is what communication leaves of the cores, 0 to 1.
    pub fn settle(&mut self, now: Picoseconds, left: f64) -> Given {
        self.is_unsettled = false;
        for core in &mut self.cores {
            core.end_turns(now, self.rules.slice);
        }
        for turn in std::mem::take(&mut self.woken) {
            let at = self.place_of(turn.thread);
            self.homes.insert(turn.thread, at);
            self.cores[at].waiting.push_back(turn);
            if self.cores[at].on.is_none() {
                self.cores[at].begin_turn(now);
            }
        }
        self.balance(now);
        let running = self.cores.iter().filter(|core| core.on.is_some()).count() as f64;
        self.rate = (left * self.cores.len() as f64 / running.max(1.0)).min(1.0);
        let mut begin = Vec::new();
        for turn in self.cores.iter_mut().filter_map(|core| core.on.as_mut()) {
            if !std::mem::replace(&mut turn.has_begun, true) {
                begin.push(turn.op);
            }
        }
        let next = self.next(now).filter(|next| *next < self.alarm || self.alarm <= now);
        self.alarm = next.unwrap_or(self.alarm);
        Given { begin, alarm: next }
    }

    /// Where a thread that wakes goes.
    fn place_of(&self, thread: u32) -> usize {
        let load =
            |core: &usize| self.cores[*core].waiting.len() + usize::from(self.cores[*core].on.is_some());
        let emptiest = (0..self.cores.len()).min_by_key(load).expect("there is a core");
        match self.homes.get(&thread) {
            Some(home) if self.cores[*home].on.is_none() || self.cores[emptiest].on.is_some() => *home,
            _ => emptiest,
        }
    }

    /// Lets cores that have been idle for long take threads that wait elsewhere.
    fn balance(&mut self, now: Picoseconds) {
        for at in 0..self.cores.len() {
            let core = &self.cores[at];
            if core.on.is_some() || now - core.idle_since < self.rules.balance {
                continue;
            }
            let fullest = (0..self.cores.len()).max_by_key(|other| self.cores[*other].waiting.len());
            if let Some(turn) = fullest.and_then(|other| self.cores[other].waiting.pop_front()) {
                self.homes.insert(turn.thread, at);
                self.cores[at].waiting.push_back(turn);
                self.cores[at].begin_turn(now);
            }
        }
    }

    /// When a slice is over or an idle core has waited long enough, if somebody waits for that.
    fn next(&self, now: Picoseconds) -> Option<Picoseconds> {
        if self.cores.iter().all(|core| core.waiting.is_empty()) {
            return None;
        }
        let of_core = |core: &Core| match core.on {
            None => Some(core.idle_since + self.rules.balance),
            Some(turn) => (!core.waiting.is_empty()).then_some(turn.since + self.rules.slice),
        };
        // A thread whose slice is over already keeps its core for 1 ps more.
        self.cores.iter().filter_map(of_core).map(|time| time.max(now + Picoseconds(1))).min()
    }

    /// How many times longer an op takes than on a core without other threads: without end while it waits for its turn.
    pub fn slowness(&self, op: OpId) -> f64 {
        match self.cores.iter().any(|core| core.on.is_some_and(|turn| turn.op == op)) {
            true => 1.0 / self.rate,
            false => f64::INFINITY,
        }
    }
}

impl Core {
    /// Takes the core from a thread that has nothing to do, or whose slice is over while others wait, and gives it to the
    /// first of them.
    fn end_turns(&mut self, now: Picoseconds, slice: Picoseconds) {
        let Some(turn) = self.on else { return };
        let is_over = !self.waiting.is_empty() && now - turn.since >= slice;
        if turn.op != NOBODY && !is_over {
            return;
        }
        (self.on, self.idle_since) = (None, now);
        if turn.op != NOBODY {
            self.waiting.push_back(turn);
        }
        self.begin_turn(now);
    }

    fn begin_turn(&mut self, now: Picoseconds) {
        self.on = self.waiting.pop_front().map(|turn| Turn { since: now, ..turn });
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Graph, Load, Outcome, Timing, Use};
    use super::*;

    const RULES: Scheduling = Scheduling { cores: 2, slice: Picoseconds(4), balance: Picoseconds(10) };

    /// Threads on two cores. Each op is the length of the wait before it, and its duration.
    fn run(threads: &[&[[u64; 2]]]) -> Outcome {
        let mut graph = Graph::default();
        graph.take_turns(0, RULES);
        for (thread, ops) in (0..).zip(threads) {
            let queue = graph.add_queue();
            for [waits, takes] in *ops {
                if *waits > 0 {
                    graph.add(queue, Timing::Takes(Picoseconds(*waits)));
                }
                let load = Load { cores: 0.5, ..Load::default() };
                let uses = graph.add_uses(&[Use { device: 0, load, thread: Some(thread) }]);
                let op = graph.add(queue, Timing::Takes(Picoseconds(*takes)));
                graph.set_uses(op, uses);
            }
        }
        graph.run().unwrap()
    }

    fn times(times: &[Picoseconds]) -> Vec<u64> {
        times.iter().map(|time| time.0).collect()
    }

    #[test]
    fn a_waiting_thread_gets_a_core_when_a_slice_is_over() {
        // The third thread waits at the first core: 0-4 the first one, 4-8 the third, 8-10 the first, 10-12 the third.
        let outcome = run(&[&[[0, 6]], &[[0, 20]], &[[0, 6]]]);
        assert_eq!(times(&outcome.started), [0, 0, 4]);
        assert_eq!(times(&outcome.ended), [10, 20, 12]);
    }

    #[test]
    fn a_thread_keeps_its_core_from_op_to_op() {
        // Three ops of the first thread are one turn of 3; then the third one has the core.
        let outcome = run(&[&[[0, 1], [0, 1], [0, 1]], &[[0, 9]], &[[0, 2]]]);
        assert_eq!(times(&outcome.started), [0, 1, 2, 0, 3]);
        assert_eq!(times(&outcome.ended), [1, 2, 3, 9, 5]);
    }

    #[test]
    fn an_idle_core_takes_a_thread_that_waits_elsewhere_after_a_while_only() {
        // The second and the fourth thread take turns on the second core; the first core is idle from 3 on.
        let outcome = run(&[&[[0, 2]], &[[0, 20]], &[[0, 1]], &[[0, 20]]]);
        assert_eq!(times(&outcome.started), [0, 0, 2, 4]);
        // Of 20 each the second has run 0-4 and 8-12, the fourth 4-8 and from 12 on, when the first core takes the second at 13.
        assert_eq!(times(&outcome.ended), [2, 25, 3, 28]);
    }

    #[test]
    fn a_thread_that_wakes_goes_to_an_idle_core() {
        // The first thread waits until 5; its core has the third one by then, and the second core is idle.
        let outcome = run(&[&[[0, 1], [4, 3]], &[[0, 2]], &[[0, 20]]]);
        assert_eq!(times(&outcome.started), [0, 1, 5, 0, 1]);
        assert_eq!(times(&outcome.ended), [1, 5, 8, 2, 21]);
    }
}
