//! The loss of held-out tokens: the forward passes of a step's program alone, without dropout, label smoothing and z-loss.
//!
//! A rank runs its forward calls in the order of its program. Each needs forward calls of other ranks only, so leaving out all
//! other calls keeps every order that the program asks for. Nothing of a validation stays: neither in the state nor in a record.

use super::{CallRecords, Rank};
use crate::error::Fault;
use crate::train::masks::Masks;
use crate::train::sizes::Divides;
use crate::train::update::Update;
use std::rc::Rc;
use trainwright_kernels::cross_entropy::LossTerms;
use trainwright_spec::schedule::{Action, ActionKind};

impl Rank<'_> {
    /// The mean over the batches of the sum of the losses that this rank made, behind a step.
    pub fn validate(&mut self, step: usize) -> Result<f64, Fault> {
        let batches = self.validation_batches();
        let mut sum = 0.0;
        for batch in 0..batches {
            sum += self.validate_batch(step, batch)?;
        }
        Ok(sum / batches as f64)
    }

    /// How many batches there are, but for those that the run does not want.
    fn validation_batches(&self) -> usize {
        let validation = self.shared.settings.validation.as_ref().expect("there is a validation");
        let loader = self.validation_loader.as_ref().expect("a validation has a loader");
        validation.batches.get().min(loader.sequences() / self.shared.plan.job.global_batch)
    }

    fn validate_batch(&mut self, step: usize, batch: usize) -> Result<f64, Fault> {
        let device = Rc::clone(&self.device);
        let sizes = self.sizes.clone();
        let calls = self.losses();
        let records = CallRecords { losses: &calls, is_timed: false, is_recorded: false };
        let mut update = Update::new(&*device, self.shared, &sizes, step);
        let tokens = self.make_validation_tokens(batch)?;
        self.upload(tokens);
        device.begin_step(update.begin(calls.len()));
        device.join_streams();
        let mut loss = 0.0;
        for (number, call) in self.program.calls.iter().enumerate() {
            let Some(action) = call.action.filter(|action| action.kind == ActionKind::Forward) else {
                continue;
            };
            let mut frame = self.frame(action, step);
            frame.masks = Masks::off();
            frame.loss_terms = LossTerms::default();
            loss += self.enqueue_call((number, call), frame, &mut update, records)?;
            self.discard(action)?;
        }
        self.communicator.end_step(&*device)?;
        device.join_streams();
        let kept = device.end_step();
        device.check()?;
        loss += self.kept_loss(&calls, &kept)?;
        if self.sizes.divides == Divides::Weights {
            // Some stay gathered until backward.
            self.state.layers_mut().for_each(|(_, layer)| layer.weights.free_full());
        }
        Ok(loss)
    }

    /// Gives up what a forward call left for backward.
    fn discard(&mut self, Action { stage, microbatch, .. }: Action) -> Result<(), Fault> {
        let Some(mut frame) = self.frames.remove(&(stage, microbatch)) else { return Ok(()) };
        for kept in frame.all_kept() {
            let offloaded = std::mem::take(&mut kept.offloaded);
            self.offload_store.load_tensors(kept.tensors(), offloaded)?;
        }
        Ok(())
    }
}
