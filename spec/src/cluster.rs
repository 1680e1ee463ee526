//! On what is trained: GPUs, the nodes that hold them, and the fabric that joins the nodes.
//!
//! ```text
//! Cluster ─ nodes × Node ─┬─ gpus × Gpu           of one kind, or in runs of several (`Others`)
//!    │                    ├─ Interconnect   joins the GPUs of the node, in the pattern of its Wiring
//!    │                    ├─ host           PCIe, for GPUs that the interconnect does not join
//!    │                    ├─ Processors     their memory, the way there, and drives
//!    └─ Fabric            └─ Nics           join the node to the fabric
//! ```
//!
//! Descriptions come from the catalog by name or from a person's TOML file; `read` knows both.

mod check;
mod cores;
mod device;
mod document;
mod fabric;
mod generation;
mod kinds;
mod part;
mod processors;
mod profile;
mod read;
mod torus;
mod wiring;

pub(crate) use check::{Fault, check};
pub use cores::{CoreTurns, Cores, MeasuredExchange, NetworkWork, StepTimes, step_time};
pub use device::{DeviceProfile, MeasuredKernel, MeasuredOp};
pub use fabric::{
    Cable, Dragonfly, End, Fabric, FatTree, Level, RailOptimised, Routing, Shape, Taper, Torus,
};
pub use generation::Generation;
pub use processors::{Drives, Processors};
pub use profile::{MeasuredSweep, MeasuredTime, NetworkProfile, ProfileKind};
pub use wiring::{Bridges, Pairs, Rings, Wiring};

use crate::nccl::Nccl;
use crate::precision::Precision;
use crate::program::FlashVersion;
use crate::sourced::Sourced;
use crate::units::{Bytes, BytesPerSecond, FlopsPerSecond, Seconds, Watts};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Nodes on one fabric: equal ones, or runs of several kinds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// Name in the catalog, or `node:count`.
    pub name: String,
    /// How many nodes, those of other kinds counted.
    pub nodes: usize,
    /// The calibration by which its numbers and those of its software differ from their sources: `none` if they do not and
    /// should not, left out if none was chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<String>,
    /// The network between the NICs of the nodes.
    pub fabric: Fabric,
    /// The version of NCCL by which its collectives are chosen; left out: the newest of the catalog.
    #[serde(default)]
    pub nccl: Nccl,
    /// Each node; where there are others, each of the first ones.
    pub node: Node,
    /// The last nodes, in runs of other kinds with as many GPUs each; left out: all are alike.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<Others>,
    /// Collectives that were measured on it; where there are none, times follow from its links.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<NetworkProfile>,
}

/// Successive nodes of another kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Others {
    /// How many.
    pub nodes: usize,
    /// Each of them.
    pub node: Node,
}

/// A server with several GPUs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Name in the catalog.
    pub name: String,
    /// GPUs in it.
    pub gpus: Sourced<usize>,
    /// The links between the GPUs of a node.
    pub interconnect: Interconnect,
    /// PCIe and its host bridges, which carry what the interconnect cannot: between GPUs that no chain of its links
    /// joins, or a ring for which it lacks links. `None` if it is not described.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<Interconnect>,
    /// The network cards that join the node to the fabric; `None` in a machine that stands alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nics: Option<Nics>,
    /// Its processors, host memory and drives; `None` if they are not described.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processors: Option<Processors>,
    /// Cores that the ranks compute on where they are threads of its processors and no GPUs; left out: each rank has a
    /// GPU to itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<Cores>,
    /// Each GPU.
    pub gpu: Gpu,
}

/// The links between the GPUs of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interconnect {
    /// Its kind: `nvlink3-nvswitch`, `pcie4`, …; for people, no cost reads it.
    pub kind: String,
    /// Which GPUs its links join.
    #[serde(default)]
    pub wiring: Wiring,
    /// The kind of link as the library of collectives sees it, which sets the costs of its steps.
    #[serde(default)]
    pub transport: Transport,
    /// Rings as they were measured; left out: as `wiring` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rings: Option<Rings>,
    /// Published bandwidth of all of one GPU's links together, in one direction.
    pub bandwidth: Sourced<BytesPerSecond>,
    /// Links that a GPU has, each with an equal part of `bandwidth`; left out: the number that the wiring uses. Only for
    /// GPUs with links that the wiring leaves open, as those of a TPU do that lead out of its host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub links: Option<Sourced<usize>>,
    /// The part of it that large collectives reach, 0 to 1.
    pub efficiency: Sourced<f64>,
    /// The part of it that large all-to-alls reach over switches, 0 to 1; left out: `efficiency`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange_efficiency: Option<Sourced<f64>>,
    /// Time of one step of a ring with an empty message and the Simple protocol.
    pub latency: Sourced<Seconds>,
    /// Time by which the chunks of a message of medium size fill the links: d in T = V + 2 √(d V), V the time of
    /// its transfer alone. Left out: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ramp: Option<Sourced<Seconds>>,
    /// Bandwidth at which a GPU takes what its peer left in host memory; left out where peers write into each
    /// other's memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staging: Option<Sourced<BytesPerSecond>>,
    /// All-reduce inside the switches; `None` if they cannot (no switch, or older than NVLink 4).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_switch: Option<InSwitchReduction>,
}

