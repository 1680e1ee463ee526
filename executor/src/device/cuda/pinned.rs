//! Memory of the host that a GPU copies to and from by itself, kept by size when it is given up.

use super::Cuda;
use std::collections::{BTreeMap, BTreeSet};
use trainwright_kernels::cuda::{Address, Event};

#[derive(Default)]
pub(super) struct Pinned {
    /// By size, with the event behind the last copy there.
    free: BTreeMap<usize, Vec<(Address, Option<Event>)>>,
    given: BTreeSet<u64>,
}

impl Pinned {
    /// Room for that many bytes, for the selected stream; nowhere after a fault.
    pub fn allocate(&mut self, device: &Cuda, bytes: usize) -> Address {
        let mut made = Address::NULL;
        match self.free.get_mut(&bytes).and_then(Vec::pop) {
            Some((at, after)) => {
                made = at;
                after.iter().for_each(|event| device.run(|memory| memory.device.wait(event)));
            }
            None => device.run(|memory| {
                made = memory.device.allocate_on_host(bytes)?;
                Ok(())
            }),
        }
        self.given.insert(made.0);
        made
    }

    /// Whether it was given from here: then it is kept. The last who copies there is the selected stream, or one that this
    /// has waited for.
    pub fn take_back(&mut self, at: Address, bytes: usize, now: impl FnOnce() -> Option<Event>) -> bool {
        let is_pinned = self.given.remove(&at.0);
        if is_pinned && at != Address::NULL {
            self.free.entry(bytes).or_default().push((at, now()));
        }
        is_pinned
    }
}
