//! The ops that run on each device now, and how much they slow each other.

use super::events::Events;
use super::load::got_of_link;
use super::turns::Turns;
use super::{Graph, Load, NEVER, NOBODY, OpId, Timing, Use};
use std::collections::BTreeMap;
use trainwright_spec::units::Picoseconds;

/// Ops with a load that run now.
///
/// The rate of an op depends only on which others run on its devices, not on their rates, so a start or an end
/// concerns the devices of that op and nothing further.
pub(super) struct Running<'a> {
    graph: &'a Graph,
    /// By device.
    devices: Vec<Vec<Present<'a>>>,
    /// Of each device whose threads take turns.
    turns: BTreeMap<u32, Turns>,
    /// The time at which turns are to be given out anew, if they are.
    unsettled: Option<Picoseconds>,
    /// Of each queue, how the last of its ops that was slowed goes on.
    paces: Vec<Pace>,
    /// The members of each rendezvous that runs; empty until one with a load does.
    members: Vec<Vec<OpId>>,
}

/// An op on a device.
#[derive(Clone, Copy)]
struct Present<'a> {
    op: OpId,
    load: &'a Load,
    thread: Option<u32>,
}

/// How an op goes on that has been slowed.
#[derive(Clone, Copy)]
struct Pace {
    op: OpId,
    /// How many times longer what is left of it takes than it would alone.
    slowness: f64,
    /// When it ends at this pace; never while it stands still.
    due: Picoseconds,
    /// Its remaining time alone, in picoseconds, while it stands still.
    left: f64,
    /// The earliest of its events that are still to come. It may be too early: then it is put off when it comes.
    event: Picoseconds,
}

const NO_PACE: Pace =
    Pace { op: NOBODY, slowness: 1.0, due: Picoseconds::ZERO, left: 0.0, event: Picoseconds::ZERO };

/// The state of the run that a change of pace reads and writes.
struct Now<'a> {
    now: Picoseconds,
    started: &'a [Picoseconds],
    events: &'a mut Events,
}

impl<'a> Running<'a> {
    pub fn new(graph: &'a Graph) -> Self {
        let devices = (0..graph.devices).map(|_| Vec::new()).collect();
        let turns = graph.scheduling.iter().map(|(device, rules)| (*device, Turns::new(*rules))).collect();
        let paces = vec![NO_PACE; graph.queue_tails.len()];
        Self { graph, devices, turns, unsettled: None, paces, members: Vec::new() }
    }

    /// Whether an op has a load.
    #[inline]
    pub fn concerns(&self, op: OpId) -> bool {
        self.graph.uses_of_ops.get(usize::from(op)).is_some_and(|range| range.count > 0)
    }

    /// Whether an op that has an event now ends now; if it has been slowed since, it gets another event.
    #[inline]
    pub fn is_due(&mut self, op: OpId, now: Picoseconds, events: &mut Events) -> bool {
        let pace = &mut self.paces[self.graph.queues[op]];
        if pace.op != op || pace.due == now {
            return true;
        }
        if pace.event == now {
            pace.event = pace.due;
            if pace.due != NEVER {
                events.push(pace.due, op);
            }
        }
        false
    }

    /// Lets one op start, or all members of a rendezvous together.
    pub fn start(&mut self, ops: &[OpId], now: Picoseconds, started: &[Picoseconds], events: &mut Events) {
        let graph = self.graph;
        if ops.len() > 1
            && let Timing::Rendezvous(rendezvous, _) = graph.timings[ops[0]]
        {
            self.members.resize(self.members.len().max(graph.rendezvous_sizes.len()), Vec::new());
            self.members[rendezvous] = ops.to_vec();
        }
        let uses = || ops.iter().flat_map(|op| graph.uses_of(*op).iter().map(move |used| (*op, used)));
        let (mut alone, mut slowed) = (true, false);
        for (op, Use { device, load, thread }) in uses() {
            if let Some(turns) = self.turns.get_mut(device).filter(|_| load.cores > 0.0) {
                match thread {
                    Some(thread) => turns.want(*thread, op),
                    None => turns.disturb(),
                }
                self.unsettled = Some(now);
            }
            let present = &mut self.devices[*device as usize];
            alone &= present.is_empty();
            slowed |= present.iter().any(|other| other.load.slows(load));
            present.push(Present { op, load, thread: *thread });
        }
        if !alone {
            let mut at = Now { now, started, events };
            uses().for_each(|(op, used)| self.adjust_neighbours(op, used, &mut at));
            if slowed {
                self.adjust(ops[0], &mut at);
            }
        }
    }

