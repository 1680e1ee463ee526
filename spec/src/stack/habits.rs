//! What a software does where a plan's file says it and a table of runs does not: how it cuts stages, what it keeps
//! in addition to the state, and which memory it prints.

use crate::sourced::Sourced;
use crate::units::{Bytes, BytesPerSecond};
use serde::{Deserialize, Serialize};

/// How blocks are given to stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cut {
    /// The same number to each; where that leaves a rest, embedding and head count as a block each if it then comes out even.
    #[default]
    Blocks,
    /// Block by block to a stage until what is there and before, in weights of matrix products and the head's among them, is
    /// more than its share.
    Weights,
}

/// Where the outputs of experts are multiplied by their gates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExpertGates {
    /// Where the copies of a token are summed. The gradient of the gates needs the outputs, which are kept: k h elements
    /// for each token with k experts and width h.
    #[default]
    Combine,
    /// In the activation, before the second matrix, which is linear. The gradient needs what is kept for the activation.
    Activation,
}

/// Kernels that send a token to each rank once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenKernels {
    /// Multiprocessors that they take.
    pub multiprocessors: Sourced<usize>,
    /// What one of these moves.
    pub rate: Sourced<BytesPerSecond>,
}

/// What is held for each parameter in addition to weights, gradients and optimizer as the plan has them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExtraState {
    /// Undivided, whether the optimizer is divided or not.
    pub always: Sourced<Bytes>,
    /// Whether `always` is in the buffers of a reduction, so that a rank whose weights no other rank has does not hold it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub always_in_reduction: bool,
    /// More of it, undivided, if the optimizer is divided.
    pub divided_whole: Sourced<Bytes>,
    /// More of it in parts, where the optimizer is divided.
    pub divided_part: Sourced<Bytes>,
    /// Instead of `divided_part` where weights are in bf16: undivided, of an optimizer for this format alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub divided_bf16: Option<Sourced<Bytes>>,
    /// Whether a plan whose scheme divides the optimizer has that optimizer, with all it keeps, on one data rank too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub divided_on_one_rank: bool,
    /// Buffers of a fixed size, whatever the parameters, where the optimizer is divided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub divided_buffers: Option<Sourced<Bytes>>,
}

/// Which memory the software prints.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum MemoryReport {
    /// All memory of the fullest GPU that is not free at its peak.
    #[default]
    Peak,
    /// Memory of tensors at the peak of the fullest rank.
    PeakOfTensors,
    /// Memory of tensors between two steps on the first rank: state, and buffers that stay allocated.
    BetweenSteps,
}
