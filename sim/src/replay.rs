//! Execution traces of Chakra on the engine: the same queues, collectives and messages as a program's, from op lists that
//! anyone may have written.

use crate::costs::{Cost, Costs, Delivery, Query, QueryWork};
use crate::engine::{Graph, Load, OpId, Outcome, QueueId, Timing, Traffic};
use crate::layout::{Layout, Takes, jittered};
use std::collections::{BTreeMap, VecDeque};
use thiserror::Error;
use trainwright_spec::program::{Axis, CopyDirection, Group, Op, Pass, Program, RankProgram, Stream};
use trainwright_spec::units::{Bytes, Flops, Picoseconds, Seconds};
use trainwright_timeline::timeline::{Activity, CallTrack, RankTrack, Span, Timeline};
use trainwright_timeline::workload::{self, Does, Need, Queue, Task, Workload};

/// Why a workload cannot be replayed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ReplayError {
    /// A message that nobody sends.
    #[error("rank {rank} waits for a message of rank {from} with tag {tag}, which never comes: {name}")]
    NoSend {
        /// The rank that waits.
        rank: usize,
        /// The sender.
        from: usize,
        /// The message's tag.
        tag: i64,
        /// The op's name.
        name: String,
    },
    /// Ops that wait for each other.
    #[error("ops wait for each other: {stuck} never start; the first is {name} of rank {rank}")]
    Deadlock {
        /// How many.
        stuck: usize,
        /// Of the first.
        rank: usize,
        /// The first.
        name: String,
    },
    /// A rank beyond the cluster.
    #[error("the traces have rank {rank}, and the cluster has {gpus} GPUs")]
    TooManyRanks {
        /// The rank.
        rank: usize,
        /// How many GPUs there are.
        gpus: usize,
    },
}

/// Times of compute that a trace does not record.
pub trait OperationCosts {
    /// How long a global rank takes for `flops` operations on `memory` bytes.
    fn operations(&self, rank: usize, flops: Flops, memory: Bytes) -> Seconds;
}

/// Simulates a workload. The timeline's spans have the names of the traces' nodes; it has no memory, and every rank
/// is on the first stage.
///
/// # Errors
/// As `ReplayError` says.
pub fn replay(
    workload: &Workload,
    gpus: usize,
    costs: &(impl Costs + OperationCosts),
) -> Result<Timeline, ReplayError> {
    let other_end = |task: &Task| match task.does {
        Does::Send(other, ..) | Does::Receive(other, ..) => Some(other),
        _ => None,
    };
    let traced = workload.ranks.iter().map(|traced| traced.rank);
    let messages = workload.ranks.iter().flat_map(|traced| traced.tasks.iter().filter_map(other_end));
    let named = traced.chain(messages).chain(workload.groups.iter().flatten().copied());
    if let Some(rank) = named.max().filter(|rank| *rank >= gpus) {
        return Err(ReplayError::TooManyRanks { rank, gpus });
    }
    let mut builder = Builder::new(workload, costs);
    (0..workload.ranks.len()).for_each(|rank| builder.add_rank(rank));
    let mut built = builder.match_messages()?;
    let jitter = costs.conditions().jitter;
    if !jitter.is_empty() {
        built.graph = jittered(&built.graph, jitter, |op| {
            let Origin { rank, task } = built.origins[op];
            activity(&workload.ranks[rank].tasks[task])
        });
    }
    let outcome = built.graph.run().map_err(|deadlock| {
        let Origin { rank, task } = built.origins[deadlock.first];
        let traced = &workload.ranks[rank];
        let name = traced.tasks[task].name.clone();
        ReplayError::Deadlock { stuck: deadlock.stuck, rank: traced.rank, name }
    })?;
    Ok(built.timeline(workload, &outcome))
}

/// A workload as a graph, and the way back.
struct Built {
    graph: Graph,
    origins: Vec<Origin>,
}

/// The task that an op of the graph is: indices of its rank and of the task in it.
#[derive(Clone, Copy)]
struct Origin {
    rank: usize,
    task: usize,
}

/// The time and load of a task.
struct Priced {
    time: Picoseconds,
    load: Load,
    delivery: Option<Delivery>,
}

/// The time and load of a task of a global rank: time and needs from the trace, or the costs of its communication.
fn priced(task: &Task, rank: usize, groups: &[Group], costs: &(impl Costs + OperationCosts)) -> Priced {
    let traced = |time, load| Priced { time, load, delivery: None };
    let costed = |work| {
        let op = task.op.as_ref().map(|op| (op.module.as_str(), op.pass));
        let Cost { time, load, delivery } = costs.cost(&Query { rank, op, work });
        Priced { time: time.into(), load, delivery }
    };
    match task.does {
        Does::Compute(cost) | Does::Copy(cost) => traced(cost.time, load(cost.need)),
        Does::Operations(flops, memory) => {
            traced(costs.operations(rank, flops, memory).into(), Load::default())
        }
        Does::Host(time) => traced(time, Load::default()),
        Does::Collective(kind, bytes, call, group) => {
            costed(QueryWork::Collective { kind, bytes, call, group: &groups[group] })
        }
        Does::Send(to, _, bytes) => {
            let blocking = !matches!(task.queue, Queue::Stream(Stream::Send) | Queue::Free(_));
            costed(QueryWork::Message { bytes, to, blocking })
        }
        Does::Receive(..) => traced(Picoseconds::ZERO, Load::default()),
    }
}

