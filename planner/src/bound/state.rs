//! What state costs a step at least: what the data axis sends in the passes, and the update, both as lowering emits them.
//!
//! ```text
//! layers' parameters ── StateSegments::of ──► collectives of each layer ── least over all ways to join neighbours ──► seconds
//! mean parameters    ── update_segment    ──► kernels behind the last wait for other pipeline ranks              ──► seconds
//! ```

use crate::candidate::Candidate;
use crate::layers::{Kind, LayerCost, LayerCosts, Parameters};
use crate::question::Question;
use std::collections::HashMap;
use trainwright_sim::costs::{Costs, Query, QueryWork};
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::lower::{LayerParameters, StateSegments, update_segment};
use trainwright_spec::mesh::{Mesh, RankOrder};
use trainwright_spec::plan::Plan;
use trainwright_spec::precision::Precision;
use trainwright_spec::program::{Axis, Group, Op, Pass, Segment, State, Stream, Task, UpdateStep, Work};
use trainwright_spec::units::{Bytes, Seconds};

/// How much the size of an update grows from one look at its time to the next, where times are measured.
const GROWTH: f64 = 1.2;

/// A collective that moves state.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Move {
    name: (&'static str, Pass),
    kind: CollectiveKind,
    axis: Axis,
    bytes: Bytes,
    stream: Stream,
}

impl Move {
    fn of(op: &Op) -> Option<Self> {
        let Work::Collective { kind, axis, bytes } = op.work else { return None };
        Some(Self { name: (op.module, op.pass), kind, axis, bytes, stream: op.stream })
    }

    fn is_like(&self, other: &Self) -> bool {
        (self.name, self.kind, self.axis) == (other.name, other.kind, other.axis)
    }
}

/// The collectives of a segment that do one kind of task.
fn moves(segment: &Segment, does: impl Fn(&Task) -> bool) -> Vec<Move> {
    segment.ops.iter().filter(|op| does(&op.task)).filter_map(Move::of).collect()
}

fn of_state(segment: &Segment, wanted: State) -> Vec<Move> {
    moves(segment, |task| matches!(task, Task::Layers(state, _) if *state == wanted))
}

/// What a candidate's data axis sends in a step at least: sums over all layers of the model on all ranks that have one copy of it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Sent {
    /// In each microbatch, on the data axis's stream.
    each: Seconds,
    /// The part of that which reduces gradients.
    reduced: Seconds,
    /// In each microbatch, in line with the kernels.
    in_line: Seconds,
    /// Reductions of gradients that only the last backward carries.
    last: Seconds,
    /// Whether those are in line with the kernels, or behind them.
    last_in_line: bool,
}

/// What `Sent` depends on beside the question.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct SentKey {
    mesh: Mesh,
    precision: Precision,
    tensor_scheme: &'static str,
    data_sharding: &'static str,
    offload: String,
    halves: bool,
}

impl SentKey {
    pub fn of(candidate: &Candidate, halves: bool) -> Self {
        let pipeline = match candidate.mesh.order {
            RankOrder::PipelineLast => candidate.mesh.pipeline.min(2),
            RankOrder::DataLast => candidate.mesh.pipeline,
        };
        Self {
            mesh: Mesh { pipeline, ..candidate.mesh },
            precision: candidate.precision,
            tensor_scheme: candidate.tensor_scheme,
            data_sharding: candidate.data_sharding,
            offload: candidate.offload.in_words(),
            halves,
        }
    }
}

