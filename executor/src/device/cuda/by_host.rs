//! Updates by the host, which keeps the moments: gradients come to memory that the GPU copies to by itself, one thread steps,
//! and what is new goes back. Meanwhile the gradients of the next tensor come.

use super::super::{Device, Slice, SliceMut, Updated, stream_of};
use super::{Cuda, bytes};
use crate::device::Numbers;
use trainwright_kernels::cuda::{Address, Event, Number};
use trainwright_spec::program::Stream;

/// What of a tensor goes back to the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Back {
    Gradients,
    Weights,
}

/// A tensor's gradients, and behind them its weights if the GPU has these.
struct There {
    numbers: Numbers,
    /// Ready once this event has happened.
    from: Option<Event>,
}

/// Whether the host keeps the moments of a tensor, or its weights.
pub(super) fn is_of_host(tensor: &Updated) -> bool {
    let moments = tensor.moments.iter().map(Numbers::slice);
    moments.chain([tensor.weights.as_slice()]).any(|numbers| matches!(numbers, Slice::Host(_)))
}

impl Cuda {
    /// Lets the host work on each of some tensors, which have their weights and gradients there.
    pub(super) fn by_host<R: Default>(
        &self,
        tensors: &mut [Updated],
        back: Back,
        mut work: impl FnMut(usize, &mut Updated) -> R,
    ) -> Vec<R> {
        let enqueued = self.record_event();
        let wait = |event: &Option<Event>| event.iter().for_each(|event| self.wait(event));
        let [to_host, from_host] = [Stream::ToHost, Stream::FromHost].map(stream_of);
        let before = self.select(to_host);
        wait(&enqueued);
        self.select(from_host);
        wait(&enqueued);
        let fetch = |tensor: &Updated| {
            self.select(to_host);
            let there = self.copy_to_host(tensor);
            self.select(from_host);
            there
        };
        let (mut made, mut next) = (Vec::new(), tensors.first().map(fetch));
        for index in 0..tensors.len() {
            let there = next.take().expect("each tensor is copied while the one before is worked on");
            next = tensors.get(index + 1).map(fetch);
            made.push(self.work_there(there, &mut tensors[index], back, |tensor| work(index, tensor)));
        }
        let done = self.record_event();
        self.select(before);
        wait(&done);
        made
    }

    /// Lets the selected stream copy a tensor to the host.
    fn copy_to_host(&self, tensor: &Updated) -> There {
        let (weights, gradients) = (tensor.weights.as_slice(), tensor.gradients.as_slice());
        let on_device = [Some(gradients), matches!(weights, Slice::Device(_)).then_some(weights)];
        let mut numbers = self.any_on_host(on_device.iter().flatten().map(Slice::len).sum(), Number::F32);
        let mut at = 0;
        for part in on_device.into_iter().flatten() {
            self.copy(numbers.slice_mut().part(at..at + part.len()), part);
            at += part.len();
        }
        There { numbers, from: self.record_event() }
    }

    /// Works on it, and lets the selected stream copy back what is new.
    fn work_there<R: Default>(
        &self,
        there: There,
        tensor: &mut Updated,
        back: Back,
        mut work: impl FnMut(&mut Updated) -> R,
    ) -> R {
        let (on_device, length) = (there.numbers.slice().device(), tensor.weights.len());
        let mut made = R::default();
        let Updated { weights, gradients, moments, rounded, decay, is_scaled } = tensor;
        let mut look = |bytes: &mut [u8]| {
            let numbers: &mut [f32] = bytemuck::cast_slice_mut(bytes);
            let (host_gradients, behind) = numbers.split_at_mut(length);
            let host_weights = match weights {
                SliceMut::Host(weights) => &mut **weights,
                SliceMut::Device(_) => behind,
            };
            made = work(&mut Updated {
                weights: SliceMut::Host(host_weights),
                gradients: SliceMut::Host(host_gradients),
                moments,
                rounded: None,
                decay: *decay,
                is_scaled: *is_scaled,
            });
            if rounded.is_some() && back == Back::Weights {
                // Gradients are used up, and what is rounded takes half their room.
                let narrow = bytes::bytes(host_weights, Number::Bf16);
                bytemuck::cast_slice_mut(host_gradients)[..narrow.len()].copy_from_slice(&narrow);
            }
        };
        self.run(|memory| {
            there.from.iter().try_for_each(|event| memory.device.wait_on_host(event))?;
            memory.device.on_host(on_device.at, on_device.bytes(), &mut look)
        });
        let put = |to: SliceMut, from: Address| {
            let to = to.device();
            self.run(|memory| memory.device.copy(to.at, from, to.bytes()));
        };
        match (back, weights) {
            (Back::Gradients, _) => put(gradients.again(), on_device.at),
            (Back::Weights, weights) => {
                if let SliceMut::Device(weights) = weights {
                    put(SliceMut::Device(*weights), on_device.at.after(4 * length));
                }
                if let Some(rounded) = rounded {
                    put(rounded.again(), on_device.at);
                }
            }
        }
        made
    }
}
