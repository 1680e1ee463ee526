//! GPUs that reach each other's memory: those that threads of this process have open.
//!
//! A copy between two GPUs goes from one to the other by itself only where either was allowed to reach the other; else it
//! goes by way of the host. GPUs that nobody has open are left alone, since their contexts take memory.

use super::failed;
use crate::cuda::launch::DeviceError;
use cudarc::driver::{result, sys};
use std::sync::{Mutex, PoisonError};

/// The GPUs that are open with their contexts, as often as they are.
static OPEN: Mutex<Vec<(sys::CUdevice, usize)>> = Mutex::new(Vec::new());

/// Lets a GPU and all that are open reach each other, as far as they can; its context is current.
pub(super) fn enter(device: sys::CUdevice, context: sys::CUcontext) -> Result<(), DeviceError> {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    for (other, theirs) in open.iter().filter(|(other, _)| *other != device) {
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

/// One of those that had it open closes it.
pub(super) fn leave(device: sys::CUdevice) {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(at) = open.iter().position(|(other, _)| *other == device) {
        open.swap_remove(at);
    }
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
    // SAFETY: the context is that of a GPU that is open.
    match unsafe { sys::cuCtxEnablePeerAccess(theirs, 0) } {
        // Another rank on this GPU has asked for it.
        sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
        answer => answer.result().map_err(|error| failed("cuCtxEnablePeerAccess", error)),
    }
}

fn current(context: sys::CUcontext) -> Result<(), DeviceError> {
    // SAFETY: as above.
    unsafe { result::ctx::set_current(context) }.map_err(|error| failed("cuCtxSetCurrent", error))
}
