//! Collectives over a module's tensors.

use crate::comm::collective::{Combine, Communicator};
use crate::comm::members::Members;
use crate::comm::routes::Route;
use crate::device::Device;
use crate::device::tensor::Tensor;
use crate::error::Fault;
use crate::train::frame::{Frame, Kept, ModulePlace};
use crate::train::modules::LossSums;
use trainwright_kernels::cuda::Number;
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::program::{Pass, Value};

/// A collective over a tensor of a module.
#[derive(Clone, Copy)]
pub(crate) struct ModuleCollective<'a> {
    pub device: &'a dyn Device,
    pub kind: CollectiveKind,
    pub members: &'a Members,
    pub place: ModulePlace,
    pub value: Value,
    pub pass: Pass,
}

impl ModuleCollective<'_> {
    /// Performs it on what a frame holds.
    pub fn perform(&self, communicator: &mut Communicator, frame: &mut Frame) -> Result<(), Fault> {
        match (self.value, self.pass) {
            (Value::Input, Pass::Backward) => {
                let input = frame.kept(self.place).input.clone().expect("forward kept the input");
                let gathered = self.reduced_or_gathered(communicator, input)?;
                frame.kept(self.place).gathered = Some(gathered);
            }
            (Value::Input | Value::Output, _) => {
                let flow = frame.take_flow();
                frame.flow = Some(self.reduced_or_gathered(communicator, flow)?);
            }
            (Value::InputGradient | Value::OutputGradient, _) => {
                let gradient = frame.take_gradient();
                frame.gradient = Some(self.reduced_or_gathered(communicator, gradient)?);
            }
            (Value::WeightGradient, _) => {
                unreachable!("collectives of weight gradients are refused before a run")
            }
            (Value::Statistic, _) => self.join_statistics(communicator, frame.kept(self.place))?,
        }
        Ok(())
    }

    /// The result of the collective. Tensor ranks hold neighbouring rows, so their parts are concatenated.
    fn reduced_or_gathered(
        &self,
        communicator: &mut Communicator,
        mut tensor: Tensor,
    ) -> Result<Tensor, Fault> {
        let (device, members, width) = (self.device, self.members, tensor.width());
        let on_host = communicator.route(members) == Route::Host;
        Ok(match self.kind {
            CollectiveKind::AllReduce => {
                communicator.sum(device, members, tensor.slice_mut())?;
                tensor
            }
            CollectiveKind::AllGather if on_host => {
                let shard = device.read(tensor.slice());
                Tensor::take_to(device, communicator.all_gather(members, &shard)?, width)
            }
            CollectiveKind::AllGather => {
                Tensor::of(communicator.gather(device, members, tensor.slice())?, width)
            }
            CollectiveKind::ReduceScatter if on_host => {
                Tensor::take_to(device, communicator.reduce_scatter(members, tensor.into_vec())?, width)
            }
            CollectiveKind::ReduceScatter => {
                let length = tensor.slice().len() / members.ranks.len();
                #[expect(clippy::single_range_in_vec_init, reason = "a member has one shard")]
                let shard = |place: usize| vec![length * place..length * (place + 1)];
                Tensor::of(communicator.sum_shards(device, members, tensor.slice(), shard)?, width)
            }
            other => unreachable!("{other} inside a layer is refused before a run"),
        })
    }

    /// The next of the three numbers of each token: the largest logit, with it the sums, then the target's logit.
    fn join_statistics(&self, communicator: &mut Communicator, kept: &mut Kept) -> Result<(), Fault> {
        let (device, members) = (self.device, self.members);
        let LossSums { three, exchanged } = kept.module_state();
        let tokens = three.len() / 3;
        match *exchanged {
            0 => {
                let maxima = three.slice().part(0..tokens);
                let all = match communicator.route(members) {
                    Route::Host => {
                        let mut largest = device.read(maxima).into_owned();
                        communicator.all_reduce(members, &mut largest, Combine::Maximum)?;
                        device.take(largest, Number::F32)
                    }
                    _ => communicator.gather(device, members, maxima)?,
                };
                device.join_maxima(three.slice_mut(), all.slice());
            }
            number => {
                let part = three.slice_mut().part(number * tokens..(number + 1) * tokens);
                communicator.sum(device, members, part)?;
            }
        }
        *exchanged += 1;
        Ok(())
    }
}
