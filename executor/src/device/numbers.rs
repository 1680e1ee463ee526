//! Numbers and parts of them, in the host's memory or in a device's.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use trainwright_kernels::cuda::{Address, Number};

/// A buffer of numbers.
#[derive(Debug)]
pub(crate) enum Numbers {
    Host(Vec<f32>),
    Device(Owned),
}

/// A slice of memory that only the device reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeviceSlice {
    pub at: Address,
    pub length: usize,
    pub number: Number,
}

/// A device slice that is a buffer; dropping it frees the memory.
#[derive(Debug)]
pub(crate) struct Owned(DeviceSlice);

/// A slice of numbers to read.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Slice<'a> {
    Host(&'a [f32]),
    Device(DeviceSlice),
}

/// A slice of numbers to write.
#[derive(Debug)]
pub(crate) enum SliceMut<'a> {
    Host(&'a mut [f32]),
    Device(DeviceSlice),
}

/// Frees memory that only a device reads.
pub(crate) trait Allocator {
    /// Nobody reads this memory any more.
    fn free(&self, memory: DeviceSlice);
}

thread_local! {
    static ALLOCATOR: RefCell<Option<Rc<dyn Allocator>>> = const { RefCell::new(None) };
}

/// Sets where this thread's numbers are freed.
pub(super) fn set_allocator(allocator: Option<Rc<dyn Allocator>>) {
    ALLOCATOR.set(allocator);
}

const ON_HOST: &str = "what only the host can do is refused on other devices before a run";
const ON_DEVICE: &str = "a device computes on its numbers";

impl Drop for Owned {
    fn drop(&mut self) {
        let allocator = ALLOCATOR.try_with(|allocator| allocator.borrow().clone());
        if let Ok(Some(allocator)) = allocator {
            allocator.free(self.0);
        }
    }
}

impl DeviceSlice {
    /// Bytes that they take.
    pub fn bytes(&self) -> usize {
        self.length * self.number.size()
    }

    fn part(self, range: Range<usize>) -> Self {
        debug_assert!(range.end <= self.length, "{range:?} of {}", self.length);
        Self { at: self.at.after(range.start * self.number.size()), length: range.len(), ..self }
    }
}

impl Default for Numbers {
    /// An empty buffer.
    fn default() -> Self {
        Numbers::Host(Vec::new())
    }
}

impl From<Vec<f32>> for Numbers {
    fn from(data: Vec<f32>) -> Self {
        Numbers::Host(data)
    }
}

impl Numbers {
    /// A buffer that a device has just allocated.
    pub fn on_device(on_device: DeviceSlice) -> Self {
        Numbers::Device(Owned(on_device))
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.slice().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that they take.
    pub fn bytes(&self) -> usize {
        match self {
            Numbers::Host(data) => 4 * data.len(),
            Numbers::Device(owned) => owned.0.bytes(),
        }
    }

    /// All of them to read.
    pub fn slice(&self) -> Slice<'_> {
        match self {
            Numbers::Host(data) => Slice::Host(data),
            Numbers::Device(owned) => Slice::Device(owned.0),
        }
    }

    /// All of them to write.
    pub fn slice_mut(&mut self) -> SliceMut<'_> {
        match self {
            Numbers::Host(data) => SliceMut::Host(data),
            Numbers::Device(owned) => SliceMut::Device(owned.0),
        }
    }

    /// The host's numbers.
    pub fn host(&self) -> &[f32] {
        self.slice().host()
    }

    /// The host's numbers, to write.
    pub fn host_mut(&mut self) -> &mut [f32] {
        self.slice_mut().host()
    }
}

impl<'a> Slice<'a> {
    /// How many.
    pub fn len(&self) -> usize {
        match self {
            Slice::Host(data) => data.len(),
            Slice::Device(on_device) => on_device.length,
        }
    }

    /// Some of them.
    pub fn part(self, range: Range<usize>) -> Self {
        match self {
            Slice::Host(data) => Slice::Host(&data[range]),
            Slice::Device(on_device) => Slice::Device(on_device.part(range)),
        }
    }

    /// The host's slice.
    pub fn host(self) -> &'a [f32] {
        match self {
            Slice::Host(data) => data,
            Slice::Device(_) => unreachable!("{ON_HOST}"),
        }
    }

    /// The device's slice.
    pub fn device(self) -> DeviceSlice {
        match self {
            Slice::Device(on_device) => on_device,
            Slice::Host(_) => unreachable!("{ON_DEVICE}"),
        }
    }
}

impl<'a> SliceMut<'a> {
    /// How many.
    pub fn len(&self) -> usize {
        self.as_slice().len()
    }

    /// To read.
    pub fn as_slice(&self) -> Slice<'_> {
        match self {
            SliceMut::Host(data) => Slice::Host(data),
            SliceMut::Device(on_device) => Slice::Device(*on_device),
        }
    }

    /// Reborrows the slice.
    pub fn again(&mut self) -> SliceMut<'_> {
        match self {
            SliceMut::Host(data) => SliceMut::Host(data),
            SliceMut::Device(on_device) => SliceMut::Device(*on_device),
        }
    }

    /// Splits off disjoint parts, in ascending order.
    pub fn parts(self, ranges: impl IntoIterator<Item = Range<usize>>) -> Vec<Self> {
        let (mut parts, mut rest, mut at) = (Vec::new(), self, 0);
        for range in ranges {
            let [_, from] = rest.split_at(range.start - at);
            let [part, behind] = from.split_at(range.len());
            parts.push(part);
            (rest, at) = (behind, range.end);
        }
        parts
    }

    /// Some of them.
    pub fn part(self, range: Range<usize>) -> Self {
        match self {
            SliceMut::Host(data) => SliceMut::Host(&mut data[range]),
            SliceMut::Device(on_device) => SliceMut::Device(on_device.part(range)),
        }
    }

    /// Splits the slice at an index.
    pub fn split_at(self, place: usize) -> [Self; 2] {
        match self {
            SliceMut::Host(data) => {
                let (before, behind) = data.split_at_mut(place);
                [SliceMut::Host(before), SliceMut::Host(behind)]
            }
            SliceMut::Device(on_device) => {
                [0..place, place..on_device.length].map(|range| SliceMut::Device(on_device.part(range)))
            }
        }
    }

    /// The host's slice.
    pub fn host(self) -> &'a mut [f32] {
        match self {
            SliceMut::Host(data) => data,
            SliceMut::Device(_) => unreachable!("{ON_HOST}"),
        }
    }

    /// The device's slice.
    pub fn device(self) -> DeviceSlice {
        match self {
            SliceMut::Device(on_device) => on_device,
            SliceMut::Host(_) => unreachable!("{ON_DEVICE}"),
        }
    }
}
