//! Where the times of an engine's steps come from. The scheduler is the same for all sources: a model of a machine, a machine
//! that carries the steps out, times that were recorded.

use super::queue::{Queue, Work};
use super::simulate::{ServingError, batch};
use super::step::{Batch, StepModel};
use trainwright_spec::units::Seconds;

/// A source of the times of steps.
pub trait StepSource {
    /// Why a step has no time.
    type Error: From<ServingError>;

    /// Takes the next step: `works` of the sequences of `queue`, which are as they were before it. Returns how long it took.
    ///
    /// # Errors
    /// Those of the source.
    fn take(&mut self, queue: &Queue, works: &[Work]) -> Result<Seconds, Self::Error>;

    /// The time of a step without taking it, so that many like it may be summed at once; `None` if each has to be taken.
    ///
    /// # Errors
    /// Those of the source.
    fn forecast(&mut self, _batch: &Batch) -> Result<Option<Seconds>, Self::Error> {
        Ok(None)
    }

    /// Time of a request between its client and the queue.
    fn request_delay(&self) -> Seconds {
        Seconds::ZERO
    }
}

impl StepSource for StepModel<'_> {
    type Error = ServingError;

    fn take(&mut self, queue: &Queue, works: &[Work]) -> Result<Seconds, ServingError> {
        Ok(self.time(&batch(queue, works))?)
    }

    fn forecast(&mut self, batch: &Batch) -> Result<Option<Seconds>, ServingError> {
        Ok(Some(self.time(batch)?))
    }

    fn request_delay(&self) -> Seconds {
        self.plan().engine.host.request.value
    }
}
