//! What a rank computes on: where its numbers are, and the mathematics over them that modules and updates need.
//!
//! Numbers are in the host's memory, where a CPU computes on them as they lie, or in memory that only the device reads.
//! A call enqueues work, which runs in the order of the calls and may still run when the call returns; `check` returns what
//! went wrong. A new device is a file in `device/` and a line in its table.
//!
//! Nothing here knows of layers, plans or other ranks.

mod cpu;
mod cuda;
mod current;
pub(crate) mod host_buffers;
mod kinds;
mod numbers;
mod ops;
mod streams;
pub(crate) mod tensor;
mod words;

pub(crate) use cpu::Cpu;
pub(crate) use cuda::{describe_gpus, describe_libraries};
pub(crate) use current::CurrentDevice;
pub use kinds::{AttentionBy, DEVICES, DeviceKind};
pub(crate) use kinds::{BareDevices, GpuName, LocalRank, Opening};
pub(crate) use numbers::{Allocator, DeviceSlice, Numbers, Slice, SliceMut};
pub(crate) use ops::{
    AttentionGradient, AttentionOps, AttentionOutput, AttentionTile, DropoutOps, ExpertOps, ExpertPass,
    ExpertProducts, GenerationOps, GridOps, LossTokens, NOWHERE, NormGradient, OptimizerOps, OptimizerStep,
    Positions, Rotation, RowOps, Rule, StepBegin, StepNumbers, StepOps, Sum, SummedLoss, TokenOps, Updated,
    Visits, each_token,
};
pub(crate) use streams::{COMPUTE, PAIRS, stream_of};
pub(crate) use words::{HostWords, Sorted, SortedOnDevice, Words};

use crate::error::Fault;
use std::borrow::Cow;
use trainwright_kernels::Onto;
use trainwright_kernels::cuda::{Collective, Event, GroupName, InUse, Membership, Number, StopFlag};
use trainwright_kernels::fp8::Fp8;

/// Rows of numbers as one side of a product.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Matrix<'a> {
    pub data: Slice<'a>,
    /// Length of a row.
    pub width: usize,
    pub transposed: bool,
}

impl<'a> Matrix<'a> {
    /// Row after row.
    pub fn rows(data: Slice<'a>, width: usize) -> Self {
        Self { data, width, transposed: false }
    }

    /// The transpose: the rows are read as columns.
    pub fn transposed(self) -> Self {
        Self { transposed: !self.transposed, ..self }
    }
}

/// left · right, and what is added to each row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Product<'a> {
    pub left: Matrix<'a>,
    pub right: Matrix<'a>,
    pub onto: Onto,
    pub bias: Option<Slice<'a>>,
    /// The fp8 formats that left and right are rounded to, each with a scale; `None` leaves them as they are.
    pub fp8: Option<[Fp8; 2]>,
}

/// Columns of rows that become columns of as many other rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Columns {
    /// How many.
    pub width: usize,
    /// Length of a row, and the first column.
    pub from: [usize; 2],
    /// Length of a row, and the first column, where they go.
    pub to: [usize; 2],
}

/// What a rank has needed of its device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Bytes that its tensors, state and workspaces took at most, with what was kept of one size when another was needed.
    pub peak: usize,
    /// What the driver counts as used, these and other bytes; `None` if no driver counts it.
    pub in_use: Option<InUse>,
}

