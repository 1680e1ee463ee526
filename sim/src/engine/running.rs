//! Who runs on which device now, and how much slower for it.

use super::{Events, Graph, Load, NOBODY, OpId, Timing, Use};
use std::cmp::Reverse;
use trainwright_spec::units::Picoseconds;

/// Ops with a load that run now.
///
/// The rate of an op depends only on which others run on its devices, not on their rates, so a start or an end
/// concerns the devices of that op and nothing further.
pub(super) struct Running<'a> {
    graph: &'a Graph,
    /// By device.
    devices: Vec<Vec<Present<'a>>>,
    /// Of each queue, how the last of its ops that was slowed goes on.
    paces: Vec<Pace>,
    /// The members of each meeting that runs; empty until one with a load does.
    meetings: Vec<Vec<OpId>>,
}

/// An op on a device.
#[derive(Clone, Copy)]
struct Present<'a> {
    op: OpId,
    load: &'a Load,
}

/// How an op goes on that has been slowed.
#[derive(Clone, Copy)]
struct Pace {
    op: OpId,
    /// How many times longer what is left of it takes than it would alone.
    slowness: f64,
    /// When it ends at this pace.
    due: Picoseconds,
    /// The earliest of its events that are still to come. It may be too early: then it is put off when it comes.
    event: Picoseconds,
}

const NO_PACE: Pace = Pace { op: NOBODY, slowness: 1.0, due: Picoseconds::ZERO, event: Picoseconds::ZERO };

/// What a change of pace needs beside who runs.
struct Moment<'a> {
    now: Picoseconds,
    started: &'a [Picoseconds],
    events: &'a mut Events,
}

impl<'a> Running<'a> {
    pub fn new(graph: &'a Graph) -> Self {
        let devices = (0..graph.devices).map(|_| Vec::new()).collect();
        Self { graph, devices, paces: vec![NO_PACE; graph.queue_tails.len()], meetings: Vec::new() }
    }

    /// Whether an op has a load.
    #[inline]
    pub fn concerns(&self, op: OpId) -> bool {
        self.graph.uses_of_ops.get(op as usize).is_some_and(|range| range.count > 0)
    }

    /// Whether an op that has an event now ends now; if it has been slowed since, it gets another event.
    #[inline]
    pub fn is_due(&mut self, op: OpId, now: Picoseconds, events: &mut Events) -> bool {
        let pace = &mut self.paces[self.graph.queues[op as usize] as usize];
        if pace.op != op || pace.due == now {
            return true;
        }
        if pace.event == now {
            pace.event = pace.due;
            events.push(Reverse((pace.due, op)));
        }
        false
    }

    /// Lets one op start, or all members of a meeting together.
    pub fn start(&mut self, ops: &[OpId], now: Picoseconds, started: &[Picoseconds], events: &mut Events) {
        let graph = self.graph;
        if ops.len() > 1
            && let Timing::Meets(meeting, _) = graph.timings[ops[0] as usize]
        {
            self.meetings.resize(self.meetings.len().max(graph.meeting_sizes.len()), Vec::new());
            self.meetings[meeting as usize] = ops.to_vec();
        }
        let uses = || ops.iter().flat_map(|op| graph.uses_of(*op).iter().map(move |used| (*op, used)));
        let (mut alone, mut slowed) = (true, false);
        for (op, Use { device, load }) in uses() {
            let present = &mut self.devices[*device as usize];
            alone &= present.is_empty();
            slowed |= present.iter().any(|other| other.load.slows(load));
            present.push(Present { op, load });
        }
        if !alone {
            let mut moment = Moment { now, started, events };
            uses().for_each(|(op, used)| self.judge_neighbours(op, used, &mut moment));
            if slowed {
                self.judge(ops[0], &mut moment);
            }
        }
    }

    /// Lets an op end.
    pub fn end(&mut self, op: OpId, now: Picoseconds, started: &[Picoseconds], events: &mut Events) {
        let graph = self.graph;
        // Members end at one time, but one after the other, and what follows one of them begins before the next one ends.
        if let Timing::Meets(meeting, _) = graph.timings[op as usize]
            && let Some(members) = self.meetings.get_mut(meeting as usize)
        {
            members.retain(|member| *member != op);
        }
        for used in graph.uses_of(op) {
            let present = &mut self.devices[used.device as usize];
            if let Some(index) = present.iter().position(|present| present.op == op) {
                present.swap_remove(index);
            }
            if !present.is_empty() {
                self.judge_neighbours(op, used, &mut Moment { now, started, events });
            }
        }
    }

    /// Finds the new paces of those that a use of a device has slowed by its coming, or sped up by its going.
    fn judge_neighbours(&mut self, own: OpId, used: &Use, moment: &mut Moment) {
        for index in 0..self.devices[used.device as usize].len() {
            let Present { op, load } = self.devices[used.device as usize][index];
            if op != own && used.load.slows(load) {
                self.judge(op, moment);
            }
        }
    }

    /// Finds the new pace of an op, or of all members of its meeting.
    fn judge(&mut self, op: OpId, moment: &mut Moment) {
        let (members, time) = match self.graph.timings[op as usize] {
            Timing::Meets(meeting, time) => (self.meetings.get(meeting as usize), time),
            Timing::Takes(time) => (None, time),
            Timing::EndsWith(_) => return,
        };
        let alone = [op];
        let members = members.filter(|members| !members.is_empty()).map_or(&alone[..], |members| members);
        let slowness = members.iter().map(|member| self.slowness_of(*member)).fold(1.0, f64::max);
        for member in members {
            let pace = &mut self.paces[self.graph.queues[*member as usize] as usize];
            if pace.op != *member {
                if slowness == 1.0 {
                    continue;
                }
                let due = moment.started[*member as usize] + time;
                *pace = Pace { op: *member, slowness: 1.0, due, event: due };
            }
            if pace.slowness != slowness {
                let left = (pace.due - moment.now).0 as f64 * (slowness / pace.slowness);
                pace.due = moment.now + Picoseconds(left.round() as u64);
                pace.slowness = slowness;
                if pace.due < pace.event {
                    pace.event = pace.due;
                    moment.events.push(Reverse((pace.due, *member)));
                }
            }
        }
    }

    fn slowness_of(&self, op: OpId) -> f64 {
        let on_device = |used: &Use| {
            let others = self.devices[used.device as usize].iter().filter(|present| present.op != op);
            used.load.slowness(others.map(|present| present.load))
        };
        self.graph.uses_of(op).iter().map(on_device).fold(1.0, f64::max)
    }
}
