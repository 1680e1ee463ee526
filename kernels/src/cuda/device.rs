//! What launches and matrix products run on: the driver's GPU, the emulator, and the recorder around either.

use super::attention::{Attention, Pass};
use super::collective::{Collective, GroupName, Membership};
use super::eight::{EightOperands, EightProduct};
use super::error::DeviceError;
use super::launch::{Address, Launch, Multiprocessors, Number};
use super::product::{Operands, Product};
use super::recorded::Told;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The moment when all is done that a stream had been told until then. Any stream of the process may wait for it.
#[derive(Clone)]
pub struct Moment(Arc<dyn Any + Send + Sync>);

impl Moment {
    pub(super) fn new(of: impl Any + Send + Sync) -> Self {
        Self(Arc::new(of))
    }

    pub(super) fn of<T: Any>(&self) -> &T {
        self.0.downcast_ref().expect("a moment is waited for by devices of the kind that it is of")
    }

    /// Whether it is the same one, not another one of the same work.
    pub(super) fn is(&self, other: &Moment) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl std::fmt::Debug for Moment {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("Moment")
    }
}

/// Work that was recorded, for the device that made it ready to tell all of it by one call.
pub struct Graph(Box<dyn Any>);

impl Graph {
    pub(super) fn new(of: impl Any) -> Self {
        Self(Box::new(of))
    }

    pub(super) fn of<T: Any>(&self) -> &T {
        self.0.downcast_ref().expect("a graph is told to the device that made it ready")
    }
}

/// What a device is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct About {
    /// As its driver names it.
    pub name: String,
    /// The same with what people want to know beside it.
    pub summary: String,
    /// Versions of what drives it, for people.
    pub versions: String,
    /// Compute capability: 9.0 is (9, 0).
    pub capability: (i32, i32),
    /// Multiprocessors.
    pub multiprocessors: usize,
    /// Bytes of memory.
    pub memory: usize,
}

/// What of a GPU's memory is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InUse {
    /// Bytes that this device has asked the driver for, in whole pieces: what was allocated, and what is left over of them.
    pub reserved: usize,
    /// Bytes that are not free, as the driver counts: those, its context, kernels and libraries, and all that others on the
    /// GPU have.
    pub on_gpu: usize,
}

/// Whether a run is over for all its ranks: another thread sets it.
pub type StopFlag = Arc<AtomicBool>;

/// What has memory and runs kernels and matrix products. It has streams: what one of them is told it does in the order of the
/// calls; between streams there is no order but by moments. What it is told may still be under way when a call returns, except
/// for `read`, which waits for its stream, and `finish`.
pub trait Device {
    /// Lets that stream do what is told from now on; at first it is stream 0. That one computes, and a GPU begins kernels of the
    /// others, which communicate, before its.
    fn select(&mut self, stream: usize) -> Result<(), DeviceError>;

    /// The moment when all is done that the selected stream was told so far.
    fn moment(&mut self) -> Result<Moment, DeviceError>;

    /// Lets what the selected stream is told from now on wait for a moment, which may be of another device of the process.
    fn wait(&mut self, moment: &Moment) -> Result<(), DeviceError>;

    /// New memory, 256-byte aligned, with anything in it.
    fn allocate(&mut self, bytes: usize) -> Result<Address, DeviceError>;

    /// New memory of the host, 256-byte aligned, that `copy` copies to and from by itself.
    fn allocate_on_host(&mut self, bytes: usize) -> Result<Address, DeviceError>;

    /// Lets the host wait for a moment.
    fn wait_here(&mut self, moment: &Moment) -> Result<(), DeviceError>;

    /// Shows the host its memory that was allocated here. Whoever copies to these bytes or from them was waited for here.
    fn on_host(
        &mut self,
        at: Address,
        bytes: usize,
        work: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), DeviceError>;

