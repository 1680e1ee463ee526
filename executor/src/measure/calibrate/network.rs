//! What operating systems do for a network between nodes, on the cores that ranks compute on.
//!
//! ```text
//! rank 0 of the first node   ── batches of messages ─►   first rank of the second node, which says when one has come
//!        └ on all cores of each node threads that add numbers; how much less of that is done while a batch is on its way
//! ```
//!
//! The other ranks connect to these two, as they must, and do nothing.

use super::machine::source;
use super::robust::median;
use crate::comm::transport::{
    Connections, Envelope, Identity, Joining, Payload, Rendezvous, RendezvousVia, Tag, Transport,
};
use crate::device::host_buffers::return_buffer;
use crate::error::{Fault, RunError};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use trainwright_kernels::elementwise;
use trainwright_spec::cluster::{MeasuredTime, NetworkWork};
use trainwright_spec::units::{Bytes, Seconds};

/// Numbers of a message, and of what a thread adds between two looks at the time: they fit into the private cache of a core.
const NUMBERS: usize = 32 << 10;

/// How long a batch is on its way at least, and how often there is one, each after as long a pause.
const BATCH: Duration = Duration::from_millis(150);
const TIMES: usize = 6;

/// What was done on a node's cores while a batch was on its way and in the pause before it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Turn {
    /// Additions, and the seconds of that.
    beside: [f64; 2],
    alone: [f64; 2],
    /// Bytes of the batch.
    bytes: f64,
}

/// Measures it together with the other processes of a run, of which each node has `of_node`; `None`
/// except on rank 0, and if all ranks are on one node. `emulated`: all nodes are this machine.
///
/// # Errors
/// `Meeting` if the processes do not come together or one is lost.
pub fn network_work(
    place: &Rendezvous,
    of_node: usize,
    emulated: bool,
) -> Result<Option<NetworkWork>, RunError> {
    let RendezvousVia::Tcp(master) = &place.via else { return Ok(None) };
    if place.world <= of_node {
        return Ok(None);
    }
    let identity = Identity::default().with("purpose", &"measuring the network");
    let transport = Connections::connect(place, master, &Joining { identity, longest: NUMBERS })?;
    let measured = match place.rank {
        0 => lead(&transport, of_node, emulated).map(Some),
        rank if rank == of_node => follow(&transport, rank, emulated).map(|()| None),
        _ => Ok(None),
    };
    measured.map_err(|fault| RunError::Rendezvous {
        rank: place.rank,
        master: master.clone(),
        reason: fault.to_string(),
    })
}

/// What measured messages hold: a number in f32 that has no shorter form in which it could travel.
pub(super) const CONTENT: f32 = 1.0 + f32::EPSILON;

/// The sender.
fn lead(transport: &dyn Transport, to: usize, emulated: bool) -> Result<NetworkWork, Fault> {
    let envelope = Envelope { from: 0, to, tag: Tag::Report };
    let cores = Busy::start();
    // How many messages are on their way for so long, twice: one of both batches may have been held up by something else.
    let mut messages = 1;
    while batch(transport, envelope, messages)?.min(batch(transport, envelope, messages)?) < BATCH {
        messages *= 2;
    }
    let mut turns = Vec::new();
    for _ in 0..TIMES {
        let alone = cores.during(|| thread::sleep(BATCH));
        let mut sent = Ok(Duration::ZERO);
        let beside = cores.during(|| sent = batch(transport, envelope, messages));
        sent?;
        turns.push(Turn { beside, alone, bytes: (4 * NUMBERS * messages) as f64 });
    }
    transport.send_bytes(envelope, vec![END]);
    let [bytes, seconds] = *transport.receive_bytes(envelope.back())?.as_chunks().0 else {
        return Err(Fault::Lost { rank: to, how: "what it found of its cores cannot be read".into() });
    };
    let received = measured(f64::from_le_bytes(bytes), f64::from_le_bytes(seconds));
    let sent = work(&turns, cores.count());
    let received = if emulated { measured(0.0, 0.0) } else { received };
    Ok(NetworkWork { source: source(), sent, received })
}

/// A control message ends a batch or all of them.
const LAST: u8 = 0;
const END: u8 = 1;

/// Sends messages and waits until the last one has come.
fn batch(transport: &dyn Transport, envelope: Envelope, messages: usize) -> Result<Duration, Fault> {
    let start = Instant::now();
    for _ in 0..messages {
        transport.send(envelope, vec![CONTENT; NUMBERS]);
    }
    transport.send_bytes(envelope, vec![LAST]);
    transport.receive_bytes(envelope.back())?;
    Ok(start.elapsed())
}

