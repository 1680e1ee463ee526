//! Ranks that are processes which MPI started: messages travel by whatever MPI has between the hosts.
//!
//! ```text
//! ranks, heartbeats ─► orders ─► one thread: sends, looks for what comes, tests what was sent ─► inbox ─► who waits
//! ```
//!
//! One thread calls MPI, from the first run of the process to its end, so that no level of thread support is needed and a process can
//! connect to the others several times. Waiting inside MPI keeps a core busy; this one looks
//! again and again for a moment and then rests, the longer the longer nothing has come, and longest where nobody waits: so
//! ranks may outnumber cores. Collectives are the same lists of steps as over any other transport: sums are bit for bit the
//! same.

mod post;

use super::header::Header;
use super::identity::Identity;
use super::inbox::Inbox;
use super::message::Payload;
use super::peers::{LAST_WORD, Peers, Wire};
use super::rendezvous::Rendezvous;
use crate::error::RunError;
use ::mpi::topology::SimpleCommunicator;
use ::mpi::traits::Communicator;
use post::{LONG_REST, Order, Post};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// MPI's processes, each a rank.
pub(crate) type MpiWorld = Peers<Orders>;

/// Orders to the thread that calls MPI in a run.
pub(crate) struct Orders {
    rank: usize,
    world: usize,
    /// None once this process has nothing more to say.
    orders: Mutex<Option<Sender<Order>>>,
    inbox: Arc<Inbox>,
    /// How many are waiting for a message that holds a rank up.
    waiting: Arc<AtomicUsize>,
    /// Ends when the thread is done with the run.
    done: Mutex<Receiver<()>>,
}

/// What waits for one process is handed on while more waits for another, each time a call deeper.
const STACK: usize = 64 << 20;

/// The thread that calls MPI.
static SESSION: Mutex<Option<Session>> = Mutex::new(None);

struct Session {
    runs: Sender<Job>,
    thread: JoinHandle<()>,
    /// Runs so far; messages of each have its number.
    count: i32,
    /// Whether the last run ended with everybody's farewell.
    went_well: bool,
}

/// What the thread does for a run; it gets nothing where MPI cannot be had.
type Job = Box<dyn FnOnce(Option<&SimpleCommunicator>) + Send>;

fn session() -> MutexGuard<'static, Option<Session>> {
    SESSION.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets the thread do something; the first one begins it.
fn order(job: impl FnOnce(Option<&SimpleCommunicator>, i32) + Send + 'static) -> Result<(), RunError> {
    let mut session = session();
    let session = match &mut *session {
        Some(session) => session,
        none => {
            let (runs, ordered) = channel::<Job>();
            let thread = thread::Builder::new().name("MPI".into()).stack_size(STACK);
            let serve = move || {
                let begun = ::mpi::initialize_with_threading(::mpi::Threading::Funneled);
                let world = begun.as_ref().map(|(universe, _)| universe.world());
                ordered.iter().for_each(|job| job(world.as_ref()));
            };
            let thread = thread.spawn(serve).map_err(|error| RunError::Threads(error.to_string()))?;
            none.insert(Session { runs, thread, count: 0, went_well: false })
        }
    };
    session.count += 1;
    session.went_well = false;
    let count = session.count;
    // If the thread has ended, whoever waits for the job learns of that.
    let _ = session.runs.send(Box::new(move |world| job(world, count)));
    Ok(())
}

/// Joins MPI's world, if this process has not yet: it takes all of its processes.
///
/// # Errors
/// `Threads` if the system gives no more of them.
pub(super) fn enter() -> Result<(), RunError> {
    if session().is_some() {
        return Ok(());
    }
    let (said, heard) = channel();
    order(move |_, _| {
        let _ = said.send(());
    })?;
    let _ = heard.recv();
    Ok(())
}

