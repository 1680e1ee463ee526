//! The memory of a rank on a GPU, and what went wrong there.
//!
//! A block belongs to the stream that was selected when it was given out. That stream uses it in the order of its work; the others
//! that may still be at it when it comes back are waited for before it is used again, on the GPU.

use super::super::streams::COMPUTE;
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use trainwright_kernels::cuda::{self, Address, DeviceError, Event, Recorder, Recording, RecordingLog};

/// A device with what was given up of its memory.
pub(super) struct Memory {
    /// By stream and size: those that nobody is at any more behind the others.
    free: BTreeMap<(usize, usize), VecDeque<Free>>,
    given: BTreeMap<u64, Given>,
    /// The recording of launches, if one goes on.
    notes: RecordingLog,
    /// Last of the fields, so that all events are dropped before the device that made them.
    pub device: Box<dyn cuda::Device>,
    /// Bytes that the device was asked for: as none are given back to it, the most that were needed at a time.
    pub peak: usize,
    pub fault: Option<DeviceError>,
    /// The selected stream: the next launches are enqueued on it.
    selected: usize,
    /// How many streams there are.
    streams: usize,
}

/// A free block.
struct Free {
    at: Address,
    /// When this rank's other streams are done with it.
    after: Vec<Event>,
    /// When other ranks have read it.
    until: Vec<Event>,
}

/// A block in use.
struct Given {
    stream: usize,
    /// Until when other ranks read it.
    until: Vec<Event>,
}

/// Sizes are rounded up to a multiple, so that more of them are alike.
const ROUNDED: usize = 512;

impl Memory {
    /// Nothing of it is used.
    pub fn new(device: Box<dyn cuda::Device>) -> Self {
        let (free, given, notes) = (BTreeMap::new(), BTreeMap::new(), RecordingLog::default());
        let device = Box::new(Recorder::new(device, notes.clone()));
        Self { device, notes, fault: None, selected: COMPUTE, streams: 1, free, given, peak: 0 }
    }

    /// Does it, unless something went wrong before.
    pub fn run(&mut self, work: impl FnOnce(&mut Self) -> Result<(), DeviceError>) {
        if self.fault.is_none() {
            self.fault = work(self).err();
        }
    }

    /// Selects the stream of the next launches. Returns the one before.
    pub fn select(&mut self, stream: usize) -> usize {
        let before = std::mem::replace(&mut self.selected, stream);
        if stream != before {
            self.streams = self.streams.max(stream + 1);
            self.run(|memory| memory.device.select(stream));
        }
        before
    }

    /// An event behind all that is enqueued on the selected stream; `None` after a fault.
    pub fn record_event(&mut self) -> Option<Event> {
        let mut event = None;
        self.run(|memory| {
            event = Some(memory.device.record_event()?);
            Ok(())
        });
        event
    }

    /// Records what is enqueued from now on.
    pub fn record(&self) {
        self.notes.begin(self.selected);
    }

    /// What was noted since then.
    pub fn recorded(&self) -> Recording {
        self.notes.end()
    }

    /// Every stream waits for all that is enqueued on the others. So no block has to be waited for because of this rank's
    /// streams, and blocks are put in the order of their addresses: what is asked for in the same order then, is there where it
    /// was.
    pub fn join(&mut self) {
        let selected = self.selected;
        let mut all = Vec::new();
        for stream in 0..self.streams {
            self.select(stream);
            all.push(self.record_event());
        }
        for stream in 0..self.streams {
            self.select(stream);
            for (_, event) in all.iter().enumerate().filter(|(other, _)| *other != stream) {
                event.iter().for_each(|event| self.run(|memory| memory.device.wait(event)));
            }
        }
        self.select(selected);
        for free in self.free.values_mut() {
            free.iter_mut().for_each(|free| free.after.clear());
            // The last one is handed out first.
            free.make_contiguous().sort_by_key(|free| (free.until.is_empty(), Reverse(free.at.0)));
        }
    }

