//! Batches of continuous batching: new tokens of several sequences that run through the ranks in one pass.
//!
//! Whoever schedules makes the batches. Rank 0 takes them from a feed, one at a time, and sends each to the other ranks.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

/// A pass over new tokens of some sequences.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// Sequences whose keys and values are given up before the pass.
    pub freed: Vec<usize>,
    /// The new tokens, of each sequence once at most.
    pub parts: Vec<BatchPart>,
}

/// New tokens of a sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchPart {
    /// Its number.
    pub sequence: usize,
    /// Tokens before these: as many as have keys and values.
    pub first: usize,
    /// These, at least one.
    pub tokens: Vec<u32>,
    /// Whether the token behind the last of them is chosen.
    pub samples: bool,
}

/// A token that was chosen, the likeliest one.
#[derive(Debug, Clone, PartialEq)]
pub struct ChosenToken {
    /// The token.
    pub token: u32,
    /// The logits from which it was chosen, if they were asked for.
    pub logits: Vec<f32>,
}

/// The way of batches to rank 0 and of their tokens back: rank 0 takes its end of it.
#[derive(Debug, Clone, Default)]
pub(crate) struct BatchFeed(Arc<Mutex<Option<RankEnd>>>);

/// Rank 0's end of a feed. Once it is dropped, whoever schedules sees that no rank runs.
#[derive(Debug)]
pub(crate) struct RankEnd {
    pub batches: Receiver<Batch>,
    pub chosen: Sender<Vec<ChosenToken>>,
}

/// The end of a feed where batches are made. Once it is dropped, the ranks end.
#[derive(Debug)]
pub(crate) struct SchedulerEnd {
    pub batches: Sender<Batch>,
    pub chosen: Receiver<Vec<ChosenToken>>,
}

impl BatchFeed {
    /// A feed and its other end.
    pub fn new() -> (Self, SchedulerEnd) {
        let (batches, to_rank) = channel();
        let (from_rank, chosen) = channel();
        let of_rank = RankEnd { batches: to_rank, chosen: from_rank };
        (Self(Arc::new(Mutex::new(Some(of_rank)))), SchedulerEnd { batches, chosen })
    }

    /// Rank 0's end, the first time.
    pub fn take(&self) -> Option<RankEnd> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl PartialEq for BatchFeed {
    /// Whether both are one.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Batch {
    /// For other ranks: lengths before what they count, numbers of 64 bits.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut words = vec![self.freed.len()];
        words.extend(&self.freed);
        for BatchPart { sequence, first, tokens, samples } in &self.parts {
            words.extend([*sequence, *first, usize::from(*samples), tokens.len()]);
            words.extend(tokens.iter().map(|token| *token as usize));
        }
        words.into_iter().flat_map(|word| (word as u64).to_le_bytes()).collect()
    }

    /// The inverse of `to_bytes`; `None` if the bytes are none of a batch.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (words, []) = bytes.as_chunks::<8>() else { return None };
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        let freed = words.next()?;
        let freed: Vec<usize> = (0..freed).map(|_| Some(words.next()? as usize)).collect::<Option<_>>()?;
        let mut parts = Vec::new();
        while let Some(sequence) = words.next() {
            let [first, samples, count] = [words.next()?, words.next()?, words.next()?];
            let tokens = (0..count).map(|_| words.next()?.try_into().ok()).collect::<Option<_>>()?;
            let (sequence, first) = (sequence as usize, first as usize);
            parts.push(BatchPart { sequence, first, tokens, samples: samples == 1 });
        }
        Some(Self { freed, parts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_arrive_as_they_were_sent() {
        let part = |sequence, first, tokens: &[u32], samples| BatchPart {
            sequence,
            first,
            tokens: tokens.into(),
            samples,
        };
        let batch =
            Batch { freed: vec![3, 9], parts: vec![part(4, 0, &[7, 8], false), part(0, 31, &[5], true)] };
        let bytes = batch.to_bytes();
        assert_eq!(Batch::from_bytes(&bytes), Some(batch));
        assert_eq!(Batch::from_bytes(&Batch::default().to_bytes()), Some(Batch::default()));
        assert_eq!(Batch::from_bytes(&bytes[..bytes.len() - 8]), None);
        assert_eq!(Batch::from_bytes(&bytes[..bytes.len() - 1]), None);
        assert_eq!(Batch::from_bytes(&[]), None);
    }
}
