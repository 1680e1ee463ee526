//! A microbatch between the calls of a rank: its tokens, what it receives from another stage and sends there, its loss.

use super::{Rank, THE_LOSS};
use crate::device::tensor::Tensor;
use crate::device::{Device, HostWords, Sorted};
use crate::error::Fault;
use crate::train::data::documents::PackedDocuments;
use crate::train::data::loader::{Batch, Loader};
use crate::train::frame::{Frame, MicrobatchTokens};
use crate::train::modules::LossSums;
use crate::train::parameters::Layer;
use crate::train::settings::Settings;
use crate::train::sizes::Sizes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use trainwright_kernels::cross_entropy::LossTerms;
use trainwright_spec::program::{Channel, Module, Program, RankProgram, StageEnd};
use trainwright_spec::schedule::{Action, ActionKind};

/// Tokens of a step's microbatches, as the host has made them: inputs and targets of each forward action.
#[derive(Debug)]
pub(crate) struct StepTokens {
    step: usize,
    actions: Vec<Action>,
    words: Vec<HostWords>,
    documents: Option<StepDocuments>,
}

/// The documents of a step's sequences.
#[derive(Debug)]
pub(crate) struct StepDocuments {
    /// By microbatch, those of the sequences that the rank computes with.
    of: BTreeMap<usize, Arc<PackedDocuments>>,
    /// The targets that have a loss, over all ranks.
    targets: usize,
}

impl Rank<'_> {
    /// Makes the tokens of all microbatches of a step that stages of this rank read.
    pub(super) fn make_tokens(&mut self, step: usize) -> Result<StepTokens, Fault> {
        let (program, sizes) = (self.shared.program, &self.sizes);
        let (actions, words) =
            make_words(self.program, program, sizes, &*self.device, (&mut self.loader, step - 1))?;
        let documents = make_documents(self.program, sizes, (&mut self.loader, step - 1))?;
        if self.program.rank == 0 && documents.as_ref().is_some_and(|documents| documents.targets == 0) {
            (self.shared.settings.remark.0)(&format!(
                "step {step}: none of its documents has two tokens in a sequence, so nothing is predicted and its loss is 0"
            ));
        }
        Ok(StepTokens { step, actions, words, documents })
    }

    /// Makes those of a batch of held-out tokens, from 0.
    pub(super) fn make_validation_tokens(&mut self, batch: usize) -> Result<StepTokens, Fault> {
        let (program, sizes) = (self.shared.program, &self.sizes);
        let loader = self.validation_loader.as_mut().expect("a validation has a loader");
        let (actions, words) = make_words(self.program, program, sizes, &*self.device, (loader, batch))?;
        let documents = make_documents(self.program, sizes, (loader, batch))?;
        Ok(StepTokens { step: 0, actions, words, documents })
    }

    /// Copies the tokens of a step to the device. They were made during the step before, unless this one is the run's first.
    pub(super) fn upload_tokens(&mut self, step: usize) -> Result<(), Fault> {
        let made = self.next_tokens.take().filter(|made| made.step == step);
        let made = made.map_or_else(|| self.make_tokens(step), Ok)?;
        self.upload(made);
        Ok(())
    }

    /// Copies tokens to the device.
    pub(super) fn upload(&mut self, StepTokens { actions, words, documents, .. }: StepTokens) {
        self.documents = documents;
        let mut brought = self.device.upload(words).into_iter();
        let mut next = || brought.next().expect("all were brought");
        self.tokens = actions
            .iter()
            .map(|action| {
                let tokens = MicrobatchTokens { inputs: next(), targets: next() };
                ((action.stage, action.microbatch), tokens)
            })
            .collect();
    }

    /// The frame of an action of a step, with the tensor that another stage of this rank left for it.
    pub(super) fn frame(&mut self, action: Action, step: usize) -> Frame {
        let Action { stage, kind, microbatch } = action;
        let source = self.shared.program.source(action);
        let left = match source {
            Some(StageEnd::SameRank(channel)) => self.left_tensors.remove(&(channel, microbatch)),
            _ => None,
        };
        if kind != ActionKind::Forward {
            let mut frame = self.frames.remove(&(stage, microbatch)).expect("forward comes before backward");
            if kind.is_input_gradient() {
                // The loss has no gradient but 1.
                let of_loss = (source == Some(StageEnd::Model)).then(|| Tensor::zeros(0, 1));
                frame.gradient = of_loss.or(left);
            }
            return frame;
        }
        let sizes = &self.sizes;
        let mut frame = Frame::new(self.tokens.remove(&(stage, microbatch)));
        let Settings { label_smoothing, z_loss, .. } = *self.shared.settings;
        frame.loss_terms = LossTerms { label_smoothing, z_loss, vocabulary: sizes.vocabulary };
        frame.documents = self.documents.as_ref().map(|documents| Arc::clone(&documents.of[&microbatch]));
        frame.token_weight = 1.0 / self.targets() as f32;
        frame.masks = self.loader.masks(step - 1, sizes.first_sequence(microbatch));
        frame.flow = match source {
            Some(StageEnd::Model) => {
                let rows = sizes.micro_batch() * sizes.local_sequence();
                Some(Tensor::any_on(&*self.device, rows, sizes.hidden))
            }
            _ => left,
        };
        frame
    }

    /// The targets of the step that have a loss, over all ranks; at least one.
    fn targets(&self) -> usize {
        let all = self.shared.plan.job.tokens();
        self.documents.as_ref().map_or(all, |documents| documents.targets).max(1)
    }

    /// Stores what later calls need. Returns the loss of the microbatch if the call made it and the device does not keep it.
    pub(super) fn end_of_call(
        &mut self,
        action: Action,
        number: Option<usize>,
        mut frame: Frame,
    ) -> Result<f64, Fault> {
        let Action { stage, kind, microbatch } = action;
        let mut loss = 0.0;
        match self.shared.program.destination(action) {
            Some(StageEnd::Model) if kind == ActionKind::Forward => {
                frame.flow = None;
                let three = std::mem::take(
                    &mut frame.kept((Layer::Head, Module::Loss)).module_state::<LossSums>().three,
                );
                let number = number.expect("it is one of the calls that make losses");
                let targets = &frame.tokens().targets;
                let sum = self.device.sum_losses(number, three.slice(), targets, &frame.loss_terms);
                let sum = sum.unwrap_or_default();
                // Reports divide by all tokens of a step.
                let share = self.shared.plan.job.tokens() as f64 / self.targets() as f64;
                loss = sum.loss * share;
                self.z_loss += sum.z_loss * share;
                frame.kept((Layer::Head, Module::Loss)).module_state::<LossSums>().three = three;
                if !loss.is_finite() {
                    return Err(Fault::NotFinite { what: THE_LOSS });
                }
            }
            Some(StageEnd::SameRank(channel)) => {
                let tensor = match channel {
                    Channel::Activation(_) => frame.take_flow(),
                    Channel::Gradient(_) => frame.take_gradient(),
                };
                self.left_tensors.insert((channel, microbatch), tensor);
            }
            _ => {}
        }
        if matches!(kind, ActionKind::Forward | ActionKind::Input) {
            self.frames.insert((stage, microbatch), frame);
        }
        Ok(loss)
    }
}

