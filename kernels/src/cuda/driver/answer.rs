//! What the driver and NVIDIA's libraries answer to a call.

use crate::cuda::error::DeviceError;
use cudarc::driver::sys;

/// The error of a failed call, with the call's name.
pub(super) fn failed(call: &str, message: impl std::fmt::Debug) -> DeviceError {
    DeviceError::Call { call: call.into(), message: format!("{message:?}") }
}

/// Names the call in its error.
pub(super) trait OrFailed<T> {
    fn or_failed(self, call: &str) -> Result<T, DeviceError>;
}

impl<T, E: std::fmt::Debug> OrFailed<T> for Result<T, E> {
    fn or_failed(self, call: &str) -> Result<T, DeviceError> {
        self.map_err(|error| failed(call, error))
    }
}

/// Whether the work that a query asked about is done.
pub(super) fn is_done(call: &str, answer: sys::CUresult) -> Result<bool, DeviceError> {
    match answer {
        sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        answer => answer.result().map(|()| true).or_failed(call),
    }
}