/// The least time that a step takes for what its data axis sends, but for the update behind it.
///
/// On the rank with the mean or more of all that is sent: T ≥ m S / p on the stream of the data axis, T ≥ m (W + S') / p in line with
/// kernels, T ≥ F + m R / p, since nothing is reduced before a microbatch has gone forward through all stages. Where gradients are
/// reduced once, with one stage per rank, T = ((m − 1) W + F + C) / p: the last backward begins after all other passes, and the
/// reduction does not end before it has begun and all its gradients are sent; in line with kernels ((m W) + C) / p.
///
/// p pipeline ranks, m microbatches of work W, F of it forward; S, S', R, C sums over all layers, see `Sent`.
pub(super) fn sent_bound(
    question: &Question,
    candidate: &Candidate,
    plan: &Plan,
    layers: &LayerCosts,
    costs: &impl Costs,
) -> Seconds {
    if ![Axis::Data, Axis::ExpertData].iter().any(|axis| plan.mesh.size(*axis) > 1) {
        return Seconds::ZERO;
    }
    let (cost, kind) = (layers.of(candidate), layers.kind(candidate));
    let shape = candidate.shape(question.job.global_batch);
    let (p, m) = (shape.ranks as f64, shape.microbatches as f64);
    let find = || Sent::of(question, candidate, plan, (layers, kind), costs);
    let sent = layers.sent(SentKey::of(candidate, kind.halves), find);
    let work = cost.least_time(question);
    let mut least = sent.each * (m / p);
    if sent.in_line > Seconds::ZERO {
        least = least.max((work + sent.in_line) * (m / p));
    }
    if sent.reduced > Seconds::ZERO && candidate.schedule().flushes() {
        least = least.max(sent.reduced * (m / p) + cost.forward_time(question));
    }
    if sent.last > Seconds::ZERO && shape.virtual_stages == 1 && kind.ramps {
        let before = match sent.last_in_line {
            true => work * m,
            false => work * (m - 1.0) + cost.forward_time(question),
        };
        least = least.max((before + sent.last) / p);
    }
    least
}

impl Sent {
    fn of(
        question: &Question,
        candidate: &Candidate,
        plan: &Plan,
        (layers, kind): (&LayerCosts, Kind),
        costs: &impl Costs,
    ) -> Self {
        let cost = layers.of(candidate);
        let parameters = |layer: &LayerCost| LayerParameters {
            dense: layer.parameters - layer.apart,
            routed: layer.apart,
        };
        let blocks = question.model.blocks.iter().zip(&cost.blocks);
        let blocks = blocks.flat_map(|(run, costs)| std::iter::repeat_n(parameters(&costs[0]), run.count));
        let ends = [&cost.embedding, cost.head_of(candidate)].map(parameters);
        let sequence: Vec<LayerParameters> = [ends[0]].into_iter().chain(blocks).chain([ends[1]]).collect();
        let sequence = Sequence::new(plan, &sequence);
        let mut times = Times { plan, costs, groups: HashMap::new(), known: HashMap::new() };
        let mut least = |of: &dyn Fn(&StateSegments) -> Vec<Move>| sequence.least(of, &mut times);

        let forward = least(&|own| of_state(&own.forward[0], State::Weights));
        let gathers = |part: fn(&StateSegments) -> &[Segment; 2]| {
            move |own: &StateSegments| of_state(&part(own)[0], State::Weights)
        };
        let reduces = |part: fn(&StateSegments) -> &[Segment; 2], variant: usize| {
            move |own: &StateSegments| of_state(&part(own)[variant], State::Gradients)
        };
        let whole = [least(&gathers(|own| &own.backward)), least(&reduces(|own| &own.backward, 0))];
        // A schedule of halves may run some passes whole.
        let backward = match kind.halves {
            false => whole,
            true => {
                let input = least(&gathers(|own| &own.input));
                let weight = [least(&gathers(|own| &own.weight)), least(&reduces(|own| &own.weight, 0))];
                [whole[0].min(input.plus(weight[0])), whole[1].min(weight[1])]
            }
        };
        let [gathered, reduced] = backward;
        let last = match kind.halves {
            false => least(&reduces(|own| &own.backward, 1)),
            true => {
                let whole = least(&reduces(|own| &own.backward, 1));
                whole.min(least(&reduces(|own| &own.weight, 1)))
            }
        };
        let behind = least_behind(&sequence, plan, &mut times);
        let once = reduced.total() == Seconds::ZERO;
        let (last, last_in_line) = match behind > Seconds::ZERO {
            true => (behind, true),
            false => (last.total(), last.in_line > Seconds::ZERO),
        };
        Self {
            each: forward.beside + gathered.beside + reduced.beside,
            reduced: reduced.beside,
            in_line: forward.in_line + gathered.in_line + reduced.in_line,
            last: if once { last } else { Seconds::ZERO },
            last_in_line,
        }
    }
}

