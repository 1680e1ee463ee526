//! A pipeline stage: its layers, lowered as far as their parts, and their sizes.

use crate::adapters::{Frozen, freeze_vectors};
use crate::block::block_parts;
use crate::emit::Emitter;
use crate::ends::{embedding_parts, head_parts};
use crate::matrices::{Matrices, MatrixCall, elements_of_matrices, products_of_layer};
use crate::part::Part;
use crate::recompute::{backward_peak, held_between, input_peak, kept, temporary_outside_input};
use crate::shape::Shape;
use trainwright_spec::experts::Load;
use trainwright_spec::model::weights::{Split, Weight};
use trainwright_spec::model::{Block, Model};
use trainwright_spec::plan::{Plan, Recompute};
use trainwright_spec::program::{Axis, Segment};
use trainwright_spec::units::Bytes;

/// A stage, lowered as far as its parts.
#[derive(Clone)]
pub(crate) struct Stage {
    /// Its number among the stages of one copy.
    pub index: usize,
    /// Its number in actions: copies of the stages follow each other.
    pub number: usize,
    /// The embedding, on the first stage.
    pub embedding: Option<Layer>,
    /// Its blocks.
    pub blocks: Vec<Layer>,
    /// The head, on the last stage.
    pub head: Option<Layer>,
    /// How many stages there are.
    pub stages: usize,
}

/// A run of parts with the weights that belong to it.
#[derive(Clone)]
pub(crate) struct Layer {
    /// Index of the block in the model; `None` for embedding and head.
    pub block: Option<usize>,
    /// What it runs.
    pub parts: std::rc::Rc<Vec<Part>>,
    /// What it computes again.
    pub recompute: Recompute,
    /// Parameters on one rank.
    pub parameters: u64,
    /// Those of them that belong to routed experts.
    pub routed: u64,
    /// Matrices that the optimizer updates as such.
    pub matrices: Vec<Matrices>,
    /// Weights on one rank that are not trained.
    pub frozen: Frozen,
    /// How many of the others have gradients of which the ranks of an axis hold summands after backward.
    pub summands: Vec<(Axis, u64)>,
    /// Tensors that they form.
    pub tensors: u64,
    /// Those of them that are kept quantised as well.
    pub quantised: u64,
}

/// Whether a segment carries the data axis's collectives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Variant {
    /// It does not.
    Plain,
    /// It does: the first forward, the last backward.
    Data,
}

/// What one layer costs on one rank: for the planner, which composes stages from layers.
#[derive(Debug, Clone)]
pub struct StageCost {
    /// Forward of one microbatch.
    pub forward: Segment,
    /// Backward of one microbatch, with what it computes again.
    pub backward: Segment,
    /// The half of it that makes the input's gradient, where it runs in halves.
    pub input: Segment,
    /// Activations kept from forward to backward, per microbatch.
    pub kept: Bytes,
    /// What is held between the halves of backward, per microbatch.
    pub between: Bytes,
    /// What backward holds beyond the activations while it runs.
    pub peak: Bytes,
    /// Parameters on the rank.
    pub parameters: u64,
    /// Those of them that belong to routed experts.
    pub routed: u64,
    /// Those in matrices that the optimizer updates as such: of the dense weights, and of routed experts.
    pub matrices: [u64; 2],
    /// The products of an update with these, if one rank made all of them, likewise.
    pub products: [Vec<MatrixCall>; 2],
    /// Weights on the rank that are not trained.
    pub frozen: Frozen,
}

impl Layer {
    /// A block.
    fn of_block(shape: &Shape, index: usize, block: &Block, recompute: Recompute) -> Self {
        let weights = block.weights(shape.hidden);
        let beside = shape.adapters.map(|adapters| adapters.of_block(block, shape.hidden));
        let trained = shape.adapters.map(|adapters| adapters.block_weights(block, shape.hidden));
        let shape = &Shape { layer: index, beside: beside.as_deref().unwrap_or_default(), ..*shape };
        Layer::new(
            Some(index),
            block_parts(shape, block),
            recompute,
            [&weights, &trained.unwrap_or_default()],
            shape,
        )
    }

