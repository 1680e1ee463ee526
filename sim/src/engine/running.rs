//! Who runs on which device now, and how much slower for it.

use super::{Graph, Load, OpId, Timing, Use};

/// Ops with a load that run now.
///
/// The rate of an op depends only on which others run on its devices, not on their rates, so a start or an end
/// concerns the devices of that op and nothing further.
pub(super) struct Running<'a> {
    graph: &'a Graph,
    /// By device.
    devices: Vec<Vec<Present<'a>>>,
    /// How many times longer each op takes now than alone; empty until one is slowed.
    slowness: Vec<f64>,
    /// The members of each meeting that runs; empty for the others.
    meetings: Vec<Vec<OpId>>,
    /// Ops whose rate the last start or end has changed, and by how much what is left of them takes longer than
    /// it did.
    pub stretched: Vec<(OpId, f64)>,
}

/// An op on a device.
struct Present<'a> {
    op: OpId,
    load: &'a Load,
}

impl<'a> Running<'a> {
    pub fn new(graph: &'a Graph) -> Self {
        Self {
            graph,
            devices: (0..graph.devices).map(|_| Vec::new()).collect(),
            slowness: Vec::new(),
            meetings: Vec::new(),
            stretched: Vec::new(),
        }
    }

    /// Lets one op start, or all members of a meeting together.
    pub fn start(&mut self, ops: &[OpId]) {
        let graph = self.graph;
        let uses = || ops.iter().flat_map(|op| graph.uses_of(*op).iter().map(move |used| (*op, used)));
        if let (Some(first), true) = (ops.first(), ops.len() > 1 && uses().next().is_some())
            && let Timing::Meets(meeting, _) = graph.timings[*first as usize]
        {
            self.meetings.resize(self.meetings.len().max(graph.meeting_sizes.len()), Vec::new());
            self.meetings[meeting as usize] = ops.to_vec();
        }
        let mut alone = true;
        for (op, Use { device, load }) in uses() {
            let present = &mut self.devices[*device as usize];
            alone &= present.is_empty();
            present.push(Present { op, load });
        }
        if !alone {
            uses().for_each(|(_, used)| self.judge_neighbours(used));
            self.judge(ops[0]);
        }
    }

    /// Lets an op end.
    pub fn end(&mut self, op: OpId) {
        let graph = self.graph;
        for used in graph.uses_of(op) {
            self.devices[used.device as usize].retain(|present| present.op != op);
            self.judge_neighbours(used);
        }
    }

    /// Finds the new rates on a device after a use of it has come or gone.
    fn judge_neighbours(&mut self, used: &Use) {
        // Kernels leave their neighbours alone.
        if used.load.communicating > 0.0 {
            for index in 0..self.devices[used.device as usize].len() {
                self.judge(self.devices[used.device as usize][index].op);
            }
        }
    }

    /// Finds the new rate of an op, or of all members of its meeting.
    fn judge(&mut self, op: OpId) {
        let meeting = match self.graph.timings[op as usize] {
            Timing::Meets(meeting, _) => {
                self.meetings.get(meeting as usize).filter(|members| members.len() > 1)
            }
            _ => None,
        };
        let alone = [op];
        let members: &[OpId] = meeting.map_or(&alone, |members| members);
        let slowness = members.iter().map(|member| self.slowness_of(*member)).fold(1.0, f64::max);
        if self.slowness.is_empty() {
            if slowness == 1.0 {
                return;
            }
            self.slowness.resize(self.graph.len(), 1.0);
        }
        for member in members {
            let before = std::mem::replace(&mut self.slowness[*member as usize], slowness);
            if before != slowness {
                self.stretched.push((*member, slowness / before));
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