impl Interconnect {
    /// Leaves the links among the first `kept` of a node's `gpus` GPUs. Each link keeps its bandwidth, of which a GPU
    /// has fewer.
    pub fn keep_first(&mut self, kept: usize, gpus: usize) {
        let before = self.wiring.links(gpus);
        if let Wiring::Pairs(pairs) = &mut self.wiring {
            pairs.links.retain(|[a, b, _]| *a.max(b) < kept);
            if self.links.is_some() {
                // The bandwidth is of all links that a GPU has, whether the wiring uses them or not.
                return;
            }
        }
        let after = self.wiring.links(kept);
        self.bandwidth.value = self.bandwidth.value * (after as f64 / before as f64);
        if let (Wiring::Direct, Some(links)) = (&self.wiring, &mut self.links) {
            links.value = links.value * after / before;
        }
    }
}

/// The kind of a link between GPUs as the library of collectives sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Loads and stores into the peer's memory, 128 bytes at a time.
    #[default]
    NvLink,
    /// PCI Express, with peer-to-peer or through host memory.
    Pci,
}

/// All-reduce that the switches between the GPUs do themselves (NVLink SHARP): each GPU sends its tensor once
/// and receives the sum once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InSwitchReduction {
    /// The part of the interconnect's bandwidth at which each GPU sends and receives the full tensor, 0 to 1.
    pub efficiency: Sourced<f64>,
    /// Time of an all-reduce of an empty message in one node.
    pub latency: Sourced<Seconds>,
}

/// The network cards of a node.
///
/// They serve equal runs of its GPUs: of 4 cards and 8 GPUs, card 0 serves GPUs 0 and 1. Where there are more cards
/// than GPUs, each GPU has an equal share of them all.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nics {
    /// Their kind: `infiniband-hdr`, `efa-v2`, …; for people, no cost reads it.
    pub kind: String,
    /// How many, not counting those for storage and management.
    pub count: Sourced<usize>,
    /// Published bandwidth of each, in one direction.
    pub bandwidth: Sourced<BytesPerSecond>,
    /// Whether what is sent arrives in order, as the LL128 protocol needs; left out: it does.
    #[serde(default = "in_order")]
    pub ordered: bool,
    /// The part of it that large collectives reach, 0 to 1.
    pub efficiency: Sourced<f64>,
    /// Time that NICs and fabric add to the library's part of each step of a collective; twice with the Simple
    /// protocol on Ampere and older GPUs, whose receiver also flushes.
    pub latency: Sourced<Seconds>,
    /// The latency that their driver reports to NCCL, which counts with it when it chooses; left out: it reports none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported_latency: Option<Sourced<Seconds>>,
    /// Time of the host's thread for each message of an all-to-all to another node; left out: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_time: Option<Sourced<Seconds>>,
    /// The least time between two steps of the ring of an all-gather or reduce-scatter over nodes: LogGP's gap of a step's
    /// messages. Left out: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ring_gap: Option<Sourced<Seconds>>,
    /// The least step that `ring_gap` was measured with; the gap of a smaller one is smaller in proportion. Left out: the gap
    /// is that of every step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ring_gap_step: Option<Sourced<Bytes>>,
    /// Time by which the messages of an all-to-all fill the NICs, as an interconnect's `ramp`; left out: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange_ramp: Option<Sourced<Seconds>>,
    /// Bandwidth of one channel of a send-receive to another node; left out: all of a GPU's share of the NICs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel_bandwidth: Option<Sourced<BytesPerSecond>>,
    /// Bytes that a traffic shaper lets through at once after a pause, before it holds what follows to the bandwidth: the depth
    /// of its token bucket; left out: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<Sourced<Bytes>>,
}

fn in_order() -> bool {
    true
}

