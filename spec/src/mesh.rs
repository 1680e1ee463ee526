//! The named grid of ranks.

use crate::program::Axis;
use serde::{Deserialize, Serialize};

/// How many ranks along each axis.
///
/// Ranks are numbered tensor first, then data, then pipeline (Megatron's `tp-cp-ep-dp-pp`):
/// rank = t + T · (d + D · p).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mesh {
    /// Ranks that share each layer.
    pub tensor: usize,
    /// Ranks that hold successive layers.
    pub pipeline: usize,
    /// Ranks with the same weights and other data.
    pub data: usize,
}

/// One rank's place on the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Coordinates {
    /// On the tensor axis.
    pub tensor: usize,
    /// On the data axis.
    pub data: usize,
    /// On the pipeline axis.
    pub pipeline: usize,
}

impl Mesh {
    /// Ranks in all.
    pub fn ranks(&self) -> usize {
        self.tensor * self.pipeline * self.data
    }

    /// The rank at these coordinates.
    pub fn rank(&self, at: Coordinates) -> usize {
        at.tensor + self.tensor * (at.data + self.data * at.pipeline)
    }

    /// The coordinates of a rank.
    pub fn coordinates(&self, rank: usize) -> Coordinates {
        Coordinates {
            tensor: rank % self.tensor,
            data: rank / self.tensor % self.data,
            pipeline: rank / self.tensor / self.data,
        }
    }

    /// The ranks that `rank` communicates with along `axis`, itself included, ascending.
    pub fn group(&self, rank: usize, axis: Axis) -> Vec<usize> {
        let own = self.coordinates(rank);
        match axis {
            Axis::Tensor => (0..self.tensor).map(|tensor| self.rank(Coordinates { tensor, ..own })).collect(),
            Axis::Data => (0..self.data).map(|data| self.rank(Coordinates { data, ..own })).collect(),
            Axis::Pipeline => {
                (0..self.pipeline).map(|pipeline| self.rank(Coordinates { pipeline, ..own })).collect()
            }
            Axis::Embedding => {
                let ends = [0, self.pipeline - 1];
                let distinct = if self.pipeline > 1 { &ends[..] } else { &ends[..1] };
                distinct.iter().map(|&pipeline| self.rank(Coordinates { pipeline, ..own })).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_numbered_tensor_first() {
        let mesh = Mesh { tensor: 2, pipeline: 3, data: 2 };
        let check =
            |rank, axis, expected: &[usize]| assert_eq!(mesh.group(rank, axis), expected, "{rank} {axis:?}");
        check(5, Axis::Tensor, &[4, 5]);
        check(5, Axis::Data, &[5, 7]);
        check(5, Axis::Pipeline, &[1, 5, 9]);
        check(1, Axis::Embedding, &[1, 9]);
        for rank in 0..mesh.ranks() {
            assert_eq!(mesh.rank(mesh.coordinates(rank)), rank);
        }
    }
}
