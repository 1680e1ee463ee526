//! Two binary trees over the nodes, with a chain through the ranks of each node.

use super::pipeline::{Lane, pipeline};
use super::steps::{Chunks, Effect};
use super::{Algorithm, CollectiveKind, Layout, Steps};

/// Each tree sums one half of the tensor up to its root and copies it down again, pipelined. A node with children
/// in one tree has none in the other, so that its NIC carries at most 2 n in each direction.
///
/// All-reduce in 2 (⌊log₂ N⌋ + k − 1) + m − 1 steps, for N nodes of k ranks and m pieces of each half.
/// Source: Sanders, Speck & Träff 2009, Parallel Computing 35(12), 581–594; NCCL src/graph/trees.cc and
/// src/graph/connect.cc for the chain.
#[derive(Debug, Clone, Copy)]
pub struct DoubleBinaryTree;

impl Algorithm for DoubleBinaryTree {
    fn name(&self) -> &'static str {
        "double-binary-tree"
    }

    fn steps(&self, kind: CollectiveKind, layout: Layout) -> Option<Steps> {
        let CollectiveKind::AllReduce = kind else { return None };
        let hops = layout.per_node() - 1;
        let down = hops + round_trip(layout);
        let both = Chunks::range(0, Half::BOTH.len());
        let lane = |from, to, effect, start| Lane { from, to, parts: both, effect, start };
        let mut lanes = Vec::new();
        for (part, half) in Half::BOTH.into_iter().enumerate() {
            lanes.extend(half.sum_over_nodes(layout, 0, part, hops));
        }
        for node in 0..layout.nodes() {
            let rank = |place| layout.rank(node, place);
            for place in 1..=hops {
                lanes.push(lane(rank(place), rank(place - 1), Effect::Add, hops - place));
                lanes.push(lane(rank(place - 1), rank(place), Effect::Copy, down + place - 1));
            }
        }
        Some(Steps::new(kind, layout, both.count * layout.pieces(), pipeline(lanes, layout.pieces())))
    }
}

/// One of the two trees.
#[derive(Debug, Clone, Copy)]
pub(super) enum Half {
    First,
    Second,
}

impl Half {
    pub const BOTH: [Half; 2] = [Half::First, Half::Second];

    /// The lanes that sum `part` over the ranks at `place` of their nodes up this tree and copy it down again,
    /// `round_trip` steps from `start` on.
    pub fn sum_over_nodes(self, layout: Layout, place: usize, part: usize, start: usize) -> Vec<Lane> {
        // The second tree is the first one over nodes renumbered by one: nodes at its even positions, which have
        // children, are at odd ones of the first.
        let shift = match self {
            Half::First => 0,
            Half::Second => 1,
        };
        let (nodes, parts) = (layout.nodes(), Chunks::one(part));
        let rank = |position: usize| layout.rank((position - 1 + shift) % nodes, place);
        let top = start + depth(layout);
        let edge = |position| {
            let above = parent(position, nodes)?;
            let (child, parent, level) = (rank(position), rank(above), levels(position, nodes));
            Some([
                Lane { from: child, to: parent, parts, effect: Effect::Add, start: top - level },
                Lane { from: parent, to: child, parts, effect: Effect::Copy, start: top + level - 1 },
            ])
        };
        (1..=nodes).filter_map(edge).flatten().collect()
    }
}

/// Steps of one piece up a tree over the nodes and down again.
pub(super) fn round_trip(layout: Layout) -> usize {
    2 * depth(layout)
}

/// Edges from the root of a tree over the nodes to its deepest leaf: ⌊log₂ N⌋.
fn depth(layout: Layout) -> usize {
    layout.nodes().ilog2() as usize
}

/// The parent of a position 1..=n in the binary tree whose in-order numbers they are: odd positions are leaves.
///
/// In a full tree the parent of …01000 or …11000 is …10000. Where that exceeds n, its ancestors follow.
fn parent(position: usize, n: usize) -> Option<usize> {
    let mut above = position;
    loop {
        let lowest = above & above.wrapping_neg();
        above = if above & (lowest << 1) != 0 { above - lowest } else { above + lowest };
        if above <= n {
            return Some(above);
        }
        if above.is_power_of_two() {
            return None;
        }
    }
}

/// Edges from a position to the root.
fn levels(position: usize, n: usize) -> usize {
    std::iter::successors(parent(position, n), |above| parent(*above, n)).count()
}

#[cfg(test)]
mod tests {
    use super::{levels, parent};

    #[test]
    fn the_tree_is_binary_with_leaves_at_odd_positions() {
        // Of seven: 4 over 2 and 6, 2 over 1 and 3, 6 over 5 and 7. Of five: 6 is missing, so 5 hangs under 4.
        let parents = |n| (1..=n).map(|position| parent(position, n).unwrap_or(0)).collect::<Vec<_>>();
        assert_eq!(parents(7), [2, 4, 2, 0, 6, 4, 6]);
        assert_eq!(parents(5), [2, 4, 2, 0, 4]);
        assert_eq!(parents(1), [0]);
        for n in 1..=200 {
            let parents = parents(n);
            assert_eq!(parents.iter().filter(|above| **above == 0).count(), 1, "{n} have one root");
            for position in 1..=n {
                let children = parents.iter().filter(|above| **above == position).count();
                assert!(
                    children <= if position % 2 == 0 { 2 } else { 0 },
                    "{position} of {n} has {children}"
                );
                assert!(levels(position, n) <= n.ilog2() as usize, "{position} of {n}");
            }
        }
    }
}
