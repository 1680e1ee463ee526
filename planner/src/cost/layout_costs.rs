//! The layers' costs of every layout, each distinct one computed by lowering and timing its segments when it is first asked
//! for.

use super::layer_cost::{LayerCost, ModelCost};
use crate::candidate::Candidate;
use crate::question::Question;
use crate::space::recompute_choices;
use std::collections::BTreeMap;
use std::sync::OnceLock;
use trainwright_lower::StageCost;
use trainwright_sim::costs::Costs;
use trainwright_sim::{Deadlock, step_time};
use trainwright_spec::mesh::{Mesh, RankOrder};
use trainwright_spec::plan::Plan;
use trainwright_spec::precision::Precision;
use trainwright_spec::program::{Axis, Call, Group, Op, Program, RankProgram, Segment, Work};
use trainwright_spec::units::Seconds;

/// What layer costs depend on: a layout whose data axis has no bearing, and whose pipeline only has if there is one.
type Key = (Mesh, usize, bool, &'static str, &'static str, &'static str, Precision);

fn key(candidate: &Candidate) -> Key {
    let Candidate { mesh, micro_batch, sequence_parallel, precision, .. } = *candidate;
    // Experts beyond this block lie as far apart as there are stages between.
    let block = mesh.tensor * mesh.context;
    let apart = mesh.order == RankOrder::DataLast && mesh.expert * mesh.expert_tensor() > block;
    let pipeline = if apart { mesh.pipeline } else { mesh.pipeline.min(2) };
    let order = if apart { mesh.order } else { RankOrder::default() };
    let mesh = Mesh { pipeline, data: 1, shard: None, order, ..mesh };
    let Candidate { tensor_scheme, context_scheme, dispatcher, .. } = *candidate;
    (mesh, micro_batch, sequence_parallel, tensor_scheme, context_scheme, dispatcher, precision)
}

/// The costs of one layout.
pub(super) struct ByKind {
    /// By kind of node.
    pub kinds: Vec<ModelCost>,
    /// Of each layer the least times on any kind.
    pub least: ModelCost,
}

impl ByKind {
    fn of(kinds: Vec<ModelCost>) -> Self {
        let least = kinds.iter().skip(1).fold(kinds[0].clone(), |least, other| least.elementwise_min(other));
        Self { kinds, least }
    }
}

/// The layers' costs of every layout, once they were asked for; each with the first layout that has them.
pub(crate) struct LayoutCosts(BTreeMap<Key, (Candidate, OnceLock<Result<Alternatives, Deadlock>>)>);

/// The costs of one layout in the two ways in which passes may run.
pub(super) struct Alternatives {
    /// Each by itself.
    alone: ByKind,
    /// With another one that hides all communication; `None` if the question has no such passes.
    hidden: Option<ByKind>,
}

impl Alternatives {
    /// Lowers and times the layers of a candidate's layout.
    ///
    /// # Errors
    /// `Deadlock` if a layer's ops wait for each other.
    pub fn new<C: Costs>(
        question: &Question,
        candidate: &Candidate,
        may_join: bool,
        costs: &C,
    ) -> Result<Self, Deadlock> {
        let by_kind = |hidden: bool| {
            let on = |kind: usize| model_cost(question, candidate, costs, kind, hidden);
            let kinds = (0..=question.cluster.others.len()).map(on).collect::<Result<_, Deadlock>>();
            kinds.map(ByKind::of)
        };
        let hidden = if may_join { Some(by_kind(true)?) } else { None };
        Ok(Self { alone: by_kind(false)?, hidden })
    }

    /// The costs of passes that may hide each other's communication, if `joint`.
    pub fn of_passes(&self, joint: bool) -> &ByKind {
        self.hidden.as_ref().filter(|_| joint).unwrap_or(&self.alone)
    }
}

impl LayoutCosts {
    /// Place for the costs of these layouts.
    pub fn new(layouts: &[Candidate]) -> Self {
        let mut costs = BTreeMap::new();
        for layout in layouts {
            costs.entry(key(layout)).or_insert_with(|| (*layout, OnceLock::new()));
        }
        Self(costs)
    }

    /// Whether two candidates have the same costs.
    pub fn are_alike(one: &Candidate, other: &Candidate) -> bool {
        key(one) == key(other)
    }

    /// The costs of a candidate whose layout is among them: those that are known, or what `compute` makes of the first layout
    /// that has the same, whichever layout is asked for first.
    ///
    /// # Errors
    /// Those of `compute`.
    pub(super) fn get_or(
        &self,
        candidate: &Candidate,
        compute: impl FnOnce(&Candidate) -> Result<Alternatives, Deadlock>,
    ) -> Result<&Alternatives, Deadlock> {
        let (first, costs) = &self.0[&key(candidate)];
        costs.get_or_init(|| compute(first)).as_ref().map_err(Clone::clone)
    }
}

fn model_cost(
    question: &Question,
    candidate: &Candidate,
    costs: &impl Costs,
    kind: usize,
    hidden: bool,
) -> Result<ModelCost, Deadlock> {
    let rank = question.cluster.first_of(kind);
    let mut plan = candidate.plan(question, Vec::new());
    let experts_apart = plan.mesh.experts_apart();
    let mut groups = BTreeMap::new();
    let mut cost = |plan: &Plan, stage: StageCost| {
        let mut time = |mut segment: Segment| {
            if hidden {
                hide_communication(&mut segment);
            }
            segment_time(plan, segment, (rank, &mut groups), costs)
        };
        let (forward, backward) = (time(stage.forward)?, time(stage.backward)?);
        let input = time(stage.input)?.min(backward);
        let time = forward + backward;
        let routed = if experts_apart { stage.routed } else { 0 };
        let StageCost { kept, between, peak, parameters, .. } = stage;
        Ok(LayerCost { time, forward, input, kept, between, peak, parameters, routed })
    };
    let choices = recompute_choices(question);
    let blocks = question.model.blocks.iter().map(|run| {
        let of_choice = |choice| cost(&plan, StageCost::of_block(&plan, &run.block, choice));
        choices.iter().copied().map(of_choice).collect()
    });
    let blocks = blocks.collect::<Result<_, Deadlock>>()?;
    let embedding = cost(&plan, StageCost::of_embedding(&plan))?;
    let head = cost(&plan, StageCost::of_head(&plan))?;
    plan.mesh.pipeline = 1;
    let with_embedding = StageCost::of_head(&plan);
    let head_with_embedding = LayerCost { parameters: with_embedding.parameters, ..head };
    Ok(ModelCost { blocks, embedding, head, head_with_embedding })
}

/// Lets communication take no time.
fn hide_communication(segment: &mut Segment) {
    for op in &mut segment.ops {
        if matches!(op.work, Work::Collective { .. }) {
            op.work = Work::Process(Seconds::ZERO);
        }
    }
}

/// How long a segment takes on a global rank that works by itself.
fn segment_time(
    plan: &Plan,
    segment: Segment,
    (rank, known): (usize, &mut BTreeMap<Axis, Group>),
    costs: &impl Costs,
) -> Result<Seconds, Deadlock> {
    let uses = |axis: Axis| {
        let on = |op: &Op| matches!(&op.work, Work::Collective { axis: used, .. } if *used == axis);
        segment.ops.iter().any(on)
    };
    let mut groups = Vec::new();
    let group_of = Axis::ALL.map(|axis| {
        (uses(axis) && plan.mesh.size(axis) > 1).then(|| {
            let group = || Group { axis, ranks: plan.mesh.group(rank, axis), members: vec![0] };
            groups.push(known.entry(axis).or_insert_with(group).clone());
            groups.len() - 1
        })
    });
    let program = Program {
        segments: vec![segment],
        stages: Vec::new(),
        ranks: vec![RankProgram {
            rank,
            stands_for: plan.mesh.ranks(),
            pipeline_rank: 0,
            pipeline: vec![0],
            groups: group_of,
            resident: Vec::new(),
            calls: vec![Call { segment: 0, action: None, joint: false }],
        }],
        groups,
    };
    step_time(&program, costs).map(Seconds::from)
}
