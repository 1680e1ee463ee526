//! The segments of one pipeline stage.

use super::block::block_parts;
use super::emit::{Emitter, backward_peak, kept};
use super::ends::{embedding_parts, head_parts};
use super::offload::Copies;
use super::part::{Part, Shape};
use super::reduces;
use crate::collective::CollectiveKind;
use crate::model::{Block, Model};
use crate::plan::{DataSharding, Plan, Recompute};
use crate::program::{Axis, Channel, Pass, Segment, Stream, Work};
use crate::stack::PipelineOverlap;
use crate::units::Bytes;

/// A stage, lowered as far as its parts.
pub(crate) struct Stage {
    /// Its number.
    pub index: usize,
    /// The embedding, on the first stage.
    pub embedding: Option<Layer>,
    /// Its blocks.
    pub blocks: Vec<Layer>,
    /// The head, on the last stage.
    pub head: Option<Layer>,
    /// How many stages there are.
    stages: usize,
}

/// A run of parts with the weights that belong to it.
#[derive(Clone)]
pub(crate) struct Layer {
    /// Index of the block in the model; none for embedding and head.
    pub block: Option<usize>,
    /// What it runs.
    pub parts: std::rc::Rc<Vec<Part>>,
    /// What it computes again.
    pub recompute: Recompute,
    /// Parameters on one rank.
    pub parameters: u64,
    /// Those of them that every rank of the tensor axis holds.
    pub replicated: u64,
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
    /// Activations kept from forward to backward, per microbatch.
    pub kept: Bytes,
    /// What backward holds beyond that while it runs.
    pub peak: Bytes,
    /// Parameters on the rank.
    pub parameters: u64,
}

impl Layer {
    /// A block.
    fn of_block(shape: &Shape, index: usize, block: &Block, recompute: Recompute) -> Self {
        let weights = block.weights(shape.hidden);
        Layer::new(Some(index), block_parts(shape, block), recompute, &weights, shape.tensor)
    }

    fn new(
        block: Option<usize>,
        parts: Vec<Part>,
        recompute: Recompute,
        weights: &[crate::model::weights::Weight],
        tensor: usize,
    ) -> Self {
        use crate::model::weights::Split;
        let parameters = weights.iter().map(|weight| weight.elements_on_rank(tensor)).sum();
        let replicated = weights
            .iter()
            .filter(|weight| weight.split == Split::Replicated)
            .map(|weight| weight.total())
            .sum();
        Layer { block, parts: parts.into(), recompute, parameters, replicated }
    }

    /// Activations that it keeps from forward to backward.
    pub fn kept(&self) -> Bytes {
        kept(&self.parts, self.recompute)
    }

    /// The embedding.
    pub fn embedding(shape: &Shape, model: &Model) -> Self {
        let vocabulary = shape.stack.padded_vocabulary(model.vocab, shape.tensor);
        let weights = model.embedding_weights(vocabulary);
        Layer::new(None, embedding_parts(shape, model), Recompute::None, &weights, shape.tensor)
    }

    /// The head; `copy` says whether it holds a copy of a tied embedding because the embedding is on another rank.
    pub fn head(shape: &Shape, model: &Model, copy: bool) -> Self {
        let vocabulary = shape.stack.padded_vocabulary(model.vocab, shape.tensor);
        let mut weights = model.final_weights();
        weights.extend(model.head_weights(vocabulary));
        if copy && model.head.tied {
            weights.extend(model.embedding_weights(vocabulary).into_iter().take(1));
        }
        Layer::new(None, head_parts(shape, model), Recompute::None, &weights, shape.tensor)
    }

    /// Its costs as a stage of its own, without messages.
    pub fn cost(&self, overlap: bool) -> StageCost {
        let segment = |run: &dyn Fn(&mut Emitter)| {
            let mut emitter = Emitter::new(overlap);
            run(&mut emitter);
            Segment { name: String::new(), ops: emitter.ops }
        };
        StageCost {
            forward: segment(&|emitter| emitter.forward(&self.parts, self.recompute)),
            backward: segment(&|emitter| emitter.backward(&self.parts, self.recompute)),
            kept: kept(&self.parts, self.recompute),
            peak: backward_peak(&self.parts, self.recompute),
            parameters: self.parameters,
        }
    }
}

impl StageCost {
    /// Costs of a block in the mesh, microbatch and stack of `plan`.
    pub fn of_block(plan: &Plan, block: &Block, recompute: Recompute) -> StageCost {
        Layer::of_block(&Shape::of(plan), 0, block, recompute).cost(plan.stack.overlap_tensor_backward)
    }

    /// Costs of the embedding.
    pub fn of_embedding(plan: &Plan) -> StageCost {
        Layer::embedding(&Shape::of(plan), &plan.model).cost(plan.stack.overlap_tensor_backward)
    }

    /// Costs of the head.
    pub fn of_head(plan: &Plan) -> StageCost {
        let layer = Layer::head(&Shape::of(plan), &plan.model, plan.mesh.pipeline > 1);
        layer.cost(plan.stack.overlap_tensor_backward)
    }
}

