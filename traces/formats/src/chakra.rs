//! Chakra execution traces (MLCommons): the ops of a rank as a graph that other simulators replay.
//!
//! A file is a row of messages of protocol buffers, each with its length before it: the metadata, then a node for each
//! op. A node names those that must have ended before it: the dependencies of the op, and the op before it on its
//! stream. Collectives name their group, messages their other end; only compute and copies have times, as
//! replays find out those of communication.
//!
//! Additional attributes, which other readers ignore, hold what the schema cannot express: times in picoseconds, streams,
//! the share of a GPU that a kernel needs. With them `workload` gives back the op lists of every rank.
//!
//! The messages are those of `schema/protobuf/et_def.proto` of github.com/mlcommons/chakra, as far as they are used.

pub mod workload;

use prost::Message;
use std::io::{self, Write};
use thiserror::Error;
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::program::{
    Call, Channel, CollectiveCall, CopyDirection, Op, Program, RankProgram, Segment, Stream, Work,
};
use trainwright_spec::units::Picoseconds;
use trainwright_timeline::workload::{Cost, Need};

/// The schema's version that files name.
pub const VERSION: &str = "0.0.4";

/// The first message of a file.
#[derive(Clone, PartialEq, Message)]
pub struct GlobalMetadata {
    /// The schema's version.
    #[prost(string, tag = "1")]
    pub version: String,
    /// About the trace.
    #[prost(message, repeated, tag = "2")]
    pub attributes: Vec<Attribute>,
}

/// An op.
#[derive(Clone, PartialEq, Message)]
pub struct Node {
    /// Its number in the file.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// For people.
    #[prost(string, tag = "2")]
    pub name: String,
    /// The kind of op.
    #[prost(enumeration = "NodeType", tag = "3")]
    pub kind: i32,
    /// Nodes that order asks to have ended.
    #[prost(uint64, repeated, tag = "4")]
    pub control_dependencies: Vec<u64>,
    /// Nodes whose results it needs; replays look at these alone, so the order of streams is here too.
    #[prost(uint64, repeated, tag = "5")]
    pub data_dependencies: Vec<u64>,
    /// Its start, which a replay computes.
    #[prost(uint64, tag = "6")]
    pub start_micros: u64,
    /// How long it takes, rounded.
    #[prost(uint64, tag = "7")]
    pub duration_micros: u64,
    /// Everything else.
    #[prost(message, repeated, tag = "10")]
    pub attributes: Vec<Attribute>,
}

/// A named value.
#[derive(Clone, PartialEq, Message)]
pub struct Attribute {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The value.
    #[prost(oneof = "Value", tags = "3, 7, 9, 11, 13, 27, 29")]
    pub value: Option<Value>,
}

/// The value of an attribute.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Value {
    /// A part of something.
    #[prost(double, tag = "3")]
    Double(f64),
    /// A rank or a tag.
    #[prost(int32, tag = "7")]
    Int32(i32),
    /// A kind or a size.
    #[prost(int64, tag = "9")]
    Int64(i64),
    /// A rank or a tag.
    #[prost(uint32, tag = "11")]
    Uint32(u32),
    /// A size.
    #[prost(uint64, tag = "13")]
    Uint64(u64),
    /// Yes or no.
    #[prost(bool, tag = "27")]
    Bool(bool),
    /// A name.
    #[prost(string, tag = "29")]
    Text(String),
}

/// The kinds of node that are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum NodeType {
    /// None.
    Invalid = 0,
    /// A copy from the node's memory.
    MemoryLoad = 2,
    /// A copy to it.
    MemoryStore = 3,
    /// A kernel, or work of the node's processors.
    Compute = 4,
    /// A message to another stage.
    Send = 5,
    /// A message from another stage.
    Receive = 6,
    /// A collective.
    Collective = 7,
}

/// Why a file cannot be read.
#[derive(Debug, Error)]
pub enum ChakraError {
    /// It is no execution trace.
    #[error("{origin}: not an execution trace of Chakra: {source}")]
    Decode {
        /// The file.
        origin: String,
        /// The decoder's error.
        source: prost::DecodeError,
    },
    /// Traces that do not match, or a node that cannot be replayed.
    #[error("{origin}: {problem}")]
    Content {
        /// The file.
        origin: String,
        /// The problem.
        problem: String,
    },
}

