//! The named grid of ranks.

use crate::program::Axis;
use serde::{Deserialize, Serialize};

/// How many ranks along each axis.
///
/// Ranks are numbered tensor first, then context, then data, then pipeline (Megatron's `tp-cp-ep-dp-pp`):
/// rank = t + T · (c + C · (d + D · p)), or in the other `RankOrder` rank = t + T · (c + C · (p + P · d)). Every other axis
/// divides one of these, or the ranks of a stage, T · C · D, anew: the experts of a layer lie on
/// `expert_tensor` · `expert` neighbouring ones of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mesh {
    /// Ranks that share each layer.
    pub tensor: usize,
    /// Ranks that hold successive layers.
    pub pipeline: usize,
    /// Ranks with the same weights and other sequences.
    pub data: usize,
    /// Ranks with the same weights and other parts of the same sequences.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub context: usize,
    /// Ranks that share the experts of a layer.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub expert: usize,
    /// Neighbouring ones of them that are in one node, for dispatchers that distinguish nodes.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub expert_inner: usize,
    /// Ranks that share each expert; left out: the number that shares each layer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expert_tensor: Option<usize>,
    /// Rows, and columns, of the grid that tensor ranks form in 2-D, 2.5-D and 3-D tensor parallelism, q; what is left
    /// of them is its depth.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub tensor_rows: usize,
    /// Neighbouring context ranks that exchange heads for parts of the sequence, in hybrids.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub context_inner: usize,
    /// Neighbouring ranks of the data axis that split the training state among them, each set holding all of it
    /// (hybrid sharding); left out: all of the axis.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<usize>,
    /// Which of data and pipeline is numbered first, so that its ranks are nearer to each other.
    #[serde(default, skip_serializing_if = "RankOrder::is_default")]
    pub order: RankOrder,
}

/// In which order ranks are numbered along the axes, the first one's being neighbours: what shares nodes, and what goes
/// over the network between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub enum RankOrder {
    /// Tensor, context, data, pipeline.
    #[default]
    #[serde(rename = "tp-cp-dp-pp")]
    PipelineLast,
    /// Tensor, context, pipeline, data.
    #[serde(rename = "tp-cp-pp-dp")]
    DataLast,
}

impl RankOrder {
    /// Both.
    pub const ALL: [RankOrder; 2] = [RankOrder::PipelineLast, RankOrder::DataLast];

    /// The name in plans.
    pub fn name(self) -> &'static str {
        match self {
            RankOrder::PipelineLast => "tp-cp-dp-pp",
            RankOrder::DataLast => "tp-cp-pp-dp",
        }
    }

    /// Whether it is the one that counts where nothing is said.
    pub fn is_default(&self) -> bool {
        *self == RankOrder::default()
    }
}

fn one() -> usize {
    1
}

fn is_one(size: &usize) -> bool {
    *size == 1
}

/// One rank's place on the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Coordinates {
    /// On the tensor axis.
    pub tensor: usize,
    /// On the context axis.
    pub context: usize,
    /// Among the ranks with other sequences.
    pub data: usize,
    /// On the pipeline axis.
    pub pipeline: usize,
}

/// The groups of an axis: `count` ranks each, every `stride`-th.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stride {
    /// From a member to the next.
    pub stride: usize,
    /// Members.
    pub count: usize,
}

impl Mesh {
    /// A grid of tensor, pipeline and data ranks.
    pub fn new(tensor: usize, pipeline: usize, data: usize) -> Self {
        Mesh {
            tensor,
            pipeline,
            data,
            context: 1,
            expert: 1,
            expert_inner: 1,
            expert_tensor: None,
            tensor_rows: 1,
            context_inner: 1,
            shard: None,
            order: RankOrder::default(),
        }
    }

    /// Ranks in all.
    pub fn ranks(&self) -> usize {
        self.stage_ranks().saturating_mul(self.pipeline)
    }

    /// Ranks that hold a stage, T · C · D.
    pub fn stage_ranks(&self) -> usize {
        self.tensor.saturating_mul(self.weight_copies())
    }

    /// Ranks with the same weights, C · D: the ranks of `Axis::Data`.
    pub fn weight_copies(&self) -> usize {
        self.context.saturating_mul(self.data)
    }

    /// Ranks that share each expert.
    pub fn expert_tensor(&self) -> usize {
        self.expert_tensor.unwrap_or(self.tensor)
    }

    /// Whether the ranks that hold the same of an expert are others than those that hold the same of a dense layer.
    pub fn experts_apart(&self) -> bool {
        self.within(Axis::ExpertData) != self.within(Axis::Data)
    }

    /// Ranks in each group of an axis; of the embedding's, both ends.
    pub fn size(&self, axis: Axis) -> usize {
        self.within(axis).map_or(self.pipeline.min(2), |groups| groups.count)
    }

    /// Ranks of the data axis that split the training state among them.
    pub fn shard(&self) -> usize {
        self.shard.unwrap_or(self.weight_copies())
    }

