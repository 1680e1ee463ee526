//! Whether the ranks are alive: what each is doing, and an end for all if one of them cannot go on.

use crate::comm::drill::{Drill, DrillKind};
use crate::comm::transport::{Route, Transport};
use crate::error::Fault;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use trainwright_kernels::cuda::StopFlag;

/// The pulse of every rank.
#[derive(Debug)]
pub(crate) struct Watch(Vec<Pulse>);

/// What one rank is doing.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    /// Call and op of the rank's program.
    at: AtomicU64,
    /// The step, from 1.
    step: AtomicUsize,
    /// Ops that it has begun in this step.
    ops: AtomicUsize,
    /// Messages that it has sent and received, and tensors of checkpoints.
    beats: AtomicU64,
    /// Whether it waits for a message.
    waits: AtomicBool,
    /// Whether it must stop. Its device knows this too.
    stops: StopFlag,
    /// Whether it has ended.
    ended: AtomicBool,
    drill: Option<Drill>,
}

impl Watch {
    /// Over that many ranks.
    pub fn new(ranks: usize, drill: Option<Drill>) -> Self {
        let pulse = |rank| Pulse { drill: drill.filter(|drill| drill.rank == rank), ..Pulse::default() };
        Self((0..ranks).map(pulse).collect())
    }

    /// That of a rank.
    pub fn rank(&self, rank: usize) -> &Pulse {
        &self.0[rank]
    }

    /// Stops all ranks before their next op.
    pub fn stop(&self) {
        self.0.iter().for_each(|pulse| pulse.stops.store(true, Ordering::Relaxed));
    }

    /// The rank that holds up all others: one that has not ended and does not wait for a message.
    pub fn culprit(&self) -> usize {
        let of = |pulse: &Pulse| (pulse.ended.load(Ordering::Relaxed), pulse.waits.load(Ordering::Relaxed));
        let ranks = 0..self.0.len();
        ranks.min_by_key(|rank| of(&self.0[*rank])).expect("a run has ranks")
    }

    /// The first rank of another process from which nothing has come for so long.
    pub fn silent(&self, transport: &dyn Transport, limit: Duration) -> Option<usize> {
        let silence = |rank: usize| transport.heard(rank).and_then(|heard| heard.silence);
        (0..self.0.len()).find(|rank| silence(*rank) > Some(limit))
    }

    /// Takes over what ranks of other processes said of themselves.
    pub fn hear(&self, transport: &dyn Transport) {
        for (rank, pulse) in self.0.iter().enumerate() {
            if let Some(sign) = transport.heard(rank).and_then(|heard| heard.sign) {
                pulse.set(&sign);
            }
        }
    }

    /// What changes as long as anything happens.
    fn signs(&self) -> Vec<[u64; 3]> {
        let signs = |pulse: &Pulse| {
            let ops = pulse.ops.load(Ordering::Relaxed) as u64;
            [pulse.step.load(Ordering::Relaxed) as u64, ops, pulse.beats.load(Ordering::Relaxed)]
        };
        self.0.iter().map(signs).collect()
    }
}

impl Pulse {
    /// A step begins.
    pub fn begin_step(&self, step: usize) {
        self.step.store(step, Ordering::Relaxed);
        self.ops.store(0, Ordering::Relaxed);
    }

    /// An op begins.
    pub fn begin_op(&self, call: usize, op: usize) -> Result<(), Fault> {
        self.at.store((call as u64) << 32 | op as u64, Ordering::Relaxed);
        let number = self.ops.fetch_add(1, Ordering::Relaxed);
        if let Some(drill) = self.drill
            && (drill.step, drill.op) == (self.step(), number)
        {
            match drill.kind {
                // As a panic, but without its words on standard error.
                DrillKind::Death => resume_unwind(Box::new("a drill")),
                DrillKind::Stall => loop {
                    std::thread::park();
                },
                DrillKind::NotANumber => {}
            }
        }
        if self.stops.load(Ordering::Relaxed) { Err(Fault::Aborted) } else { Ok(()) }
    }

    /// What the rank's process says of it to others, in numbers that are small enough to be exact.
    pub fn sign(&self) -> Vec<f32> {
        let (call, op) = self.at();
        let [waits, ended] = [&self.waits, &self.ended].map(|flag| usize::from(flag.load(Ordering::Relaxed)));
        let beats = self.beats.load(Ordering::Relaxed) as usize;
        let words = [self.step(), self.ops.load(Ordering::Relaxed), beats, call, op, waits, ended];
        let halves =
            words.into_iter().flat_map(|word| [word >> HALF, word].map(|part| part & ((1 << HALF) - 1)));
        halves.map(|part| part as f32).collect()
    }

