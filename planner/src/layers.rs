//! What a model's layers cost on one rank: the numbers that bounds and partitions are made of.

use crate::bound::enough_microbatches;
use crate::bound::order::{Blocks, OrderBound, Parts};
use crate::bound::state::{Sent, SentKey};
use crate::candidate::Candidate;
use crate::question::Question;
use crate::space::recompute_choices;
use crate::stages::InFlight;
use rayon::prelude::*;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use trainwright_sim::costs::Costs;
use trainwright_sim::{Deadlock, step_time};
use trainwright_spec::lower::StageCost;
use trainwright_spec::mesh::{Mesh, RankOrder};
use trainwright_spec::plan::Plan;
use trainwright_spec::precision::Precision;
use trainwright_spec::program::{Axis, Call, Group, Op, Program, RankProgram, Segment, Work};
use trainwright_spec::schedule::{
    Action, ActionKind, ActionLists, PipelineShape, SCHEDULES, Schedule, schedule,
};
use trainwright_spec::units::{Bytes, Seconds};

/// One layer on one rank, for one microbatch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LayerCost {
    /// Forward and backward.
    pub time: Seconds,
    /// Forward alone.
    pub forward: Seconds,
    /// The half of backward that makes the input's gradient, where it runs in halves; the other half takes the rest or
    /// more.
    pub input: Seconds,
    /// Activations kept in between.
    pub kept: Bytes,
    /// What is held between the halves of backward, where it runs in halves.
    pub between: Bytes,
    /// What backward holds beyond them.
    pub peak: Bytes,
    /// Parameters.
    pub parameters: u64,
    /// Those of them that other ranks hold than the rest: routed experts'.
    pub apart: u64,
}

/// The layers of a model in one layout.
#[derive(Debug, Clone)]
pub(crate) struct ModelCost {
    /// By run of the model, then by recompute choice in the order of `recompute_choices`.
    pub blocks: Vec<Vec<LayerCost>>,
    /// What stands before the blocks.
    pub embedding: LayerCost,
    /// What stands after them, on another rank than the embedding if there are several.
    pub head: LayerCost,
    /// The same on the embedding's rank.
    pub head_beside: LayerCost,
}

impl LayerCost {
    /// What is less of each.
    fn min(&self, other: &Self) -> Self {
        Self {
            time: self.time.min(other.time),
            forward: self.forward.min(other.forward),
            input: self.input.min(other.input),
            ..*self
        }
    }
}

impl ModelCost {
    /// What is less of each layer.
    fn min(&self, other: &Self) -> Self {
        let blocks = self.blocks.iter().zip(&other.blocks);
        let choices = |(own, other): (&Vec<LayerCost>, &Vec<LayerCost>)| {
            own.iter().zip(other).map(|(own, other)| own.min(other)).collect()
        };
        Self {
            blocks: blocks.map(choices).collect(),
            embedding: self.embedding.min(&other.embedding),
            head: self.head.min(&other.head),
            head_beside: self.head_beside.min(&other.head_beside),
        }
    }

    /// All layers, a block for each recompute choice.
    fn layers(&self) -> impl Iterator<Item = &LayerCost> + Clone {
        self.blocks.iter().flatten().chain([&self.embedding, &self.head])
    }

    /// The least time of all layers of the model together.
    pub fn least_time(&self, question: &Question) -> Seconds {
        let runs = question.model.blocks.iter().zip(&self.blocks);
        let least = |costs: &[LayerCost]| costs.iter().map(|cost| cost.time).reduce(Seconds::min);
        let blocks: Seconds =
            runs.map(|(run, costs)| least(costs).unwrap_or(Seconds::ZERO) * run.count as f64).sum();
        blocks + self.embedding.time + self.head.time
    }

    /// Forward of all layers together.
    pub fn forward_time(&self, question: &Question) -> Seconds {
        let runs = question.model.blocks.iter().zip(&self.blocks);
        let blocks: Seconds = runs.map(|(run, costs)| costs[0].forward * run.count as f64).sum();
        blocks + self.embedding.forward + self.head.forward
    }

