//! Records which op a rank ran when.

use crate::device::Device;
use crate::device::tensor::held_bytes;
use crate::train::settings::Records;
use std::collections::BTreeMap;
use std::time::Instant;
use trainwright_spec::program::{Program, RankProgram, Work};

/// The ops of a step in the order in which a rank ran them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Record {
    /// One for each op.
    pub ops: Vec<OpRecord>,
    /// What the rank held from when on, where it changed.
    pub memory: Vec<(u64, HeldBytes)>,
}

/// What a rank spent in communication during a step: in collectives and receives, waiting for other ranks included.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Communication {
    /// Seconds of all of them.
    pub seconds: f64,
    /// Segment and index of the op with the most of them; `None` if there are no such ops.
    pub longest: Option<[u32; 2]>,
}

impl Record {
    /// Of this step, by its ops' times.
    pub fn communication(&self, program: &Program, rank: &RankProgram) -> Communication {
        let mut by_op: BTreeMap<[u32; 2], u64> = BTreeMap::new();
        for op in &self.ops {
            let segment = rank.calls[op.call as usize].segment;
            let work = program.segments[segment].ops[op.op as usize].work;
            if matches!(work, Work::Collective { .. } | Work::Receive { .. }) {
                *by_op.entry([segment as u32, op.op]).or_default() += op.end.saturating_sub(op.start);
            }
        }
        let longest = by_op.iter().max_by_key(|(_, nanoseconds)| **nanoseconds).map(|(op, _)| *op);
        Communication { seconds: by_op.values().sum::<u64>() as f64 * 1e-9, longest }
    }
}

/// Bytes that a rank holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct HeldBytes {
    /// In tensors.
    pub tensors: usize,
    /// In weights and in gradients, which come and go where they are divided.
    pub state: [usize; 2],
}

/// One op.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpRecord {
    /// Index of the call in the rank's program.
    pub call: u32,
    /// Index of the op in the segment.
    pub op: u32,
    /// Nanoseconds since the run began.
    pub start: u64,
    /// Nanoseconds since the run began.
    pub end: u64,
}

/// Writes records.
pub(crate) struct Recorder {
    began: Instant,
    keeps: Records,
    /// The host's time of the device's first mark, from which it counts this step's times.
    noted: u64,
    /// Of the step that goes on, or of the last one.
    pub record: Record,
    /// Of the steps before it, as far as they are kept.
    pub earlier: Vec<Record>,
}

impl Recorder {
    /// With the run's beginning, which is the same for all ranks.
    pub fn new(began: Instant, keeps: Records) -> Self {
        Self { began, keeps, noted: 0, record: Record::default(), earlier: Vec::new() }
    }

    /// Nanoseconds since then.
    pub fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// When the next op begins: when the one before ended, since what lies between is done for the op.
    pub fn start(&self) -> u64 {
        self.record.ops.last().map_or_else(|| self.now(), |before| before.end)
    }

    /// A new step begins: what was op_record is kept or forgotten. A device that will say when the step's ops ran, and has done
    /// all before, marks the beginning.
    pub fn begin(&mut self, timed_by: Option<&dyn Device>) {
        if let Some(device) = timed_by {
            device.mark();
            // At once: what the host does before the first op would be taken for the device's time.
            self.noted = self.now();
        }
        if self.keeps == Records::EveryStep && !self.record.ops.is_empty() {
            let room = self.record.ops.len();
            self.earlier.push(std::mem::take(&mut self.record));
            self.record.ops.reserve(room);
        }
        self.record.ops.clear();
        self.record.memory.clear();
    }

    /// Gives ops the times of a device that was still at them when their calls returned: `marks` are the seconds from what it
    /// noted first to that itself, and to the beginning and the end of each op on its stream. Without marks the times stay as they are.
    pub fn retime(&mut self, marks: &[f64]) {
        let Some((_, marks)) = marks.split_first() else { return };
        let (marks, []) = marks.as_chunks::<2>() else { return };
        if marks.len() != self.record.ops.len() {
            return;
        }
        let noted = self.noted;
        let at = |seconds: f64| noted + (seconds * 1e9) as u64;
        for (time, _) in &mut self.record.memory {
            let op = self.record.ops.partition_point(|op| op.end < *time).min(self.record.ops.len() - 1);
            *time = at(marks[op][1]);
        }
        for (op, times) in self.record.ops.iter_mut().zip(marks) {
            (op.start, op.end) = (at(times[0]), at(times[1]));
        }
    }

    /// An op that began at `start` has ended; weights and gradients take `state` bytes now.
    pub fn ended(&mut self, call: usize, op: usize, start: u64, state: [usize; 2]) {
        let end = self.now();
        self.record.ops.push(OpRecord { call: call as u32, op: op as u32, start, end });
        let held = HeldBytes { tensors: held_bytes(), state };
        if self.record.memory.last().is_none_or(|(_, known)| *known != held) {
            self.record.memory.push((end, held));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{DeviceKind, Opening};
    use std::time::Duration;

    #[test]
    fn a_devices_times_do_not_move_with_what_the_host_does_before() {
        let kind = DeviceKind::from_name("emulated").unwrap();
        if let Err(error) = (kind.require)() {
            println!("skipped: {error}");
            return;
        }
        let device = (kind.open)(Opening::plain(0)).unwrap();
        let mut recorder = Recorder::new(Instant::now(), Records::LastStep);
        let before_begin = recorder.now();
        recorder.begin(Some(&*device));
        let begin_took = recorder.now() - before_begin;
        std::thread::sleep(Duration::from_millis(50));
        // The emulator runs a launch at once.
        let before = recorder.now();
        device.mark();
        device.mark();
        recorder.ended(0, 0, recorder.start(), [0, 0]);
        let behind = recorder.now();
        recorder.retime(&device.marks());
        let OpRecord { start, end, .. } = recorder.record.ops[0];
        // The device's clock and the host's are read one after the other in `begin`: no further are they apart. A nanosecond
        // is lost in rounding.
        let most = behind + begin_took + 1;
        assert!(
            before <= start + 1 && end <= most,
            "{before} {start} {end} {behind}, begin took {begin_took}"
        );
    }

    #[test]
    fn a_devices_times_take_the_place_of_the_calls() {
        let mut recorder = Recorder::new(Instant::now(), Records::LastStep);
        recorder.begin(None);
        for (op, state) in [[1, 0], [1, 0], [2, 0]].into_iter().enumerate() {
            recorder.ended(0, op, recorder.start(), state);
        }
        recorder.noted = 100;
        recorder.retime(&[0.0, 0.0, 1e-6, 1e-6, 1.5e-6]);
        assert!(recorder.record.ops[0].end < 1_000_000_000, "too few marks change nothing");
        // The second op overlaps the first one.
        recorder.retime(&[0.0, 0.0, 1e-6, 0.5e-6, 1.5e-6, 1.5e-6, 4e-6]);
        let times: Vec<[u64; 2]> = recorder.record.ops.iter().map(|op| [op.start, op.end]).collect();
        assert_eq!(times, [[100, 1100], [600, 1600], [1600, 4100]]);
        // What is held changed with the first op and with the third one.
        let memory: Vec<u64> = recorder.record.memory.iter().map(|(time, _)| *time).collect();
        assert_eq!(memory, [1100, 4100]);
    }
}
