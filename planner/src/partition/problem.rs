//! The partition problem, and why one makes no sense.

use thiserror::Error;
use trainwright_spec::units::{Bytes, Seconds};

/// Layers, stages and limits: see the module for what they mean together.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    /// The model's layers in order, as runs of identical ones.
    pub runs: Vec<Run>,
    /// The kinds of layers on each kind of device: as many in the same order for each, and of each as many choices.
    pub classes: Vec<Vec<LayerClass>>,
    /// The stages in order of execution; each holds consecutive layers.
    pub stages: Vec<Stage>,
    /// How often the slowest stage's time counts, e.g. microbatches less one.
    pub steady: f64,
    /// How often the sum of all stages' times counts.
    pub ramp: f64,
}

/// Consecutive identical layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Index into the classes of each device.
    pub class: usize,
    /// How many layers.
    pub count: usize,
}

/// A kind of layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerClass {
    /// Weights, gradients and optimizer state of one layer.
    pub state: Bytes,
    /// What one layer leaves between steps.
    pub idle: Bytes,
    /// The ways to run it; one or more.
    pub choices: Vec<Choice>,
}

/// One way to run a layer, e.g. with full recompute.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// Forward and backward, recompute included, of one microbatch.
    pub time: Seconds,
    /// Activations kept for the backward, of one microbatch.
    pub kept: Bytes,
    /// What its backward needs besides, while it runs.
    pub peak: Bytes,
}

/// One pipeline stage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stage {
    /// Embedding, head and whatever else it runs for each microbatch besides its layers.
    pub time: Seconds,
    /// What it holds besides its layers.
    pub memory: Bytes,
    /// What its part besides the layers needs while it runs.
    pub peak: Bytes,
    /// How many microbatches' activations it holds at its peak.
    pub in_flight: f64,
    /// What it can hold.
    pub limit: Bytes,
    /// What it leaves between steps besides its layers.
    pub idle: Bytes,
    /// What it can leave; infinite without a limit.
    pub idle_limit: Bytes,
    /// The kind of its device: index into [`Problem::classes`].
    pub device: usize,
    /// How many layers it holds at least: 0 where it may run its embedding or head alone.
    pub least_layers: usize,
}

/// Why a problem makes no sense.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum PartitionError {
    /// An empty list.
    #[error("the problem has no {what}: give one or more")]
    Missing {
        /// `stages`, `runs` or `choices of class 3`.
        what: String,
    },
    /// A run of layers of no class.
    #[error("the class of run {run} is {class}, but there are only {count}")]
    UnknownClass {
        /// The run.
        run: usize,
        /// Its class.
        class: usize,
        /// How many classes there are.
        count: usize,
    },
    /// A stage on no device.
    #[error("the device of stage {stage} is {device}, but there are only {count}")]
    UnknownDevice {
        /// The stage.
        stage: usize,
        /// Its device.
        device: usize,
        /// How many devices have classes.
        count: usize,
    },
    /// Devices that run other layers than the first.
    #[error("device {device} has other classes or choices than device 0: give each as many")]
    UnlikeDevices {
        /// The device.
        device: usize,
    },
    /// A number that is negative, infinite or not a number.
    #[error("{what} is {value}: it must be finite and not negative")]
    BadNumber {
        /// Which number.
        what: String,
        /// Its value.
        value: f64,
    },
}

impl Problem {
    /// steady · max + ramp · sum of the stages' times for one microbatch.
    pub fn objective(&self, times: &[Seconds]) -> Seconds {
        let slowest = times.iter().copied().fold(Seconds::ZERO, Seconds::max);
        slowest * self.steady + times.iter().copied().sum::<Seconds>() * self.ramp
    }

    /// The objective in seconds.
    pub(super) fn cost(&self, slowest: f64, sum: f64) -> f64 {
        self.steady * slowest + self.ramp * sum
    }
}

/// The part of a limit, or of an objective, that rounding may take: 80 bytes of 80 GB.
pub(super) const TOLERANCE: f64 = 1e-9;

/// Whether `needs` fits into `limit`, both in bytes, but for rounding.
pub(super) fn fits(needs: f64, limit: f64) -> bool {
    limit == f64::INFINITY || needs <= limit + limit.abs() * TOLERANCE
}
