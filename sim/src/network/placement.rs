//! Where the ranks of a group are, which share of the cluster's links they have, and what NCCL makes of them.

use super::uplinks::Way;
use super::wired::Wired;
use super::{Call, Protocol};
use trainwright_spec::cluster::{Cluster, Generation, InSwitchReduction, Nics, Node, Shape, Transport};
use trainwright_spec::nccl::{ByAlgorithm, ByGeneration, ByNodes, ByProtocol, Constants};
use trainwright_spec::sourced::Sourced;
use trainwright_spec::units::{Bytes, BytesPerSecond, Seconds};

/// A channel in one direction, as one rank's ring uses it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// Bandwidth of large messages.
    pub bandwidth: BytesPerSecond,
    /// Inside a node the time of one step of a ring with an empty message and Simple; between nodes what NICs and
    /// fabric add to NCCL's part of a step.
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
    /// One GPU's link to the group's others in its node, as far as rings through all of them can use it.
    pub inside: Link,
    /// The group's share of a node's NICs; `None` if it is on one node.
    pub between: Option<Link>,
    /// A GPU's link to switches that reduce; `None` if they cannot.
    pub in_switch: Option<Link>,
    /// One GPU's bandwidth to one other in its node.
    pub pair: BytesPerSecond,
    /// One GPU's bandwidth to all others of the group in its node when each has something for each.
    pub exchange: BytesPerSecond,
    /// Bytes of an all-to-all's tensor for each second that its way between nodes takes.
    pub away: BytesPerSecond,
    /// See `Interconnect::ramp`.
    pub ramp: Seconds,
    /// See `Interconnect::staging`.
    pub staging: Option<BytesPerSecond>,
    /// Memory bandwidth of streaming kernels.
    pub memory: BytesPerSecond,
    /// Time from the call to the first step, without NCCL's part.
    pub start: Seconds,
    /// Which rows of NCCL's tables the GPUs read.
    pub generation: Generation,
    /// The constants of NCCL.
    pub nccl: &'static Constants,
    /// The latency of the NICs that NCCL counts with.
    pub(super) reported: Seconds,
    /// See `Nics::message_time`.
    pub(super) message: Seconds,
    /// See `Communication::token_rate`.
    pub(super) token_rate: Option<BytesPerSecond>,
    /// See `Nics::ring_gap`.
    pub(super) ring_gap: Seconds,
    /// See `Nics::ring_gap_step`.
    pub(super) ring_gap_step: Bytes,
    /// See `Nics::exchange_ramp`.
    pub(super) exchange_ramp: Seconds,
    /// See `Nics::channel_bandwidth`.
    pub(super) network_channel: Option<BytesPerSecond>,
    transport: Transport,
    ordered: bool,
}

impl Placement {
    /// Places global `ranks`, in any order: rank r is a GPU of node r / (GPUs per node). Where nodes are of several kinds,
    /// see `network::slowest`; here all are of the first.
    ///
    /// Achieved bandwidths are the published ones times their efficiency. The NICs of a node are shared evenly by
    /// its g GPUs. A group with k ranks on a node (the fewest of its nodes) so gets
    ///
    /// β = k/g · (count · bandwidth · efficiency) · share
    ///
    /// with the share of it that the fabric lets through (`Way`).
    /// Nodes of a torus have direct links of their GPUs between them.
    /// Inside the node, see `Wired`.
    ///
    /// # Panics
    /// If a rank is not on the cluster.
    pub fn new(ranks: &[usize], cluster: &Cluster) -> Self {
        Self::on(ranks, cluster, &cluster.node)
    }

