//! The op lists of all ranks out of their traces, ready to be replayed.
//!
//! Traces of other tools are read as far as the schema defines their nodes: compute with a time or a number of
//! operations, collectives with kind, size and group, messages with their other end. A node waits for those of both of its
//! lists. Without named streams a rank runs one node at a time of each of three kinds: work of the host, compute,
//! collectives; messages wait for their dependencies only.

use super::{
    Attribute, BYTES, COALESCED, CORES, CROWDING, ChakraError, GlobalMetadata, KIND, MEMORY_BOUND,
    MEMORY_TRAFFIC, MODULE, MULTIPROCESSOR_BOUND, Node, NodeType, PASS, PICOSECONDS, STREAM,
    TOKEN_BYTES_OVER_NODES, TOKEN_MULTIPROCESSORS, TOKEN_RATE, Value,
};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::limits;
use trainwright_spec::program::{CollectiveCall, Pass, Stream};
use trainwright_spec::units::{Bytes, Flops, Picoseconds, Seconds};
use trainwright_timeline::workload::{Cost, Does, Need, OpName, Queue, RankWork, Task, Workload};

/// The most operations, and bytes, of one node without a recorded time: ten days of the fastest GPU.
const OPERATIONS: f64 = 1e21;

/// A trace: its name, metadata and nodes.
pub type Trace = (String, GlobalMetadata, Vec<Node>);

/// Makes op lists of traces. `groups` gives the ranks of the groups that collectives name; a collective without a name is
/// of all ranks.
///
/// # Errors
/// `Content`, with the file and what is wrong.
pub fn workload(traces: &[Trace], groups: &BTreeMap<String, Vec<usize>>) -> Result<Workload, ChakraError> {
    let numbered: Vec<(usize, &Trace)> =
        traces.iter().enumerate().map(|(index, trace)| (rank_of(trace).unwrap_or(index), trace)).collect();
    let known: BTreeSet<usize> = numbered.iter().map(|(rank, _)| *rank).collect();
    let mut names: BTreeMap<String, usize> = BTreeMap::new();
    let mut all_groups = Vec::new();
    for (name, ranks) in groups {
        names.insert(name.clone(), all_groups.len());
        all_groups.push(ranks.clone());
    }
    let all_ranks = all_groups.len();
    all_groups.push(known.iter().copied().collect());
    let mut ranks = Vec::new();
    for (rank, trace) in numbered {
        let reader = Reader { origin: &trace.0, names: &names, all_ranks };
        let stands_for = number(&trace.1.attributes, "stands_for").map_or(1, |count| count.max(1) as usize);
        ranks.push(RankWork { rank, stands_for, tasks: reader.tasks(&trace.2)? });
    }
    ranks.sort_by_key(|work| work.rank);
    if let Some(pair) = ranks.windows(2).find(|pair| pair[0].rank == pair[1].rank) {
        let problem = format!("two traces are of rank {}", pair[0].rank);
        return Err(ChakraError::Content { origin: traces[0].0.clone(), problem });
    }
    Ok(Workload { ranks, groups: all_groups })
}

/// The rank in the metadata, else the number before the ending of the file's name.
fn rank_of((origin, metadata, _): &Trace) -> Option<usize> {
    let recorded = number(&metadata.attributes, "rank").and_then(|rank| usize::try_from(rank).ok());
    recorded.or_else(|| origin.trim_end_matches(".et").rsplit('.').next()?.parse().ok())
}

fn value<'a>(attributes: &'a [Attribute], name: &str) -> Option<&'a Value> {
    attributes.iter().find(|attribute| attribute.name == name)?.value.as_ref()
}

fn number(attributes: &[Attribute], name: &str) -> Option<i64> {
    match value(attributes, name)? {
        Value::Int32(number) => Some(i64::from(*number)),
        Value::Int64(number) => Some(*number),
        Value::Uint32(number) => Some(i64::from(*number)),
        Value::Uint64(number) => i64::try_from(*number).ok(),
        Value::Text(text) => text.parse().ok(),
        Value::Double(_) | Value::Bool(_) => None,
    }
}

fn text<'a>(attributes: &'a [Attribute], name: &str) -> Option<&'a str> {
    match value(attributes, name)? {
        Value::Text(text) => Some(text),
        _ => None,
    }
}

fn part(attributes: &[Attribute], name: &str) -> f64 {
    signed(attributes, name).max(0.0)
}

fn signed(attributes: &[Attribute], name: &str) -> f64 {
    match value(attributes, name) {
        Some(Value::Double(number)) if number.is_finite() => *number,
        _ => 0.0,
    }
}

/// The largest crowding that makes sense: an op that takes a hundred times longer for each further thread on its core.
const MOST_CROWDING: f64 = 100.0;

