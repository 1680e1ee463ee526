//! What one step of a collective takes two ranks that do nothing else.

use super::network::CONTENT;
use super::robust::{Refused, kept, median, sweep};
use crate::comm::collective::Communicator;
use crate::comm::members::Members;
use crate::comm::transport::{
    Connections, Identity, Joining, Mailboxes, Remark, Rendezvous, RendezvousVia, Token, Transport,
};
use crate::device::host_buffers::{return_buffer, take_buffer};
use crate::error::RunError;
use std::net::TcpListener;
use std::time::{Duration, Instant};
use trainwright_kernels::elementwise;
use trainwright_spec::cluster::{MeasuredTime, StepTimes};
use trainwright_spec::units::{Bytes, Seconds};

/// Bytes of a step, from some that only wake the other rank to more than a cache holds.
const SIZES: [usize; 8] = [256, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];

/// How often all sizes are exchanged in turn, and how often each of them in a turn, after some exchanges before.
const ROUNDS: usize = 4;
const TIMES: usize = 6;
const WARM_UP: usize = 2;

/// How the ranks of a run exchange numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// They are threads.
    Threads,
    /// They are processes with connections.
    Tcp,
}

/// Measures the steps of both kinds, and says which samples were refused.
pub(super) fn measure(over: Over, source: String) -> Result<(StepTimes, Vec<Refused>), RunError> {
    let mut refused = Vec::new();
    let mut row = |takes: Takes| -> Result<Vec<MeasuredTime>, RunError> {
        let medians = SIZES.iter().zip(samples(over, takes)?).map(|(bytes, samples)| {
            let bytes = Bytes::new(*bytes as f64);
            let (kept, lost) = kept(samples, || format!("an {} step of {bytes}", takes.name()));
            refused.extend(lost);
            (bytes.get(), median(kept))
        });
        let medians: Vec<(f64, f64)> = medians.collect();
        let times = sweep(&medians).into_iter().zip(medians);
        let row = |(time, (bytes, _))| MeasuredTime { bytes: Bytes::new(bytes), time: Seconds::new(time) };
        Ok(times.map(row).collect())
    };
    let (copies, adds) = (row(Takes::Copies)?, row(Takes::Adds)?);
    Ok((StepTimes { source, copies, adds }, refused))
}

#[derive(Clone, Copy, PartialEq)]
enum Takes {
    Copies,
    Adds,
}

impl Takes {
    /// The collective whose steps these are.
    fn name(self) -> &'static str {
        match self {
            Takes::Copies => "all-gather",
            Takes::Adds => "reduce-scatter",
        }
    }
}

/// Of each size the seconds of each step: both halves of an all-reduce among two ranks have one each.
fn samples(over: Over, takes: Takes) -> Result<Vec<Vec<f64>>, RunError> {
    let mailboxes = Mailboxes::new(2);
    let free = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    let master = free.map_or_else(|_| "127.0.0.1:0".into(), |address| address.to_string());
    let token = Token::random().unwrap_or_default();
    let began = Instant::now();
    let rank = |rank| match over {
        Over::Threads => Ok(of_rank(rank, &mailboxes, takes, began)),
        Over::Tcp => {
            let via = RendezvousVia::Tcp(master.clone());
            // Only this process knows the token: nobody else disturbs the measurement.
            let (patience, remark) = (Duration::from_secs(20), Remark::default());
            let place = Rendezvous {
                rank,
                world: 2,
                local_rank: None,
                local_world: None,
                via,
                patience,
                token: token.clone(),
                remark,
            };
            let joining = Joining { identity: Identity::default(), longest: 2 * SIZES[SIZES.len() - 1] };
            Ok(of_rank(rank, &Connections::connect(&place, &master, &joining)?, takes, began))
        }
    };
    let [first, second]: [Result<Vec<Vec<Window>>, RunError>; 2] = std::thread::scope(|scope| {
        let ranks = [0, 1].map(|place| {
            let rank = &rank;
            scope.spawn(move || rank(place))
        });
        ranks.map(|rank| rank.join().expect("ranks that exchange numbers do not panic"))
    });
    // From when both have come to when each has ended, as a step is timed in a run; in the mean over both: who came first
    // must be woken, the other one finds what it wants.
    let time = |(one, other): (Window, Window)| 0.5 * (one.end + other.end) - one.start.max(other.start);
    let of_size =
        |(one, other): (Vec<Window>, Vec<Window>)| one.into_iter().zip(other).map(time).collect::<Vec<f64>>();
    Ok(first?.into_iter().zip(second?).map(of_size).collect())
}

/// Seconds from the beginning at which a rank came to an exchange and had done its part.
#[derive(Clone, Copy)]
struct Window {
    start: f64,
    end: f64,
}

/// One of both ranks, and its exchanges by size: between two of them it computes, now less and now more than the other, so
/// that caches and threads are as they are in a run.
fn of_rank(place: usize, transport: &dyn Transport, takes: Takes, began: Instant) -> Vec<Vec<Window>> {
    let members = Members { group: 0, ranks: vec![0, 1], place };
    let mut communicator = Communicator::new(transport);
    let (mut sums, summands) = (vec![0.0; BETWEEN], vec![1.0; BETWEEN]);
    let mut exchange = |turn: usize, shard: &[f32], summed: &mut Vec<f32>| {
        let more = if turn % 2 == place { 2 } else { 1 };
        (0..more).for_each(|_| elementwise::add(&mut sums, &summands));
        let start = began.elapsed().as_secs_f64();
        let moved = match takes {
            Takes::Copies => communicator.all_gather(&members, shard),
            Takes::Adds => communicator.reduce_scatter(&members, std::mem::take(summed)),
        };
        let end = began.elapsed().as_secs_f64();
        let moved = moved.expect("nobody ends these ranks");
        *summed = if takes == Takes::Adds { take_buffer(2 * shard.len()) } else { Vec::new() };
        summed.fill(CONTENT);
        return_buffer(moved);
        Window { start, end }
    };
    let mut windows = vec![Vec::new(); SIZES.len()];
    for _ in 0..ROUNDS {
        for (bytes, windows) in SIZES.into_iter().zip(&mut windows) {
            let elements = bytes / 4;
            let (shard, mut summed) = (vec![CONTENT; elements], vec![CONTENT; 2 * elements]);
            let all = (0..WARM_UP + TIMES).map(|turn| exchange(turn, &shard, &mut summed));
            windows.extend(all.skip(WARM_UP));
        }
    }
    windows
}

/// Numbers that are added between two exchanges: 8 MiB, about a millisecond.
const BETWEEN: usize = 1 << 20;
