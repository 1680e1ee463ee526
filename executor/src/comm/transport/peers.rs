//! What all transports between processes share: messages to oneself, waiting for messages, and parting.
//!
//! ```text
//! ranks, heartbeats ─► Peers ─► Wire (tcp.rs, mpi.rs) ═══► its counterpart in another process ─► Inbox ─► who waits
//! ```
//!
//! No process leaves before the others have said farewell too: the operating system throws away what a process that has
//! ended still had to send as soon as something arrives for it.

use super::header::{ABORT, FAREWELL, Header, STATUS, header_of};
use super::inbox::Inbox;
use super::message::{Envelope, Payload, PeerStatus, Tag, Transport};
use crate::device::host_buffers::return_buffer;
use crate::error::Fault;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long the last message to a process may take if the run has failed.
pub(super) const LAST_WORD: Duration = Duration::from_millis(500);

/// Carries messages of one process to others; those of others go into the process's inbox.
pub(crate) trait Wire: Send + Sync {
    /// Sends to a rank. A rank that is gone gets nothing, and whoever waits for it learns of that.
    fn send(&self, to: usize, header: Header, payload: &Payload);

    /// Sends a last header to every rank, and waits for none that does not read.
    fn send_last(&self, header: Header);

    /// One more of the process's threads waits for a message that holds a rank up, or one less.
    fn set_waiting(&self, _waits: bool) {}

    /// Everything was sent and received, or nobody reads.
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
    /// Those that a rank is connected to.
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
    fn send_payload(&self, envelope: Envelope, payload: Payload) {
        if envelope.to == self.rank {
            self.inbox.put(envelope, payload);
            return;
        }
        self.wire.send(envelope.to, header_of(envelope.tag), &payload);
        if let Payload::Numbers(numbers) = payload {
            return_buffer(numbers);
        }
    }

    fn receive_payload(&self, envelope: Envelope) -> Result<Payload, Fault> {
        // Reports of steps hold no rank up.
        if envelope.tag == Tag::Report || self.inbox.has(envelope) {
            return self.inbox.take(envelope);
        }
        self.wire.set_waiting(true);
        let message = self.inbox.take(envelope);
        self.wire.set_waiting(false);
        message
    }

    fn try_receive(&self, envelope: Envelope) -> Option<Payload> {
        self.inbox.try_take(envelope)
    }

    fn abort(&self) {
        self.inbox.end(Fault::Aborted);
        if !self.has_aborted.swap(true, Ordering::Relaxed) {
            self.wire.send_last(ABORT);
        }
    }

    fn send_status(&self, to: usize, status: &[u8]) {
        self.wire.send(to, STATUS, &Payload::Bytes(status.to_vec()));
    }

    fn peer_status(&self, from: usize) -> Option<PeerStatus> {
        (from != self.rank).then(|| self.inbox.peer_status(from))
    }
}

impl<W: Wire> Drop for Peers<W> {
    fn drop(&mut self) {
        self.wire.send_last(FAREWELL);
        self.inbox.wait_for_farewells(LAST_WORD);
        self.wire.close();
    }
}