/// Messages that are received in the order in which they are sent. Sender and receiver are global ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Channel {
    from: usize,
    to: usize,
    tag: i64,
}

struct Builder<'a, C> {
    workload: &'a Workload,
    costs: &'a C,
    groups: Vec<Group>,
    /// The index in the workload of each global rank that it has.
    index_of: BTreeMap<usize, usize>,
    layout: Layout,
    origins: Vec<Origin>,
    sends: BTreeMap<Channel, VecDeque<OpId>>,
    receives: Vec<(OpId, Channel)>,
}

/// The part of one rank that has been added.
struct Added {
    /// Index of the rank in the workload.
    rank: usize,
    queues: BTreeMap<Stream, QueueId>,
    /// How many collectives of each group.
    collectives: Vec<usize>,
    /// The op of each task.
    ops: Vec<OpId>,
}

impl<'a, C: Costs + OperationCosts> Builder<'a, C> {
    fn new(workload: &'a Workload, costs: &'a C) -> Self {
        let ranks = || workload.ranks.iter().map(|traced| traced.rank);
        let index_of: BTreeMap<usize, usize> = ranks().zip(0..).collect();
        let group = |ranks: &Vec<usize>| Group {
            // Costs do not depend on the axis.
            axis: Axis::Data,
            ranks: ranks.clone(),
            members: ranks.iter().filter_map(|rank| index_of.get(rank).copied()).collect(),
        };
        let groups: Vec<Group> = workload.groups.iter().map(group).collect();
        let layout = Layout::new(Graph::default(), ranks(), groups.len(), costs);
        let (origins, sends, receives) = (Vec::new(), BTreeMap::new(), Vec::new());
        Builder { workload, costs, groups, index_of, layout, origins, sends, receives }
    }

    fn add_rank(&mut self, rank: usize) {
        let tasks = &self.workload.ranks[rank].tasks;
        let mut added = Added {
            rank,
            queues: BTreeMap::new(),
            collectives: vec![0; self.groups.len()],
            ops: Vec::with_capacity(tasks.len()),
        };
        tasks.iter().for_each(|task| self.add_task(task, &mut added));
    }

    fn add_task(&mut self, task: &Task, added: &mut Added) {
        let rank = self.workload.ranks[added.rank].rank;
        let origin = Origin { rank: added.rank, task: added.ops.len() };
        let Priced { time, load, delivery } = priced(task, rank, &self.groups, self.costs);
        let (takes, timing) = self.timing(task, time, added);
        let uses = self.layout.uses(added.rank, load, takes);
        let queue = match task.queue {
            Queue::Stream(stream) => self.queue(stream, added),
            Queue::Free(_) => self.layout.graph.add_queue(),
        };
        let before = self.layout.graph.last_of(queue);
        let op = self.layout.graph.add(queue, timing);
        self.layout.graph.set_uses(op, uses);
        self.origins.push(origin);
        task.after.iter().for_each(|earlier| self.layout.graph.wait(op, added.ops[*earlier]));
        added.ops.push(op);
        match task.does {
            Does::Send(to, tag, _) => {
                let last = match (delivery, self.index_of.get(&to).copied()) {
                    (Some(delivery), Some(receiver)) => {
                        self.origins.push(origin);
                        let queue = self.queue(Stream::Send, added);
                        let earlier = task.after.iter().map(|earlier| added.ops[*earlier]).chain(before);
                        self.layout.deliver(queue, [added.rank, receiver], delivery, earlier)
                    }
                    _ => op,
                };
                self.sends.entry(Channel { from: rank, to, tag }).or_default().push_back(last);
            }
            Does::Receive(from, tag) => self.receives.push((op, Channel { from, to: rank, tag })),
            _ => {}
        }
    }

    /// The hardware that a task of this time uses, and when it starts and ends. The send of a receive is not known yet.
    fn timing(&mut self, task: &Task, time: Picoseconds, added: &mut Added) -> (Takes, Timing) {
        match task.does {
            Does::Collective(.., group) if self.groups[group].members.len() > 1 => {
                let (members, turn) = (self.groups[group].members.len(), &mut added.collectives[group]);
                (Takes::Collective, self.layout.collective(group, turn, members, time))
            }
            Does::Send(to, ..) => (Takes::Message(self.index_of.get(&to).copied()), Timing::Takes(time)),
            _ => (Takes::Local, Timing::Takes(time)),
        }
    }