    /// What another process said of the rank.
    fn set(&self, sign: &[f32]) {
        let words: Vec<u64> =
            sign.chunks_exact(2).map(|parts| (parts[0] as u64) << HALF | parts[1] as u64).collect();
        let [step, ops, beats, call, op, waits, ended] = words[..] else { return };
        self.step.store(step as usize, Ordering::Relaxed);
        self.ops.store(ops as usize, Ordering::Relaxed);
        self.beats.store(beats, Ordering::Relaxed);
        self.at.store(call << 32 | op, Ordering::Relaxed);
        self.waits.store(waits != 0, Ordering::Relaxed);
        // What was heard of its end otherwise stays true.
        self.ended.fetch_or(ended != 0, Ordering::Relaxed);
    }

    /// Whether something happens at an op of this step: then its ops are told one by one.
    pub fn drills(&self) -> bool {
        self.drill.is_some_and(|drill| drill.step == self.step() && drill.kind != DrillKind::NotANumber)
    }

    /// What went wrong did so there, as is known now.
    pub fn was_at(&self, call: usize, op: usize) {
        self.at.store((call as u64) << 32 | op as u64, Ordering::Relaxed);
    }

    /// Something outside of the program's ops goes on.
    pub fn beat(&self) {
        self.beats.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether a weight is to be no number in this step.
    pub fn spoils_weights(&self) -> bool {
        self.drill.is_some_and(|drill| drill.kind == DrillKind::NotANumber && drill.step == self.step())
    }

    /// Waits for something of another rank, which is a sign of life when it comes.
    pub fn waiting<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.waits.store(true, Ordering::Relaxed);
        let come = wait();
        self.waits.store(false, Ordering::Relaxed);
        self.beat();
        come
    }

    /// Whether it must stop, for whoever waits on its behalf.
    pub fn stop_flag(&self) -> StopFlag {
        StopFlag::clone(&self.stops)
    }

    /// The rank has ended.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    /// The step it is in.
    pub fn step(&self) -> usize {
        self.step.load(Ordering::Relaxed)
    }

    /// The call and the op it is at.
    pub fn at(&self) -> (usize, usize) {
        let at = self.at.load(Ordering::Relaxed);
        ((at >> 32) as usize, (at & 0xFFFF_FFFF) as usize)
    }
}

/// Bits of a number in a sign, which an `f32` holds.
const HALF: u32 = 24;

/// For how long nothing may come from a process whose rank says every second how it is, unless less was asked for.
const SILENCE: Duration = Duration::from_secs(10);

/// A transport whose messages are signs of life.
pub(crate) struct Watched<'a> {
    pub transport: &'a dyn Transport,
    pub pulse: &'a Pulse,
}

impl Transport for Watched<'_> {
    fn send(&self, route: Route, message: Vec<f32>) {
        self.pulse.beat();
        self.transport.send(route, message);
    }

    fn receive(&self, route: Route) -> Result<Vec<f32>, Fault> {
        self.pulse.waiting(|| self.transport.receive(route))
    }

    fn look(&self, route: Route) -> Option<Vec<f32>> {
        self.transport.look(route)
    }

    fn abort(&self) {
        self.transport.abort();
    }
}

/// Notices when nothing happens any more.
pub(crate) struct Patience {
    limit: Duration,
    silence: Duration,
    signs: Vec<[u64; 3]>,
    since: Instant,
}

impl Patience {
    /// That lasts so long.
    pub fn new(limit: Duration) -> Self {
        Self { limit, silence: limit.min(SILENCE), signs: Vec::new(), since: Instant::now() }
    }

    /// That of a process which leaves it to rank 0 to speak first.
    pub fn of_follower(limit: Duration) -> Self {
        let Self { limit, silence, signs, since } = Self::new(limit);
        Self { limit: limit * 5 / 4, silence: silence * 5 / 4, signs, since }
    }

    /// For how long nothing may come from another process.
    pub fn silence(&self) -> Duration {
        self.silence
    }

    /// How long to wait before one looks again.
    pub fn interval(&self) -> Duration {
        (self.limit / 8).clamp(Duration::from_millis(10), Duration::from_secs(1))
    }

    /// Whether nothing has happened for longer than the limit.
    pub fn is_over(&mut self, watch: &Watch) -> bool {
        let signs = watch.signs();
        if signs != self.signs {
            (self.signs, self.since) = (signs, Instant::now());
        }
        self.since.elapsed() > self.limit
    }
}
