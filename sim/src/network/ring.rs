//! The ring: every rank passes chunks to the next one.

use super::placement::ramped;
use super::{Algorithm, Call, Placement, Protocol};
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::units::{Bytes, Seconds};

/// All-reduce, all-gather, reduce-scatter, broadcast and reduce along a ring through all ranks.
#[derive(Debug, Clone, Copy)]
pub struct Ring;

impl Algorithm for Ring {
    fn name(&self) -> &'static str {
        "ring"
    }

    /// T = L + v / B, with NCCL's latency L and bandwidth B
    ///
    /// v bytes through each link, as for `time`. L = base + i max(α_inside, o) + j α_between, j = r (N − 1) steps
    /// between nodes and i the others, o the network's overhead for each step; over several nodes a large
    /// all-reduce with Simple counts L several times (a plateau). B is that of the narrowest link times a factor of
    /// the protocol, up to its cap. A broadcast and a reduce take p steps.
    /// Source: ncclTopoTuneModel in NCCL's src/graph/tuning.cc; constants from the catalog.
    fn expected(&self, call: &Call, placement: &Placement) -> Option<Seconds> {
        let shape = Shape::of(call.kind, placement)?;
        let (constants, protocol, several) = (placement.nccl, call.protocol, placement.nodes > 1);
        let (link, channels) = (placement.ring_bandwidth(), placement.channels() as f64);
        let bandwidth = match protocol {
            Protocol::LowLatency => (constants.factors.ring_ll * link).min(placement.cap(&constants.caps.ll)),
            Protocol::LowLatency128 => (constants.factors.ring_ll128 * link)
                .min(channels * placement.cap(&constants.caps.ring_ll128)),
            Protocol::Simple => link,
        };
        let inside = placement.ring_step(protocol);
        let between = placement.ring_crossing(protocol) + placement.expected_wire(protocol);
        let mut latency = protocol.time(&constants.base.ring);
        if shape.chain {
            let table = if protocol == Protocol::Simple { placement.tree_step(protocol) } else { inside };
            latency += placement.ranks as f64 * table;
        } else {
            let overhead = match (several, protocol) {
                (false, _) => Seconds::ZERO,
                (true, Protocol::Simple) => 3.0 * constants.factors.network_overhead.value,
                (true, _) => constants.factors.network_overhead.value,
            };
            let crossings = shape.rounds * (placement.nodes as f64 - 1.0);
            let steps = shape.rounds * (placement.ranks as f64 - 1.0);
            latency += (steps - crossings) * inside.max(overhead) + crossings * between;
        }
        let chunk = call.bytes / (channels * placement.ranks as f64);
        if several
            && protocol == Protocol::Simple
            && call.kind == CollectiveKind::AllReduce
            && chunk >= Bytes::new(64.0)
        {
            latency = *constants.factors.ring_plateau.of(placement.generation) * latency;
        }
        Some(latency + shape.volume(call.bytes, placement.ranks) / bandwidth)
    }

    /// T = T₀ + r max(c α_between + (p − 1 − c) α_inside, (p − 1) γ) + V + 2 √(d V) + 2 n / (p M),  V = v / β
    ///
    /// γ is the gap of the NICs (`Nics::ring_gap`): the steps of an all-gather or reduce-scatter over several nodes follow
    /// each other no faster; of steps of n / p below the least that was measured, s₀ (`Nics::ring_gap_step`), γ n / (p s₀),
    /// so that it vanishes with the bytes. It is 0 for other collectives, inside a node, and with LL, for which it was not measured.
    /// p ranks on N nodes, n bytes, r = 2 rounds for an all-reduce and 1 else; α latency of a step, β what the
    /// protocol reaches of the narrowest link in one direction; a chunk crosses between nodes c = min(N, p − 1)
    /// times in a round (N > 1). v = r (p − 1)/p n goes through each link, n in a broadcast or a reduce, which are
    /// pipelined. T₀ is the start of the GPU's kernel and NCCL's base latency. With Simple inside a node the chunks
    /// fill the links only after a while: d is the link's ramp. M is what a GPU's memory reaches: each rank also
    /// reads and writes one chunk in its memory, which shows in small groups on fast links; where peers leave
    /// chunks in host memory, it reads the last one from there.
    /// Assumes that no other flow shares the links.
    /// Source: Patarasuk & Yuan 2009, J. Parallel Distrib. Comput. 69(2), 117–124, for steps and volume; the copy
    /// explains why 2 A100s reach 0.86 of the bus bandwidth of 8 (VIA-Research/vTrain trace/a100). The gap is that of
    /// Alexandrov et al. 1995, LogGP, SPAA '95, 95–105; rows `ubp-256MB-*` of traces/published/collectives.csv show it.
    fn time(&self, call: &Call, placement: &Placement) -> Option<Seconds> {
        let shape = Shape::of(call.kind, placement)?;
        let steps = placement.ranks.saturating_sub(1);
        let crossings = if placement.nodes > 1 { placement.nodes.min(steps) } else { 0 };
        let inside = placement.ring_step(call.protocol);
        let between = placement.ring_crossing(call.protocol) + placement.wire(call.protocol);
        let latency = crossings as f64 * between + (steps - crossings) as f64 * inside;
        let latency = latency.max(steps as f64 * gap(call, placement));
        let transfer =
            shape.volume(call.bytes, placement.ranks) / placement.reached(placement.ring_bandwidth(), call);
        let ramp = match (call.protocol, placement.nodes) {
            (Protocol::Simple, 1) => placement.ramp,
            _ => Seconds::ZERO,
        };
        let chunk = call.bytes / placement.ranks as f64;
        let copy = match (shape.chain, placement.staging) {
            (true, _) => Seconds::ZERO,
            (false, Some(staging)) => chunk / staging,
            (false, None) => 2.0 * chunk / placement.memory,
        };
        let start = placement.start + call.protocol.time(&placement.nccl.base.ring);
        Some(start + shape.rounds * latency + ramped(transfer, ramp) + copy)
    }

    /// With LL, one for each rank.
    fn chunks(&self, call: &Call, placement: &Placement) -> usize {
        if call.protocol == Protocol::LowLatency { placement.ranks } else { 1 }
    }
}

