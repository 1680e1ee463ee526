//! What a transport carries: messages, each in an envelope.

use crate::error::Fault;
use std::time::Duration;
use trainwright_spec::program::Channel;

/// Which message it is. Messages with the same envelope arrive in the order in which they were sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Envelope {
    pub from: usize,
    pub to: usize,
    pub tag: Tag,
}

impl Envelope {
    /// That of an answer.
    pub fn back(self) -> Self {
        Self { from: self.to, to: self.from, ..self }
    }
}

/// Distinguishes messages between the same two ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Tag {
    /// Between pipeline stages, of that microbatch.
    Stage(Channel, usize),
    /// Inside a collective of the group of that number.
    Group(usize),
    /// A rank's report of its steps to rank 0.
    Report,
    /// A GPU has enqueued a send to another one: which message, and its rows.
    Sent,
    /// A GPU has enqueued the next receive.
    Taken,
    /// Whether the run ends early.
    Stop,
}

/// What a message holds: elements of tensors, or anything else.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Payload {
    Numbers(Vec<f32>),
    Bytes(Vec<u8>),
}

/// Carries messages. Sending never waits for the receiver.
pub(crate) trait Transport: Send + Sync {
    /// Sends a message.
    fn send_payload(&self, envelope: Envelope, payload: Payload);

    /// Waits for the next message with this envelope.
    ///
    /// # Errors
    /// `Aborted` once some rank has called `abort`, `Lost` once one is gone.
    fn receive_payload(&self, envelope: Envelope) -> Result<Payload, Fault>;

    /// The next message with this envelope, if it is there.
    fn try_receive(&self, envelope: Envelope) -> Option<Payload>;

    /// Wakes everyone who waits, now and later.
    fn abort(&self);

    /// Sends the status of this process's rank to a rank of another process. Ranks of one process see each other's.
    fn send_status(&self, _to: usize, _status: &[u8]) {}

    /// What is known of a rank of another process; `None` of a rank of this one.
    fn peer_status(&self, _from: usize) -> Option<PeerStatus> {
        None
    }

    /// Sends elements of tensors.
    fn send(&self, envelope: Envelope, numbers: Vec<f32>) {
        self.send_payload(envelope, Payload::Numbers(numbers));
    }

    /// Waits for elements of tensors.
    ///
    /// # Errors
    /// As `receive_payload`, and `Lost` if the message is of another kind.
    fn receive(&self, envelope: Envelope) -> Result<Vec<f32>, Fault> {
        match self.receive_payload(envelope)? {
            Payload::Numbers(numbers) => Ok(numbers),
            Payload::Bytes(_) => Err(of_another_kind(envelope)),
        }
    }

    /// Sends a control message.
    fn send_bytes(&self, envelope: Envelope, bytes: Vec<u8>) {
        self.send_payload(envelope, Payload::Bytes(bytes));
    }

    /// Waits for a control message.
    ///
    /// # Errors
    /// As `receive`.
    fn receive_bytes(&self, envelope: Envelope) -> Result<Vec<u8>, Fault> {
        match self.receive_payload(envelope)? {
            Payload::Bytes(bytes) => Ok(bytes),
            Payload::Numbers(_) => Err(of_another_kind(envelope)),
        }
    }
}

fn of_another_kind(envelope: Envelope) -> Fault {
    Fault::Lost { rank: envelope.from, how: "what came from it is no message of a rank".into() }
}

/// What has come from a rank of another process beside messages.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PeerStatus {
    /// Its last status.
    pub status: Option<Vec<u8>>,
    /// For how long nothing at all has come from it; `None` if it has not sent a status yet, or has said farewell.
    pub silence: Option<Duration>,
}