    /// Copies the host's bytes to where there is room for them.
    fn write(&mut self, to: Address, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Copies to the host what is there after all that came before.
    fn read(&mut self, from: Address, bytes: &mut [u8]) -> Result<(), DeviceError>;

    /// Copies within its memory, to it from that of another device of the process, and between either and memory of the
    /// host that it allocated.
    fn copy(&mut self, to: Address, from: Address, bytes: usize) -> Result<(), DeviceError>;

    /// Zeros.
    fn zero(&mut self, at: Address, bytes: usize) -> Result<(), DeviceError>;

    /// Runs a kernel.
    fn launch(&mut self, launch: &Launch) -> Result<(), DeviceError>;

    /// Multiplies matrices.
    fn multiply(&mut self, product: Product, at: Operands) -> Result<(), DeviceError>;

    /// Whether it multiplies matrices of numbers of 8 bits: GPUs do from compute capability 8.9 on.
    fn multiplies_eight(&self) -> bool;

    /// Multiplies such matrices.
    fn multiply_eight(&mut self, product: EightProduct, at: EightOperands) -> Result<(), DeviceError>;

    /// Whether a library has a fused kernel for an attention in bf16: bytes of memory that it needs for a while, or why not.
    fn fuses(&mut self, attention: &Attention, pass: Pass) -> Result<usize, String>;

    /// Lets it do so, with so much memory at `workspace`.
    fn attend(&mut self, attention: &Attention, pass: Pass, workspace: Address) -> Result<(), DeviceError>;

    /// Which library that is, for people.
    fn fuser(&self) -> String;

    /// From now on every wait of the host for this device ends with `Stopped` once the flag is set, whether or not the device is
    /// done: it may be waiting for another rank, which failed.
    fn stop_when(&mut self, flag: StopFlag);

    /// Waits until all streams have done all.
    fn finish(&mut self) -> Result<(), DeviceError>;

    /// Notes when all is done that the selected stream was told before.
    fn mark(&mut self) -> Result<(), DeviceError>;

    /// Seconds from the first noted moment to each of them, which are waited for and then forgotten.
    fn marks(&mut self) -> Result<Vec<f64>, DeviceError>;

    /// What of its memory is in use; none where no driver counts it.
    fn used(&self) -> Option<InUse> {
        None
    }

    /// What it is.
    fn about(&self) -> About;

    /// How many multiprocessors it has.
    fn multiprocessors(&self) -> Multiprocessors {
        Multiprocessors(self.about().multiprocessors as i32)
    }

    /// The name of a new group, for all its members.
    fn new_group(&mut self) -> Result<GroupName, DeviceError>;

    /// Enters a group, when all its members do; `collective` knows it by that number. It returns when all have met in it once: from
    /// then on telling a message waits for nobody, and only the device does. Whoever is in several groups enters them in an order
    /// that all keep to. All kernels are loaded by then, since loading one may wait for a collective that is under way.
    fn enter(&mut self, group: usize, membership: Membership) -> Result<(), DeviceError>;

    /// This device's part in a collective of a group. A group's collectives are told by all its members in the same order.
    fn collective(&mut self, group: usize, work: Collective, number: Number) -> Result<(), DeviceError>;

    /// Makes recorded work ready to be told by one call. Stream 0 is selected then, whether it could or not. Where collectives are
    /// among it, all members of their groups do this at the same time.
    fn make_ready(&mut self, told: &[Told]) -> Result<Graph, DeviceError>;

    /// Tells it all of that: behind what stream 0 was told before, which is selected then.
    fn replay(&mut self, graph: &Graph) -> Result<(), DeviceError>;

    /// Gives all memory back.
    fn clear(&mut self) -> Result<(), DeviceError>;

    /// New memory with that content.
    fn upload(&mut self, bytes: &[u8]) -> Result<Address, DeviceError> {
        let at = self.allocate(bytes.len())?;
        self.write(at, bytes)?;
        Ok(at)
    }

    /// That many bytes, after all that came before.
    fn download(&mut self, from: Address, bytes: usize) -> Result<Vec<u8>, DeviceError> {
        let mut read = vec![0; bytes];
        self.read(from, &mut read)?;
        Ok(read)
    }
}
