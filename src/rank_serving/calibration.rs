//! The steps that a calibration measures: prompts and running sequences of several numbers and lengths, none of them of the run
//! that is forecast.

use super::fitted::FittedSteps;
use super::ranks::{CarriedOut, Runner};
use super::shape::StepShape;
use crate::error::CliError;
use trainwright_executor::{Batch, BatchPart};
use trainwright_spec::units::Seconds;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Calibration {
    /// The most tokens of a step.
    pub tokens: usize,
    /// The most sequences of a step.
    pub sequences: usize,
    /// The most tokens of a sequence.
    pub longest: usize,
    /// The most tokens that caches hold at once.
    pub cached: usize,
    /// How often each step is measured. Its time is the mean: the times of a run add up.
    pub repeats: usize,
    /// Entries of the vocabulary.
    pub vocabulary: usize,
}

/// A step to be measured: new tokens of some sequences, all with as many tokens before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Case {
    sequences: usize,
    tokens: usize,
    history: usize,
    samples: bool,
}

impl Calibration {
    /// Runs a prompt and a token behind it, so that the first step of a run is as others.
    ///
    /// # Errors
    /// A rank that cannot go on.
    pub fn warm_up(&self, ranks: &mut dyn Runner) -> Result<(), CliError> {
        let mut clock = || Seconds::ZERO;
        let mut measuring = Measuring { ranks, clock: &mut clock, calibration: self };
        let tokens = self.tokens.min(self.longest);
        measuring.step(Case { sequences: 1, tokens, history: 0, samples: true })?;
        measuring.free(1)
    }

    /// The steps to be measured.
    fn cases(&self) -> Vec<Case> {
        let Self { tokens, sequences, longest, cached, .. } = *self;
        let mut cases = Vec::new();
        let mut add = |sequences: usize, tokens: usize, history: usize, samples: bool| {
            if tokens > 0 && history + tokens <= longest && sequences * (history + tokens) <= cached {
                cases.push(Case { sequences, tokens, history, samples });
            }
        };
        for rows in grid(4, tokens) {
            // A prompt, and a part of one behind a history, which gives no token.
            let prompt = rows.min(longest);
            add(1, prompt, 0, true);
            add(1, prompt, longest - prompt, false);
            // Several prompts at once, of half the longest sequence at most.
            let half = (longest / 2).max(1);
            let several = rows.div_ceil(half).max(2);
            if several <= sequences.min(rows) {
                add(several, rows / several, 0, true);
            }
        }
        // Running sequences, short and long ones.
        for running in grid(2, sequences.min(tokens)) {
            for history in [longest / 8, longest - 1] {
                add(running, 1, history, true);
            }
        }
        cases.sort_unstable();
        cases.dedup();
        cases
    }
}

/// The powers of a factor below the largest, and the largest.
fn grid(factor: usize, largest: usize) -> Vec<usize> {
    let powers = std::iter::successors(Some(1), |rows: &usize| rows.checked_mul(factor));
    powers.take_while(|rows| *rows < largest).chain([largest]).collect()
}

/// Measures steps on ranks that keep no sequence, and fits their times.
///
/// # Errors
/// A rank that cannot go on.
pub fn calibrate(
    ranks: &mut dyn Runner,
    clock: &mut dyn FnMut() -> Seconds,
    calibration: &Calibration,
) -> Result<FittedSteps, CliError> {
    let mut measuring = Measuring { ranks, clock, calibration };
    let steps: Result<Vec<CarriedOut>, CliError> =
        calibration.cases().into_iter().map(|case| measuring.mean(case)).collect();
    Ok(FittedSteps::new(&steps?))
}

struct Measuring<'a> {
    ranks: &'a mut dyn Runner,
    clock: &'a mut dyn FnMut() -> Seconds,
    calibration: &'a Calibration,
}

impl Measuring<'_> {
    /// The mean time of a step. Running sequences go on from one measurement to the next and have the middle one's history.
    fn mean(&mut self, case: Case) -> Result<CarriedOut, CliError> {
        let repeats = self.calibration.repeats;
        let goes_on = case.tokens == 1;
        let mut history = case.history;
        if goes_on {
            history = history.min(self.calibration.longest.saturating_sub(repeats + 1));
            self.fill(case.sequences, history)?;
        }
        let mut measured = Vec::new();
        // The first only warms up.
        for repeat in 0..=repeats {
            if !goes_on {
                self.fill(case.sequences, history)?;
            }
            let step = self.step(Case { history, ..case })?;
            measured.extend((repeat > 0).then_some(step));
            match goes_on && history + 1 < self.calibration.longest {
                true => history += 1,
                false => {
                    self.free(case.sequences)?;
                    if goes_on {
                        self.fill(case.sequences, history)?;
                    }
                }
            }
        }
        self.free(case.sequences)?;
        let time = measured.iter().map(|step| step.time).sum::<Seconds>() / measured.len() as f64;
        Ok(CarriedOut { shape: measured[measured.len() / 2].shape, time })
    }

    /// Gives sequences that have nothing yet their histories.
    fn fill(&mut self, sequences: usize, history: usize) -> Result<(), CliError> {
        let at_once = self.calibration.tokens;
        for sequence in 0..sequences {
            for first in (0..history).step_by(at_once) {
                let part = self.part(sequence, first, (history - first).min(at_once), false);
                self.ranks.run(Batch { freed: Vec::new(), parts: vec![part] })?;
            }
        }
        Ok(())
    }

    fn step(&mut self, Case { sequences, tokens, history, samples }: Case) -> Result<CarriedOut, CliError> {
        let parts = (0..sequences).map(|sequence| self.part(sequence, history, tokens, samples));
        let batch = Batch { freed: Vec::new(), parts: parts.collect() };
        let shape = StepShape::of_batch(&batch);
        let began = (self.clock)();
        self.ranks.run(batch)?;
        Ok(CarriedOut { shape, time: (self.clock)() - began })
    }

    fn free(&mut self, sequences: usize) -> Result<(), CliError> {
        self.ranks.run(Batch { freed: (0..sequences).collect(), parts: Vec::new() }).map(drop)
    }

    /// Made-up tokens of a sequence.
    fn part(&self, sequence: usize, first: usize, count: usize, samples: bool) -> BatchPart {
        let vocabulary = self.calibration.vocabulary;
        let token = |position: usize| ((sequence * 31 + position * 7 + position / 5) % vocabulary) as u32;
        BatchPart { sequence, first, tokens: (first..first + count).map(token).collect(), samples }
    }
}