    /// A layer with the model's weights, and the adapters' that are trained instead of them if the job has any.
    fn new(
        block: Option<usize>,
        mut parts: Vec<Part>,
        recompute: Recompute,
        [model, beside]: [&[Weight]; 2],
        shape: &Shape,
    ) -> Self {
        let (weights, frozen) = match shape.adapters {
            None => (model, &[][..]),
            Some(_) => (beside, model),
        };
        if shape.adapters.is_some() {
            freeze_vectors(&mut parts);
        }
        let routed = weights.iter().filter(|weight| weight.routed);
        let routed: u64 =
            routed.map(|weight| weight.routed_on_rank(shape.mesh.expert, shape.mesh.expert_tensor())).sum();
        let others = || weights.iter().filter(|weight| !weight.routed);
        let on_rank = |weight: &Weight| shape.scheme.elements_on_rank(&shape.grid, weight);
        let by_rule = shape.matrices && block.is_some();
        let matrices = weights.iter().filter(|_| by_rule).filter_map(|weight| Matrices::of(shape, weight));
        let dense: u64 = others().map(on_rank).sum();
        // Every rank has a summand of the gradient of what it holds whole of an adapter.
        let is_summed = |weight: &Weight, axis: Axis| match shape.adapters {
            None => shape.scheme.summed_over(&shape.grid, weight).contains(&axis),
            Some(_) => axis == Axis::Tensor && shape.tensor > 1 && weight.split == Split::Replicated,
        };
        let summands = |axis: Axis| {
            let summed = others().filter(|weight| is_summed(weight, axis));
            (axis, summed.map(on_rank).sum::<u64>())
        };
        let frozen: Vec<(&Weight, u64)> = frozen
            .iter()
            .map(|weight| match weight.routed {
                true => (weight, weight.routed_on_rank(shape.mesh.expert, shape.mesh.expert_tensor())),
                false => (weight, on_rank(weight)),
            })
            .collect();
        Layer {
            block,
            recompute,
            parameters: dense + routed,
            routed,
            matrices: matrices.collect(),
            frozen: Frozen::of(shape, block.is_some(), &frozen),
            summands: Axis::ALL.into_iter().map(summands).filter(|(_, elements)| *elements > 0).collect(),
            tensors: weights.iter().map(|weight| weight.copies).sum(),
            quantised: parts.iter().map(|part| part.quantised_weights).sum(),
            parts: parts.into(),
        }
    }

    /// Whether it runs the same parts and computes the same again.
    fn is_like(&self, other: &Layer) -> bool {
        std::rc::Rc::ptr_eq(&self.parts, &other.parts) && self.recompute == other.recompute
    }

    /// Activations that it keeps from forward to backward.
    pub fn kept(&self) -> Bytes {
        kept(&self.parts, self.recompute)
    }

    /// The embedding.
    pub fn embedding(shape: &Shape, model: &Model) -> Self {
        let vocabulary = shape.stack.padded_vocabulary(model.vocab, shape.tensor);
        let weights = model.embedding_weights(vocabulary);
        let mut parts = embedding_parts(shape, model);
        if shape.adapters.is_some() {
            // Nothing before the blocks is trained.
            parts.iter_mut().for_each(|part| (part.backward, part.kept) = (Vec::new(), Bytes::ZERO));
        }
        Layer::new(None, parts, Recompute::None, [&weights, &[]], shape)
    }

    /// The head; `copy` says whether it holds a copy of a tied embedding because the embedding is on another rank.
    pub fn head(shape: &Shape, model: &Model, copy: bool) -> Self {
        let vocabulary = shape.stack.padded_vocabulary(model.vocab, shape.tensor);
        let mut weights = model.final_weights();
        weights.extend(model.head_weights(vocabulary));
        if copy && model.head.tied {
            weights.extend(model.embedding_weights(vocabulary).into_iter().take(1));
        }
        let beside = shape.adapters.and_then(|adapters| adapters.of_head(model, vocabulary));
        let trained = shape.adapters.map(|adapters| adapters.head_weights(model, vocabulary));
        let shape = &Shape { beside: beside.as_slice(), ..*shape };
        let parts = head_parts(shape, model);
        Layer::new(None, parts, Recompute::None, [&weights, &trained.unwrap_or_default()], shape)
    }

    /// Makes it the one decoder block of its stage that keeps what all of them read.
    fn keep_encoder_output(&mut self, shape: &Shape) {
        let mut parts = (*self.parts).clone();
        parts[0].kept += shape.activations(shape.local_tokens() * shape.local_hidden());
        self.parts = parts.into();
    }

