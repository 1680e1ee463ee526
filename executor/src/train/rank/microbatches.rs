//! A microbatch between the calls of a rank: its tokens, what it receives from another stage and sends there, its loss.

use super::{Rank, THE_LOSS};
use crate::device::tensor::Tensor;
use crate::device::{HostWords, Sorted};
use crate::error::Fault;
use crate::train::data::tokens::Batch;
use crate::train::frame::{Frame, MicrobatchTokens};
use crate::train::modules::LossSums;
use crate::train::parameters::Layer;
use crate::train::sizes::Sizes;
use trainwright_spec::program::{Channel, Module};
use trainwright_spec::schedule::{Action, ActionKind};

/// Tokens of a step's microbatches, as the host has made them: inputs and targets of each forward action.
#[derive(Debug)]
pub(crate) struct StepTokens {
    step: usize,
    actions: Vec<Action>,
    words: Vec<HostWords>,
}

impl Rank<'_> {
    /// Makes the tokens of all microbatches of a step that stages of this rank read.
    pub(super) fn make_tokens(&mut self, step: usize) -> StepTokens {
        let reads = |action: &Action| {
            let (first, last) = self.ends(action.stage);
            action.kind == ActionKind::Forward && (first || last)
        };
        let actions = self.program.calls.iter().filter_map(|call| call.action);
        let actions: Vec<Action> = actions.filter(reads).collect();
        let sizes = &self.sizes;
        let mut words = Vec::new();
        for action in &actions {
            let first = sizes.first_sequence(action.microbatch);
            let batch = self.loader.batch(step - 1, first, sizes.micro_batch());
            let Batch { inputs, targets } = own_tokens(sizes, &batch);
            let looks_up = self.ends(action.stage).0 && self.device.sums_by_entry();
            let sorted = looks_up.then(|| Sorted::of(&inputs, sizes.own_entries()));
            words.push(HostWords { numbers: inputs, sorted });
            words.push(HostWords { numbers: targets, sorted: None });
        }
        StepTokens { step, actions, words }
    }

    /// Copies the tokens of a step to the device. They were made during the step before, unless this one is the run's first.
    pub(super) fn upload_tokens(&mut self, step: usize) {
        let made = self.next_tokens.take().filter(|made| made.step == step);
        let StepTokens { actions, words, .. } = made.unwrap_or_else(|| self.make_tokens(step));
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

    /// Whether a stage is the first one of its copy, and the last one.
    pub(super) fn ends(&self, stage: usize) -> (bool, bool) {
        let stages = self.shared.plan.stages.len();
        (stage.is_multiple_of(stages), (stage + 1).is_multiple_of(stages))
    }

    /// Whether this rank runs the stage of that number too.
    fn runs(&self, stage: usize) -> bool {
        let plan = self.shared.plan;
        plan.schedule().rank_of(stage, plan.pipeline_shape()) == self.sizes.at.pipeline
    }

    /// The frame of an action of a step with what comes from another stage of this rank.
    pub(super) fn frame(&mut self, action: Action, step: usize) -> Frame {
        let Action { stage, kind, microbatch } = action;
        let (first, last) = self.ends(stage);
        if kind != ActionKind::Forward {
            let mut frame = self.frames.remove(&(stage, microbatch)).expect("forward comes before backward");
            if kind.is_input_gradient() {
                // The loss has no gradient but 1.
                let begins = last.then(|| Tensor::zeros(0, 1));
                frame.gradient =
                    begins.or_else(|| self.handed.remove(&(Channel::Gradient(stage + 1), microbatch)));
            }
            return frame;
        }
        let sizes = &self.sizes;
        let mut frame = Frame::new(self.tokens.remove(&(stage, microbatch)));
        frame.masks = self.loader.masks(step - 1, sizes.first_sequence(microbatch));
        frame.flow = match first {
            true => {
                let rows = sizes.micro_batch() * sizes.own_sequence();
                Some(Tensor::any_on(&*self.device, rows, sizes.hidden))
            }
            false => self.handed.remove(&(Channel::Activation(stage - 1), microbatch)),
        };
        frame
    }

    /// Keeps what later calls need; returns the loss of the microbatch if the call made it and the device does not keep it.
    pub(super) fn end_of_call(
        &mut self,
        action: Action,
        number: Option<usize>,
        mut frame: Frame,
    ) -> Result<f64, Fault> {
        let Action { stage, kind, microbatch } = action;
        let (first, last) = self.ends(stage);
        let mut loss = 0.0;
        match kind {
            ActionKind::Forward if last => {
                frame.flow = None;
                let three = &frame.kept((Layer::Head, Module::Loss)).own::<LossSums>().three;
                let number = number.expect("it is one of the calls that make losses");
                loss = self.device.sum_losses(number, three.slice()).unwrap_or(0.0);
                if !loss.is_finite() {
                    return Err(Fault::NotFinite { what: THE_LOSS });
                }
            }
            ActionKind::Forward if self.runs(stage + 1) => {
                self.handed.insert((Channel::Activation(stage), microbatch), frame.take_flow());
            }
            ActionKind::Backward | ActionKind::Input if !first && self.runs(stage - 1) => {
                self.handed.insert((Channel::Gradient(stage), microbatch), frame.take_gradient());
            }
            _ => {}
        }
        if matches!(kind, ActionKind::Forward | ActionKind::Input) {
            self.frames.insert((stage, microbatch), frame);
        }
        Ok(loss)
    }
}

/// The tokens of a batch that a rank has. On a grid it looks up the sequences of all rows, one row's behind the other's.
fn own_tokens(sizes: &Sizes, batch: &Batch) -> Batch {
    let of = |all: &[u32], row: usize| -> Vec<u32> {
        let positions = sizes.own_positions().iter().cloned().flatten();
        let first = positions.map(|position| position * sizes.micro_batch() + row * sizes.batch);
        first.flat_map(|first| all[first..first + sizes.batch].to_vec()).collect()
    };
    let rows = sizes.micro_batch() / sizes.batch;
    let own = if sizes.is_grid() { sizes.row() } else { 0 };
    Batch {
        inputs: (0..rows).flat_map(|row| of(&batch.inputs, row)).collect(),
        targets: of(&batch.targets, own),
    }
}
