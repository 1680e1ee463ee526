//! In which pattern the links between the GPUs of a node run.
//!
//! ```toml
//! wiring = "switched"                                   # any GPU to any other at its full bandwidth
//! wiring = "direct"                                     # an equal part of it to each of the others
//! wiring = { pairs = { links = [[0, 1, 2], [2, 3, 2]] } } # two links between 0 and 1, and between 2 and 3
//! wiring = { bridges = { gpus_per_switch = 4, gpus_per_socket = 4, between_sockets = "19.2 GB/s" } }
//! ```

use crate::sourced::Sourced;
use crate::units::BytesPerSecond;
use serde::{Deserialize, Serialize};

/// How the GPUs of a node are joined.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wiring {
    /// Through switches: all of a GPU's bandwidth can go to any peer.
    #[default]
    Switched,
    /// By links between all pairs: a GPU's bandwidth is split evenly over its peers, so a group of some of the GPUs
    /// has only the links among them.
    Direct,
    /// By links between some pairs: a hybrid cube mesh, or NVLink bridges.
    Pairs(Pairs),
    /// Over PCIe switches and the host bridges of the processors.
    Bridges(Bridges),
}

/// Links between pairs of GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pairs {
    /// A GPU of the node, another one, and how many links join them; each pair once, in either order.
    pub links: Vec<[usize; 3]>,
    /// Where this is from; empty if nobody said.
    #[serde(default)]
    pub source: String,
}

/// How many rings groups of a node's GPUs use at once, where that was measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rings {
    /// Disjoint rings through groups of 2, 3, … of its GPUs, each as wide as one link; more GPUs have the last.
    pub through: Vec<usize>,
    /// Where this is from; empty if nobody said.
    #[serde(default)]
    pub source: String,
}

/// PCIe switches below processor sockets.
///
/// ```text
/// socket ──────── between_sockets ──────── socket
///  │  │                                     │  │
///  switch  switch      each with the      switch switch
///  │ │ │    │ │ │      bandwidth of a     │ │ │   │ │ │
///  GPUs     GPUs       lanes of a GPU    GPUs    GPUs
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bridges {
    /// GPUs that share the lanes of one PCIe switch to its socket; left out: each GPU has separate lanes to its socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus_per_switch: Option<Sourced<usize>>,
    /// GPUs below one socket; left out: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus_per_socket: Option<Sourced<usize>>,
    /// Bandwidth from one socket to another, in one direction; needed where there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub between_sockets: Option<Sourced<BytesPerSecond>>,
}

impl Pairs {
    /// Links of one GPU to all others together.
    pub fn of(&self, gpu: usize) -> usize {
        self.links.iter().filter(|[a, b, _]| *a == gpu || *b == gpu).map(|[_, _, count]| count).sum()
    }

    /// The most links that any of `gpus` GPUs has.
    pub fn most(&self, gpus: usize) -> usize {
        (0..gpus).map(|gpu| self.of(gpu)).max().unwrap_or(0)
    }
}

impl Wiring {
    /// The most links that any of a node's `gpus` GPUs uses: the parts into which its bandwidth is split.
    pub fn links(&self, gpus: usize) -> usize {
        match self {
            Wiring::Switched | Wiring::Bridges(_) => 1,
            Wiring::Direct => gpus.saturating_sub(1).max(1),
            Wiring::Pairs(pairs) => pairs.most(gpus).max(1),
        }
    }
}
