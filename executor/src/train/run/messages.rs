//! What ranks report to the thread that started them, and as bytes from other processes to rank 0.

use crate::device::DeviceMemory;
use crate::error::RunError;
use crate::train::generation::Completion;
use crate::train::graph_capture::GraphUse;
use crate::train::rank::{StepEnd, ValidationEnd};
use crate::train::record::{Communication, HeldBytes, OpRecord, Record};
use crate::train::state::State;
use trainwright_spec::program::MemoryKind;

/// A report of a rank.
pub(super) enum Message {
    /// It has done a step.
    Step(StepMessage),
    /// It has ended.
    End { rank: usize, end: Box<Result<RankEnd, RunError>> },
}

/// A rank has done a step.
pub(crate) struct StepMessage {
    pub rank: usize,
    pub step: usize,
    pub end: StepEnd,
    /// What was generated behind the step, on rank 0.
    pub sample: Option<SampleEnd>,
}

/// A sample of a training.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SampleEnd {
    pub tokens: Vec<u32>,
    /// How long it took.
    pub seconds: f64,
}

/// What a rank leaves at its end.
pub(crate) struct RankEnd {
    /// Of each step that was kept; the last one is the last step's.
    pub records: Vec<Record>,
    /// Bytes of weights, gradients and moments.
    pub resident: Vec<(MemoryKind, usize)>,
    /// `None` for a rank of another process.
    pub here: Option<LocalEnd>,
}

/// What only a rank of this process leaves.
#[derive(Default)]
pub(crate) struct LocalEnd {
    /// If weights were asked for.
    pub state: Option<State>,
    pub graph: Option<GraphUse>,
    pub device_memory: Option<DeviceMemory>,
    pub attention: Option<String>,
    pub deterministic: Option<bool>,
    /// What was generated, by prompt, on rank 0.
    pub completions: Vec<(usize, Completion)>,
}

/// By rank.
pub(super) type Ends = Vec<Result<RankEnd, RunError>>;

/// A report of a rank of another process: a first byte says which.
pub(super) enum Report {
    Step(StepMessage),
    End(RankEnd),
}

/// The first bytes of reports.
const STEP: u8 = 0;
const END: u8 = 1;

impl Report {
    /// The report of a step.
    pub fn step_to_bytes(message: &StepMessage) -> Vec<u8> {
        [vec![STEP], step_to_bytes(message)].concat()
    }

    /// The report of a rank's end, without what only ranks of this process give.
    pub fn end_to_bytes(end: &RankEnd) -> Vec<u8> {
        [vec![END], end_to_bytes(end)].concat()
    }

    /// The inverse of both; `None` if the bytes are none.
    pub fn from_bytes(rank: usize, bytes: &[u8]) -> Option<Self> {
        match bytes.split_first()? {
            (&STEP, step) => step_from_bytes(rank, step).map(Report::Step),
            (&END, end) => end_from_bytes(end).map(Report::End),
            _ => None,
        }
    }
}

/// A rank's message of a step, for rank 0, whose samples are its own.
fn step_to_bytes(message: &StepMessage) -> Vec<u8> {
    let StepEnd { loss, z_loss, gradient_norm, communication, validation } = message.end;
    let communicated = communication.unwrap_or_default();
    let [segment, op] = communicated.longest.unwrap_or_default();
    let validated = validation.unwrap_or(ValidationEnd { loss: 0.0, seconds: 0.0 });
    let words = [
        message.step as u64,
        loss.to_bits(),
        z_loss.to_bits(),
        gradient_norm.is_some().into(),
        gradient_norm.unwrap_or(0.0).to_bits(),
        communication.is_some().into(),
        communicated.seconds.to_bits(),
        communicated.longest.is_some().into(),
        segment.into(),
        op.into(),
        validation.is_some().into(),
        validated.loss.to_bits(),
        validated.seconds.to_bits(),
    ];
    words.into_iter().flat_map(u64::to_le_bytes).collect()
}

/// The inverse of `step_to_bytes`; `None` if the bytes are none.
fn step_from_bytes(rank: usize, bytes: &[u8]) -> Option<StepMessage> {
    let mut words = Words(bytes);
    let step = words.next()? as usize;
    let loss = f64::from_bits(words.next()?);
    let z_loss = f64::from_bits(words.next()?);
    let has_norm = words.next()? != 0;
    let norm = f64::from_bits(words.next()?);
    let has_communication = words.next()? != 0;
    let seconds = f64::from_bits(words.next()?);
    let has_longest = words.next()? != 0;
    let longest = [words.next()? as u32, words.next()? as u32];
    let communicated = Communication { seconds, longest: has_longest.then_some(longest) };
    let has_validation = words.next()? != 0;
    let validated =
        ValidationEnd { loss: f64::from_bits(words.next()?), seconds: f64::from_bits(words.next()?) };
    let (gradient_norm, validation) = (has_norm.then_some(norm), has_validation.then_some(validated));
    let communication = has_communication.then_some(communicated);
    let end = StepEnd { loss, z_loss, gradient_norm, communication, validation };
    Some(StepMessage { rank, step, end, sample: None })
}

