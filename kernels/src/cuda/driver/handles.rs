//! What the driver hands out beside memory of the GPU and events: streams, pinned memory of the host.

use super::answer::{failed, is_done};
use crate::cuda::error::DeviceError;
use cudarc::driver::result::{self, stream};
use cudarc::driver::sys;
use std::ffi::c_void;

/// Work in order. What is on different streams has no order but by events.
#[derive(Debug)]
pub struct Stream(pub(super) sys::CUstream);

/// Whose kernels a GPU begins first where several streams have some.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Priority {
    /// Those of streams that compute come last.
    Computes,
    /// A collective that has begun on other GPUs should not wait behind a kernel that fills this one.
    Communicates,
}

impl Stream {
    /// A new one, on the GPU of this thread.
    pub(super) fn new(priority: Priority) -> Result<Self, DeviceError> {
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: it writes two numbers. Greater priorities are smaller numbers; without any, both are 0.
        unsafe { sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest) }
            .result()
            .map_err(|error| failed("cuCtxGetStreamPriorityRange", error))?;
        let number = if priority == Priority::Computes { least } else { greatest };
        // It does not wait for the default stream, nor that for it.
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        let mut made = std::ptr::null_mut();
        // SAFETY: it writes one pointer.
        unsafe { sys::cuStreamCreateWithPriority(&mut made, flags, number) }
            .result()
            .map_err(|error| failed("cuStreamCreateWithPriority", error))?;
        Ok(Self(made))
    }

    /// Whether all is done that is on it.
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

/// Host memory that the GPU copies from and to by itself.
#[derive(Debug)]
pub struct Pinned {
    pub(super) at: *mut u8,
    pub(super) bytes: usize,
}

impl Pinned {
    /// Its bytes. Whoever copies into it on a stream waits for the stream before looking.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: it was allocated with that size and is borrowed as a whole.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: it is freed here alone.
        let _ = unsafe { result::free_host(self.at.cast::<c_void>()) };
    }
}
