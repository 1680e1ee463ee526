//! Streams and pinned memory of the host.

use super::answer::{OrFailed, is_done};
use crate::cuda::error::DeviceError;
use cudarc::driver::result::{self, stream};
use cudarc::driver::sys;
use std::ffi::c_void;

/// A queue of work in order. Only events order work of different streams.
#[derive(Debug)]
pub struct Stream(pub(super) sys::CUstream);

/// Which stream's kernels a GPU starts first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Priority {
    /// Lowest: kernels that compute.
    Computes,
    /// Highest: a collective that runs on other GPUs should not wait behind a kernel that fills this one.
    Communicates,
}

impl Stream {
    /// A new one, on the GPU of this thread.
    pub(super) fn new(priority: Priority) -> Result<Self, DeviceError> {
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: it writes two numbers. Greater priorities are smaller numbers; without any, both are 0.
        unsafe { sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest) }
            .result()
            .or_failed("cuCtxGetStreamPriorityRange")?;
        let number = if priority == Priority::Computes { least } else { greatest };
        // No implicit order with the default stream.
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        let mut made = std::ptr::null_mut();
        // SAFETY: it writes one pointer.
        unsafe { sys::cuStreamCreateWithPriority(&mut made, flags, number) }
            .result()
            .or_failed("cuStreamCreateWithPriority")?;
        Ok(Self(made))
    }

    /// Whether all its work is done.
    pub(super) fn is_idle(&self) -> Result<bool, DeviceError> {
        // SAFETY: it is alive.
        is_done("cuStreamQuery", unsafe { sys::cuStreamQuery(self.0) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: it is destroyed here alone. Work on it goes on.
        let _ = unsafe { stream::destroy(self.0) };
    }
}

/// Page-locked host memory, which the GPU copies from and to by itself.
#[derive(Debug)]
pub struct Pinned {
    pub(super) at: *mut u8,
    pub(super) bytes: usize,
}

impl Pinned {
    /// Its bytes. Whoever copies into it on a stream waits for the stream before looking.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: it was allocated with that size, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: it is freed here alone.
        let _ = unsafe { result::free_host(self.at.cast::<c_void>()) };
    }
}
