//! What a template is made of: ops with their durations, or several ops in one.

use crate::costs::Delivery;
use crate::engine::Load;
use crate::index::index;
use std::ops::Range;
use trainwright_spec::program::{Axis, Channel, Stream};
use trainwright_spec::units::Picoseconds;
use trainwright_timeline::timeline::Activity;

index! {
    /// A node of a template.
    pub(crate) NodeId
}

/// An op, or several in one.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    /// Where it runs.
    pub stream: Stream,
    /// Its action.
    pub action: NodeAction,
    /// Its load of its rank's GPU.
    pub load: Load,
    /// Earlier nodes of the template that it waits for.
    pub after: Vec<NodeId>,
    /// Index in the segment of the op it is, or of the first it stands for.
    pub op: u32,
    /// Its activity, if it is one op.
    pub activity: Activity,
    /// The time of its parts, if it is several ops.
    pub inside: Option<Inside>,
    /// Whether it is several ops of which some use the layer stream, while others of the rank are there as single ops.
    pub holds_layer: bool,
    /// √(Σ t²) / Σ t of the ops in it: 1 for one op, less the more evenly its time is spread over many.
    pub evenness: f32,
}

/// How several ops in one spend their time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Inside {
    /// While a kernel runs.
    pub compute: Picoseconds,
    /// The part of it during which an axis inside the layer communicates too. One does also in the time without kernels.
    pub overlapped: Picoseconds,
    /// The first of those axes.
    pub axis: Axis,
}

/// The action of a node, with its duration on one rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum NodeAction {
    /// Runs by itself.
    Local(Picoseconds),
    /// A collective with the other members of the rank's group on an axis.
    Collective(Axis, Picoseconds),
    /// Sends to a pipeline rank.
    Send {
        channel: Channel,
        to: usize,
        /// The time of the sender.
        takes: Picoseconds,
        /// How the message goes on when its sender is done with it; `None` if it has arrived by then.
        delivery: Option<Delivery>,
    },
    /// Receives from a pipeline rank.
    Receive(Channel),
}

/// The nodes of a call, cut before each kernel that waits for an exchange of tokens between experts.
pub(crate) fn runs_between_exchanges(nodes: &[Node]) -> Vec<Range<usize>> {
    let waits = |node: &Node| node.after.iter().any(|earlier| nodes[*earlier].exchanges_tokens());
    let cuts = nodes.iter().enumerate().filter(|(_, node)| node.stream == Stream::Compute && waits(node));
    let mut ends: Vec<usize> = cuts.map(|(index, _)| index).collect();
    ends.push(nodes.len());
    let starts = std::iter::once(0).chain(ends.clone());
    starts.zip(ends).map(|(start, end)| start..end).collect()
}

impl Node {
    fn exchanges_tokens(&self) -> bool {
        let over_experts = matches!(self.activity, Activity::Communication(axis) if axis.is_of_experts());
        self.stream == Stream::Layer && over_experts
    }
}
