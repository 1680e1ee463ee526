//! How messages get from rank to rank: between threads of one process, by TCP, by MPI.

mod header;
mod identity;
mod inbox;
mod message;
#[cfg(feature = "mpi")]
mod mpi;
mod peers;
mod rendezvous;
mod tcp;
mod threads;
mod token;

pub(crate) use header::{header_of, tag_of};
pub(crate) use identity::Identity;
pub(crate) use message::{Envelope, Payload, Tag, Transport};
pub use rendezvous::{Remark, Rendezvous, RendezvousVia};
pub(crate) use tcp::{Connections, valid_frames, whole_frames};
pub(crate) use threads::Mailboxes;
pub use token::Token;

use crate::error::{Fault, RunError};
#[cfg(feature = "mpi")]
use mpi::MpiWorld;
use std::sync::Arc;

/// What a process joins the others with.
pub(crate) struct Joining {
    /// What all of them have in common.
    pub identity: Identity,
    /// The most numbers that a message of the run has.
    pub longest: usize,
}

impl Rendezvous {
    /// Joins the processes that were started together, if their launcher wants that; `connect` does so too.
    ///
    /// # Errors
    /// `Refused` if this program has no such transport, `Threads` if the system gives no more of them.
    pub fn enter(&self) -> Result<(), RunError> {
        match self.via {
            RendezvousVia::Tcp(_) => Ok(()),
            #[cfg(feature = "mpi")]
            RendezvousVia::Mpi => mpi::enter(),
            #[cfg(not(feature = "mpi"))]
            RendezvousVia::Mpi => Err(RunError::Refused {
                key: "transport".into(),
                value: "MPI".into(),
                allowed: "this program was built without its feature `mpi`: use TCP".into(),
            }),
        }
    }

    /// Connects to the other processes of a run.
    ///
    /// # Errors
    /// `Rendezvous` if they do not find each other, `Differs` if one of them has another identity.
    pub(crate) fn connect(&self, joining: &Joining) -> Result<Arc<dyn Transport>, RunError> {
        self.enter()?;
        match &self.via {
            RendezvousVia::Tcp(master) => Ok(Arc::new(Connections::connect(self, master, joining)?)),
            #[cfg(feature = "mpi")]
            RendezvousVia::Mpi => Ok(Arc::new(MpiWorld::connect(self, &joining.identity)?)),
            #[cfg(not(feature = "mpi"))]
            RendezvousVia::Mpi => unreachable!("`enter` refuses a transport that this program has not"),
        }
    }

    /// Waits until rank 0 knows that every process is there, and every process that rank 0 does.
    pub(crate) fn barrier(&self, transport: &dyn Transport) -> Result<(), Fault> {
        let envelope = |from, to| Envelope { from, to, tag: Tag::Report };
        if self.rank != 0 {
            transport.send_bytes(envelope(self.rank, 0), Vec::new());
            return transport.receive_bytes(envelope(0, self.rank)).map(drop);
        }
        for other in 1..self.world {
            transport.receive_bytes(envelope(other, 0))?;
        }
        (1..self.world).for_each(|other| transport.send_bytes(envelope(0, other), Vec::new()));
        Ok(())
    }
}

/// Leaves the processes that this one was started with, if their launcher wants to know.
pub fn leave_processes() {
    #[cfg(feature = "mpi")]
    mpi::leave();
}
