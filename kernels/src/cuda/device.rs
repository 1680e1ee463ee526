//! The device trait. The driver's GPU, the emulator, and the recorder around either implement it.

use super::attention::{Attention, Pass};
use super::collective::{Collective, GroupName, Membership};
use super::error::DeviceError;
use super::fp8::{Fp8Operands, Fp8Product};
use super::launch::{Address, Launch, Multiprocessors, Number};
use super::product::{Operands, Product};
use super::recorded::Recorded;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A point in a stream's work, as a CUDA event marks it. Any stream of the process may wait for it.
#[derive(Clone)]
pub struct Event(Arc<dyn Any + Send + Sync>);

impl Event {
    pub(super) fn new(of: impl Any + Send + Sync) -> Self {
        Self(Arc::new(of))
    }

    pub(super) fn of<T: Any>(&self) -> &T {
        self.0.downcast_ref().expect("devices wait for events of the same kind")
    }

    /// Whether both are the same recorded event, not two events at the same point.
    pub(super) fn is(&self, other: &Event) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("Event")
    }
}

/// Recorded calls that the device which captured them enqueues by one call: a CUDA graph, or the emulator's list.
pub struct Graph(Box<dyn Any>);

impl Graph {
    pub(super) fn new(of: impl Any) -> Self {
        Self(Box::new(of))
    }

    pub(super) fn of<T: Any>(&self) -> &T {
        self.0.downcast_ref().expect("a graph is replayed by the device that captured it")
    }
}

/// Name, versions and size of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct About {
    /// As its driver names it.
    pub name: String,
    /// The name with compute capability and clock, as messages show it.
    pub summary: String,
    /// Versions of its driver and libraries, as messages show them.
    pub versions: String,
    /// Compute capability: 9.0 is (9, 0).
    pub capability: (i32, i32),
    /// Multiprocessors.
    pub multiprocessors: usize,
    /// Bytes of memory.
    pub memory: usize,
}

/// How much of a GPU's memory is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InUse {
    /// Bytes of the arena's segments: allocated memory and what is free in them.
    pub reserved: usize,
    /// Bytes that the driver counts as used: the arena, contexts, kernels, libraries, and other processes on the GPU.
    pub on_gpu: usize,
}

/// Set by another thread when the run is over for all its ranks.
pub type StopFlag = Arc<AtomicBool>;

/// Memory, streams, kernels and matrix products. A stream does its work in the order of the calls; only events order work of
/// different streams. Calls enqueue work and may return before it is done, except for `read`, which waits for its stream, and
/// `finish`.
pub trait Device {
    /// Selects the stream of the calls that follow; at first it is stream 0. Stream 0 computes. Kernels of the other streams, which
    /// communicate, have the higher priority on a GPU.
    fn select(&mut self, stream: usize) -> Result<(), DeviceError>;

    /// Records an event behind all work of the selected stream so far.
    fn record_event(&mut self) -> Result<Event, DeviceError>;

    /// Lets the selected stream wait for an event, which may be of another device of the process.
    fn wait(&mut self, event: &Event) -> Result<(), DeviceError>;

    /// New memory, 256-byte aligned, with undefined content.
    fn allocate(&mut self, bytes: usize) -> Result<Address, DeviceError>;

    /// New pinned memory of the host, 256-byte aligned, which `copy` may read and write.
    fn allocate_on_host(&mut self, bytes: usize) -> Result<Address, DeviceError>;

    /// Lets the host wait for an event.
    fn wait_on_host(&mut self, event: &Event) -> Result<(), DeviceError>;

    /// Gives `work` the bytes at an address of `allocate_on_host`. The caller has waited for all copies to and from them.
    fn on_host(
        &mut self,
        at: Address,
        bytes: usize,
        work: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), DeviceError>;

