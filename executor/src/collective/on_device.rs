//! Collectives over numbers on devices. Where the members meet on a GPU they read each other's buffers, and sums are those of
//! `sum_buffers`, in the order of the members: the same bits in every run and on every member. Elsewhere the host's collectives
//! are used.

use super::{Combine, Communicator, Members};
use crate::device::{Device, Far, Numbers, Slice, SliceMut, on_host};
use crate::error::Fault;
use crate::reach::Way;
use crate::tensor::Tensor;
use crate::transport::Route;
use std::ops::Range;

/// Where parts of sums end: kernels read so many numbers at a time.
const PACK: usize = 8;

impl Communicator<'_> {
    /// How the members of a group communicate.
    pub fn way(&self, members: &Members) -> Way {
        match self.near.as_ref().map(|(reach, _)| reach.group(&members.ranks)) {
            Some(Way::Device) => Way::Device,
            _ => Way::Host,
        }
    }

    /// Every member's numbers together, in every member's.
    pub fn sum(&mut self, device: &dyn Device, members: &Members, numbers: SliceMut) -> Result<(), Fault> {
        if self.way(members) == Way::Host {
            return on_host(device, numbers, |data| self.all_reduce(members, data, Combine::Sum));
        }
        let own = numbers.device();
        let all = self.meet(device, members, own)?;
        // Each sums its part into its own numbers, where nobody else reads that part, ...
        let part = |place| part(own.length, members.ranks.len(), place);
        let summed = part(members.place);
        if !summed.is_empty() {
            device.sum(SliceMut::Far(own).part(summed.clone()), &parts(&all, &summed));
        }
        // ... and takes the others' sums when all are there, which says that all have read, too.
        self.meet(device, members, own)?;
        for (place, other) in all.iter().enumerate().filter(|(place, _)| *place != members.place) {
            let range = part(place);
            if !range.is_empty() {
                device.copy(SliceMut::Far(own).part(range.clone()), Slice::Far(*other).part(range));
            }
        }
        self.meet(device, members, own)?;
        Ok(())
    }

    /// The sums over all members of this member's pieces of their numbers, one behind the other.
    pub fn sum_pieces(
        &mut self,
        device: &dyn Device,
        members: &Members,
        numbers: Slice,
        pieces: &[Range<usize>],
    ) -> Result<Numbers, Fault> {
        let own = numbers.device();
        let mut sums = device.any(pieces.iter().map(Range::len).sum(), own.number);
        let all = self.meet(device, members, own)?;
        let mut at = 0;
        for piece in pieces {
            let range = at..at + piece.len();
            at = range.end;
            device.sum(sums.slice_mut().part(range), &parts(&all, piece));
        }
        self.meet(device, members, own)?;
        Ok(sums)
    }

    /// Every member's numbers, for `take` to copy from. They stay as they are until all have.
    pub fn see(
        &mut self,
        device: &dyn Device,
        members: &Members,
        own: Slice,
        take: impl FnOnce(&[Slice]),
    ) -> Result<(), Fault> {
        let own = own.device();
        let all: Vec<Slice> = self.meet(device, members, own)?.into_iter().map(Slice::Far).collect();
        take(&all);
        self.meet(device, members, own)?;
        Ok(())
    }

    fn meet(&mut self, device: &dyn Device, members: &Members, own: Far) -> Result<Vec<Far>, Fault> {
        let (_, near) = self.near.as_mut().expect("who meets on a GPU is near");
        near.meet(device, members, own)
    }

    /// Sends a tensor.
    pub fn send(&mut self, device: &dyn Device, route: Route, tensor: Tensor) {
        match &mut self.near {
            Some((reach, near)) if reach.message(route.from, route.to) == Way::Device => {
                near.send(device, route, tensor);
            }
            _ => self.transport.send(route, tensor.into_vec()),
        }
    }

    /// The next tensor on a route.
    pub fn receive(&mut self, device: &dyn Device, route: Route, width: usize) -> Result<Tensor, Fault> {
        match &mut self.near {
            Some((reach, near)) if reach.message(route.from, route.to) == Way::Device => {
                near.receive(device, route, width)
            }
            _ => Ok(Tensor::take_to(device, self.transport.receive(route)?, width)),
        }
    }

    /// At the end of a step: memory that others have read is this rank's again.
    pub fn end_step(&mut self, device: &dyn Device) -> Result<(), Fault> {
        self.near.as_mut().map_or(Ok(()), |(_, near)| near.take_all_back(device))
    }
}

/// A member's part of so many numbers.
fn part(length: usize, members: usize, place: usize) -> Range<usize> {
    let each = length.div_ceil(members).next_multiple_of(PACK);
    (place * each).min(length)..((place + 1) * each).min(length)
}

fn parts<'a>(all: &[Far], range: &Range<usize>) -> Vec<Slice<'a>> {
    all.iter().map(|own| Slice::Far(*own).part(range.clone())).collect()
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
