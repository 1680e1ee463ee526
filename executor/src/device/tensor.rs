//! Tensors: matrices that several owners of a rank may share, and the bytes they take.

use super::host_buffers::{return_buffer, take_buffer};
use super::{self as device, Cpu, CurrentDevice, Device, Numbers, Slice, SliceMut};
use std::cell::Cell;
use std::rc::Rc;
use trainwright_kernels::{Threads, elementwise};

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
}

/// Bytes that this thread's tensors take.
pub(crate) fn held_bytes() -> usize {
    HELD.get()
}

#[derive(Debug)]
struct Buffer(Numbers);

impl Buffer {
    fn new(numbers: Numbers) -> Self {
        HELD.set(HELD.get() + numbers.bytes());
        Self(numbers)
    }

    fn into_numbers(mut self) -> Numbers {
        let numbers = std::mem::take(&mut self.0);
        HELD.set(HELD.get() - numbers.bytes());
        numbers
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let numbers = std::mem::take(&mut self.0);
        HELD.set(HELD.get() - numbers.bytes());
        if let Numbers::Host(data) = numbers {
            return_buffer(data);
        }
    }
}

/// The device of some numbers.
fn device_of(slice: Slice) -> Rc<dyn Device> {
    match slice {
        Slice::Host(_) => Rc::new(Cpu { threads: Threads::ONE }),
        Slice::Device(_) => CurrentDevice::get(),
    }
}

/// A matrix, row after row.
#[derive(Debug, Clone)]
pub(crate) struct Tensor {
    data: Rc<Buffer>,
    width: usize,
}

impl Tensor {
    /// From that content.
    pub fn of(numbers: impl Into<Numbers>, width: usize) -> Self {
        let numbers = numbers.into();
        debug_assert!(numbers.len().is_multiple_of(width), "{} numbers in rows of {width}", numbers.len());
        Self { data: Rc::new(Buffer::new(numbers)), width }
    }

    /// Uninitialised on a device.
    pub fn any_on(device: &dyn Device, rows: usize, width: usize) -> Self {
        Self::of(device.any(rows * width, device.number()), width)
    }

    /// Copies the host's numbers to a device.
    pub fn take_to(device: &dyn Device, data: Vec<f32>, width: usize) -> Self {
        Self::of(device.take(data, device.number()), width)
    }

    /// Zeros on a device.
    pub fn zeros_on(device: &dyn Device, rows: usize, width: usize) -> Self {
        let mut tensor = Self::any_on(device, rows, width);
        device.zero(tensor.slice_mut());
        tensor
    }

    /// Copied to the host.
    pub fn on_host(&self) -> Self {
        match self.slice() {
            Slice::Host(_) => self.clone(),
            Slice::Device(_) => Self::of(CurrentDevice::get().read(self.slice()).into_owned(), self.width),
        }
    }

    /// Copied to pinned memory of the host by the selected stream of its device.
    pub fn copied_to_host(&self, device: &dyn Device) -> Self {
        let on_device = self.slice().device();
        let mut numbers = device.any_on_host(on_device.length, on_device.number);
        device.copy(numbers.slice_mut(), self.slice());
        Self::of(numbers, self.width)
    }

    /// Copied back from there by the selected stream.
    pub fn copied_back(&self, device: &dyn Device) -> Self {
        let on_device = self.slice().device();
        let mut numbers = device.any(on_device.length, on_device.number);
        device.copy(numbers.slice_mut(), self.slice());
        Self::of(numbers, self.width)
    }

    /// Moved to a device.
    pub fn onto(self, device: &dyn Device) -> Self {
        let width = self.width;
        Self::take_to(device, self.into_vec(), width)
    }

    /// Zeros.
    pub fn zeros(rows: usize, width: usize) -> Self {
        let mut data = take_buffer(rows * width);
        data.fill(0.0);
        Self::of(data, width)
    }

