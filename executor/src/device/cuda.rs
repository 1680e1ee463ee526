//! A GPU, or an emulated one: each operation is a launch or a product of `trainwright_kernels::cuda`.
//!
//! Memory is kept by size when it is given up and handed out again, in the order of the stream, so that after the first step
//! none is asked for. After a fault nothing more is done; `check` returns it. What the host gives, tokens or tables, is
//! copied; messages of ranks of the same process are copied there, and those of others come by NCCL or through the host.

mod attention;
mod by_host;
mod bytes;
mod dropout;
mod experts;
mod fp8;
mod generation;
mod grid;
mod memory;
mod open;
mod optimizer;
mod pinned;
mod rows;
mod shared;
mod step;
mod structs;
mod tables;
mod tokens;

pub(super) use open::{
    count_gpus, gpu_of, open_bare_emulator, open_bare_gpu, open_emulator, open_gpu, require_emulator,
    require_fp8, require_gpu, require_nccl, shares_by_nccl,
};
pub(crate) use open::{describe_gpus, describe_libraries};

use super::{Allocator, Columns, Device, DeviceMemory, DeviceSlice, Numbers, Product, Slice, SliceMut};
use crate::device::host_buffers::return_buffer;
use crate::error::Fault;
use attention::Attending;
use memory::Memory;
use pinned::Pinned;
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use step::{CapturedStep, StepMemory};
use structs::{address, int, shape};
use tables::Tables;
use trainwright_kernels::Onto;
use trainwright_kernels::cuda::reduce::{Cast, SQUARES_CHUNK};
use trainwright_kernels::cuda::tail::{Tail, TailOperands};
use trainwright_kernels::cuda::{
    self, Address, Collective, Compute, DeviceError, Epilogue, Event, GroupName, Launch, Membership,
    Multiprocessors, Number, Operands, StopFlag, columns,
};

/// The streams of a rank on a GPU, with its memory.
pub(crate) struct Cuda {
    /// First of the fields, so that graphs and events are dropped before the device that made them.
    captured: RefCell<CapturedStep>,
    pinned: RefCell<Pinned>,
    memory: RefCell<Memory>,
    number: Number,
    /// Grids that walk over their work are sized by it.
    gpu: Multiprocessors,
    tables: RefCell<Tables>,
    /// Once a step has begun.
    step: Cell<Option<StepMemory>>,
    /// Where tokens are, and how many.
    tokens: Cell<Option<(Address, usize)>>,
    attending: RefCell<Attending>,
}

/// Bytes to allocate: an empty buffer has an address too.
fn room(bytes: usize) -> usize {
    bytes.max(1)
}

type Done = Result<(), DeviceError>;

impl Cuda {
    /// On that device, with weights and activations of type `number`.
    fn new(device: Box<dyn cuda::Device>, number: Number, attending: Attending) -> Self {
        Self {
            number,
            gpu: device.multiprocessors(),
            memory: RefCell::new(Memory::new(device)),
            pinned: RefCell::default(),
            tables: RefCell::default(),
            step: Cell::new(None),
            tokens: Cell::new(None),
            captured: RefCell::default(),
            attending: RefCell::new(attending),
        }
    }

    /// Does it, if all went well so far.
    fn run(&self, work: impl FnOnce(&mut Memory) -> Done) {
        self.memory.borrow_mut().run(work);
    }

    fn launch(&self, launch: &Launch) {
        self.run(|memory| memory.device.launch(launch));
    }

    fn allocate(&self, length: usize, number: Number) -> DeviceSlice {
        DeviceSlice { at: self.memory.borrow_mut().allocate(room(length * number.size())), length, number }
    }

    /// f32 for a while.
    fn scratch(&self, length: usize) -> (Numbers, Address) {
        let on_device = self.allocate(length, Number::F32);
        (Numbers::on_device(on_device), on_device.at)
    }

