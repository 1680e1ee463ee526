//! The layers' costs of every layout, each distinct one computed by lowering and timing its segments when it is first asked
//! for.

use super::joint_passes::{hide_collectives, hide_exchanges};
use super::layer_cost::{LayerCost, ModelCost, UpdateProducts};
use crate::candidate::Candidate;
use crate::question::Question;
use crate::space::recompute_choices;
use std::collections::BTreeMap;
use std::sync::OnceLock;
use trainwright_lower::{Frozen, MatrixCall, StageCost};
use trainwright_sim::costs::{Costs, Query, QueryWork};
use trainwright_sim::{Deadlock, step_time};
use trainwright_spec::mesh::{Mesh, RankOrder};
use trainwright_spec::plan::{Plan, Recompute};
use trainwright_spec::precision::Precision;
use trainwright_spec::program::{
    Axis, Call, Group, Kernel, Op, Pass, Program, RankProgram, Segment, Stream, Work,
};
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

/// The layers' costs of every layout, once they were asked for.
pub(crate) struct LayoutCosts(BTreeMap<Key, CostsOfKey>);

/// The costs of layouts with the same key.
struct CostsOfKey {
    /// The first of them.
    first: Candidate,
    blocks: OnceLock<Result<Vec<Seconds>, Deadlock>>,
    layers: OnceLock<Result<Alternatives, Deadlock>>,
}

/// The costs of one layout in the two ways in which passes may run.
pub(super) struct Alternatives {
    /// Each by itself.
    alone: ByKind,
    /// With another one that hides exchanges of tokens; `None` if the question has no such passes.
    joint: Option<ByKind>,
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
        let on = |kind: usize| model_costs(question, candidate, costs, kind, may_join);
        let kinds = (0..=question.cluster.others.len()).map(on).collect::<Result<Vec<_>, Deadlock>>()?;
        let (alone, joint): (Vec<ModelCost>, Vec<Option<ModelCost>>) = kinds.into_iter().unzip();
        let joint = joint.into_iter().collect::<Option<Vec<ModelCost>>>();
        Ok(Self { alone: ByKind::of(alone), joint: joint.map(ByKind::of) })
    }

    /// The costs of passes that may hide each other's communication, if `joint`.
    pub fn of_passes(&self, joint: bool) -> &ByKind {
        self.joint.as_ref().filter(|_| joint).unwrap_or(&self.alone)
    }
}

