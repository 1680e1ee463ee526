//! Collectives over numbers on devices. Members on one GPU read each other's buffers, and sums are those of `sum_buffers`, in
//! the order of the members: the same bits in every run and on every member. Members with a GPU each use NCCL. All others use
//! the host's collectives.

use super::{Combine, Communicator, OnGpu};
use crate::comm::members::Members;
use crate::comm::nccl_pairs::Endpoints;
use crate::comm::routes::Route;
use crate::comm::transport::{Envelope, Tag};
use crate::device::tensor::Tensor;
use crate::device::{Device, DeviceSlice, Numbers, Slice, SliceMut, on_host};
use crate::error::Fault;
use std::ops::Range;
use trainwright_kernels::cuda::{Collective, Membership};

/// Alignment of the parts of a sum, in elements: kernels read as many at a time.
const PACK: usize = 8;

impl Communicator<'_> {
    /// How the members of a group communicate.
    pub fn route(&self, members: &Members) -> Route {
        self.on_gpu.as_ref().map_or(Route::Host, |on_gpu| on_gpu.routes.group(&members.ranks))
    }

    /// Enters a group whose members have a GPU each: the first of them makes its name, and the transport carries it.
    pub fn enter(&mut self, device: &dyn Device, members: &Members) -> Result<(), Fault> {
        let (rank, tag) = (members.rank(), Tag::Group(members.group));
        let first = members.ranks[0];
        let name = if members.place == 0 {
            let name = device.new_group();
            device.check()?;
            for to in members.others() {
                self.transport.send_bytes(Envelope { from: rank, to, tag }, name.to_vec());
            }
            name
        } else {
            let name = self.transport.receive_bytes(Envelope { from: first, to: rank, tag })?;
            name.try_into().map_err(|_| Fault::Lost {
                rank: first,
                how: "the group's name that came from it is none".into(),
            })?
        };
        device.enter(members.group, Membership { name, place: members.place, size: members.ranks.len() });
        device.check()
    }

    /// All-reduces `numbers`: the sum of every member's, on every member.
    pub fn sum(&mut self, device: &dyn Device, members: &Members, numbers: SliceMut) -> Result<(), Fault> {
        let route = self.route(members);
        // What is offloaded is on no member's device.
        if route == Route::Host || matches!(numbers, SliceMut::Host(_)) {
            return on_host(device, numbers, |data| self.all_reduce(members, data, Combine::Sum));
        }
        let local = numbers.device();
        if route == Route::Nccl {
            let sum = Collective::AllReduce { x: local.at, count: local.length };
            device.collective(members.group, sum, local.number);
            return Ok(());
        }
        let all = self.exchange(device, members, local)?;
        // Each sums its part in its buffer, where nobody else reads that part, ...
        let part = |place| part(local.length, members.ranks.len(), place);
        let summed = part(members.place);
        if !summed.is_empty() {
            device.sum(SliceMut::Device(local).part(summed.clone()), &parts(&all, &summed));
        }
        // ... and takes the others' sums when all are there, which says that all have read, too.
        self.exchange(device, members, local)?;
        for (place, other) in all.iter().enumerate().filter(|(place, _)| *place != members.place) {
            let range = part(place);
            if !range.is_empty() {
                device.copy(SliceMut::Device(local).part(range.clone()), Slice::Device(*other).part(range));
            }
        }
        self.exchange(device, members, local)?;
        Ok(())
    }

    /// The sums over all members of this member's shards of their numbers, in one buffer. `shards` gives those of each member; all
    /// members have equally long ones.
    pub fn sum_shards(
        &mut self,
        device: &dyn Device,
        members: &Members,
        numbers: Slice,
        shards: impl Fn(usize) -> Vec<Range<usize>>,
    ) -> Result<Numbers, Fault> {
        let (local, mine) = (numbers.device(), shards(members.place));
        let count = mine.iter().map(Range::len).sum();
        let mut sums = device.any(count, local.number);
        if self.route(members) == Route::Nccl {
            let all: Vec<Range<usize>> = (0..members.ranks.len()).flat_map(shards).collect();
            let message = together(device, local, &all);
            let from = message.as_ref().map_or(local, |message| message.slice().device()).at;
            let sum = Collective::ReduceScatter { from, to: sums.slice().device().at, count };
            device.collective(members.group, sum, local.number);
            return Ok(sums);
        }
        let all = self.exchange(device, members, local)?;
        let mut at = 0;
        for shard in &mine {
            let range = at..at + shard.len();
            at = range.end;
            device.sum(sums.slice_mut().part(range), &parts(&all, shard));
        }
        self.exchange(device, members, local)?;
        Ok(sums)
    }

    /// All-gathers: every member's numbers, concatenated.
    pub fn gather(&mut self, device: &dyn Device, members: &Members, shard: Slice) -> Result<Numbers, Fault> {
        let shard = shard.device();
        let mut all = device.any(shard.length * members.ranks.len(), shard.number);
        if self.route(members) == Route::Nccl {
            let to = all.slice().device().at;
            let gather = Collective::AllGather { from: shard.at, to, count: shard.length };
            device.collective(members.group, gather, shard.number);
            return Ok(all);
        }
        for (place, other) in self.exchange(device, members, shard)?.into_iter().enumerate() {
            let range = shard.length * place..shard.length * (place + 1);
            device.copy(all.slice_mut().part(range), Slice::Device(other));
        }
        self.exchange(device, members, shard)?;
        Ok(all)
    }

    /// Every member's numbers, for `take` to copy from. They do not change until all members have.
    pub fn read_all(
        &mut self,
        device: &dyn Device,
        members: &Members,
        local: Slice,
        take: impl FnOnce(&[Slice]),
    ) -> Result<(), Fault> {
        if self.route(members) == Route::Nccl {
            let all = self.gather(device, members, local)?;
            let part = |place| all.slice().part(local.len() * place..local.len() * (place + 1));
            take(&(0..members.ranks.len()).map(part).collect::<Vec<_>>());
            return Ok(());
        }
        let local = local.device();
        let all: Vec<Slice> = self.exchange(device, members, local)?.into_iter().map(Slice::Device).collect();
        take(&all);
        self.exchange(device, members, local)?;
        Ok(())
    }

    fn exchange(
        &mut self,
        device: &dyn Device,
        members: &Members,
        local: DeviceSlice,
    ) -> Result<Vec<DeviceSlice>, Fault> {
        let on_gpu = self.on_gpu.as_mut().expect("a rank on this route has a GPU");
        on_gpu.local_peers.exchange(device, members, local)
    }

    /// Enters the pairs between which NCCL carries messages.
    pub fn enter_pairs(&mut self, device: &dyn Device) -> Result<(), Fault> {
        let pairs = self.on_gpu.as_ref().map_or(Vec::new(), |on_gpu| on_gpu.pairs.groups());
        pairs.into_iter().try_for_each(|members| self.enter(device, &members))
    }

    /// The device's stream for messages from one rank to another, if NCCL carries them.
    pub fn stream(&self, ends: Endpoints) -> Option<usize> {
        self.on_gpu.as_ref()?.pairs.stream(ends)
    }

    /// Sends a tensor.
    pub fn send(&mut self, device: &dyn Device, envelope: Envelope, tensor: Tensor) {
        let Some(on_gpu) = &mut self.on_gpu else { return self.transport.send(envelope, tensor.into_vec()) };
        match on_gpu.routes.message(envelope.from, envelope.to) {
            Route::Host => self.transport.send(envelope, tensor.into_vec()),
            Route::Device => on_gpu.local_peers.send(device, envelope, tensor),
            Route::Nccl => on_gpu.pairs.send(device, envelope, tensor),
        }
    }

    /// The next tensor with this envelope.
    pub fn receive(
        &mut self,
        device: &dyn Device,
        envelope: Envelope,
        width: usize,
    ) -> Result<Tensor, Fault> {
        let by_host = || Ok(Tensor::take_to(device, self.transport.receive(envelope)?, width));
        let Some(on_gpu) = &mut self.on_gpu else { return by_host() };
        match on_gpu.routes.message(envelope.from, envelope.to) {
            Route::Host => by_host(),
            Route::Device => on_gpu.local_peers.receive(device, envelope, width),
            Route::Nccl => on_gpu.pairs.receive(device, envelope, width),
        }
    }

    /// At the end of a step: takes back memory that others have read.
    pub fn end_step(&mut self, device: &dyn Device) -> Result<(), Fault> {
        let Some(OnGpu { local_peers, pairs, .. }) = &mut self.on_gpu else { return Ok(()) };
        local_peers.take_all_back(device)?;
        pairs.take_all_back(device)
    }
}

