//! What has come to a process and nobody has asked for yet, and how messages are told apart on the way between processes.

use super::{Heard, Route, Tag};
use crate::error::Fault;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use trainwright_spec::program::Channel;

/// Three numbers before a message.
pub(crate) type Mark = [u32; 3];

/// What says that nothing comes after it, that a rank has given up, and what a rank says of itself.
pub(super) const FAREWELL: Mark = [u32::MAX, 0, 0];
pub(super) const ABORT: Mark = [u32::MAX, 1, 0];
pub(super) const SIGN: Mark = [u32::MAX, 2, 0];

/// The messages of a process.
pub(super) struct Inbox {
    content: Mutex<Content>,
    changed: Condvar,
    /// By rank.
    peers: Vec<Mutex<Peer>>,
    met: Instant,
}

/// Who has said nothing for so long will not say farewell either.
const SILENCE: Duration = Duration::from_secs(10);

/// How long to rest between two looks at who has.
const REST: Duration = Duration::from_millis(20);

#[derive(Default)]
struct Content {
    messages: BTreeMap<Route, VecDeque<Vec<f32>>>,
    ended: Option<Fault>,
}

/// What is known of another process.
struct Peer {
    /// When anything came from it last.
    last: Instant,
    /// What it said of itself last.
    sign: Option<Vec<f32>>,
    /// Whether nothing comes from it any more.
    gone: bool,
}

impl Inbox {
    /// Of a rank's process that hears of so many ranks.
    pub fn new(own: usize, ranks: usize) -> Self {
        let met = Instant::now();
        let peer = |rank| Mutex::new(Peer { last: met, sign: None, gone: rank == own });
        let peers = (0..ranks).map(peer).collect();
        Self { content: Mutex::default(), changed: Condvar::new(), peers, met }
    }

