//! What the thread that calls MPI does in a run.

use crate::comm::transport::header::{HELLO, Header};
use crate::comm::transport::identity::Identity;
use crate::comm::transport::inbox::Inbox;
use crate::comm::transport::message::Payload;
use crate::device::host_buffers::take_buffer;
use ::mpi::datatype::Equivalence;
use ::mpi::request::scope;
use ::mpi::topology::SimpleCommunicator;
use ::mpi::traits::{Communicator, Destination, Source};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

/// An order to the thread.
pub(super) enum Order {
    /// A message that is to be sent, as `words` makes it.
    Send { to: usize, words: Vec<u32> },
    /// Somebody waits from now on.
    Look,
}

/// How often to look before resting, and how long rests are: a part of the time in which nothing has come, so that what comes
/// is late by no more than that part, and within bounds.
const LOOKS: usize = 50;
const PART: u32 = 16;
const SHORT_REST: Duration = Duration::from_micros(50);
pub(super) const LONG_REST: Duration = Duration::from_millis(1);

/// How long to rest while others have not come yet, which may be measuring this machine meanwhile.
const RENDEZVOUS_REST: Duration = Duration::from_millis(10);

/// Sends and receives.
pub(super) struct Post<'a> {
    inbox: &'a Inbox,
    waiting: &'a AtomicUsize,
    world: &'a SimpleCommunicator,
    rank: usize,
    /// That of this run's messages.
    tag: i32,
    orders: &'a Receiver<Order>,
    /// Messages that are to be sent next.
    taken: Vec<(usize, Vec<u32>)>,
    /// Whether nothing more will be ordered.
    closed: bool,
    /// What other processes run, of those that have sent it, as long as not all have.
    hellos: Vec<(usize, Payload)>,
    idle: Idle,
}

/// For how long nothing has come or gone.
struct Idle {
    looks: usize,
    since: Instant,
}

impl<'a> Post<'a> {
    /// Of a run whose messages have that tag.
    pub fn new(
        world: &'a SimpleCommunicator,
        tag: i32,
        (inbox, waiting): (&'a Inbox, &'a AtomicUsize),
        orders: &'a Receiver<Order>,
    ) -> Self {
        let (rank, idle) = (world.rank() as usize, Idle { looks: 0, since: Instant::now() });
        let (taken, hellos) = (Vec::new(), Vec::new());
        Self { inbox, waiting, world, rank, tag, orders, taken, closed: false, hellos, idle }
    }

    /// Sends the identity of this process and waits until all others have sent the same. No collective of MPI's does it:
    /// that would keep a core busy until the last one comes.
    ///
    /// # Errors
    /// The rank that has another identity and what differs; or, without a rank, that not all have come.
    pub fn rendezvous(&mut self, identity: &Identity, until: Instant) -> Result<(), (Option<usize>, String)> {
        let hello = Payload::Bytes(identity.to_bytes());
        let others = (0..self.world.size() as usize).filter(|other| *other != self.rank);
        self.taken = others.map(|other| (other, words(HELLO, &hello))).collect();
        let count = self.taken.len();
        loop {
            self.receive();
            self.send();
            if let Some((rank, other)) = self.hellos.iter().find(|(_, other)| *other != hello) {
                let other = match other {
                    Payload::Bytes(bytes) => Identity::from_bytes(bytes).unwrap_or_default(),
                    Payload::Numbers(_) => Identity::default(),
                };
                let (differs, differences) = match *rank {
                    0 => (self.rank, other.difference(self.rank, identity)),
                    rank => (rank, identity.difference(rank, &other)),
                };
                return Err((Some(differs), differences.unwrap_or_else(|| "its version".into())));
            }
            if self.hellos.len() == count {
                return Ok(());
            }
            if Instant::now() > until {
                return Err((None, "not all processes have come in time".into()));
            }
            thread::sleep(RENDEZVOUS_REST);
        }
    }

    /// Until there is nothing more to send and nobody has anything more to say.
    pub fn work(mut self) {
        loop {
            self.take_orders();
            let moved = self.receive() | !self.taken.is_empty();
            self.send();
            if self.closed && self.inbox.all_are_gone() {
                return;
            }
            self.rest(moved);
        }
    }

