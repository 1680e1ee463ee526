//! What ranks that share a GPU do with each other's numbers.

use super::super::{DeviceSlice, Slice};
use super::Cuda;
use trainwright_kernels::cuda::Address;
use trainwright_kernels::cuda::reduce::{SUMMED, SumBuffers};

/// The sum of numbers of all ranks, in their order. What a launch has no room for is added by the next one.
pub(super) fn sum(device: &Cuda, to: DeviceSlice, all: &[Slice]) {
    let addresses: Vec<Address> = all.iter().map(|buffer| buffer.device().at).collect();
    let (first, rest) = addresses.split_at(addresses.len().min(SUMMED));
    device.launch(&SumBuffers::of(first, to.at, to.length).launch(to.number, device.gpu));
    for more in rest.chunks(SUMMED - 1) {
        let more: Vec<Address> = [to.at].iter().chain(more).copied().collect();
        device.launch(&SumBuffers::of(&more, to.at, to.length).launch(to.number, device.gpu));
    }
}
