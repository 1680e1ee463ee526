//! How messages get from rank to rank.

mod inbox;
#[cfg(feature = "mpi")]
mod mpi;
mod peers;
mod tcp;
mod threads;

pub(crate) use inbox::{mark, tag};
#[cfg(feature = "mpi")]
use mpi::MpiWorld;
pub(crate) use tcp::Connections;
pub(crate) use threads::Mailboxes;

use crate::error::{Fault, RunError};
use std::sync::Arc;
use std::time::Duration;
use trainwright_spec::program::Channel;

/// Which of how many processes this one is, and how they meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendezvous {
    /// This process's rank.
    pub rank: usize,
    /// How many processes there are.
    pub world: usize,
    /// Its number among the processes of its machine, if that is known.
    pub local: Option<usize>,
    /// How they find each other.
    pub meets: Meets,
    /// How long to wait until everybody is there.
    pub patience: Duration,
}

/// How the processes of a run find each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Meets {
    /// Rank 0 listens there, as `host:port`.
    At(String),
    /// They were started by MPI, which knows.
    Mpi,
}

impl std::fmt::Display for Meets {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        formatter.write_str(match self {
            Meets::At(master) => master,
            Meets::Mpi => "MPI's world",
        })
    }
}

impl Rendezvous {
    /// Joins the processes that were started together, as far as their launcher wants that; who meets does so too.
    ///
    /// # Errors
    /// `Refused` if this program has no such transport, `Threads` if the system gives no more of them.
    pub fn enter(&self) -> Result<(), RunError> {
        match self.meets {
            Meets::At(_) => Ok(()),
            #[cfg(feature = "mpi")]
            Meets::Mpi => mpi::enter(),
            #[cfg(not(feature = "mpi"))]
            Meets::Mpi => Err(RunError::Refused {
                key: "transport".into(),
                value: "MPI".into(),
                allowed: "this program was built without its feature `mpi`: use TCP".into(),
            }),
        }
    }

    /// Meets the other processes of a run, which must say the same `purpose`.
    pub(crate) fn meet(&self, purpose: u64) -> Result<Arc<dyn Transport>, RunError> {
        self.enter()?;
        match &self.meets {
            Meets::At(master) => Ok(Arc::new(Connections::meet(self, master, purpose)?)),
            #[cfg(feature = "mpi")]
            Meets::Mpi => Ok(Arc::new(MpiWorld::meet(self, purpose)?)),
            #[cfg(not(feature = "mpi"))]
            Meets::Mpi => unreachable!("nobody enters what this program has not"),
        }
    }
}

/// Leaves the processes that this one was started with, if their launcher wants to hear of it.
pub fn leave_processes() {
    #[cfg(feature = "mpi")]
    mpi::leave();
}

/// What tells messages between the same two ranks apart. Those of one tag arrive in the order in which they were sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Tag {
    /// Between stages, of that microbatch.
    Stage(Channel, usize),
    /// Inside a collective of the group of that number.
    Group(usize),
    /// What rank 0 hears of the others' steps.
    Report,
    /// Which message a GPU was told to send to another one.
    Sent,
    /// That a GPU was told to receive the next one.
    Taken,
}

/// The two ends of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Route {
    pub from: usize,
    pub to: usize,
    pub tag: Tag,
}

impl Route {
    /// The other way.
    pub fn back(self) -> Self {
        Self { from: self.to, to: self.from, ..self }
    }
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

    /// The next message on a route, if it is there.
    fn look(&self, route: Route) -> Option<Vec<f32>>;

    /// Wakes everyone who waits, now and later.
    fn abort(&self);

    /// Says something of this process's rank to one elsewhere, in numbers; ranks of one process see each other.
    fn say(&self, _to: usize, _sign: &[f32]) {}

    /// What is known of a rank elsewhere; none of one that is here.
    fn heard(&self, _from: usize) -> Option<Heard> {
        None
    }
}

/// What has come from a rank in another process beside messages.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Heard {
    /// What it said of itself last.
    pub sign: Option<Vec<f32>>,
    /// For how long nothing at all has come from it, if it still has something to say.
    pub silence: Option<Duration>,
}
