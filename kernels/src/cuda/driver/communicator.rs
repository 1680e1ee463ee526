//! Collectives and messages among GPUs by NCCL. A communicator belongs to the thread that made it.

use super::failed;
use super::handles::Stream;
use super::library::Library;
use crate::cuda::launch::{Address, DeviceError, Number};
use cudarc::nccl::{result, sys};
use std::ffi::c_void;

/// What the ranks of a communicator know each other by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Id(pub [u8; 128]);

impl Id {
    /// A new one; rank 0 makes it and sends it to the others.
    pub fn new() -> Result<Self, DeviceError> {
        Library::Nccl.require()?;
        let made = result::get_uniqueid().map_err(|error| failed("ncclGetUniqueId", error))?;
        Ok(Self(made.internal.map(|byte| byte as u8)))
    }
}

/// One rank of a group.
#[derive(Debug)]
pub struct Communicator {
    raw: sys::ncclComm_t,
    /// This one.
    rank: usize,
    /// Ranks.
    pub size: usize,
}

impl Communicator {
    /// Joins a group; returns when all its ranks have.
    pub fn join(id: Id, rank: usize, size: usize) -> Result<Self, DeviceError> {
        Library::Nccl.require()?;
        let id = sys::ncclUniqueId { internal: id.0.map(|byte| byte as std::ffi::c_char) };
        let mut raw = std::ptr::null_mut();
        // SAFETY: it writes one pointer.
        unsafe { result::comm_init_rank(&mut raw, size as i32, id, rank as i32) }
            .map_err(|error| failed(&format!("ncclCommInitRank of rank {rank} of {size}"), error))?;
        Ok(Self { raw, rank, size })
    }

    /// Lets all ranks meet once, with two f32 of memory, since NCCL connects them only when they first communicate: inside that
    /// call, and by waiting for the others' calls. A pair also sends and receives, for which it has other connections. What NCCL
    /// does otherwise for many numbers than for one may still be connected in a later collective, which all members come to.
    pub fn connect(&self, x: Address, on: &Stream) -> Result<(), DeviceError> {
        if self.size == 2 {
            done("ncclGroupStart", result::group_start())?;
            self.send(x, 1, Number::F32, self.other(), on)?;
            self.receive(x.after(Number::F32.size()), 1, Number::F32, self.other(), on)?;
            done("ncclGroupEnd", result::group_end())?;
        }
        self.all_reduce(x, 1, Number::F32, on)
    }

    /// The other rank of two.
    pub fn other(&self) -> usize {
        1 - self.rank
    }

    /// The sum over ranks, in place.
    pub fn all_reduce(
        &self,
        x: Address,
        count: usize,
        number: Number,
        on: &Stream,
    ) -> Result<(), DeviceError> {
        let sum = sys::ncclRedOp_t::ncclSum;
        // SAFETY: the caller's address has that many numbers, here and below.
        done("ncclAllReduce", unsafe {
            result::all_reduce(pointer(x), pointer(x), count, kind(number), sum, self.raw, on.0.cast())
        })
    }

    /// Each rank's share of the sum; `count` is a share's.
    pub fn reduce_scatter(
        &self,
        [from, to]: [Address; 2],
        count: usize,
        number: Number,
        on: &Stream,
    ) -> Result<(), DeviceError> {
        let sum = sys::ncclRedOp_t::ncclSum;
        // SAFETY: as above.
        done("ncclReduceScatter", unsafe {
            result::reduce_scatter(
                pointer(from),
                pointer(to),
                count,
                kind(number),
                sum,
                self.raw,
                on.0.cast(),
            )
        })
    }

    /// All ranks' shares side by side; `count` is a share's.
    pub fn all_gather(
        &self,
        [from, to]: [Address; 2],
        count: usize,
        number: Number,
        on: &Stream,
    ) -> Result<(), DeviceError> {
        // SAFETY: as above.
        done("ncclAllGather", unsafe {
            result::all_gather(pointer(from), pointer(to), count, kind(number), self.raw, on.0.cast())
        })
    }

    /// Sends to a rank, which receives as much.
    pub fn send(
        &self,
        x: Address,
        count: usize,
        number: Number,
        to: usize,
        on: &Stream,
    ) -> Result<(), DeviceError> {
        // SAFETY: as above.
        done("ncclSend", unsafe {
            result::send(pointer(x), count, kind(number), to as i32, self.raw, on.0.cast())
        })
    }

    /// Receives what a rank sends.
    pub fn receive(
        &self,
        x: Address,
        count: usize,
        number: Number,
        from: usize,
        on: &Stream,
    ) -> Result<(), DeviceError> {
        // SAFETY: as above.
        done("ncclRecv", unsafe {
            result::recv(pointer(x), count, kind(number), from as i32, self.raw, on.0.cast())
        })
    }
}

impl Communicator {
    /// Ends what is under way without waiting for members that do not come.
    pub fn abort(self) {
        let raw = std::mem::ManuallyDrop::new(self).raw;
        // SAFETY: it is given up here alone.
        let _ = unsafe { result::comm_abort(raw) };
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // SAFETY: it is destroyed here alone; what is under way on it is waited for.
        let _ = unsafe { result::comm_destroy(self.raw) };
    }
}

fn pointer(address: Address) -> *mut c_void {
    address.0 as *mut c_void
}

fn kind(number: Number) -> sys::ncclDataType_t {
    match number {
        Number::F32 => sys::ncclDataType_t::ncclFloat32,
        Number::Bf16 => sys::ncclDataType_t::ncclBfloat16,
    }
}

fn done(call: &str, answer: Result<result::NcclStatus, result::NcclError>) -> Result<(), DeviceError> {
    answer.map(drop).map_err(|error| failed(call, error.0))
}