    /// The placement as if all nodes were `node`.
    pub(super) fn on(ranks: &[usize], cluster: &Cluster, node: &Node) -> Self {
        if !ranks.is_sorted() {
            let mut sorted = ranks.to_vec();
            sorted.sort_unstable();
            return Self::on(&sorted, cluster, node);
        }
        let gpus = node.gpus.value;
        let last = ranks.last().map(|rank| rank / gpus);
        assert!(last.is_none_or(|home| home < cluster.nodes), "a rank is not on {}", cluster.name);
        let (nodes, ranks_per_node) = groups(ranks, gpus);
        let interconnect = &node.interconnect;
        let full = interconnect.achieved();
        let (all, latency) = match (&cluster.fabric.shape, &node.nics) {
            (Shape::Torus(_), _) | (_, None) => (full * gpus as f64, interconnect.latency.value),
            (_, Some(nics)) => (nics.achieved(), nics.latency.value),
        };
        let of_gpu = all / gpus as f64;
        let way = (nodes > 1).then(|| Way::through(ranks, cluster));
        let between = way.map(|way| Link {
            bandwidth: of_gpu * ranks_per_node as f64 * way.ring,
            latency: latency + way.latency,
        });
        let local = ranks.chunk_by(|a, b| a / gpus == b / gpus).find(|local| local.len() == ranks_per_node);
        let local: Vec<usize> = local.unwrap_or_default().iter().map(|rank| rank % gpus).collect();
        let wired = Wired::new(&local, cluster, node);
        let reducing = |reduction: &InSwitchReduction| Link {
            bandwidth: interconnect.bandwidth.value * reduction.efficiency.value,
            latency: reduction.latency.value,
        };
        let seconds =
            |time: &Option<Sourced<Seconds>>| time.as_ref().map_or(Seconds::ZERO, |time| time.value);
        let of_nics = |time: fn(&Nics) -> &Option<Sourced<Seconds>>| {
            node.nics.as_ref().map_or(Seconds::ZERO, |nics| seconds(time(nics)))
        };
        Self {
            ranks: ranks.len(),
            nodes,
            ranks_per_node,
            inside: Link { bandwidth: wired.ring, latency: wired.over.latency.value },
            between,
            in_switch: interconnect.in_switch.as_ref().map(reducing),
            pair: wired.pair,
            exchange: wired.exchange,
            away: way.map_or(of_gpu, |way| of_gpu / way.exchange),
            ramp: seconds(&wired.over.ramp),
            staging: wired.over.staging.as_ref().map(|staging| staging.value),
            memory: node.gpu.memory_bandwidth.value * node.gpu.achieved.memory.value,
            start: seconds(&node.gpu.achieved.collective_start),
            generation: node.gpu.generation,
            nccl: cluster.nccl.constants(),
            reported: of_nics(|nics| &nics.reported_latency),
            message: of_nics(|nics| &nics.message_time),
            token_rate: node.gpu.communication.as_ref().and_then(|c| Some(c.token_rate.as_ref()?.value)),
            ring_gap: of_nics(|nics| &nics.ring_gap),
            ring_gap_step: node
                .nics
                .as_ref()
                .and_then(|nics| nics.ring_gap_step.as_ref())
                .map_or(Bytes::ZERO, |step| step.value),
            exchange_ramp: of_nics(|nics| &nics.exchange_ramp),
            network_channel: node
                .nics
                .as_ref()
                .and_then(|nics| nics.channel_bandwidth.as_ref())
                .map(|b| b.value),
            transport: wired.over.transport,
            ordered: node.nics.as_ref().is_none_or(|nics| nics.ordered),
        }
    }

    /// The placement in a coalesced call: steps of several collectives are in flight at a time, so that none of them
    /// waits for the gap after its last one.
    pub(super) fn without_ring_gap(self) -> Self {
        Self { ring_gap: Seconds::ZERO, ..self }
    }