    /// Its costs as a separate stage, without messages.
    pub fn cost(&self, plan: &Plan) -> StageCost {
        let (overlap, rule) = (plan.stack.overlap_tensor_backward, plan.job.optimizer().of_matrices());
        let segment = |run: &dyn Fn(&mut Emitter)| {
            let mut emitter = Emitter::new(overlap);
            run(&mut emitter);
            Segment { name: String::new(), ops: emitter.ops }
        };
        StageCost {
            forward: segment(&|emitter| emitter.forward(&self.parts, self.recompute)),
            backward: segment(&|emitter| emitter.backward(&self.parts, self.recompute)),
            input: segment(&|emitter| emitter.input(&self.parts, self.recompute)),
            kept: kept(&self.parts, self.recompute),
            between: held_between(&self.parts),
            peak: backward_peak(&self.parts, self.recompute),
            parameters: self.parameters,
            routed: self.routed,
            matrices: elements_of_matrices(&self.matrices),
            products: rule.map(|rule| products_of_layer(rule, &self.matrices)).unwrap_or_default(),
            frozen: self.frozen,
        }
    }
}

impl StageCost {
    /// Costs of a block in the mesh, microbatch and stack of `plan`.
    pub fn of_block(plan: &Plan, block: &Block, recompute: Recompute) -> StageCost {
        Layer::of_block(&Shape::of(plan), 0, block, recompute).cost(plan)
    }

    /// Costs of the embedding.
    pub fn of_embedding(plan: &Plan) -> StageCost {
        Layer::embedding(&Shape::of(plan), &plan.model).cost(plan)
    }

    /// Costs of the head.
    pub fn of_head(plan: &Plan) -> StageCost {
        let layer = Layer::head(&Shape::of(plan), &plan.model, ends_apart(plan));
        layer.cost(plan)
    }
}

impl Stage {
    /// Every stage of a plan, by its number in actions.
    pub fn all(plan: &Plan) -> Vec<Stage> {
        Stage::numbered(plan, |_| true)
    }

    /// Those of a pipeline rank.
    pub fn of_rank(plan: &Plan, rank: usize) -> Vec<Stage> {
        let (schedule, shape) = (plan.schedule(), plan.pipeline_shape());
        Stage::numbered(plan, |number| schedule.rank_of(number, shape) == rank)
    }

    /// Those with some numbers.
    fn numbered(plan: &Plan, has: impl Fn(usize) -> bool) -> Vec<Stage> {
        let (stages, copies) = (plan.stages.len(), plan.schedule().copies());
        let numbers = |index: usize| (0..copies).map(move |copy| copy * stages + index);
        let one = Stage::one_copy(plan, |index| numbers(index).any(&has));
        let copy = |stage: Stage| -> Vec<Stage> {
            let here = numbers(stage.index).filter(|number| has(*number));
            here.map(|number| Stage { number, ..stage.clone() }).collect()
        };
        let mut all: Vec<Stage> = one.into_iter().flat_map(copy).collect();
        all.sort_by_key(|stage| stage.number);
        all
    }

    /// The stages of one copy that have some indices.
    fn one_copy(plan: &Plan, has: impl Fn(usize) -> bool) -> Vec<Stage> {
        let shape = Shape::of(plan);
        let stages = plan.stages.len();
        // Equal blocks share their parts, if their experts have equally much to do.
        let shared = plan.experts.load == Load::Balanced;
        let mut known: Vec<((*const Block, bool), Layer)> = Vec::new();
        let mut layer = |index: usize, block: &Block, recompute| {
            let base = plan.stack.base_blocks.as_ref().is_some_and(|kept| kept.keep(index, &plan.model));
            let kind = (std::ptr::from_ref(block), base);
            known.retain(|(other, layer)| shared || *other != kind || layer.block == Some(index));
            if !known.iter().any(|(other, _)| *other == kind) {
                let shape = if base { &shape.base() } else { &shape };
                known.push((kind, Layer::of_block(shape, index, block, recompute)));
            }
            let (_, layer) = known.iter().find(|(other, _)| *other == kind).expect("it was just added");
            Layer { block: Some(index), recompute, ..layer.clone() }
        };
        let blocks = plan.stage_blocks();
        let stage = |(index, blocks): (usize, &Vec<(usize, &Block, Recompute)>)| {
            let mut layers: Vec<Layer> =
                blocks.iter().map(|(at, block, recompute)| layer(*at, block, *recompute)).collect();
            let crossing = blocks.iter().position(|(_, block, _)| block.cross_attention.is_some());
            if let Some(first) = crossing {
                layers[first].keep_encoder_output(&shape);
            }
            Stage {
                index,
                number: index,
                embedding: (index == 0).then(|| Layer::embedding(&shape, &plan.model)),
                blocks: layers,
                head: (index + 1 == stages).then(|| Layer::head(&shape, &plan.model, ends_apart(plan))),
                stages,
            }
        };
        blocks.iter().enumerate().filter(|(index, _)| has(*index)).map(stage).collect()
    }

