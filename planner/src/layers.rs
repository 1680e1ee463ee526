//! What a model's layers cost on one rank: the numbers that bounds and partitions are made of.

use crate::candidate::Candidate;
use crate::stages::InFlight;
use crate::verdict::Question;
use rayon::prelude::*;
use std::collections::BTreeMap;
use trainwright_sim::costs::Costs;
use trainwright_sim::{Deadlock, step_time};
use trainwright_spec::lower::StageCost;
use trainwright_spec::plan::{Plan, Recompute};
use trainwright_spec::program::{Axis, Call, Group, Program, RankProgram, Segment};
use trainwright_spec::schedule::{PipelineShape, schedule};
use trainwright_spec::units::{Bytes, Seconds};

/// One layer on one rank, for one microbatch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LayerCost {
    /// Forward and backward.
    pub time: Seconds,
    /// Activations kept in between.
    pub kept: Bytes,
    /// What backward holds beyond them.
    pub peak: Bytes,
    /// Parameters.
    pub parameters: u64,
}

/// The layers of a model under one tensor degree, microbatch and kind of sequence parallelism.
#[derive(Debug, Clone)]
pub(crate) struct ModelCost {
    /// By run of the model, then by recompute choice in the order of `choices`.
    pub blocks: Vec<Vec<LayerCost>>,
    /// What stands before the blocks.
    pub embedding: LayerCost,
    /// What stands after them.
    pub head: LayerCost,
}

impl ModelCost {
    /// The least time of all layers of the model together.
    pub fn least_time(&self, question: &Question) -> Seconds {
        let runs = question.model.blocks.iter().zip(&self.blocks);
        let least = |costs: &[LayerCost]| costs.iter().map(|cost| cost.time).reduce(Seconds::min);
        let blocks: Seconds =
            runs.map(|(run, costs)| least(costs).unwrap_or(Seconds::ZERO) * run.count as f64).sum();
        blocks + self.embedding.time + self.head.time
    }

    /// Parameters of all layers together.
    pub fn parameters(&self, question: &Question) -> f64 {
        let runs = question.model.blocks.iter().zip(&self.blocks);
        let blocks: f64 = runs.map(|(run, costs)| costs[0].parameters as f64 * run.count as f64).sum();
        blocks + (self.embedding.parameters + self.head.parameters) as f64
    }
}

/// The recompute choices that a question leaves open.
pub(crate) fn choices(question: &Question) -> Vec<Recompute> {
    match question.pins.recompute {
        Some(choice) => vec![choice],
        None => {
            let has =
                |choice: &Recompute| *choice != Recompute::Selective || question.stack.selective_recompute;
            Recompute::ALL.into_iter().filter(has).collect()
        }
    }
}

/// What layer costs depend on.
type Key = (usize, usize, bool, bool);

fn key(candidate: &Candidate) -> Key {
    let Candidate { mesh, micro_batch, sequence_parallel, .. } = *candidate;
    (mesh.tensor, micro_batch, sequence_parallel, mesh.pipeline > 1)
}

/// What many candidates have in common, each distinct part computed once: their layers' costs, and how many
/// microbatches their ranks hold.
pub(crate) struct LayerCosts {
    models: BTreeMap<Key, ModelCost>,
    in_flight: BTreeMap<(&'static str, PipelineShape), InFlight>,
    global_batch: usize,
}

impl LayerCosts {
    /// Computes what `candidates` need.
    ///
    /// # Errors
    /// `Deadlock` if a layer's ops wait for each other.
    pub fn new<C: Costs + Sync>(
        question: &Question,
        candidates: &[Candidate],
        costs: &C,
    ) -> Result<Self, Deadlock> {
        let distinct: BTreeMap<Key, &Candidate> =
            candidates.iter().map(|candidate| (key(candidate), candidate)).collect();
        let computed: Result<Vec<_>, Deadlock> = distinct
            .into_par_iter()
            .map(|(key, candidate)| Ok((key, model_cost(question, candidate, costs)?)))
            .collect();
        let global_batch = question.job.global_batch;
        let mut shapes: Vec<_> =
            candidates.iter().map(|candidate| (candidate.schedule, candidate.shape(global_batch))).collect();
        shapes.sort_unstable();
        shapes.dedup();
        let held = |(name, shape)| {
            let schedule = schedule(name).expect("candidates have schedules of the registry");
            ((name, shape), InFlight::of(schedule, shape))
        };
        let in_flight = shapes.into_par_iter().map(held).collect();
        Ok(Self { models: computed?.into_iter().collect(), in_flight, global_batch })
    }

    /// The costs of a candidate that was given to `new`.
    pub fn of(&self, candidate: &Candidate) -> &ModelCost {
        &self.models[&key(candidate)]
    }

    /// Microbatches that the candidate's stages hold at their ranks' peaks.
    pub fn in_flight(&self, candidate: &Candidate) -> &InFlight {
        &self.in_flight[&(candidate.schedule, candidate.shape(self.global_batch))]
    }
}

fn model_cost(question: &Question, candidate: &Candidate, costs: &impl Costs) -> Result<ModelCost, Deadlock> {
    let plan = candidate.plan(question, Vec::new());
    let cost = |stage: StageCost| {
        let time = segment_time(&plan, stage.forward, costs)? + segment_time(&plan, stage.backward, costs)?;
        Ok(LayerCost { time, kept: stage.kept, peak: stage.peak, parameters: stage.parameters })
    };
    let choices = choices(question);
    let blocks = question.model.blocks.iter().map(|run| {
        choices.iter().map(|choice| cost(StageCost::of_block(&plan, &run.block, *choice))).collect()
    });
    Ok(ModelCost {
        blocks: blocks.collect::<Result<_, Deadlock>>()?,
        embedding: cost(StageCost::of_embedding(&plan))?,
        head: cost(StageCost::of_head(&plan))?,
    })
}

/// How long a segment takes on a rank of its own.
fn segment_time(plan: &Plan, segment: Segment, costs: &impl Costs) -> Result<Seconds, Deadlock> {
    let mut groups = Vec::new();
    let own = Axis::ALL.map(|axis| {
        let ranks = plan.mesh.group(0, axis);
        (ranks.len() > 1).then(|| {
            groups.push(Group { axis, ranks, members: vec![0] });
            groups.len() - 1
        })
    });
    let program = Program {
        segments: vec![segment],
        ranks: vec![RankProgram {
            rank: 0,
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
