//! The memory of all emulators: buffers of this process, with fences around them.

use super::order::History;
use crate::cuda::launch::Address;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes before and behind a buffer that must not change.
pub(super) const FENCE: usize = 1024;

pub(super) struct Buffer {
    /// The buffer with its fences.
    pub(super) lines: Box<[Line]>,
    pub(super) bytes: usize,
    pub(super) history: History,
}

/// Buffers by address, without fences.
pub(super) type Memory = BTreeMap<u64, Buffer>;

/// The memory of all emulators. Kernels run one at a time, since threads and shared memory are static variables of their libraries, and
/// nothing else accesses the memory meanwhile.
static MEMORY: Mutex<Memory> = Mutex::new(BTreeMap::new());

/// Locks the memory. It is consistent even if a check panicked while it was locked.
pub(super) fn memory() -> MutexGuard<'static, Memory> {
    MEMORY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// 256 bytes with that alignment.
#[derive(Clone, Copy)]
#[repr(C, align(256))]
pub(super) struct Line(pub(super) [u8; 256]);

pub(super) fn buffer_mut(memory: &mut Memory, at: Address) -> (u64, &mut Buffer) {
    let (from, buffer) = memory.range_mut(..=at.0).next_back().expect("an address is of a buffer");
    (*from, buffer)
}

/// The bytes at an address.
///
/// # Panics
/// If they are not inside a buffer.
pub(super) fn inside(memory: &Memory, at: Address, bytes: usize) -> &[u8] {
    let (from, buffer) = memory.range(..=at.0).next_back().expect("an address is of a buffer");
    let first = (at.0 - from) as usize;
    assert!(first + bytes <= buffer.bytes, "{bytes} bytes from {first} on of {}", buffer.bytes);
    &bytes_of(&buffer.lines)[FENCE + first..][..bytes]
}

pub(super) fn inside_mut(memory: &mut Memory, at: Address, bytes: usize) -> &mut [u8] {
    let (from, buffer) = buffer_mut(memory, at);
    let first = (at.0 - from) as usize;
    assert!(first + bytes <= buffer.bytes, "{bytes} bytes from {first} on of {}", buffer.bytes);
    // SAFETY: a `Line` is its bytes.
    let all = unsafe {
        std::slice::from_raw_parts_mut(buffer.lines.as_mut_ptr().cast::<u8>(), size_of_val(&*buffer.lines))
    };
    &mut all[FENCE + first..][..bytes]
}

pub(super) fn bytes_of(lines: &[Line]) -> &[u8] {
    // SAFETY: a `Line` is its bytes.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), size_of_val(lines)) }
}