fn op_name(attributes: &[Attribute]) -> Option<OpName> {
    let pass = text(attributes, PASS)?;
    let pass = Pass::ALL.into_iter().find(|known| known.name() == pass)?;
    Some(OpName { module: text(attributes, MODULE)?.to_string(), pass })
}

struct Reader<'a> {
    origin: &'a str,
    names: &'a BTreeMap<String, usize>,
    all_ranks: usize,
}

impl Reader<'_> {
    fn refuse(&self, node: &Node, problem: &str) -> ChakraError {
        let problem = format!("node {} ({}) {problem}", node.id, node.name);
        ChakraError::Content { origin: self.origin.into(), problem }
    }

    fn tasks(&self, nodes: &[Node]) -> Result<Vec<Task>, ChakraError> {
        let order = self.order(nodes)?;
        let place: BTreeMap<u64, usize> =
            order.iter().enumerate().map(|(place, index)| (nodes[*index].id, place)).collect();
        let task = |index: &usize| {
            let node = &nodes[*index];
            let after: BTreeSet<usize> = dependencies(node).map(|id| place[&id]).collect();
            let does = self.does(node)?;
            let stream = text(&node.attributes, STREAM)
                .and_then(|name| Stream::ALL.into_iter().find(|stream| stream.name() == name));
            let queue = match (stream, &does) {
                (Some(stream), _) => Queue::Stream(stream),
                (None, Does::Send(..)) => Queue::Free(Stream::Send),
                (None, Does::Receive(..)) => Queue::Free(Stream::Receive),
                (None, Does::Collective(..)) => Queue::Stream(Stream::Data),
                (None, Does::Host(_)) => Queue::Stream(Stream::Host),
                (None, Does::Copy(_)) => Queue::Stream(Stream::ToHost),
                (None, Does::Compute(_) | Does::Operations(..)) => Queue::Stream(Stream::Compute),
            };
            let op = op_name(&node.attributes);
            Ok(Task { name: node.name.clone(), queue, after: after.into_iter().collect(), op, does })
        };
        order.iter().map(task).collect()
    }

    /// Nodes so that each comes after those it waits for, the smallest number first.
    fn order(&self, nodes: &[Node]) -> Result<Vec<usize>, ChakraError> {
        let index_of: BTreeMap<u64, usize> =
            nodes.iter().enumerate().map(|(index, node)| (node.id, index)).collect();
        let mut missing = vec![0usize; nodes.len()];
        let mut waiting: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
        for (index, node) in nodes.iter().enumerate() {
            for id in dependencies(node) {
                let earlier = index_of.get(&id).ok_or_else(|| {
                    self.refuse(node, &format!("waits for node {id}, which is not in the file"))
                })?;
                waiting[*earlier].push(index);
                missing[index] += 1;
            }
        }
        let mut ready: BinaryHeap<Reverse<(u64, usize)>> = (0..nodes.len())
            .filter(|index| missing[*index] == 0)
            .map(|index| Reverse((nodes[index].id, index)))
            .collect();
        let mut order = Vec::with_capacity(nodes.len());
        while let Some(Reverse((_, index))) = ready.pop() {
            order.push(index);
            for next in &waiting[index] {
                missing[*next] -= 1;
                if missing[*next] == 0 {
                    ready.push(Reverse((nodes[*next].id, *next)));
                }
            }
        }
        match missing.iter().position(|count| *count > 0) {
            Some(stuck) => Err(self.refuse(&nodes[stuck], "waits for itself, through others")),
            None => Ok(order),
        }
    }

    fn does(&self, node: &Node) -> Result<Does, ChakraError> {
        let attributes = &node.attributes;
        let size = || -> Result<Bytes, ChakraError> {
            let exact = part(attributes, BYTES);
            let recorded = number(attributes, "comm_size").filter(|size| *size >= 0);
            let recorded = recorded.ok_or_else(|| self.refuse(node, "has no `comm_size`"))? as f64;
            let bytes = if exact > 0.0 { exact } else { recorded };
            if bytes > limits::BYTES {
                let problem = format!("has the `comm_size` {bytes}; at most {} bytes", limits::BYTES);
                return Err(self.refuse(node, &problem));
            }
            Ok(Bytes::new(bytes))
        };
        let end = |name: &str| -> Result<usize, ChakraError> {
            let rank = number(attributes, name).and_then(|rank| usize::try_from(rank).ok());
            rank.ok_or_else(|| self.refuse(node, &format!("has no `{name}`")))
        };
        let tag = number(attributes, "comm_tag").unwrap_or(0);
        let exact = number(attributes, PICOSECONDS).map(|time| Picoseconds(time.max(0) as u64));
        let time = exact
            .or_else(|| {
                number(attributes, "duration_ns")
                    .map(|time| Picoseconds((time.max(0) as u64).saturating_mul(1000)))
            })
            .unwrap_or(Picoseconds(node.duration_micros.saturating_mul(1_000_000)));
        if Seconds::from(time) > limits::LONGEST {
            return Err(self.refuse(node, &format!("takes {time}; at most {}, a day", limits::LONGEST)));
        }
        let need = Need {
            multiprocessor_bound: part(attributes, MULTIPROCESSOR_BOUND).min(1.0),
            memory_bound: part(attributes, MEMORY_BOUND).min(1.0),
            memory_traffic: part(attributes, MEMORY_TRAFFIC).min(1.0),
            cores: part(attributes, CORES).min(1.0),
            crowding: signed(attributes, CROWDING).clamp(-1.0, MOST_CROWDING),
        };
        let cost = Cost { time, need };
        let of_host = matches!(value(attributes, "is_cpu_op"), Some(Value::Bool(true) | Value::Int32(1)));
        Ok(match NodeType::try_from(node.kind) {
            Ok(NodeType::Send) => Does::Send(end("comm_dst")?, tag, size()?),
            Ok(NodeType::Receive) => Does::Receive(end("comm_src")?, tag),
            Ok(NodeType::Collective) => {
                Does::Collective(self.kind(node)?, size()?, call(node), self.group(node)?)
            }
            Ok(NodeType::MemoryLoad | NodeType::MemoryStore) => Does::Copy(cost),
            Ok(NodeType::Compute) if of_host => Does::Host(time),
            Ok(NodeType::Compute) => {
                let operations = number(attributes, "num_ops").unwrap_or(0).max(0) as f64;
                let memory = number(attributes, "tensor_size").unwrap_or(0).max(0) as f64;
                if operations.max(memory) > OPERATIONS {
                    let problem = format!(
                        "has the `num_ops` {operations} and the `tensor_size` {memory}; at most {OPERATIONS} each"
                    );
                    return Err(self.refuse(node, &problem));
                }
                match time == Picoseconds::ZERO && operations + memory > 0.0 {
                    true => Does::Operations(Flops::new(operations), Bytes::new(memory)),
                    false => Does::Compute(cost),
                }
            }
            // Metadata takes no time.
            _ => Does::Compute(Cost::default()),
        })
    }

    fn kind(&self, node: &Node) -> Result<CollectiveKind, ChakraError> {
        if let Some(name) = text(&node.attributes, KIND) {
            let known = CollectiveKind::ALL.into_iter().find(|kind| kind.name() == name);
            return known.ok_or_else(|| self.refuse(node, &format!("is a `{name}`, which is no collective")));
        }
        Ok(match number(&node.attributes, "comm_type") {
            Some(0) => CollectiveKind::AllReduce,
            Some(1) => CollectiveKind::Reduce,
            Some(2) => CollectiveKind::AllGather,
            Some(5) => CollectiveKind::Broadcast,
            Some(6) => CollectiveKind::AllToAll,
            Some(7) => CollectiveKind::ReduceScatter,
            Some(9) => CollectiveKind::Barrier,
            Some(other) => {
                return Err(
                    self.refuse(node, &format!("has the `comm_type` {other}, which is not simulated"))
                );
            }
            None => return Err(self.refuse(node, "has no `comm_type`")),
        })
    }

    fn group(&self, node: &Node) -> Result<usize, ChakraError> {
        let name = match value(&node.attributes, "pg_name") {
            Some(Value::Text(name)) => name.clone(),
            Some(_) => number(&node.attributes, "pg_name").map_or_else(String::new, |name| name.to_string()),
            None => return Ok(self.all_ranks),
        };
        let known = self.names.get(&name).copied();
        known.ok_or_else(|| {
            self.refuse(node, &format!("is of the group `{name}`, whose ranks nobody says: give --groups"))
        })
    }
}

/// What performs a node's collective.
fn call(node: &Node) -> CollectiveCall {
    let of_tokens =
        number(&node.attributes, TOKEN_MULTIPROCESSORS).and_then(|count| usize::try_from(count).ok());
    match (of_tokens, value(&node.attributes, COALESCED)) {
        (Some(multiprocessors), _) if multiprocessors > 0 => {
            let over_nodes =
                number(&node.attributes, TOKEN_BYTES_OVER_NODES).map(|bytes| bytes.max(0) as u64);
            let rate = number(&node.attributes, TOKEN_RATE).map(|rate| rate.max(1) as u64);
            CollectiveCall::TokenKernel { multiprocessors, over_nodes, rate }
        }
        (_, Some(Value::Bool(true))) => CollectiveCall::Coalesced,
        _ => CollectiveCall::Single,
    }
}

fn dependencies(node: &Node) -> impl Iterator<Item = u64> {
    let both: BTreeSet<u64> =
        node.data_dependencies.iter().chain(&node.control_dependencies).copied().collect();
    both.into_iter()
}
