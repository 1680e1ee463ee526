//! The weights of each layer: their shapes, which part of them a rank holds, and how they begin.
//!
//! A matrix is (outputs × inputs), a vector has one column. Of each parameter a rank holds some ranges of rows or one of
//! columns, row after row in one buffer of the layer. If the optimizer's state is sharded, so is every parameter: into equal
//! shards, so that a rank's shard of one weight does not depend on the other weights of the buffer.

mod initial;
mod parameter_name;

pub use parameter_name::ParameterName;
pub(crate) use parameter_name::Sharing;
pub use trainwright_spec::program::Layer;

use crate::train::sizes::Sizes;
use initial::Start;
use std::ops::Range;
use trainwright_spec::model::{Attention, Block, Experts, FeedForward, Mlp, Model, Norm, Position};

/// A parameter as a rank holds it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Parameter {
    pub name: ParameterName,
    /// Rows and columns of the full parameter.
    pub full_shape: [usize; 2],
    /// The rows held.
    rows: Vec<Range<usize>>,
    /// The columns held.
    columns: Range<usize>,
    /// Where it begins in the layer's buffer.
    pub offset: usize,
    /// Elements held.
    pub length: usize,
    /// How many shards it is divided into; the last ones may reach beyond `length`.
    pub shards: usize,
    /// The length of a shard is a multiple of this, in elements.
    alignment: usize,
    /// Which of the shards is this rank's.
    place: usize,
    /// Which ranks have the same.
    pub sharing: Sharing,
    start: Start,
    /// Whether every tensor rank holds all of it.
    pub replicated: bool,
    /// Whether it is a second copy of a parameter of another layer.
    pub copied: bool,
}

impl Parameter {
    /// Its elements in the layer's buffer.
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.length
    }

    /// The rows held, those beyond the full parameter too.
    pub fn local_rows(&self) -> impl Iterator<Item = usize> + '_ {
        self.rows.iter().cloned().flatten()
    }

    /// Elements of each shard.
    pub fn shard_length(&self) -> usize {
        self.length.div_ceil(self.shards).next_multiple_of(self.alignment)
    }

    /// This rank's shard in the layer's buffer.
    pub fn local_shard(&self) -> Range<usize> {
        self.shard(self.place)
    }

    /// The shard of that number in the layer's buffer.
    pub fn shard(&self, place: usize) -> Range<usize> {
        let first = self.offset + place * self.shard_length();
        first..first + self.shard_length()
    }

    /// Elements of all shards.
    pub fn padded_length(&self) -> usize {
        self.shard_length() * self.shards
    }

    /// Whether weight decay applies: to matrices.
    pub fn decays(&self) -> bool {
        self.full_shape[1] > 1
    }

    /// The layer that it is a parameter of, all copies being one.
    pub fn home(&self, layer: Layer) -> Layer {
        if self.copied { Layer::Embedding } else { layer }
    }

    /// Calls `visit` for every run of elements that are neighbours in the layer's buffer and in the full parameter, with where it
    /// begins in both and how long it is.
    fn runs(&self, mut visit: impl FnMut(usize, usize, usize)) {
        let width = self.columns.len();
        let mut at = self.offset;
        for row in self.rows.iter().cloned().flatten() {
            if row < self.full_shape[0] {
                visit(at, row * self.full_shape[1] + self.columns.start, width);
            }
            at += width;
        }
    }

    /// Calls `visit` with each element's index in the layer's buffer and in the full parameter.
    fn elements(&self, mut visit: impl FnMut(usize, usize)) {
        self.runs(|at, place, length| (0..length).for_each(|index| visit(at + index, place + index)));
    }

    /// Calls `visit` for every run of this rank's shard, with where it is in the shard and in the full parameter.
    fn local_runs(&self, mut visit: impl FnMut(Range<usize>, Range<usize>)) {
        let shard = self.local_shard();
        self.runs(|at, place, length| {
            let (first, end) = (at.max(shard.start), (at + length).min(shard.end));
            if first < end {
                let place = place + first - at;
                visit(first - shard.start..end - shard.start, place..place + end - first);
            }
        });
    }

    /// Copies this rank's shard into the full parameter.
    pub fn spread(&self, shard: &[f32], full: &mut [f32]) {
        self.local_runs(|of_shard, of_full| full[of_full].copy_from_slice(&shard[of_shard]));
    }

    /// Copies this rank's shard out of the full parameter; padding is left as it is.
    pub fn collect(&self, full: &[f32], shard: &mut [f32]) {
        self.local_runs(|of_shard, of_full| shard[of_shard].copy_from_slice(&full[of_full]));
    }

    /// Copies the elements that the rank holds out of the full parameter, into the layer's buffer.
    pub fn fill(&self, full: &[f32], buffer: &mut [f32]) {
        self.runs(|at, place, length| {
            buffer[at..at + length].copy_from_slice(&full[place..place + length]);
        });
    }

    /// Whether another rank's parameter has the same elements.
    pub fn same_part(&self, other: &Parameter) -> bool {
        (&self.rows, &self.columns, self.place) == (&other.rows, &other.columns, other.place)
    }

    /// Copies into the full parameter: `held` gives the number at an index of the layer's buffer, if the rank has it.
    pub fn put(&self, full: &mut [f32], held: impl Fn(usize) -> Option<f32>) {
        self.elements(|at, place| {
            if let Some(number) = held(at) {
                full[place] = number;
            }
        });
    }
}

