//! Puts the ops of ranks into the engine's graph: their uses of devices, their collectives, the deliveries of their messages.
//!
//! Programs and replayed traces both go through here, so that an op takes the same time in either.

use crate::costs::{Conditions, Costs, Delivery};
use crate::engine::{Graph, Load, OpId, QueueId, RendezvousId, Timing, Traffic, Use, UseRange};
use crate::mix::{mixed, spread};
use trainwright_spec::units::Picoseconds;
use trainwright_timeline::timeline::Activity;

/// A graph to which the ops of some ranks are added.
///
/// Devices of the graph: those of the ranks; then the links of the ranks to the network, inwards; then, for each machine whose
/// cores ranks share, its cores.
pub(crate) struct Layout {
    /// The ops so far.
    pub graph: Graph,
    /// The machine whose cores each rank shares.
    machines: Vec<Option<usize>>,
    /// The collectives of each group, in turn.
    collectives: Vec<Vec<RendezvousId>>,
}

/// Which ranks' hardware an op uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Takes {
    /// It runs by itself.
    Local,
    /// It lasts while all members of a group exchange.
    Collective,
    /// It sends to another rank, an index; `None` if that one is not laid out.
    Message(Option<usize>),
}

impl Layout {
    /// A graph without ops, for ranks with these global numbers and for `groups` groups.
    pub fn new(
        mut graph: Graph,
        ranks: impl Iterator<Item = usize>,
        groups: usize,
        costs: &impl Costs,
    ) -> Self {
        let machines: Vec<Option<usize>> = ranks.map(|rank| costs.machine(rank)).collect();
        let Conditions { scheduling, .. } = costs.conditions();
        if let Some(rules) = scheduling {
            for machine in machines.iter().flatten() {
                // Ranks of machines that have fewer cores than ranks take turns.
                if machines.iter().filter(|other| **other == Some(*machine)).count() > rules.cores {
                    graph.take_turns((2 * machines.len() + machine) as u32, rules);
                }
            }
        }
        Self { graph, machines, collectives: vec![Vec::new(); groups] }
    }

    /// The cores that a rank shares, as a device.
    fn cores_of(&self, rank: usize) -> Option<u32> {
        self.machines[rank].map(|machine| (2 * self.machines.len() + machine) as u32)
    }

    /// The devices that an op of a rank, an index, uses: its rank's, and for a message the receiver's.
    pub fn uses(&mut self, rank: usize, load: Load, takes: Takes) -> UseRange {
        if load.is_none() {
            return UseRange::default();
        }
        if load.cores > 0.0
            && let Some(device) = self.cores_of(rank)
        {
            // A collective lasts while all its members exchange, whoever of them has a core.
            let thread = (takes != Takes::Collective).then_some(rank as u32);
            return self.graph.add_uses(&[Use { device, load, thread }]);
        }
        let sender = Use { device: rank as u32, load, thread: None };
        if let Takes::Message(Some(receiver)) = takes {
            // Links are counted outwards.
            let inwards = Traffic { inside: 0.0, between: 0.0, ..load.traffic };
            let load = Load { traffic: inwards, ..load };
            if !load.is_none() {
                let receiver = Use { device: receiver as u32, load, thread: None };
                return self.graph.add_uses(&[sender, receiver]);
            }
        }
        self.graph.add_uses(&[sender])
    }

    /// The timing of a group's next collective. `turn` counts those of the rank; `members` are laid out.
    pub fn collective(
        &mut self,
        group: usize,
        turn: &mut usize,
        members: usize,
        time: Picoseconds,
    ) -> Timing {
        if *turn == self.collectives[group].len() {
            self.collectives[group].push(self.graph.add_rendezvous(members));
        }
        let rendezvous = self.collectives[group][*turn];
        *turn += 1;
        Timing::Rendezvous(rendezvous, time)
    }

    /// Adds the delivery of a message that its sender has handed over, on the queue of the sender's messages. It starts
    /// when the send does: behind `before`, the ops that the send waits for.
    pub fn deliver(
        &mut self,
        queue: QueueId,
        [from, to]: [usize; 2],
        delivery: Delivery,
        before: impl Iterator<Item = OpId>,
    ) -> OpId {
        let op = self.graph.add(queue, Timing::Takes(delivery.time.into()));
        let cores = [from, to].into_iter().zip(delivery.cores);
        let mut uses: Vec<Use> = cores
            .filter_map(|(rank, cores)| {
                let device = self.cores_of(rank).filter(|_| cores > 0.0)?;
                Some(Use { device, load: Load { cores, ..Load::default() }, thread: None })
            })
            .collect();
        // Messages share the receiver's link inwards. (On the sender's link they follow each other.)
        uses.push(Use {
            device: (self.machines.len() + to) as u32,
            load: Load::communication(Traffic { between: 1.0, ..Traffic::default() }),
            thread: None,
        });
        let uses = self.graph.add_uses(&uses);
        self.graph.set_uses(op, uses);
        before.for_each(|earlier| self.graph.wait(op, earlier));
        op
    }
}

/// The same graph with the time of each kernel times a factor of `jitter`, so that ranks wait for each other. Which factor
/// depends on the number of the op alone.
///
/// Source of the numbers: Steele, Lea & Flood 2014, Fast splittable pseudorandom number generators, OOPSLA (SplitMix64).
pub(crate) fn jittered(graph: &Graph, jitter: &[f64], activity: impl Fn(OpId) -> Activity) -> Graph {
    graph.with_times(|op, time| {
        if activity(op) != Activity::Compute {
            return time;
        }
        let number = mixed(spread(u64::from(op.0).wrapping_add(1)));
        let factor = jitter[(number % jitter.len() as u64) as usize];
        Picoseconds((time.0 as f64 * factor).round() as u64)
    })
}
