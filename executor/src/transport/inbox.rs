//! What has come to a process and nobody has asked for yet, and how messages are told apart on the way between processes.

use super::{Heard, Route, Tag};
use crate::error::Fault;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use trainwright_spec::program::Channel;

/// Three numbers before a message.
pub(super) type Mark = [u32; 3];

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
}

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
    /// Whether it has said farewell.
    gone: bool,
}

impl Inbox {
    /// Of a process that hears of so many ranks.
    pub fn new(ranks: usize) -> Self {
        let peer = || Mutex::new(Peer { last: Instant::now(), sign: None, gone: false });
        let peers = (0..ranks).map(|_| peer()).collect();
        Self { content: Mutex::default(), changed: Condvar::new(), peers }
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

    /// Whether the next message on a route is there.
    #[cfg(feature = "mpi")]
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
            FAREWELL => self.peer(from).gone = true,
            ABORT => self.end(Fault::Aborted),
            SIGN => self.peer(from).sign = Some(message),
            mark => match tag(mark) {
                Some(tag) => self.put(Route { from, to, tag }, message),
                None => self.end(Fault::Lost { rank: from }),
            },
        }
        mark == SIGN || tag(mark).is_some()
    }
}

/// A tag as numbers.
pub(super) fn mark(tag: Tag) -> Mark {
    match tag {
        Tag::Stage(Channel::Activation(stage), microbatch) => [0, stage as u32, microbatch as u32],
        Tag::Stage(Channel::Gradient(stage), microbatch) => [1, stage as u32, microbatch as u32],
        Tag::Group(group) => [2, group as u32, 0],
        Tag::Report => [3, 0, 0],
    }
}

fn tag([kind, first, second]: Mark) -> Option<Tag> {
    let (first, second) = (first as usize, second as usize);
    match kind {
        0 => Some(Tag::Stage(Channel::Activation(first), second)),
        1 => Some(Tag::Stage(Channel::Gradient(first), second)),
        2 => Some(Tag::Group(first)),
        3 => Some(Tag::Report),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn only_who_has_said_something_and_no_farewell_can_be_silent() {
        let inbox = Inbox::new(2);
        assert_eq!(inbox.heard(1).silence, None);
        assert!(inbox.sort((1, 0), SIGN, vec![7.0]));
        std::thread::sleep(Duration::from_millis(5));
        let heard = inbox.heard(1);
        assert!(heard.sign == Some(vec![7.0]) && heard.silence >= Some(Duration::from_millis(5)));
        assert!(!inbox.sort((1, 0), FAREWELL, Vec::new()));
        assert_eq!(inbox.heard(1).silence, None);
    }

    #[test]
    fn tags_are_what_their_marks_say() {
        let tags = [Tag::Group(3), Tag::Stage(Channel::Gradient(1), 2), Tag::Report];
        for own in tags {
            assert_eq!(tag(mark(own)), Some(own));
        }
        assert_eq!(tag([9, 0, 0]), None);
    }
}