    /// Copies the host's bytes to the device. They have been read when it returns.
    fn write(&mut self, to: Address, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Copies bytes to the host behind all work of the selected stream, and waits for them.
    fn read(&mut self, from: Address, bytes: &mut [u8]) -> Result<(), DeviceError>;

    /// Copies within its memory, from the memory of another device of the process, or from or to its pinned memory of the host.
    fn copy(&mut self, to: Address, from: Address, bytes: usize) -> Result<(), DeviceError>;

    /// Writes zeros.
    fn zero(&mut self, at: Address, bytes: usize) -> Result<(), DeviceError>;

    /// Runs a kernel.
    fn launch(&mut self, launch: &Launch) -> Result<(), DeviceError>;

    /// Multiplies matrices.
    fn multiply(&mut self, product: Product, at: Operands) -> Result<(), DeviceError>;

    /// Whether it multiplies fp8 matrices: GPUs do from compute capability 8.9 on.
    fn supports_fp8(&self) -> bool;

    /// Multiplies fp8 matrices.
    fn multiply_fp8(&mut self, product: Fp8Product, at: Fp8Operands) -> Result<(), DeviceError>;

    /// Bytes of workspace that a library's fused kernel needs for an attention in bf16.
    ///
    /// # Errors
    /// The reason if the library has no such kernel.
    fn fuses(&mut self, attention: &Attention, pass: Pass) -> Result<usize, String>;

    /// Runs the library's fused kernel with the workspace that `fuses` asked for.
    fn attend(&mut self, attention: &Attention, pass: Pass, workspace: Address) -> Result<(), DeviceError>;

    /// The library's name and version; empty if it was not loaded.
    fn fuser(&self) -> String;

    /// From now on each wait of the host for this device ends with `Stopped` once the flag is set, even if the device is not done:
    /// it may be waiting for another rank, which failed.
    fn stop_when(&mut self, flag: StopFlag);

    /// Waits until all streams are idle.
    fn finish(&mut self) -> Result<(), DeviceError>;

    /// Records a time stamp behind all work of the selected stream so far.
    fn mark(&mut self) -> Result<(), DeviceError>;

    /// Waits for all time stamps and removes them. Seconds from the first one to each.
    fn marks(&mut self) -> Result<Vec<f64>, DeviceError>;

    /// How much of its memory is in use; `None` if no driver counts it.
    fn used(&self) -> Option<InUse> {
        None
    }

    /// Name, versions and size of the device.
    fn about(&self) -> About;

    /// How many multiprocessors it has.
    fn multiprocessors(&self) -> Multiprocessors {
        Multiprocessors(self.about().multiprocessors as i32)
    }

    /// A new group's name, for all its members.
    fn new_group(&mut self) -> Result<GroupName, DeviceError>;

    /// Joins a group, which `collective` then knows by that number. It returns when all members have joined and are connected: from
    /// then on only the device waits for a message, not the host. Devices that join several groups join them in one order. All
    /// kernels are loaded by then, since loading one may wait for a collective that is under way.
    fn enter(&mut self, group: usize, membership: Membership) -> Result<(), DeviceError>;

    /// Enqueues this device's part of a collective. All members of a group enqueue its collectives in the same order.
    fn collective(&mut self, group: usize, work: Collective, number: Number) -> Result<(), DeviceError>;

    /// Makes a graph of recorded calls. Selects stream 0, also if it fails. If collectives are recorded, all members of their groups
    /// capture at the same time.
    fn capture(&mut self, recorded: &[Recorded]) -> Result<Graph, DeviceError>;

    /// Enqueues a graph on stream 0 and selects that.
    fn replay(&mut self, graph: &Graph) -> Result<(), DeviceError>;

    /// Frees all memory.
    fn clear(&mut self) -> Result<(), DeviceError>;

    /// New memory with that content.
    fn upload(&mut self, bytes: &[u8]) -> Result<Address, DeviceError> {
        let at = self.allocate(bytes.len())?;
        self.write(at, bytes)?;
        Ok(at)
    }

    /// As `read`, into a new vector.
    fn download(&mut self, from: Address, bytes: usize) -> Result<Vec<u8>, DeviceError> {
        let mut read = vec![0; bytes];
        self.read(from, &mut read)?;
        Ok(read)
    }
}