    /// Neighbouring ranks of a stage, before those of another stage or with other sequences follow.
    fn block(&self) -> usize {
        match self.order {
            RankOrder::PipelineLast => self.stage_ranks(),
            RankOrder::DataLast => self.tensor.saturating_mul(self.context),
        }
    }

    /// The rank at these coordinates.
    pub fn rank(&self, at: Coordinates) -> usize {
        let within = at.tensor + self.tensor * (at.context + self.context * at.data);
        self.global(within, at.pipeline)
    }

    /// The rank that is the `within`-th of a stage's.
    fn global(&self, within: usize, pipeline: usize) -> usize {
        let block = self.block();
        within % block + block * (pipeline + self.pipeline * (within / block))
    }

    /// Which of its stage's ranks a rank is.
    pub fn within_stage(&self, rank: usize) -> usize {
        let block = self.block();
        rank % block + block * (rank / block / self.pipeline)
    }

    /// The first rank of a pipeline rank.
    pub fn first_of(&self, pipeline: usize) -> usize {
        self.global(0, pipeline)
    }

    /// The last rank of a pipeline rank.
    pub fn last_of(&self, pipeline: usize) -> usize {
        self.global(self.stage_ranks() - 1, pipeline)
    }

    /// The coordinates of a rank.
    pub fn coordinates(&self, rank: usize) -> Coordinates {
        let within = self.within_stage(rank);
        Coordinates {
            tensor: within % self.tensor,
            context: within / self.tensor % self.context,
            data: within / self.tensor / self.context,
            pipeline: rank / self.block() % self.pipeline,
        }
    }

    /// The place of a rank in its group of an axis; 0 on an axis whose groups are no part of a stage.
    pub fn place(&self, rank: usize, axis: Axis) -> usize {
        match (axis, self.within(axis)) {
            (Axis::Pipeline, _) => self.coordinates(rank).pipeline,
            (_, Some(Stride { stride, count })) => self.within_stage(rank) / stride % count,
            (_, None) => 0,
        }
    }

    /// How the ranks of an axis lie; `None` for an axis whose groups are not evenly spaced.
    pub fn stride(&self, axis: Axis) -> Option<Stride> {
        let (within, block) = (self.within(axis)?, self.block());
        match within {
            _ if axis == Axis::Pipeline => Some(Stride { stride: block, ..within }),
            Stride { stride, count } if stride * count <= block || count == 1 => Some(within),
            Stride { stride, count } if stride.is_multiple_of(block) => {
                Some(Stride { stride: stride * self.pipeline, count })
            }
            _ => None,
        }
    }

    /// How the ranks of an axis lie among those of a stage, or for the pipeline's if these are neighbours; `None` for the ends
    /// of pipelines.
    fn within(&self, axis: Axis) -> Option<Stride> {
        let of = |stride, count| Some(Stride { stride, count });
        let square = self.tensor_rows * self.tensor_rows;
        let experts = self.expert_tensor() * self.expert;
        match axis {
            Axis::Tensor => of(1, self.tensor),
            Axis::TensorRow => of(1, self.tensor_rows),
            Axis::TensorColumn => of(self.tensor_rows, self.tensor_rows),
            Axis::TensorDepth => of(square, if self.tensor_rows == 1 { 1 } else { self.tensor / square }),
            Axis::Context => of(self.tensor, self.context),
            Axis::ContextInner => of(self.tensor, self.context_inner),
            Axis::ContextOuter => of(self.tensor * self.context_inner, self.context / self.context_inner),
            Axis::ExpertTensor => of(1, self.expert_tensor()),
            Axis::Expert => of(self.expert_tensor(), self.expert),
            Axis::ExpertInner => of(self.expert_tensor(), self.expert_inner),
            Axis::ExpertOuter => {
                of(self.expert_tensor() * self.expert_inner, self.expert / self.expert_inner)
            }
            Axis::ExpertData => of(experts, self.stage_ranks() / experts),
            Axis::Data => of(self.tensor, self.weight_copies()),
            Axis::Shard => of(self.tensor, self.shard()),
            Axis::Replica => of(self.tensor * self.shard(), self.weight_copies() / self.shard()),
            Axis::Pipeline => of(self.stage_ranks(), self.pipeline),
            Axis::Embedding | Axis::Mirror => None,
        }
    }