impl Stage {
    /// Every stage of a plan.
    pub fn all(plan: &Plan) -> Vec<Stage> {
        let shape = Shape::of(plan);
        let stages = plan.stages.len();
        // Equal blocks share their parts.
        let mut known: Vec<(*const Block, Layer)> = Vec::new();
        let mut layer = |index: usize, block: &Block, recompute| {
            let pointer: *const Block = block;
            if !known.iter().any(|(other, _)| *other == pointer) {
                known.push((pointer, Layer::of_block(&shape, index, block, recompute)));
            }
            let (_, layer) = known.iter().find(|(other, _)| *other == pointer).expect("it was just added");
            Layer { block: Some(index), recompute, ..layer.clone() }
        };
        let blocks = plan.stage_blocks();
        let stage = |(index, blocks): (usize, &Vec<(usize, &Block, Recompute)>)| Stage {
            index,
            embedding: (index == 0).then(|| Layer::embedding(&shape, &plan.model)),
            blocks: blocks.iter().map(|(at, block, recompute)| layer(*at, block, *recompute)).collect(),
            head: (index + 1 == stages).then(|| Layer::head(&shape, &plan.model, plan.mesh.pipeline > 1)),
            stages,
        };
        blocks.iter().enumerate().map(stage).collect()
    }

    /// Its layers in the order of forward.
    pub fn layers(&self) -> impl DoubleEndedIterator<Item = &Layer> {
        self.embedding.iter().chain(&self.blocks).chain(&self.head)
    }

    /// Activations that one microbatch keeps from forward to backward.
    pub fn kept(&self) -> Bytes {
        self.layers().map(|layer| kept(&layer.parts, layer.recompute)).sum()
    }

    /// The most that backward of one microbatch holds beyond that.
    pub fn backward_peak(&self) -> Bytes {
        self.layers().map(|layer| backward_peak(&layer.parts, layer.recompute)).fold(Bytes::ZERO, Bytes::max)
    }

    /// Parameters on one rank.
    pub fn parameters(&self) -> u64 {
        self.layers().map(|layer| layer.parameters).sum()
    }

    /// Forward of one microbatch. The data variant begins with gathering the weights, bucket by bucket.
    pub fn forward(&self, plan: &Plan, variant: Variant) -> Segment {
        let mut emitter = Emitter::new(plan.stack.overlap_tensor_backward);
        let mut copies = Copies::begin(plan, self, Pass::Forward, &mut emitter);
        let gathers = match variant {
            Variant::Data => self.gather_weights(plan, &mut emitter),
            Variant::Plain => Vec::new(),
        };
        if self.index > 0 {
            receive(plan, &mut emitter, Pass::Forward, Channel::Activation(self.index - 1), self.index - 1);
        }
        for (number, layer) in self.layers().enumerate() {
            emitter.layer = layer.block;
            for (first_layer, gather) in &gathers {
                if *first_layer == number {
                    emitter.wait_for(*gather);
                }
            }
            copies.before(number, &mut emitter);
            let first = emitter.ops.len();
            emitter.forward(&layer.parts, layer.recompute);
            copies.after(number, first, &mut emitter);
        }
        emitter.layer = None;
        if self.index + 1 < self.stages {
            send(plan, &mut emitter, Pass::Forward, Channel::Activation(self.index), self.index + 1);
        }
        Segment { name: format!("stage {} forward", self.index), ops: emitter.ops }
    }

    /// Backward of one microbatch. The data variant, the last of a step, reduces the gradients, bucket by bucket, as they
    /// are complete, and copies them to where the optimizer is.
    pub fn backward(&self, plan: &Plan, variant: Variant) -> Segment {
        let mut emitter = Emitter::new(plan.stack.overlap_tensor_backward);
        let mut copies = Copies::begin(plan, self, Pass::Backward, &mut emitter);
        let last = variant == Variant::Data;
        if self.index + 1 < self.stages {
            receive(plan, &mut emitter, Pass::Backward, Channel::Gradient(self.index + 1), self.index + 1);
        }
        let mut waiting = 0u64;
        let layers = self.layers().count();
        for (number, layer) in self.layers().rev().enumerate() {
            emitter.layer = layer.block;
            copies.before(number, &mut emitter);
            let first = emitter.ops.len();
            emitter.backward(&layer.parts, layer.recompute);
            copies.after(number, first, &mut emitter);
            emitter.layer = None;
            waiting += layer.parameters;
            let full = waiting >= plan.bucket_parameters() as u64 || number + 1 == layers;
            if !full {
                continue;
            }
            // What leaves the GPU leaves it reduced.
            let mut reduced = None;
            if reduces(plan) && (last || plan.offload.gradients.is_some()) {
                let work = reduce_gradients(plan, waiting);
                let after = emitter.frontier();
                reduced = Some(emitter.push("reduce gradients", Pass::Backward, Stream::Data, work, after));
            }
            copies.gradients(number, reduced, last, &mut emitter);
            waiting = 0;
        }
        if self.index > 0 {
            send(plan, &mut emitter, Pass::Backward, Channel::Gradient(self.index), self.index - 1);
        }
        Segment { name: format!("stage {} backward", self.index), ops: emitter.ops }
    }

