//! What a model's layers cost on one rank: the numbers that bounds and partitions are made of.

use super::in_flight::StageInFlight;
use crate::candidate::Candidate;
use crate::question::Question;
use trainwright_lower::Frozen;
use trainwright_lower::memory::{divisor, gpu_state_per_parameter};
use trainwright_spec::data::Divided;
use trainwright_spec::optimizer::Rule;
use trainwright_spec::plan::Plan;
use trainwright_spec::program::Axis;
use trainwright_spec::schedule::ideal::PassTimes;
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
    /// Of passes that may run jointly: what the collectives inside the layer take, forward and backward.
    pub exchanged: Seconds,
    /// Activations kept in between.
    pub kept: Bytes,
    /// What is held between the halves of backward, where it runs in halves.
    pub between: Bytes,
    /// What backward holds beyond them.
    pub peak: Bytes,
    /// Parameters.
    pub parameters: u64,
    /// Those of them that belong to routed experts, where other ranks share those than share the rest.
    pub routed: u64,
    /// Those in matrices that the optimizer updates as such: of the others, and of routed experts.
    pub matrices: [u64; 2],
    /// The products of an update with these.
    pub products: UpdateProducts,
    /// Weights that are not trained.
    pub frozen: Frozen,
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
    /// The head on the embedding's rank: a tied embedding's parameters are counted once.
    pub head_with_embedding: LayerCost,
}

impl LayerCost {
    /// The elementwise minimum of the times; memory is the same on all kinds of nodes.
    fn elementwise_min(&self, other: &Self) -> Self {
        Self {
            time: self.time.min(other.time),
            forward: self.forward.min(other.forward),
            input: self.input.min(other.input),
            exchanged: self.exchanged.min(other.exchanged),
            products: UpdateProducts {
                of_flop: self.products.of_flop.min(other.products.of_flop),
                ..self.products
            },
            ..*self
        }
    }

    /// The passes of a microbatch.
    pub fn pass_times(&self) -> PassTimes {
        PassTimes { forward: self.forward, input: self.input, weight: self.time - self.forward - self.input }
    }

    /// Bytes that the microbatches of a stage in flight keep of it.
    pub fn kept_by(&self, stage: &StageInFlight) -> f64 {
        stage.kept * self.kept.get() + stage.between * self.between.get()
    }
}

impl ModelCost {
    /// The elementwise minimum of the times of two kinds of nodes.
    pub fn elementwise_min(&self, other: &Self) -> Self {
        let blocks = self.blocks.iter().zip(&other.blocks);
        let choices = |(one, other): (&Vec<LayerCost>, &Vec<LayerCost>)| {
            one.iter().zip(other).map(|(one, other)| one.elementwise_min(other)).collect()
        };
        Self {
            blocks: blocks.map(choices).collect(),
            embedding: self.embedding.elementwise_min(&other.embedding),
            head: self.head.elementwise_min(&other.head),
            head_with_embedding: self.head_with_embedding.elementwise_min(&other.head_with_embedding),
        }
    }

    /// All layers, a block for each recompute choice.
    pub fn layers(&self) -> impl Iterator<Item = &LayerCost> + Clone {
        self.blocks.iter().flatten().chain([&self.embedding, &self.head])
    }

    /// The least time of all layers of the model together.
    pub fn least_time(&self, question: &Question) -> Seconds {
        self.least_of(question, |layer| layer.time)
    }

    /// The least that collectives inside all layers of the model take together, where passes may run jointly.
    pub fn least_exchanged(&self, question: &Question) -> Seconds {
        self.least_of(question, |layer| layer.exchanged)
    }

    fn least_of(&self, question: &Question, time: impl Fn(&LayerCost) -> Seconds) -> Seconds {
        let runs = question.model.blocks.iter().zip(&self.blocks);
        let least = |costs: &[LayerCost]| costs.iter().map(&time).reduce(Seconds::min);
        let blocks: Seconds =
            runs.map(|(run, costs)| least(costs).unwrap_or(Seconds::ZERO) * run.count as f64).sum();
        blocks + time(&self.embedding) + time(&self.head)
    }

    /// Forward of all layers together.
    pub fn forward_time(&self, question: &Question) -> Seconds {
        let runs = question.model.blocks.iter().zip(&self.blocks);
        let blocks: Seconds = runs.map(|(run, costs)| costs[0].forward * run.count as f64).sum();
        blocks + self.embedding.forward + self.head.forward
    }

    /// The head as a candidate has it.
    pub fn head_of(&self, candidate: &Candidate) -> &LayerCost {
        match candidate.ends_share_a_rank() {
            true => &self.head_with_embedding,
            false => &self.head,
        }
    }

    /// Embedding and head as a candidate with `stages` stages has them, each with its stage.
    pub fn ends(&self, candidate: &Candidate, stages: usize) -> [(usize, &LayerCost); 2] {
        [(0, &self.embedding), (stages - 1, self.head_of(candidate))]
    }

