//! Execution traces of Chakra on the engine: the same queues, meetings and messages as a program's, from op lists that
//! anyone may have written.

use crate::costs::{Cost, Costs, Delivery, Query, QueryWork};
use crate::engine::{Graph, Load, OpId, Outcome, Timing, Traffic};
use crate::layout::{Layout, Takes, unsteady};
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
        /// Who waits.
        rank: usize,
        /// For whom.
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

/// Times of compute that a trace does not tell.
pub trait OperationCosts {
    /// How long so many operations over so much memory take a global rank.
    fn operations(&self, rank: usize, flops: Flops, memory: Bytes) -> Seconds;
}

/// What a workload does in time. A timeline's spans have the names of the traces' nodes; it has no memory, and every rank
/// is on the first stage.
///
/// # Errors
/// As `ReplayError` says.
pub fn replay(
    workload: &Workload,
    gpus: usize,
    costs: &(impl Costs + OperationCosts),
) -> Result<Timeline, ReplayError> {
    let concerned =
        workload.ranks.iter().map(|own| own.rank).chain(workload.groups.iter().flatten().copied());
    if let Some(rank) = concerned.max().filter(|rank| *rank >= gpus) {
        return Err(ReplayError::TooManyRanks { rank, gpus });
    }
    let mut built = Built::new(workload, costs)?;
    let jitter = costs.conditions().jitter;
    if !jitter.is_empty() {
        built.graph = unsteady(&built.graph, jitter, |op| {
            let (rank, task) = built.origins[op as usize];
            activity(&workload.ranks[rank].tasks[task])
        });
    }
    let outcome = built.graph.run().map_err(|deadlock| {
        let (rank, task) = built.origins[deadlock.first as usize];
        let own = &workload.ranks[rank];
        ReplayError::Deadlock { stuck: deadlock.stuck, rank: own.rank, name: own.tasks[task].name.clone() }
    })?;
    Ok(built.timeline(workload, &outcome))
}

struct Built {
    graph: Graph,
    /// Rank and task, both indices, of each op.
    origins: Vec<(usize, usize)>,
}

/// What a task takes.
struct Priced {
    time: Picoseconds,
    load: Load,
    delivery: Option<Delivery>,
}

/// What a task of a global rank takes: the trace's time and needs, or the costs of what it communicates.
fn priced(task: &Task, rank: usize, groups: &[Group], costs: &(impl Costs + OperationCosts)) -> Priced {
    let traced = |time, load| Priced { time, load, delivery: None };
    let ask = |work| {
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
        Does::Collective(kind, bytes, group) => {
            ask(QueryWork::Collective { kind, bytes, group: &groups[group] })
        }
        Does::Send(to, _, bytes) => {
            let blocking = !matches!(task.queue, Queue::Stream(Stream::Send) | Queue::Free(_));
            ask(QueryWork::Message { bytes, to, blocking })
        }
        Does::Receive(..) => traced(Picoseconds::ZERO, Load::default()),
    }
}

/// Sender, receiver and tag of messages.
type Line = (usize, usize, i64);

impl Built {
    fn new(workload: &Workload, costs: &(impl Costs + OperationCosts)) -> Result<Built, ReplayError> {
        let index_of: BTreeMap<usize, usize> =
            workload.ranks.iter().enumerate().map(|(index, own)| (own.rank, index)).collect();
        let groups: Vec<Group> = workload
            .groups
            .iter()
            .map(|ranks| Group {
                // Costs do not ask which axis it is.
                axis: Axis::Data,
                ranks: ranks.clone(),
                members: ranks.iter().filter_map(|rank| index_of.get(rank).copied()).collect(),
            })
            .collect();
        let ranks = workload.ranks.iter().map(|own| own.rank);
        let mut layout = Layout::new(Graph::default(), ranks, groups.len(), costs);
        let mut origins = Vec::new();
        let mut sends: BTreeMap<Line, VecDeque<OpId>> = BTreeMap::new();
        let mut receives: Vec<(OpId, Line)> = Vec::new();
        for (index, own) in workload.ranks.iter().enumerate() {
            let mut queues: BTreeMap<Stream, u32> = BTreeMap::new();
            let mut met = vec![0; groups.len()];
            let mut added: Vec<OpId> = Vec::with_capacity(own.tasks.len());
            for (number, task) in own.tasks.iter().enumerate() {
                let Priced { time, load, delivery } = priced(task, own.rank, &groups, costs);
                let (takes, timing) = match task.does {
                    Does::Collective(_, _, group) if groups[group].members.len() > 1 => {
                        let members = groups[group].members.len();
                        (Takes::Meeting, layout.meet(group, &mut met[group], members, time))
                    }
                    Does::Send(to, ..) => (Takes::Message(index_of.get(&to).copied()), Timing::Takes(time)),
                    _ => (Takes::Local, Timing::Takes(time)),
                };
                let uses = layout.uses(index, load, takes);
                let graph = &mut layout.graph;
                let queue = match task.queue {
                    Queue::Stream(stream) => *queues.entry(stream).or_insert_with(|| graph.add_queue()),
                    Queue::Free(_) => graph.add_queue(),
                };
                let before = graph.last_of(queue);
                let op = graph.add(queue, timing);
                graph.set_uses(op, uses);
                origins.push((index, number));
                task.after.iter().for_each(|earlier| graph.wait(op, added[*earlier]));
                added.push(op);
                match task.does {
                    Does::Send(to, tag, _) => {
                        let receiver = index_of.get(&to);
                        let last = match (delivery, receiver) {
                            (Some(delivery), Some(receiver)) => {
                                origins.push((index, number));
                                let queue =
                                    *queues.entry(Stream::Send).or_insert_with(|| layout.graph.add_queue());
                                let earlier = task.after.iter().map(|earlier| added[*earlier]);
                                layout.deliver(queue, [index, *receiver], delivery, earlier.chain(before))
                            }
                            _ => op,
                        };
                        sends.entry((own.rank, to, tag)).or_default().push_back(last);
                    }
                    Does::Receive(from, tag) => receives.push((op, (from, own.rank, tag))),
                    _ => {}
                }
            }
        }
        let mut built = Built { graph: layout.graph, origins };
        for (receive, line) in receives {
            let send = sends.get_mut(&line).and_then(VecDeque::pop_front);
            // What a rank sends that has no trace is there at once.
            let Some(send) = send else {
                if !index_of.contains_key(&line.0) {
                    continue;
                }
                let (rank, task) = built.origins[receive as usize];
                let own = &workload.ranks[rank];
                let name = own.tasks[task].name.clone();
                return Err(ReplayError::NoSend { rank: own.rank, from: line.0, tag: line.2, name });
            };
            built.graph.set_timing(receive, Timing::EndsWith(send));
        }
        Ok(built)
    }

    fn timeline(&self, workload: &Workload, outcome: &Outcome) -> Timeline {
        let tracks = workload.ranks.iter().map(|own| RankTrack {
            rank: own.rank,
            stands_for: own.stands_for,
            pipeline_rank: 0,
        });
        let mut labels: Vec<String> = Vec::new();
        let mut known: BTreeMap<&str, u32> = BTreeMap::new();
        let mut spans = Vec::new();
        for (op, (rank, number)) in self.origins.iter().enumerate() {
            let task = &workload.ranks[*rank].tasks[*number];
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

/// What a trace says of an op of a program's rank: `load` makes the same load of it.
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