    fn take_orders(&mut self) {
        loop {
            match self.orders.try_recv() {
                Ok(order) => self.take(order),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.closed = true;
                    return;
                }
            }
        }
    }

    fn take(&mut self, order: Order) {
        // One that only wakes this thread has done so.
        if let Order::Send { to, words } = order {
            self.taken.push((to, words));
        }
    }

    /// Sends what was ordered, and takes what comes until it is on its way: who sends to us at the same time may have to
    /// wait for that. What is ordered meanwhile is not for a process that does not listen to hold up.
    fn send(&mut self) {
        let batch = std::mem::take(&mut self.taken);
        if batch.is_empty() {
            return;
        }
        let (world, tag) = (self.world, self.tag);
        scope(|scope| {
            let mut open = Vec::with_capacity(batch.len());
            for (to, words) in &batch {
                open.push(world.process_at_rank(*to as i32).immediate_send_with_tag(scope, &words[..], tag));
            }
            loop {
                let before = open.len();
                open = open.into_iter().filter_map(|request| request.test().err()).collect();
                if open.is_empty() {
                    return;
                }
                self.take_orders();
                let moved = self.receive() | !self.taken.is_empty() | (open.len() < before);
                self.send();
                self.rest(moved);
            }
        });
    }

    /// Leaves the core to others where nothing has moved, the longer the longer that has been so.
    fn rest(&mut self, moved: bool) {
        if moved {
            self.idle = Idle { looks: 0, since: Instant::now() };
            return;
        }
        let waits = self.waiting.load(Ordering::Relaxed) > 0;
        self.idle.looks += 1;
        if waits && self.idle.looks < LOOKS {
            thread::yield_now();
            return;
        }
        let rest = match waits {
            true => (self.idle.since.elapsed() / PART).clamp(SHORT_REST, LONG_REST),
            false => LONG_REST,
        };
        match self.orders.recv_timeout(rest) {
            Ok(order) => {
                self.take(order);
                self.idle = Idle { looks: 0, since: Instant::now() };
            }
            Err(RecvTimeoutError::Timeout) => {}
            // Without a channel to rest on.
            Err(RecvTimeoutError::Disconnected) => thread::sleep(SHORT_REST),
        }
    }

    /// Takes what has come; whether anything has.
    fn receive(&mut self) -> bool {
        let mut any = false;
        let next = || self.world.any_process().immediate_matched_probe_with_tag(self.tag);
        while let Some((message, status)) = next() {
            any = true;
            let from = status.source_rank() as usize;
            let mut words = vec![0u32; status.count(u32::equivalent_datatype()) as usize];
            message.matched_receive_into(&mut words[..]);
            self.inbox.saw(from);
            match read(&words) {
                None => self.inbox.lose(from, "what came from it is no message of a rank"),
                Some((HELLO, identity)) => self.hellos.push((from, identity)),
                Some((header, payload)) => {
                    self.inbox.sort((from, self.rank), header, payload);
                }
            }
        }
        any
    }
}

/// What stands in place of a count of bytes before numbers.
const NUMBERS: u32 = u32::MAX;

/// A message as MPI carries it: the header, the count of bytes or `NUMBERS`, and the numbers or the bytes, padded.
pub(super) fn words(header: Header, payload: &Payload) -> Vec<u32> {
    let mut words = header.to_vec();
    match payload {
        Payload::Numbers(numbers) => {
            words.push(NUMBERS);
            words.extend(numbers.iter().map(|number| number.to_bits()));
        }
        Payload::Bytes(bytes) => {
            words.push(bytes.len() as u32);
            let padded = |part: &[u8]| std::array::from_fn(|at| part.get(at).copied().unwrap_or(0));
            words.extend(bytes.chunks(4).map(|part| u32::from_le_bytes(padded(part))));
        }
    }
    words
}

/// The message of some words; `None` if they are none.
fn read(words: &[u32]) -> Option<(Header, Payload)> {
    let ([kind, first, second, form], content) = words.split_first_chunk::<4>()?;
    let header = [*kind, *first, *second];
    if *form == NUMBERS {
        let mut numbers = take_buffer(content.len());
        numbers.copy_from_slice(bytemuck::cast_slice(content));
        return Some((header, Payload::Numbers(numbers)));
    }
    let mut bytes: Vec<u8> = content.iter().flat_map(|word| word.to_le_bytes()).collect();
    if *form as usize > bytes.len() {
        return None;
    }
    bytes.truncate(*form as usize);
    Some((header, Payload::Bytes(bytes)))
}
