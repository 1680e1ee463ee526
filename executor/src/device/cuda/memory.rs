//! The memory of a rank on a GPU, and what went wrong there.

use std::collections::BTreeMap;
use trainwright_kernels::cuda::{self, Address, DeviceError, Number};

/// A device with what was given up of its memory, by size.
pub(super) struct Memory {
    pub device: Box<dyn cuda::Device>,
    pub fault: Option<DeviceError>,
    free: BTreeMap<usize, Vec<Address>>,
}

/// Sizes are rounded up to a multiple, so that more of them are alike.
const ROUNDED: usize = 512;

impl Memory {
    /// Nothing of it is used.
    pub fn new(device: Box<dyn cuda::Device>) -> Self {
        Self { device, fault: None, free: BTreeMap::new() }
    }

    /// Does it, unless something went wrong before.
    pub fn run(&mut self, work: impl FnOnce(&mut Self) -> Result<(), DeviceError>) {
        if self.fault.is_none() {
            self.fault = work(self).err();
        }
    }

    /// Room for that many bytes; nowhere after a fault.
    pub fn allocate(&mut self, bytes: usize) -> Address {
        let bytes = bytes.next_multiple_of(ROUNDED);
        if let Some(known) = self.free.get_mut(&bytes).and_then(Vec::pop) {
            return known;
        }
        let mut made = Address::NULL;
        self.run(|memory| {
            made = memory.device.allocate(bytes)?;
            Ok(())
        });
        made
    }

    /// Keeps it for the next who needs as much. All work is in one order, so what still reads it comes before what the next
    /// one writes.
    pub fn give_back(&mut self, at: Address, bytes: usize) {
        if at != Address::NULL {
            self.free.entry(bytes.next_multiple_of(ROUNDED)).or_default().push(at);
        }
    }
}

/// The bytes of numbers on a device.
pub(super) fn bytes(numbers: &[f32], number: Number) -> Vec<u8> {
    match number {
        Number::F32 => bytemuck::cast_slice(numbers).to_vec(),
        Number::Bf16 => {
            numbers.iter().flat_map(|number| half::bf16::from_f32(*number).to_le_bytes()).collect()
        }
    }
}

/// The numbers that bytes are.
pub(super) fn wide(bytes: &[u8], number: Number) -> Vec<f32> {
    match number {
        Number::F32 => bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect(),
        Number::Bf16 => {
            bytes.as_chunks().0.iter().map(|two| half::bf16::from_le_bytes(*two).to_f32()).collect()
        }
    }
}
