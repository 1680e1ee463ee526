//! Costs from the published and measured figures of a cluster.

use super::Costs;
use crate::engine::{Load, Traffic};
use crate::network::Placement;
use crate::{compute, network};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::program::{CollectiveKind, Group, Kernel};
use trainwright_spec::units::{Bytes, Seconds};

/// The analytic costs of a cluster: kernels from the GPU's figures, communication from its links.
#[derive(Debug, Clone, Copy)]
pub struct ClusterCosts<'a> {
    /// The hardware.
    pub cluster: &'a Cluster,
}

impl Costs for ClusterCosts<'_> {
    fn kernel(&self, kernel: &Kernel) -> Seconds {
        compute::kernel_time(kernel, &self.cluster.node.gpu)
    }

    fn collective(&self, kind: CollectiveKind, bytes: Bytes, group: &Group) -> Seconds {
        network::collective_time(kind, bytes, &group.ranks, self.cluster)
    }

    fn message(&self, bytes: Bytes, from: usize, to: usize) -> Seconds {
        network::message_time(bytes, from, to, self.cluster)
    }

    /// A kernel needs what it is bound by for all of its time but the launch gap: a streaming kernel the memory, any
    /// other the multiprocessors.
    fn kernel_load(&self, kernel: &Kernel, time: Seconds) -> Load {
        let gap = self.cluster.node.gpu.achieved.kernel_overhead.value;
        let busy = (1.0 - gap / time).max(0.0);
        match kernel {
            Kernel::Streaming { .. } => Load { memory_bound: busy, ..Load::default() },
            Kernel::Gemm { .. } | Kernel::FusedAttention { .. } => {
                Load { multiprocessor_bound: busy, ..Load::default() }
            }
        }
    }

    fn collective_traffic(
        &self,
        kind: CollectiveKind,
        bytes: Bytes,
        group: &Group,
        time: Seconds,
    ) -> Traffic {
        collective_traffic(kind, bytes, &Placement::new(&group.ranks, self.cluster), self.cluster, time)
    }

    /// As of a collective in which each GPU passes on `bytes` once.
    fn message_traffic(&self, bytes: Bytes, from: usize, to: usize, time: Seconds) -> Traffic {
        if from == to || bytes == Bytes::ZERO {
            return Traffic::default();
        }
        let placement = Placement::new(&[from, to], self.cluster);
        let nics = self.cluster.node.nics.as_ref().map_or(0, |nics| nics.count.value);
        let nics = nics.div_ceil(self.cluster.node.gpus.value);
        passing(Passed { sent: bytes, moved: 2.0 * bytes, nics, time }, &placement, self.cluster)
    }
}

/// What a collective over a tensor of `bytes` that takes `time` takes of each GPU.
///
/// Each GPU sends r (p − 1)/p n bytes and moves 2 r n through its memory.
///
/// p ranks, n bytes, r = 2 rounds for an all-reduce and 1 else: what a step passes on is written once and read once,
/// and a rank's own part once too. The volumes are those of the ring, which no algorithm but reduction in the switches
/// beats by more than a few parts in a hundred.
fn collective_traffic(
    kind: CollectiveKind,
    bytes: Bytes,
    placement: &Placement,
    cluster: &Cluster,
    time: Seconds,
) -> Traffic {
    if placement.ranks <= 1 || bytes == Bytes::ZERO {
        return Traffic::default();
    }
    let rounds = match kind {
        CollectiveKind::AllReduce => 2.0,
        CollectiveKind::AllGather | CollectiveKind::ReduceScatter => 1.0,
    };
    let others = (placement.ranks - 1) as f64 / placement.ranks as f64;
    let nics = cluster.node.nics.as_ref().map_or(0, |nics| nics.count.value);
    let passed = Passed { sent: rounds * others * bytes, moved: 2.0 * rounds * bytes, nics, time };
    passing(passed, placement, cluster)
}

/// What one GPU does for a communication.
struct Passed {
    /// Bytes that it sends.
    sent: Bytes,
    /// Bytes read and written in its memory.
    moved: Bytes,
    /// NICs of its node that it works with if it leaves the node: a collective all, a message those of its GPU.
    nics: usize,
    time: Seconds,
}

/// C = channels / multiprocessors, M = moved / (t B), links: sent / (t β), each at most 1
///
/// t the time alone, B the published memory bandwidth, β what the GPU's link inside the node reaches, or the group's
/// share of the NICs. One channel is one thread block, which has a multiprocessor to itself (NVIDIA/nccl issue 689);
/// between nodes there are some for each of the node's NICs, at most as many as inside.
fn passing(passed: Passed, placement: &Placement, cluster: &Cluster) -> Traffic {
    let Passed { sent, moved, nics, time } = passed;
    let gpu = &cluster.node.gpu;
    let part = |needed: Seconds| (needed / time).min(1.0);
    let channels = gpu.communication.as_ref().map_or(0, |communication| {
        let most = communication.channels.value;
        match placement.between {
            Some(_) => most.min(communication.channels_per_nic.value * nics),
            None => most,
        }
    });
    let within = placement.between.is_none() || placement.ranks_per_node > 1;
    Traffic {
        multiprocessors: channels as f64 / gpu.multiprocessors.value as f64,
        memory: part(moved / gpu.memory_bandwidth.value),
        inside: if within { part(sent / placement.inside.bandwidth) } else { 0.0 },
        between: placement.between.map_or(0.0, |link| part(sent / link.bandwidth)),
    }
}
