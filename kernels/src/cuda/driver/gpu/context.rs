//! The contexts of the GPUs that this process uses, and that they reach each other's memory.
//!
//! A copy between two GPUs goes from one to the other by itself only where either was allowed to reach the other; else it
//! goes by way of the host. GPUs that nobody opens are left alone, since their contexts take memory.

use super::super::answer::failed;
use crate::cuda::error::DeviceError;
use cudarc::driver::result::{self, primary_ctx};
use cudarc::driver::sys;
use std::sync::{Mutex, PoisonError};

/// The GPUs that were opened, with their contexts.
static OPEN: Mutex<Vec<(sys::CUdevice, usize)>> = Mutex::new(Vec::new());

/// Makes a GPU's primary context this thread's, and lets it and all that were opened before reach each other, as far as they can.
///
/// It is never given back: the end of the process does that. With the last use of a context all goes that was made in it, and
/// whoever still holds an event, a graph or pinned memory then, another rank among them, would destroy it a second time.
pub(super) fn enter(device: sys::CUdevice) -> Result<(), DeviceError> {
    // SAFETY: the device is one that the driver named.
    let context =
        unsafe { primary_ctx::retain(device) }.map_err(|error| failed("cuDevicePrimaryCtxRetain", error))?;
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

/// Lets the current GPU reach the memory of another one, if the machine joins them.
fn reach(own: sys::CUdevice, other: sys::CUdevice, theirs: sys::CUcontext) -> Result<(), DeviceError> {
    let mut can = 0;
    // SAFETY: it writes one number, of devices that the driver named.
    unsafe { sys::cuDeviceCanAccessPeer(&mut can, own, other) }
        .result()
        .map_err(|error| failed("cuDeviceCanAccessPeer", error))?;
    if can == 0 {
        return Ok(());
    }
    // SAFETY: as below.
    match unsafe { sys::cuCtxEnablePeerAccess(theirs, 0) } {
        // A library may have asked for it.
        sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
        answer => answer.result().map_err(|error| failed("cuCtxEnablePeerAccess", error)),
    }
}

fn current(context: sys::CUcontext) -> Result<(), DeviceError> {
    // SAFETY: contexts that were retained stay.
    unsafe { result::ctx::set_current(context) }.map_err(|error| failed("cuCtxSetCurrent", error))
}