    /// A copy in another buffer.
    pub fn copy(&self) -> Self {
        match self.slice() {
            Slice::Host(numbers) => {
                let mut data = take_buffer(numbers.len());
                data.copy_from_slice(numbers);
                Self::of(data, self.width)
            }
            Slice::Device(on_device) => {
                let device = CurrentDevice::get();
                let mut numbers = device.any(on_device.length, on_device.number);
                device.copy(numbers.slice_mut(), self.slice());
                Self::of(numbers, self.width)
            }
        }
    }

    /// Some columns of it.
    pub fn columns(&self, columns: std::ops::Range<usize>) -> Self {
        let width = columns.len();
        let device = device_of(self.slice());
        let mut copy = Self::any_on(&*device, self.rows(), width);
        let columns = device::Columns { width, from: [self.width, columns.start], to: [width, 0] };
        device.copy_columns(copy.slice_mut(), self.slice(), columns);
        copy
    }

    /// Concatenates the columns of tensors with equally many rows.
    pub fn side_by_side(parts: &[&Tensor]) -> Self {
        let width = parts.iter().map(|part| part.width).sum();
        let device = device_of(parts[0].slice());
        let mut joined = Self::any_on(&*device, parts[0].rows(), width);
        let mut first = 0;
        for part in parts {
            let columns = device::Columns { width: part.width, from: [part.width, 0], to: [width, first] };
            device.copy_columns(joined.slice_mut(), part.slice(), columns);
            first += part.width;
        }
        joined
    }

    /// Whether it has another owner.
    pub fn is_shared(&self) -> bool {
        Rc::strong_count(&self.data) > 1
    }

    /// Length of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// How many rows.
    pub fn rows(&self) -> usize {
        self.data.0.len() / self.width
    }

    /// The numbers, wherever they are.
    pub fn slice(&self) -> Slice<'_> {
        self.data.0.slice()
    }

    /// The numbers to write; other owners keep the old ones.
    pub fn slice_mut(&mut self) -> SliceMut<'_> {
        if Rc::get_mut(&mut self.data).is_none() {
            *self = self.copy();
        }
        Rc::get_mut(&mut self.data).expect("it was copied if it was shared").0.slice_mut()
    }

    /// The host's numbers.
    pub fn data(&self) -> &[f32] {
        self.data.0.host()
    }

    /// The host's numbers to write; other owners keep the old ones.
    pub fn data_mut(&mut self) -> &mut [f32] {
        self.slice_mut().host()
    }

    /// Rounds the host's f32 numbers to bf16.
    pub fn round_to_bf16(&mut self) {
        if let Slice::Host(data) = self.slice()
            && !elementwise::is_bf16(data)
        {
            elementwise::round_to_bf16(self.data_mut());
        }
    }

    /// The numbers, moved to a buffer of the host.
    pub fn into_vec(self) -> Vec<f32> {
        if let Slice::Device(_) = self.slice() {
            return CurrentDevice::get().read(self.slice()).into_owned();
        }
        match Rc::try_unwrap(self.data).map(Buffer::into_numbers) {
            Ok(Numbers::Host(data)) => data,
            Ok(Numbers::Device(_)) => unreachable!("it was of the host"),
            Err(shared) => {
                let mut data = take_buffer(shared.0.len());
                data.copy_from_slice(shared.0.host());
                data
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writing_leaves_other_holders_alone_and_memory_is_counted() {
        let before = held_bytes();
        let mut one = Tensor::of(vec![1.0, 2.0], 2);
        let other = one.clone();
        assert_eq!(held_bytes() - before, 8);
        one.data_mut()[0] = 5.0;
        assert_eq!((one.data(), other.data()), (&[5.0, 2.0][..], &[1.0, 2.0][..]));
        assert_eq!(held_bytes() - before, 16);
        drop(other);
        assert_eq!(one.into_vec(), [5.0, 2.0]);
        assert_eq!(held_bytes(), before);
    }
}
