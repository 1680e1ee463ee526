//! The bounds of a candidate, put together from those of its parts.

use super::activation_copies::copy_bound;
use super::activation_memory::exceeds_memory;
use super::data_axis::{KnownSent, Sent, sent_bound};
use super::longest_paths::Counts;
use super::message_path::MessagePath;
use super::ordered_work::{KnownOrders, OrderedWork, busiest_and_idlest, passes_bound};
use super::pipeline_work::{ROUNDING, layout_bound, pipeline_bound};
use super::rank_capacity::capacity_bound;
use super::stage_program::StageProgram;
use super::update_time::update_bound;
use super::whole_blocks::whole_blocks;
use crate::candidate::Candidate;
use crate::cost::CostModel;
use crate::space::recompute_choices;
use trainwright_lower::memory::fixed_overhead;
use trainwright_sim::Deadlock;
use trainwright_spec::plan::Plan;
use trainwright_spec::units::{Bytes, Seconds};

/// The lower bounds of a question's candidates. `plan` is always a plan with the candidate's choices.
pub(crate) struct LowerBounds<'a> {
    pub model: CostModel<'a>,
    orders: KnownOrders,
    sent: KnownSent,
}

impl<'a> LowerBounds<'a> {
    pub fn new(model: CostModel<'a>) -> Self {
        Self { model, orders: KnownOrders::default(), sent: KnownSent::default() }
    }

    /// A time that no step of a candidate with this layout is below.
    ///
    /// # Errors
    /// `Deadlock` if a block's ops wait for each other.
    pub fn layout(&self, layout: &Candidate) -> Result<Seconds, Deadlock> {
        Ok(layout_bound(self.model.question, layout, self.model.least_block_times(layout)?))
    }

    /// A time that no step of a candidate with this one's layout and pipeline is below, whatever its state.
    pub fn pipeline(&self, candidate: &Candidate) -> Seconds {
        pipeline_bound(&self.model, candidate) * (1.0 - ROUNDING)
    }

    /// What the passes of a step take at least in their order, in a candidate with this one's layout and pipeline; a time that
    /// reaches `most` is enough.
    pub fn passes_in_order(&self, candidate: &Candidate, plan: &Plan, most: Option<Seconds>) -> Seconds {
        let messages = MessagePath::of(&self.model, plan);
        let enough = |passes: Seconds| most.is_some_and(|most| passes * (1.0 - ROUNDING) >= most);
        let around = (&messages, Seconds::ZERO);
        let ordered = OrderedWork::of(&self.model, &self.orders, candidate, around, &enough);
        let in_order = ordered.map_or(Seconds::ZERO, |ordered| ordered.time(Seconds::ZERO, None));
        pipeline_bound(&self.model, candidate).max(in_order)
    }

    /// A time that no step of `candidate` is below, whichever partition and recomputation is chosen for it. `plan` has no
    /// stages yet.
    pub fn step(&self, candidate: &Candidate, plan: &Plan) -> Seconds {
        self.with_update(pipeline_bound(&self.model, candidate), candidate, plan)
    }

    /// That bound or a higher one, with the order of the passes, whole blocks, what memory forces ranks to compute again, messages
    /// and what the data axis sends; the first part of these that reaches `most` is enough.
    pub fn tight(&self, candidate: &Candidate, plan: &Plan, most: Option<Seconds>) -> Seconds {
        let model = &self.model;
        let update = self.update(candidate, plan);
        let step = |pipeline: Seconds| (pipeline + update) * (1.0 - ROUNDING);
        let enough = |bound: Seconds| most.is_some_and(|most| bound >= most);
        let state = Sent::known(model, &self.sent, candidate, plan);
        let sent = sent_bound(model, &state, candidate).max(copy_bound(model, candidate, plan));
        let bound = step(sent);
        if enough(bound) {
            return bound;
        }
        let around = around_passes(model, candidate, &state);
        let messages = MessagePath::of(model, plan);
        let is_enough = |in_order: Seconds| enough(step(in_order));
        let ordered = OrderedWork::of(model, &self.orders, candidate, (&messages, around), &is_enough);
        let in_order = ordered.as_ref().map_or(Seconds::ZERO, |ordered| ordered.time(Seconds::ZERO, None));
        let pipeline = pipeline_bound(model, candidate).max(in_order).max(sent);
        let bound = step(pipeline);
        if enough(bound) {
            return bound;
        }
        if exceeds_memory(model, candidate, plan) {
            return Seconds::new(f64::INFINITY);
        }
        let most = most.map(|most| most * (1.0 + ROUNDING) / (1.0 - ROUNDING) - update);
        step(capacity_bound(model, candidate, plan, (&messages, around, ordered.as_ref()), (pipeline, most)))
    }