/// The forward actions of a rank that read tokens, and the inputs and targets of each of them in a loader's batch.
fn make_words(
    of_rank: &RankProgram,
    program: &Program,
    sizes: &Sizes,
    device: &dyn Device,
    (loader, batch): (&mut Loader, usize),
) -> Result<(Vec<Action>, Vec<HostWords>), Fault> {
    let stages = &program.stages;
    let reads = |action: &Action| {
        let stage = &stages[action.stage];
        action.kind == ActionKind::Forward && (stage.is_first() || stage.is_last())
    };
    let actions: Vec<Action> = of_rank.calls.iter().filter_map(|call| call.action).filter(reads).collect();
    let mut words = Vec::new();
    for action in &actions {
        let first = sizes.first_sequence(action.microbatch);
        let batch = loader.batch(batch, first, sizes.micro_batch())?;
        let Batch { inputs, targets } = local_tokens(sizes, &batch);
        let looks_up = stages[action.stage].is_first() && device.sums_by_entry();
        let sorted = looks_up.then(|| Sorted::of(&inputs, sizes.local_entries()));
        words.push(HostWords { numbers: inputs, sorted });
        words.push(HostWords { numbers: targets, sorted: None });
    }
    Ok((actions, words))
}

/// The documents of a rank's microbatches in a loader's batch; `None` if they are not kept apart.
fn make_documents(
    of_rank: &RankProgram,
    sizes: &Sizes,
    (loader, batch): (&mut Loader, usize),
) -> Result<Option<StepDocuments>, Fault> {
    let actions = of_rank.calls.iter().filter_map(|call| call.action);
    let forward = actions.filter(|action| action.kind == ActionKind::Forward);
    let row = if sizes.is_grid() { sizes.row() } else { 0 };
    let mut of = BTreeMap::new();
    for microbatch in forward.map(|action| action.microbatch).collect::<BTreeSet<usize>>() {
        let first = sizes.first_sequence(microbatch) + row * sizes.batch;
        let Some(documents) = loader.documents(batch, first, sizes.batch)? else { return Ok(None) };
        of.insert(microbatch, Arc::new(documents));
    }
    Ok(Some(StepDocuments { of, targets: loader.targets(batch)? }))
}

/// The tokens of a batch that a rank has. On a grid it looks up the sequences of all rows, one row's behind the other's.
fn local_tokens(sizes: &Sizes, batch: &Batch) -> Batch {
    let of = |all: &[u32], row: usize| -> Vec<u32> {
        let positions = sizes.local_positions().iter().cloned().flatten();
        let first = positions.map(|position| position * sizes.micro_batch() + row * sizes.batch);
        first.flat_map(|first| all[first..first + sizes.batch].to_vec()).collect()
    };
    let rows = sizes.micro_batch() / sizes.batch;
    let row = if sizes.is_grid() { sizes.row() } else { 0 };
    Batch {
        inputs: (0..rows).flat_map(|row| of(&batch.inputs, row)).collect(),
        targets: of(&batch.targets, row),
    }
}