    /// Gathers the weights of each bucket of layers; returns the first layer of each bucket and its op.
    fn gather_weights(&self, plan: &Plan, emitter: &mut Emitter) -> Vec<(usize, usize)> {
        let mut gathers = Vec::new();
        let (mut first, mut waiting) = (0, 0u64);
        let layers: Vec<&Layer> = self.layers().collect();
        for (number, layer) in layers.iter().enumerate() {
            waiting += layer.parameters;
            if waiting >= plan.bucket_parameters() as u64 || number + 1 == layers.len() {
                let work = gather_weights(plan, waiting);
                let op = emitter.push("gather weights", Pass::Forward, Stream::Data, work, Vec::new());
                gathers.push((first, op));
                (first, waiting) = (number + 1, 0);
            }
        }
        gathers
    }
}

/// The data axis's sum of the gradients of `parameters`: to all, or to each its part where the optimizer is sharded.
pub(crate) fn reduce_gradients(plan: &Plan, parameters: u64) -> Work {
    let kind = match plan.data_sharding {
        DataSharding::None => CollectiveKind::AllReduce,
        DataSharding::Zero1 => CollectiveKind::ReduceScatter,
    };
    let bytes = Shape::of(plan).gradient_bytes() * parameters as f64;
    Work::Collective { kind, axis: Axis::Data, bytes }
}

/// The data axis's exchange of updated weights where the optimizer is sharded.
pub(crate) fn gather_weights(plan: &Plan, parameters: u64) -> Work {
    let bytes = plan.job.precision.storage_bytes() * parameters as f64;
    Work::Collective { kind: CollectiveKind::AllGather, axis: Axis::Data, bytes }
}

/// Whether messages between stages travel beside compute.
fn overlaps_messages(plan: &Plan) -> bool {
    match plan.stack.overlap_pipeline {
        PipelineOverlap::Never => false,
        PipelineOverlap::Interleaved => plan.virtual_stages > 1,
        PipelineOverlap::Always => true,
    }
}

/// Whether each tensor rank sends its part of a message that all of them have whole.
fn scatters(plan: &Plan) -> bool {
    let shape = Shape::of(plan);
    shape.tensor > 1 && !shape.sequence_parallel && plan.stack.scatter_gather_pipeline
}

/// Size of a message between neighbouring stages if it stands in line with the kernels; none if it travels beside them.
pub fn messages_in_line(plan: &Plan) -> Option<Bytes> {
    (!overlaps_messages(plan)).then(|| message_bytes(plan))
}

fn message_bytes(plan: &Plan) -> Bytes {
    let shape = Shape::of(plan);
    let whole = shape.activations(shape.own_tokens() * shape.hidden);
    if scatters(plan) { whole / shape.tensor as f64 } else { whole }
}

fn send(plan: &Plan, emitter: &mut Emitter, pass: Pass, channel: Channel, to_stage: usize) {
    let to = plan.schedule().rank_of(to_stage, plan.pipeline_shape());
    if to == own_rank(plan, channel) {
        return;
    }
    let work = Work::Send { channel, to, bytes: message_bytes(plan) };
    match overlaps_messages(plan) {
        true => {
            let after = emitter.frontier();
            emitter.push("send", pass, Stream::Send, work, after);
        }
        false => {
            emitter.in_line("send", pass, work);
        }
    }
}

fn receive(plan: &Plan, emitter: &mut Emitter, pass: Pass, channel: Channel, from_stage: usize) {
    let from = plan.schedule().rank_of(from_stage, plan.pipeline_shape());
    let own = match channel {
        Channel::Activation(stage) => stage + 1,
        Channel::Gradient(stage) => stage - 1,
    };
    if from == plan.schedule().rank_of(own, plan.pipeline_shape()) {
        return;
    }
    let work = Work::Receive { channel, from, bytes: message_bytes(plan) };
    match overlaps_messages(plan) {
        true => {
            let op = emitter.push("receive", pass, Stream::Receive, work, Vec::new());
            emitter.wait_for(op);
        }
        false => {
            emitter.in_line("receive", pass, work);
        }
    }
    if scatters(plan) {
        let shape = Shape::of(plan);
        let bytes = shape.activations(shape.tokens() * shape.hidden);
        let work = Work::Collective { kind: CollectiveKind::AllGather, axis: Axis::Tensor, bytes };
        // The pass cannot begin without it, and the passes before do not know of it.
        emitter.in_line("gather message", pass, work);
    }
}

/// The pipeline rank that sends on `channel`.
fn own_rank(plan: &Plan, channel: Channel) -> usize {
    let (Channel::Activation(stage) | Channel::Gradient(stage)) = channel;
    plan.schedule().rank_of(stage, plan.pipeline_shape())
}