/// Writes the trace of a rank, an index into `Program::ranks`. `cost` gives the cost of ops that compute or copy, and of work of
/// the node's processors.
///
/// # Errors
/// Those of the writer.
pub fn write_rank(
    program: &Program,
    rank: usize,
    cost: &dyn Fn(&RankProgram, &Op) -> Cost,
    out: &mut dyn Write,
) -> io::Result<()> {
    let rank = &program.ranks[rank];
    let metadata = GlobalMetadata {
        version: VERSION.into(),
        attributes: vec![
            attribute("rank", Value::Int32(rank.rank as i32)),
            attribute("stands_for", Value::Int64(rank.stands_for as i64)),
        ],
    };
    out.write_all(&metadata.encode_length_delimited_to_vec())?;
    let mut id = 0u64;
    // The last node of each stream.
    let mut last: [Option<u64>; Stream::ALL.len()] = [None; Stream::ALL.len()];
    for call in &rank.calls {
        let segment = &program.segments[call.segment];
        let first = id;
        for op in &segment.ops {
            let mut node = node(program, rank, call, segment, op, cost);
            node.id = id;
            node.data_dependencies = op.after.iter().map(|index| first + *index as u64).collect();
            let before = last[op.stream as usize].replace(id);
            node.data_dependencies.extend(before.filter(|before| !node.data_dependencies.contains(before)));
            node.data_dependencies.sort_unstable();
            out.write_all(&node.encode_length_delimited_to_vec())?;
            id += 1;
        }
    }
    Ok(())
}

/// The groups that collectives name, as JSON: `{"0": [0, 1], …}`.
pub fn groups(program: &Program) -> String {
    let ranks =
        program.groups.iter().enumerate().map(|(index, group)| format!("  \"{index}\": {:?}", group.ranks));
    format!("{{\n{}\n}}\n", ranks.collect::<Vec<String>>().join(",\n"))
}

/// Reads a file back. `origin` names it in messages.
///
/// # Errors
/// `Decode` if it is no execution trace.
pub fn read(bytes: &[u8], origin: &str) -> Result<(GlobalMetadata, Vec<Node>), ChakraError> {
    let failed = |source| ChakraError::Decode { origin: origin.into(), source };
    let mut rest = bytes;
    let metadata = GlobalMetadata::decode_length_delimited(&mut rest).map_err(failed)?;
    let mut nodes = Vec::new();
    while !rest.is_empty() {
        nodes.push(Node::decode_length_delimited(&mut rest).map_err(failed)?);
    }
    Ok((metadata, nodes))
}

fn attribute(name: &str, value: Value) -> Attribute {
    Attribute { name: name.into(), value: Some(value) }
}