    /// The content is whole even if somebody panicked while holding the lock: each change is one call.
    fn lock(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn peer(&self, rank: usize) -> MutexGuard<'_, Peer> {
        self.peers[rank].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A message has come.
    pub fn put(&self, route: Route, message: Vec<f32>) {
        self.lock().messages.entry(route).or_default().push_back(message);
        self.changed.notify_all();
    }

    /// Waits for the next message on a route.
    pub fn take(&self, route: Route) -> Result<Vec<f32>, Fault> {
        let mut content = self.lock();
        loop {
            if let Some(message) = content.messages.get_mut(&route).and_then(VecDeque::pop_front) {
                return Ok(message);
            }
            if let Some(fault) = &content.ended {
                return Err(fault.clone());
            }
            content = self.changed.wait(content).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The next message on a route, if it is there.
    pub fn look(&self, route: Route) -> Option<Vec<f32>> {
        self.lock().messages.get_mut(&route).and_then(VecDeque::pop_front)
    }

    /// Whether the next message on a route is there.
    pub fn has(&self, route: Route) -> bool {
        self.lock().messages.get(&route).is_some_and(|messages| !messages.is_empty())
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
        let [met, last] = [self.met, last].map(|moment| moment.elapsed().as_secs_f64());
        let how = format!("{how}; {met:.2} s after they met, {last:.2} s after the last that came from it");
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
    pub fn lives(&self, rank: usize) {
        self.peer(rank).last = Instant::now();
    }

    /// What is known of a rank elsewhere.
    pub fn heard(&self, rank: usize) -> Heard {
        let peer = self.peer(rank);
        // Who has not said anything yet may be reading its data, and who has said farewell owes nothing.
        let speaks = peer.sign.is_some() && !peer.gone;
        Heard { sign: peer.sign.clone(), silence: speaks.then(|| peer.last.elapsed()) }
    }

    /// Takes what has come from a rank; false if that was the last.
    pub fn sort(&self, (from, to): (usize, usize), mark: Mark, message: Vec<f32>) -> bool {
        match mark {
            FAREWELL => {
                self.peer(from).gone = true;
                self.changed.notify_all();
                return false;
            }
            ABORT => self.end(Fault::Aborted),
            SIGN => self.peer(from).sign = Some(message),
            mark => match tag(mark) {
                Some(tag) => self.put(Route { from, to, tag }, message),
                None => {
                    self.lose(from, "what came from it is no message of a rank");
                    return false;
                }
            },
        }
        true
    }
}

/// A tag as numbers.
pub(crate) fn mark(tag: Tag) -> Mark {
    match tag {
        Tag::Stage(Channel::Activation(stage), microbatch) => [0, stage as u32, microbatch as u32],
        Tag::Stage(Channel::Gradient(stage), microbatch) => [1, stage as u32, microbatch as u32],
        Tag::Group(group) => [2, group as u32, 0],
        Tag::Report => [3, 0, 0],
        Tag::Sent => [4, 0, 0],
        Tag::Taken => [5, 0, 0],
    }
}

/// The tag of these numbers, if they are one's.
pub(crate) fn tag([kind, first, second]: Mark) -> Option<Tag> {
    let (first, second) = (first as usize, second as usize);
    match kind {
        0 => Some(Tag::Stage(Channel::Activation(first), second)),
        1 => Some(Tag::Stage(Channel::Gradient(first), second)),
        2 => Some(Tag::Group(first)),
        3 => Some(Tag::Report),
        4 => Some(Tag::Sent),
        5 => Some(Tag::Taken),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn only_who_has_said_something_and_no_farewell_can_be_silent() {
        let inbox = Inbox::new(0, 2);
        assert_eq!(inbox.heard(1).silence, None);
        assert!(inbox.sort((1, 0), SIGN, vec![7.0]));
        std::thread::sleep(Duration::from_millis(5));
        let heard = inbox.heard(1);
        assert!(heard.sign == Some(vec![7.0]) && heard.silence >= Some(Duration::from_millis(5)));
        assert!(!inbox.sort((1, 0), FAREWELL, Vec::new()));
        assert_eq!(inbox.heard(1).silence, None);
    }

    #[test]
    fn who_is_lost_is_told_with_how_and_when_and_the_first_reason_stays() {
        let inbox = Inbox::new(0, 3);
        inbox.lose(2, "the connection was reset");
        inbox.end(Fault::Aborted);
        let fault = inbox.take(Route { from: 1, to: 0, tag: Tag::Report }).unwrap_err().to_string();
        let when = fault.strip_prefix("rank 2 is gone: the connection was reset; ").unwrap();
        let seconds = when.split_once(" s after they met").unwrap().0;
        assert!(seconds.parse::<f64>().unwrap() >= 0.0, "{fault}");
    }

    #[test]
    fn parting_waits_for_farewells_but_not_for_long_where_a_run_has_failed() {
        let inbox = Inbox::new(0, 3);
        assert!(!inbox.sort((1, 0), FAREWELL, Vec::new()));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| inbox.wait_for_farewells(Duration::ZERO));
            std::thread::sleep(3 * REST);
            assert!(!waits.is_finished(), "rank 2 has not said farewell");
            assert!(!inbox.sort((2, 0), FAREWELL, Vec::new()));
            waits.join().unwrap();
        });
        assert!(inbox.all_are_gone());
        let failed = Inbox::new(0, 2);
        assert!(failed.sort((1, 0), ABORT, Vec::new()), "a farewell comes behind it");
        failed.wait_for_farewells(Duration::ZERO);
        assert!(!failed.all_are_gone());
    }

    #[test]
    fn tags_are_what_their_marks_say() {
        let tags = [Tag::Group(3), Tag::Stage(Channel::Gradient(1), 2), Tag::Report, Tag::Sent, Tag::Taken];
        for own in tags {
            assert_eq!(tag(mark(own)), Some(own));
        }
        assert_eq!(tag([9, 0, 0]), None);
    }
}
