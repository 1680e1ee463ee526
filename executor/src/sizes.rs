//! What one rank has of a microbatch: the numbers all its kernels are called with.

use trainwright_spec::data::Divided;
use trainwright_spec::mesh::Coordinates;
use trainwright_spec::plan::Plan;

/// What of the training state data ranks keep pieces of; each has what is above it too.
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
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sizes {
    /// Where the rank is.
    pub at: Coordinates,
    /// Sequences of a microbatch.
    pub batch: usize,
    /// Tokens in each.
    pub sequence: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Ranks that share each layer.
    pub tensor: usize,
    /// Whether they share the sequence between the products.
    pub splits_sequence: bool,
    /// Entries of the vocabulary.
    pub vocabulary: usize,
    /// How many of them a rank has, the last one some that do not exist.
    pub own_vocabulary: usize,
    /// Microbatches of a step on a rank.
    pub microbatches: usize,
    /// Ranks that divide the optimizer's state.
    pub shard: usize,
    /// What else they divide.
    pub divides: Divides,
    /// The gradient of the step's loss by that of one token: 1 / tokens of the step.
    pub token_weight: f32,
}

impl Sizes {
    /// Those of `rank`.
    pub fn of(plan: &Plan, rank: usize) -> Self {
        let tensor = plan.mesh.tensor;
        Self {
            at: plan.mesh.coordinates(rank),
            batch: plan.micro_batch,
            sequence: plan.job.sequence,
            hidden: plan.model.hidden,
            tensor,
            splits_sequence: plan.sequence_parallel && tensor > 1,
            vocabulary: plan.model.vocab,
            own_vocabulary: plan.stack.padded_vocabulary(plan.model.vocab, tensor) / tensor,
            microbatches: plan.microbatches(),
            shard: if plan.shards_optimizer() { plan.mesh.shard() } else { 1 },
            divides: if plan.divides(Divided::Weights) {
                Divides::Weights
            } else if plan.shards_gradients() {
                Divides::Gradients
            } else {
                Divides::State
            },
            token_weight: 1.0 / plan.job.tokens() as f32,
        }
    }

    /// The first position that norms and additions of this rank see.
    pub fn first_position(&self) -> usize {
        if self.splits_sequence { self.sequence / self.tensor * self.at.tensor } else { 0 }
    }

    /// This rank's place among those that divide the optimizer's state.
    pub fn shard_place(&self) -> usize {
        self.at.data % self.shard
    }

    /// The first sequence of a microbatch among those of a step.
    pub fn first_sequence(&self, microbatch: usize) -> usize {
        (self.at.data * self.microbatches + microbatch) * self.batch
    }
}