    /// Whole numbers of the host.
    fn words(&self, words: &[u32]) -> (Numbers, Address) {
        let (numbers, at) = self.scratch(words.len());
        self.run(|memory| memory.device.write(at, bytemuck::cast_slice(words)));
        (numbers, at)
    }

    /// f64 that a kernel left, once it has.
    fn read_doubles(&self, at: Address, count: usize) -> Vec<f64> {
        let mut bytes = vec![0; 8 * count];
        self.run(|memory| memory.device.read(at, &mut bytes));
        bytes.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect()
    }
}

impl Allocator for Cuda {
    fn free(&self, memory: DeviceSlice) {
        let mut pinned = self.pinned.borrow_mut();
        if !pinned.take_back(memory.at, room(memory.bytes()), || self.record_event()) {
            self.memory.borrow_mut().give_back(memory.at, room(memory.bytes()));
        }
    }
}

impl Device for Cuda {
    fn number(&self) -> Number {
        self.number
    }

    fn any(&self, length: usize, number: Number) -> Numbers {
        Numbers::on_device(self.allocate(length, number))
    }

    fn take(&self, data: Vec<f32>, number: Number) -> Numbers {
        let mut numbers = self.any(data.len(), number);
        // Most of the state is zeros at the start, which the device makes sooner than it takes them.
        match bytes::are_zeros(&data) {
            true => self.zero(numbers.slice_mut()),
            false => self.write(numbers.slice_mut(), &data),
        }
        return_buffer(data);
        numbers
    }

    fn any_on_host(&self, length: usize, number: Number) -> Numbers {
        let at = self.pinned.borrow_mut().allocate(self, room(length * number.size()));
        Numbers::on_device(DeviceSlice { at, length, number })
    }

