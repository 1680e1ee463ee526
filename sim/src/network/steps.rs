//! Step lists on a topology: what collectives take when their transfers share real links.
//!
//! ```text
//! Steps × groups ─► a step of each phase ─► flows over routes ─► folded ─► max-min fair ─► × steps of the phase
//! ```
//!
//! This is the long way to a time: for any algorithm, on any fabric, and for many groups at once. Nothing here knows
//! NCCL, what a collective is for, or how a route is found.

mod lists;

pub use lists::{Groups, Lists, Timed};

use super::topology::{LinkId, Topology};
use crate::flow::{self, Flow, Network, fold};
use thiserror::Error;
use trainwright_spec::collective::{Phase, Steps, Switch};
use trainwright_spec::units::{Bytes, Picoseconds, Seconds};

/// Groups that carry out the same step list at the same time.
#[derive(Debug, Clone, Copy)]
pub struct SideBySide<'a> {
    /// The steps of each group.
    pub steps: &'a Steps,
    /// The size of each group's collective.
    pub bytes: Bytes,
    /// Global ranks of each group in the order of its members, node by node.
    pub groups: &'a [Vec<usize>],
    /// The time of a step without its transfers.
    pub overhead: Seconds,
}

/// Whether alike transfers are simulated once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Folding {
    /// Once for each class: the same times for a fraction of the work.
    Folded,
    /// Each by itself.
    Unfolded,
}

/// Why a step list cannot be timed.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum StepsError {
    /// The list needs switches that add and copy.
    #[error("GPU {gpu} is not joined to {switches}, which the algorithm needs")]
    NoSwitch {
        /// A GPU without.
        gpu: usize,
        /// Which switches.
        switches: &'static str,
    },
    /// The list needs switches in the node that add and copy.
    #[error("{interconnect} has no switches that add, which the algorithm needs")]
    NoReduction {
        /// The kind of the interconnect.
        interconnect: String,
    },
    /// Making or sharing out all transfers would take longer than anyone waits.
    #[error(
        "it would have more than {most} transfers to simulate: take a smaller group, or another algorithm"
    )]
    TooMany {
        /// How many are allowed.
        most: usize,
    },
    /// A transfer cannot get through.
    #[error(transparent)]
    Flow(#[from] flow::Error),
}

/// Members of the lists that NCCL calls channels: in the c-th one each node starts with its c-th rank, so that lists
/// which leave a node through its first or last rank together use all its NICs.
///
/// `ranks` are a group's, node by node, `per_node` of them on each; every channel carries an equal part of the tensor.
pub fn channels(ranks: &[usize], per_node: usize) -> Vec<Vec<usize>> {
    let rotated = |channel| {
        let turned =
            |node: &[usize]| (0..node.len()).map(|place| node[(channel + place) % node.len()]).collect();
        ranks.chunks(per_node).flat_map::<Vec<usize>, _>(turned).collect()
    };
    (0..per_node).map(rotated).collect()
}

/// One message of a step: from, to, chunks. Members after the ranks of a group are its switches.
type Message = (u32, u32, usize);

