//! The one description of a training step that both the simulator and the executor run.
//!
//! ```text
//! Program ─ ranks ─ calls ─► segment ─ ops
//!   rank 0 | call(segment 0, microbatch 0)  call(segment 0, microbatch 1)  call(segment 3, microbatch 0) …
//!                     │
//!                     └─ segment 0 = "stage 0 forward": norm → qkv → attention → projection → all-reduce → …
//! ```
//!
//! A segment is the op list of one pass of one stage; it is stored once and called once for each microbatch.
//! Three rules order the ops, and both interpreters keep them:
//!
//! 1. each stream of a rank runs its ops in the order of the calls and, inside a call, of the segment; the ops of two
//!    joint calls (`Call::joint`) take turns where one of them waits for an exchange of tokens;
//! 2. an op starts after the ops of the same call that it names in `after`;
//! 3. a receive ends with the send of the same channel and microbatch, and a collective starts when every member
//!    of its group that the program contains has reached it.
//!
//! There is no other dependency: what must wait for an earlier call waits on a stream that the earlier call used.
//!
//! An executor needs two things more, and the program has them. `Program::source` and `Program::destination` say where the
//! tensor of a pass comes from and goes to: an end of the model, another stage of the same rank, or a message. Each op of a
//! module carries a `ModuleStep`: what its run keeps for backward, whose input it makes again, and when all of it is released.

mod kernel;
mod stage;
mod task;

pub use kernel::{Access, Direction, FlashVersion, FusedAttention, Kernel};
pub use stage::{Layer, ProgramStage, StageEnd};
pub use task::{Does, Grid, LayerSpan, Module, ModuleStep, Share, State, Task, Travels, UpdateStep, Value};

use crate::collective::CollectiveKind;
use crate::schedule::Action;
use crate::units::{Bytes, Seconds};
use serde::{Deserialize, Serialize};

/// The ops of every rank of one training step, or of one rank for each class of ranks that do the same.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    /// Op lists, shared by all calls.
    pub segments: Vec<Segment>,
    /// The stages, by their number in actions. Empty if the program is not one of a plan.
    pub stages: Vec<ProgramStage>,
    /// What each rank calls.
    pub ranks: Vec<RankProgram>,
    /// Sets of ranks that communicate collectively.
    pub groups: Vec<Group>,
}

/// What one rank does in a step.
#[derive(Debug, Clone, PartialEq)]
pub struct RankProgram {
    /// The global rank.
    pub rank: usize,
    /// How many ranks do the same at the same times, this one included.
    pub stands_for: usize,
    /// Its coordinate on the pipeline axis.
    pub pipeline_rank: usize,
    /// Indices into `Program::ranks` of this rank's pipeline, by pipeline rank.
    pub pipeline: Vec<usize>,
    /// Index into `Program::groups` for each axis, in the order of `Axis::ALL`; `None` if the axis has one rank.
    pub groups: [Option<usize>; Axis::ALL.len()],
    /// Memory held during the whole step: weights, gradients, optimizer state, permanent buffers.
    pub resident: Vec<Allocation>,
    /// The calls in order.
    pub calls: Vec<Call>,
}

/// One run of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// Index into `Program::segments`.
    pub segment: usize,
    /// The schedule's action that this call performs; `None` for the work before the first and after the last action.
    pub action: Option<Action>,
    /// Whether it and the next call are one joint pass, in which the kernels of one may run during the exchanges of
    /// tokens of the other. An interpreter may run them one after the other: the results are the same.
    pub joint: bool,
}

/// A list of ops in program order.
#[derive(Debug, Clone, PartialEq)]
pub struct Segment {
    /// For people: `stage 2 forward`.
    pub name: String,
    /// The ops.
    pub ops: Vec<Op>,
}

/// One thing a rank does.
#[derive(Debug, Clone, PartialEq)]
pub struct Op {
    /// The part of the model it belongs to: `qkv`, `attention`, `grads`, …
    pub module: &'static str,
    /// Index of the block in the model; `None` outside the blocks.
    pub layer: Option<usize>,
    /// Which pass it is part of.
    pub pass: Pass,
    /// The stream it runs on.
    pub stream: Stream,
    /// What it does.
    pub work: Work,
    /// To which tensors of the model.
    pub task: Task,
    /// Indices of ops of the same segment, all smaller than its index, that must have ended.
    pub after: Vec<usize>,
    /// Memory taken when it starts.
    pub allocates: Vec<Allocation>,
    /// Memory given back when it ends.
    pub frees: Vec<Allocation>,
}

impl Op {
    /// The layer whose module it is a step of; `None` for ops that are not a module's.
    pub fn model_layer(&self) -> Option<Layer> {
        match (self.layer, self.task) {
            (Some(index), Task::Module(_)) => Some(Layer::Block(index)),
            (None, Task::Module(step)) => Some(step.module.layer_outside_blocks()),
            _ => None,
        }
    }

    /// What kind of work it is: see `op_kind`.
    pub fn kind(&self) -> String {
        op_kind(self.module, self.pass)
    }
}