    /// Lets an op end.
    pub fn end(&mut self, op: OpId, now: Picoseconds, started: &[Picoseconds], events: &mut Events) {
        let graph = self.graph;
        // Members end at one time, but one after the other, and what follows one of them begins before the next one ends.
        if let Timing::Rendezvous(rendezvous, _) = graph.timings[op]
            && let Some(members) = self.members.get_mut(usize::from(rendezvous))
        {
            members.retain(|member| *member != op);
        }
        for used in graph.uses_of(op) {
            let present = &mut self.devices[used.device as usize];
            if let Some(index) = present.iter().position(|present| present.op == op) {
                present.swap_remove(index);
            }
            if let Some(turns) = self.turns.get_mut(&used.device).filter(|_| used.load.cores > 0.0) {
                turns.end(op);
                self.unsettled = Some(now);
            }
            if !present.is_empty() {
                self.adjust_neighbours(op, used, &mut Now { now, started, events });
            }
        }
    }

    /// The time at which turns are to be given out anew, if they are.
    #[inline]
    pub fn unsettled(&self) -> Option<Picoseconds> {
        self.unsettled
    }

    /// A slice may be over, or a core idle for long.
    pub fn turn(&mut self, now: Picoseconds) {
        self.turns.values_mut().for_each(Turns::disturb);
        self.unsettled = Some(now);
    }

    /// Gives out turns where threads came or went.
    pub fn settle(&mut self, started: &mut [Picoseconds], events: &mut Events) {
        let Some(now) = self.unsettled.take() else { return };
        let unsettled = self.turns.iter().filter(|(_, turns)| turns.is_unsettled());
        for device in unsettled.map(|(device, _)| *device).collect::<Vec<_>>() {
            let left = self.left_to_threads(device);
            let turns = self.turns.get_mut(&device).expect("it takes turns");
            let given = turns.settle(now, left);
            given.begin.iter().for_each(|op| started[*op] = now);
            given.alarm.into_iter().for_each(|alarm| events.push(alarm, NOBODY));
            for index in 0..self.devices[device as usize].len() {
                let op = self.devices[device as usize][index].op;
                self.adjust(op, &mut Now { now, started, events });
            }
        }
    }

    /// The part of a device's cores that ops which share them all the time leave to threads, 0 to 1.
    fn left_to_threads(&self, device: u32) -> f64 {
        let present = &self.devices[device as usize];
        let taken = present.iter().filter(|sharer| sharer.thread.is_none()).map(|sharer| {
            let others = present.iter().filter(|other| other.op != sharer.op).map(|other| other.load.cores);
            sharer.load.cores * got_of_link(sharer.load.cores, others)
        });
        (1.0 - taken.sum::<f64>()).max(0.0)
    }

    /// Sets the new paces of the ops that one with this use of a device slows by its start, or speeds up by its end.
    fn adjust_neighbours(&mut self, changed: OpId, used: &Use, at: &mut Now) {
        for index in 0..self.devices[used.device as usize].len() {
            let Present { op, load, .. } = self.devices[used.device as usize][index];
            if op != changed && used.load.slows(load) {
                self.adjust(op, at);
            }
        }
    }

    /// Sets the new pace of an op, or of all members of its rendezvous.
    fn adjust(&mut self, op: OpId, at: &mut Now) {
        let (members, time) = match self.graph.timings[op] {
            Timing::Rendezvous(rendezvous, time) => (self.members.get(usize::from(rendezvous)), time),
            Timing::Takes(time) => (None, time),
            Timing::EndsWith(_) => return,
        };
        let alone = [op];
        let members = members.filter(|members| !members.is_empty()).map_or(&alone[..], |members| members);
        let slowness = members.iter().map(|member| self.slowness_of(*member)).reduce(f64::max).unwrap_or(1.0);
        for member in members {
            let pace = &mut self.paces[self.graph.queues[*member]];
            if pace.op != *member {
                if slowness == 1.0 {
                    continue;
                }
                let due = at.started[*member] + time;
                *pace = Pace { op: *member, slowness: 1.0, due, left: 0.0, event: due };
            }
            if pace.slowness != slowness {
                let stands = pace.slowness == f64::INFINITY;
                if slowness == f64::INFINITY {
                    pace.left = (pace.due - at.now).0 as f64 / pace.slowness;
                    pace.due = NEVER;
                } else {
                    let left = match stands {
                        true => pace.left * slowness,
                        false => (pace.due - at.now).0 as f64 * (slowness / pace.slowness),
                    };
                    pace.due = at.now + Picoseconds(left.round() as u64);
                }
                pace.slowness = slowness;
                if pace.due < pace.event {
                    pace.event = pace.due;
                    at.events.push(pace.due, *member);
                }
            }
        }
    }

    fn slowness_of(&self, op: OpId) -> f64 {
        let on_device = |used: &Use| {
            if let (Some(turns), Some(_)) = (self.turns.get(&used.device), used.thread) {
                let wanted =
                    self.devices[used.device as usize].iter().map(|present| present.load.cores).sum();
                return turns.slowness(op) * used.load.crowding_slowness(wanted);
            }
            let others = self.devices[used.device as usize].iter().filter(|present| present.op != op);
            used.load.slowness(others.map(|present| present.load))
        };
        self.graph.uses_of(op).iter().map(on_device).reduce(f64::max).unwrap_or(1.0)
    }
}
