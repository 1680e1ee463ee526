//! The sizes of one rank's share of a microbatch: what its kernels are called with.

use std::ops::Range;
use std::sync::Arc;
use trainwright_spec::context::SharedAttention;
use trainwright_spec::data::Divided;
use trainwright_spec::mesh::Coordinates;
use trainwright_spec::plan::Plan;
use trainwright_spec::precision::Precision;
use trainwright_spec::program::Axis;

/// Which part of the training state data ranks shard; each level includes those above it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Divides {
    /// Nothing, or the optimizer's state.
    State,
    /// Gradients.
    Gradients,
    /// Weights.
    Weights,
}

/// One rank's share of tokens, heads and columns.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sizes {
    /// Where the rank is.
    pub at: Coordinates,
    /// Sequences of a microbatch.
    pub batch: usize,
    /// How many parts heads and widths are cut into.
    pub parts: usize,
    /// The rows, and columns, of the grid that tensor ranks form; 1 if they form none.
    grid: usize,
    /// Width of the residual stream over all ranks.
    pub full_hidden: usize,
    /// Tokens in each, over all ranks that share it.
    pub sequence: usize,
    /// Of each sequence the positions that a rank has, ascending, by place on the context axis.
    positions: Arc<[Vec<Range<usize>>]>,
    /// How experts lie on ranks.
    pub experts: ExpertSizes,
    /// Width of the residual stream on a rank.
    pub hidden: usize,
    /// Ranks that share each layer.
    pub tensor: usize,
    /// Whether they share the sequence between the products.
    pub splits_sequence: bool,
    /// Entries of the vocabulary.
    pub vocabulary: usize,
    /// How many of them a rank has, the last one some that do not exist.
    pub local_vocabulary: usize,
    /// Microbatches of a step on a rank.
    pub microbatches: usize,
    /// Ranks that divide the optimizer's state.
    pub shard: usize,
    /// Sets of them that have the same.
    pub replicas: usize,
    /// Copies of each stage.
    pub copies: usize,
    /// Whether weights and activations are numbers of bf16. They are kept in 32 bits each.
    pub rounds: bool,
    /// Whether operands of the blocks' products are rounded to fp8.
    pub fp8: bool,
    /// Which part of the state they shard.
    pub divides: Divides,
    /// Alignment of parameters and their shards, in elements.
    pub alignment: usize,
}

/// How the experts of a layer lie on ranks, seen from one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExpertSizes {
    /// Ranks that share the experts of a layer.
    pub ranks: usize,
    /// Neighbouring ones of them in one node.
    inner: usize,
    /// Ranks that share each expert.
    pub tensor: usize,
    /// The rank's place among those that share the experts.
    place: usize,
    /// Its place among those that share each expert.
    pub tensor_place: usize,
    /// Experts of a rank.
    per_rank: usize,
    /// Whether the ranks with the same experts are others than those with the same dense weights.
    pub apart: bool,
    /// Ranks with the same experts.
    pub copies: usize,
    /// The rank's place among them.
    pub copy: usize,
}

impl ExpertSizes {
    fn of(plan: &Plan, rank: usize) -> Self {
        let mesh = &plan.mesh;
        let place = |axis| mesh.place(rank, axis);
        Self {
            ranks: mesh.expert,
            inner: mesh.expert_inner,
            tensor: mesh.expert_tensor(),
            place: place(Axis::Expert),
            tensor_place: place(Axis::ExpertTensor),
            per_rank: 0,
            apart: mesh.experts_apart(),
            copies: mesh.size(Axis::ExpertData),
            copy: place(Axis::ExpertData),
        }
    }

    /// The experts of this rank.
    pub fn local(&self) -> Range<usize> {
        self.place * self.per_rank..(self.place + 1) * self.per_rank
    }

    /// Which member of a group on `axis` has an expert, or is on the way to it.
    pub fn member(&self, expert: usize, axis: Axis) -> usize {
        let owner = expert / self.per_rank;
        match axis {
            Axis::ExpertOuter => owner / self.inner,
            Axis::ExpertInner => owner % self.inner,
            _ => owner,
        }
    }
}

/// The positions of a sequence that each rank of the context axis has.
fn positions(plan: &Plan) -> Arc<[Vec<Range<usize>>]> {
    let attention = &plan.model.blocks[0].block.attention;
    let layer = SharedAttention {
        batch: plan.micro_batch,
        sequence: plan.job.sequence,
        heads: attention.heads,
        kv_heads: attention.kv_heads,
        head_dim: attention.head_dim,
        value_head_dim: attention.value_head_dim,
        mask: attention.mask,
        ranks: plan.mesh.context,
        inner: plan.mesh.context_inner,
    };
    let scheme = plan.context_scheme();
    (0..plan.mesh.context).map(|rank| joined_ranges(scheme.positions(&layer, rank))).collect()
}

/// The same positions in as few ranges as possible, ascending.
fn joined_ranges(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match joined.last_mut().filter(|last| last.end == range.start) {
            Some(last) => last.end = range.end,
            None => joined.push(range),
        }
    }
    joined
}