    /// All of a pipeline, without embedding and head.
    pub fn of_blocks(blocks: Vec<Layer>) -> Self {
        Stage { index: 0, number: 0, embedding: None, blocks, head: None, stages: 1 }
    }

    /// Its layers in the order of forward.
    pub fn layers(&self) -> impl DoubleEndedIterator<Item = &Layer> + Clone {
        self.embedding.iter().chain(&self.blocks).chain(&self.head)
    }

    /// Activations that one microbatch keeps from forward to backward.
    pub fn kept(&self) -> Bytes {
        self.by_layer(Layer::kept).sum()
    }

    /// A size of each layer, computed once for layers with equal parts.
    fn by_layer(
        &self,
        size: impl Fn(&Layer) -> Bytes,
    ) -> impl DoubleEndedIterator<Item = Bytes> + ExactSizeIterator {
        let mut sizes: Vec<Bytes> = Vec::new();
        let mut known: Vec<(&Layer, Bytes)> = Vec::new();
        for layer in self.layers() {
            let found = known.iter().find(|(other, _)| layer.is_like(other)).map(|(_, size)| *size);
            sizes.push(found.unwrap_or_else(|| size(layer)));
            if found.is_none() {
                known.push((layer, sizes[sizes.len() - 1]));
            }
        }
        sizes.into_iter()
    }

    /// The most that backward of one microbatch holds beyond that.
    pub fn backward_peak(&self) -> Bytes {
        let peak = |layer: &Layer| backward_peak(&layer.parts, layer.recompute);
        self.by_layer(peak).fold(Bytes::ZERO, Bytes::max)
    }

    /// What one microbatch holds between the halves of backward.
    pub fn held_between(&self) -> Bytes {
        self.by_layer(|layer| held_between(&layer.parts)).sum()
    }

    /// Parameters on one rank that are kept quantised as well.
    pub fn quantised(&self) -> u64 {
        self.layers().map(|layer| layer.quantised).sum()
    }

    /// The most that a pass of one microbatch holds beyond what is held before or after it, if backward runs in
    /// halves: the first half what it computes again and has not given back yet, and all of them their temporaries.
    pub fn halves_peak(&self) -> Bytes {
        let (mut before, mut after) = (self.kept(), Bytes::ZERO);
        let most = before.max(self.held_between());
        let temporaries = self.by_layer(|layer| temporary_outside_input(&layer.parts));
        let mut peak = temporaries.fold(Bytes::ZERO, Bytes::max);
        let inputs = self.by_layer(|layer| input_peak(&layer.parts, layer.recompute));
        let halves = self.by_layer(Layer::kept).zip(self.by_layer(|layer| held_between(&layer.parts)));
        for (input, (kept, between)) in inputs.zip(halves).rev() {
            before -= kept;
            peak = peak.max(before + input + after - most);
            after += between;
        }
        peak
    }
}

/// Whether the embedding and the head are on different ranks, so that each needs a copy of a weight that they share.
pub(crate) fn ends_apart(plan: &Plan) -> bool {
    plan.pipeline_rank_of(0) != plan.pipeline_rank_of(plan.pipeline_shape().stages() - 1)
}

/// Parameters of a layer whose gradients other ranks add to after backward: norms and other replicated weights, of which each
/// rank of the tensor axis saw a part of the sequence, and an embedding that both ends of a pipeline hold.
pub(crate) fn late_parameters(plan: &Plan, layer: &Layer) -> u64 {
    let summed: u64 = layer.summands.iter().map(|(_, elements)| elements).sum();
    let shared = layer.block.is_none() && sums_tied_embedding(plan);
    summed + if shared { tied_embedding(plan) } else { 0 }
}

/// Whether both ends of a pipeline make summands of the gradient of an embedding.
pub(crate) fn sums_tied_embedding(plan: &Plan) -> bool {
    plan.model.head.tied && ends_apart(plan) && plan.job.adapters.is_none()
}

/// Parameters of the token embedding on one rank.
pub(crate) fn tied_embedding(plan: &Plan) -> u64 {
    let shape = Shape::of(plan);
    let vocabulary = shape.stack.padded_vocabulary(plan.model.vocab, shape.tensor);
    shape.scheme.elements_on_rank(&shape.grid, &plan.model.embedding_weights(vocabulary)[0])
}

/// The stages on a pipeline rank.
pub(crate) fn stages_on<'a>(
    plan: &'a Plan,
    stages: &'a [Stage],
    pipeline_rank: usize,
) -> impl Iterator<Item = &'a Stage> + Clone {
    let shape = plan.pipeline_shape();
    stages.iter().filter(move |stage| plan.schedule().rank_of(stage.number, shape) == pipeline_rank)
}
