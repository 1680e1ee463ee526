//! Execution traces of Chakra on the engine: the same queues, meetings and messages as a program's, from op lists that
//! anyone may have written.

use crate::costs::Costs;
use crate::engine::{Graph, Load, OpId, Outcome, Timing, Traffic, Use};
use std::collections::{BTreeMap, VecDeque};
use thiserror::Error;
use trainwright_spec::program::{Axis, CopyDirection, Group, Pass, Stream};
use trainwright_spec::units::{Bytes, Flops, Picoseconds, Seconds};
use trainwright_traces::chakra::Need;
use trainwright_traces::chakra::workload::{Does, Queue, Task, Workload};
use trainwright_traces::timeline::{Activity, CallTrack, RankTrack, Span, Timeline};

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
    /// How long so many operations over so much memory take.
    fn operations(&self, flops: Flops, memory: Bytes) -> Seconds;
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
    let built = Built::new(workload, costs)?;
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
        let mut built = Built { graph: Graph::default(), origins: Vec::new() };
        let mut sends: BTreeMap<Line, VecDeque<OpId>> = BTreeMap::new();
        let mut receives: Vec<(OpId, Line)> = Vec::new();
        let mut meetings: Vec<Vec<u32>> = vec![Vec::new(); groups.len()];
        for (index, own) in workload.ranks.iter().enumerate() {
            let mut queues: BTreeMap<Stream, u32> = BTreeMap::new();
            let mut met = vec![0; groups.len()];
            let mut added: Vec<OpId> = Vec::with_capacity(own.tasks.len());
            for (number, task) in own.tasks.iter().enumerate() {
                let mut uses = Vec::new();
                let mut uses_with = |load: Load| {
                    if !load.is_none() {
                        uses.push(Use { device: index as u32, load, thread: None });
                    }
                };
                let timing = match task.does {
                    Does::Compute(cost) | Does::Copy(cost) => {
                        uses_with(load(cost.need));
                        Timing::Takes(cost.time)
                    }
                    Does::Operations(flops, memory) => Timing::Takes(costs.operations(flops, memory).into()),
                    Does::Host(time) => Timing::Takes(time),
                    Does::Collective(kind, bytes, group) => {
                        let time = costs.collective(kind, bytes, &groups[group]);
                        let traffic = costs.collective_traffic(kind, bytes, &groups[group], time);
                        uses_with(Load::communication(traffic));
                        let turn = met[group];
                        met[group] += 1;
                        let members = groups[group].members.len();
                        if turn == meetings[group].len() {
                            let meeting = built.graph.add_meeting(members);
                            meetings[group].push(meeting);
                        }
                        match members {
                            0 | 1 => Timing::Takes(time.into()),
                            _ => Timing::Meets(meetings[group][turn], time.into()),
                        }
                    }
                    Does::Send(to, _, bytes) => {
                        let time = costs.message(bytes, own.rank, to);
                        let traffic = costs.message_traffic(bytes, own.rank, to, time);
                        uses_with(Load::communication(traffic));
                        // Links are counted outwards.
                        let inwards = Load::communication(Traffic { inside: 0.0, between: 0.0, ..traffic });
                        if let (Some(receiver), false) = (index_of.get(&to), inwards.is_none()) {
                            uses.push(Use { device: *receiver as u32, load: inwards, thread: None });
                        }
                        Timing::Takes(time.into())
                    }
                    Does::Receive(..) => Timing::Takes(Picoseconds::ZERO),
                };
                let queue = match task.queue {
                    Queue::Stream(stream) => *queues.entry(stream).or_insert_with(|| built.graph.add_queue()),
                    Queue::Free(_) => built.graph.add_queue(),
                };
                let op = built.graph.add(queue, timing);
                let range = built.graph.add_uses(&uses);
                built.graph.set_uses(op, range);
                built.origins.push((index, number));
                task.after.iter().for_each(|earlier| built.graph.wait(op, added[*earlier]));
                added.push(op);
                match task.does {
                    Does::Send(to, tag, _) => {
                        sends.entry((own.rank, to, tag)).or_default().push_back(op);
                    }
                    Does::Receive(from, tag) => receives.push((op, (from, own.rank, tag))),
                    _ => {}
                }
            }
        }
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
    let Need { multiprocessor_bound, memory_bound, memory_traffic } = need;
    match memory_traffic > 0.0 {
        true => Load::communication(Traffic { memory: memory_traffic, ..Traffic::default() }),
        false => Load { multiprocessor_bound, memory_bound, ..Load::default() },
    }
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
