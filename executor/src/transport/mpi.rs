//! Ranks that are processes which MPI started: messages travel by whatever MPI has between the hosts.
//!
//! ```text
//! ranks and speakers ─► orders ─► one thread: sends, looks for what comes, tests what was sent ─► inbox ─► who waits
//! ```
//!
//! One thread calls MPI, so that no level of thread support is needed. MPI's own waiting keeps a core busy; this one looks
//! again and again for a moment and then rests, the longer the longer nothing has come, and longest where nobody waits: so
//! ranks may outnumber cores. Collectives are the same lists of steps as over any other transport: sums are bit for bit the
//! same.

use super::inbox::{ABORT, FAREWELL, Inbox, Mark, SIGN, mark};
use super::{Heard, Rendezvous, Route, Tag, Transport};
use crate::error::{Fault, RunError};
use crate::tensor::{give_back, take_buffer};
use ::mpi::datatype::Equivalence;
use ::mpi::request::scope;
use ::mpi::topology::SimpleCommunicator;
use ::mpi::traits::{Communicator, CommunicatorCollectives, Destination, Source};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// MPI's processes, each a rank.
pub(crate) struct MpiWorld {
    rank: usize,
    world: usize,
    /// None once this process has nothing more to say.
    orders: Mutex<Option<Sender<Order>>>,
    inbox: Arc<Inbox>,
    /// How many are waiting for a message that holds a rank up.
    waiting: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

enum Order {
    /// A message that is to be sent: its mark, and the bits of its numbers.
    Send { to: usize, words: Vec<u32> },
    /// Somebody waits from now on.
    Look,
}

/// How often to look before resting, and how long rests are: a part of the time in which nothing has come, so that what comes
/// is late by no more than that part, and within bounds.
const LOOKS: usize = 50;
const PART: u32 = 16;
const SHORT_REST: Duration = Duration::from_micros(50);
const LONG_REST: Duration = Duration::from_millis(1);

/// How long the others may take to hear that a rank has given up.
const LAST_WORD: Duration = Duration::from_millis(500);

/// What waits for one process is handed on while more waits for another, each time a call deeper.
const STACK: usize = 64 << 20;

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
        let waiting = Arc::new(AtomicUsize::new(0));
        let serve = {
            let (inbox, waiting) = (inbox.clone(), waiting.clone());
            move || serve((&inbox, &waiting), &taken, [own, world], purpose, &said)
        };
        let thread = thread::Builder::new().name("MPI".into()).stack_size(STACK).spawn(serve);
        let thread = thread.map_err(|error| RunError::Threads(error.to_string()))?;
        met.recv().unwrap_or(Err("MPI cannot be initialised")).map_err(failed)?;
        Ok(Self { rank: own, world, orders: Mutex::new(Some(orders)), inbox, waiting, thread: Some(thread) })
    }

    fn tell(&self, to: usize, mark: Mark, numbers: &[f32]) {
        let mut words = Vec::with_capacity(mark.len() + numbers.len());
        words.extend(mark);
        words.extend(numbers.iter().map(|number| number.to_bits()));
        self.order(Order::Send { to, words });
    }

    fn order(&self, order: Order) {
        if let Some(orders) = &*self.orders.lock().unwrap_or_else(PoisonError::into_inner) {
            // Where the thread has ended, who waits knows why.
            let _ = orders.send(order);
        }
    }

    fn tell_all(&self, mark: Mark) {
        (0..self.world).filter(|to| *to != self.rank).for_each(|to| self.tell(to, mark, &[]));
    }
}

impl Transport for MpiWorld {
    fn send(&self, route: Route, message: Vec<f32>) {
        if route.to == self.rank {
            self.inbox.put(route, message);
            return;
        }
        self.tell(route.to, mark(route.tag), &message);
        give_back(message);
    }

    fn receive(&self, route: Route) -> Result<Vec<f32>, Fault> {
        // What is said of steps holds nobody up.
        if route.tag == Tag::Report || self.inbox.has(route) {
            return self.inbox.take(route);
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.order(Order::Look);
        let message = self.inbox.take(route);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        message
    }

    fn abort(&self) {
        self.inbox.end(Fault::Aborted);
        self.tell_all(ABORT);
    }

    fn say(&self, to: usize, sign: &[f32]) {
        self.tell(to, SIGN, sign);
    }

    fn heard(&self, from: usize) -> Option<Heard> {
        (from != self.rank).then(|| self.inbox.heard(from))
    }
}

impl Drop for MpiWorld {
    fn drop(&mut self) {
        self.tell_all(FAREWELL);
        self.orders.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = self.thread.take() else { return };
        // One that no longer listens would keep this process for ever. The launcher ends it when this process has ended.
        let until = Instant::now() + LAST_WORD;
        while self.inbox.has_ended() && !thread.is_finished() {
            if Instant::now() > until {
                return;
            }
            thread::sleep(LONG_REST);
        }
        let _ = thread.join();
    }
}

/// The thread that calls MPI, from its beginning to its end.
fn serve(
    (inbox, waiting): (&Inbox, &AtomicUsize),
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
    let idle = Idle { looks: 0, since: Instant::now() };
    let closed = false;
    Post { inbox, waiting, world: &world, rank, orders, taken: Vec::new(), open: count - 1, closed, idle }
        .work();
}

/// Sends and receives.
struct Post<'a> {
    inbox: &'a Inbox,
    waiting: &'a AtomicUsize,
    world: &'a SimpleCommunicator,
    rank: usize,
    orders: &'a Receiver<Order>,
    /// Messages that are to be sent next.
    taken: Vec<(usize, Vec<u32>)>,
    /// Processes that may still say something.
    open: usize,
    /// Whether nothing more will be ordered.
    closed: bool,
    idle: Idle,
}

/// For how long nothing has come or gone.
struct Idle {
    looks: usize,
    since: Instant,
}

impl Post<'_> {
    /// Until there is nothing more to send and nobody has anything more to say.
    fn work(mut self) {
        loop {
            self.take_orders();
            let moved = self.receive() | !self.taken.is_empty();
            self.send();
            if self.closed && self.open == 0 {
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
        let world = self.world;
        scope(|scope| {
            let mut open = Vec::with_capacity(batch.len());
            for (to, words) in &batch {
                open.push(world.process_at_rank(*to as i32).immediate_send(scope, &words[..]));
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
