//! What is the same of all transports between processes: messages to oneself, waiting for what comes, and parting.
//!
//! ```text
//! ranks and speakers ─► Peers ─► Wire (tcp.rs, mpi.rs) ═══► its counterpart in another process ─► Inbox ─► who waits
//! ```
//!
//! Nobody leaves before the others have said farewell too: what a process that has ended still had to send is thrown away by the
//! operating system as soon as something arrives for it.

use super::inbox::{ABORT, FAREWELL, Inbox, Mark, SIGN, mark};
use super::{Heard, Route, Tag, Transport};
use crate::device::host_buffers::return_buffer;
use crate::error::Fault;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a last word may take where a run has failed.
pub(super) const LAST_WORD: Duration = Duration::from_millis(500);

/// Carries what one process says to others; what comes goes into the process's inbox.
pub(crate) trait Wire: Send + Sync {
    /// Tells a rank something; one that is gone hears nothing, and who waits for it will know.
    fn tell(&self, to: usize, mark: Mark, numbers: &[f32]);

    /// Tells every rank a last thing, and waits for nobody who does not listen.
    fn tell_all(&self, mark: Mark);

    /// One more of the process's threads waits for a message that holds a rank up, or does no longer.
    fn waits(&self, _waits: bool) {}

    /// Everything has been said and heard, or nobody listens.
    fn close(&mut self);
}

/// The other processes of a run.
pub(crate) struct Peers<W: Wire> {
    rank: usize,
    inbox: Arc<Inbox>,
    wire: W,
    has_aborted: AtomicBool,
}

impl<W: Wire> Peers<W> {
    /// Those that a rank has met.
    pub(super) fn new(rank: usize, inbox: Arc<Inbox>, wire: W) -> Self {
        Self { rank, inbox, wire, has_aborted: AtomicBool::new(false) }
    }

    /// What carries the messages.
    #[cfg(test)]
    pub(super) fn wire(&self) -> &W {
        &self.wire
    }
}

impl<W: Wire> Transport for Peers<W> {
    fn send(&self, route: Route, message: Vec<f32>) {
        if route.to == self.rank {
            self.inbox.put(route, message);
            return;
        }
        self.wire.tell(route.to, mark(route.tag), &message);
        return_buffer(message);
    }

    fn receive(&self, route: Route) -> Result<Vec<f32>, Fault> {
        // What is said of steps holds nobody up.
        if route.tag == Tag::Report || self.inbox.has(route) {
            return self.inbox.take(route);
        }
        self.wire.waits(true);
        let message = self.inbox.take(route);
        self.wire.waits(false);
        message
    }

    fn look(&self, route: Route) -> Option<Vec<f32>> {
        self.inbox.look(route)
    }

    fn abort(&self) {
        self.inbox.end(Fault::Aborted);
        if !self.has_aborted.swap(true, Ordering::Relaxed) {
            self.wire.tell_all(ABORT);
        }
    }

    fn say(&self, to: usize, sign: &[f32]) {
        self.wire.tell(to, SIGN, sign);
    }

    fn heard(&self, from: usize) -> Option<Heard> {
        (from != self.rank).then(|| self.inbox.heard(from))
    }
}

impl<W: Wire> Drop for Peers<W> {
    fn drop(&mut self) {
        self.wire.tell_all(FAREWELL);
        self.inbox.wait_for_farewells(LAST_WORD);
        self.wire.close();
    }
}
