//! The work of the host for a GPU: it launches each op, talks to its neighbours and closes the step.

use crate::sourced::Sourced;
use crate::units::Seconds;
use serde::{Deserialize, Serialize};

/// Time of one process on its processor.
///
/// Launching runs ahead of the GPU: a pass takes the longer of both, ops · `launch` and what the GPU needs. The step's
/// own work is in line with both.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostTimes {
    /// To launch one op of a pass: interpreter, framework and driver.
    pub launch: Sourced<Seconds>,
    /// Whether a pass is launched only when its message from another stage has come.
    pub waits_for_messages: bool,
    /// For each rank of the tensor group, to launch one of its collectives while messages of a pipeline over nodes are under
    /// way: threads that poll the network take the processors from the group's processes, which wait for the slowest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collective: Option<Sourced<Seconds>>,
    /// On each side of a message between stages, before it starts: describing the tensors, waiting for the GPU.
    pub message: Sourced<Seconds>,
    /// Once a step, between the update and the next step: data, logging, checks.
    pub step: Sourced<Seconds>,
}