/// The receiver: from the first message of a batch to its last one is beside, the rest alone. On the sender's machine it
/// shares the cores with it.
fn follow(transport: &dyn Transport, receiver: usize, emulated: bool) -> Result<(), Fault> {
    let envelope = Envelope { from: 0, to: receiver, tag: Tag::Report };
    let cores = if emulated { None } else { Some(Busy::start()) };
    let (mut turns, mut bytes) = (Vec::new(), 0.0);
    let next = || {
        let mut message = Err(Fault::Aborted);
        let done = match &cores {
            Some(cores) => cores.during(|| message = transport.receive_payload(envelope)),
            None => {
                message = transport.receive_payload(envelope);
                [0.0; 2]
            }
        };
        message.map(|message| (message, done))
    };
    loop {
        // Until the first one comes nothing is on its way.
        let (message, pause) = next()?;
        if message == Payload::Bytes(vec![END]) {
            break;
        }
        let (mut message, mut beside) = (message, [0.0; 2]);
        while let Payload::Numbers(numbers) = message {
            bytes += 4.0 * numbers.len() as f64;
            return_buffer(numbers);
            let (more, done) = next()?;
            beside = [beside[0] + done[0], beside[1] + done[1]];
            message = more;
        }
        turns.push(Turn { beside, alone: pause, bytes });
        bytes = 0.0;
        transport.send_bytes(envelope.back(), vec![LAST]);
    }
    // Those before only found out how long they must be.
    let turns = &turns[turns.len().saturating_sub(TIMES)..];
    let found = cores.map_or(measured(0.0, 0.0), |cores| work(turns, cores.count()));
    let found = [found.bytes.get(), found.time.get()];
    transport.send_bytes(envelope.back(), found.into_iter().flat_map(f64::to_le_bytes).collect());
    Ok(())
}

fn measured(bytes: f64, seconds: f64) -> MeasuredTime {
    MeasuredTime { bytes: Bytes::new(bytes), time: Seconds::new(seconds) }
}

/// What the batches took of a node's cores, in the median over them: one that another program disturbed says nothing.
///
/// T = c Σ n_i med (t_i − a_i / r) / n_i, at least 0; r = med r_i
///
/// c cores; t_i the time of a batch of n_i bytes, a_i the additions in it, r_i the rate of additions in the pause before it.
fn work(turns: &[Turn], cores: usize) -> MeasuredTime {
    let of = |part: &dyn Fn(&Turn) -> f64| -> Vec<f64> { turns.iter().map(part).collect() };
    let rate = median(of(&|turn| turn.alone[0] / turn.alone[1].max(1e-9))).max(1e-9);
    let lost = median(of(&|turn| (turn.beside[1] - turn.beside[0] / rate) / turn.bytes.max(1.0)));
    let bytes: f64 = of(&|turn| turn.bytes).iter().sum();
    measured(bytes, (cores as f64 * bytes * lost).max(0.0))
}

/// Threads on all cores of this machine that add numbers until it is dropped.
struct Busy {
    threads: Vec<thread::JoinHandle<()>>,
    state: std::sync::Arc<State>,
}

#[derive(Default)]
struct State {
    additions: AtomicU64,
    ends: AtomicBool,
}

impl Busy {
    fn start() -> Self {
        let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let state = std::sync::Arc::new(State::default());
        let add = |_| {
            let state = state.clone();
            thread::spawn(move || {
                let (mut sums, summands) = (vec![0.0f32; NUMBERS], vec![1.0f32; NUMBERS]);
                while !state.ends.load(Ordering::Relaxed) {
                    elementwise::add(&mut sums, &summands);
                    state.additions.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        Self { threads: (0..cores).map(add).collect(), state }
    }

    fn count(&self) -> usize {
        self.threads.len()
    }

    /// Additions while something is done, and its seconds.
    fn during(&self, work: impl FnOnce()) -> [f64; 2] {
        let additions = || self.state.additions.load(Ordering::Relaxed);
        let (before, start) = (additions(), Instant::now());
        work();
        [(additions() - before) as f64, start.elapsed().as_secs_f64()]
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.state.ends.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // They have no result.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn what_is_not_done_beside_a_batch_is_the_networks() {
        // 10 additions a second alone. Beside two batches of 2 s 15 and 5: half of 4 s is lost, on each of 3 cores.
        let turn = |done| Turn { beside: [done, 2.0], alone: [10.0, 1.0], bytes: 50.0 };
        assert_eq!(work(&[turn(15.0), turn(5.0)], 3), measured(100.0, 6.0));
        assert_eq!(work(&[turn(25.0)], 3), measured(50.0, 0.0), "more than alone is chance");
        // Of three batches one was held up for an hour, and the pause before it too.
        let held_up = Turn { beside: [0.0, 3600.0], alone: [0.0, 3600.0], bytes: 50.0 };
        assert_eq!(work(&[turn(10.0), held_up, turn(10.0)], 3), measured(150.0, 9.0));
        assert_eq!(work(&[], 3), measured(0.0, 0.0));
    }

    #[test]
    fn two_processes_find_what_each_of_them_works() {
        let free = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().to_string();
        let both = |emulated| {
            let rank = |rank| {
                let via = RendezvousVia::Tcp(free.clone());
                let (patience, (token, remark)) = (Duration::from_secs(20), Default::default());
                let place = Rendezvous {
                    rank,
                    world: 2,
                    local_rank: None,
                    local_world: None,
                    via,
                    patience,
                    token,
                    remark,
                };
                move || network_work(&place, 1, emulated)
            };
            thread::scope(|scope| {
                let follows = scope.spawn(rank(1));
                let led = rank(0)().unwrap().unwrap();
                assert_eq!(follows.join().unwrap().unwrap(), None);
                led
            })
        };
        // How much that is depends on what else this machine does; that batches count on both sides does not.
        let found = both(false);
        let batches = found.sent.bytes.get() / (4 * NUMBERS * TIMES) as f64;
        assert!(batches >= 1.0 && batches.fract() == 0.0, "{found:?}");
        assert_eq!(found.received.bytes, found.sent.bytes);
        assert_eq!(both(true).received, measured(0.0, 0.0));
    }
}
