//! Continuous batching on a rank: batches of new tokens of several sequences, each with keys and values of its own, until there
//! are no more batches.

use super::Rank;
use super::passes::{Choice, NewTokens};
use crate::comm::transport::{Envelope, Tag};
use crate::error::Fault;
use crate::train::frame::KeyValues;
use crate::train::generation::Serving;
use crate::train::generation::batch::{Batch, ChosenToken, RankEnd};
use std::collections::BTreeMap;

/// A sequence that has keys and values.
#[derive(Default)]
struct Cached {
    /// Tokens that have some.
    tokens: usize,
    key_values: KeyValues,
}

impl Rank<'_> {
    /// Runs batches until whoever makes them has gone.
    pub fn serve(&mut self, serving: &Serving) -> Result<(), Fault> {
        let feed = (self.program.rank == 0).then(|| serving.feed.take()).flatten();
        let mut cached = BTreeMap::new();
        let mut step = 0;
        while let Some(batch) = self.next_batch(feed.as_ref())? {
            step += 1;
            self.heartbeat.begin_step(step);
            let chosen = self.run_batch(&batch, &mut cached, serving.return_logits)?;
            if let Some(feed) = &feed {
                // There is no receiver only if its thread has failed: then no batch follows.
                let _ = feed.chosen.send(chosen);
            }
        }
        Ok(())
    }

    /// The next batch, which rank 0 passes on to all others; `None` after the last.
    fn next_batch(&self, feed: Option<&RankEnd>) -> Result<Option<Batch>, Fault> {
        let (rank, tag) = (self.program.rank, Tag::Group(self.shared.program.groups.len()));
        if rank > 0 {
            let bytes = self.shared.transport.receive_bytes(Envelope { from: 0, to: rank, tag })?;
            let lost = || Fault::Lost { rank: 0, how: "the batch that it sent cannot be read".into() };
            return (!bytes.is_empty()).then(|| Batch::from_bytes(&bytes).ok_or_else(lost)).transpose();
        }
        let batch = feed.and_then(|feed| feed.batches.recv().ok());
        for to in 1..self.shared.program.ranks.len() {
            let bytes = batch.as_ref().map(Batch::to_bytes).unwrap_or_default();
            self.shared.transport.send_bytes(Envelope { from: 0, to, tag }, bytes);
        }
        Ok(batch)
    }

    fn run_batch(
        &mut self,
        batch: &Batch,
        cached: &mut BTreeMap<usize, Cached>,
        with_logits: bool,
    ) -> Result<Vec<ChosenToken>, Fault> {
        batch.freed.iter().for_each(|sequence| drop(cached.remove(sequence)));
        if batch.parts.is_empty() {
            return Ok(Vec::new());
        }
        let mut taken: Vec<Cached> =
            batch.parts.iter().map(|part| cached.remove(&part.sequence).unwrap_or_default()).collect();
        for (part, cached) in batch.parts.iter().zip(&mut taken) {
            assert_eq!(part.first, cached.tokens, "sequence {} goes on behind its cache", part.sequence);
            cached.tokens += part.tokens.len();
        }
        let new_tokens = batch.parts.iter().zip(&mut taken).map(|(part, cached)| NewTokens {
            tokens: &part.tokens,
            first: part.first,
            samples: part.samples,
            key_values: &mut cached.key_values,
        });
        let logits = self.pass(&mut new_tokens.collect::<Vec<_>>())?;
        cached.extend(batch.parts.iter().map(|part| part.sequence).zip(taken));
        let greedy = Choice { sampling: None, prompt: 0, place: 0 };
        let choices = vec![greedy; batch.parts.iter().filter(|part| part.samples).count()];
        self.choose(logits, &choices, with_logits)
    }
}