/// The parameters of a layer on a rank. `copies_embedding` says whether the head holds a tied embedding that is on another
/// rank.
pub(crate) fn parameters(
    model: &Model,
    layer: Layer,
    sizes: &Sizes,
    copies_embedding: bool,
) -> Vec<Parameter> {
    let mut list = List { sizes, parameters: Vec::new(), residual: residual_deviation(model) };
    match layer {
        Layer::Embedding => {
            list.vocabulary(ParameterName::TokenEmbedding);
            if let Position::Learned(positions) = model.embedding.position {
                list.replicated(ParameterName::PositionEmbedding, [positions, sizes.full_hidden], WEIGHTS);
            }
        }
        Layer::Block(index) => {
            let block = block(model, index);
            (0..block.norms).for_each(|norm| {
                list.norm(block.norm, ParameterName::NormGain(norm), ParameterName::NormBias(norm));
            });
            list.attention(&block.attention);
            match &block.mlp {
                Mlp::Dense(mlp) => list.feed_forward(mlp),
                Mlp::Experts(experts) => list.experts(experts),
            }
        }
        Layer::Head => {
            if let Some(norm) = model.final_norm {
                list.norm(norm, ParameterName::FinalNormGain, ParameterName::FinalNormBias);
            }
            match model.head.tied {
                true if copies_embedding => {
                    list.vocabulary(ParameterName::TokenEmbedding);
                    list.parameters.last_mut().expect("it was just added").copied = true;
                }
                true => {}
                false => list.vocabulary(ParameterName::Head),
            }
            if model.head.bias {
                let rows = list.columns(sizes.local_vocabulary);
                list.add(ParameterName::HeadBias, [sizes.vocabulary, 1], vec![rows], 0..1, Start::Zeros);
            }
        }
    }
    list.parameters
}

/// The block of that index.
pub(crate) fn block(model: &Model, index: usize) -> &Block {
    let mut blocks = model.blocks.iter().flat_map(|run| std::iter::repeat_n(&run.block, run.count));
    blocks.nth(index).expect("a layer's index is that of a block")
}

/// Weights begin with a deviation of 0.02, those that add to the residual stream with 0.02 / √(2 L) (Radford et al. 2019,
/// section 2.3).
const WEIGHTS: Start = Start::Normal(0.02);

fn residual_deviation(model: &Model) -> Start {
    Start::Normal(0.02 / (2.0 * model.layers() as f64).sqrt())
}

struct List<'a> {
    sizes: &'a Sizes,
    parameters: Vec<Parameter>,
    residual: Start,
}

