//! An algorithm over groups of a cluster: its step lists, laid out and cut so that they are as fast as they can be.
//!
//! Nothing here knows NCCL: these are the textbook's steps on the cluster's links.

use super::super::{Placement, topology::Topology};
use super::{Costs, Folding, SideBySide, StepsError, channels};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::collective::{Algorithm, CollectiveKind, Layout, Steps, Switch};
use trainwright_spec::units::{Bytes, Seconds};

/// Into how many pieces pipelined lists are cut.
const PIECES: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

/// The most transfers of a question, each step of all phases counted once: seconds of work.
const MOST_TRANSFERS: usize = 2_000_000;

/// Groups that do the same collective by the same algorithm at the same time.
#[derive(Clone, Copy)]
pub struct Groups<'a> {
    /// How.
    pub algorithm: &'a dyn Algorithm,
    /// What.
    pub kind: CollectiveKind,
    /// Global ranks of each group, node by node.
    pub ranks: &'a [Vec<usize>],
    /// Ranks of each group on each of its nodes; 1 for groups that lie unevenly.
    pub per_node: usize,
}

/// Times of the groups for a collective, by size.
#[derive(Debug, Clone)]
pub struct Lists {
    start: Seconds,
    cuts: Vec<Cut>,
    switches: Vec<Switch>,
}

/// Costs of the list of a tensor that is cut into `pieces`.
#[derive(Debug, Clone)]
struct Cut {
    pieces: usize,
    /// The part of a group's tensor that each of its lists carries.
    part: f64,
    costs: Costs,
}

/// A time, and how it is reached.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timed {
    /// From the call to the end.
    pub time: Seconds,
    /// Into how many pieces the tensor is cut; 1 where the algorithm has no pipeline.
    pub pieces: usize,
}

impl Groups<'_> {
    /// The lists on that cluster, whose graph is `topology`; `None` if the algorithm cannot do the collective over
    /// these groups.
    ///
    /// Where one list uses some of a node's NICs more than others, each group does as many as it has ranks on a node,
    /// each with an equal part of the tensor and another rank at the seam; see `channels`. Pipelined algorithms have
    /// a list for each of 1, 2, 4, …, 64 pieces. Start: `Placement::start`, once; a step adds its links' latency.
    ///
    /// # Errors
    /// `StepsError` for switches that are not there or do not add, and for groups that would take too long.
    pub fn lists(&self, cluster: &Cluster, topology: &Topology) -> Result<Option<Lists>, StepsError> {
        let Some(first) = self.ranks.first() else { return Ok(None) };
        let mut lists =
            Lists { start: Placement::new(first, cluster).start, cuts: Vec::new(), switches: Vec::new() };
        let (mut transfers, mut chunks) = (0, None);
        for pieces in PIECES {
            let layout = Layout::new(first.len(), self.per_node, pieces);
            let Some(steps) = layout.ok().and_then(|layout| self.algorithm.steps(self.kind, layout)) else {
                return Ok(None);
            };
            if chunks == Some(steps.chunks()) {
                break;
            }
            chunks = Some(steps.chunks());
            lists.switches = steps.switches().to_vec();
            self.find_switches(&steps, cluster, topology)?;
            let traffic = self.traffic(&steps)?;
            let channels = if traffic.uneven { self.channels() } else { self.ranks.to_vec() };
            transfers += channels.len() * traffic.transfers;
            within(transfers)?;
            // Any size does; this one's transfers take many picoseconds each.
            let part = self.ranks.len() as f64 / channels.len() as f64;
            let run = SideBySide {
                steps: &steps,
                bytes: part * Bytes::GIB,
                groups: &channels,
                overhead: Seconds::ZERO,
            };
            lists.cuts.push(Cut { pieces, part, costs: run.costs(topology, Folding::Folded)? });
        }
        Ok(Some(lists))
    }

    /// Whether the algorithm can do the collective over these groups on that cluster, however long it takes.
    pub fn is_possible(&self, cluster: &Cluster, topology: &Topology) -> bool {
        let Some(first) = self.ranks.first() else { return false };
        let layout = Layout::new(first.len(), self.per_node, 1);
        let steps = layout.ok().and_then(|layout| self.algorithm.steps(self.kind, layout));
        steps.is_some_and(|steps| self.find_switches(&steps, cluster, topology).is_ok())
    }

    /// The switches that add are where the list needs them.
    fn find_switches(&self, steps: &Steps, cluster: &Cluster, topology: &Topology) -> Result<(), StepsError> {
        let needs = |which: fn(&Switch) -> bool| steps.switches().iter().any(which);
        let interconnect = &cluster.node.interconnect;
        if needs(|switch| matches!(switch, Switch::Node(_))) && interconnect.in_switch.is_none() {
            return Err(StepsError::NoReduction { interconnect: interconnect.kind.clone() });
        }
        let gpu = self.ranks[0][0];
        if needs(|switch| *switch == Switch::Fabric) && topology.fabric_switch(gpu).is_none() {
            return Err(StepsError::NoSwitch { gpu, switches: "switches of the fabric" });
        }
        Ok(())
    }

    fn channels(&self) -> Vec<Vec<usize>> {
        self.ranks.iter().flat_map(|ranks| channels(ranks, self.per_node)).collect()
    }

    fn traffic(&self, steps: &Steps) -> Result<Traffic, StepsError> {
        // An all-to-all has a message, and a name, for every two ranks.
        within(steps.names())?;
        let ranks = self.ranks[0].len();
        let node = |member: usize| match member < ranks {
            true => Some(member / self.per_node),
            false => match steps.switches()[member - ranks] {
                Switch::Node(node) => Some(node),
                Switch::Fabric => None,
            },
        };
        let (mut transfers, mut sent, mut received) = (0, vec![0; steps.members()], vec![0; steps.members()]);
        for phase in steps.phases() {
            let step = phase.transfers(0);
            transfers += step.len();
            within(transfers * self.ranks.len())?;
            for transfer in step {
                let (from, to) = (transfer.from as usize, transfer.to as usize);
                if node(from) != node(to) {
                    sent[from] += phase.steps() * transfer.chunks.count;
                    received[to] += phase.steps() * transfer.chunks.count;
                }
            }
        }
        let differ = |of: &[usize]| of.iter().any(|chunks| *chunks != of[0]);
        let uneven =
            [sent, received].iter().any(|members| members[..ranks].chunks(self.per_node).any(differ));
        Ok(Traffic { transfers, uneven })
    }
}

/// The transfers of one list of a group.
struct Traffic {
    /// Transfers, a step of each phase.
    transfers: usize,
    /// Whether ranks of one node send, or get, different shares of what crosses between nodes.
    uneven: bool,
}

fn within(transfers: usize) -> Result<(), StepsError> {
    match transfers > MOST_TRANSFERS {
        true => Err(StepsError::TooMany { most: MOST_TRANSFERS }),
        false => Ok(()),
    }
}

impl Lists {
    /// The least time over all cuts.
    pub fn time(&self, bytes: Bytes) -> Timed {
        let of =
            |cut: &Cut| Timed { time: self.start + cut.costs.time(cut.part * bytes), pieces: cut.pieces };
        let least =
            self.cuts.iter().map(of).reduce(|best, next| if next.time < best.time { next } else { best });
        least.expect("a list is there without cuts")
    }

    /// Whether the fabric's switches have to add, which the catalog says of none.
    pub fn needs_fabric_to_add(&self) -> bool {
        self.switches.contains(&Switch::Fabric)
    }
}