/// One accelerator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// Name in the catalog.
    pub name: String,
    /// Which rows of NCCL's tables count for it; for a device that runs another library, those of the NVIDIA GPUs whose
    /// choices are assumed for it.
    pub generation: Generation,
    /// The library that does its collectives where that is not NCCL: `rccl`, `xla`, …; for people. Nothing is known
    /// here of how such a library chooses: times are those that it would take as NCCL would choose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub library: Option<String>,
    /// Memory that the vendor's driver reports; as sold where no report is known.
    pub memory: Sourced<Bytes>,
    /// Published bandwidth of the memory.
    pub memory_bandwidth: Sourced<BytesPerSecond>,
    /// Published dense matrix rate by precision, the vector units' rate for fp32; a missing precision is not
    /// supported.
    pub peak: BTreeMap<Precision, Sourced<FlopsPerSecond>>,
    /// Streaming multiprocessors, or compute units.
    pub multiprocessors: Sourced<usize>,
    /// The most power it draws; `None` if its source does not say. Only the energy of a run is computed from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power: Option<Sourced<Watts>>,
    /// The fractions of the published figures that kernels reach.
    pub achieved: Achieved,
    /// The multiprocessors that communication takes from kernels that run at the same time; left out: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub communication: Option<Communication>,
    /// Kernels that were measured on it; where there are none, times follow from its figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<DeviceProfile>,
}

/// The multiprocessors that kernels of collectives and messages hold from their start to their end.
///
/// A channel is one thread block, which has a multiprocessor to itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Communication {
    /// Channels of a large collective inside a node, and the most of any.
    pub channels: Sourced<usize>,
    /// Channels of a large collective between nodes for each of a node's NICs.
    pub channels_per_nic: Sourced<usize>,
    /// Bytes that one multiprocessor of a kernel for the exchange of tokens moves in a second, each token counted once for
    /// each rank that it goes to; left out: as many as the links carry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_rate: Option<Sourced<BytesPerSecond>>,
}

/// The fractions of a GPU's published figures that well-tuned kernels reach.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Achieved {
    /// Part of the peak that large matrix products reach, 0 to 1, for every precision that has a peak.
    pub matrix: BTreeMap<Precision, Sourced<f64>>,
    /// Part of a single product's speed that each of a group of products in one kernel reaches, 0 to 1; left out: all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grouped: Option<Sourced<f64>>,
    /// The same with operands below 16 bits; left out: `grouped`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grouped_narrow: Option<Sourced<f64>>,
    /// Part of the peak that fused attention's forward pass reaches with heads 128 wide at long sequences, 0 to 1.
    pub attention_forward: Sourced<f64>,
    /// The same of fused attention's backward pass.
    pub attention_backward: Sourced<f64>,
    /// Queries that a multiprocessor works on at a time in fused attention's forward pass; left out: 128.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attention_queries: Option<Sourced<usize>>,
    /// Part of the memory bandwidth that element-by-element kernels reach, 0 to 1.
    pub memory: Sourced<f64>,
    /// Part of the memory bandwidth that norms, softmax and other kernels with sums along a dim reach, 0 to 1.
    pub reduction: Sourced<f64>,
    /// Time from one kernel's end to the next one's start when the queue is full, plus its ramp up and down.
    pub kernel_overhead: Sourced<Seconds>,
    /// Time from the call of a collective to its first step, without the library's part; left out: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collective_start: Option<Sourced<Seconds>>,
    /// The fractions that given generations of fused attention reach, of which the figures above are the best.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attention: BTreeMap<FlashVersion, AttentionReached>,
}

/// Parts of the peak that a generation of fused attention reaches, as `Achieved` has them of the best.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionReached {
    /// Forward.
    pub forward: Sourced<f64>,
    /// Backward.
    pub backward: Sourced<f64>,
}

impl Gpu {
    /// The chips whose kernels are alike: an NVIDIA GPU's generation; for another vendor's chip the name of its library.
    pub fn family(&self) -> &str {
        self.library.as_deref().unwrap_or(self.generation.name())
    }
}

impl Interconnect {
    /// Bandwidth of large collectives over all of one GPU's links together.
    pub fn achieved(&self) -> BytesPerSecond {
        self.bandwidth.value * self.efficiency.value
    }
}

impl Nics {
    /// Bandwidth of large collectives over all of a node's cards together.
    pub fn achieved(&self) -> BytesPerSecond {
        self.bandwidth.value * self.efficiency.value * self.count.value as f64
    }

    /// Ways out of a node of `gpus` GPUs that each serve an equal run of them: its cards, or where there are more of
    /// them than GPUs, one bundle of cards for each GPU.
    pub fn ports(&self, gpus: usize) -> usize {
        self.count.value.min(gpus)
    }
}

impl Cluster {
    /// GPUs in all nodes together.
    pub fn gpus(&self) -> usize {
        self.nodes * self.node.gpus.value
    }
}