    fn read<'a>(&self, from: Slice<'a>) -> Cow<'a, [f32]> {
        let on_device = match from {
            Slice::Host(data) => return Cow::Borrowed(data),
            Slice::Device(on_device) => on_device,
        };
        let read = |to: &mut [u8]| self.run(|memory| memory.device.read(on_device.at, to));
        Cow::Owned(bytes::numbers(on_device.length, on_device.number, read))
    }

    fn write(&self, to: SliceMut, from: &[f32]) {
        let on_device = to.device();
        let bytes = bytes::bytes(from, on_device.number);
        self.run(|memory| memory.device.write(on_device.at, &bytes));
    }

    fn copy(&self, to: SliceMut, from: Slice) {
        let (to, from) = (to.device(), from.device());
        self.run(|memory| memory.device.copy(to.at, from.at, to.bytes()));
    }

    fn cast(&self, to: SliceMut, from: Slice) {
        let (to, from) = (to.device(), from.device());
        if to.number == from.number {
            return self.copy(SliceMut::Device(to), Slice::Device(from));
        }
        let kernel = Cast { from: from.at, to: to.at, count: from.length as i64 };
        self.launch(&kernel.launch(from.number, self.gpu));
    }

    fn copy_columns(&self, to: SliceMut, from: Slice, columns: Columns) {
        let Columns { width, from: [row, first], to: [to_row, to_first] } = columns;
        let (to, from) = (to.device(), from.device());
        let size = from.number.size();
        let kernel = columns::Columns {
            from: from.at.after(first * size),
            to: to.at.after(to_first * size),
            rows: int(from.length / row),
            width: int(width),
            from_row: int(row),
            to_row: int(to_row),
        };
        self.launch(&kernel.launch(from.number, self.gpu));
    }

    fn zero(&self, to: SliceMut) {
        // Nothing is on the host, where it does not matter.
        if to.len() > 0 {
            let on_device = to.device();
            self.run(|memory| memory.device.zero(on_device.at, on_device.bytes()));
        }
    }

    fn memory(&self) -> Option<DeviceMemory> {
        let memory = self.memory.borrow();
        Some(DeviceMemory { peak: memory.peak, in_use: memory.device.used() })
    }

    fn attention_by(&self) -> Option<String> {
        Some(self.attending.borrow().summary(&self.memory.borrow().device.fuser()))
    }

    fn is_deterministic(&self) -> Option<bool> {
        Some(self.attending.borrow().is_deterministic())
    }

    fn stop_when(&self, flag: StopFlag) {
        self.memory.borrow_mut().device.stop_when(flag);
    }

    fn finish(&self) {
        self.run(|memory| memory.device.finish());
    }

    fn rest(&self) {
        self.memory.borrow_mut().rest();
    }

    fn mark(&self) {
        self.run(|memory| memory.device.mark());
    }

    fn marks(&self) -> Vec<f64> {
        let mut marks = Vec::new();
        self.run(|memory| {
            marks = memory.device.marks()?;
            Ok(())
        });
        marks
    }

    fn about(&self) -> [String; 2] {
        let about = self.memory.borrow().device.about();
        [about.summary, about.versions]
    }

    fn check(&self) -> Result<(), Fault> {
        match self.memory.borrow().fault.clone() {
            None => Ok(()),
            Some(DeviceError::Stopped) => Err(Fault::Aborted),
            Some(fault) => Err(Fault::Device(fault)),
        }
    }

    fn multiply(&self, out: SliceMut, product: Product) {
        let Product { left, right, onto, bias, fp8 } = product;
        if let Some(formats) = fp8 {
            return self.multiply_fp8(out.device(), product, formats);
        }
        let (out, inputs) = (out.device(), left.data.device().number);
        let (([rows, inner], left_transposed), ([_, columns], right_transposed)) =
            (shape(&left), shape(&right));
        let product = cuda::Product {
            rows,
            columns,
            inner,
            left_transposed,
            right_transposed,
            inputs,
            output: out.number,
            compute: Compute::Full,
            accumulate: onto == Onto::Add,
            epilogue: Epilogue::None,
        };
        let at = Operands {
            left: left.data.device().at,
            right: right.data.device().at,
            out: out.at,
            bias: address(bias),
            aux: Address::NULL,
        };
        if bias.is_none() {
            return self.run(|memory| memory.device.multiply(product, at));
        }
        let at = TailOperands { product: at, partial: Address::NULL };
        for part in Tail::Bias.version(Tail::Bias.method(&product), product, at, self.gpu) {
            self.run(|memory| part.run(&mut *memory.device));
        }
    }

    fn squares(&self, all: &[Slice]) -> Vec<f64> {
        let ones: Vec<(Slice, f32)> = all.iter().map(|numbers| (*numbers, 1.0)).collect();
        let (_parts, partial, [count, _]) = self.square_parts([&ones, &[]]);
        let mut parts = self.read_doubles(partial, count).into_iter();
        all.iter().map(|numbers| parts.by_ref().take(numbers.len().div_ceil(SQUARES_CHUNK)).sum()).collect()
    }

    fn select(&self, stream: usize) -> usize {
        self.memory.borrow_mut().select(stream)
    }

    fn record_event(&self) -> Option<Event> {
        self.memory.borrow_mut().record_event()
    }

    fn wait(&self, event: &Event) {
        self.run(|memory| memory.device.wait(event));
    }

    fn join_streams(&self) {
        self.memory.borrow_mut().join();
    }

    fn read_until(&self, numbers: Slice, event: &Event) {
        self.memory.borrow_mut().read_until(numbers.device().at, event);
    }

    fn sum(&self, to: SliceMut, all: &[Slice]) {
        shared::sum(self, to.device(), all);
    }

    fn new_group(&self) -> GroupName {
        let mut name = [0; 128];
        self.run(|memory| {
            name = memory.device.new_group()?;
            Ok(())
        });
        name
    }

    fn enter(&self, group: usize, membership: Membership) {
        self.run(|memory| memory.device.enter(group, membership));
    }

    fn collective(&self, group: usize, work: Collective, number: Number) {
        self.run(|memory| memory.device.collective(group, work, number));
    }
}
