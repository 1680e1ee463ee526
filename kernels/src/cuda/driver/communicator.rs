//! Collectives and messages between GPUs by NCCL. A communicator belongs to the thread that made it.

use super::handles::Stream;
use super::library::Library;
use super::nccl::Nccl;
use crate::cuda::error::DeviceError;
use crate::cuda::launch::{Address, Number};
use cudarc::nccl::sys;
use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::thread::JoinHandle;

/// NCCL's unique id of a communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Id(pub [u8; 128]);

impl Id {
    /// A new id; rank 0 makes it and sends it to the others.
    pub fn new() -> Result<Self, DeviceError> {
        let nccl = loaded()?;
        let mut id = sys::ncclUniqueId { internal: [0; 128] };
        // SAFETY: it writes one of these.
        nccl.done("ncclGetUniqueId", unsafe { (nccl.get_unique_id)(&mut id) })?;
        Ok(Self(id.internal.map(|byte| byte as u8)))
    }
}

fn loaded() -> Result<&'static Nccl, DeviceError> {
    Library::Nccl.require()?;
    Nccl::get().expect("it is there")
}

/// One rank of a group.
#[derive(Debug)]
pub struct Communicator {
    nccl: &'static Nccl,
    /// Null once it was aborted.
    raw: Cell<sys::ncclComm_t>,
    /// The thread that runs `ncclCommAbort`.
    aborting: RefCell<Option<JoinHandle<()>>>,
    /// This rank.
    rank: usize,
    /// How many ranks.
    pub size: usize,
}

impl Communicator {
    /// Joins a group; returns when all its ranks have joined.
    pub fn join(id: Id, rank: usize, size: usize) -> Result<Self, DeviceError> {
        let nccl = loaded()?;
        let id = sys::ncclUniqueId { internal: id.0.map(|byte| byte as std::ffi::c_char) };
        let mut raw = std::ptr::null_mut();
        // SAFETY: it writes one pointer.
        let answer = unsafe { (nccl.comm_init_rank)(&mut raw, size as i32, id, rank as i32) };
        nccl.done(&format!("ncclCommInitRank of rank {rank} of {size}"), answer)?;
        Ok(Self { nccl, raw: Cell::new(raw), aborting: RefCell::default(), rank, size })
    }

    /// Its handle.
    ///
    /// # Errors
    /// `Communicator` if it was aborted.
    fn raw(&self) -> Result<sys::ncclComm_t, DeviceError> {
        match self.raw.get() {
            raw if raw.is_null() => Err(DeviceError::Communicator("the communicator was aborted".into())),
            raw => Ok(raw),
        }
    }

    /// NCCL's asynchronous error: a broken connection, a rank that is gone.
    ///
    /// # Errors
    /// `Communicator` if there is one or it was aborted.
    pub fn check(&self) -> Result<(), DeviceError> {
        let raw = self.raw()?;
        // SAFETY: it was neither aborted nor destroyed.
        unsafe { self.nccl.check(raw) }
    }

    /// Runs one small collective, with two f32 of memory, because NCCL connects ranks inside their first call, which waits for the
    /// others' calls. A pair also sends and receives, which use other connections. Algorithms that NCCL chooses only for large
    /// messages may still connect in a later collective.
    pub fn connect(&self, x: Address, on: &Stream) -> Result<(), DeviceError> {
        if self.size == 2 {
            // SAFETY: it takes nothing.
            self.nccl.done("ncclGroupStart", unsafe { (self.nccl.group_start)() })?;
            self.send(x, 1, Number::F32, self.other(), on)?;
            self.receive(x.after(Number::F32.size()), 1, Number::F32, self.other(), on)?;
            // SAFETY: as above.
            self.nccl.done("ncclGroupEnd", unsafe { (self.nccl.group_end)() })?;
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
        let (raw, sum, number) = (self.raw()?, sys::ncclRedOp_t::ncclSum, kind(number));
        // SAFETY: the caller's address has that many numbers, here and below; the communicator and the stream are alive.
        self.nccl.done("ncclAllReduce", unsafe {
            (self.nccl.all_reduce)(pointer(x), pointer(x), count, number, sum, raw, on.0.cast())
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
        let (raw, sum, number) = (self.raw()?, sys::ncclRedOp_t::ncclSum, kind(number));
        // SAFETY: as above.
        self.nccl.done("ncclReduceScatter", unsafe {
            (self.nccl.reduce_scatter)(pointer(from), pointer(to), count, number, sum, raw, on.0.cast())
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
        let (raw, number) = (self.raw()?, kind(number));
        // SAFETY: as above.
        self.nccl.done("ncclAllGather", unsafe {
            (self.nccl.all_gather)(pointer(from), pointer(to), count, number, raw, on.0.cast())
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
        let (raw, number) = (self.raw()?, kind(number));
        // SAFETY: as above.
        self.nccl.done("ncclSend", unsafe {
            (self.nccl.send)(pointer(x), count, number, to as i32, raw, on.0.cast())
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
        let (raw, number) = (self.raw()?, kind(number));
        // SAFETY: as above.
        self.nccl.done("ncclRecv", unsafe {
            (self.nccl.receive)(pointer(x), count, number, from as i32, raw, on.0.cast())
        })
    }
}

impl Communicator {
    /// Aborts the running collectives without waiting for missing ranks. All later calls fail.
    ///
    /// In a separate thread: the call stops the GPU's kernels at once, but from NCCL 2.26 on it returns only when no CUDA graph with
    /// this communicator's collectives is left, and the caller still holds those.
    pub fn abort(&self) {
        let raw = self.raw.replace(std::ptr::null_mut());
        if raw.is_null() {
            return;
        }
        let (abort, raw) = (self.nccl.comm_abort, raw as usize);
        let give_up = move || {
            // SAFETY: it is aborted only here, since `raw` is null by now. Any thread may do that.
            let _ = unsafe { abort(raw as sys::ncclComm_t) };
        };
        // If no thread starts, it is never aborted and its stream stays busy; waits for the stream have a time limit.
        let thread = std::thread::Builder::new().name("ncclCommAbort".into()).spawn(give_up);
        self.aborting.replace(thread.ok());
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        let raw = self.raw.replace(std::ptr::null_mut());
        if !raw.is_null() {
            // SAFETY: it is destroyed here alone; what is under way on it is waited for.
            let _ = unsafe { (self.nccl.comm_destroy)(raw) };
        }
        // Its graphs are gone by now: they go before the GPU.
        if let Some(aborting) = self.aborting.take() {
            let _ = aborting.join();
        }
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