fn node(
    program: &Program,
    rank: &RankProgram,
    call: &Call,
    segment: &Segment,
    op: &Op,
    cost: &dyn Fn(&RankProgram, &Op) -> Cost,
) -> Node {
    let layer = op.layer.map_or_else(String::new, |layer| format!(" of block {layer}"));
    let action = call.action.map_or_else(String::new, |action| format!("{action} "));
    let mut attributes = Vec::new();
    let mut set = |name: &str, value: Value| attributes.push(attribute(name, value));
    let host = matches!(op.work, Work::HostUpdate(_) | Work::Process(_));
    set("is_cpu_op", Value::Bool(host));
    let microbatch = call.action.map_or(0, |action| action.microbatch);
    let stages = program.ranks.iter().map(|rank| rank.pipeline.len()).max().unwrap_or(1).max(1);
    let other = |place: usize| program.ranks[rank.pipeline[place]].rank as i32;
    let mut timed = Cost::default();
    let kind = match &op.work {
        Work::Compute(kernel) => {
            timed = cost(rank, op);
            set("num_ops", Value::Int64(kernel.flops().get() as i64));
            NodeType::Compute
        }
        Work::HostUpdate(update) => {
            timed = cost(rank, op);
            set("num_ops", Value::Int64(0));
            set("tensor_size", Value::Uint64(update.memory.get() as u64));
            NodeType::Compute
        }
        Work::Process(time) => {
            timed.time = (*time).into();
            set("num_ops", Value::Int64(0));
            NodeType::Compute
        }
        Work::Join => {
            set("num_ops", Value::Int64(0));
            NodeType::Compute
        }
        Work::Copy { direction, bytes, .. } => {
            timed = cost(rank, op);
            set("tensor_size", Value::Uint64(bytes.get() as u64));
            match direction {
                CopyDirection::ToHost => NodeType::MemoryStore,
                CopyDirection::FromHost => NodeType::MemoryLoad,
            }
        }
        Work::Send { channel, to, bytes } => {
            set("comm_dst", Value::Int32(other(*to)));
            set("comm_tag", Value::Int32(tag(*channel, microbatch, stages)));
            set("comm_size", Value::Int64(bytes.get() as i64));
            NodeType::Send
        }
        Work::Receive { channel, from, bytes } => {
            set("comm_src", Value::Int32(other(*from)));
            set("comm_tag", Value::Int32(tag(*channel, microbatch, stages)));
            set("comm_size", Value::Int64(bytes.get() as i64));
            NodeType::Receive
        }
        Work::Collective { kind, axis, bytes, call } => {
            set("comm_type", Value::Int64(collective(*kind)));
            if *kind == CollectiveKind::SendReceive {
                set(KIND, Value::Text(kind.to_string()));
            }
            match call {
                CollectiveCall::Single => {}
                CollectiveCall::Coalesced => set(COALESCED, Value::Bool(true)),
                CollectiveCall::TokenKernel { multiprocessors, over_nodes, rate } => {
                    set(TOKEN_MULTIPROCESSORS, Value::Int64(*multiprocessors as i64));
                    if let Some(bytes) = over_nodes {
                        set(TOKEN_BYTES_OVER_NODES, Value::Int64(*bytes as i64));
                    }
                    if let Some(rate) = rate {
                        set(TOKEN_RATE, Value::Int64(*rate as i64));
                    }
                }
            }
            set("comm_size", Value::Int64(bytes.get() as i64));
            let group = rank.groups[*axis as usize];
            set("pg_name", Value::Text(group.map_or_else(String::new, |group| group.to_string())));
            NodeType::Collective
        }
    };
    let moved = match &op.work {
        Work::Send { bytes, .. } | Work::Receive { bytes, .. } | Work::Collective { bytes, .. } => {
            bytes.get()
        }
        _ => 0.0,
    };
    if moved.fract() != 0.0 {
        set(BYTES, Value::Double(moved));
    }
    set(STREAM, Value::Text(op.stream.name().into()));
    if timed.time > Picoseconds::ZERO {
        set("duration_ns", Value::Uint64((timed.time.0 + 500) / 1000));
        set(PICOSECONDS, Value::Uint64(timed.time.0));
    }
    set(MODULE, Value::Text(op.module.into()));
    set(PASS, Value::Text(op.pass.name().into()));
    let Need { multiprocessor_bound, memory_bound, memory_traffic, cores, crowding } = timed.need;
    for (name, part) in [
        (MULTIPROCESSOR_BOUND, multiprocessor_bound),
        (MEMORY_BOUND, memory_bound),
        (MEMORY_TRAFFIC, memory_traffic),
        (CORES, cores),
        (CROWDING, crowding),
    ] {
        if part != 0.0 {
            set(name, Value::Double(part));
        }
    }
    Node {
        name: format!("{action}{} {}{layer}, {}", segment.name, op.module, op.pass.name()),
        kind: kind as i32,
        duration_micros: (timed.time.0 as f64 / 1e6).round() as u64,
        attributes,
        ..Node::default()
    }
}

/// Additional attributes.
const PICOSECONDS: &str = "duration_ps";
const STREAM: &str = "stream";
const KIND: &str = "collective";
const COALESCED: &str = "coalesced";
const TOKEN_MULTIPROCESSORS: &str = "token_multiprocessors";
const TOKEN_BYTES_OVER_NODES: &str = "token_bytes_over_nodes";
/// Bytes that one of the multiprocessors of such kernels moves in a second, if the trace has its own figure.
const TOKEN_RATE: &str = "token_rate";
const BYTES: &str = "comm_bytes";
const MULTIPROCESSOR_BOUND: &str = "multiprocessor_bound";
const MEMORY_BOUND: &str = "memory_bound";
const MEMORY_TRAFFIC: &str = "memory_traffic";
const CORES: &str = "cores";
const CROWDING: &str = "crowding";
const MODULE: &str = "module";
const PASS: &str = "pass";

/// Distinguishes the messages between two ranks: by content and microbatch.
fn tag(channel: Channel, microbatch: usize, ranks: usize) -> i32 {
    // A rank has few stages; the multiple leaves room for them.
    let most = 64 * ranks;
    let (stage, gradient) = match channel {
        Channel::Activation(stage) => (stage, 0),
        Channel::Gradient(stage) => (stage, 1),
    };
    (2 * (microbatch * most + stage) + gradient) as i32
}

/// The number of a collective in the schema; send-receive, which the schema lacks, is written as a broadcast.
fn collective(kind: CollectiveKind) -> i64 {
    match kind {
        CollectiveKind::AllReduce => 0,
        CollectiveKind::Reduce => 1,
        CollectiveKind::AllGather => 2,
        CollectiveKind::Broadcast | CollectiveKind::SendReceive => 5,
        CollectiveKind::AllToAll => 6,
        CollectiveKind::ReduceScatter => 7,
        CollectiveKind::Barrier => 9,
    }
}
