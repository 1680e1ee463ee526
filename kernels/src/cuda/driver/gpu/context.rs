//! The contexts of the GPUs that this process uses, and peer access between them.
//!
//! A copy between two GPUs is direct only if peer access is enabled; else it goes through the host. No context is made on GPUs that
//! nobody opens, since contexts take memory.

use super::super::answer::OrFailed;
use crate::cuda::error::DeviceError;
use cudarc::driver::result::{self, primary_ctx};
use cudarc::driver::sys;
use std::sync::{Mutex, PoisonError};

/// The GPUs that were opened, with their contexts.
static OPEN: Mutex<Vec<(sys::CUdevice, usize)>> = Mutex::new(Vec::new());

/// Makes a GPU's primary context this thread's, and enables peer access with all GPUs opened before, if the machine allows it.
///
/// The context is never released: the last release destroys all that was made in it, and a rank that still holds an event, a graph or
/// pinned memory would destroy that a second time.
pub(super) fn enter(device: sys::CUdevice) -> Result<(), DeviceError> {
    // SAFETY: the device is one that the driver named.
    let context = unsafe { primary_ctx::retain(device) }.or_failed("cuDevicePrimaryCtxRetain")?;
    current(context)?;
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if open.iter().any(|(other, _)| *other == device) {
        return Ok(());
    }
    for (other, theirs) in open.iter() {
        let theirs = *theirs as sys::CUcontext;
        reach(device, *other, theirs)?;
        current(theirs)?;
        let back = reach(*other, device, context);
        current(context)?;
        back?;
    }
    open.push((device, context as usize));
    Ok(())
}

/// Enables access of the current GPU to another one's memory, if the machine allows it.
fn reach(device: sys::CUdevice, other: sys::CUdevice, theirs: sys::CUcontext) -> Result<(), DeviceError> {
    let mut can = 0;
    // SAFETY: it writes one number, of devices that the driver named.
    unsafe { sys::cuDeviceCanAccessPeer(&mut can, device, other) }
        .result()
        .or_failed("cuDeviceCanAccessPeer")?;
    if can == 0 {
        return Ok(());
    }
    // SAFETY: as below.
    match unsafe { sys::cuCtxEnablePeerAccess(theirs, 0) } {
        // A library may have enabled it.
        sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
        answer => answer.result().or_failed("cuCtxEnablePeerAccess"),
    }
}

fn current(context: sys::CUcontext) -> Result<(), DeviceError> {
    // SAFETY: contexts that were retained stay.
    unsafe { result::ctx::set_current(context) }.or_failed("cuCtxSetCurrent")
}