    /// The rank's queue for a stream.
    fn queue(&mut self, stream: Stream, added: &mut Added) -> QueueId {
        *added.queues.entry(stream).or_insert_with(|| self.layout.graph.add_queue())
    }

    /// Lets every receive end with its send. A message of a rank without a trace is there at once.
    fn match_messages(mut self) -> Result<Built, ReplayError> {
        let mut graph = self.layout.graph;
        for (receive, channel) in self.receives {
            let Channel { from, to, tag } = channel;
            match self.sends.get_mut(&channel).and_then(VecDeque::pop_front) {
                Some(send) => graph.set_timing(receive, Timing::EndsWith(send)),
                None if !self.index_of.contains_key(&from) => {}
                None => {
                    let Origin { rank, task } = self.origins[receive];
                    let name = self.workload.ranks[rank].tasks[task].name.clone();
                    return Err(ReplayError::NoSend { rank: to, from, tag, name });
                }
            }
        }
        Ok(Built { graph, origins: self.origins })
    }
}

impl Built {
    fn timeline(&self, workload: &Workload, outcome: &Outcome) -> Timeline {
        let tracks = workload.ranks.iter().map(|traced| RankTrack {
            rank: traced.rank,
            stands_for: traced.stands_for,
            pipeline_rank: 0,
        });
        let mut labels: Vec<String> = Vec::new();
        let mut known: BTreeMap<&str, u32> = BTreeMap::new();
        let mut spans = Vec::new();
        for (op, Origin { rank, task }) in (0..).map(OpId).zip(&self.origins) {
            let task = &workload.ranks[*rank].tasks[*task];
            let label = *known.entry(&task.name).or_insert_with(|| {
                labels.push(task.name.clone());
                labels.len() as u32 - 1
            });
            let (posted, start, end) = (outcome.posted[op], outcome.started[op], outcome.ended[op]);
            let span = Span {
                rank: *rank as u32,
                label,
                call: *rank as u32,
                stream: stream(task),
                pass: Pass::Forward,
                activity: activity(task),
                start,
                end,
            };
            if posted < start {
                spans.push(Span { activity: Activity::Wait, start: posted, end: start, ..span });
            }
            if start < end {
                spans.push(span);
            }
        }
        // Messages that nothing orders may overlap on their stream: later ones are drawn from where it is free.
        spans.sort_by_key(|span| (span.rank, span.stream, span.start, span.end));
        let mut kept: Vec<Span> = Vec::with_capacity(spans.len());
        for mut span in spans {
            if let Some(last) =
                kept.last().filter(|last| (last.rank, last.stream) == (span.rank, span.stream))
            {
                span.start = span.start.max(last.end);
            }
            if span.start < span.end {
                kept.push(span);
            }
        }
        Timeline {
            ranks: tracks.collect(),
            labels,
            calls: (0..workload.ranks.len()).map(|rank| CallTrack { rank, action: None }).collect(),
            spans: kept,
            memory: Vec::new(),
            duration: outcome.ended.iter().copied().max().unwrap_or(Picoseconds::ZERO),
        }
    }
}

fn load(need: Need) -> Load {
    let Need { multiprocessor_bound, memory_bound, memory_traffic, cores, crowding } = need;
    match memory_traffic > 0.0 {
        true => Load::communication(Traffic { memory: memory_traffic, ..Traffic::default() }),
        false => Load { multiprocessor_bound, memory_bound, cores, crowding, ..Load::default() },
    }
}

/// The cost of an op of a program's rank as traces write it: `load` reads the same load from it.
pub fn traced_cost(program: &Program, rank: &RankProgram, op: &Op, costs: &impl Costs) -> workload::Cost {
    let cost = Query::of(program, rank, op).map_or_else(Cost::default, |query| costs.cost(&query));
    let Cost { time, load, .. } = cost;
    let need = Need {
        multiprocessor_bound: load.multiprocessor_bound,
        memory_bound: load.memory_bound,
        memory_traffic: load.communicating * load.traffic.memory,
        cores: load.cores,
        crowding: load.crowding,
    };
    workload::Cost { time: time.into(), need }
}

fn stream(task: &Task) -> Stream {
    match task.queue {
        Queue::Stream(stream) | Queue::Free(stream) => stream,
    }
}

fn activity(task: &Task) -> Activity {
    match task.does {
        Does::Compute(_) | Does::Operations(..) => Activity::Compute,
        Does::Copy(_) => match stream(task) {
            Stream::FromHost => Activity::Copy(CopyDirection::FromHost),
            _ => Activity::Copy(CopyDirection::ToHost),
        },
        Does::Host(_) => Activity::Host,
        Does::Collective(..) => Activity::Communication(Axis::Data),
        Does::Send(..) | Does::Receive(..) => Activity::Communication(Axis::Pipeline),
    }
}
