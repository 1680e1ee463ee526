//! Ranks that are processes which MPI started: messages travel by whatever MPI has between the hosts.
//!
//! ```text
//! ranks and speakers ─► orders ─► one thread: sends, looks for what comes, tests what was sent ─► inbox ─► who waits
//! ```
//!
//! One thread calls MPI, so that no level of thread support is needed. MPI's own waiting keeps a core busy; this one looks
//! again and again for a moment and then rests, so that ranks may outnumber cores. Collectives are the same lists of steps as
//! over any other transport: sums are bit for bit the same.

use super::inbox::{ABORT, FAREWELL, Inbox, Mark, SIGN, mark};
use super::{Heard, Rendezvous, Route, Transport};
use crate::error::{Fault, RunError};
use crate::tensor::{give_back, take_buffer};
use ::mpi::datatype::Equivalence;
use ::mpi::request::scope;
use ::mpi::topology::SimpleCommunicator;
use ::mpi::traits::{Communicator, CommunicatorCollectives, Destination, Source};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// MPI's processes, each a rank.
pub(crate) struct MpiWorld {
    rank: usize,
    world: usize,
    /// None once this process has nothing more to say.
    orders: Mutex<Option<Sender<Order>>>,
    inbox: Arc<Inbox>,
    thread: Option<JoinHandle<()>>,
}

/// A message that is to be sent: its mark, and the bits of its numbers.
struct Order {
    to: usize,
    words: Vec<u32>,
}

/// How often to look before resting, and how long a rest is.
const LOOKS: usize = 200;
const REST: Duration = Duration::from_micros(50);

impl MpiWorld {
    /// Joins MPI's world, whose processes must all say the same `purpose`.
    ///
    /// # Errors
    /// `Meeting` if this process is not the rank that it was told to be, or someone has another purpose.
    pub fn meet(place: &Rendezvous, purpose: u64) -> Result<Self, RunError> {
        let failed = |reason: &str| RunError::Meeting {
            rank: place.rank,
            master: place.meets.to_string(),
            reason: reason.into(),
        };
        let inbox = Arc::new(Inbox::new(place.world));
        let (orders, taken) = channel();
        let (said, met) = channel();
        let [own, world] = [place.rank, place.world];
        let serve = {
            let inbox = inbox.clone();
            move || serve(&inbox, &taken, [own, world], purpose, &said)
        };
        let thread = thread::Builder::new().name("MPI".into()).spawn(serve);
        let thread = thread.map_err(|error| RunError::Threads(error.to_string()))?;
        met.recv().unwrap_or(Err("MPI cannot be initialised")).map_err(failed)?;
        Ok(Self { rank: own, world, orders: Mutex::new(Some(orders)), inbox, thread: Some(thread) })
    }

    fn order(&self, to: usize, mark: Mark, numbers: &[f32]) {
        let mut words = Vec::with_capacity(mark.len() + numbers.len());
        words.extend(mark);
        words.extend(numbers.iter().map(|number| number.to_bits()));
        if let Some(orders) = &*self.orders.lock().unwrap_or_else(PoisonError::into_inner) {
            // Where the thread has ended, who waits knows why.
            let _ = orders.send(Order { to, words });
        }
    }

    fn tell_all(&self, mark: Mark) {
        (0..self.world).filter(|to| *to != self.rank).for_each(|to| self.order(to, mark, &[]));
    }
}

impl Transport for MpiWorld {
    fn send(&self, route: Route, message: Vec<f32>) {
        if route.to == self.rank {
            self.inbox.put(route, message);
            return;
        }
        self.order(route.to, mark(route.tag), &message);
        give_back(message);
    }

    fn receive(&self, route: Route) -> Result<Vec<f32>, Fault> {
        self.inbox.take(route)
    }

    fn abort(&self) {
        self.inbox.end(Fault::Aborted);
        self.tell_all(ABORT);
    }

    fn say(&self, to: usize, sign: &[f32]) {
        self.order(to, SIGN, sign);
    }

