//! CUDA graphs: work captured once and launched by one call.

use super::answer::OrFailed;
use super::handles::Stream;
use crate::cuda::error::DeviceError;
use cudarc::driver::result::{graph, stream};
use cudarc::driver::sys;

/// An instantiated graph.
#[derive(Debug)]
pub struct Graph {
    ready: sys::CUgraphExec,
    /// Declared after `ready`, so that it is dropped later.
    _captured: Captured,
}

#[derive(Debug)]
struct Captured(sys::CUgraph);

impl Graph {
    /// Captures what `work` enqueues on a stream that is alive, and on streams that wait for it, without running it. All kernels must
    /// be loaded before: compiling and loading are not allowed during capture.
    pub(super) fn capture(
        on: sys::CUstream,
        work: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<Self, DeviceError> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive.
        unsafe { stream::begin_capture(on, mode) }.or_failed("cuStreamBeginCapture")?;
        let worked = work();
        // SAFETY: recording began above; it ends also where the work failed.
        let captured = unsafe { stream::end_capture(on) }.map(Captured);
        worked?;
        let captured = captured.or_failed("cuStreamEndCapture")?;
        // SAFETY: it was just captured.
        let ready = unsafe { graph::instantiate(captured.0, sys::CUgraphInstantiate_flags(0)) }
            .or_failed("cuGraphInstantiate")?;
        Ok(Self { ready, _captured: captured })
    }

    /// Enqueues it on a stream.
    pub fn launch(&self, on: &Stream) -> Result<(), DeviceError> {
        // SAFETY: both are alive.
        unsafe { graph::launch(self.ready, on.0) }.or_failed("cuGraphLaunch")
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
