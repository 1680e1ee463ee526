//! The group of a collective.

/// The ranks of a collective as one of them sees them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Members {
    /// Number of the group.
    pub group: usize,
    /// Global ranks.
    pub ranks: Vec<usize>,
    /// This rank's place among them.
    pub place: usize,
}

impl Members {
    /// The global rank of this member.
    pub fn rank(&self) -> usize {
        self.ranks[self.place]
    }

    /// The global ranks of the other members.
    pub fn others(&self) -> impl Iterator<Item = usize> + '_ {
        let this = self.rank();
        self.ranks.iter().copied().filter(move |rank| *rank != this)
    }
}
