//! Ending a run early, at the same step on all ranks, with a checkpoint of that step.
//!
//! ```text
//! begin of a step   ranks with a request ─► rank 0, which decides ─► every rank
//! end of the step   every rank reads the decision: it has been on its way for a step, so nobody waits for it
//! ```

use crate::comm::transport::{Envelope, Tag, Transport};
use crate::error::Fault;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// Lets another thread end a run early.
#[derive(Debug, Clone, Default)]
pub struct StopRequest(Arc<State>);

#[derive(Debug, Default)]
struct State {
    run: AtomicU8,
    /// Whether it was asked here. The run may end by a request of another process, which the one here then only follows.
    is_asked: AtomicBool,
}

/// The states of a run, as a request sees it.
const IDLE: u8 = 0;
const TRAINS: u8 = 1;
const REQUESTED: u8 = 2;
const STOPPED: u8 = 3;

impl StopRequest {
    /// Asks the run to end after a step, with a checkpoint; false if it does not train yet, or was asked before.
    pub fn request(&self) -> bool {
        let State { run, is_asked } = &*self.0;
        if run.load(Ordering::SeqCst) == IDLE || is_asked.swap(true, Ordering::SeqCst) {
            return false;
        }
        // If another process has asked before, the run ends all the same.
        let _ = run.compare_exchange(TRAINS, REQUESTED, Ordering::SeqCst, Ordering::SeqCst);
        true
    }

    /// Whether the run has ended early because it was asked to, here or in another process.
    pub fn has_stopped(&self) -> bool {
        self.0.run.load(Ordering::SeqCst) == STOPPED
    }

    fn is_requested(&self) -> bool {
        matches!(self.0.run.load(Ordering::SeqCst), REQUESTED | STOPPED)
    }
}

impl PartialEq for StopRequest {
    /// Whether both ask the same run.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// A rank's part in the decision.
pub(super) struct Stopping<'a> {
    request: &'a StopRequest,
    transport: &'a dyn Transport,
    rank: usize,
    ranks: usize,
    /// Whether rank 0 knows of the request; on rank 0 whether it has decided to end.
    known: bool,
}

impl<'a> Stopping<'a> {
    /// Of a rank that begins to train.
    pub fn new(request: &'a StopRequest, transport: &'a dyn Transport, [rank, ranks]: [usize; 2]) -> Self {
        let _ = request.0.run.compare_exchange(IDLE, TRAINS, Ordering::SeqCst, Ordering::SeqCst);
        Self { request, transport, rank, ranks, known: false }
    }

    /// A step begins.
    pub fn begin_step(&mut self) {
        let envelope = |from, to| Envelope { from, to, tag: Tag::Stop };
        if self.rank != 0 {
            if self.request.is_requested() && !self.known {
                self.known = true;
                self.transport.send_bytes(envelope(self.rank, 0), Vec::new());
            }
            return;
        }
        let asks = |other| self.transport.try_receive(envelope(other, 0)).is_some();
        self.known |= self.request.is_requested() | (1..self.ranks).any(asks);
        (1..self.ranks).for_each(|to| self.transport.send_bytes(envelope(0, to), vec![self.known.into()]));
    }

    /// Whether the run ends after the step that was begun last.
    pub fn ends(&self) -> Result<bool, Fault> {
        let ends = match self.rank {
            0 => self.known,
            rank => self.transport.receive_bytes(Envelope { from: 0, to: rank, tag: Tag::Stop })? == [1],
        };
        if ends {
            self.request.0.run.store(STOPPED, Ordering::SeqCst);
        }
        Ok(ends)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::transport::Mailboxes;

    /// The request comes to rank 2, which is the first in step 2: all end after step 3 at the latest, and together.
    #[test]
    fn all_ranks_end_after_the_same_step_whoever_was_asked() {
        let mailboxes = Mailboxes::new(3);
        let requests = [(); 3].map(|()| StopRequest::default());
        assert!(!requests[2].request(), "it does not train yet");
        let mut ranks: Vec<_> =
            (0..3).map(|rank| Stopping::new(&requests[rank], &mailboxes, [rank, 3])).collect();
        let mut step = |order: [usize; 3]| {
            order.into_iter().for_each(|rank| ranks[rank].begin_step());
            [0, 1, 2].map(|rank| ranks[rank].ends().unwrap())
        };
        assert_eq!(step([0, 1, 2]), [false; 3]);
        assert!(requests[2].request() && !requests[2].request(), "once is enough");
        // Rank 0 has begun the step before rank 2 asks.
        assert_eq!(step([0, 1, 2]), [false; 3]);
        assert!(requests.iter().all(|request| !request.has_stopped()));
        assert_eq!(step([1, 2, 0]), [true; 3]);
        assert!(requests.iter().all(StopRequest::has_stopped));
        // The same signal comes to the others later: they end with what the run saves, and only the next one ends them at once.
        assert!(requests[1].request() && !requests[1].request());
        assert!(!requests[2].request());
    }
}