/// What kind of work an op of a module and a pass is, for people and tables of measured ops: the module and whether it goes
/// forward, backward or updates. A recomputed op is of the kind of forward.
pub fn op_kind(module: &str, pass: Pass) -> String {
    let pass = if pass == Pass::Recompute { Pass::Forward } else { pass };
    format!("{module} {}", pass.name())
}

/// Some memory of one kind.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Allocation {
    /// What it holds.
    pub kind: MemoryKind,
    /// How much.
    pub bytes: Bytes,
}

/// What an allocation holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryKind {
    /// Weights in the precision of the matrix products.
    Weights,
    /// Gradients.
    Gradients,
    /// Master weights and moments.
    Optimizer,
    /// What forward keeps for backward.
    Activations,
    /// Everything else: temporaries, communication buffers, libraries, fragmentation.
    Buffers,
}

impl MemoryKind {
    /// Every kind, in the order of the tables.
    pub const ALL: [MemoryKind; 5] = [
        MemoryKind::Weights,
        MemoryKind::Gradients,
        MemoryKind::Optimizer,
        MemoryKind::Activations,
        MemoryKind::Buffers,
    ];

    /// The name in tables and files.
    pub fn name(self) -> &'static str {
        match self {
            MemoryKind::Weights => "weights",
            MemoryKind::Gradients => "gradients",
            MemoryKind::Optimizer => "optimizer",
            MemoryKind::Activations => "activations",
            MemoryKind::Buffers => "buffers",
        }
    }
}

/// What an op does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Work {
    /// A kernel call.
    Compute(Kernel),
    /// A group operation over the rank's group on `axis`.
    Collective {
        /// Which operation.
        kind: CollectiveKind,
        /// Over which axis of the mesh.
        axis: Axis,
        /// Size of the whole tensor, the largest buffer any member has: the input of an all-reduce or
        /// reduce-scatter, the output of an all-gather.
        bytes: Bytes,
        /// What performs it.
        call: CollectiveCall,
    },
    /// Sends to another rank of the pipeline.
    Send {
        /// Which message.
        channel: Channel,
        /// Pipeline rank of the receiver.
        to: usize,
        /// Size of the message.
        bytes: Bytes,
    },
    /// Receives from another rank of the pipeline; ends when the message is there.
    Receive {
        /// Which message.
        channel: Channel,
        /// Pipeline rank of the sender.
        from: usize,
        /// Size of the message.
        bytes: Bytes,
    },
    /// A copy between the GPU's memory and the node's memory or drives.
    Copy {
        /// Which way.
        direction: CopyDirection,
        /// Where to or from.
        place: Place,
        /// How much.
        bytes: Bytes,
    },
    /// Work of the node's processors for this rank, over what is in host memory and on the drives.
    HostUpdate(HostUpdate),
    /// Time that the rank's process spends: launching ops, waiting for the GPU, closing a step.
    Process(Seconds),
    /// Does nothing: the join of what it waits for.
    Join,
}

/// What performs a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum CollectiveCall {
    /// A call of NCCL by itself.
    #[default]
    Single,
    /// One of the calls between ncclGroupStart and ncclGroupEnd, of which NCCL has several in flight.
    Coalesced,
    /// Kernels made for tokens on their way to experts and back, on some of each GPU's multiprocessors.
    TokenKernel {
        /// On how many.
        multiprocessors: usize,
        /// Where they take a token to each node once, and pass it on there: the bytes that come to a rank for its node,
        /// its part counted.
        over_nodes: Option<u64>,
        /// Bytes that one of the multiprocessors moves in a second; `None`: the GPU's figure for such kernels.
        rate: Option<u64>,
    },
}

/// Which way a copy goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CopyDirection {
    /// Out of the GPU's memory.
    ToHost,
    /// Into it.
    FromHost,
}

/// Where a node keeps what is not in the memory of its GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// The memory of its processors.
    Host,
    /// Its drives; what goes there passes through the memory of its processors.
    Nvme,
}

impl Place {
    /// The name in plans and tables.
    pub fn name(self) -> &'static str {
        match self {
            Place::Host => "host",
            Place::Nvme => "nvme",
        }
    }
}

/// What the processors move for one call of theirs: an optimizer's step, a sum of gradients.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct HostUpdate {
    /// Read from and written to host memory by the processors.
    pub memory: Bytes,
    /// Read from the drives.
    pub nvme_read: Bytes,
    /// Written to the drives.
    pub nvme_written: Bytes,
}

/// Which message between two pipeline ranks it is, together with the microbatch of the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Channel {
    /// Activations out of the stage of this number.
    Activation(usize),
    /// Gradients of the input of the stage of this number.
    Gradient(usize),
}

/// A set of ranks that communicate collectively.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// The axis along which they differ.
    pub axis: Axis,
    /// Global ranks, ascending: where on the cluster the traffic flows.
    pub ranks: Vec<usize>,
    /// Indices into `Program::ranks` of the members that the program contains. The others do the same at the
    /// same times as one of these.
    pub members: Vec<usize>,
}

