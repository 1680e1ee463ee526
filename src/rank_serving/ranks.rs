//! Steps that ranks carry out.

use super::shape::StepShape;
use crate::error::CliError;
use std::collections::BTreeSet;
use trainwright_executor::{Batch, BatchPart, BatchRunner, ChosenToken};
use trainwright_sim::serving::{Queue, StepSource, Work};
use trainwright_spec::units::Seconds;

/// A step that was carried out.
#[derive(Debug, Clone, PartialEq)]
pub struct CarriedOut {
    /// What it was made of.
    pub shape: StepShape,
    /// How long it took.
    pub time: Seconds,
}

/// What runs a batch.
pub trait Runner {
    /// Runs a batch. Returns the tokens behind those of its parts that sample, in their order.
    ///
    /// # Errors
    /// A rank that cannot go on.
    fn run(&mut self, batch: Batch) -> Result<Vec<ChosenToken>, CliError>;
}

impl Runner for BatchRunner {
    fn run(&mut self, batch: Batch) -> Result<Vec<ChosenToken>, CliError> {
        Ok(BatchRunner::run(self, batch)?)
    }
}

/// A source of steps that ranks carry out, each with the time that it takes them.
pub struct RankSteps<'a> {
    ranks: &'a mut dyn Runner,
    clock: &'a mut dyn FnMut() -> Seconds,
    /// The tokens of each sequence so far: its prompt, then its answer.
    pub tokens: Vec<Vec<u32>>,
    /// Sequences whose keys and values ranks keep.
    cached: BTreeSet<usize>,
    /// Every step so far.
    pub steps: Vec<CarriedOut>,
}

impl<'a> RankSteps<'a> {
    /// Of sequences with these prompts, timed by `clock`.
    pub fn new(
        ranks: &'a mut dyn Runner,
        clock: &'a mut dyn FnMut() -> Seconds,
        prompts: Vec<Vec<u32>>,
    ) -> Self {
        Self { ranks, clock, tokens: prompts, cached: BTreeSet::new(), steps: Vec::new() }
    }

    /// Gives up all sequences, so that others may come.
    ///
    /// # Errors
    /// A rank that cannot go on.
    pub fn end(self) -> Result<(), CliError> {
        let freed = self.cached.into_iter().collect();
        self.ranks.run(Batch { freed, parts: Vec::new() }).map(drop)
    }

    /// The batch of a step. Sequences that have ended or lost their blocks since the last one are given up.
    fn batch(&mut self, queue: &Queue, works: &[Work]) -> Batch {
        let sequences = &queue.sequences;
        let is_over = |sequence: &usize| {
            let state = &sequences[*sequence];
            state.computed == 0 || state.generated == state.output
        };
        let (freed, kept): (BTreeSet<usize>, BTreeSet<usize>) =
            std::mem::take(&mut self.cached).into_iter().partition(is_over);
        self.cached = kept;
        self.cached.extend(works.iter().map(|work| work.sequence));
        let part = |work: &Work| {
            let state = &sequences[work.sequence];
            let first = state.computed;
            let tokens = self.tokens[work.sequence][first..first + work.tokens].to_vec();
            BatchPart { sequence: work.sequence, first, tokens, samples: state.left() == work.tokens }
        };
        Batch { freed: freed.into_iter().collect(), parts: works.iter().map(part).collect() }
    }
}

impl StepSource for RankSteps<'_> {
    type Error = CliError;

    fn take(&mut self, queue: &Queue, works: &[Work]) -> Result<Seconds, CliError> {
        let began = (self.clock)();
        let batch = self.batch(queue, works);
        let sampled: Vec<usize> =
            batch.parts.iter().filter(|part| part.samples).map(|part| part.sequence).collect();
        let chosen = self.ranks.run(batch)?;
        for (sequence, chosen) in sampled.into_iter().zip(chosen) {
            self.tokens[sequence].push(chosen.token);
        }
        let time = (self.clock)() - began;
        self.steps.push(CarriedOut { shape: StepShape::of(queue, works), time });
        Ok(time)
    }
}
