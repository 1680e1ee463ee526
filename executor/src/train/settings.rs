//! The settings of a run that are not part of its plan.

use crate::comm::drill::Drill;
use crate::comm::transport::Remark;
use crate::device::{AttentionBy, DEVICES, DeviceKind};
use crate::error::CheckpointError;
use crate::train::checkpoint::PositionLimit;
use crate::train::data::tokens::Tokens;
use crate::train::generation::weight_format::WeightFormat;
use crate::train::generation::{Generation, Serving, TrainingSample};
use crate::train::learning_rate::LearningRate;
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
    /// The most tokens of a sequence that the configuration of the plan's model states, if it is at hand. Checkpoints state it too.
    #[serde(skip)] // Not every host needs to have the configuration.
    pub position_limit: Option<PositionLimit>,
    /// When the loss of held-out tokens is measured, if ever.
    pub validation: Option<Validation>,
    /// Where checkpoints go, if there are to be any.
    pub saving: Option<Saving>,
    /// What is generated now and then during a training, if anything.
    pub sample: Option<TrainingSample>,
    /// What is generated instead of training, if anything.
    pub generation: Option<Generation>,
    /// What passes over batches need, if there are such instead of a training.
    pub serving: Option<Serving>,
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
    /// The learning rate by step.
    pub learning_rate: LearningRate,
    /// Weight decay of matrices; vectors do not decay.
    pub weight_decay: f32,
    /// Whether the tables of tokens and positions decay as other matrices do. A tied output embedding is such a table.
    pub decays_embeddings: bool,
    /// β₁ and β₂ of Adam and LAMB; β₁ is also the momentum of the optimizers that have one.
    pub betas: [f32; 2],
    /// ε of Adam.
    pub adam_epsilon: f32,
    /// The bound of the gradients' norm, where the job clips it.
    pub largest_gradient_norm: f64,
    /// Whether the documents that are packed into a sequence are kept apart: tokens attend inside their own document only,
    /// positions begin anew with each, and the last token of a document does not predict the next one's first. The tokens
    /// must know their documents (`DataOptions::documents`).
    pub document_mask: bool,
    /// c of the z-loss: c (ln Σ e^logit)² is added to each token's loss; 0 for none.
    pub z_loss: f64,
    /// ε of label smoothing, from 0 to below 1: the part of each target that is spread evenly over the vocabulary.
    pub label_smoothing: f64,
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

impl Settings {
    /// Refuses sequences that are longer than the configuration of the plan's model states.
    ///
    /// # Errors
    /// `Differs` as `PositionLimit::check`.
    pub(crate) fn check_positions(&self, longest: usize) -> Result<(), CheckpointError> {
        self.position_limit.as_ref().map_or(Ok(()), |limit| limit.check(longest))
    }

    /// How weights are kept that are only read; `None` in a training.
    pub(crate) fn weights_to_read(&self) -> Option<WeightFormat> {
        let of_serving = self.serving.as_ref().map(|serving| serving.weights);
        self.generation.as_ref().map(|generation| generation.weights).or(of_serving)
    }
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

impl Start {
    /// Whether steps were done before.
    pub fn is_resumed(&self) -> bool {
        matches!(self, Start::Resume(_))
    }
}

/// The loss of tokens that are not trained on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Validation {
    /// The tokens.
    pub tokens: Tokens,
    /// Steps from one measurement to the next; the last step has one too.
    pub every: NonZeroUsize,
    /// The most batches that are read, the first ones. A batch has as many sequences as a step.
    pub batches: NonZeroUsize,
}

impl Validation {
    /// Whether it follows on a step, of which `last` is the run's last one.
    pub(crate) fn is_due(&self, step: usize, last: usize) -> bool {
        step == last || step.is_multiple_of(self.every.get())
    }
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
            position_limit: None,
            validation: None,
            saving: None,
            sample: None,
            generation: None,
            serving: None,
            stop: StopRequest::default(),
            remark: Remark::default(),
            patience: Duration::from_secs(60),
            fault: None,
            learning_rate: LearningRate::constant(6e-4),
            weight_decay: 0.1,
            decays_embeddings: true,
            // Those of published language models: Brown et al. 2020, arXiv 2005.14165, appendix B.
            betas: [0.9, 0.95],
            adam_epsilon: 1e-8,
            largest_gradient_norm: 1.0,
            document_mask: false,
            z_loss: 0.0,
            label_smoothing: 0.0,
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