impl SideBySide<'_> {
    /// Time until all groups are done.
    ///
    /// T = Σ over phases: steps · [overhead + max over transfers (latency of the route + end of the flow)]
    ///
    /// The transfers of a step of all groups start together and share links max-min fairly; the next step starts when
    /// all have arrived. The steps of a phase are alike, so that one of them is timed.
    ///
    /// # Errors
    /// `StepsError` where a transfer cannot get through.
    pub fn time(&self, topology: &Topology, folding: Folding) -> Result<Seconds, StepsError> {
        Ok(self.costs(topology, folding)?.time(self.bytes))
    }

    /// Costs for any size: all flows of a step start together, so that their times grow as their amounts do.
    ///
    /// # Errors
    /// As `time`.
    pub fn costs(&self, topology: &Topology, folding: Folding) -> Result<Costs, StepsError> {
        let mut known: Vec<(Vec<Message>, Vec<Arrival>)> = Vec::new();
        let mut phases = Vec::new();
        let links = topology.shared();
        for phase in self.steps.phases() {
            let messages = messages(phase);
            let arrivals = match known.iter().find(|(same, _)| *same == messages) {
                Some((_, arrivals)) => arrivals.clone(),
                None => {
                    let arrivals = latest(self.arrivals(&messages, topology, &links, folding)?);
                    known.push((messages, arrivals.clone()));
                    arrivals
                }
            };
            phases.push((phase.steps(), arrivals));
        }
        Ok(Costs { bytes: self.bytes, overhead: self.overhead, phases })
    }

    fn arrivals(
        &self,
        messages: &[Message],
        topology: &Topology,
        links: &[flow::Link],
        folding: Folding,
    ) -> Result<Vec<Arrival>, StepsError> {
        let chunk = self.steps.chunk(self.bytes);
        let (mut flows, mut latencies) = (Vec::new(), Vec::new());
        let mut route = Vec::new();
        for group in self.groups {
            for (from, to, chunks) in messages {
                route.clear();
                self.route(group, [*from as usize, *to as usize], topology, &mut route)?;
                let path = route.iter().map(|link| (*link, 1.0)).collect();
                flows.push(Flow { amount: chunk.get() * *chunks as f64, path, cap: None });
                latencies.push(topology.path(&route).0);
            }
        }
        let ends = match folding {
            Folding::Unfolded => ends(links.to_vec(), &flows)?,
            Folding::Folded => {
                let folded = fold(links, &flows);
                let of_class = ends(folded.links, &folded.flows)?;
                folded.classes.iter().map(|class| of_class[*class as usize]).collect()
            }
        };
        let arrivals = ends.into_iter().zip(latencies);
        Ok(arrivals.map(|(end, latency)| Arrival { latency, transfer: end.into() }).collect())
    }

    /// The links from one member of a group to another.
    fn route(
        &self,
        group: &[usize],
        [from, to]: [usize; 2],
        topology: &Topology,
        route: &mut Vec<LinkId>,
    ) -> Result<(), StepsError> {
        match (group.get(from), group.get(to)) {
            (Some(from), Some(to)) => topology.route(*from, *to, route),
            (Some(from), None) => route.push(self.switch(*from, to - group.len(), topology)?[0]),
            (None, Some(to)) => route.push(self.switch(*to, from - group.len(), topology)?[1]),
            (None, None) => unreachable!("what goes from switch to switch goes through a rank"),
        }
        Ok(())
    }

    fn switch(&self, gpu: usize, index: usize, topology: &Topology) -> Result<[LinkId; 2], StepsError> {
        let (links, switches) = match self.steps.switches()[index] {
            Switch::Node(_) => (topology.node_switch(gpu), "switches of its node"),
            Switch::Fabric => (topology.fabric_switch(gpu), "switches of the fabric"),
        };
        links.ok_or(StepsError::NoSwitch { gpu, switches })
    }
}

/// Time of a step list, by the size of the collective.
#[derive(Debug, Clone, PartialEq)]
pub struct Costs {
    /// The size for which the transfers' times are given.
    bytes: Bytes,
    overhead: Seconds,
    /// Steps of each phase, and the arrivals that can be the last of one.
    phases: Vec<(usize, Vec<Arrival>)>,
}

/// A transfer's two parts, of which the second one grows with the size.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Arrival {
    latency: Seconds,
    transfer: Seconds,
}

impl Costs {
    /// Time of a collective of that size; see `SideBySide::time`.
    pub fn time(&self, bytes: Bytes) -> Seconds {
        let scale = if bytes == self.bytes { 1.0 } else { bytes / self.bytes };
        let step = |arrivals: &[Arrival]| {
            let times = arrivals.iter().map(|arrival| arrival.latency + scale * arrival.transfer);
            times.fold(Seconds::ZERO, Seconds::max)
        };
        self.phases.iter().map(|(steps, arrivals)| *steps as f64 * (self.overhead + step(arrivals))).sum()
    }
}

/// Those arrivals that no other one exceeds in both parts: whatever the size, one of them is the last.
fn latest(mut arrivals: Vec<Arrival>) -> Vec<Arrival> {
    arrivals.sort_by(|a, b| {
        let longest_first = b.transfer.get().total_cmp(&a.transfer.get());
        longest_first.then(b.latency.get().total_cmp(&a.latency.get()))
    });
    let mut latest: Vec<Arrival> = Vec::new();
    for arrival in arrivals {
        if latest.last().is_none_or(|last| arrival.latency > last.latency) {
            latest.push(arrival);
        }
    }
    latest
}

fn messages(phase: &Phase) -> Vec<Message> {
    phase.transfers(0).iter().map(|transfer| (transfer.from, transfer.to, transfer.chunks.count)).collect()
}

/// When each flow ends if all start at zero.
fn ends(links: Vec<flow::Link>, flows: &[Flow]) -> Result<Vec<Picoseconds>, flow::Error> {
    let mut network = Network::new(links);
    for flow in flows {
        network.start(Picoseconds::ZERO, flow)?;
    }
    let mut ends = vec![Picoseconds::ZERO; flows.len()];
    while let Some(now) = network.next_end() {
        network.advance(now).iter().for_each(|ended| ends[ended.0 as usize] = now);
    }
    Ok(ends)
}