    /// Room for that many bytes; nowhere after a fault.
    pub fn allocate(&mut self, bytes: usize) -> Address {
        match self.try_allocate(bytes) {
            Ok(at) => at,
            Err(fault) => {
                self.fault.get_or_insert(fault);
                Address::NULL
            }
        }
    }

    /// Room for that many bytes, for one who can do without.
    pub fn try_allocate(&mut self, bytes: usize) -> Result<Address, DeviceError> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        let bytes = bytes.next_multiple_of(ROUNDED);
        let stream = self.selected;
        let at = match self.free.get_mut(&(stream, bytes)).and_then(VecDeque::pop_back) {
            Some(Free { at, after, until }) => {
                after.iter().chain(&until).for_each(|event| self.run(|memory| memory.device.wait(event)));
                at
            }
            None => {
                let made = self.device.allocate(bytes)?;
                self.peak += bytes;
                made
            }
        };
        self.given.insert(at.0, Given { stream, until: Vec::new() });
        Ok(at)
    }

    /// Other ranks read what is there until that event.
    pub fn read_until(&mut self, at: Address, event: &Event) {
        if let Some((_, given)) = self.given.range_mut(..=at.0).next_back() {
            given.until.push(event.clone());
        }
    }

    /// Waits until all is done, and until other ranks have read all that they read here.
    pub fn rest(&mut self) {
        self.run(|memory| {
            memory.device.finish()?;
            let given = memory.given.values().flat_map(|given| &given.until);
            let free = memory.free.values().flatten().flat_map(|free| &free.until);
            given.chain(free).try_for_each(|event| memory.device.wait_on_host(event))
        });
    }

    /// Keeps it for the next who needs as much. Its stream is in order; the selected one may be at it, and so may the one
    /// that computes.
    pub fn give_back(&mut self, at: Address, bytes: usize) {
        let Some(Given { stream, until }) = self.given.remove(&at.0) else { return };
        if at == Address::NULL {
            return;
        }
        let (selected, mut after) = (self.selected, Vec::new());
        let others = if selected == COMPUTE { vec![COMPUTE] } else { vec![COMPUTE, selected] };
        for other in others.into_iter().filter(|other| *other != stream) {
            self.select(other);
            after.extend(self.record_event());
        }
        self.select(selected);
        let free = self.free.entry((stream, bytes.next_multiple_of(ROUNDED))).or_default();
        match after.is_empty() && until.is_empty() {
            true => free.push_back(Free { at, after, until }),
            false => free.push_front(Free { at, after, until }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceKind;

    #[test]
    fn memory_goes_when_other_ranks_have_read_it() {
        let kind = DeviceKind::from_name("emulated").unwrap();
        if let Err(error) = (kind.require)() {
            println!("skipped: {error}");
            return;
        }
        let open = kind.bare.unwrap().open;
        let (mut owner, mut other) = (Memory::new(open(0).unwrap()), Memory::new(open(0).unwrap()));
        // The other rank copies what it reads to where this one's host may look only when that is done.
        for is_given_back in [false, true] {
            let at = owner.allocate(ROUNDED);
            let seen = owner.device.allocate_on_host(ROUNDED).unwrap();
            owner.run(|memory| memory.device.zero(at, ROUNDED));
            let there = owner.record_event().unwrap();
            other.run(|memory| memory.device.wait(&there));
            other.run(|memory| memory.device.copy(seen, at, ROUNDED));
            owner.read_until(at, &other.record_event().unwrap());
            if is_given_back {
                owner.give_back(at, ROUNDED);
            }
            owner.rest();
            let mut sum = 1;
            let mut look = |bytes: &mut [u8]| sum = bytes.iter().map(|byte| i32::from(*byte)).sum();
            owner.run(|memory| memory.device.on_host(seen, ROUNDED, &mut look));
            assert_eq!((sum, &owner.fault), (0, &None));
        }
    }
}