    /// The placement of those of the ranks that share a node.
    pub(crate) fn of_a_node(&self) -> Self {
        Self { ranks: self.ranks_per_node, nodes: 1, between: None, ..self.clone() }
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

    /// Channels that NCCL opens for the ring's bandwidth.
    pub(super) fn channels(&self) -> usize {
        let channels = &self.nccl.channels;
        let wanted = (self.ring_bandwidth() / channels.bandwidth.value).round() as usize;
        wanted.clamp(channels.least.value, channels.most.value)
    }

    /// Whether NCCL uses a protocol on these links: LL128 only on NVLink, and over NICs that keep the order.
    pub(super) fn allows(&self, protocol: Protocol) -> bool {
        protocol != Protocol::LowLatency128
            || (self.transport == Transport::NvLink && (self.nodes == 1 || self.ordered))
    }

    /// Time of a ring's step inside a node, where NCCL's times scale with the link's latency.
    pub(super) fn ring_step(&self, protocol: Protocol) -> Seconds {
        self.inside_step(protocol, |table| &table.ring)
    }

    /// Time of a tree's step inside a node.
    pub(super) fn tree_step(&self, protocol: Protocol) -> Seconds {
        self.inside_step(protocol, |table| &table.tree)
    }

    /// NCCL's part of a ring's step between nodes. With one rank in each node NCCL counts the steps of a tree.
    pub(super) fn ring_crossing(&self, protocol: Protocol) -> Seconds {
        let network = &self.nccl.steps.network;
        protocol.time(if self.ranks == self.nodes { &network.tree } else { &network.ring })
    }

    /// NCCL's part of a tree's step between nodes.
    pub(super) fn tree_crossing(&self, protocol: Protocol) -> Seconds {
        protocol.time(&self.nccl.steps.network.tree)
    }

    /// Time that the network adds to a step between nodes: its latency, twice where the receiver also flushes what came,
    /// as it does with Simple on Ampere and older GPUs.
    ///
    /// Source: ncclTopoNeedFlush in NCCL's src/graph/paths.cc.
    pub(super) fn wire(&self, protocol: Protocol) -> Seconds {
        let latency = self.between.map_or(Seconds::ZERO, |between| between.latency);
        let flushes = protocol == Protocol::Simple && self.generation <= Generation::Ampere;
        if flushes { 2.0 * latency } else { latency }
    }

    /// Time that NCCL expects the network to add: the latency that its driver reports, twice with Simple on any GPU.
    ///
    /// Source: ncclTopoTuneModel in NCCL's src/graph/tuning.cc.
    pub(super) fn expected_wire(&self, protocol: Protocol) -> Seconds {
        if protocol == Protocol::Simple { 2.0 * self.reported } else { self.reported }
    }

    /// How deep NCCL's trees over N nodes are: ⌈log₂ N⌉. Of 14 nodes the longest way to the root, 1 > 2 > 4 > 8 > 0,
    /// has 4 steps.
    ///
    /// Source: the drawing above ncclGetBtree in NCCL's src/graph/trees.cc.
    pub(super) fn tree_depth(&self) -> f64 {
        f64::from(self.nodes.next_power_of_two().ilog2())
    }

    /// How deep NCCL takes them for when it chooses: ⌊log₂ N⌋, one too few where N is no power of 2.
    ///
    /// Source: log2i(nNodes) in NCCL's src/graph/tuning.cc.
    pub(super) fn expected_tree_depth(&self) -> f64 {
        f64::from(self.nodes.ilog2())
    }

    /// A cap for these GPUs on this many nodes.
    pub(super) fn cap(&self, caps: &ByGeneration<ByNodes>) -> BytesPerSecond {
        caps.of(self.generation).on(self.nodes)
    }

    /// Bandwidth of a channel with a protocol.
    pub(super) fn channel(&self, protocol: Protocol) -> BytesPerSecond {
        let caps = &self.nccl.caps;
        let in_a_node = |caps: &ByGeneration<ByNodes>| caps.of(self.generation).on(1);
        match protocol {
            Protocol::LowLatency => in_a_node(&caps.ll) / self.nccl.channels.most.value as f64,
            Protocol::LowLatency128 => in_a_node(&caps.ring_ll128),
            Protocol::Simple => in_a_node(&caps.tree),
        }
    }

    /// Bandwidth of a link with a call's protocol: half of it with LL, whose every second word is a flag, up to its
    /// cap; and no more than forced channels carry.
    pub(super) fn reached(&self, link: BytesPerSecond, call: &Call) -> BytesPerSecond {
        let constants = self.nccl;
        let reached = match call.protocol {
            Protocol::LowLatency => (0.5 * link).min(self.cap(&constants.caps.ll)),
            Protocol::LowLatency128 => constants.achieved.ll128.value * link,
            Protocol::Simple => link,
        };
        match call.channels {
            Some(channels) => reached.min(channels as f64 * self.channel(call.protocol)),
            None => reached,
        }
    }

    fn inside_step(&self, protocol: Protocol, algorithm: impl Fn(&ByAlgorithm) -> &ByProtocol) -> Seconds {
        let table = match self.transport {
            Transport::NvLink => &self.nccl.steps.nvlink,
            Transport::Pci => &self.nccl.steps.pci,
        };
        let scale = self.inside.latency / table.ring.simple.value;
        scale * protocol.time(algorithm(table))
    }
}

/// Time to send `amount` in chunks of the best size along a path whose hops are busy for `busy` in all with each chunk,
/// and whose wires delay it by `delay`.
///
/// T = W + (√B + √V)² = W + B + V + 2 √(B V), the minimum over c chunks of W + (d + c − 1) (B/d + V/c) for a
/// path of many hops d
///
/// W the delay of all wires, B the time that all hops together spend on a chunk without its bytes, V = amount /
/// bandwidth. A wire holds the next chunks while the first is still under way (NCCL lets 8 of them be), so its delay
/// counts once, not for each chunk.
/// Source: Sanders, Speck & Träff 2009, Parallel Computing 35(12), 581–594, equation for pipelined trees; delay apart
/// from busy time as in Culler et al. 1993, LogP, PPoPP '93, 1–12.
pub(super) fn pipelined(busy: Seconds, delay: Seconds, amount: Bytes, bandwidth: BytesPerSecond) -> Seconds {
    delay + busy + ramped(amount / bandwidth, busy)
}

/// Time of a transfer whose chunks have to fill the links first, and grow with the message: V + 2 √(d V).
pub(super) fn ramped(transfer: Seconds, ramp: Seconds) -> Seconds {
    transfer + Seconds::new(2.0 * (ramp.get() * transfer.get()).sqrt())
}

/// On how many nodes sorted ranks are, and how many are on the node that has the fewest.
pub(super) fn groups(ranks: &[usize], gpus: usize) -> (usize, usize) {
    let sizes = ranks.chunk_by(|a, b| a / gpus == b / gpus).map(<[usize]>::len);
    (sizes.clone().count(), sizes.min().unwrap_or(0))
}