/// A device. Sizes are those of the slices; a module's numbers are of the device's `number`, gradients of weights, moments and
/// statistics are f32.
pub(crate) trait Device:
    Allocator
    + AttentionOps
    + DropoutOps
    + ExpertOps
    + GenerationOps
    + GridOps
    + OptimizerOps
    + RowOps
    + StepOps
    + TokenOps
{
    /// What numbers weights and activations are.
    fn number(&self) -> Number;

    /// Room for that many numbers, with anything in it.
    fn any(&self, length: usize, number: Number) -> Numbers;

    /// The host's numbers, on the device.
    fn take(&self, data: Vec<f32>, number: Number) -> Numbers;

    /// The numbers for the host to read, once all that was enqueued before has run.
    fn read<'a>(&self, from: Slice<'a>) -> Cow<'a, [f32]>;

    /// The host's numbers into the device's.
    fn write(&self, to: SliceMut, from: &[f32]);

    /// Copies numbers of the same type and count.
    fn copy(&self, to: SliceMut, from: Slice);

    /// Converts numbers to another type.
    fn cast(&self, to: SliceMut, from: Slice);

    /// Copies some columns of each row.
    fn copy_columns(&self, to: SliceMut, from: Slice, columns: Columns);

    /// Numbers with any content in memory of the host, to copy to and from, which the device does by itself.
    fn any_on_host(&self, length: usize, number: Number) -> Numbers {
        self.any(length, number)
    }

    /// Zeros.
    fn zero(&self, to: SliceMut);

    /// Gives up every wait of the host for this device once the flag is set: `check` says then that the rank is to stop. Of no
    /// effect on a device for which the host never waits.
    fn stop_when(&self, flag: StopFlag);

    /// Waits until all is done.
    fn finish(&self);

    /// Waits as `finish` does, and until other ranks have read from this device's memory, so that it can be freed.
    fn rest(&self) {
        self.finish();
    }

    /// The most of its memory that was in use until now; `None` if its memory is the host's.
    fn memory(&self) -> Option<DeviceMemory> {
        None
    }

    /// Whose kernels did attention, for people; `None` on processors.
    fn attention_by(&self) -> Option<String> {
        None
    }

    /// Whether all that it did has the same bits in every run; `None` on processors, where it always has.
    fn is_deterministic(&self) -> Option<bool> {
        None
    }

    /// Marks the time at which all that was enqueued so far has run.
    fn mark(&self);

    /// Seconds from the first mark to each mark, which are forgotten then. Empty if all work is done when a call returns.
    fn marks(&self) -> Vec<f64>;

    /// What it is, and the versions of what drives it, for people.
    fn about(&self) -> [String; 2];

    /// Whether all went well so far.
    fn check(&self) -> Result<(), Fault>;

    /// A product.
    fn multiply(&self, out: SliceMut, product: Product);

    /// Σ x² of each of them.
    fn squares(&self, all: &[Slice]) -> Vec<f64>;

    // Streams, and what ranks on devices do together. A device that has done everything when a call returns has no streams,
    // and its ranks communicate through the host.

    /// Selects the stream of the next launches. Returns the one before.
    fn select(&self, _stream: usize) -> usize {
        COMPUTE
    }

    /// An event behind all that is enqueued on the selected stream; `None` after a fault.
    fn record_event(&self) -> Option<Event> {
        None
    }

    /// Lets the selected stream wait for an event, which may be another rank's.
    fn wait(&self, _event: &Event) {}

    /// Lets every stream wait for all that is enqueued on the others.
    fn join_streams(&self) {}

    /// Other ranks read these numbers until that event.
    fn read_until(&self, _numbers: Slice, _event: &Event) {}

    /// The sum of as many numbers of several ranks, in their order.
    fn sum(&self, to: SliceMut, _all: &[Slice]) {
        unreachable!("{} numbers of a device whose ranks communicate through the host", to.len());
    }

    /// The name of a new group of devices with a memory each.
    fn new_group(&self) -> GroupName {
        [0; 128]
    }

    /// Enters a group, when all its members do and are connected; `collective` knows it by that number. All ranks enter groups in
    /// the order of their numbers.
    fn enter(&self, _group: usize, _membership: Membership) {}

    /// This rank's part in a collective of a group.
    fn collective(&self, group: usize, work: Collective, _number: Number) {
        unreachable!("{work:?} of group {group} on a device whose ranks meet on the host");
    }
}

/// Lets the host change a device's numbers.
pub(crate) fn on_host<E>(
    device: &dyn Device,
    mut numbers: SliceMut,
    work: impl FnOnce(&mut [f32]) -> Result<(), E>,
) -> Result<(), E> {
    if let SliceMut::Host(data) = &mut numbers {
        return work(data);
    }
    let mut data = device.read(numbers.as_slice()).into_owned();
    work(&mut data)?;
    device.write(numbers, &data);
    Ok(())
}
