//! Links, their ends, and ways over them.

use crate::flow::LinkId;
use crate::mix::{mixed, spread};
use std::fmt;
use std::sync::Arc;
use trainwright_spec::units::{BytesPerSecond, Seconds};

/// One channel in one direction.
#[derive(Debug, Clone, PartialEq)]
pub struct Link {
    /// Bandwidth of large messages.
    pub bandwidth: BytesPerSecond,
    /// Time that it adds to a path.
    pub latency: Seconds,
    /// The kind of link.
    pub kind: LinkKind,
    /// Where it starts.
    pub from: Vertex,
    /// Where it ends.
    pub to: Vertex,
}

/// A kind of link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkKind {
    /// Between GPUs: NVLink, Infinity Fabric, a TPU's links.
    Interconnect,
    /// PCIe lanes and what joins the processors' sockets.
    Host,
    /// From or to a network card.
    Nic,
    /// Between switches of the fabric.
    Fabric,
}

/// An end of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Vertex {
    /// A GPU, by its global rank.
    Gpu(usize),
    /// The switches between the GPUs of a node, as one.
    GpuSwitch {
        /// Which node.
        node: usize,
    },
    /// A PCIe switch of a node.
    PcieSwitch {
        /// Which node.
        node: usize,
        /// Which of the node's.
        index: usize,
    },
    /// A processor of a node.
    Socket {
        /// Which node.
        node: usize,
        /// Which of the node's.
        index: usize,
    },
    /// A NIC of a node, or all those of one GPU.
    Nic {
        /// Which node.
        node: usize,
        /// Which of the node's.
        index: usize,
    },
    /// A switch of the fabric, or several that act as one.
    Switch {
        /// 0 at the nodes.
        level: usize,
        /// Which of its level.
        index: usize,
    },
    /// A switch that a person named.
    Named(Arc<str>),
}

/// The ways through a fabric; one file for each shape of fabric.
pub(super) trait Routes: Send + Sync + fmt::Debug {
    /// Appends the links from GPU `from` to GPU `to` of another node.
    fn route(&self, from: usize, to: usize, path: &mut Vec<LinkId>);

    /// Direct links from one GPU to another, and the bandwidth of each; 0 links if NICs join them.
    fn direct(&self, _from: usize, _to: usize) -> (usize, BytesPerSecond) {
        (0, BytesPerSecond::new(0.0))
    }
}

/// Ways around a group of GPUs that share no link.
#[derive(Debug, Clone, PartialEq)]
pub struct Rings {
    /// The GPUs of the group in the order of each ring.
    pub cycles: Vec<Vec<usize>>,
    /// Bandwidth of each ring.
    pub bandwidth: BytesPerSecond,
    /// The links of the rings.
    pub kind: LinkKind,
}

/// Adds a link; its id is its place.
pub(super) fn add(links: &mut Vec<Link>, link: Link) -> LinkId {
    let id =
        u32::try_from(links.len()).expect("`Cluster` refuses what has more links than that when it is read");
    links.push(link);
    LinkId(id)
}

/// A number that depends on both ends and on `salt` as if drawn at random, the same in every run.
pub(super) fn hash(from: usize, to: usize, salt: usize) -> usize {
    mixed((from as u64) << 32 ^ (to as u64) ^ spread(salt as u64)) as usize
}

impl fmt::Display for Vertex {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Vertex::Gpu(rank) => write!(f, "gpu{rank}"),
            Vertex::GpuSwitch { node } => write!(f, "node{node}.switch"),
            Vertex::PcieSwitch { node, index } => write!(f, "node{node}.pcie{index}"),
            Vertex::Socket { node, index } => write!(f, "node{node}.socket{index}"),
            Vertex::Nic { node, index } => write!(f, "node{node}.nic{index}"),
            Vertex::Switch { level, index } => write!(f, "switch{level}.{index}"),
            Vertex::Named(name) => f.write_str(name),
        }
    }
}
