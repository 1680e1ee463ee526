//! Which process of a run this one is, and how the processes find each other.

use std::fmt;
use std::time::Duration;

/// Which of how many processes this one is, and how they find each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendezvous {
    /// This process's rank.
    pub rank: usize,
    /// How many processes there are.
    pub world: usize,
    /// Its number among the processes of its machine, if that is known.
    pub local_rank: Option<usize>,
    /// How they find each other.
    pub via: RendezvousVia,
    /// How long to wait until everybody is there.
    pub patience: Duration,
}

/// How the processes of a run find each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RendezvousVia {
    /// Rank 0 listens there, as `host:port`.
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