/// Shards in one buffer; `None` if they are neighbours already.
fn together(device: &dyn Device, numbers: DeviceSlice, shards: &[Range<usize>]) -> Option<Numbers> {
    let ends = [0].into_iter().chain(shards.iter().map(|shard| shard.end));
    if shards.iter().zip(ends).all(|(shard, end)| shard.start == end) {
        return None;
    }
    let mut all = device.any(shards.iter().map(Range::len).sum(), numbers.number);
    let mut at = 0;
    for shard in shards {
        let range = at..at + shard.len();
        at = range.end;
        device.copy(all.slice_mut().part(range), Slice::Device(numbers).part(shard.clone()));
    }
    Some(all)
}

/// A member's part of `length` numbers.
fn part(length: usize, members: usize, place: usize) -> Range<usize> {
    let each = length.div_ceil(members).next_multiple_of(PACK);
    (place * each).min(length)..((place + 1) * each).min(length)
}

fn parts<'a>(all: &[DeviceSlice], range: &Range<usize>) -> Vec<Slice<'a>> {
    all.iter().map(|numbers| Slice::Device(*numbers).part(range.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_whole_packs_and_all_of_it() {
        // 20 numbers among 3: a third is 7, in packs 8.
        assert_eq!([0, 1, 2].map(|place| part(20, 3, place)), [0..8, 8..16, 16..20]);
        assert_eq!([0, 1, 2].map(|place| part(3, 3, place)), [0..3, 3..3, 3..3]);
    }
}
