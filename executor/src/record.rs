//! What a rank did when, as it happens.

use crate::tensor::held_bytes;
use std::time::Instant;

/// The ops of a step in the order in which a rank ran them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Record {
    /// One for each op.
    pub ops: Vec<Recorded>,
    /// Changes of the bytes that the rank's tensors take.
    pub memory: Vec<(u64, usize)>,
}

/// One op.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Recorded {
    /// Index of the call in the rank's program.
    pub call: u32,
    /// Index of the op in the segment.
    pub op: u32,
    /// Nanoseconds since the run began.
    pub start: u64,
    /// The same.
    pub end: u64,
}

/// Writes a record.
pub(crate) struct Recorder {
    began: Instant,
    pub record: Record,
}

impl Recorder {
    /// With the run's beginning, which is the same for all ranks.
    pub fn new(began: Instant) -> Self {
        Self { began, record: Record::default() }
    }

    /// Nanoseconds since then.
    pub fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// Forgets what was recorded: a new step begins.
    pub fn begin(&mut self) {
        self.record.ops.clear();
        self.record.memory.clear();
    }

    /// An op that began at `start` has ended.
    pub fn ended(&mut self, call: usize, op: usize, start: u64) {
        let end = self.now();
        self.record.ops.push(Recorded { call: call as u32, op: op as u32, start, end });
        let held = held_bytes();
        if self.record.memory.last().is_none_or(|(_, known)| *known != held) {
            self.record.memory.push((end, held));
        }
    }
}
