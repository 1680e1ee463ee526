//! What the driver hands out beside memory of the GPU: streams, events, pinned memory of the host.

use super::failed;
use crate::cuda::launch::DeviceError;
use cudarc::driver::result::{self, event, stream};
use cudarc::driver::sys;
use std::ffi::c_void;

/// Work in order. What is on different streams has no order but by events.
#[derive(Debug)]
pub struct Stream(pub(super) sys::CUstream);

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: it is destroyed here alone. Work on it goes on.
        let _ = unsafe { stream::destroy(self.0) };
    }
}

/// A moment on a stream.
#[derive(Debug)]
pub struct Event(pub(super) sys::CUevent);

impl Event {
    /// On no stream yet: whoever waits for it goes on.
    pub(super) fn new(flags: sys::CUevent_flags) -> Result<Self, DeviceError> {
        event::create(flags).map(Self).map_err(|error| failed("cuEventCreate", error))
    }

    /// Makes it the moment when all is done that is on a stream now.
    pub(super) fn record(&self, on: &Stream) -> Result<(), DeviceError> {
        // SAFETY: both are alive.
        unsafe { event::record(self.0, on.0) }.map_err(|error| failed("cuEventRecord", error))
    }

    /// Waits for it.
    pub(super) fn wait(&self) -> Result<(), DeviceError> {
        // SAFETY: it is alive.
        unsafe { event::synchronize(self.0) }.map_err(|error| failed("cuEventSynchronize", error))
    }

    /// Milliseconds from an earlier one to this one, both of which are waited for.
    pub fn milliseconds_since(&self, earlier: &Event) -> Result<f32, DeviceError> {
        self.wait()?;
        // SAFETY: both are events that nobody destroyed.
        unsafe { event::elapsed(earlier.0, self.0) }.map_err(|error| failed("cuEventElapsedTime", error))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: it is destroyed here alone.
        let _ = unsafe { event::destroy(self.0) };
    }
}

// SAFETY: events are the driver's, whose functions any thread may call.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

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