/// What an update reduces of gradients that were not reduced in the passes.
fn least_behind(sequence: &Sequence, plan: &Plan, times: &mut Times<impl Costs>) -> Seconds {
    let reduces = |task: &Task| matches!(task, Task::Update(UpdateStep::ReduceGradients));
    let of = |layer: &LayerParameters| moves(&update_segment(plan, *layer), reduces);
    let each: Vec<Vec<Move>> = sequence.distinct.iter().map(of).collect();
    // One update reduces all that a rank has.
    sequence.joined(&each, |_, _| true, times).total()
}

/// Time on the data axis's stream and in line with kernels.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Lanes {
    beside: Seconds,
    in_line: Seconds,
}

impl Lanes {
    fn total(self) -> Seconds {
        self.beside + self.in_line
    }

    fn plus(self, other: Self) -> Self {
        Self { beside: self.beside + other.beside, in_line: self.in_line + other.in_line }
    }

    fn min(self, other: Self) -> Self {
        Self { beside: self.beside.min(other.beside), in_line: self.in_line.min(other.in_line) }
    }
}

/// A model's layers in order, as far as they differ in their parameters.
struct Sequence {
    distinct: Vec<LayerParameters>,
    /// By layer of the model: which of those.
    order: Vec<usize>,
    /// The segments of each, alone.
    alone: Vec<StateSegments>,
    /// The segments of two neighbours, by what they are.
    pairs: HashMap<(usize, usize), StateSegments>,
}

impl Sequence {
    fn new(plan: &Plan, layers: &[LayerParameters]) -> Self {
        let mut distinct: Vec<LayerParameters> = Vec::new();
        let mut place = |layer: &LayerParameters| {
            distinct.iter().position(|known| known == layer).unwrap_or_else(|| {
                distinct.push(*layer);
                distinct.len() - 1
            })
        };
        let order: Vec<usize> = layers.iter().map(&mut place).collect();
        let alone = distinct.iter().map(|layer| StateSegments::of(plan, &[*layer])).collect();
        let mut pairs = HashMap::new();
        for pair in order.windows(2) {
            let both = || StateSegments::of(plan, &[distinct[pair[0]], distinct[pair[1]]]);
            pairs.entry((pair[0], pair[1])).or_insert_with(both);
        }
        Self { distinct, order, alone, pairs }
    }

    /// The least sum of the times of some collectives over all layers, however neighbours are joined that lowering joins.
    fn least(&self, of: &dyn Fn(&StateSegments) -> Vec<Move>, times: &mut Times<impl Costs>) -> Lanes {
        let each: Vec<Vec<Move>> = self.alone.iter().map(of).collect();
        if each.iter().all(Vec::is_empty) {
            return Lanes::default();
        }
        let joins: HashMap<(usize, usize), bool> = self
            .pairs
            .iter()
            .map(|(pair, own)| (*pair, of(own).len() < each[pair.0].len() + each[pair.1].len()))
            .collect();
        self.joined(&each, |one, other| joins[&(one, other)], times)
    }

