//! Messages that have come to a process and that nobody has asked for yet, and what is known of the other processes.

use super::header::{ABORT, FAREWELL, Header, STATUS, tag_of};
use super::message::{Envelope, Payload, PeerStatus};
use crate::error::Fault;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The messages of a process.
pub(super) struct Inbox {
    content: Mutex<Content>,
    changed: Condvar,
    /// By rank.
    peers: Vec<Mutex<Peer>>,
    connected: Instant,
}

/// A process that was silent for this long will not say farewell either.
const SILENCE: Duration = Duration::from_secs(10);

/// Between two checks who has said farewell.
const REST: Duration = Duration::from_millis(20);

#[derive(Default)]
struct Content {
    messages: BTreeMap<Envelope, VecDeque<Payload>>,
    ended: Option<Fault>,
}

/// What is known of another process.
struct Peer {
    /// When anything came from it last.
    last: Instant,
    /// Its last status.
    status: Option<Vec<u8>>,
    /// Whether nothing comes from it any more.
    gone: bool,
}

impl Inbox {
    /// Of the process of rank `local`, in a run of `ranks` ranks.
    pub fn new(local: usize, ranks: usize) -> Self {
        let connected = Instant::now();
        let peer = |rank| Mutex::new(Peer { last: connected, status: None, gone: rank == local });
        let peers = (0..ranks).map(peer).collect();
        Self { content: Mutex::default(), changed: Condvar::new(), peers, connected }
    }