impl LayoutCosts {
    /// Place for the costs of these layouts.
    pub fn new(layouts: &[Candidate]) -> Self {
        let mut costs = BTreeMap::new();
        for layout in layouts {
            let new = || CostsOfKey { first: *layout, blocks: OnceLock::new(), layers: OnceLock::new() };
            costs.entry(key(layout)).or_insert_with(new);
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
        let CostsOfKey { first, layers, .. } = &self.0[&key(candidate)];
        layers.get_or_init(|| compute(first)).as_ref().map_err(Clone::clone)
    }

    /// The least times of a candidate's blocks by run, likewise.
    ///
    /// # Errors
    /// Those of `compute`.
    pub(super) fn blocks_or(
        &self,
        candidate: &Candidate,
        compute: impl FnOnce(&Candidate) -> Result<Vec<Seconds>, Deadlock>,
    ) -> Result<&[Seconds], Deadlock> {
        let CostsOfKey { first, blocks, .. } = &self.0[&key(candidate)];
        blocks.get_or_init(|| compute(first)).as_deref().map_err(Clone::clone)
    }
}

/// By run of the model, what a block takes at least in a candidate's layout: a small part of what all its costs are made of.
///
/// No recomputation makes a block faster, as a test holds of every model.
///
/// # Errors
/// `Deadlock` if a block's ops wait for each other.
pub(super) fn least_block_times(
    question: &Question,
    candidate: &Candidate,
    may_join: bool,
    costs: &impl Costs,
) -> Result<Vec<Seconds>, Deadlock> {
    let plan = candidate.plan(question, Vec::new());
    let mut choices = recompute_choices(question);
    if choices.contains(&Recompute::None) {
        choices = vec![Recompute::None];
    }
    let mut least = vec![Seconds::new(f64::INFINITY); question.model.blocks.len()];
    for kind in 0..=question.cluster.others.len() {
        let mut timer = PassTimer { costs, rank: question.cluster.first_of(kind), groups: BTreeMap::new() };
        for (run, least) in question.model.blocks.iter().zip(&mut least) {
            for choice in &choices {
                let StageCost { forward, backward, input, .. } =
                    StageCost::of_block(&plan, &run.block, *choice);
                let time = match may_join {
                    true => {
                        let segments =
                            [forward, backward, input].map(|segment| timer.program(&plan, segment));
                        let [_, PassCosts { forward, backward, .. }] = timer.passes(segments, true)?;
                        forward + backward
                    }
                    false => {
                        let [forward, backward] =
                            [forward, backward].map(|segment| timer.program(&plan, segment));
                        timer.time(&forward)? + timer.time(&backward)?
                    }
                };
                *least = least.min(time);
            }
        }
    }
    Ok(least)
}

/// The costs of passes by themselves on a kind of node, and of joint ones if there may be some.
fn model_costs(
    question: &Question,
    candidate: &Candidate,
    costs: &impl Costs,
    kind: usize,
    may_join: bool,
) -> Result<(ModelCost, Option<ModelCost>), Deadlock> {
    let mut plan = candidate.plan(question, Vec::new());
    let mut times = PassTimer { costs, rank: question.cluster.first_of(kind), groups: BTreeMap::new() };
    let mut cost = |plan: &Plan, stage: StageCost| -> Result<[LayerCost; 2], Deadlock> {
        let routed = if plan.mesh.experts_apart() { stage.routed } else { 0 };
        let StageCost { forward, backward, input, kept, between, peak, parameters, .. } = stage;
        let (mut matrices, mut frozen) = (stage.matrices, stage.frozen);
        let mut products = times.products(&stage.products);
        if !plan.mesh.experts_apart() {
            matrices = [matrices.iter().sum(), 0];
            products.flops = [products.flops.iter().sum(), 0.0];
            frozen = Frozen { dense: frozen.dense + frozen.routed, routed: 0 };
        }
        let segments = [forward, backward, input].map(|segment| times.program(plan, segment));
        let ways = times.passes(segments, may_join)?;
        Ok(ways.map(|PassCosts { forward, backward, input, exchanged }| LayerCost {
            time: forward + backward,
            forward,
            input,
            exchanged,
            kept,
            between,
            peak,
            parameters,
            routed,
            matrices,
            products,
            frozen,
        }))
    };
    let choices = recompute_choices(question);
    let mut blocks: [Vec<Vec<LayerCost>>; 2] = Default::default();
    for run in &question.model.blocks {
        let of_choice = |choice: &Recompute| cost(&plan, StageCost::of_block(&plan, &run.block, *choice));
        let of_choices = choices.iter().map(of_choice).collect::<Result<Vec<_>, Deadlock>>()?;
        for (way, blocks) in blocks.iter_mut().enumerate() {
            blocks.push(of_choices.iter().map(|costs| costs[way]).collect());
        }
    }
    let embedding = cost(&plan, StageCost::of_embedding(&plan))?;
    let head = cost(&plan, StageCost::of_head(&plan))?;
    plan.mesh.pipeline = 1;
    let StageCost { parameters, frozen, .. } = StageCost::of_head(&plan);
    let mut ways = blocks.into_iter().zip(embedding).zip(head).map(|((blocks, embedding), head)| ModelCost {
        blocks,
        embedding,
        head,
        head_with_embedding: LayerCost { parameters, frozen, ..head },
    });
    let alone = ways.next().expect("there are two ways");
    Ok((alone, ways.next().filter(|_| may_join)))
}

/// What the passes of a layer take.
#[derive(Clone, Copy)]
struct PassCosts {
    forward: Seconds,
    backward: Seconds,
    input: Seconds,
    exchanged: Seconds,
}

/// Times the passes of layers on a global rank that works by itself.
struct PassTimer<'a, C> {
    costs: &'a C,
    rank: usize,
    /// Its groups that are known.
    groups: BTreeMap<Axis, Group>,
}

