//! A run whose ranks are processes: one rank here, the others wherever they are.
//!
//! What rank 0 hears of the others travels as messages do, as numbers: each 16 bits of a word are one, which no number
//! format changes.

use crate::comm::transport::{Rendezvous, Route, Tag, Transport};
use crate::error::{Fault, RunError};
use crate::train::data::tokens::Tokens;
use crate::train::rank::StepEnd;
use crate::train::record::{Held, Record, Recorded};
use crate::train::run::{Outcome, RankEnd, Ranks, StepMessage, StepReport, outcome, run_ranks};
use crate::train::settings::Settings;
use crate::train::supported;
use std::sync::Arc;
use std::time::Instant;
use trainwright_spec::plan::Plan;
use trainwright_spec::program::MemoryKind;

/// Trains as the rank of a run that this process is; `progress` hears of each step on rank 0. The outcome is rank 0's:
/// the others have none.
///
/// # Errors
/// As `train`; `Meeting` if the processes do not come together.
pub fn train_in_processes(
    place: &Rendezvous,
    plan: &Plan,
    tokens: &Tokens,
    settings: &Settings,
    progress: &mut dyn FnMut(&StepReport),
) -> Result<Option<Outcome>, RunError> {
    let plan = settings.device.own_stack(plan)?;
    supported::check(&plan)?;
    let ranks = plan.mesh.ranks();
    if place.world != ranks || place.rank >= ranks {
        let allowed = format!("this is process {} of {}, and each runs one rank", place.rank, place.world);
        return Err(RunError::Refused { key: "mesh".into(), value: format!("{ranks} ranks"), allowed });
    }
    let transport = place.meet(purpose(&plan, tokens, settings))?;
    let began = begin(&*transport, place).map_err(|fault| RunError::Meeting {
        rank: place.rank,
        master: place.meets.to_string(),
        reason: fault.to_string(),
    })?;
    let local = Some(place.local.unwrap_or(place.rank));
    let here = Ranks { own: vec![place.rank], local, transport: Arc::clone(&transport), began };
    // The others need not find out by waiting that a process ends before its rank has begun.
    let ran = run_ranks(plan, tokens, settings, here, progress).inspect_err(|_| transport.abort())?;
    drop(transport);
    Ok((place.rank == 0).then(|| outcome(ran, settings)))
}

/// A moment that is nearly the same for all: when rank 0 has heard of everybody and everybody of that.
fn begin(connections: &dyn Transport, place: &Rendezvous) -> Result<Instant, Fault> {
    let route = |from, to| Route { from, to, tag: Tag::Report };
    if place.rank == 0 {
        for other in 1..place.world {
            connections.receive(route(other, 0))?;
        }
        (1..place.world).for_each(|other| connections.send(route(0, other), Vec::new()));
    } else {
        connections.send(route(place.rank, 0), Vec::new());
        connections.receive(route(0, place.rank))?;
    }
    Ok(Instant::now())
}

/// A number that two runs share only if they do the same.
///
/// Source: Fowler, Noll & Vo, FNV-1a with 64 bits.
fn purpose(plan: &Plan, tokens: &Tokens, settings: &Settings) -> u64 {
    let settings = (settings.steps, settings.seed, settings.learning_rate, settings.weight_decay);
    let text = format!("{}{}{settings:?}", plan.to_toml(), tokens.count());
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// What a rank says of a step, for rank 0.
pub(crate) fn written_message(message: &StepMessage) -> Vec<f32> {
    let StepEnd { loss, gradient_norm } = message.end;
    let words = [
        message.step as u64,
        loss.to_bits(),
        gradient_norm.is_some().into(),
        gradient_norm.unwrap_or(0.0).to_bits(),
    ];
    words.into_iter().flat_map(pieces).collect()
}

/// The same, read by rank 0.
pub(crate) fn read_message(rank: usize, numbers: &[f32]) -> Option<StepMessage> {
    let mut words = Words(numbers);
    let step = words.next()? as usize;
    let loss = f64::from_bits(words.next()?);
    let has_norm = words.next()? != 0;
    let norm = f64::from_bits(words.next()?);
    Some(StepMessage { rank, step, end: StepEnd { loss, gradient_norm: has_norm.then_some(norm) } })
}

/// What a rank leaves, but for its weights.
pub(crate) fn written_end(end: &RankEnd) -> Vec<f32> {
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
            let Held { tensors, state: [weights, gradients] } = *held;
            [*time, tensors as u64, weights as u64, gradients as u64]
        }));
    }
    words.into_iter().flat_map(pieces).collect()
}

/// The same, read by rank 0.
pub(crate) fn read_end(numbers: &[f32]) -> Option<RankEnd> {
    let mut words = Words(numbers);
    let resident = words.list(|words| {
        let kind = *MemoryKind::ALL.get(words.next()? as usize)?;
        Some((kind, words.next()? as usize))
    })?;
    let records = words.list(|words| {
        let ops = words.list(|words| {
            let (call, op) = (words.next()? as u32, words.next()? as u32);
            Some(Recorded { call, op, start: words.next()?, end: words.next()? })
        })?;
        let memory = words.list(|words| {
            let (time, tensors) = (words.next()?, words.next()? as usize);
            let state = [words.next()? as usize, words.next()? as usize];
            Some((time, Held { tensors, state }))
        })?;
        Some(Record { ops, memory })
    })?;
    Some(RankEnd {
        records,
        resident,
        state: None,
        graph: None,
        device_memory: None,
        attention: None,
        deterministic: None,
    })
}

fn pieces(word: u64) -> [f32; 4] {
    [0, 16, 32, 48].map(|shift| f32::from((word >> shift) as u16))
}

/// Words that are still to be read.
struct Words<'a>(&'a [f32]);

impl Words<'_> {
    fn next(&mut self) -> Option<u64> {
        let (own, rest) = self.0.split_first_chunk::<4>()?;
        self.0 = rest;
        Some(own.iter().rev().fold(0, |word, piece| word << 16 | *piece as u64))
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
    fn what_a_rank_says_arrives_as_it_was() {
        let end = StepEnd { loss: -1.0 / 3.0, gradient_norm: Some(f64::MAX) };
        let message = StepMessage { rank: 3, step: 70_000, end };
        let read = read_message(3, &written_message(&message)).unwrap();
        assert_eq!((read.rank, read.step, read.end), (3, 70_000, end));
        let ops = vec![Recorded { call: 1, op: u32::MAX, start: u64::MAX - 1, end: 1 << 33 }];
        let records =
            vec![Record { ops, memory: vec![(5, Held { tensors: 7, state: [8, 9] })] }, Record::default()];
        let resident = vec![(MemoryKind::Weights, 12), (MemoryKind::Optimizer, 24)];
        let numbers = written_end(&RankEnd {
            records: records.clone(),
            resident: resident.clone(),
            state: None,
            graph: None,
            device_memory: None,
            attention: None,
            deterministic: None,
        });
        let read = read_end(&numbers).unwrap();
        assert_eq!((read.records, read.resident), (records, resident));
        assert!(read_end(&numbers[..numbers.len() - 1]).is_none());
    }
}
