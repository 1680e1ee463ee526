//! How messages get from rank to rank.

mod tcp;
mod threads;

pub(crate) use tcp::Connections;
pub use tcp::Rendezvous;
pub(crate) use threads::Mailboxes;

use crate::error::Fault;
use trainwright_spec::program::Channel;

/// What tells messages between the same two ranks apart. Those of one tag arrive in the order in which they were sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Tag {
    /// Between stages, of that microbatch.
    Stage(Channel, usize),
    /// Inside a collective of the group of that number.
    Group(usize),
    /// What rank 0 hears of the others' steps.
    Report,
}

/// The two ends of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Route {
    pub from: usize,
    pub to: usize,
    pub tag: Tag,
}

/// Carries messages. Sending never waits for the receiver.
pub(crate) trait Transport: Send + Sync {
    /// Sends a message.
    fn send(&self, route: Route, message: Vec<f32>);

    /// Waits for the next message on a route.
    ///
    /// # Errors
    /// `Aborted` once some rank has called `abort`, `Lost` once one is gone.
    fn receive(&self, route: Route) -> Result<Vec<f32>, Fault>;

    /// Wakes everyone who waits, now and later.
    fn abort(&self);
}
