//! Costs from the published and measured figures of a cluster.

use super::{Conditions, Cost, Costs, Delivery, Query, QueryWork, by_ranks, measured_sweep, measured_time};
use crate::engine::{Load, Scheduling, Traffic};
use crate::network::{Link, Placement};
use crate::replay::OperationCosts;
use crate::{compute, host, network};
use trainwright_spec::cluster::{Cluster, CoreTurns, Cores, Nics, Node, step_time};
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::precision::Precision;
use trainwright_spec::program::{CollectiveCall, CopyDirection, Group, Kernel, Pass, Place, op_kind};
use trainwright_spec::units::{Bytes, Flops, Seconds};

/// The costs of a cluster: kernels from the figures or the profile of the rank's GPU, communication from the cluster's links, or
/// from its profile where it has measured the collective.
#[derive(Debug, Clone, Copy)]
pub struct ClusterCosts<'a> {
    /// The hardware.
    pub cluster: &'a Cluster,
}

impl<'a> ClusterCosts<'a> {
    /// The costs of all ranks of a cluster.
    pub fn new(cluster: &'a Cluster) -> Self {
        Self { cluster }
    }

    /// Cores that ranks share, where ranks are threads of processors.
    fn cores(&self) -> Option<&'a Cores> {
        self.cluster.node.cores.as_ref()
    }

    fn node(&self, rank: usize) -> &'a Node {
        self.cluster.node_of(self.device(rank))
    }

    /// See `Nics::burst`; headers, which the efficiency stands for, count there too.
    fn burst(&self) -> Bytes {
        let of_nics = |nics: &Nics| Some(nics.efficiency.value * nics.burst.as_ref()?.value);
        self.cluster.node.nics.as_ref().and_then(of_nics).unwrap_or(Bytes::ZERO)
    }

    fn kernel(&self, rank: usize, op: Option<(&str, Pass)>, kernel: &Kernel) -> Cost {
        let node = self.node(rank);
        let time = match op {
            Some((module, pass)) if node.gpu.profile.is_some() => {
                compute::op_time(&op_kind(module, pass), kernel, &node.gpu)
            }
            _ => compute::kernel_time(kernel, &node.gpu),
        };
        Cost { time, load: self.kernel_load(node, kernel, time), delivery: None }
    }

    /// A kernel needs what it is bound by for all of its time but the launch gap: a streaming kernel the memory, any
    /// other the multiprocessors. Where ranks are threads of processors, it needs its threads' cores.
    fn kernel_load(&self, node: &Node, kernel: &Kernel, time: Seconds) -> Load {
        if let Some(cores) = self.cores() {
            let share = cores.threads.value as f64 / cores.count.value as f64;
            return Load { cores: share, crowding: cores.crowding, ..Load::default() };
        }
        let gap = node.gpu.achieved.kernel_overhead.value;
        let busy = (1.0 - gap / time).max(0.0);
        match kernel {
            Kernel::Streaming { .. } => Load { memory_bound: busy, ..Load::default() },
            Kernel::Gemm { .. } | Kernel::FusedAttention(_) => {
                Load { multiprocessor_bound: busy, ..Load::default() }
            }
        }
    }

    /// Time of the exchange of a collective.
    fn exchange_time(
        &self,
        call: CollectiveCall,
        kind: CollectiveKind,
        bytes: Bytes,
        group: &Group,
    ) -> Seconds {
        if let Some(cores) = self.cores() {
            let placement = Placement::new(&group.ranks, self.cluster);
            return by_ranks::collective_time(kind, bytes, &placement, (&cores.steps, self.burst()));
        }
        let forecast = |bytes| network::called_time(call, kind, bytes, &group.ranks, self.cluster);
        match measured_sweep(kind, &group.ranks, self.cluster) {
            Some(sweep) if bytes > Bytes::ZERO => measured_time(sweep, bytes, forecast),
            _ => forecast(bytes),
        }
    }

    /// The traffic on each member's GPU and links of a collective whose time alone is `time`.
    pub fn collective_traffic(
        &self,
        kind: CollectiveKind,
        bytes: Bytes,
        group: &Group,
        time: Seconds,
    ) -> Traffic {
        let (kind_of_node, placement) = network::slowest(kind, bytes, &group.ranks, self.cluster);
        collective_traffic(kind, bytes, &placement, self.cluster.node_of(kind_of_node), time)
    }

    /// The same of kernels for tokens: on their multiprocessors, `over_nodes` bytes through the NICs if a token comes to
    /// each node once.
    fn token_traffic(
        &self,
        (multiprocessors, over_nodes): (usize, Option<u64>),
        (kind, bytes): (CollectiveKind, Bytes),
        group: &Group,
        time: Seconds,
    ) -> Traffic {
        let (kind_of_node, placement) = network::slowest(kind, bytes, &group.ranks, self.cluster);
        let node = self.cluster.node_of(kind_of_node);
        let of = |bytes, placement: &Placement| collective_traffic(kind, bytes, placement, node, time);
        let through = match over_nodes.filter(|_| placement.nodes > 1) {
            None => of(bytes, &placement),
            Some(away) => {
                let between = of(Bytes::new(away as f64), &placement).between;
                Traffic { between, ..of(bytes, &placement.of_a_node()) }
            }
        };
        let all = node.gpu.multiprocessors.value;
        Traffic { multiprocessors: (multiprocessors as f64 / all as f64).min(1.0), ..through }
    }

    fn collective(
        &self,
        op: Option<(&str, Pass)>,
        call: CollectiveCall,
        (kind, bytes): (CollectiveKind, Bytes),
        group: &Group,
    ) -> Cost {
        let exchange = self.exchange_time(call, kind, bytes, group);
        let Some(cores) = self.cores() else {
            let traffic = match call {
                CollectiveCall::TokenKernel { multiprocessors, over_nodes, .. } => {
                    self.token_traffic((multiprocessors, over_nodes), (kind, bytes), group, exchange)
                }
                _ => self.collective_traffic(kind, bytes, group, exchange),
            };
            let load = Load::communication(traffic);
            return Cost { time: exchange, load, delivery: None };
        };
        let added = op.map_or(Seconds::ZERO, |(module, pass)| {
            let steps = (&cores.steps, None);
            let alone = |kind, bytes, ranks| by_ranks::collective_work(kind, bytes, ranks, steps);
            by_ranks::added_work(&op_kind(module, pass), (kind, bytes), &cores.exchanges, alone)
        });
        let network = Placement::new(&group.ranks, self.cluster).between.and(cores.network.as_ref());
        let moving = by_ranks::collective_work(kind, bytes, group.ranks.len(), (&cores.steps, network));
        let time = exchange + added;
        let busy = by_ranks::cores(moving + added, time, cores);
        Cost { time, load: Load { cores: busy, ..Load::communication(Traffic::default()) }, delivery: None }
    }

    fn message(&self, bytes: Bytes, [from, to]: [usize; 2], blocking: bool) -> Cost {
        match self.cores() {
            Some(cores) => self.message_by_cores(cores, bytes, [from, to], blocking),
            None => {
                let time = network::message_time(bytes, from, to, self.cluster);
                let load = Load::communication(self.message_traffic(bytes, [from, to], time));
                Cost { time, load, delivery: None }
            }
        }
    }

    /// Its links alone. What its two channels and its bytes take from kernels adds 0.14 % to a step of GPT-3 175B on
    /// 1,024 A100s (tensor 8, pipeline 16), and half as much again to the time it takes to simulate one.
    fn message_traffic(&self, bytes: Bytes, [from, to]: [usize; 2], time: Seconds) -> Traffic {
        if from == to || bytes == Bytes::ZERO {
            return Traffic::default();
        }
        let (_, placement) = network::slowest(CollectiveKind::SendReceive, bytes, &[from, to], self.cluster);
        let (inside, between) = links(bytes, &placement, time);
        Traffic { inside, between, ..Traffic::default() }
    }

    /// A process gives a message to the operating system, which takes it out of its hands: a buffer of a connection holds
    /// more than a message has (Linux: 4 MiB, net.ipv4.tcp_wmem). 128 KiB that take 10.5 ms at 100 Mbit/s were given in 0.3 ms.
    /// That is a delivery where the sender would wait for it and its link is slower than the copy.
    fn message_by_cores(&self, cores: &Cores, bytes: Bytes, ends: [usize; 2], blocking: bool) -> Cost {
        let placement = Placement::new(&ends, self.cluster);
        let time = by_ranks::message_time(bytes, &placement, (&cores.steps, self.burst()));
        let [from, to] = ends.map(|rank| rank / self.cluster.node.gpus.value);
        let work = match from == to {
            true => [step_time(&cores.steps.copies, Bytes::ZERO), Seconds::ZERO],
            false => by_ranks::message_work(bytes, cores),
        };
        let [senders, receivers] = work.map(|work| by_ranks::cores(work, time, cores));
        let communicating = Load::communication(Traffic::default());
        let given = step_time(&cores.steps.copies, bytes);
        let slower = |between: Link| bytes / between.bandwidth > given;
        if !(blocking && placement.between.is_some_and(slower)) {
            return Cost { time, load: Load { cores: senders, ..communicating }, delivery: None };
        }
        let giving = by_ranks::cores(given, given, cores);
        // What the sender's cores do while the message is in its hands is part of what they do for it in all.
        let left = (senders - giving * (given / time)).max(0.0);
        let delivery = Some(Delivery { time, cores: [left, receivers] });
        Cost { time: given, load: Load { cores: giving, ..communicating }, delivery }
    }

    fn copy(&self, rank: usize, direction: CopyDirection, place: Place, bytes: Bytes) -> Cost {
        let node = self.node(rank);
        let time = host::copy_time(direction, place, bytes, node);
        Cost { time, load: Load::communication(copy_traffic(bytes, time, node)), delivery: None }
    }
}

