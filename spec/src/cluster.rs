//! On what is trained: GPUs, the nodes that hold them, and the fabric that joins the nodes.
//!
//! ```text
//! Cluster ─ nodes × Node ─┬─ gpus × Gpu
//!    │                    ├─ Interconnect   joins the GPUs of the node
//!    └─ Fabric            └─ Nics           join the node to the fabric
//! ```
//!
//! Descriptions come from the catalog by name or from a person's TOML file; `read` knows both.

mod check;
mod document;
mod profile;
mod read;

pub(crate) use check::{Fault, check};
pub use profile::{MeasuredSweep, MeasuredTime, NetworkProfile, ProfileKind};

use crate::nccl::Nccl;
use crate::precision::Precision;
use crate::sourced::Sourced;
use crate::units::{Bytes, BytesPerSecond, FlopsPerSecond, Seconds};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Equal nodes on one fabric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// Name in the catalog, or `node:count`.
    pub name: String,
    /// How many nodes.
    pub nodes: usize,
    /// What joins the nodes beyond their NICs.
    pub fabric: Fabric,
    /// The library that does its collectives; left out: the newest version of the catalog.
    #[serde(default)]
    pub nccl: Nccl,
    /// Each node.
    pub node: Node,
    /// Collectives that were measured on it; where there are none, times follow from its links.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<NetworkProfile>,
}

/// The network between the nodes' NICs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fabric {
    /// How many times more bandwidth the NICs of a pod have than its uplinks: 1 is non-blocking.
    pub oversubscription: Sourced<f64>,
    /// Nodes in a pod, inside which the fabric is non-blocking; without it every node counts as a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_nodes: Option<Sourced<usize>>,
}

/// A server with several GPUs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Name in the catalog.
    pub name: String,
    /// GPUs in it.
    pub gpus: Sourced<usize>,
    /// What joins the GPUs to each other.
    pub interconnect: Interconnect,
    /// What joins the node to the fabric; none in a machine that stands alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nics: Option<Nics>,
    /// Each GPU.
    pub gpu: Gpu,
}

/// The links between the GPUs of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interconnect {
    /// What it is: `nvlink3-nvswitch`, `pcie4`, …; for people, no cost reads it.
    pub kind: String,
    /// Whether a GPU can use all of its bandwidth towards any one peer.
    #[serde(default)]
    pub wiring: Wiring,
    /// What its steps cost the library that does collectives.
    #[serde(default)]
    pub transport: Transport,
    /// Disjoint rings through groups of 2, 3, … of its GPUs, each as wide as one link; left out: as `wiring` says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rings: Vec<usize>,
    /// Published bandwidth of one GPU to all its peers together, in one direction.
    pub bandwidth: Sourced<BytesPerSecond>,
    /// The part of it that large collectives reach, 0 to 1.
    pub efficiency: Sourced<f64>,
    /// Time of one step of a ring with an empty message and the Simple protocol.
    pub latency: Sourced<Seconds>,
    /// Time by which the pieces of a message of medium size fill the links: d in T = V + 2 √(d V), V the time of
    /// its transfer alone. Left out: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ramp: Option<Sourced<Seconds>>,
    /// Bandwidth at which a GPU takes what its peer left in host memory; left out where peers write into each
    /// other's memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staging: Option<Sourced<BytesPerSecond>>,
    /// All-reduce inside the switches; none where they cannot (no switch, or older than NVLink 4).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_switch: Option<InSwitchReduction>,
}

/// What a link between GPUs is to the library that does collectives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Loads and stores into the peer's memory, 128 bytes at a time.
    #[default]
    NvLink,
    /// PCI Express, with peer-to-peer or through host memory.
    Pci,
}

/// How the GPUs of a node are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wiring {
    /// Through switches: all of a GPU's bandwidth can go to any peer.
    #[default]
    Switched,
    /// By links between pairs: a GPU's bandwidth is split evenly over its peers, so a group of some of the GPUs
    /// has only the links among them.
    Direct,
}

/// All-reduce that the switches between the GPUs do themselves (NVLink SHARP): each GPU sends its tensor once
/// and receives the sum once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InSwitchReduction {
    /// The part of the interconnect's bandwidth at which each GPU sends and receives the whole tensor, 0 to 1.
    pub efficiency: Sourced<f64>,
    /// Time of an all-reduce of an empty message in one node.
    pub latency: Sourced<Seconds>,
}

/// The network cards of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nics {
    /// What they are: `infiniband-hdr`, `efa-v2`, …; for people, no cost reads it.
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
    /// What NICs and fabric add to each step of a collective beside the library's own part; twice with the Simple
    /// protocol, whose receiver also flushes.
    pub latency: Sourced<Seconds>,
    /// The latency that their driver tells NCCL, which counts with it when it chooses; left out: it tells none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported_latency: Option<Sourced<Seconds>>,
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
    /// Which rows of the collective library's tables it reads.
    #[serde(default)]
    pub generation: Generation,
    /// Memory that the vendor's driver reports; as sold where no report is known.
    pub memory: Sourced<Bytes>,
    /// Published bandwidth of the memory.
    pub memory_bandwidth: Sourced<BytesPerSecond>,
    /// Published dense matrix rate by precision, the vector units' rate for fp32; a missing precision is not
    /// supported.
    pub peak: BTreeMap<Precision, Sourced<FlopsPerSecond>>,
    /// Streaming multiprocessors, or compute units.
    pub multiprocessors: Sourced<usize>,
    /// What kernels reach of the published figures.
    pub achieved: Achieved,
}

/// What well-tuned kernels reach of a GPU's published figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Achieved {
    /// Part of the peak that large matrix products reach, 0 to 1, for every precision that has a peak.
    pub matrix: BTreeMap<Precision, Sourced<f64>>,
    /// Part of the peak that fused attention's forward pass reaches with heads 128 wide at long sequences, 0 to 1.
    pub attention_forward: Sourced<f64>,
    /// The same of fused attention's backward pass.
    pub attention_backward: Sourced<f64>,
    /// Part of the memory bandwidth that element-by-element kernels reach, 0 to 1.
    pub memory: Sourced<f64>,
    /// Part of the memory bandwidth that norms, softmax and other kernels with sums along a dim reach, 0 to 1.
    pub reduction: Sourced<f64>,
    /// Time from one kernel's end to the next one's start when the queue is full, plus its ramp up and down.
    pub kernel_overhead: Sourced<Seconds>,
    /// Time from the call of a collective to its first step, beside the library's own part; left out: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collective_start: Option<Sourced<Seconds>>,
}

/// A GPU's generation, as far as NCCL tells them apart. Other vendors' GPUs count as the one of their year.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Generation {
    /// Volta, Turing and all before.
    Volta,
    /// Ampere.
    Ampere,
    /// Ada Lovelace and Hopper.
    #[default]
    Hopper,
    /// Blackwell.
    Blackwell,
}

impl Cluster {
    /// GPUs in all nodes together.
    pub fn gpus(&self) -> usize {
        self.nodes * self.node.gpus.value
    }
}
