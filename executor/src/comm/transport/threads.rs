//! Ranks that are threads of one process: messages change hands and are not copied, whatever they are.

use super::message::{Envelope, Payload, Transport};
use crate::error::Fault;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A mailbox for each rank. A rank that waits sleeps: ranks may outnumber cores.
#[derive(Debug)]
pub(crate) struct Mailboxes<M = Payload>(Vec<Mailbox<M>>);

#[derive(Debug)]
struct Mailbox<M> {
    content: Mutex<Content<M>>,
    changed: Condvar,
}

#[derive(Debug)]
struct Content<M> {
    messages: BTreeMap<Envelope, VecDeque<M>>,
    aborted: bool,
}

impl<M> Mailboxes<M> {
    /// For that many ranks.
    pub fn new(ranks: usize) -> Self {
        let content = || Mutex::new(Content { messages: BTreeMap::new(), aborted: false });
        Self((0..ranks).map(|_| Mailbox { content: content(), changed: Condvar::new() }).collect())
    }

    /// Puts a message where its receiver finds it.
    pub fn put(&self, envelope: Envelope, message: M) {
        let mailbox = &self.0[envelope.to];
        let mut content = mailbox.lock();
        if !content.aborted {
            content.messages.entry(envelope).or_default().push_back(message);
        }
        drop(content);
        mailbox.changed.notify_one();
    }

    /// The next message with this envelope, if it is there.
    pub fn try_take(&self, envelope: Envelope) -> Option<M> {
        self.0[envelope.to].lock().messages.get_mut(&envelope).and_then(VecDeque::pop_front)
    }

    /// Waits for the next message with this envelope; `Aborted` once some rank has called `end`.
    pub fn take(&self, envelope: Envelope) -> Result<M, Fault> {
        let mailbox = &self.0[envelope.to];
        let mut content = mailbox.lock();
        loop {
            if content.aborted {
                return Err(Fault::Aborted);
            }
            if let Some(message) = content.messages.get_mut(&envelope).and_then(VecDeque::pop_front) {
                return Ok(message);
            }
            content = mailbox.changed.wait(content).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Wakes everyone who waits, now and later. What nobody has taken is gone.
    pub fn end(&self) {
        for mailbox in &self.0 {
            let mut content = mailbox.lock();
            content.aborted = true;
            content.messages.clear();
            drop(content);
            mailbox.changed.notify_all();
        }
    }
}

impl<M> Mailbox<M> {
    /// The content is whole even if a rank panicked while it held the lock: each change is one call.
    fn lock(&self) -> MutexGuard<'_, Content<M>> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Transport for Mailboxes {
    fn send_payload(&self, envelope: Envelope, payload: Payload) {
        self.put(envelope, payload);
    }

    fn receive_payload(&self, envelope: Envelope) -> Result<Payload, Fault> {
        self.take(envelope)
    }

    fn try_receive(&self, envelope: Envelope) -> Option<Payload> {
        self.try_take(envelope)
    }

    fn abort(&self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::transport::Tag;

    #[test]
    fn messages_wait_for_their_receiver_and_the_other_way_round() {
        let mailboxes = Mailboxes::new(2);
        let envelope = |tag| Envelope { from: 0, to: 1, tag: Tag::Group(tag) };
        std::thread::scope(|scope| {
            let receiver = scope.spawn(|| [1, 0, 0].map(|tag| mailboxes.receive(envelope(tag)).unwrap()[0]));
            for (tag, content) in [(0, 1.0), (0, 2.0), (1, 3.0)] {
                mailboxes.send(envelope(tag), vec![content]);
            }
            assert_eq!(receiver.join().unwrap(), [3.0, 1.0, 2.0]);
            let waiting = scope.spawn(|| mailboxes.receive(envelope(7)));
            mailboxes.abort();
            assert_eq!(waiting.join().unwrap(), Err(Fault::Aborted));
        });
    }
}