    fn heard(&self, from: usize) -> Option<Heard> {
        (from != self.rank).then(|| self.inbox.heard(from))
    }
}

impl Drop for MpiWorld {
    fn drop(&mut self) {
        self.tell_all(FAREWELL);
        self.orders.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The thread that calls MPI, from its beginning to its end.
fn serve(
    inbox: &Inbox,
    orders: &Receiver<Order>,
    [rank, count]: [usize; 2],
    purpose: u64,
    said: &Sender<Result<(), &'static str>>,
) {
    let Some((universe, _)) = ::mpi::initialize_with_threading(::mpi::Threading::Funneled) else {
        let _ = said.send(Err("MPI is in use already"));
        return;
    };
    let world = universe.world();
    if [world.rank() as usize, world.size() as usize] != [rank, count] {
        let _ = said.send(Err("MPI numbers the processes otherwise than their launcher"));
        return;
    }
    let mut purposes = vec![0u64; count];
    world.all_gather_into(&purpose, &mut purposes[..]);
    if purposes.iter().any(|other| *other != purpose) {
        let _ = said.send(Err("a process runs another plan or with other settings"));
        return;
    }
    let _ = said.send(Ok(()));
    Post { inbox, world: &world, rank, open: count - 1 }.work(orders);
}

/// Sends and receives.
struct Post<'a> {
    inbox: &'a Inbox,
    world: &'a SimpleCommunicator,
    rank: usize,
    /// Processes that may still say something.
    open: usize,
}

impl Post<'_> {
    /// Until there is nothing more to send and nobody has anything more to say.
    fn work(mut self, orders: &Receiver<Order>) {
        let (mut idle, mut closed) = (0, false);
        loop {
            let mut batch = Vec::new();
            loop {
                match orders.try_recv() {
                    Ok(order) => batch.push(order),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => {
                        closed = true;
                        break;
                    }
                }
            }
            let moved = self.receive() | !batch.is_empty();
            self.send(&batch);
            if closed && self.open == 0 {
                return;
            }
            idle = if moved { 0 } else { idle + 1 };
            if idle < LOOKS {
                thread::yield_now();
                continue;
            }
            match orders.recv_timeout(REST) {
                Ok(order) => {
                    self.send(&[order]);
                    idle = 0;
                }
                Err(RecvTimeoutError::Timeout) => {}
                // Without a channel to rest on.
                Err(RecvTimeoutError::Disconnected) => thread::sleep(REST),
            }
        }
    }

    /// Sends messages, and takes what comes until they are on their way: who sends to us at the same time may have to
    /// wait for that.
    fn send(&mut self, batch: &[Order]) {
        let world = self.world;
        scope(|scope| {
            let mut open = Vec::with_capacity(batch.len());
            for Order { to, words } in batch {
                open.push(world.process_at_rank(*to as i32).immediate_send(scope, &words[..]));
            }
            let mut looks = 0;
            while !open.is_empty() {
                open = open.into_iter().filter_map(|request| request.test().err()).collect();
                looks = if self.receive() { 0 } else { looks + 1 };
                if looks > LOOKS {
                    thread::sleep(REST);
                } else if !open.is_empty() {
                    thread::yield_now();
                }
            }
        });
    }

    /// Takes what has come; whether anything has.
    fn receive(&mut self) -> bool {
        let mut any = false;
        while let Some((message, status)) = self.world.any_process().immediate_matched_probe() {
            any = true;
            let from = status.source_rank() as usize;
            let mut words = vec![0u32; status.count(u32::equivalent_datatype()) as usize];
            message.matched_receive_into(&mut words[..]);
            self.inbox.lives(from);
            let Some((mark, bits)) = words.split_first_chunk::<3>() else {
                self.inbox.end(Fault::Lost { rank: from });
                continue;
            };
            let mut numbers = take_buffer(bits.len());
            numbers.copy_from_slice(bytemuck::cast_slice(bits));
            if !self.inbox.sort((from, self.rank), *mark, numbers) {
                self.open = self.open.saturating_sub(1);
            }
        }
        any
    }
}
