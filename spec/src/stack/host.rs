//! The work of the host for a GPU: it launches each op, talks to its neighbours and closes the step.

use crate::precision::Precision;
use crate::sourced::Sourced;
use crate::units::Seconds;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Time of one process on its processor.
///
/// Launching runs ahead of the GPU: a pass takes the longer of both, ops · `launch` and what the GPU needs; their sum where
/// `waits_for_ops`. The step's work is in line with both.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostTimes {
    /// To launch one op of a pass: interpreter, framework and driver.
    pub launch: Sourced<Seconds>,
    /// Whether a pass is launched only when its message from another stage has come.
    pub waits_for_messages: bool,
    /// Whether each launch waits until its op is done, as with CUDA_LAUNCH_BLOCKING=1; no, if not given.
    #[serde(default, skip_serializing_if = "crate::stack::is_default")]
    pub waits_for_ops: bool,
    /// For each rank of the tensor group, to launch one of its collectives while messages of a pipeline over nodes are under
    /// way: threads that poll the network take the processors from the group's processes, which wait for the slowest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collective: Option<Sourced<Seconds>>,
    /// What each node of the group but the first adds to `collective`: its processes exchange over the network that the
    /// threads poll.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collective_node: Option<Sourced<Seconds>>,
    /// For each product of a group, to prepare its operands in the precision of the products and to launch what they need: one
    /// call for each local expert; left out for a precision: none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub grouped: BTreeMap<Precision, Sourced<Seconds>>,
    /// For each microbatch of a stage, beside the launches of its passes: fetching and broadcasting its batch, masks and
    /// positions, the engine's schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub microbatch: Option<Sourced<Seconds>>,
    /// On each side of a message between stages, before it starts: describing the tensors, waiting for the GPU.
    pub message: Sourced<Seconds>,
    /// Once a step, between the update and the next step: data, logging, checks.
    pub step: Sourced<Seconds>,
}