/// The least time between two steps, γ of `time`.
fn gap(call: &Call, placement: &Placement) -> Seconds {
    match (call.kind, call.protocol) {
        _ if placement.nodes == 1 => Seconds::ZERO,
        (_, Protocol::LowLatency) => Seconds::ZERO,
        (CollectiveKind::AllGather | CollectiveKind::ReduceScatter, _) => {
            let step = call.bytes / placement.ranks as f64;
            let part = if step < placement.ring_gap_step { step / placement.ring_gap_step } else { 1.0 };
            part * placement.ring_gap
        }
        _ => Seconds::ZERO,
    }
}

/// How often data go around.
struct Shape {
    rounds: f64,
    /// From one end of the ring to the other in one stream, not in a chunk for each rank.
    chain: bool,
}

impl Shape {
    fn of(kind: CollectiveKind, placement: &Placement) -> Option<Self> {
        let (rounds, chain) = match kind {
            CollectiveKind::AllReduce | CollectiveKind::Barrier => (2.0, false),
            CollectiveKind::AllGather | CollectiveKind::ReduceScatter => (1.0, false),
            CollectiveKind::Broadcast | CollectiveKind::Reduce => (1.0, true),
            CollectiveKind::AllToAll | CollectiveKind::SendReceive => return None,
        };
        (placement.ranks > 1).then_some(Self { rounds, chain })
    }

    /// Bytes through each link.
    fn volume(&self, bytes: Bytes, ranks: usize) -> Bytes {
        let part = if self.chain { 1.0 } else { (ranks as f64 - 1.0) / ranks as f64 };
        self.rounds * part * bytes
    }
}