    /// The content is whole even if somebody panicked while holding the lock: each change is one call.
    fn lock(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn peer(&self, rank: usize) -> MutexGuard<'_, Peer> {
        self.peers[rank].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A message has come.
    pub fn put(&self, envelope: Envelope, message: Payload) {
        self.lock().messages.entry(envelope).or_default().push_back(message);
        self.changed.notify_all();
    }

    /// Waits for the next message with this envelope.
    pub fn take(&self, envelope: Envelope) -> Result<Payload, Fault> {
        let mut content = self.lock();
        loop {
            if let Some(message) = content.messages.get_mut(&envelope).and_then(VecDeque::pop_front) {
                return Ok(message);
            }
            if let Some(fault) = &content.ended {
                return Err(fault.clone());
            }
            content = self.changed.wait(content).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The next message with this envelope, if it is there.
    pub fn try_take(&self, envelope: Envelope) -> Option<Payload> {
        self.lock().messages.get_mut(&envelope).and_then(VecDeque::pop_front)
    }

    /// Whether the next message with this envelope is there.
    pub fn has(&self, envelope: Envelope) -> bool {
        self.lock().messages.get(&envelope).is_some_and(|messages| !messages.is_empty())
    }

    /// Whether nothing comes any more.
    #[cfg(feature = "mpi")]
    pub fn has_ended(&self) -> bool {
        self.lock().ended.is_some()
    }

    /// Nothing comes any more: the first reason stays.
    pub fn end(&self, fault: Fault) {
        self.lock().ended.get_or_insert(fault);
        self.changed.notify_all();
    }

    /// Nothing comes from a rank any more although it has not said farewell.
    pub fn lose(&self, rank: usize, how: &str) {
        let last = {
            let mut peer = self.peer(rank);
            peer.gone = true;
            peer.last
        };
        let [connected, last] = [self.connected, last].map(|instant| instant.elapsed().as_secs_f64());
        let how = format!(
            "{how}; {connected:.2} s after they connected, {last:.2} s after the last that came from it"
        );
        self.end(Fault::Lost { rank, how });
    }

    /// Whether nothing comes from any rank any more.
    #[cfg(any(test, feature = "mpi"))]
    pub fn all_are_gone(&self) -> bool {
        (0..self.peers.len()).all(|rank| self.peer(rank).gone)
    }

    /// Waits until the others have said farewell too, where the run has failed no longer than `limit`, and not for one that
    /// hangs.
    pub fn wait_for_farewells(&self, limit: Duration) {
        let began = Instant::now();
        let is_awaited = |rank: usize| {
            let peer = self.peer(rank);
            !peer.gone && peer.last.elapsed() < SILENCE
        };
        while (0..self.peers.len()).any(is_awaited) {
            let content = self.lock();
            if content.ended.is_some() && began.elapsed() > limit {
                return;
            }
            let woken = self.changed.wait_timeout(content, REST);
            drop(woken.unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Something has come from a rank.
    pub fn saw(&self, rank: usize) {
        self.peer(rank).last = Instant::now();
    }

    /// What is known of a rank of another process.
    pub fn peer_status(&self, rank: usize) -> PeerStatus {
        let peer = self.peer(rank);
        // A rank without a status yet may be reading its data, and one that has said farewell owes nothing.
        let beats = peer.status.is_some() && !peer.gone;
        PeerStatus { status: peer.status.clone(), silence: beats.then(|| peer.last.elapsed()) }
    }

    /// Takes what has come from a rank; false if that was the last.
    pub fn sort(&self, (from, to): (usize, usize), header: Header, message: Payload) -> bool {
        match (header, message) {
            (FAREWELL, _) => {
                self.peer(from).gone = true;
                self.changed.notify_all();
                return false;
            }
            (ABORT, _) => self.end(Fault::Aborted),
            (STATUS, Payload::Bytes(status)) => self.peer(from).status = Some(status),
            (header, message) => match tag_of(header) {
                Some(tag) => self.put(Envelope { from, to, tag }, message),
                None => {
                    self.lose(from, "what came from it is no message of a rank");
                    return false;
                }
            },
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::transport::Tag;
    use std::time::Duration;

    fn nothing() -> Payload {
        Payload::Bytes(Vec::new())
    }

    #[test]
    fn only_a_rank_with_a_status_and_no_farewell_can_be_silent() {
        let inbox = Inbox::new(0, 2);
        assert_eq!(inbox.peer_status(1).silence, None);
        assert!(inbox.sort((1, 0), STATUS, Payload::Bytes(vec![7])));
        std::thread::sleep(Duration::from_millis(5));
        let known = inbox.peer_status(1);
        assert!(known.status == Some(vec![7]) && known.silence >= Some(Duration::from_millis(5)));
        assert!(!inbox.sort((1, 0), FAREWELL, nothing()));
        assert_eq!(inbox.peer_status(1).silence, None);
    }

    #[test]
    fn a_lost_rank_is_reported_with_how_and_when_and_the_first_reason_stays() {
        let inbox = Inbox::new(0, 3);
        inbox.lose(2, "the connection was reset");
        inbox.end(Fault::Aborted);
        let fault = inbox.take(Envelope { from: 1, to: 0, tag: Tag::Report }).unwrap_err().to_string();
        let when = fault.strip_prefix("rank 2 is gone: the connection was reset; ").unwrap();
        let seconds = when.split_once(" s after they connected").unwrap().0;
        assert!(seconds.parse::<f64>().unwrap() >= 0.0, "{fault}");
    }

    #[test]
    fn parting_waits_for_farewells_but_not_for_long_where_a_run_has_failed() {
        let inbox = Inbox::new(0, 3);
        assert!(!inbox.sort((1, 0), FAREWELL, nothing()));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| inbox.wait_for_farewells(Duration::ZERO));
            std::thread::sleep(3 * REST);
            assert!(!waits.is_finished(), "rank 2 has not said farewell");
            assert!(!inbox.sort((2, 0), FAREWELL, nothing()));
            waits.join().unwrap();
        });
        assert!(inbox.all_are_gone());
        let failed = Inbox::new(0, 2);
        assert!(failed.sort((1, 0), ABORT, nothing()), "a farewell comes behind it");
        failed.wait_for_farewells(Duration::ZERO);
        assert!(!failed.all_are_gone());
    }
}
