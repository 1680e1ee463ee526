//! The settings of a run that are not part of its plan.

use crate::comm::drill::Drill;
use crate::comm::transport::Remark;
use crate::device::{AttentionBy, DEVICES, DeviceKind};
use crate::train::run::stopping::StopRequest;
use serde::Serialize;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

/// How to train. Processes of a run compare their settings field by field, as they are serialised: a field that may
/// differ between them is skipped, and says why.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Settings {
    /// The number of the last step; a resumed run counts on.
    pub steps: usize,
    /// From which initial weights and the order of the data are made; a resumed run keeps that of its checkpoint.
    pub seed: u64,
    /// What the run begins with.
    #[serde(skip)] // A path of this host: what it leads to is compared.
    pub start: Start,
    /// Where checkpoints go, if there are to be any.
    pub saving: Option<Saving>,
    /// Lets another thread end a run that saves, after a step.
    #[serde(skip)] // A handle of this process.
    pub stop: StopRequest,
    /// Gets a line for each damaged checkpoint that is passed over.
    #[serde(skip)] // Only what is reported.
    pub remark: Remark,
    /// For how long nothing may happen on any rank before the run is given up.
    #[serde(skip)] // Only when to give up.
    pub patience: Duration,
    /// A fault to be made on purpose.
    #[serde(skip)] // It is that of one rank.
    pub fault: Option<Drill>,
    /// How large steps are.
    pub learning_rate: LearningRate,
    /// Weight decay of matrices; vectors do not decay.
    pub weight_decay: f32,
    /// ε of Adam.
    pub adam_epsilon: f32,
    /// The bound of the gradients' norm, where the job clips it.
    pub largest_gradient_norm: f64,
    /// What ranks compute on.
    pub device: DeviceKind,
    /// Whether CUDA graphs replay steps that repeat, if that is possible.
    pub graph: bool,
    /// Whose kernels do attention on GPUs; if `None`, cuDNN's if they can be loaded, and on emulated GPUs ours.
    pub attention: Option<AttentionBy>,
    /// Whether GPUs make the same bits in every run where that costs time: cuDNN's gradients of attention.
    pub deterministic: bool,
    /// Threads for the kernels of all ranks together.
    #[serde(skip)] // Hosts have different cores; sums have the same bits with any number of threads.
    pub threads: NonZeroUsize,
    /// Whether the outcome has the weights.
    #[serde(skip)] // Only what is reported.
    pub return_weights: bool,
    /// Which steps the outcome has op by op.
    #[serde(skip)] // Only what is reported.
    pub records: Records,
}

/// Which steps of a run are recorded to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Records {
    /// The last one.
    #[default]
    LastStep,
    /// All of them.
    EveryStep,
}

/// What a run begins with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Start {
    /// New weights.
    #[default]
    Anew,
    /// The weights of a folder with `model.safetensors`, at step 0.
    Weights(PathBuf),
    /// The last complete checkpoint of a folder, and everything as it was then.
    Resume(PathBuf),
}

/// Where checkpoints go and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Saving {
    /// A folder, with one in it for each checkpoint.
    pub folder: PathBuf,
    /// Steps from one to the next; without it only the last step has one.
    pub every: Option<NonZeroUsize>,
    /// How many of the last ones are kept.
    pub keep: NonZeroUsize,
}

impl Default for Settings {
    /// Ten steps of the usual size, alone and from new weights.
    fn default() -> Self {
        Self {
            steps: 10,
            seed: 0,
            start: Start::Anew,
            saving: None,
            stop: StopRequest::default(),
            remark: Remark::default(),
            patience: Duration::from_secs(60),
            fault: None,
            learning_rate: LearningRate { peak: 6e-4, warmup: 0 },
            weight_decay: 0.1,
            adam_epsilon: 1e-8,
            largest_gradient_norm: 1.0,
            device: DEVICES[0],
            graph: true,
            attention: None,
            deterministic: false,
            threads: NonZeroUsize::MIN,
            return_weights: false,
            records: Records::default(),
        }
    }
}

/// A learning rate that rises linearly and then stays.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LearningRate {
    /// Where it stays.
    pub peak: f32,
    /// Steps until then.
    pub warmup: usize,
}

impl LearningRate {
    /// In step 1, 2, ….
    pub fn at(&self, step: usize) -> f32 {
        match step < self.warmup {
            true => self.peak * step as f32 / self.warmup as f32,
            false => self.peak,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::LearningRate;

    #[test]
    fn the_rate_rises_to_its_peak() {
        let rate = LearningRate { peak: 1.0, warmup: 4 };
        assert_eq!([1, 2, 3, 4, 5].map(|step| rate.at(step)), [0.25, 0.5, 0.75, 1.0, 1.0]);
        assert_eq!(LearningRate { peak: 1.0, warmup: 0 }.at(1), 1.0);
    }
}
