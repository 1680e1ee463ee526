//! Which process of a run this one is, and how the processes find each other.

use super::token::Token;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

/// Where one line for people goes that is no error; nowhere by default.
#[derive(Clone, Copy)]
pub struct Remark(pub fn(&str));

impl Default for Remark {
    fn default() -> Self {
        Self(|_| {})
    }
}

impl PartialEq for Remark {
    /// Where remarks go makes no difference to what is done.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl fmt::Debug for Remark {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("a remark")
    }
}

/// Which of how many processes this one is, and how they find each other.
#[derive(Debug, Clone)]
pub struct Rendezvous {
    /// This process's rank.
    pub rank: usize,
    /// How many processes there are.
    pub world: usize,
    /// Its number among the processes of its machine, if that is known.
    pub local_rank: Option<usize>,
    /// How many processes of the run are on its machine, if that is known; else all are taken to be there.
    pub local_world: Option<usize>,
    /// How they find each other.
    pub via: RendezvousVia,
    /// How long to wait until everybody is there.
    pub patience: Duration,
    /// What processes of this run know and strangers do not.
    pub token: Token,
    /// Gets a line for each stranger that was turned away.
    pub remark: Remark,
}

impl Rendezvous {
    /// The ranks of this machine, if launchers number them machine by machine.
    pub(crate) fn ranks_of_host(&self) -> Range<usize> {
        let count = self.local_world.unwrap_or(self.world).clamp(1, self.world);
        let first = self.rank - self.local_rank.unwrap_or(self.rank % count).min(self.rank);
        first..(first + count).min(self.world)
    }
}

/// How the processes of a run find each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RendezvousVia {
    /// Rank 0 listens there, as `host:port`; an IPv6 address stands in brackets.
    Tcp(String),
    /// They were started by MPI, which knows.
    Mpi,
}

impl fmt::Display for RendezvousVia {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str(match self {
            RendezvousVia::Tcp(master) => master,
            RendezvousVia::Mpi => "MPI's world",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_a_machine_are_consecutive() {
        let check = |rank, local_rank, local_world, expected| {
            let (via, (token, remark)) = (RendezvousVia::Mpi, Default::default());
            let patience = Duration::ZERO;
            let place = Rendezvous { rank, world: 8, local_rank, local_world, via, patience, token, remark };
            assert_eq!(place.ranks_of_host(), expected);
        };
        check(5, Some(1), Some(4), 4..8);
        check(5, None, Some(4), 4..8);
        check(7, Some(0), Some(3), 7..8);
        check(3, None, None, 0..8);
        check(3, Some(3), None, 0..8);
    }
}