/// The end of a rank, without what only ranks of this process give.
fn end_to_bytes(end: &RankEnd) -> Vec<u8> {
    let mut words: Vec<u64> = vec![end.resident.len() as u64];
    words.extend(end.resident.iter().flat_map(|(kind, bytes)| [*kind as u64, *bytes as u64]));
    words.push(end.records.len() as u64);
    for record in &end.records {
        words.push(record.ops.len() as u64);
        words.extend(
            record.ops.iter().flat_map(|op| [u64::from(op.call), u64::from(op.op), op.start, op.end]),
        );
        words.push(record.memory.len() as u64);
        words.extend(record.memory.iter().flat_map(|(time, held)| {
            let HeldBytes { tensors, state: [weights, gradients] } = *held;
            [*time, tensors as u64, weights as u64, gradients as u64]
        }));
    }
    words.into_iter().flat_map(u64::to_le_bytes).collect()
}

/// The inverse of `end_to_bytes`; `None` if the bytes are none.
fn end_from_bytes(bytes: &[u8]) -> Option<RankEnd> {
    let mut words = Words(bytes);
    let resident = words.list(|words| {
        let kind = *MemoryKind::ALL.get(words.next()? as usize)?;
        Some((kind, words.next()? as usize))
    })?;
    let records = words.list(|words| {
        let ops = words.list(|words| {
            let (call, op) = (words.next()? as u32, words.next()? as u32);
            Some(OpRecord { call, op, start: words.next()?, end: words.next()? })
        })?;
        let memory = words.list(|words| {
            let (time, tensors) = (words.next()?, words.next()? as usize);
            let state = [words.next()? as usize, words.next()? as usize];
            Some((time, HeldBytes { tensors, state }))
        })?;
        Some(Record { ops, memory })
    })?;
    Some(RankEnd { records, resident, here: None })
}

/// A report of each kind.
pub(crate) fn valid_reports() -> Vec<Vec<u8>> {
    let words =
        |count: usize, word: u64| [word; 64].iter().take(count).flat_map(|word| word.to_le_bytes()).collect();
    let step: Vec<u8> = words(13, 1);
    let end = RankEnd {
        records: vec![Record {
            ops: vec![OpRecord { call: 1, op: 2, start: 3, end: 4 }],
            memory: vec![(5, HeldBytes { tensors: 6, state: [7, 8] })],
        }],
        resident: vec![(MemoryKind::ALL[0], 9)],
        here: None,
    };
    vec![[vec![STEP], step].concat(), Report::end_to_bytes(&end)]
}

/// Whether bytes are a report.
pub(crate) fn is_report(bytes: &[u8]) -> bool {
    Report::from_bytes(0, bytes).is_some()
}

/// Words of 64 bits that are still to be read.
struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn next(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }

    /// A count and as many entries.
    fn list<T>(&mut self, mut read: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        (0..self.next()?).map(|_| read(self)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_arrive_as_they_were_sent() {
        let validation = Some(ValidationEnd { loss: 2.0 / 3.0, seconds: 1e-9 });
        let communication = Some(Communication { seconds: 1e-3, longest: Some([9, u32::MAX]) });
        let end = StepEnd {
            loss: -1.0 / 3.0,
            z_loss: 1e-300,
            gradient_norm: Some(f64::MAX),
            communication,
            validation,
        };
        let message = StepMessage { rank: 3, step: 70_000, end, sample: None };
        let read = step_from_bytes(3, &step_to_bytes(&message)).unwrap();
        assert_eq!((read.rank, read.step, read.end), (3, 70_000, end));
        let ops = vec![OpRecord { call: 1, op: u32::MAX, start: u64::MAX - 1, end: 1 << 33 }];
        let records = vec![
            Record { ops, memory: vec![(5, HeldBytes { tensors: 7, state: [8, 9] })] },
            Record::default(),
        ];
        let resident = vec![(MemoryKind::Weights, 12), (MemoryKind::Optimizer, 24)];
        let bytes =
            end_to_bytes(&RankEnd { records: records.clone(), resident: resident.clone(), here: None });
        let read = end_from_bytes(&bytes).unwrap();
        assert_eq!((read.records, read.resident), (records, resident));
        assert!(end_from_bytes(&bytes[..bytes.len() - 1]).is_none());
    }
}
