//! Steps as ranks report them, until all have.

use super::messages::{SampleEnd, StepMessage};
use super::supervise::Run;
use crate::train::learning_rate::LearningRate;
use crate::train::rank::StepEnd;
use crate::train::record::Communication;
use crate::train::sizes::Sizes;
use crate::train::timeline::label;
use std::collections::BTreeMap;
use std::time::Instant;
use trainwright_spec::plan::Plan;
use trainwright_spec::program::Program;

/// What is known of a step once all ranks have done it.
#[derive(Debug, Clone, PartialEq)]
pub struct StepReport {
    /// Its number, from 1.
    pub step: usize,
    /// The mean loss of its tokens before the update, with label smoothing and the z-loss if the run has them.
    pub loss: f64,
    /// The part of it that is the z-loss; `None` if the run has none.
    pub z_loss: Option<f64>,
    /// The norm of the gradients before it was clipped; `None` if the job does not clip.
    pub gradient_norm: Option<f64>,
    /// The learning rate of its update.
    pub learning_rate: f32,
    /// The mean loss of held-out tokens behind the update, if it was measured.
    pub validation_loss: Option<f64>,
    /// The tokens behind the prompt of a sample, if one was made.
    pub sample: Option<Vec<u32>>,
    /// Seconds since the step before, without those of validations and samples.
    pub seconds: f64,
    /// Which rank waited for which; `None` for one rank, and for ranks on GPUs, whose ops are not timed in every step.
    pub waits: Option<Waits>,
}

/// What ranks spent in collectives and receives, waiting included: the rank with the least is the one that others wait for.
#[derive(Debug, Clone, PartialEq)]
pub struct Waits {
    /// The rank that spent the most there.
    pub rank: usize,
    /// Its seconds.
    pub seconds: f64,
    /// The op in which it spent most of them.
    pub op: String,
    /// The rank that spent the least there.
    pub awaited: usize,
    /// Its seconds.
    pub awaited_seconds: f64,
}

/// The steps of which not all ranks have reported.
pub(super) struct Steps<'a> {
    plan: &'a Plan,
    program: &'a Program,
    learning_rate: LearningRate,
    has_z_loss: bool,
    ranks: usize,
    waiting: BTreeMap<usize, BTreeMap<usize, StepEnd>>,
    before: Instant,
    /// Of the steps that wait.
    samples: BTreeMap<usize, SampleEnd>,
    pub reports: Vec<StepReport>,
}

impl<'a> Steps<'a> {
    pub fn of(run: &'a Run) -> Self {
        let (plan, ranks) = (&run.plan, run.program.ranks.len());
        let learning_rate = run.settings.learning_rate;
        Self {
            plan,
            program: &run.program,
            learning_rate,
            has_z_loss: run.settings.z_loss != 0.0,
            ranks,
            waiting: BTreeMap::new(),
            before: Instant::now(),
            samples: BTreeMap::new(),
            reports: Vec::new(),
        }
    }

    pub fn add(&mut self, message: StepMessage, progress: &mut dyn FnMut(&StepReport)) {
        let StepMessage { rank, step, end, sample } = message;
        self.samples.extend(sample.map(|sample| (step, sample)));
        let plan = self.plan;
        let known = self.waiting.entry(step).or_default();
        known.insert(rank, end);
        if known.len() < self.ranks {
            return;
        }
        let ends = self.waiting.remove(&step).expect("it was just completed");
        // All ranks with other columns of the same logits know the same losses.
        let first_columns = ends.iter().filter(|(rank, _)| Sizes::of(plan, **rank).column() == 0);
        let first_columns: Vec<&StepEnd> = first_columns.map(|(_, end)| end).collect();
        let tokens = plan.job.tokens() as f64;
        let loss = first_columns.iter().map(|end| end.loss).sum::<f64>() / tokens;
        let z_loss = first_columns.iter().map(|end| end.z_loss).sum::<f64>() / tokens;
        let validations = first_columns.iter().map(|end| end.validation.map(|validation| validation.loss));
        let validation_loss = validations.sum::<Option<f64>>().map(|loss| loss / tokens);
        let validations = ends.values().filter_map(|end| Some(end.validation?.seconds));
        let validation_seconds = validations.fold(0.0, f64::max);
        let sample = self.samples.remove(&step);
        let aside = validation_seconds + sample.as_ref().map_or(0.0, |sample| sample.seconds);
        let now = Instant::now();
        let report = StepReport {
            step,
            loss,
            z_loss: self.has_z_loss.then_some(z_loss),
            gradient_norm: ends[&0].gradient_norm,
            learning_rate: self.learning_rate.at(step),
            validation_loss,
            sample: sample.map(|sample| sample.tokens),
            seconds: ((now - self.before).as_secs_f64() - aside).max(0.0),
            waits: waits(self.program, &ends),
        };
        self.before = now;
        progress(&report);
        self.reports.push(report);
    }
}

/// Who waited for whom; `None` where ranks do not say, or there is one rank alone.
fn waits(program: &Program, ends: &BTreeMap<usize, StepEnd>) -> Option<Waits> {
    let spent: Option<Vec<_>> = ends.iter().map(|(rank, end)| Some((*rank, end.communication?))).collect();
    let spent = spent.filter(|spent| spent.len() > 1)?;
    let by_seconds = |one: &&(usize, Communication), other: &&(usize, Communication)| {
        one.1.seconds.total_cmp(&other.1.seconds)
    };
    let (rank, most) = spent.iter().max_by(by_seconds)?;
    let (awaited, least) = spent.iter().min_by(by_seconds)?;
    let [segment, op] = most.longest?;
    let op = &program.segments[segment as usize].ops[op as usize];
    Some(Waits {
        rank: *rank,
        seconds: most.seconds,
        op: format!("{} {}", label(op), op.pass.name()),
        awaited: *awaited,
        awaited_seconds: least.seconds,
    })
}
