//! The host sees everything when it is made: nothing is kept until a step's end.

use super::super::{
    HostWords, Numbers, Slice, SliceMut, StepBegin, StepNumbers, StepOps, SummedLoss, Words, each_token,
};
use super::Cpu;
use trainwright_kernels::cross_entropy::{IGNORED, LossTerms};
use trainwright_kernels::cuda::DeviceError;

const NO_GRAPH: &str = "processors run ops at once and record none";

impl StepOps for Cpu {
    fn keeps(&self) -> bool {
        false
    }

    fn sums_by_entry(&self) -> bool {
        false
    }

    fn upload(&self, all: Vec<HostWords>) -> Vec<Words> {
        all.into_iter().map(|words| Words::on_host(words.numbers)).collect()
    }

    fn begin_step(&self, _: StepBegin) {}

    fn join_maxima(&self, three: SliceMut, maxima: Slice) {
        let (three, maxima) = (three.host(), maxima.host());
        let tokens = three.len() / 3;
        let statistics: Vec<_> = each_token(three).collect();
        for (token, local) in statistics.into_iter().enumerate() {
            let of_ranks = maxima.chunks_exact(tokens).map(|maxima| maxima[token]);
            let largest = of_ranks.fold(local.maximum, f32::max);
            (three[token], three[tokens + token]) = (largest, local.sum_below(largest));
        }
    }

    fn sum_losses(&self, _: usize, three: Slice, targets: &Words, terms: &LossTerms) -> Option<SummedLoss> {
        let tokens = each_token(three.host()).zip(targets.host());
        let mut sum = SummedLoss::default();
        for (token, _) in tokens.filter(|(_, target)| **target != IGNORED) {
            let z_loss = if terms.z_loss == 0.0 { 0.0 } else { terms.z_loss * token.log_sum().powi(2) };
            sum.loss += token.loss() + z_loss;
            sum.z_loss += z_loss;
        }
        Some(sum)
    }

    fn square_sums(&self, _: [&[(Slice, f32)]; 2]) -> Numbers {
        unreachable!("the host has read the squares")
    }

    fn clip(&self, _: Slice, _: f32) {
        unreachable!("the host has read the squares")
    }

    /// Each update reads it.
    fn scale_gradients(&self, _: f32) {}

    fn end_step(&self) -> StepNumbers {
        StepNumbers::default()
    }

    fn record(&self) {
        unreachable!("{NO_GRAPH}")
    }

    fn repeats(&self) -> Result<bool, String> {
        unreachable!("{NO_GRAPH}")
    }

    fn make_ready(&self) -> Result<(), DeviceError> {
        unreachable!("{NO_GRAPH}")
    }

    fn replay(&self) {
        unreachable!("{NO_GRAPH}")
    }
}
