//! The ranks of this process.

use crate::comm::transport::Transport;
use std::sync::Arc;
use std::time::Instant;

/// The ranks of this process, and how they reach all others.
pub(crate) struct LocalRanks {
    /// Global ranks.
    pub ranks: Vec<usize>,
    /// The number of this process's rank among those of its machine, if ranks are processes.
    pub local_rank: Option<usize>,
    pub transport: Arc<dyn Transport>,
    /// From when on times are counted.
    pub began: Instant,
}

impl LocalRanks {
    /// Whether rank 0 is among them, to which all others report.
    pub fn leads(&self) -> bool {
        self.ranks.contains(&0)
    }
}