impl OperationCosts for ClusterCosts<'_> {
    /// T = max(n / R, m / β): n operations at the peak R in 16 bits, or at the only one that there is; m bytes at the
    /// memory bandwidth β. A trace without times has no precisions either.
    fn operations(&self, rank: usize, flops: Flops, memory: Bytes) -> Seconds {
        let gpu = &self.node(rank).gpu;
        let known =
            [Precision::Bf16, Precision::Fp16].into_iter().find_map(|precision| gpu.peak.get(&precision));
        let arithmetic = match known.or(gpu.peak.values().next()) {
            Some(peak) => flops / peak.value,
            None => Seconds::ZERO,
        };
        arithmetic.max(memory / gpu.memory_bandwidth.value)
    }
}

impl Costs for ClusterCosts<'_> {
    fn cost(&self, query: &Query) -> Cost {
        let Query { rank, op, work } = *query;
        match work {
            QueryWork::Kernel(kernel) => self.kernel(rank, op, kernel),
            QueryWork::Collective { kind, bytes, call, group } => {
                self.collective(op, call, (kind, bytes), group)
            }
            QueryWork::Message { bytes, to, blocking } => self.message(bytes, [rank, to], blocking),
            QueryWork::Copy { direction, place, bytes } => self.copy(rank, direction, place, bytes),
            QueryWork::HostUpdate(update) => Cost::of_time(host::update_time(update, self.node(rank))),
            QueryWork::Process(time) => Cost::of_time(time),
        }
    }

    fn device(&self, rank: usize) -> usize {
        if self.cluster.is_mixed() { self.cluster.kind_of(rank) } else { 0 }
    }

    fn machine(&self, rank: usize) -> Option<usize> {
        let cores = self.cores()?;
        Some(if cores.emulated { 0 } else { rank / self.cluster.node.gpus.value })
    }

    fn conditions(&self) -> Conditions<'_> {
        let profiled = |node: &Node| node.gpu.profile.as_ref().is_some_and(|profile| !profile.ops.is_empty());
        let by_op = self.cluster.kinds().any(|(_, node)| profiled(node));
        let Some(cores) = self.cores() else { return Conditions { by_op, ..Conditions::default() } };
        let turns = cores.turns.as_ref().filter(|_| cores.threads.value == 1);
        let scheduling = turns.map(|CoreTurns { slice, balance }| Scheduling {
            cores: cores.count.value,
            slice: slice.value.into(),
            balance: balance.value.into(),
        });
        Conditions { by_op: by_op || !cores.exchanges.is_empty(), scheduling, jitter: &cores.jitter }
    }
}