impl<C: Costs> PassTimer<'_, C> {
    /// Forward, backward and the first half of backward, by themselves; and what they take at least jointly with others, if they
    /// may.
    fn passes(&self, segments: [Program; 3], may_join: bool) -> Result<[PassCosts; 2], Deadlock> {
        let time = |program: &Program| self.time(program);
        let [mut forward, mut backward, mut input] = segments;
        let whole = time(&backward)?;
        let alone = PassCosts {
            forward: time(&forward)?,
            backward: whole,
            input: time(&input)?.min(whole),
            exchanged: Seconds::ZERO,
        };
        if !may_join {
            return Ok([alone; 2]);
        }
        let exchanged = self.in_layers(&forward) + self.in_layers(&backward);
        let mut without = |hide: fn(&mut Segment)| -> Result<[Seconds; 3], Deadlock> {
            let all = [&mut forward, &mut backward, &mut input];
            let timed = all.map(|program| {
                hide(&mut program.segments[0]);
                time(program)
            });
            let [forward, backward, input] = timed;
            Ok([forward?, backward?, input?])
        };
        let [forward, whole, input] = without(hide_exchanges)?;
        let [_, kernels, kernels_of_input] = without(hide_collectives)?;
        // What is between two kernels of the whole pass may be at an end of a half, where another pass hides it.
        let halves = input + (kernels - kernels_of_input).max(Seconds::ZERO);
        let backward = whole.min(halves);
        Ok([alone, PassCosts { forward, backward, input: input.min(backward), exchanged }])
    }

    /// The FLOPs of these calls with dense weights and with routed experts, and the least time of one, however many of the products
    /// of a call run at once.
    fn products(&self, calls: &[Vec<MatrixCall>; 2]) -> UpdateProducts {
        let of_call = |call: &MatrixCall| {
            let Kernel::Gemm { count: all, m, n, k, precision, adds_to } = call.kernel else {
                return UpdateProducts::default();
            };
            let flops = 2.0 * m as f64 * n as f64 * k as f64;
            let of_flop = |count: usize| {
                let kernel = Kernel::Gemm { count, m, n, k, precision, adds_to };
                let op = Some(("matrices", Pass::Update));
                let query = Query { rank: self.rank, op, work: QueryWork::Kernel(&kernel) };
                self.costs.cost(&query).time / (count as f64 * flops)
            };
            let least = (1..=all).map(of_flop).reduce(Seconds::min);
            UpdateProducts {
                flops: [call.calls as f64 * all as f64 * flops, 0.0],
                of_flop: least.unwrap_or(UpdateProducts::default().of_flop),
            }
        };
        let [dense, routed] = calls
            .each_ref()
            .map(|calls| calls.iter().map(of_call).fold(UpdateProducts::default(), UpdateProducts::plus));
        UpdateProducts {
            flops: [dense.flops[0], routed.flops[0]],
            of_flop: dense.of_flop.min(routed.of_flop),
        }
    }

    fn time(&self, program: &Program) -> Result<Seconds, Deadlock> {
        step_time(program, self.costs).map(Seconds::from)
    }

    /// The time of all collectives inside the layer.
    fn in_layers(&self, program: &Program) -> Seconds {
        let ops = program.segments[0].ops.iter();
        let collectives =
            ops.filter(|op| op.stream == Stream::Layer && matches!(op.work, Work::Collective { .. }));
        let queries = collectives.filter_map(|op| Query::of(program, &program.ranks[0], op));
        queries.map(|query| self.costs.cost(&query).time).sum()
    }

    /// A segment as all that the rank runs.
    fn program(&mut self, plan: &Plan, segment: Segment) -> Program {
        let uses = |axis: Axis| {
            let on = |op: &Op| matches!(&op.work, Work::Collective { axis: used, .. } if *used == axis);
            segment.ops.iter().any(on)
        };
        let mut groups = Vec::new();
        let group_of = Axis::ALL.map(|axis| {
            (uses(axis) && plan.mesh.size(axis) > 1).then(|| {
                let group = || Group { axis, ranks: plan.mesh.group(self.rank, axis), members: vec![0] };
                groups.push(self.groups.entry(axis).or_insert_with(group).clone());
                groups.len() - 1
            })
        });
        Program {
            segments: vec![segment],
            stages: Vec::new(),
            ranks: vec![RankProgram {
                rank: self.rank,
                stands_for: plan.mesh.ranks(),
                pipeline_rank: 0,
                pipeline: vec![0],
                groups: group_of,
                resident: Vec::new(),
                calls: vec![Call { segment: 0, action: None, joint: false }],
            }],
            groups,
        }
    }
}