    /// The same, given the collectives of each distinct layer and which of them are joined: the shortest path over the layers
    /// whose edges are the runs of layers that may be joined. Nothing is assumed of how times grow with sizes.
    fn joined(
        &self,
        each: &[Vec<Move>],
        joins: impl Fn(usize, usize) -> bool,
        times: &mut Times<impl Costs>,
    ) -> Lanes {
        if each.iter().all(Vec::is_empty) {
            return Lanes::default();
        }
        let mut best = vec![Lanes::default()];
        for end in 1..=self.order.len() {
            let mut joined: Vec<Move> = Vec::new();
            let mut least: Option<Lanes> = None;
            for start in (0..end).rev() {
                for own in &each[self.order[start]] {
                    match joined.iter_mut().find(|known| known.is_like(own)) {
                        Some(known) => known.bytes += own.bytes,
                        None => joined.push(*own),
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

/// Times of a plan's collectives, each size looked up once.
struct Times<'a, C> {
    plan: &'a Plan,
    costs: &'a C,
    /// By axis: a group on each kind of nodes.
    groups: HashMap<usize, Vec<Group>>,
    known: HashMap<(usize, CollectiveKind, &'static str, u64), Seconds>,
}

impl<C: Costs> Times<'_, C> {
    fn of(&mut self, moves: &[Move]) -> Lanes {
        let mut lanes = Lanes::default();
        for own in moves {
            let time = self.of_one(own);
            match own.stream {
                Stream::Data => lanes.beside += time,
                _ => lanes.in_line += time,
            }
        }
        lanes
    }

    /// On the nodes where it is fastest.
    fn of_one(&mut self, own: &Move) -> Seconds {
        let Move { name, kind, axis, bytes, .. } = *own;
        let key = (axis as usize, kind, name.0, bytes.get().to_bits());
        if let Some(time) = self.known.get(&key) {
            return *time;
        }
        let plan = self.plan;
        let groups = self.groups.entry(axis as usize).or_insert_with(|| {
            let firsts = (0..=plan.cluster.others.len()).map(|kind| plan.cluster.first_of(kind));
            firsts.map(|rank| Group { axis, ranks: plan.mesh.group(rank, axis), members: vec![0] }).collect()
        });
        let on = |group: &Group| {
            let work = QueryWork::Collective { kind, bytes, group };
            self.costs.cost(&Query { rank: group.ranks[0], op: Some(name), work }).time
        };
        let time = groups.iter().map(on).reduce(Seconds::min).unwrap_or(Seconds::ZERO);
        self.known.insert(key, time);
        time
    }
}

/// The least time of what follows the last backward on some rank, given the parameters of all pipeline ranks.
///
/// A step ends at the earliest when the rank with the most parameters, at least the mean, has run what follows the last collective of
/// all pipeline ranks: before that it may wait for others, which have less to do. Without such a collective a rank may update while
/// others still run, and nothing is certain.
pub(crate) fn update_bound(plan: &Plan, parameters: Parameters, costs: &impl Costs) -> Seconds {
    let schedule = plan.schedule();
    if !schedule.flushes() {
        return Seconds::ZERO;
    }
    let share = schedule.copies() as f64 / plan.mesh.pipeline as f64;
    let of = |more: f64| {
        let own = |parameters: f64| (parameters * share * more) as u64;
        let own = LayerParameters { dense: own(parameters.dense), routed: own(parameters.apart) };
        update_time(plan, &update_segment(plan, own), costs)
    };
    // Times that were measured need not grow with the size: of all sizes that the fullest rank may have, the least.
    let measured = plan.cluster.kinds().any(|(_, node)| node.gpu.profile.is_some());
    let most = if measured { plan.mesh.pipeline as f64 } else { 1.0 };
    let sizes = std::iter::successors(Some(1.0), |more| Some(more * GROWTH)).take_while(|more| *more <= most);
    sizes.map(of).reduce(Seconds::min).unwrap_or(Seconds::ZERO)
}

/// The work of the GPU, or of its processors if that is more, behind the last collective of the pipeline axis.
fn update_time(plan: &Plan, segment: &Segment, costs: &impl Costs) -> Seconds {
    let meets = |op: &Op| matches!(op.work, Work::Collective { axis: Axis::Pipeline, .. });
    let first = match (plan.mesh.pipeline, segment.ops.iter().rposition(meets)) {
        (1, _) => 0,
        (_, Some(last)) => last + 1,
        (_, None) => return Seconds::ZERO,
    };
    let firsts = || (0..=plan.cluster.others.len()).map(|kind| plan.cluster.first_of(kind));
    let (mut gpu, mut host) = (Seconds::ZERO, Seconds::ZERO);
    for op in &segment.ops[first..] {
        let (work, sum) = match &op.work {
            Work::Compute(kernel) => (QueryWork::Kernel(kernel), &mut gpu),
            Work::HostUpdate(update) => (QueryWork::HostUpdate(update), &mut host),
            Work::Process(time) => (QueryWork::Process(*time), &mut gpu),
            _ => continue,
        };
        let on = |rank| costs.cost(&Query { rank, op: Some((op.module, op.pass)), work }).time;
        *sum += firsts().map(on).reduce(Seconds::min).unwrap_or(Seconds::ZERO);
    }
    gpu.max(host)
}
