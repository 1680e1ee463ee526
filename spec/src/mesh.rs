//! The named grid of ranks.

use crate::program::Axis;
use serde::{Deserialize, Serialize};

/// How many ranks along each axis.
///
/// Ranks are numbered tensor first, then context, then data, then pipeline (Megatron's `tp-cp-ep-dp-pp`):
/// rank = t + T · (c + C · (d + D · p)). Every other axis divides one of these, or the ranks of a stage, T · C · D,
/// anew: the experts of a layer lie on `expert_tensor` · `expert` neighbouring ranks of them.
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
    /// Neighbouring ones of them that are in one node, for dispatchers that tell nodes apart.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub expert_inner: usize,
    /// Ranks that share each expert; left out: as many as share each layer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expert_tensor: Option<usize>,
    /// Rows, and columns, of the grid that tensor ranks form in 2-D, 2.5-D and 3-D tensor parallelism, q; what is left
    /// of them is its depth.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub tensor_rows: usize,
    /// Neighbouring context ranks that exchange heads for parts of the sequence, in hybrids.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub context_inner: usize,
    /// Neighbouring ranks of the data axis that split the training state among them, each such set holding all of it
    /// (hybrid sharding); left out: all of the axis.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<usize>,
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
        self.stride(Axis::ExpertData) != self.stride(Axis::Data)
    }

    /// Ranks in each group of an axis; of the embedding's, both ends.
    pub fn size(&self, axis: Axis) -> usize {
        self.stride(axis).map_or(self.pipeline.min(2), |groups| groups.count)
    }

    /// Ranks of the data axis that split the training state among them.
    pub fn shard(&self) -> usize {
        self.shard.unwrap_or(self.weight_copies())
    }

    /// The rank at these coordinates.
    pub fn rank(&self, at: Coordinates) -> usize {
        at.tensor + self.tensor * (at.context + self.context * (at.data + self.data * at.pipeline))
    }

    /// The coordinates of a rank.
    pub fn coordinates(&self, rank: usize) -> Coordinates {
        Coordinates {
            tensor: rank % self.tensor,
            context: rank / self.tensor % self.context,
            data: rank / self.tensor / self.context % self.data,
            pipeline: rank / self.stage_ranks(),
        }
    }

    /// How the ranks of an axis lie; none for an axis whose groups are not evenly spaced.
    pub fn stride(&self, axis: Axis) -> Option<Stride> {
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
        if let Some(Stride { stride, count }) = self.stride(axis) {
            let first = rank - rank / stride % count * stride;
            return (0..count).map(|place| first + place * stride).collect();
        }
        let within = rank % self.stage_ranks();
        let last = self.pipeline - 1;
        let place = if axis == Axis::Mirror { rank / self.stage_ranks() } else { 0 };
        let mut pair = [place.min(last - place), place.max(last - place)]
            .map(|at| within + at * self.stage_ranks())
            .to_vec();
        pair.dedup();
        pair
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
