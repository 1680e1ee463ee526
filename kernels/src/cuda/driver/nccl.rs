//! NCCL's functions, looked up by name in the first library that is found.
//!
//! cudarc's table is not used: it looks for `libnccl.so`, and NCCL's packages install `libnccl.so.2` alone. Its types are.

use super::answer::failed;
use super::places::Places;
use crate::cuda::error::DeviceError;
use cudarc::nccl::sys::{cudaStream_t, ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclUniqueId};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

/// Every function's result: 0 or an error. Not an enum, since later versions have more errors.
pub(super) type Answer = u32;

/// ncclSuccess.
const SUCCESS: Answer = 0;
/// ncclInProgress: not an error.
const IN_PROGRESS: Answer = 7;

/// Names of the library, the first one first.
pub(super) const FILES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

macro_rules! functions {
    ($($field:ident: $name:literal ($($argument:ty),*) -> $answer:ty;)*) => {
        /// The functions that are called here.
        #[derive(Debug)]
        pub(super) struct Nccl {
            $(pub $field: unsafe extern "C" fn($($argument),*) -> $answer,)*
            /// Behind its functions, which it must outlive.
            _library: libloading::Library,
        }

        impl Nccl {
            /// Looks the functions up in a library.
            fn of(library: libloading::Library) -> Result<Self, DeviceError> {
                $(
                    // SAFETY: NCCL's function of that name has that signature in all versions 2.x from 2.14 on.
                    let $field = *unsafe { library.get($name) }.map_err(|error| missing($name, &error))?;
                )*
                Ok(Self { $($field,)* _library: library })
            }
        }
    };
}

functions! {
    get_version: b"ncclGetVersion" (*mut c_int) -> Answer;
    get_unique_id: b"ncclGetUniqueId" (*mut ncclUniqueId) -> Answer;
    get_error_string: b"ncclGetErrorString" (Answer) -> *const c_char;
    get_last_error: b"ncclGetLastError" (ncclComm_t) -> *const c_char;
    comm_init_rank: b"ncclCommInitRank" (*mut ncclComm_t, c_int, ncclUniqueId, c_int) -> Answer;
    comm_destroy: b"ncclCommDestroy" (ncclComm_t) -> Answer;
    comm_abort: b"ncclCommAbort" (ncclComm_t) -> Answer;
    comm_get_async_error: b"ncclCommGetAsyncError" (ncclComm_t, *mut Answer) -> Answer;
    group_start: b"ncclGroupStart" () -> Answer;
    group_end: b"ncclGroupEnd" () -> Answer;
    all_reduce: b"ncclAllReduce"
        (*const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t) -> Answer;
    reduce_scatter: b"ncclReduceScatter"
        (*const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t) -> Answer;
    all_gather: b"ncclAllGather"
        (*const c_void, *mut c_void, usize, ncclDataType_t, ncclComm_t, cudaStream_t) -> Answer;
    send: b"ncclSend" (*const c_void, usize, ncclDataType_t, c_int, ncclComm_t, cudaStream_t) -> Answer;
    receive: b"ncclRecv" (*mut c_void, usize, ncclDataType_t, c_int, ncclComm_t, cudaStream_t) -> Answer;
}

fn missing(name: &[u8], error: &libloading::Error) -> DeviceError {
    failed("libnccl.so.2", format_args!("it has no {}: {error}", String::from_utf8_lossy(name)))
}

impl Nccl {
    /// The process's library, which stays loaded; `None` if it is not installed.
    pub fn get() -> Option<Result<&'static Self, DeviceError>> {
        static LOADED: OnceLock<Option<Result<Nccl, DeviceError>>> = OnceLock::new();
        let loaded = LOADED.get_or_init(|| Places::of_process().open(&FILES).map(Self::of)).as_ref()?;
        Some(loaded.as_ref().map_err(DeviceError::clone))
    }

    /// 22703 is 2.27.3.
    pub fn version(&self) -> Option<usize> {
        let mut version = 0;
        // SAFETY: it writes one number.
        let answer = unsafe { (self.get_version)(&mut version) };
        (answer == SUCCESS).then_some(version as usize)
    }

    /// The result of a call.
    ///
    /// # Errors
    /// `Call` with NCCL's message if it failed.
    pub fn done(&self, call: &str, answer: Answer) -> Result<(), DeviceError> {
        match answer {
            SUCCESS | IN_PROGRESS => Ok(()),
            _ => Err(failed(call, format_args!("{}", self.words(answer)))),
        }
    }

    /// NCCL's message for an error.
    fn words(&self, answer: Answer) -> String {
        // SAFETY: both give texts that stay until NCCL is called again, and take no communicator into account.
        let texts = unsafe { [(self.get_error_string)(answer), (self.get_last_error)(std::ptr::null_mut())] };
        let texts = texts.into_iter().filter(|text| !text.is_null()).map(|text| {
            // SAFETY: it ends with a zero.
            let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
            text.split_whitespace().collect::<Vec<_>>().join(" ")
        });
        texts.filter(|text| !text.is_empty()).collect::<Vec<_>>().join(": ")
    }

    /// A communicator's asynchronous error.
    ///
    /// # Errors
    /// `Communicator` if there is one.
    ///
    /// # Safety
    /// The communicator is alive.
    pub unsafe fn check(&self, communicator: ncclComm_t) -> Result<(), DeviceError> {
        let mut found = SUCCESS;
        // SAFETY: the caller's promise; it writes one number.
        let answer = unsafe { (self.comm_get_async_error)(communicator, &mut found) };
        self.done("ncclCommGetAsyncError", answer)?;
        match found {
            SUCCESS | IN_PROGRESS => Ok(()),
            _ => Err(DeviceError::Communicator(self.words(found))),
        }
    }
}
