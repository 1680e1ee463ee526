//! The host side of a node: processors with their memory, the links between it and the GPUs, and drives.
//!
//! It knows what they reach, not what a plan puts there.

use crate::sourced::Sourced;
use crate::units::{Bytes, BytesPerSecond, Seconds};
use serde::{Deserialize, Serialize};

/// The processors of a node, all sockets together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Processors {
    /// Their kind: `epyc-7742-pcie4`, …; for people, no cost reads it.
    pub kind: String,
    /// Their memory.
    pub memory: Sourced<Bytes>,
    /// Published bandwidth of it.
    pub memory_bandwidth: Sourced<BytesPerSecond>,
    /// The part of that which an optimizer step over it reaches, 0 to 1.
    pub update_efficiency: Sourced<f64>,
    /// Bandwidth of a large copy out of one GPU into pinned memory while no other GPU copies.
    pub to_host: Sourced<BytesPerSecond>,
    /// Bandwidth of a large copy of pinned memory into one GPU while no other GPU copies.
    pub from_host: Sourced<BytesPerSecond>,
    /// Bandwidth of the copies of all GPUs of the node together in one direction.
    pub together: Sourced<BytesPerSecond>,
    /// Time of a copy of nothing.
    pub copy_latency: Sourced<Seconds>,
    /// Time of a process's work on one core, such as launching an op, over that on the x86 servers for which stacks have
    /// their host times; 1 if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_time: Option<Sourced<f64>>,
    /// NVMe drives for data; `None` if there are none, or if they are not described.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drives: Option<Drives>,
}

/// The NVMe drives of a node, all together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drives {
    /// Their capacity.
    pub capacity: Sourced<Bytes>,
    /// Bandwidth of large reads.
    pub read: Sourced<BytesPerSecond>,
    /// Bandwidth of large writes.
    pub write: Sourced<BytesPerSecond>,
}