impl Sizes {
    /// The sizes of `rank`.
    pub fn of(plan: &Plan, rank: usize) -> Self {
        let tensor = plan.mesh.tensor;
        let cut = plan.tensor_scheme().parts(&plan.tensor_grid());
        Self {
            at: plan.mesh.coordinates(rank),
            batch: plan.micro_batch / cut.batch,
            parts: cut.width,
            grid: plan.mesh.tensor_rows,
            full_hidden: plan.model.hidden,
            sequence: plan.job.sequence,
            positions: positions(plan),
            experts: ExpertSizes::of(plan, rank),
            hidden: plan.model.hidden / cut.hidden,
            tensor,
            splits_sequence: plan.sequence_parallel && tensor > 1,
            vocabulary: plan.model.vocab,
            local_vocabulary: plan.stack.padded_vocabulary(plan.model.vocab, tensor) / cut.width,
            microbatches: plan.microbatches(),
            shard: if plan.shards_optimizer() { plan.mesh.shard() } else { 1 },
            replicas: if plan.shards_optimizer() { plan.mesh.weight_copies() / plan.mesh.shard() } else { 1 },
            copies: plan.schedule().copies(),
            rounds: plan.job.precision.base() == Precision::Bf16,
            fp8: plan.job.precision == Precision::Fp8,
            divides: if plan.divides(Divided::Weights) {
                Divides::Weights
            } else if plan.shards_gradients() {
                Divides::Gradients
            } else {
                Divides::State
            },
            alignment: 1,
        }
    }

    /// Those of a pass that generates: some positions of one sequence behind those of another.
    pub fn of_pass(&self, positions: Vec<Range<usize>>) -> Self {
        let sequence = positions.iter().map(ExactSizeIterator::len).sum();
        let positions = std::iter::once(positions).collect();
        Self { batch: 1, sequence, positions, splits_sequence: false, ..self.clone() }
    }

    /// With a device's alignment of parameters, in elements.
    pub fn aligned(self, alignment: usize) -> Self {
        Self { alignment, ..self }
    }

    /// The entries of the vocabulary that a rank has of the embedding.
    pub fn local_entries(&self) -> Range<usize> {
        let first = self.row() * self.local_vocabulary;
        first..first + self.local_vocabulary
    }

    /// Rows, and columns, of the grid of tensor ranks.
    pub fn grid_rows(&self) -> usize {
        self.grid
    }

    /// Whether tensor ranks form a grid.
    pub fn is_grid(&self) -> bool {
        self.grid > 1
    }

    /// This rank's row of the grid: its part of the sequences, of a weight's inputs and of an embedding's entries. Without a
    /// grid its place among the tensor ranks.
    pub fn row(&self) -> usize {
        if self.is_grid() { self.at.tensor / self.grid } else { self.at.tensor }
    }

    /// Its column: its part of all columns.
    pub fn column(&self) -> usize {
        if self.is_grid() { self.at.tensor % self.grid } else { self.at.tensor }
    }

    /// Sequences of a microbatch on all ranks of the tensor axis.
    pub fn micro_batch(&self) -> usize {
        if self.is_grid() { self.batch * self.grid } else { self.batch }
    }

    /// Ranks that hold the same of what is on all ranks of a column, or of the tensor axis.
    pub fn holders(&self) -> usize {
        if self.is_grid() { self.grid } else { self.tensor }
    }

    /// Ranks that share each sequence.
    pub fn context(&self) -> usize {
        self.positions.len()
    }

    /// The positions of each sequence that this rank has.
    pub fn local_positions(&self) -> &[Range<usize>] {
        &self.positions[self.at.context]
    }

    /// Tokens of each sequence that this rank has.
    pub fn local_sequence(&self) -> usize {
        self.sequence / self.context()
    }

    /// Those of a rank of this one's context axis.
    pub fn positions_of(&self, rank: usize) -> &[Range<usize>] {
        &self.positions[rank / self.tensor % self.context()]
    }

    /// Those that a rank has together with as many neighbours as `like` are of.
    pub fn positions_around(&self, rank: usize, like: &[Range<usize>]) -> Vec<Range<usize>> {
        let joined = like.iter().map(ExactSizeIterator::len).sum::<usize>() / self.local_sequence();
        let place = rank / self.tensor % self.context();
        let first = place - place % joined;
        joined_ranges(self.positions[first..first + joined].iter().flatten().cloned().collect())
    }

    /// The positions that norms and additions of this rank see.
    pub fn norm_positions(&self) -> impl Iterator<Item = usize> + '_ {
        let share =
            if self.splits_sequence { self.local_sequence() / self.tensor } else { self.local_sequence() };
        let first = if self.splits_sequence { share * self.at.tensor } else { 0 };
        self.local_positions().iter().cloned().flatten().skip(first).take(share)
    }

    /// `norm_positions` as ranges.
    pub fn norm_ranges(&self) -> Vec<Range<usize>> {
        if !self.splits_sequence {
            // Those of a pass that generates are in the order of its sequences.
            return self.local_positions().to_vec();
        }
        joined_ranges(self.norm_positions().map(|position| position..position + 1).collect())
    }

    /// How a layer of `count` experts lies on the ranks.
    pub fn experts_of(&self, count: usize) -> ExpertSizes {
        ExpertSizes { per_rank: count / self.experts.ranks, ..self.experts }
    }

    /// This rank's place among those that divide the optimizer's state.
    pub fn shard_place(&self) -> usize {
        (self.at.context + self.context() * self.at.data) % self.shard
    }

    /// The first sequence of a microbatch among those of a step.
    pub fn first_sequence(&self, microbatch: usize) -> usize {
        (self.at.data * self.microbatches + microbatch) * self.micro_batch()
    }
}
