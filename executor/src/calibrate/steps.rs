//! What one step of a collective takes two ranks that do nothing else.

use super::median;
use crate::collective::{Communicator, Members};
use crate::error::RunError;
use crate::tensor::{give_back, take_buffer};
use crate::transport::{Connections, Mailboxes, Meets, Rendezvous, Transport};
use std::net::TcpListener;
use std::time::{Duration, Instant};
use trainwright_kernels::elementwise;
use trainwright_spec::cluster::{MeasuredTime, StepTimes};
use trainwright_spec::units::{Bytes, Seconds};

/// Bytes of a step, from some that only wake the other rank to more than a cache holds.
const SIZES: [usize; 8] = [256, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];

/// How often each size is exchanged, and how often before that.
const TIMES: usize = 24;
const WARM_UP: usize = 4;

/// How the ranks of a run exchange numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// They are threads.
    Threads,
    /// They are processes with connections.
    Tcp,
}

/// Measures the steps of both kinds.
pub(super) fn measure(over: Over, source: String) -> Result<StepTimes, RunError> {
    let row = |takes| {
        let time = |bytes: usize| {
            let time = Seconds::new(time_of(over, bytes, takes)?);
            Ok(MeasuredTime { bytes: Bytes::new(bytes as f64), time })
        };
        SIZES.into_iter().map(time).collect::<Result<Vec<_>, RunError>>()
    };
    Ok(StepTimes { source, copies: row(Takes::Copies)?, adds: row(Takes::Adds)? })
}

#[derive(Clone, Copy, PartialEq)]
enum Takes {
    Copies,
    Adds,
}

/// Seconds of a step: both halves of an all-reduce among two ranks have one each.
fn time_of(over: Over, bytes: usize, takes: Takes) -> Result<f64, RunError> {
    let mailboxes = Mailboxes::new(2);
    let free = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    let master = free.map_or_else(|_| "127.0.0.1:0".into(), |address| address.to_string());
    let began = Instant::now();
    let rank = |rank| match over {
        Over::Threads => Ok(of_rank(rank, &mailboxes, bytes, takes, began)),
        Over::Tcp => {
            let meets = Meets::At(master.clone());
            let place = Rendezvous { rank, world: 2, local: None, meets, patience: Duration::from_secs(20) };
            Ok(of_rank(rank, &Connections::meet(&place, &master, 0)?, bytes, takes, began))
        }
    };
    let [first, second]: [Result<Vec<Window>, RunError>; 2] = std::thread::scope(|scope| {
        let ranks = [0, 1].map(|place| {
            let rank = &rank;
            scope.spawn(move || rank(place))
        });
        ranks.map(|rank| rank.join().expect("ranks that exchange numbers do not panic"))
    });
    // From when both have come to when each has ended, as a step is timed in a run.
    let both = first?.into_iter().zip(second?).skip(WARM_UP);
    // In the mean over both: who came first must be woken, the other one finds what it wants.
    let times = both.map(|(one, other)| 0.5 * (one.end + other.end) - one.start.max(other.start));
    // Exchanges in whose middle a rank was put off by other programs are no measure.
    Ok(median(times.collect()))
}

/// Seconds from the beginning at which a rank came to an exchange and had done its part.
#[derive(Clone, Copy)]
struct Window {
    start: f64,
    end: f64,
}

/// One of both ranks: between two exchanges it computes, now less and now more than the other, so that caches and threads
/// are as they are in a run.
fn of_rank(
    place: usize,
    transport: &dyn Transport,
    bytes: usize,
    takes: Takes,
    began: Instant,
) -> Vec<Window> {
    let members = Members { group: 0, ranks: vec![0, 1], place };
    let mut communicator = Communicator::new(transport);
    let elements = bytes / 4;
    let (own, mut whole) = (vec![1.0; elements], vec![1.0; 2 * elements]);
    let (mut sums, summands) = (vec![0.0; BETWEEN], vec![1.0; BETWEEN]);
    let exchange = |turn: usize| {
        let more = if turn % 2 == place { 2 } else { 1 };
        (0..more).for_each(|_| elementwise::add(&mut sums, &summands));
        let start = began.elapsed().as_secs_f64();
        let moved = match takes {
            Takes::Copies => communicator.all_gather(&members, &own),
            Takes::Adds => communicator.reduce_scatter(&members, std::mem::take(&mut whole)),
        };
        let end = began.elapsed().as_secs_f64();
        let moved = moved.expect("nobody ends these ranks");
        whole = if takes == Takes::Adds { take_buffer(2 * elements) } else { Vec::new() };
        give_back(moved);
        Window { start, end }
    };
    (0..WARM_UP + TIMES).map(exchange).collect()
}

/// Numbers that are added between two exchanges: 8 MiB, about a millisecond.
const BETWEEN: usize = 1 << 20;
