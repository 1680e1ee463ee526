//! All-reduce inside the NVLink switches (NVLS), with a tree between nodes (NVLSTree).

use super::placement::pipelined;
use super::{Algorithm, Placement};
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::units::{Bytes, Seconds};

/// Switch-reduced all-reduce: each GPU sends its tensor once and receives the sum once.
#[derive(Debug, Clone, Copy)]
pub struct InSwitch;

impl Algorithm for InSwitch {
    fn name(&self) -> &'static str {
        "in-switch"
    }

    /// T = (√D + √(n / β))², D = α_switch + 2 log₂(N) α_between, β = min(β_switch, β_between / v)
    ///
    /// n bytes on N nodes; α_switch the latency of the reduction in a node and β_switch the bandwidth of a GPU to
    /// the switches; v = 1 for two nodes, which exchange their sums, and 2 for more, where a node of the double
    /// tree sends and receives twice the tensor; in one node D = α_switch and β = β_switch. None without such
    /// switches, or with one rank in each node.
    /// Source: the shape of NVLS and NVLSTree in NCCL 2.27.7 src/graph/tuning.cc, pipelined as in `Tree`.
    fn time(&self, kind: CollectiveKind, bytes: Bytes, placement: &Placement) -> Option<Seconds> {
        let (CollectiveKind::AllReduce, Some(switch)) = (kind, placement.in_switch) else { return None };
        let Some(between) = placement.between else {
            return Some(pipelined(switch.latency, bytes, switch.bandwidth));
        };
        if placement.ranks_per_node < 2 {
            return None;
        }
        let visits = if placement.nodes == 2 { 1.0 } else { 2.0 };
        let depth = switch.latency + 2.0 * (placement.nodes as f64).log2() * between.latency;
        Some(pipelined(depth, bytes, switch.bandwidth.min(between.bandwidth / visits)))
    }
}