/// The memory bandwidth that a copy's bytes need; a copy engine does it, and no multiprocessor. On A100s matrix products
/// and copies take 0.3 % longer together than the longer of both takes alone (median of 145 rows of
/// `gemm+h2d` and `gemm+d2h`, github.com/Dazz993/Mist@d69e530acb62, mist/tools/results-final).
fn copy_traffic(bytes: Bytes, time: Seconds, node: &Node) -> Traffic {
    if bytes == Bytes::ZERO {
        return Traffic::default();
    }
    let memory = bytes / node.gpu.memory_bandwidth.value / time;
    Traffic { memory: memory.min(1.0), ..Traffic::default() }
}

/// The traffic on each GPU of a collective over a tensor of `bytes` whose time alone is `time`.
///
/// C = channels / multiprocessors, M = 2 r n / (t B), links: f n / (t β), each at most 1
///
/// p ranks, n bytes, t the time alone, r = 2 rounds for an all-reduce and 1 else, f the part of the tensor that
/// each rank's link carries (`CollectiveKind::bus_factor`); B the published memory bandwidth: what
/// a step passes on is written once and read once, and a rank's part once too; β what the GPU's link inside the node
/// reaches, or the group's share of the NICs. One channel is one thread block, which has a multiprocessor to itself
/// (NVIDIA/nccl issue 689); between nodes there are some for each of the node's NICs, at most as many as inside.
/// Channels are those of a large collective, whatever its size: with the fewer ones of `Choice::channels` the median
/// error of matrix products beside all-gathers (tests/interference.rs) grows on A100s from 0.4 to 0.6 %.
/// The volumes are those of the ring; of an all-to-all, see `exchanged`.
fn collective_traffic(
    kind: CollectiveKind,
    bytes: Bytes,
    placement: &Placement,
    node: &Node,
    time: Seconds,
) -> Traffic {
    if placement.ranks <= 1 || bytes == Bytes::ZERO {
        return Traffic::default();
    }
    let rounds = if kind == CollectiveKind::AllReduce { 2.0 } else { 1.0 };
    let gpu = &node.gpu;
    let channels = gpu.communication.as_ref().map_or(0, |communication| {
        let most = communication.channels.value;
        match (placement.between, &node.nics) {
            (Some(_), Some(nics)) => most.min(communication.channels_per_nic.value * nics.count.value),
            _ => most,
        }
    });
    let (inside, between) = match kind {
        CollectiveKind::AllToAll => exchanged(bytes, placement, time),
        _ => links(kind.bus_factor(placement.ranks) * bytes, placement, time),
    };
    Traffic {
        multiprocessors: channels as f64 / gpu.multiprocessors.value as f64,
        memory: (2.0 * rounds * bytes / gpu.memory_bandwidth.value / time).min(1.0),
        inside,
        between,
    }
}

fn part(bytes: Bytes, link: Link, time: Seconds) -> f64 {
    (bytes / link.bandwidth / time).min(1.0)
}

/// The same parts for an all-to-all of a tensor of n bytes over p ranks, k of them on each node: (k − 1) n / p stay in
/// the node, and the k GPUs send k (p − k) n / p through their share of the NICs.
fn exchanged(bytes: Bytes, placement: &Placement, time: Seconds) -> (f64, f64) {
    let (p, k) = (placement.ranks as f64, placement.ranks_per_node as f64);
    let between = placement.between.map_or(0.0, |link| part(k * (p - k) / p * bytes, link, time));
    (part((k - 1.0) / p * bytes, placement.inside, time), between)
}

/// The parts of a GPU's link inside the node and of its share of the NICs that sending `bytes` in `time` takes.
fn links(bytes: Bytes, placement: &Placement, time: Seconds) -> (f64, f64) {
    let part = |link: Link| part(bytes, link, time);
    let leaves_gpu = placement.between.is_none() || placement.ranks_per_node > 1;
    (if leaves_gpu { part(placement.inside) } else { 0.0 }, placement.between.map_or(0.0, part))
}
