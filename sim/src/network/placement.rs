//! Where the ranks of a group are, and which share of the cluster's links they have.

use trainwright_spec::cluster::{Cluster, InSwitchReduction, Interconnect, Nics, Taper, Wiring};
use trainwright_spec::units::{Bytes, BytesPerSecond, Seconds};

/// A channel in one direction, as one rank's ring uses it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// What large messages reach.
    pub bandwidth: BytesPerSecond,
    /// Time of one step with an empty message.
    pub latency: Seconds,
}

/// A group of ranks on a cluster, seen from its traffic.
#[derive(Debug, Clone, PartialEq)]
pub struct Placement {
    /// Ranks in the group.
    pub ranks: usize,
    /// Nodes they are on.
    pub nodes: usize,
    /// Ranks on the node that has the fewest of them.
    pub ranks_per_node: usize,
    /// One GPU's link to the group's others in its node.
    pub inside: Link,
    /// The group's share of a node's NICs; none if it is on one node.
    pub between: Option<Link>,
    /// A GPU's link to switches that reduce; none where they cannot.
    pub in_switch: Option<Link>,
    /// What streaming kernels reach of a GPU's memory bandwidth.
    pub memory: BytesPerSecond,
}

impl Placement {
    /// Places global `ranks`, in any order: rank r is a GPU of node r / (GPUs per node).
    ///
    /// Achieved bandwidths are the published ones times their efficiency. The NICs of a node are shared evenly by
    /// its g GPUs. A group with k ranks on a node (the fewest of its nodes) so gets
    ///
    /// β = k/g · (count · bandwidth · efficiency) · min(1, m / oversubscription)
    ///
    /// where m counts its nodes in the pod that has the fewest: of m nodes in a ring only one sends out of the pod
    /// in each direction, so that oversubscribed uplinks hurt only groups with few nodes in each pod.
    /// Nodes without NICs, as those of a torus, have their GPUs' own links between them.
    /// Directly wired GPUs have (k − 1)/(g − 1) of their bandwidth towards the k − 1 others of the group.
    ///
    /// # Panics
    /// If a rank is not on the cluster.
    pub fn new(ranks: &[usize], cluster: &Cluster) -> Self {
        let (node, gpus) = (&cluster.node, cluster.node.gpus.value);
        let mut homes: Vec<usize> = ranks.iter().map(|rank| rank / gpus).collect();
        homes.sort_unstable();
        assert!(homes.last().is_none_or(|home| *home < cluster.nodes), "a rank is not on {}", cluster.name);
        let (nodes, ranks_per_node) = groups(&homes);
        let interconnect = &node.interconnect;
        let between = (nodes > 1).then(|| {
            homes.dedup();
            let (all, latency) = match &node.nics {
                Some(nics) => (achieved(nics), nics.latency.value),
                None => (
                    interconnect.bandwidth.value * interconnect.efficiency.value * gpus as f64,
                    interconnect.latency.value,
                ),
            };
            let bandwidth = all * (ranks_per_node as f64 / gpus as f64) * uplink_share(&homes, cluster);
            Link { bandwidth, latency }
        });
        let reducing = |reduction: &InSwitchReduction| Link {
            bandwidth: interconnect.bandwidth.value * reduction.efficiency.value,
            latency: reduction.latency.value,
        };
        Self {
            ranks: ranks.len(),
            nodes,
            ranks_per_node,
            inside: Link {
                bandwidth: interconnect.bandwidth.value
                    * interconnect.efficiency.value
                    * wired_share(interconnect, ranks_per_node, gpus),
                latency: interconnect.latency.value,
            },
            between,
            in_switch: interconnect.in_switch.as_ref().map(reducing),
            memory: node.gpu.memory_bandwidth.value * node.gpu.achieved.memory.value,
        }
    }

    /// The narrowest link on a ring through all ranks: between nodes where there are several, inside them where a
    /// node has more than one rank.
    pub fn ring_bandwidth(&self) -> BytesPerSecond {
        match self.between {
            None => self.inside.bandwidth,
            Some(between) if self.ranks == self.nodes => between.bandwidth,
            Some(between) => between.bandwidth.min(self.inside.bandwidth),
        }
    }
}

/// Time to send `amount` along a path of latency `depth` in pieces of the best size.
///
/// T = (√D + √V)², the minimum over pieces of (d + pieces − 1) (D/d + V/pieces) for a path of many hops d
///
/// D the path's latency, V = amount / bandwidth.
/// Source: Sanders, Speck & Träff 2009, Parallel Computing 35(12), 581–594, equation for pipelined trees.
pub(super) fn pipelined(depth: Seconds, amount: Bytes, bandwidth: BytesPerSecond) -> Seconds {
    let volume = amount / bandwidth;
    depth + volume + Seconds::new(2.0 * (depth.get() * volume.get()).sqrt())
}

fn achieved(nics: &Nics) -> BytesPerSecond {
    nics.bandwidth.value * nics.efficiency.value * nics.count.value as f64
}

/// The part of its bandwidth that a GPU has towards the group's others in its node.
fn wired_share(interconnect: &Interconnect, ranks: usize, gpus: usize) -> f64 {
    match interconnect.wiring {
        Wiring::Switched | Wiring::Bridges(_) => 1.0,
        Wiring::Direct | Wiring::Pairs(_) => {
            ranks.saturating_sub(1).max(1) as f64 / gpus.saturating_sub(1).max(1) as f64
        }
    }
}

/// The part of its NICs' bandwidth that a group on these nodes keeps on its way through the fabric.
fn uplink_share(homes: &[usize], cluster: &Cluster) -> f64 {
    let share = |taper: &Taper| {
        let groups_of_nodes: Vec<usize> = homes.iter().map(|home| home / taper.nodes).collect();
        match groups(&groups_of_nodes) {
            (1, _) => 1.0,
            (_, fewest) => (fewest as f64 / taper.oversubscription.value).min(1.0),
        }
    };
    cluster.fabric.tapers().iter().map(share).fold(1.0, f64::min)
}

/// How many different values a sorted list has, and how often the rarest occurs.
fn groups(sorted: &[usize]) -> (usize, usize) {
    let sizes = sorted.chunk_by(|a, b| a == b).map(<[usize]>::len);
    (sizes.clone().count(), sizes.min().unwrap_or(0))
}
