//! How the members of a group lie on nodes, which is all that an algorithm knows of a cluster.

use crate::error::SpecError;

/// A group of ranks, node by node: rank r of the group is on its node r / per node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Layout {
    ranks: usize,
    per_node: usize,
    pieces: usize,
}

impl Layout {
    /// `ranks` in all, `per_node` on each node; pipelined algorithms cut the tensor, or each part of it that takes
    /// another way, into `pieces`. A group with unequal numbers on its nodes is laid out flat.
    ///
    /// # Errors
    /// `BadValue` where one of them is zero, or the ranks do not fill the nodes.
    pub fn new(ranks: usize, per_node: usize, pieces: usize) -> Result<Self, SpecError> {
        let bad = |key: &str, value: usize, allowed: String| SpecError::BadValue {
            origin: "collective".into(),
            key: key.into(),
            value: value.to_string(),
            allowed,
        };
        let most = u32::MAX as usize / 2;
        if !(1..=most).contains(&ranks) {
            return Err(bad("ranks", ranks, format!("a group has 1 to {most} ranks")));
        }
        if per_node == 0 || !ranks.is_multiple_of(per_node) {
            let allowed = format!("nodes with equally many of the {ranks} ranks; 1 suits every group");
            return Err(bad("per_node", per_node, allowed));
        }
        if pieces == 0 {
            return Err(bad("pieces", pieces, "a tensor has at least 1 piece".into()));
        }
        Ok(Self { ranks, per_node, pieces })
    }

    /// `ranks` on a node each, and nothing cut for pipelining.
    ///
    /// # Errors
    /// As `new`.
    pub fn flat(ranks: usize) -> Result<Self, SpecError> {
        Self::new(ranks, 1, 1)
    }

    /// Ranks in the group, p.
    pub fn ranks(self) -> usize {
        self.ranks
    }

    /// Ranks of the group on each node, k.
    pub fn per_node(self) -> usize {
        self.per_node
    }

    /// Nodes, N = p / k.
    pub fn nodes(self) -> usize {
        self.ranks / self.per_node
    }

    /// Pieces that a pipelined algorithm cuts the tensor into, m.
    pub fn pieces(self) -> usize {
        self.pieces
    }

    /// The rank at `place` on `node`.
    pub(super) fn rank(self, node: usize, place: usize) -> usize {
        node * self.per_node + place
    }
}

#[cfg(test)]
mod tests {
    use super::Layout;

    #[test]
    fn what_is_no_layout_is_refused() {
        let check = |ranks, per_node, pieces, expected: &str| {
            assert_eq!(Layout::new(ranks, per_node, pieces).unwrap_err().to_string(), expected);
        };
        check(0, 1, 1, "collective: `ranks` is 0; a group has 1 to 2147483647 ranks");
        let uneven = "nodes with equally many of the 6 ranks; 1 suits every group";
        check(6, 4, 1, &format!("collective: `per_node` is 4; {uneven}"));
        check(6, 0, 1, &format!("collective: `per_node` is 0; {uneven}"));
        check(6, 2, 0, "collective: `pieces` is 0; a tensor has at least 1 piece");
    }
}