    /// The time of a block that no recompute choice of any run is below.
    pub fn least_block(&self, time: impl Fn(&LayerCost) -> Seconds) -> Seconds {
        self.blocks.iter().flatten().map(time).reduce(Seconds::min).unwrap_or(Seconds::ZERO)
    }

    /// Parameters of all layers together, a tied embedding once.
    pub fn parameters(&self, question: &Question) -> Parameters {
        let runs = question.model.blocks.iter().zip(&self.blocks);
        let blocks = runs.map(|(run, costs)| (run.count as f64, &costs[0]));
        let ends = [(1.0, &self.embedding), (1.0, &self.head_with_embedding)];
        blocks.chain(ends).fold(Parameters::default(), |sum, (count, cost)| {
            let layer = Parameters::of(cost);
            sum.plus(layer.times(count))
        })
    }
}

/// The products that an optimizer makes with matrices, if one rank makes all of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct UpdateProducts {
    /// FLOPs: with matrices that the ranks of the data axis have in common, and with routed experts'.
    pub flops: [f64; 2],
    /// The least time that one of these FLOPs takes in any of the products; infinite without products.
    pub of_flop: Seconds,
}

impl Default for UpdateProducts {
    fn default() -> Self {
        Self { flops: [0.0; 2], of_flop: Seconds::new(f64::INFINITY) }
    }
}

impl UpdateProducts {
    fn times(self, count: f64) -> Self {
        Self { flops: self.flops.map(|flops| count * flops), ..self }
    }

    /// Those of both.
    pub fn plus(self, other: Self) -> Self {
        let flops = [0, 1].map(|of| self.flops[of] + other.flops[of]);
        Self { flops, of_flop: self.of_flop.min(other.of_flop) }
    }
}

/// Parameters of a rank, or of all pipeline ranks.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Parameters {
    /// Those that the ranks of the data axis have in common.
    pub dense: f64,
    /// Routed experts', where other ranks have those in common.
    pub routed: f64,
    /// Those in matrices that the optimizer updates as such, likewise.
    pub matrices: [f64; 2],
    /// The products of an update with these.
    pub products: UpdateProducts,
    /// Bytes of weights that are not trained, likewise.
    pub frozen: [f64; 2],
}

impl Parameters {
    /// The parameters of a layer.
    pub fn of(layer: &LayerCost) -> Self {
        Self {
            dense: (layer.parameters - layer.routed) as f64,
            routed: layer.routed as f64,
            matrices: layer.matrices.map(|count| count as f64),
            products: layer.products,
            frozen: [layer.frozen.dense, layer.frozen.routed].map(|bytes| bytes as f64),
        }
    }

    fn times(self, count: f64) -> Self {
        Self {
            dense: count * self.dense,
            routed: count * self.routed,
            matrices: self.matrices.map(|matrices| count * matrices),
            products: self.products.times(count),
            frozen: self.frozen.map(|bytes| count * bytes),
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            dense: self.dense + other.dense,
            routed: self.routed + other.routed,
            matrices: [0, 1].map(|of| self.matrices[of] + other.matrices[of]),
            products: self.products.plus(other.products),
            frozen: [self.frozen[0] + other.frozen[0], self.frozen[1] + other.frozen[1]],
        }
    }

    /// Parameters by the axis whose ranks have them in common, and by the optimizer's rule.
    fn by_rule(self) -> impl Iterator<Item = (Axis, Rule, f64)> {
        let [dense, routed] = self.matrices;
        let all = [
            (Axis::Data, Rule::Elements, self.dense - dense),
            (Axis::Data, Rule::Matrices, dense),
            (Axis::ExpertData, Rule::Elements, self.routed - routed),
            (Axis::ExpertData, Rule::Matrices, routed),
        ];
        all.into_iter().filter(|(.., count)| *count > 0.0)
    }

    /// What stays on the GPU of the state of these parameters.
    pub fn gpu_state(self, plan: &Plan) -> Bytes {
        let of = |(axis, rule, count)| gpu_state_per_parameter(plan, axis, rule).total() * count;
        let [dense, routed] = self.frozen_weights(plan);
        self.by_rule().map(of).sum::<Bytes>() + dense + routed
    }

    /// The same of weights, gradients and optimizer state, each alone.
    pub fn gpu_state_by_kind(self, plan: &Plan) -> [Bytes; 3] {
        let mut kinds = [self.frozen_weights(plan).into_iter().sum(), Bytes::ZERO, Bytes::ZERO];
        for (axis, rule, count) in self.by_rule() {
            let each = gpu_state_per_parameter(plan, axis, rule);
            kinds[0] += each.weights * count;
            kinds[1] += each.gradients * count;
            kinds[2] += each.optimizer * count;
        }
        kinds
    }

    /// Weights that are not trained: of the ranks' common parameters, and of experts.
    fn frozen_weights(self, plan: &Plan) -> [Bytes; 2] {
        let [dense, routed] = self.frozen;
        [(Axis::Data, dense), (Axis::ExpertData, routed)].map(|(axis, bytes)| {
            match plan.divides(Divided::Weights) {
                true => Bytes::new(bytes / divisor(plan, axis) as f64),
                false => Bytes::new(bytes),
            }
        })
    }
}