/// Leaves MPI's world, when all of its processes do. Where the last run did not end well, nobody is waited for: some may never come.
pub(super) fn leave() {
    let Some(Session { runs, thread, went_well, .. }) = session().take() else { return };
    drop(runs);
    let until = Instant::now() + LAST_WORD;
    while !went_well && !thread.is_finished() {
        if Instant::now() > until {
            return;
        }
        thread::sleep(LONG_REST);
    }
    let _ = thread.join();
}

impl MpiWorld {
    /// Connects to MPI's other processes, which must all have the same identity.
    ///
    /// # Errors
    /// `Rendezvous` if this process is not the rank that its launcher says, `Differs` if one has another identity.
    pub fn connect(place: &Rendezvous, identity: &Identity) -> Result<Self, RunError> {
        let (own, master) = (place.rank, place.via.to_string());
        let failed = move |reason: &str| RunError::Rendezvous {
            rank: own,
            master: master.clone(),
            reason: reason.into(),
        };
        let identity = identity.clone();
        let inbox = Arc::new(Inbox::new(place.rank, place.world));
        let (orders, taken) = channel();
        let (said, met) = channel();
        let (ends, done) = channel::<()>();
        let waiting = Arc::new(AtomicUsize::new(0));
        let (rank, world) = (place.rank, place.world);
        let run = {
            let (inbox, waiting, until) = (inbox.clone(), waiting.clone(), Instant::now() + place.patience);
            let failed = failed.clone();
            move |mpi: Option<&SimpleCommunicator>, number: i32| {
                // Dropped when this ends.
                let _ends = ends;
                let Some(mpi) = mpi else {
                    let _ = said.send(Err(failed("MPI is in use already")));
                    return;
                };
                if [mpi.rank() as usize, mpi.size() as usize] != [rank, world] {
                    let _ = said.send(Err(failed("MPI numbers the processes otherwise than their launcher")));
                    return;
                }
                let mut post = Post::new(mpi, number, (&inbox, &waiting), &taken);
                let begun = post.rendezvous(&identity, until);
                let is_complete = begun.is_ok();
                let _ = said.send(begun.map_err(|(rank, reason)| match rank {
                    Some(rank) => RunError::Differs { rank, differences: reason },
                    None => failed(&reason),
                }));
                if is_complete {
                    post.work();
                }
            }
        };
        order(run)?;
        met.recv().unwrap_or_else(|_| Err(failed("MPI cannot be initialised")))?;
        let (orders, done) = (Mutex::new(Some(orders)), Mutex::new(done));
        let wire = Orders { rank, world, orders, inbox: inbox.clone(), waiting, done };
        Ok(Self::new(rank, inbox, wire))
    }
}

impl Orders {
    fn order(&self, order: Order) {
        if let Some(orders) = &*self.orders.lock().unwrap_or_else(PoisonError::into_inner) {
            // If the thread has ended, whoever waits knows why.
            let _ = orders.send(order);
        }
    }
}

impl Wire for Orders {
    fn send(&self, to: usize, header: Header, payload: &Payload) {
        self.order(Order::Send { to, words: post::words(header, payload) });
    }

    fn send_last(&self, header: Header) {
        let nothing = Payload::Bytes(Vec::new());
        (0..self.world).filter(|to| *to != self.rank).for_each(|to| self.send(to, header, &nothing));
    }

    fn set_waiting(&self, waits: bool) {
        if waits {
            self.waiting.fetch_add(1, Ordering::Relaxed);
            self.order(Order::Look);
        } else {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn close(&mut self) {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner).take();
        let goes_well = self.inbox.all_are_gone() && !self.inbox.has_ended();
        // One that no longer listens would keep this process for ever. The launcher ends it when this process has ended.
        let until = Instant::now() + LAST_WORD;
        let done = self.done.get_mut().unwrap_or_else(PoisonError::into_inner);
        while done.recv_timeout(LONG_REST) == Err(RecvTimeoutError::Timeout) {
            if !goes_well && Instant::now() > until {
                return;
            }
        }
        if let Some(session) = &mut *session() {
            session.went_well = goes_well;
        }
    }
}
