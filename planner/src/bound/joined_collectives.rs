//! The collectives that move state, however lowering joins those of neighbouring layers, and their times.

use std::collections::HashMap;
use trainwright_lower::{LayerParameters, StateSegments};
use trainwright_sim::costs::{Costs, Query, QueryWork};
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::plan::Plan;
use trainwright_spec::program::{Axis, CollectiveCall, Group, Op, Pass, Segment, State, Stream, Task, Work};
use trainwright_spec::units::{Bytes, Seconds};

/// A collective that moves state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct StateCollective {
    name: (&'static str, Pass),
    kind: CollectiveKind,
    axis: Axis,
    call: CollectiveCall,
    pub bytes: Bytes,
    stream: Stream,
}

impl StateCollective {
    fn of(op: &Op) -> Option<Self> {
        let Work::Collective { kind, axis, bytes, call } = op.work else { return None };
        Some(Self { name: (op.module, op.pass), kind, axis, call, bytes, stream: op.stream })
    }

    /// Whether lowering may join both.
    fn is_like(&self, other: &Self) -> bool {
        (self.name, self.kind, self.axis, self.call) == (other.name, other.kind, other.axis, other.call)
    }
}

/// The collectives of a segment that do one kind of task.
pub(super) fn collectives(segment: &Segment, does: impl Fn(&Task) -> bool) -> Vec<StateCollective> {
    segment.ops.iter().filter(|op| does(&op.task)).filter_map(StateCollective::of).collect()
}

/// The collectives of a segment that move one kind of state.
pub(super) fn of_state(segment: &Segment, wanted: State) -> Vec<StateCollective> {
    collectives(segment, |task| matches!(task, Task::Layers(state, _) if *state == wanted))
}

/// Times of collectives by the stream that they occupy.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct StreamTimes {
    /// On the data axis's stream.
    pub overlapped: Seconds,
    /// On the stream of the kernels.
    pub in_line: Seconds,
}

impl StreamTimes {
    pub fn total(self) -> Seconds {
        self.overlapped + self.in_line
    }

    pub fn plus(self, other: Self) -> Self {
        Self { overlapped: self.overlapped + other.overlapped, in_line: self.in_line + other.in_line }
    }

    pub fn elementwise_min(self, other: Self) -> Self {
        Self { overlapped: self.overlapped.min(other.overlapped), in_line: self.in_line.min(other.in_line) }
    }
}

/// A model's layers in order, as far as they differ in their parameters.
pub(super) struct LayerSequence {
    pub distinct: Vec<LayerParameters>,
    /// By layer of the model: which of those.
    order: Vec<usize>,
    /// The segments of each, alone.
    alone: Vec<StateSegments>,
    /// The segments of two neighbours, by what they are.
    pairs: HashMap<(usize, usize), StateSegments>,
}

impl LayerSequence {
    pub fn new(plan: &Plan, layers: &[LayerParameters]) -> Self {
        let mut distinct: Vec<LayerParameters> = Vec::new();
        let mut index = |layer: &LayerParameters| {
            distinct.iter().position(|known| known == layer).unwrap_or_else(|| {
                distinct.push(*layer);
                distinct.len() - 1
            })
        };
        let order: Vec<usize> = layers.iter().map(&mut index).collect();
        let alone = distinct.iter().map(|layer| StateSegments::of(plan, &[*layer])).collect();
        let mut pairs = HashMap::new();
        for pair in order.windows(2) {
            let both = || StateSegments::of(plan, &[distinct[pair[0]], distinct[pair[1]]]);
            pairs.entry((pair[0], pair[1])).or_insert_with(both);
        }
        Self { distinct, order, alone, pairs }
    }

    /// The least sum of the times of some collectives over all layers, however neighbours are joined that lowering joins.
    pub fn least(
        &self,
        of: &dyn Fn(&StateSegments) -> Vec<StateCollective>,
        times: &mut CollectiveTimes<impl Costs>,
    ) -> StreamTimes {
        let each: Vec<Vec<StateCollective>> = self.alone.iter().map(of).collect();
        if each.iter().all(Vec::is_empty) {
            return StreamTimes::default();
        }
        let joins: HashMap<(usize, usize), bool> = self
            .pairs
            .iter()
            .map(|(pair, both)| (*pair, of(both).len() < each[pair.0].len() + each[pair.1].len()))
            .collect();
        self.joined(&each, |one, other| joins[&(one, other)], times)
    }

