//! What of a step changes from one to the next, and what the host wants to know of it.
//!
//! A device with separate memory keeps both there: what changes is written once before a step, and losses and norm are read
//! once behind it. So all between are launches that are the same in every step.

use super::super::{HostWords, Numbers, Rule, Slice, SliceMut, Words};
use trainwright_kernels::cross_entropy::{LossTerms, Statistics};
use trainwright_kernels::cuda::DeviceError;

/// What is known of a step before it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepBegin {
    pub rule: Rule,
    /// The learning rate.
    pub rate: f32,
    /// Its number, from 1.
    pub step: usize,
    /// How many sums of losses this rank makes in it.
    pub losses: usize,
}

/// Sums over the tokens of a microbatch.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct SummedLoss {
    /// Of their losses, the z-loss included.
    pub loss: f64,
    /// Of their z-losses.
    pub z_loss: f64,
}

/// What a device kept of a step until its end.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct StepNumbers {
    /// Sums of losses.
    pub losses: Vec<f64>,
    /// The norm of the gradients, if `clip` formed it.
    pub norm: f64,
}

/// A device's part in a step's begin and end, and in graph capture.
pub(crate) trait StepOps {
    /// Whether losses and the gradients' norm stay on the device until a step's end.
    fn keeps(&self) -> bool;

    /// Whether tokens that look up a table are brought with their order by entry, in which the table's gradient is summed.
    fn sums_by_entry(&self) -> bool;

    /// Tokens of a step, for the device to read: from the same place in every step.
    fn upload(&self, all: Vec<HostWords>) -> Vec<Words>;

    /// Before the first op of a step.
    fn begin_step(&self, begin: StepBegin);

    /// The three numbers of each token below the largest logit of all ranks. `maxima` has one behind the other those of all
    /// tokens on each rank, or those on all ranks.
    fn join_maxima(&self, three: SliceMut, maxima: Slice);

    /// The sum of the losses of tokens by their three numbers; `None` if the device keeps it, under that number.
    fn sum_losses(
        &self,
        number: usize,
        three: Slice,
        targets: &Words,
        terms: &LossTerms,
    ) -> Option<SummedLoss>;

    /// Two sums, of the first ones and of the others: Σ x² of each times its scale. Of a device that keeps them.
    fn square_sums(&self, all: [&[(Slice, f32)]; 2]) -> Numbers;

    /// The norm by those sums, and the factor of the gradients that keeps it below a bound. Of a device that keeps them.
    fn clip(&self, sums: Slice, bound: f32);

    /// What the host says gradients are multiplied by.
    fn scale_gradients(&self, scale: f32);

    /// Behind the last op of a step: what was kept, once it is there.
    fn end_step(&self) -> StepNumbers;

    /// Records what is enqueued from now on.
    fn record(&self);

    /// Whether the recording since `record` equals the one before it; an error says why no graph can replay it.
    fn repeats(&self) -> Result<bool, String>;

    /// Makes a graph of what was noted last.
    fn make_ready(&self) -> Result<(), DeviceError>;

    /// Does what the graph says.
    fn replay(&self);
}

/// The three numbers of each token.
pub(crate) fn each_token(three: &[f32]) -> impl Iterator<Item = Statistics<f32>> {
    let tokens = three.len() / 3;
    let of = move |token: usize| Statistics {
        maximum: three[token],
        sum: three[tokens + token],
        target: three[2 * tokens + token],
    };
    (0..tokens).map(of)
}