    /// The head as a candidate has it.
    pub fn head_of(&self, candidate: &Candidate) -> &LayerCost {
        let (schedule, shape) =
            (candidate.schedule(), PipelineShape { microbatches: 1, ..candidate.shape(1) });
        let last = shape.stages() - 1;
        match schedule.rank_of(0, shape) == schedule.rank_of(last, shape) {
            true => &self.head_beside,
            false => &self.head,
        }
    }

    /// Parameters of all layers together, a tied embedding once.
    pub fn parameters(&self, question: &Question) -> Parameters {
        let runs = question.model.blocks.iter().zip(&self.blocks);
        let blocks = runs.map(|(run, costs)| (run.count as f64, &costs[0]));
        let ends = [(1.0, &self.embedding), (1.0, &self.head_beside)];
        blocks.chain(ends).fold(Parameters::default(), |sum, (count, cost)| {
            let own = Parameters::of(cost);
            Parameters { dense: sum.dense + count * own.dense, apart: sum.apart + count * own.apart }
        })
    }
}

/// Parameters of a rank, or of all pipeline ranks.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Parameters {
    /// Those that the ranks of the data axis have in common.
    pub dense: f64,
    /// Routed experts' where other ranks have those in common.
    pub apart: f64,
}

impl Parameters {
    /// Those of a layer.
    pub fn of(layer: &LayerCost) -> Self {
        Self { dense: (layer.parameters - layer.apart) as f64, apart: layer.apart as f64 }
    }
}

/// What kind of pipeline a schedule makes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    /// Whether backward runs in halves.
    pub halves: bool,
    /// Copies of every stage.
    pub copies: usize,
    /// Whether a step begins and ends with an empty pipeline that is filled from the first rank on.
    pub ramps: bool,
}

impl Kind {
    fn of(schedule: &dyn Schedule) -> Self {
        let sizes = [(2, 1), (2, 2), (4, 1), (4, 2)].into_iter();
        let shapes = sizes.flat_map(|(ranks, virtual_stages)| {
            [1, 2, 4].map(|times| PipelineShape { ranks, virtual_stages, microbatches: times * ranks })
        });
        let input = |action: &Action| action.kind == ActionKind::Input;
        let halves = shapes
            .filter(|shape| schedule.check(*shape).is_ok())
            .any(|shape| schedule.lists(shape).ranks.iter().flatten().any(input));
        let copies = schedule.copies();
        Self { halves, copies, ramps: copies == 1 && schedule.flushes() }
    }
}

