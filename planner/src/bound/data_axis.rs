//! What the data axis sends in the passes of a step at least, as lowering emits it.
//!
//! ```text
//! layers' parameters ── StateSegments::of ──► collectives of each layer ── least over all ways to join neighbours ──► seconds
//! ```

use super::joined_collectives::{CollectiveTimes, LayerSequence, StateCollective, collectives, of_state};
use crate::candidate::Candidate;
use crate::cost::{CostModel, LayerCost, SharedCache};
use trainwright_lower::{LayerParameters, StateSegments, update_segment};
use trainwright_sim::costs::Costs;
use trainwright_spec::mesh::{Mesh, RankOrder};
use trainwright_spec::plan::Plan;
use trainwright_spec::precision::Precision;
use trainwright_spec::program::{Axis, Segment, State, Task, UpdateStep};
use trainwright_spec::units::Seconds;

/// What a candidate's data axis sends in a step at least: sums over all layers of the model on all ranks that have one copy of it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Sent {
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
    /// What the first pass of the embedding waits for.
    pub first: Seconds,
    /// What reduces the embedding's gradient after its last backward, if the passes reduce gradients.
    pub tail: Seconds,
}

/// What `Sent` depends on, the question aside.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SentKey {
    mesh: Mesh,
    precision: Precision,
    tensor_scheme: &'static str,
    data_sharding: &'static str,
    offload: String,
    halves: bool,
    /// Whether the head is on the embedding's rank, where tied weights are one.
    ends_share_a_rank: bool,
}

/// What candidates send, by key.
pub(super) type KnownSent = SharedCache<SentKey, Sent>;

impl SentKey {
    fn of(candidate: &Candidate, halves: bool) -> Self {
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
            ends_share_a_rank: candidate.ends_share_a_rank(),
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
pub(super) fn sent_bound(model: &CostModel, sent: &Sent, candidate: &Candidate) -> Seconds {
    let (question, cost, kind) = (model.question, model.of(candidate), model.pipelines.kind(candidate));
    let shape = candidate.shape(question.job.global_batch);
    let (p, m) = (shape.ranks as f64, shape.microbatches as f64);
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
    /// What a candidate sends; nothing without ranks on the data axis.
    pub fn known(model: &CostModel, known: &KnownSent, candidate: &Candidate, plan: &Plan) -> Self {
        if ![Axis::Data, Axis::ExpertData].iter().any(|axis| plan.mesh.size(*axis) > 1) {
            return Self::default();
        }
        let halves = model.pipelines.kind(candidate).halves;
        known.get_or(SentKey::of(candidate, halves), || Self::of(model, candidate, plan))
    }

    fn of(model: &CostModel, candidate: &Candidate, plan: &Plan) -> Self {
        let (cost, kind) = (model.of(candidate), model.pipelines.kind(candidate));
        let parameters = |layer: &LayerCost| LayerParameters {
            dense: layer.parameters - layer.routed,
            routed: layer.routed,
            matrices: layer.matrices,
            frozen: layer.frozen,
        };
        let blocks = model.question.model.blocks.iter().zip(&cost.blocks);
        let blocks = blocks.flat_map(|(run, costs)| std::iter::repeat_n(parameters(&costs[0]), run.count));
        let ends = [&cost.embedding, cost.head_of(candidate)].map(parameters);
        let sequence: Vec<LayerParameters> = [ends[0]].into_iter().chain(blocks).chain([ends[1]]).collect();
        let sequence = LayerSequence::new(plan, &sequence);
        let mut times = CollectiveTimes::new(plan, &model.costs);

        // Of a pass the first variant is that of most microbatches, the second that of the last.
        let gathers = |pass: Pass| move |all: &StateSegments| of_state(&pass(all)[0], State::Weights);
        let reduces = |pass: Pass, variant: usize| {
            move |all: &StateSegments| of_state(&pass(all)[variant], State::Gradients)
        };
        let first_gather = |all: &StateSegments| of_state(&all.forward[1], State::Weights);
        let first = sequence.least_of_first(&first_gather, &mut times);
        let tail = sequence.least_of_first(&reduces(|all| &all.backward, 1), &mut times);
        let mut least = |of: &dyn Fn(&StateSegments) -> Vec<StateCollective>| sequence.least(of, &mut times);
        let forward = least(&gathers(|all| &all.forward));
        let mut gathered = least(&gathers(|all| &all.backward));
        let mut reduced = least(&reduces(|all| &all.backward, 0));
        let mut last = least(&reduces(|all| &all.backward, 1));
        if kind.halves {
            // A schedule of halves may run some passes whole.
            let halves = least(&gathers(|all| &all.input)).plus(least(&gathers(|all| &all.weight)));
            gathered = gathered.elementwise_min(halves);
            reduced = reduced.elementwise_min(least(&reduces(|all| &all.weight, 0)));
            last = last.elementwise_min(least(&reduces(|all| &all.weight, 1)));
        }
        let after = least_after(&sequence, plan, &mut times);
        let once = reduced.total() == Seconds::ZERO;
        let (last, last_in_line) = match after > Seconds::ZERO {
            true => (after, true),
            false => (last.total(), last.in_line > Seconds::ZERO),
        };
        Self {
            each: forward.overlapped + gathered.overlapped + reduced.overlapped,
            reduced: reduced.overlapped,
            in_line: forward.in_line + gathered.in_line + reduced.in_line,
            last: if once { last } else { Seconds::ZERO },
            last_in_line,
            first,
            tail,
        }
    }
}

/// The segments of a pass by variant.
type Pass = fn(&StateSegments) -> &[Segment; 2];

/// What an update reduces of gradients that were not reduced in the passes.
fn least_after(sequence: &LayerSequence, plan: &Plan, times: &mut CollectiveTimes<impl Costs>) -> Seconds {
    let reduces = |task: &Task| matches!(task, Task::Update(UpdateStep::ReduceGradients));
    let of = |layer: &LayerParameters| collectives(&update_segment(plan, *layer), reduces);
    let each: Vec<Vec<StateCollective>> = sequence.distinct.iter().map(of).collect();
    // One update reduces all that a rank has.
    sequence.joined(&each, |_, _| true, times).total()
}