    /// The same of whole blocks in the order of the passes, in what the ranks can hold: an integer program, which takes longer.
    pub fn whole_blocks(&self, candidate: &Candidate, plan: &Plan, most: Option<Seconds>) -> Seconds {
        let model = &self.model;
        let update = self.update(candidate, plan);
        let around = around_passes(model, candidate, &Sent::known(model, &self.sent, candidate, plan));
        let step = |passes: Seconds| (passes + around + update) * (1.0 - ROUNDING);
        let enough = |passes: Seconds| most.is_some_and(|most| step(passes) >= most);
        match self.stage_program(candidate, plan) {
            Some((program, paths)) => {
                step(Seconds::new(program.bound(paths, &|passes| enough(Seconds::new(passes)))))
            }
            None => Seconds::ZERO,
        }
    }

    /// How many blocks each stage has with each recompute choice where these passes take about least: parts of blocks, where a rank
    /// has several stages. `None` where that is not known.
    pub fn blocks_by_stage(&self, candidate: &Candidate, plan: &Plan) -> Option<Vec<Vec<f64>>> {
        let (program, paths) = self.stage_program(candidate, plan)?;
        program.blocks(paths, recompute_choices(self.model.question).len())
    }

    /// The program of whole blocks, with the first paths through the passes.
    fn stage_program(&self, candidate: &Candidate, plan: &Plan) -> Option<(StageProgram, Vec<Counts>)> {
        let messages = MessagePath::of(&self.model, plan);
        let around = (&messages, Seconds::ZERO);
        let ordered = OrderedWork::of(&self.model, &self.orders, candidate, around, &|_| false);
        let (passes, paths) = ordered?.passes_and_paths()?;
        let program = whole_blocks(&self.model, candidate, plan, (passes, messages.least()))?;
        Some((program, paths))
    }

    /// A time that no step of this very plan of a candidate is below.
    pub fn of_plan(&self, candidate: &Candidate, plan: &Plan) -> Seconds {
        match candidate.schedule().flushes() {
            true => {
                let around = around_passes(
                    &self.model,
                    candidate,
                    &Sent::known(&self.model, &self.sent, candidate, plan),
                );
                self.with_update(
                    passes_bound(&self.model, &self.orders, candidate, plan) + around,
                    candidate,
                    plan,
                )
            }
            false => Seconds::ZERO,
        }
    }

    /// The pipeline ranks of this very plan of a candidate whose passes take most and least of all.
    pub fn busiest_and_idlest(&self, candidate: &Candidate, plan: &Plan) -> (usize, usize) {
        busiest_and_idlest(&self.model, candidate, plan)
    }

    /// The memory that some rank needs at least: weights, gradients and optimizer state of its share of the model,
    /// libraries and communicators. Activations come on top.
    pub fn memory(&self, candidate: &Candidate, plan: &Plan) -> Bytes {
        let share = plan.schedule().copies() as f64 / plan.mesh.pipeline as f64;
        let parameters = self.model.of(candidate).parameters(self.model.question);
        parameters.gpu_state(plan) * share + fixed_overhead(plan)
    }

    /// A time that no step of `candidate` is below whose passes take `pipeline` at least.
    pub fn with_update(&self, pipeline: Seconds, candidate: &Candidate, plan: &Plan) -> Seconds {
        (pipeline + self.update(candidate, plan)) * (1.0 - ROUNDING)
    }

    fn update(&self, candidate: &Candidate, plan: &Plan) -> Seconds {
        let parameters = self.model.of(candidate).parameters(self.model.question);
        update_bound(plan, parameters, &self.model.costs)
    }
}

/// What no pass of a step can hide: what the first forward waits for, and what is reduced after the last backward, which is the first
/// stage's where backward is not in halves.
fn around_passes(model: &CostModel, candidate: &Candidate, sent: &Sent) -> Seconds {
    let kind = model.pipelines.kind(candidate);
    match candidate.schedule().flushes() {
        true if kind.ramps && !kind.halves => sent.first + sent.tail,
        true => sent.first,
        false => Seconds::ZERO,
    }
}