    /// The ranks that `rank` communicates with along `axis`, itself included, ascending. The embedding's are the ends
    /// of the rank's pipeline, whether it is one of them or not.
    pub fn group(&self, rank: usize, axis: Axis) -> Vec<usize> {
        let (within, pipeline) = (self.within_stage(rank), rank / self.block() % self.pipeline);
        match self.within(axis) {
            _ if axis == Axis::Pipeline => {
                (0..self.pipeline).map(|pipeline| self.global(within, pipeline)).collect()
            }
            Some(Stride { stride, count }) => {
                let first = within - within / stride % count * stride;
                (0..count).map(|place| self.global(first + place * stride, pipeline)).collect()
            }
            None => {
                let last = self.pipeline - 1;
                let place = if axis == Axis::Mirror { pipeline } else { 0 };
                let ends = [place.min(last - place), place.max(last - place)];
                let mut pair = ends.map(|at| self.global(within, at)).to_vec();
                pair.dedup();
                pair
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_numbered_tensor_first() {
        let mesh = Mesh::new(2, 3, 2);
        let check =
            |rank, axis, expected: &[usize]| assert_eq!(mesh.group(rank, axis), expected, "{rank} {axis:?}");
        check(5, Axis::Tensor, &[4, 5]);
        check(5, Axis::Data, &[5, 7]);
        check(5, Axis::Pipeline, &[1, 5, 9]);
        check(1, Axis::Embedding, &[1, 9]);
        check(5, Axis::Embedding, &[1, 9]);
        check(9, Axis::Mirror, &[1, 9]);
        check(5, Axis::Mirror, &[5]);
        for rank in 0..mesh.ranks() {
            assert_eq!(mesh.rank(mesh.coordinates(rank)), rank);
        }
    }

    #[test]
    fn pipelines_can_be_numbered_before_data() {
        let mesh = Mesh { order: RankOrder::DataLast, ..Mesh::new(2, 3, 2) };
        let check =
            |rank, axis, expected: &[usize]| assert_eq!(mesh.group(rank, axis), expected, "{rank} {axis:?}");
        // Ranks 0 and 1 are tensor ranks, 0, 2, 4 a pipeline, 0 and 6 have the same weights.
        check(5, Axis::Tensor, &[4, 5]);
        check(5, Axis::Data, &[5, 11]);
        check(5, Axis::Pipeline, &[1, 3, 5]);
        check(9, Axis::Pipeline, &[7, 9, 11]);
        check(9, Axis::Embedding, &[7, 11]);
        assert_eq!(mesh.stride(Axis::Data), Some(Stride { stride: 6, count: 2 }));
        assert_eq!(mesh.stride(Axis::Pipeline), Some(Stride { stride: 2, count: 3 }));
        assert_eq!((mesh.first_of(1), mesh.last_of(1)), (2, 9));
        // Context ranks stay neighbours; with them the ranks of the data axis are not evenly spaced.
        let context = Mesh { context: 2, ..mesh };
        assert_eq!(context.group(0, Axis::Context), [0, 2]);
        assert_eq!(context.group(0, Axis::Data), [0, 2, 12, 14]);
        assert_eq!((context.stride(Axis::Data), context.size(Axis::Data)), (None, 4));
        assert_eq!(context.place(14, Axis::Data), 3);
        for mesh in [mesh, context, Mesh { expert: 4, ..context }] {
            for rank in 0..mesh.ranks() {
                assert_eq!(mesh.rank(mesh.coordinates(rank)), rank);
                for axis in Axis::ALL {
                    let group = mesh.group(rank, axis);
                    assert!(axis == Axis::Embedding || group.contains(&rank), "{rank} {axis:?}");
                    if mesh.within(axis).is_some() {
                        assert_eq!(group[mesh.place(rank, axis)], rank, "{rank} {axis:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn other_axes_divide_the_ranks_of_a_stage() {
        let mesh = Mesh {
            context: 4,
            context_inner: 2,
            expert: 4,
            expert_inner: 2,
            expert_tensor: Some(1),
            shard: Some(4),
            ..Mesh::new(2, 2, 2)
        };
        let check =
            |rank, axis, expected: &[usize]| assert_eq!(mesh.group(rank, axis), expected, "{rank} {axis:?}");
        assert_eq!((mesh.ranks(), mesh.stage_ranks()), (32, 16));
        check(19, Axis::Context, &[17, 19, 21, 23]);
        check(19, Axis::ContextInner, &[17, 19]);
        check(19, Axis::ContextOuter, &[19, 23]);
        check(19, Axis::Data, &[17, 19, 21, 23, 25, 27, 29, 31]);
        check(19, Axis::Shard, &[17, 19, 21, 23]);
        check(19, Axis::Replica, &[19, 27]);
        check(19, Axis::Expert, &[16, 17, 18, 19]);
        check(19, Axis::ExpertInner, &[18, 19]);
        check(19, Axis::ExpertOuter, &[17, 19]);
        check(19, Axis::ExpertData, &[19, 23, 27, 31]);
        assert!(mesh.experts_apart() && !Mesh { expert: 2, ..mesh }.experts_apart());
        assert!(!Mesh::new(2, 2, 2).experts_apart());
        check(19, Axis::ExpertTensor, &[19]);
        let grid = Mesh { tensor_rows: 2, ..Mesh::new(8, 1, 1) };
        assert_eq!(grid.group(6, Axis::TensorRow), [6, 7]);
        assert_eq!(grid.group(6, Axis::TensorColumn), [4, 6]);
        assert_eq!(grid.group(6, Axis::TensorDepth), [2, 6]);
        for rank in 0..mesh.ranks() {
            assert_eq!(mesh.rank(mesh.coordinates(rank)), rank);
            for axis in Axis::ALL {
                assert!(axis == Axis::Embedding || mesh.group(rank, axis).contains(&rank), "{rank} {axis:?}");
            }
        }
    }
}