/// A direction of the mesh along which ranks communicate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Axis {
    /// Ranks that share each layer.
    Tensor,
    /// A row of the grid that tensor ranks form in 2-D, 2.5-D and 3-D tensor parallelism.
    TensorRow,
    /// A column of that grid.
    TensorColumn,
    /// The same place in each layer of that grid.
    TensorDepth,
    /// Ranks that share each sequence.
    Context,
    /// Neighbouring ones of them, which exchange heads.
    ContextInner,
    /// The same place in each set of those.
    ContextOuter,
    /// Ranks that share each expert.
    ExpertTensor,
    /// Ranks that share the experts of a layer.
    Expert,
    /// Neighbouring ones of them in one node.
    ExpertInner,
    /// The same place in each of those nodes.
    ExpertOuter,
    /// Ranks with the same experts and other tokens.
    ExpertData,
    /// Ranks with the same weights and other tokens: other sequences, or other parts of the same.
    Data,
    /// Ranks of the data axis that split the training state among them.
    Shard,
    /// Ranks with the same part of it.
    Replica,
    /// Ranks that hold successive layers.
    Pipeline,
    /// The first and the last rank of a pipeline, which both hold the tied embedding.
    Embedding,
    /// Two ranks as far from the ends of a pipeline that runs in both directions, which hold the same stages.
    Mirror,
}

impl Axis {
    /// Every axis, in the order of `RankProgram::groups`.
    pub const ALL: [Axis; 18] = [
        Axis::Tensor,
        Axis::TensorRow,
        Axis::TensorColumn,
        Axis::TensorDepth,
        Axis::Context,
        Axis::ContextInner,
        Axis::ContextOuter,
        Axis::ExpertTensor,
        Axis::Expert,
        Axis::ExpertInner,
        Axis::ExpertOuter,
        Axis::ExpertData,
        Axis::Data,
        Axis::Shard,
        Axis::Replica,
        Axis::Pipeline,
        Axis::Embedding,
        Axis::Mirror,
    ];

    /// Whether tokens go over it to their experts. Gradients of experts have axes of their own.
    pub fn is_of_experts(self) -> bool {
        matches!(self, Axis::Expert | Axis::ExpertInner | Axis::ExpertOuter | Axis::ExpertTensor)
    }

    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Axis::Tensor => "tensor",
            Axis::TensorRow => "tensor-row",
            Axis::TensorColumn => "tensor-column",
            Axis::TensorDepth => "tensor-depth",
            Axis::Context => "context",
            Axis::ContextInner => "context-inner",
            Axis::ContextOuter => "context-outer",
            Axis::ExpertTensor => "expert-tensor",
            Axis::Expert => "expert",
            Axis::ExpertInner => "expert-inner",
            Axis::ExpertOuter => "expert-outer",
            Axis::ExpertData => "expert-data",
            Axis::Data => "data",
            Axis::Shard => "shard",
            Axis::Replica => "replica",
            Axis::Pipeline => "pipeline",
            Axis::Embedding => "embedding",
            Axis::Mirror => "mirror",
        }
    }
}

/// A queue of ops on a rank; ops of one stream never overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stream {
    /// Kernels, and communication that the software does not overlap with them.
    Compute,
    /// Collectives inside a layer: those of the tensor, context and expert axes.
    Layer,
    /// Collectives of the data axis.
    Data,
    /// Messages to other stages.
    Send,
    /// Messages from other stages.
    Receive,
    /// Copies out of the GPU's memory.
    ToHost,
    /// Copies into it.
    FromHost,
    /// Work of the node's processors for this rank.
    Host,
}

impl Stream {
    /// Every stream, in drawing order.
    pub const ALL: [Stream; 8] = [
        Stream::Compute,
        Stream::Layer,
        Stream::Data,
        Stream::Send,
        Stream::Receive,
        Stream::ToHost,
        Stream::FromHost,
        Stream::Host,
    ];

    /// The streams between a GPU and its node's processors.
    pub const OFFLOAD: [Stream; 3] = [Stream::ToHost, Stream::FromHost, Stream::Host];

    /// The name in traces.
    pub fn name(self) -> &'static str {
        match self {
            Stream::Compute => "compute",
            Stream::Layer => "layer",
            Stream::Data => "data",
            Stream::Send => "send",
            Stream::Receive => "receive",
            Stream::ToHost => "to-host",
            Stream::FromHost => "from-host",
            Stream::Host => "host",
        }
    }
}

/// Which part of a step an op belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pass {
    /// From tokens to loss.
    Forward,
    /// Forward again, during backward, of what was not kept.
    Recompute,
    /// From loss to gradients.
    Backward,
    /// From gradients to new weights.
    Update,
}

impl Pass {
    /// Every pass, in the order of a step.
    pub const ALL: [Pass; 4] = [Pass::Forward, Pass::Recompute, Pass::Backward, Pass::Update];

    /// The name in spans.
    pub fn name(self) -> &'static str {
        match self {
            Pass::Forward => "forward",
            Pass::Recompute => "recompute",
            Pass::Backward => "backward",
            Pass::Update => "update",
        }
    }
}