    /// Their least sum, given the collectives of each distinct layer and which of them are joined: the shortest path over the layers
    /// whose edges are the runs of layers that may be joined. Nothing is assumed of how times grow with sizes.
    pub fn joined(
        &self,
        each: &[Vec<StateCollective>],
        joins: impl Fn(usize, usize) -> bool,
        times: &mut CollectiveTimes<impl Costs>,
    ) -> StreamTimes {
        if each.iter().all(Vec::is_empty) {
            return StreamTimes::default();
        }
        let mut best = vec![StreamTimes::default()];
        for end in 1..=self.order.len() {
            let mut joined: Vec<StateCollective> = Vec::new();
            let mut least: Option<StreamTimes> = None;
            for start in (0..end).rev() {
                for collective in &each[self.order[start]] {
                    match joined.iter_mut().find(|known| known.is_like(collective)) {
                        Some(known) => known.bytes += collective.bytes,
                        None => joined.push(*collective),
                    }
                }
                let time = best[start].plus(times.of(&joined));
                if least.is_none_or(|least| time.total() < least.total()) {
                    least = Some(time);
                }
                if start == 0 || !joins(self.order[start - 1], self.order[start]) {
                    break;
                }
            }
            best.push(least.expect("a run ends at every layer"));
        }
        best[self.order.len()]
    }
}

impl LayerSequence {
    /// The least time of the first layer's collectives, each joined with as many of the layers behind it as lowering may join.
    pub fn least_of_first(
        &self,
        of: &dyn Fn(&StateSegments) -> Vec<StateCollective>,
        times: &mut CollectiveTimes<impl Costs>,
    ) -> Seconds {
        let each: Vec<Vec<StateCollective>> = self.alone.iter().map(of).collect();
        let first = &each[self.order[0]];
        let mut joined = first.clone();
        let mut least = times.of(&joined).total();
        for pair in self.order.windows(2) {
            let (one, other) = (&each[pair[0]], &each[pair[1]]);
            if of(&self.pairs[&(pair[0], pair[1])]).len() == one.len() + other.len() {
                break;
            }
            for collective in other {
                if let Some(known) = joined.iter_mut().find(|known| known.is_like(collective)) {
                    known.bytes += collective.bytes;
                }
            }
            least = least.min(times.of(&joined).total());
        }
        least
    }
}

/// Times of a plan's collectives, each size looked up once.
pub(super) struct CollectiveTimes<'a, C> {
    plan: &'a Plan,
    costs: &'a C,
    /// By axis: a group on each kind of nodes.
    groups: HashMap<usize, Vec<Group>>,
    known: HashMap<(usize, CollectiveKind, CollectiveCall, &'static str, u64), Seconds>,
}

impl<'a, C: Costs> CollectiveTimes<'a, C> {
    pub fn new(plan: &'a Plan, costs: &'a C) -> Self {
        Self { plan, costs, groups: HashMap::new(), known: HashMap::new() }
    }

    fn of(&mut self, collectives: &[StateCollective]) -> StreamTimes {
        let mut times = StreamTimes::default();
        for collective in collectives {
            let time = self.of_one(collective);
            match collective.stream {
                Stream::Data => times.overlapped += time,
                _ => times.in_line += time,
            }
        }
        times
    }

    /// On the nodes where it is fastest.
    fn of_one(&mut self, collective: &StateCollective) -> Seconds {
        let StateCollective { name, kind, axis, call, bytes, .. } = *collective;
        let key = (axis as usize, kind, call, name.0, bytes.get().to_bits());
        if let Some(time) = self.known.get(&key) {
            return *time;
        }
        let plan = self.plan;
        let groups = self.groups.entry(axis as usize).or_insert_with(|| {
            let firsts = (0..=plan.cluster.others.len()).map(|kind| plan.cluster.first_of(kind));
            firsts.map(|rank| Group { axis, ranks: plan.mesh.group(rank, axis), members: vec![0] }).collect()
        });
        let on = |group: &Group| {
            let work = QueryWork::Collective { kind, bytes, call, group };
            self.costs.cost(&Query { rank: group.ranks[0], op: Some(name), work }).time
        };
        let time = groups.iter().map(on).reduce(Seconds::min).unwrap_or(Seconds::ZERO);
        self.known.insert(key, time);
        time
    }
}
