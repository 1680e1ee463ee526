//! EventPool, which are used again and again: a step records thousands, and each would be made and destroyed by the driver.

use super::answer::{failed, is_done};
use super::handles::Stream;
use crate::cuda::error::DeviceError;
use cudarc::driver::result::{event, stream};
use cudarc::driver::sys;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A pool of events of one kind.
#[derive(Debug, Clone)]
pub(super) struct EventPool(Arc<Pool>);

#[derive(Debug)]
struct Pool {
    flags: sys::CUevent_flags,
    /// Those that nobody holds.
    free: Mutex<Vec<Raw>>,
}

impl Pool {
    fn free(&self) -> MutexGuard<'_, Vec<Raw>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An event of the driver's.
#[derive(Debug)]
struct Raw(sys::CUevent);

// SAFETY: events are the driver's, whose functions any thread may call.
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: it is destroyed here alone.
        let _ = unsafe { event::destroy(self.0) };
    }
}

impl EventPool {
    /// None yet; those to come have such flags.
    pub fn new(flags: sys::CUevent_flags) -> Self {
        Self(Arc::new(Pool { flags, free: Mutex::default() }))
    }

    /// An event that is over when all is done that is on a stream now.
    ///
    /// It may have been recorded before, and others may still wait for it as it was then: a wait is for what the event stood for
    /// when the wait was enqueued (CUDA driver API, cuStreamWaitEvent).
    pub fn record(&self, on: &Stream) -> Result<PooledEvent, DeviceError> {
        let free = self.0.free().pop();
        let raw = match free {
            Some(raw) => raw,
            None => Raw(event::create(self.0.flags).map_err(|error| failed("cuEventCreate", error))?),
        };
        // SAFETY: both are alive.
        unsafe { event::record(raw.0, on.0) }.map_err(|error| failed("cuEventRecord", error))?;
        Ok(PooledEvent { raw: Some(raw), pool: Arc::clone(&self.0) })
    }
}

/// A recorded event. It goes back to its pool.
#[derive(Debug)]
pub(super) struct PooledEvent {
    /// `None` only while it is dropped.
    raw: Option<Raw>,
    pool: Arc<Pool>,
}

impl PooledEvent {
    fn raw(&self) -> sys::CUevent {
        self.raw.as_ref().expect("it is not dropped yet").0
    }

    /// Whether all is done that it stands for.
    pub fn is_over(&self) -> Result<bool, DeviceError> {
        // SAFETY: it is alive.
        is_done("cuEventQuery", unsafe { sys::cuEventQuery(self.raw()) })
    }

    /// Lets what comes next on a stream wait for it.
    pub fn hold_back(&self, on: &Stream) -> Result<(), DeviceError> {
        // SAFETY: both are alive; the driver keeps what it needs of the event.
        unsafe { stream::wait_event(on.0, self.raw(), sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT) }
            .map_err(|error| failed("cuStreamWaitEvent", error))
    }

    /// Milliseconds from an earlier one to this one, of a pool with times. Both are over.
    pub fn milliseconds_since(&self, earlier: &PooledEvent) -> Result<f32, DeviceError> {
        // SAFETY: both are alive.
        unsafe { event::elapsed(earlier.raw(), self.raw()) }
            .map_err(|error| failed("cuEventElapsedTime", error))
    }
}

impl Drop for PooledEvent {
    fn drop(&mut self) {
        let raw = self.raw.take();
        self.pool.free().extend(raw);
    }
}
