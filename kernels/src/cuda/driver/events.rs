//! Pools of events: a step records thousands, and creating and destroying each by the driver takes time.

use super::answer::{OrFailed, is_done};
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
    /// Events for reuse.
    free: Mutex<Vec<Raw>>,
}

impl Pool {
    fn free(&self) -> MutexGuard<'_, Vec<Raw>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A CUDA event.
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
    /// An empty pool. Its events are created with these flags.
    pub fn new(flags: sys::CUevent_flags) -> Self {
        Self(Arc::new(Pool { flags, free: Mutex::default() }))
    }

    /// Records an event behind the work of a stream so far.
    ///
    /// Reuse is safe while streams still wait for an earlier recording of the event: a wait is for the event's state when the wait
    /// was enqueued (CUDA driver API, cuStreamWaitEvent).
    pub fn record(&self, on: &Stream) -> Result<PooledEvent, DeviceError> {
        let free = self.0.free().pop();
        let raw = match free {
            Some(raw) => raw,
            None => Raw(event::create(self.0.flags).or_failed("cuEventCreate")?),
        };
        // SAFETY: both are alive.
        unsafe { event::record(raw.0, on.0) }.or_failed("cuEventRecord")?;
        Ok(PooledEvent { raw: Some(raw), pool: Arc::clone(&self.0) })
    }
}

/// A recorded event, which returns to its pool on drop.
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

    /// Whether the work before it is done.
    pub fn is_over(&self) -> Result<bool, DeviceError> {
        // SAFETY: it is alive.
        is_done("cuEventQuery", unsafe { sys::cuEventQuery(self.raw()) })
    }

    /// Lets a stream wait for it.
    pub fn hold_back(&self, on: &Stream) -> Result<(), DeviceError> {
        // SAFETY: both are alive; the driver keeps what it needs of the event.
        unsafe { stream::wait_event(on.0, self.raw(), sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT) }
            .or_failed("cuStreamWaitEvent")
    }

    /// Milliseconds from an earlier event to this one. Both are over, and their pool records times.
    pub fn milliseconds_since(&self, earlier: &PooledEvent) -> Result<f32, DeviceError> {
        // SAFETY: both are alive.
        unsafe { event::elapsed(earlier.raw(), self.raw()) }.or_failed("cuEventElapsedTime")
    }
}

impl Drop for PooledEvent {
    fn drop(&mut self) {
        let raw = self.raw.take();
        self.pool.free().extend(raw);
    }
}
