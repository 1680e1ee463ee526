//! Heartbeats: what each rank is doing, and an end for all if one of them cannot go on.

use crate::comm::drill::{Drill, DrillKind};
use crate::comm::transport::{Envelope, Payload, Transport};
use crate::error::Fault;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use trainwright_kernels::cuda::StopFlag;

/// The heartbeat of every rank.
#[derive(Debug)]
pub(crate) struct Heartbeats(Vec<Heartbeat>);

/// What one rank is doing.
#[derive(Debug, Default)]
pub(crate) struct Heartbeat {
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
    /// Whether it must stop. Its device has this flag too.
    stops: StopFlag,
    /// Whether it has ended.
    ended: AtomicBool,
    drill: Option<Drill>,
}

impl Heartbeats {
    /// Those of `ranks` ranks.
    pub fn new(ranks: usize, drill: Option<Drill>) -> Self {
        let heartbeat =
            |rank| Heartbeat { drill: drill.filter(|drill| drill.rank == rank), ..Heartbeat::default() };
        Self((0..ranks).map(heartbeat).collect())
    }

    /// That of a rank.
    pub fn rank(&self, rank: usize) -> &Heartbeat {
        &self.0[rank]
    }

    /// Stops all ranks before their next op.
    pub fn stop(&self) {
        self.0.iter().for_each(|heartbeat| heartbeat.stops.store(true, Ordering::Relaxed));
    }

    /// The rank that holds up all others: one that has not ended and does not wait for a message.
    pub fn culprit(&self) -> usize {
        let of = |heartbeat: &Heartbeat| {
            (heartbeat.ended.load(Ordering::Relaxed), heartbeat.waits.load(Ordering::Relaxed))
        };
        let ranks = 0..self.0.len();
        ranks.min_by_key(|rank| of(&self.0[*rank])).expect("a run has ranks")
    }

    /// The first rank of another process from which nothing has come for longer than `limit`.
    pub fn silent(&self, transport: &dyn Transport, limit: Duration) -> Option<usize> {
        let silence = |rank: usize| transport.peer_status(rank).and_then(|peer| peer.silence);
        (0..self.0.len()).find(|rank| silence(*rank) > Some(limit))
    }

    /// Takes over the statuses that ranks of other processes have sent.
    pub fn take_statuses(&self, transport: &dyn Transport) {
        for (rank, heartbeat) in self.0.iter().enumerate() {
            if let Some(status) = transport.peer_status(rank).and_then(|peer| peer.status) {
                heartbeat.set(&status);
            }
        }
    }

    /// Numbers that change as long as anything happens: step, ops and beats of each rank.
    fn progress(&self) -> Vec<[u64; 3]> {
        let progress = |heartbeat: &Heartbeat| {
            let ops = heartbeat.ops.load(Ordering::Relaxed) as u64;
            [heartbeat.step.load(Ordering::Relaxed) as u64, ops, heartbeat.beats.load(Ordering::Relaxed)]
        };
        self.0.iter().map(progress).collect()
    }
}

impl Heartbeat {
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

    /// Its status, for ranks of other processes: 7 words of 64 bits.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (call, op) = self.at();
        let [waits, ended] = [&self.waits, &self.ended].map(|flag| usize::from(flag.load(Ordering::Relaxed)));
        let beats = self.beats.load(Ordering::Relaxed) as usize;
        let words = [self.step(), self.ops.load(Ordering::Relaxed), beats, call, op, waits, ended];
        words.into_iter().flat_map(|word| (word as u64).to_le_bytes()).collect()
    }

    /// Takes over the status that the rank's process has sent.
    fn set(&self, status: &[u8]) {
        let words: Vec<u64> = status.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let [step, ops, beats, call, op, waits, ended] = words[..] else { return };
        self.step.store(step as usize, Ordering::Relaxed);
        self.ops.store(ops as usize, Ordering::Relaxed);
        self.beats.store(beats, Ordering::Relaxed);
        self.at.store(call << 32 | op, Ordering::Relaxed);
        self.waits.store(waits != 0, Ordering::Relaxed);
        // A rank that has ended stays so, however that became known.
        self.ended.fetch_or(ended != 0, Ordering::Relaxed);
    }

    /// Whether a fault is due at an op of this step: then its ops are enqueued one by one.
    pub fn drills(&self) -> bool {
        self.drill.is_some_and(|drill| drill.step == self.step() && drill.kind != DrillKind::NotANumber)
    }

    /// A fault happened at that op, as is known now.
    pub fn was_at(&self, call: usize, op: usize) {
        self.at.store((call as u64) << 32 | op as u64, Ordering::Relaxed);
    }

    /// Something other than an op of the program makes progress.
    pub fn beat(&self) {
        self.beats.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether a weight is to become NaN in this step.
    pub fn spoils_weights(&self) -> bool {
        self.drill.is_some_and(|drill| drill.kind == DrillKind::NotANumber && drill.step == self.step())
    }

    /// Waits for something of another rank; its arrival is a beat.
    pub fn waiting<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.waits.store(true, Ordering::Relaxed);
        let arrived = wait();
        self.waits.store(false, Ordering::Relaxed);
        self.beat();
        arrived
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

/// For how long nothing may come from a process, which sends a status every second, unless the run's limit is shorter.
const SILENCE: Duration = Duration::from_secs(10);

/// A transport each of whose messages is a beat.
pub(crate) struct BeatingTransport<'a> {
    pub transport: &'a dyn Transport,
    pub heartbeat: &'a Heartbeat,
}

impl Transport for BeatingTransport<'_> {
    fn send_payload(&self, envelope: Envelope, payload: Payload) {
        self.heartbeat.beat();
        self.transport.send_payload(envelope, payload);
    }

    fn receive_payload(&self, envelope: Envelope) -> Result<Payload, Fault> {
        self.heartbeat.waiting(|| self.transport.receive_payload(envelope))
    }

    fn try_receive(&self, envelope: Envelope) -> Option<Payload> {
        self.transport.try_receive(envelope)
    }

    fn abort(&self) {
        self.transport.abort();
    }
}

/// Notices when no rank makes progress.
pub(crate) struct Watchdog {
    limit: Duration,
    silence: Duration,
    progress: Vec<[u64; 3]>,
    since: Instant,
}

impl Watchdog {
    /// With that limit.
    pub fn new(limit: Duration) -> Self {
        Self { limit, silence: limit.min(SILENCE), progress: Vec::new(), since: Instant::now() }
    }

    /// That of a process other than rank 0's, which reports a stall first.
    pub fn of_follower(limit: Duration) -> Self {
        let Self { limit, silence, progress, since } = Self::new(limit);
        Self { limit: limit * 5 / 4, silence: silence * 5 / 4, progress, since }
    }

    /// For how long nothing may come from another process.
    pub fn silence(&self) -> Duration {
        self.silence
    }

    /// Between two checks.
    pub fn interval(&self) -> Duration {
        (self.limit / 8).clamp(Duration::from_millis(10), Duration::from_secs(1))
    }

    /// Whether nothing has happened for longer than the limit.
    pub fn is_over(&mut self, heartbeats: &Heartbeats) -> bool {
        let progress = heartbeats.progress();
        if progress != self.progress {
            (self.progress, self.since) = (progress, Instant::now());
        }
        self.since.elapsed() > self.limit
    }
}