/// What the mean of a schedule's paths is made for.
type OrderKey = (&'static str, PipelineShape, Parts);

/// What layer costs depend on: a layout whose data axis has no bearing, and whose pipeline only has if there is one.
type Key = (Mesh, usize, bool, &'static str, &'static str, &'static str, Precision);

fn key(candidate: &Candidate) -> Key {
    let Candidate { mesh, micro_batch, sequence_parallel, precision, .. } = *candidate;
    // Experts beyond such a block lie as far apart as there are stages between.
    let block = mesh.tensor * mesh.context;
    let apart = mesh.order == RankOrder::DataLast && mesh.expert * mesh.expert_tensor() > block;
    let pipeline = if apart { mesh.pipeline } else { mesh.pipeline.min(2) };
    let order = if apart { mesh.order } else { RankOrder::default() };
    let mesh = Mesh { pipeline, data: 1, shard: None, order, ..mesh };
    let Candidate { tensor_scheme, context_scheme, dispatcher, .. } = *candidate;
    (mesh, micro_batch, sequence_parallel, tensor_scheme, context_scheme, dispatcher, precision)
}

/// The costs of one layout.
struct OnKinds {
    /// By kind of node.
    kinds: Vec<ModelCost>,
    /// Of each layer what is least on any kind.
    least: ModelCost,
}

impl OnKinds {
    fn of(kinds: Vec<ModelCost>) -> Self {
        let least = kinds.iter().skip(1).fold(kinds[0].clone(), |least, other| least.min(other));
        Self { kinds, least }
    }
}

/// What many candidates have in common, each distinct part computed once: their layers' costs, and how many
/// microbatches their ranks hold.
pub(crate) struct LayerCosts {
    /// On each kind of nodes.
    models: BTreeMap<Key, OnKinds>,
    in_flight: Mutex<BTreeMap<(&'static str, PipelineShape), Arc<InFlight>>>,
    lists: Mutex<BTreeMap<(&'static str, PipelineShape), Arc<ActionLists>>>,
    orders: Mutex<BTreeMap<OrderKey, Arc<OrderBound>>>,
    sent: Mutex<HashMap<SentKey, Sent>>,
    kinds: BTreeMap<&'static str, Kind>,
    global_batch: usize,
}

impl LayerCosts {
    /// Computes what candidates with these layouts need.
    ///
    /// # Errors
    /// `Deadlock` if a layer's ops wait for each other.
    pub fn new<C: Costs + Sync>(
        question: &Question,
        layouts: &[Candidate],
        costs: &C,
    ) -> Result<Self, Deadlock> {
        Ok(Self::within(question, layouts, costs, &|| false)?.expect("there is no limit"))
    }

    /// The same; nothing if the time is up before.
    ///
    /// # Errors
    /// `Deadlock` if a layer's ops wait for each other.
    pub fn within<C: Costs + Sync>(
        question: &Question,
        layouts: &[Candidate],
        costs: &C,
        out_of_time: &(dyn Fn() -> bool + Sync),
    ) -> Result<Option<Self>, Deadlock> {
        let mut distinct: BTreeMap<Key, &Candidate> = BTreeMap::new();
        for layout in layouts {
            distinct.entry(key(layout)).or_insert(layout);
        }
        let compute = |(key, candidate)| match out_of_time() {
            true => Ok(None),
            false => {
                let on = |kind: usize| model_cost(question, candidate, costs, kind);
                let kinds = (0..=question.cluster.others.len()).map(on).collect::<Result<_, Deadlock>>()?;
                Ok(Some((key, OnKinds::of(kinds))))
            }
        };
        let computed: Result<Vec<Option<(Key, OnKinds)>>, Deadlock> =
            distinct.into_par_iter().map(compute).collect();
        let Some(models) = computed?.into_iter().collect() else { return Ok(None) };
        let global_batch = question.job.global_batch;
        let kinds = SCHEDULES.iter().map(|schedule| (schedule.name(), Kind::of(*schedule))).collect();
        let (in_flight, lists, orders) = (Mutex::default(), Mutex::default(), Mutex::default());
        Ok(Some(Self { models, in_flight, lists, orders, sent: Mutex::default(), kinds, global_batch }))
    }

    /// Whether two candidates have the same costs.
    pub fn are_alike(one: &Candidate, other: &Candidate) -> bool {
        key(one) == key(other)
    }

    /// The costs of a candidate whose layout was given to `new`; where nodes are of several kinds, no layer takes less on
    /// any of them.
    pub fn of(&self, candidate: &Candidate) -> &ModelCost {
        &self.models[&key(candidate)].least
    }

    /// The same by kind of node.
    pub fn by_kind(&self, candidate: &Candidate) -> &[ModelCost] {
        &self.models[&key(candidate)].kinds
    }

    /// The forward parts of a candidate's layers, on every kind of node.
    pub fn forward_parts(&self, candidate: &Candidate) -> impl Iterator<Item = f64> + Clone {
        let layers = self.by_kind(candidate).iter().flat_map(ModelCost::layers);
        layers.filter(|layer| layer.time > Seconds::ZERO).map(|layer| layer.forward / layer.time)
    }

    /// What kind of pipeline a candidate has.
    pub fn kind(&self, candidate: &Candidate) -> Kind {
        self.kinds[candidate.schedule]
    }

    /// A smaller number of microbatches with which a candidate's stages hold as many of them at their peaks, if there is
    /// one.
    pub fn shorter(&self, candidate: &Candidate) -> Option<usize> {
        let shape = candidate.shape(self.global_batch);
        let few = enough_microbatches(candidate, shape);
        let alike = || {
            let shorter = self.in_flight_of(candidate, PipelineShape { microbatches: few, ..shape });
            shorter.by_stage == self.in_flight(candidate).by_stage
        };
        (few < shape.microbatches && alike()).then_some(few)
    }

    /// What the ranks of a schedule do, pass by pass: no two passes joined.
    pub fn lists(&self, name: &'static str, shape: PipelineShape) -> Arc<ActionLists> {
        let known = || self.lists.lock().expect("no holder of the lock panics");
        if let Some(found) = known().get(&(name, shape)) {
            return found.clone();
        }
        let schedule = schedule(name).expect("candidates have schedules of the registry");
        let found: Arc<ActionLists> = Arc::new(schedule.lists(shape).ranks.into_iter().collect());
        known().insert((name, shape), found.clone());
        found
    }

    /// What the order of a schedule's passes costs, made for such blocks.
    pub fn order(&self, name: &'static str, shape: PipelineShape, blocks: &Blocks) -> Arc<OrderBound> {
        let parts = Parts::of(blocks.longest_run());
        let known = || self.orders.lock().expect("no holder of the lock panics");
        if let Some(found) = known().get(&(name, shape, parts)) {
            return found.clone();
        }
        let stages = shape.stages();
        let on_each = blocks.count() as f64 / stages as f64;
        let found = Arc::new(OrderBound::of(&self.lists(name, shape), stages, on_each, parts));
        known().insert((name, shape, parts), found.clone());
        found
    }

    /// What candidates send for their state that have a key in common.
    pub fn sent(&self, key: SentKey, find: impl FnOnce() -> Sent) -> Sent {
        let known = || self.sent.lock().expect("no holder of the lock panics");
        if let Some(found) = known().get(&key) {
            return *found;
        }
        let found = find();
        known().insert(key, found);
        found
    }

    /// Microbatches that the candidate's stages hold at their ranks' peaks.
    pub fn in_flight(&self, candidate: &Candidate) -> Arc<InFlight> {
        self.in_flight_of(candidate, candidate.shape(self.global_batch))
    }

    fn in_flight_of(&self, candidate: &Candidate, shape: PipelineShape) -> Arc<InFlight> {
        let known = || self.in_flight.lock().expect("no holder of the lock panics");
        let key = (candidate.schedule, shape);
        if let Some(found) = known().get(&key) {
            return found.clone();
        }
        let found = Arc::new(InFlight::of(candidate.schedule(), shape));
        known().insert(key, found.clone());
        found
    }
}

fn model_cost(
    question: &Question,
    candidate: &Candidate,
    costs: &impl Costs,
    kind: usize,
) -> Result<ModelCost, Deadlock> {
    let rank = question.cluster.first_of(kind);
    let mut plan = candidate.plan(question, Vec::new());
    let experts_apart = plan.mesh.experts_apart();
    let mut groups = BTreeMap::new();
    let mut cost = |plan: &Plan, stage: StageCost| {
        let mut time = |segment| segment_time(plan, segment, (rank, &mut groups), costs);
        let (forward, backward) = (time(stage.forward)?, time(stage.backward)?);
        let input = time(stage.input)?.min(backward);
        let time = forward + backward;
        let apart = if experts_apart { stage.routed } else { 0 };
        let StageCost { kept, between, peak, parameters, .. } = stage;
        Ok(LayerCost { time, forward, input, kept, between, peak, parameters, apart })
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
    let beside = StageCost::of_head(&plan);
    let head_beside = LayerCost { parameters: beside.parameters, ..head };
    Ok(ModelCost { blocks, embedding, head, head_beside })
}

/// How long a segment takes on a global rank that works by itself.
fn segment_time(
    plan: &Plan,
    segment: Segment,
    (rank, all): (usize, &mut BTreeMap<Axis, Group>),
    costs: &impl Costs,
) -> Result<Seconds, Deadlock> {
    let uses = |axis: Axis| {
        let on = |op: &Op| matches!(&op.work, Work::Collective { axis: own, .. } if *own == axis);
        segment.ops.iter().any(on)
    };
    let mut groups = Vec::new();
    let own = Axis::ALL.map(|axis| {
        (uses(axis) && plan.mesh.size(axis) > 1).then(|| {
            let group = || Group { axis, ranks: plan.mesh.group(rank, axis), members: vec![0] };
            groups.push(all.entry(axis).or_insert_with(group).clone());
            groups.len() - 1
        })
    });
    let program = Program {
        segments: vec![segment],
        ranks: vec![RankProgram {
            rank,
            stands_for: plan.mesh.ranks(),
            pipeline_rank: 0,
            pipeline: vec![0],
            groups: own,
            resident: Vec::new(),
            calls: vec![Call { segment: 0, action: None }],
        }],
        groups,
    };
    step_time(&program, costs).map(Seconds::from)
}
