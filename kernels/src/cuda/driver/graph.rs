//! Launches that were captured once and are started together: one call for a whole step.

use super::answer::failed;
use super::handles::Stream;
use crate::cuda::error::DeviceError;
use cudarc::driver::result::{graph, stream};
use cudarc::driver::sys;

/// What was captured.
#[derive(Debug)]
pub struct Graph {
    ready: sys::CUgraphExec,
    /// Behind what was made of it.
    _captured: Captured,
}

#[derive(Debug)]
struct Captured(sys::CUgraph);

impl Graph {
    /// Records what `work` puts on a stream that is alive, and on others that wait for it, without running it. All kernels must have
    /// run before: compiling and loading are not allowed while recording.
    pub(super) fn capture(
        on: sys::CUstream,
        work: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<Self, DeviceError> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive.
        unsafe { stream::begin_capture(on, mode) }.map_err(|error| failed("cuStreamBeginCapture", error))?;
        let worked = work();
        // SAFETY: recording began above; it ends also where the work failed.
        let captured = unsafe { stream::end_capture(on) }.map(Captured);
        worked?;
        let captured = captured.map_err(|error| failed("cuStreamEndCapture", error))?;
        // SAFETY: it was just captured.
        let ready = unsafe { graph::instantiate(captured.0, sys::CUgraphInstantiate_flags(0)) }
            .map_err(|error| failed("cuGraphInstantiate", error))?;
        Ok(Self { ready, _captured: captured })
    }

    /// Puts all of it on a stream.
    pub fn launch(&self, on: &Stream) -> Result<(), DeviceError> {
        // SAFETY: both are alive.
        unsafe { graph::launch(self.ready, on.0) }.map_err(|error| failed("cuGraphLaunch", error))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: it is destroyed here alone.
        let _ = unsafe { graph::exec_destroy(self.ready) };
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        // Work that failed may leave none.
        if !self.0.is_null() {
            // SAFETY: it is destroyed here alone.
            let _ = unsafe { graph::destroy(self.0) };
        }
    }
}