impl List<'_> {
    /// This rank's part of the columns of a layer's output, of which it has that many.
    fn columns(&self, share: usize) -> Range<usize> {
        let place = self.sizes.column();
        place * share..(place + 1) * share
    }

    /// This rank's part of the columns of a layer's input, which only a grid cuts.
    fn inputs(&self, count: usize) -> Range<usize> {
        if !self.sizes.is_grid() {
            return 0..count;
        }
        let share = count / self.sizes.grid_rows();
        self.sizes.row() * share..(self.sizes.row() + 1) * share
    }

    /// This rank's part of the residual stream's columns, which only a grid cuts.
    fn hidden(&self) -> Range<usize> {
        if self.sizes.is_grid() { self.columns(self.sizes.hidden) } else { 0..self.sizes.hidden }
    }

    fn add(
        &mut self,
        name: ParameterName,
        full_shape: [usize; 2],
        rows: Vec<Range<usize>>,
        columns: Range<usize>,
        start: Start,
    ) {
        self.add_shared(name, full_shape, rows, columns, start, Sharing::Dense);
    }

    fn add_shared(
        &mut self,
        name: ParameterName,
        full_shape: [usize; 2],
        rows: Vec<Range<usize>>,
        columns: Range<usize>,
        start: Start,
        sharing: Sharing,
    ) {
        let (shards, place) = match (sharing, self.sizes.shard) {
            (Sharing::Routed, 2..) => (self.sizes.experts.copies, self.sizes.experts.copy),
            (_, shards) => (shards, self.sizes.shard_place()),
        };
        let offset = self.parameters.last().map_or(0, |last| last.offset + last.padded_length());
        let length = rows.iter().map(ExactSizeIterator::len).sum::<usize>() * columns.len();
        let (replicated, copied) = (false, false);
        self.parameters.push(Parameter {
            name,
            full_shape,
            rows,
            columns,
            offset,
            length,
            shards,
            alignment: self.sizes.alignment,
            place,
            sharing,
            start,
            replicated,
            copied,
        });
    }

    /// What every tensor rank holds, on a grid its part of the residual stream's columns.
    fn replicated(&mut self, name: ParameterName, full_shape @ [rows, columns]: [usize; 2], start: Start) {
        match columns {
            1 => self.add(name, full_shape, vec![self.hidden()], 0..1, start),
            _ => {
                let all = 0..rows;
                self.add(name, full_shape, vec![all], self.hidden(), start);
            }
        }
        self.parameters.last_mut().expect("it was just added").replicated = true;
    }

    fn norm(&mut self, norm: Norm, gain: ParameterName, bias: ParameterName) {
        let full_shape = [self.sizes.full_hidden, 1];
        if norm != Norm::LayerNormPlain {
            self.replicated(gain, full_shape, Start::Ones);
        }
        if norm == Norm::LayerNorm {
            self.replicated(bias, full_shape, Start::Zeros);
        }
    }

    /// A matrix of a row for each entry.
    fn vocabulary(&mut self, name: ParameterName) {
        let (share, place) = (self.sizes.local_vocabulary, self.sizes.row());
        let rows = place * share..(place + 1) * share;
        let full_shape = [self.sizes.vocabulary, self.sizes.full_hidden];
        self.add(name, full_shape, vec![rows], self.hidden(), WEIGHTS);
    }

    /// A matrix cut by rows and its bias; `parts` are the heights of what stands below each other, each cut.
    fn by_rows(&mut self, [name, bias]: [ParameterName; 2], parts: &[usize], has_bias: bool) {
        let mut first = 0;
        let mut rows = Vec::new();
        for part in parts {
            let local = self.columns(part / self.sizes.parts);
            rows.push(first + local.start..first + local.end);
            first += part;
        }
        let inputs = self.inputs(self.sizes.full_hidden);
        self.add(name, [first, self.sizes.full_hidden], rows.clone(), inputs, WEIGHTS);
        if has_bias {
            self.add(bias, [first, 1], rows, 0..1, Start::Zeros);
            self.parameters.last_mut().expect("it was just added").replicated = self.sizes.is_grid();
        }
    }

    /// A matrix cut by columns, and the bias of the sum.
    fn by_columns(&mut self, [name, bias]: [ParameterName; 2], inputs: usize, has_bias: bool) {
        let hidden = self.sizes.full_hidden;
        let columns =
            if self.sizes.is_grid() { self.inputs(inputs) } else { self.columns(inputs / self.sizes.parts) };
        self.add(name, [hidden, inputs], vec![self.hidden()], columns, self.residual);
        if has_bias {
            self.replicated(bias, [hidden, 1], Start::Zeros);
        }
    }

    fn attention(&mut self, attention: &Attention) {
        let Attention { heads, kv_heads, head_dim, value_head_dim, .. } = *attention;
        let parts = [heads * head_dim, kv_heads * head_dim, kv_heads * value_head_dim];
        self.by_rows([ParameterName::Qkv, ParameterName::QkvBias], &parts, attention.qkv_bias);
        let names = [ParameterName::Projection, ParameterName::ProjectionBias];
        self.by_columns(names, heads * value_head_dim, attention.output_bias);
    }

    /// The router, and behind all else the matrices of this rank's experts, one expert behind the other.
    fn experts(&mut self, experts: &Experts) {
        let (sizes, hidden) = (self.sizes, self.sizes.hidden);
        let split = sizes.experts_of(experts.count);
        self.replicated(ParameterName::Router, [experts.count, hidden], WEIGHTS);
        let sharing = if split.apart { Sharing::Routed } else { Sharing::Dense };
        let (width, parts) = (experts.expert.width, if experts.expert.gated { 2 } else { 1 });
        let share = width / split.tensor;
        let columns = split.tensor_place * share..(split.tensor_place + 1) * share;
        let rows =
            split.local().flat_map(|expert| (0..parts).map(move |part| (expert * parts + part) * width));
        let rows = rows.map(|first| first + columns.start..first + columns.end).collect();
        let full_shape = [experts.count * parts * width, hidden];
        self.add_shared(ParameterName::ExpertFc1, full_shape, rows, 0..hidden, WEIGHTS, sharing);
        let rows = split.local().start * hidden..split.local().end * hidden;
        let full_shape = [experts.count * hidden, width];
        self.add_shared(ParameterName::ExpertFc2, full_shape, vec![rows], columns, self.residual, sharing);
    }

    fn feed_forward(&mut self, mlp: &FeedForward) {
        let parts = vec![mlp.width; if mlp.gated { 2 } else { 1 }];
        self.by_rows([ParameterName::Fc1, ParameterName::Fc1Bias], &parts, mlp.bias);
        self.by_columns([ParameterName::Fc2, ParameterName::Fc2Bias], mlp.width, mlp.bias);
    }
}
