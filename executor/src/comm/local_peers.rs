//! Peers in the same process on the same GPU: ranks share buffers and the events from which on they are ready.
//!
//! Buffers stay where they are. A reader's stream waits for the event that came with the address; the owner's stream waits for
//! the readers' events before the buffer is written again. No rank's thread waits for a GPU: it waits at most until another
//! rank's thread has enqueued its work.

use crate::comm::heartbeat::Heartbeat;
use crate::comm::members::Members;
use crate::comm::transport::{Envelope, Mailboxes, Tag};
use crate::device::tensor::Tensor;
use crate::device::{COMPUTE, Device, DeviceSlice, Slice};
use crate::error::Fault;
use trainwright_kernels::cuda::Event;

/// A buffer of a rank for others to read.
#[derive(Debug, Clone)]
pub(crate) struct Offer {
    numbers: DeviceSlice,
    /// When it is ready; `None` after a fault, which stops all.
    event: Option<Event>,
}

/// The offers of all ranks of a process.
pub(crate) type Offers = Mailboxes<Offer>;

/// One rank among those that share GPUs.
pub(crate) struct LocalPeers<'a> {
    offers: &'a Offers,
    heartbeat: &'a Heartbeat,
    /// Tensors that other ranks may still read, with the envelope of the answer that they have.
    lent: Vec<(Envelope, Tensor)>,
}

impl<'a> LocalPeers<'a> {
    /// Nothing is lent.
    pub fn new(offers: &'a Offers, heartbeat: &'a Heartbeat) -> Self {
        Self { offers, heartbeat, lent: Vec::new() }
    }

    /// Offers this rank's numbers to a group and returns every member's, in their order: a barrier of the selected streams. What is
    /// enqueued next runs behind all that the members' streams were given before.
    pub fn exchange(
        &self,
        device: &dyn Device,
        members: &Members,
        local: DeviceSlice,
    ) -> Result<Vec<DeviceSlice>, Fault> {
        let (rank, tag) = (members.rank(), Tag::Group(members.group));
        let offer = Offer { numbers: local, event: device.record_event() };
        for to in members.others() {
            self.offers.put(Envelope { from: rank, to, tag }, offer.clone());
        }
        let seen = members.ranks.iter().map(|from| match *from == rank {
            true => Ok(local),
            false => self.receive_offer(device, Envelope { from: *from, to: rank, tag }),
        });
        seen.collect()
    }

    fn receive_offer(&self, device: &dyn Device, envelope: Envelope) -> Result<DeviceSlice, Fault> {
        let Offer { numbers, event } = self.heartbeat.waiting(|| self.offers.take(envelope))?;
        event.iter().for_each(|event| device.wait(event));
        Ok(numbers)
    }

    /// Lends a tensor to the rank at the other end.
    pub fn send(&mut self, device: &dyn Device, envelope: Envelope, tensor: Tensor) {
        self.heartbeat.beat();
        self.offers.put(envelope, Offer { numbers: tensor.slice().device(), event: device.record_event() });
        self.lent.push((envelope.back(), tensor));
        self.take_back(device);
    }

    /// A copy of what the rank at the other end has lent.
    pub fn receive(
        &mut self,
        device: &dyn Device,
        envelope: Envelope,
        width: usize,
    ) -> Result<Tensor, Fault> {
        let numbers = self.receive_offer(device, envelope)?;
        let mut copy = Tensor::any_on(device, numbers.length / width, width);
        device.copy(copy.slice_mut(), Slice::Device(numbers));
        self.offers.put(envelope.back(), Offer { numbers, event: device.record_event() });
        Ok(copy)
    }

    /// Takes back the tensors that were read by now.
    fn take_back(&mut self, device: &dyn Device) {
        let offers = self.offers;
        self.lent.retain(|(back, tensor)| {
            let read = offers.try_take(*back);
            if let Some(read) = &read {
                end_of_loan(device, tensor, read.event.as_ref());
            }
            read.is_none()
        });
    }

    /// Waits for every reader's event: at the end of a step, in which all of them read.
    pub fn take_all_back(&mut self, device: &dyn Device) -> Result<(), Fault> {
        for (back, tensor) in std::mem::take(&mut self.lent) {
            let read = self.heartbeat.waiting(|| self.offers.take(back))?;
            end_of_loan(device, &tensor, read.event.as_ref());
        }
        Ok(())
    }
}

/// Others read a tensor until that event.
pub(crate) fn end_of_loan(device: &dyn Device, tensor: &Tensor, read: Option<&Event>) {
    let Some(event) = read else { return };
    // The next owner of the memory waits, and so does a writer that still holds the tensor.
    device.read_until(tensor.slice(), event);
    if tensor.is_shared() {
        let selected = device.select(COMPUTE);
        device.wait(event);
        device.select(selected);
    }
}
