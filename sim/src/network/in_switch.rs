//! All-reduce inside the NVLink switches (NVLS), with a tree between nodes (NVLSTree).

use super::placement::pipelined;
use super::{Algorithm, Call, Placement, Protocol};
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::nccl::{self, Nvls as Constants};
use trainwright_spec::units::{BytesPerSecond, Seconds};

/// Switch-reduced all-reduce in one node: each GPU sends its tensor once and receives the sum once.
#[derive(Debug, Clone, Copy)]
pub struct Nvls;

/// The same in each of several nodes, whose sums go up and down a double binary tree.
#[derive(Debug, Clone, Copy)]
pub struct NvlsTree;

impl Algorithm for Nvls {
    fn name(&self) -> &'static str {
        "nvls"
    }

    fn is_in(&self, version: &nccl::Constants) -> bool {
        version.nvls.is_some()
    }

    /// T = L + n / (f e β_inside)
    ///
    /// L, f and e NCCL's latency, factor and efficiency of reduction in the switches.
    /// Source: NCCL's src/graph/tuning.cc; constants from the catalog.
    fn expected(&self, call: &Call, placement: &Placement) -> Option<Seconds> {
        can(call, placement, 1)?;
        let nvls = placement.nccl.nvls.as_ref()?;
        Some(nvls.inside.value + call.bytes / (efficiency(nvls, placement) * placement.inside.bandwidth))
    }

    /// T = (√α + √(n / β))²
    ///
    /// α time of an empty reduction from the call to the end, β bandwidth of a GPU to the switches. None without
    /// switches that reduce. The start of the kernel is in α, which also stands for the depth: it is not known by
    /// itself. Both constants of the catalog are those of this form; with the GPUs' `collective_start` outside of the
    /// root and the same constants, nine tenths of the published times of 8 H100s are met within 17 % instead of 10.
    /// Source: the pipeline of `Tree`, whose depth is one reduction.
    fn time(&self, call: &Call, placement: &Placement) -> Option<Seconds> {
        let (latency, bandwidth) = can(call, placement, 1)?;
        Some(pipelined(latency, Seconds::ZERO, call.bytes, bandwidth))
    }
}

impl Algorithm for NvlsTree {
    fn name(&self) -> &'static str {
        "nvls-tree"
    }

    fn is_in(&self, version: &nccl::Constants) -> bool {
        version.nvls.is_some()
    }

    /// T = L + 2 ⌊log₂ N⌋ α_between + n / (f e min(β_inside, β_between / v)), v as for `time`
    ///
    /// Source: NCCL's src/graph/tuning.cc; constants from the catalog.
    fn expected(&self, call: &Call, placement: &Placement) -> Option<Seconds> {
        can(call, placement, 2)?;
        let (nvls, between) = (placement.nccl.nvls.as_ref()?, placement.between?);
        let step = nvls.between.value + placement.reported;
        let latency = nvls.inside.value + 2.0 * placement.expected_tree_depth() * step;
        let bandwidth = placement.inside.bandwidth.min(between.bandwidth / visits(placement));
        Some(latency + call.bytes / (efficiency(nvls, placement) * bandwidth))
    }

    /// T = W + (√B + √(n / β))², B = α_switch + 2 ⌈log₂ N⌉ α_between, W = 2 ⌈log₂ N⌉ ω, β = min(β_switch, β_between / v)
    ///
    /// n bytes on N nodes; v = 1 for two nodes, which exchange their sums, and 2 for more, where a node of the
    /// double tree sends and receives twice the tensor. α_between is NCCL's part of a step with the call's
    /// protocol, Simple, in a ring: the entry of trees differs between versions of NCCL and is twice that of rings in
    /// 2.21, with which two nodes of 8 H20s took 46 to 48 µs for 4 to 512 bytes (traces/published/collectives.csv). ω
    /// is what the network adds to a step (`pipelined`).
    /// Source: as `Nvls`, and `Tree` between the nodes.
    fn time(&self, call: &Call, placement: &Placement) -> Option<Seconds> {
        let (latency, bandwidth) = can(call, placement, 2)?;
        let between = placement.between?;
        let steps = 2.0 * placement.tree_depth();
        let busy = latency + steps * placement.ring_crossing(call.protocol);
        let delay = steps * placement.wire(call.protocol);
        let bandwidth = bandwidth.min(between.bandwidth / visits(placement));
        Some(pipelined(busy, delay, call.bytes, bandwidth))
    }
}

/// Latency and bandwidth of the switches where this version of NCCL lets them reduce for this call on at least this many
/// nodes: 1 means exactly one. NCCL leaves groups of two in a node to other algorithms.
fn can(call: &Call, placement: &Placement, nodes: usize) -> Option<(Seconds, BytesPerSecond)> {
    let here = if nodes == 1 { placement.nodes == 1 } else { placement.nodes > 1 };
    let fits = here
        && placement.nccl.nvls.is_some()
        && placement.ranks_per_node > 2
        && call.kind == CollectiveKind::AllReduce
        && call.protocol == Protocol::Simple;
    let switch = placement.in_switch.filter(|_| fits)?;
    let bandwidth = match call.channels {
        Some(channels) => switch.bandwidth.min(channels as f64 * placement.channel(Protocol::Simple)),
        None => switch.bandwidth,
    };
    Some((switch.latency, bandwidth))
}

/// How often the tensor goes through a node's NICs in each direction.
fn visits(placement: &Placement) -> f64 {
    if placement.nodes == 2 { 1.0 } else { 2.0 }
}

/// The part of the links' bandwidth that NCCL expects.
fn efficiency(nvls: &Constants, placement: &Placement) -> f64 {
    nvls.factor * nvls.efficiency.of(placement.generation)
}
