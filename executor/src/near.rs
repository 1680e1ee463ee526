//! What ranks tell each other that meet on a GPU: where their numbers are, and from which moment on.
//!
//! Numbers stay where they are. Who reads those of another rank lets its stream wait for the moment that came with their
//! address; who owns them lets its own stream wait for the readers' before they are written again. No rank's thread waits
//! for a GPU: it waits at most for another rank's thread to tell.

use crate::collective::Members;
use crate::device::{COMPUTE, Device, Far, Slice};
use crate::error::Fault;
use crate::tensor::Tensor;
use crate::transport::{Mailboxes, Route, Tag};
use crate::watch::Pulse;
use trainwright_kernels::cuda::Event;

/// Numbers of a rank for others to read.
#[derive(Debug, Clone)]
pub(crate) struct Offer {
    numbers: Far,
    /// When they are there; none after a fault, which stops all.
    moment: Option<Event>,
}

/// The offers of all ranks of a process.
pub(crate) type Offers = Mailboxes<Offer>;

/// One rank among those that share GPUs.
pub(crate) struct Near<'a> {
    offers: &'a Offers,
    pulse: &'a Pulse,
    /// What other ranks have not said yet that they have read, and the way on which they will say it.
    lent: Vec<(Route, Tensor)>,
}

impl<'a> Near<'a> {
    /// Nothing is lent.
    pub fn new(offers: &'a Offers, pulse: &'a Pulse) -> Self {
        Self { offers, pulse, lent: Vec::new() }
    }

    /// Shows a group this rank's numbers and gets to see every member's. What the selected stream is told next comes behind
    /// all that the members' streams were told before.
    pub fn meet(&self, device: &dyn Device, members: &Members, own: Far) -> Result<Vec<Far>, Fault> {
        let (rank, tag) = (members.ranks[members.place], Tag::Group(members.group));
        let offer = Offer { numbers: own, moment: device.moment() };
        for to in members.ranks.iter().filter(|to| **to != rank) {
            self.offers.put(Route { from: rank, to: *to, tag }, offer.clone());
        }
        let seen = members.ranks.iter().map(|from| match *from == rank {
            true => Ok(own),
            false => self.see(device, Route { from: *from, to: rank, tag }),
        });
        seen.collect()
    }

    fn see(&self, device: &dyn Device, route: Route) -> Result<Far, Fault> {
        let Offer { numbers, moment } = self.pulse.waiting(|| self.offers.take(route))?;
        moment.iter().for_each(|moment| device.wait(moment));
        Ok(numbers)
    }

    /// Lends a tensor to the rank at the other end.
    pub fn send(&mut self, device: &dyn Device, route: Route, tensor: Tensor) {
        self.pulse.beat();
        self.offers.put(route, Offer { numbers: tensor.slice().device(), moment: device.moment() });
        self.lent.push((route.back(), tensor));
        self.take_back(device);
    }

    /// A copy of what the rank at the other end has lent.
    pub fn receive(&mut self, device: &dyn Device, route: Route, width: usize) -> Result<Tensor, Fault> {
        let numbers = self.see(device, route)?;
        let mut own = Tensor::any_on(device, numbers.length / width, width);
        device.copy(own.slice_mut(), Slice::Far(numbers));
        self.offers.put(route.back(), Offer { numbers, moment: device.moment() });
        Ok(own)
    }

    /// Takes back what was read by now.
    fn take_back(&mut self, device: &dyn Device) {
        let offers = self.offers;
        self.lent.retain(|(back, tensor)| {
            let read = offers.look(*back);
            if let Some(read) = &read {
                end_of_loan(device, tensor, read.moment.as_ref());
            }
            read.is_none()
        });
    }

    /// Waits until every reader has said when it will have read: at the end of a step, in which all do.
    pub fn take_all_back(&mut self, device: &dyn Device) -> Result<(), Fault> {
        for (back, tensor) in std::mem::take(&mut self.lent) {
            let read = self.pulse.waiting(|| self.offers.take(back))?;
            end_of_loan(device, &tensor, read.moment.as_ref());
        }
        Ok(())
    }
}

/// Others read a tensor until that moment.
pub(crate) fn end_of_loan(device: &dyn Device, tensor: &Tensor, read: Option<&Event>) {
    let Some(moment) = read else { return };
    // Who gets the memory next waits, and so does who writes there without giving it back.
    device.read_until(tensor.slice(), moment);
    if tensor.is_shared() {
        let selected = device.select(COMPUTE);
        device.wait(moment);
        device.select(selected);
    }
}
