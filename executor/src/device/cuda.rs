//! A GPU, or what stands in for one: each piece of mathematics is a launch or a product of `trainwright_kernels::cuda`.
//!
//! Memory is kept by size when it is given up and handed out again, in the order of the stream, so that after the first step
//! none is asked for. After a fault nothing more is done; `check` tells of it. What the host gives, tokens or tables, is
//! copied; messages of ranks of the same process are copied there, and those of others come by NCCL or through the host.

mod attention;
mod by_host;
mod bytes;
mod dropout;
mod eight;
mod experts;
mod grid;
mod memory;
mod open;
mod optimizer;
mod pinned;
mod shared;
mod step;
mod structs;
mod tables;

pub(super) use open::{
    count_gpus, gpu_of, open_bare_emulator, open_bare_gpu, open_emulator, open_gpu, require_eight,
    require_emulator, require_gpu, require_nccl, shares_by_nccl,
};

use super::{
    Columns, Device, DeviceMemory, Far, LossTokens, NormGradient, Numbers, Positions, Product, Rotation,
    Slice, SliceMut, Sum, Words,
};
use crate::error::Fault;
use crate::settings::AttentionBy;
use attention::Attending;
use memory::Memory;
use pinned::Pinned;
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use step::{Steady, StepMemory};
use structs::{activation, address, cross_entropy_of, int, norm_backward, shape};
use tables::Tables;
use trainwright_kernels::Onto;
use trainwright_kernels::activation::FeedForward;
use trainwright_kernels::cross_entropy;
use trainwright_kernels::cuda::activation::{Activation, Direction, Residual};
use trainwright_kernels::cuda::cross_entropy::CrossEntropy;
use trainwright_kernels::cuda::embedding::{LookUp, TableGradient};
use trainwright_kernels::cuda::experts::Sort;
use trainwright_kernels::cuda::norm::{NormBackward, NormForward};
use trainwright_kernels::cuda::reduce::{Cast, ColumnSum, SquareSum};
use trainwright_kernels::cuda::rotary::Rotary;
use trainwright_kernels::cuda::{
    self, Address, Collective, Compute, DeviceError, Epilogue, GroupName, Launch, Membership, Moment, Number,
    Operands, columns,
};
use trainwright_kernels::embedding::Rows;
use trainwright_kernels::norm::Norm;
use trainwright_kernels::rotary::Turn;

/// A rank's own stream on a GPU, with its memory.
pub(crate) struct Cuda {
    /// Graphs and moments go before the device that made them.
    steady: RefCell<Steady>,
    pinned: RefCell<Pinned>,
    memory: RefCell<Memory>,
    number: Number,
    tables: RefCell<Tables>,
    /// Once a step has begun.
    step: Cell<Option<StepMemory>>,
    /// Where tokens are, and how many.
    tokens: Cell<Option<(Address, usize)>>,
    attending: RefCell<Attending>,
}

/// Rows of a matrix that are summed by one share of a column's sum.
const SHARE_ROWS: usize = 64;
/// At most so many shares.
const SHARES: usize = 256;
/// Tokens of a block that sorts them.
const SORTED: i32 = 2048;

/// Bytes for so many: nothing has an address too.
fn room(bytes: usize) -> usize {
    bytes.max(1)
}

type Done = Result<(), DeviceError>;

impl Cuda {
    /// On that device; weights and activations are of such numbers.
    pub fn new(device: Box<dyn cuda::Device>, number: Number, attention: AttentionBy) -> Self {
        Self {
            number,
            memory: RefCell::new(Memory::new(device)),
            pinned: RefCell::default(),
            tables: RefCell::default(),
            step: Cell::new(None),
            tokens: Cell::new(None),
            steady: RefCell::default(),
            attending: RefCell::new(Attending::new(attention, number)),
        }
    }

    /// Does it, if all went well so far.
    fn run(&self, work: impl FnOnce(&mut Memory) -> Done) {
        self.memory.borrow_mut().run(work);
    }

    fn launch(&self, launch: &Launch) {
        self.run(|memory| memory.device.launch(launch));
    }

    fn far(&self, length: usize, number: Number) -> Far {
        Far { at: self.memory.borrow_mut().allocate(room(length * number.size())), length, number }
    }

    /// f32 for a while.
    fn scratch(&self, length: usize) -> (Numbers, Address) {
        let far = self.far(length, Number::F32);
        (Numbers::far(far), far.at)
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
        bytes.as_chunks().0.iter().map(|eight| f64::from_le_bytes(*eight)).collect()
    }

    fn residual(&self, x: Far, [bias, residual]: [Option<Slice>; 2], width: usize) {
        let rows = int(x.length / width);
        let (bias, residual) = (address(bias), address(residual));
        let own = Residual { x: x.at, bias, residual, out: x.at, rows, width: int(width) };
        // Parts of rows may begin anywhere.
        let aligned = [x.at, bias, residual].iter().all(|address| address.0 % 16 == 0);
        let version = if aligned { own.launch(x.number) } else { own.ladder(x.number).swap_remove(0) };
        self.launch(&version);
    }

    /// Leaves means and deviations of all rows. `added` has what is added before.
    fn norm_forward(
        &self,
        norm: &Norm,
        x: Far,
        added: NormForward,
        vectors: [Option<Slice>; 2],
        out: Far,
    ) -> Numbers {
        let rows = x.length / norm.width;
        let (left, at) = self.scratch(2 * rows);
        let [gain, bias] = vectors.map(address);
        let own = NormForward {
            x: x.at,
            gain,
            bias,
            out: out.at,
            mean: at,
            scale: at.after(4 * rows),
            rows: int(rows),
            width: int(norm.width),
            epsilon: norm.epsilon as f32,
            centred: i32::from(norm.centred),
            ..added
        };
        self.launch(&own.launch(x.number));
        left
    }

    /// Launches what leaves each block's sums for gain and bias, and adds them up.
    fn with_vectors(
        &self,
        own: NormBackward,
        vectors: [Option<SliceMut>; 2],
        launch: impl FnOnce(NormBackward),
    ) {
        let length = own.blocks() as usize * own.width as usize;
        let sums = vectors.map(|to| to.map(|to| (self.scratch(length), to.device())));
        let [partial_gain, partial_bias] =
            sums.each_ref().map(|sum| sum.as_ref().map_or(Address::NULL, |((_, at), _)| *at));
        launch(NormBackward { partial_gain, partial_bias, ..own });
        for ((_, at), to) in sums.iter().flatten() {
            self.column_sum(Far { at: *at, length, number: Number::F32 }, *to);
        }
    }

    /// Adds the sum of rows to f32.
    fn column_sum(&self, x: Far, out: Far) {
        let (rows, width) = (x.length / out.length, int(out.length));
        let shares = rows.div_ceil(SHARE_ROWS).min(SHARES);
        if shares <= 1 {
            let all = ColumnSum { x: x.at, out: out.at, rows: int(rows), width, add: 1 };
            return self.launch(&all.launch(x.number, 1));
        }
        let (_partial, at) = self.scratch(shares * out.length);
        let first = ColumnSum { x: x.at, out: at, rows: int(rows), width, add: 0 };
        self.launch(&first.launch(x.number, int(shares)));
        let second = ColumnSum { x: at, out: out.at, rows: int(shares), width, add: 1 };
        self.launch(&second.launch(Number::F32, 1));
    }
}

impl Device for Cuda {
    fn number(&self) -> Number {
        self.number
    }

    fn any(&self, length: usize, number: Number) -> Numbers {
        Numbers::far(self.far(length, number))
    }

    fn take(&self, data: Vec<f32>, number: Number) -> Numbers {
        let mut numbers = self.any(data.len(), number);
        // Most of the state is zeros at the start, which the device makes sooner than it takes them.
        match bytes::are_zeros(&data) {
            true => self.zero(numbers.slice_mut()),
            false => self.write(numbers.slice_mut(), &data),
        }
        crate::tensor::give_back(data);
        numbers
    }

    fn any_on_host(&self, length: usize, number: Number) -> Numbers {
        let at = self.pinned.borrow_mut().allocate(self, room(length * number.size()));
        Numbers::far(Far { at, length, number })
    }

    fn give_back(&self, far: Far) {
        let mut pinned = self.pinned.borrow_mut();
        if !pinned.take_back(far.at, room(far.bytes()), || self.moment()) {
            self.memory.borrow_mut().give_back(far.at, room(far.bytes()));
        }
    }

    fn read<'a>(&self, from: Slice<'a>) -> Cow<'a, [f32]> {
        let far = match from {
            Slice::Host(data) => return Cow::Borrowed(data),
            Slice::Far(far) => far,
        };
        let read = |to: &mut [u8]| self.run(|memory| memory.device.read(far.at, to));
        Cow::Owned(bytes::numbers(far.length, far.number, read))
    }

    fn write(&self, to: SliceMut, from: &[f32]) {
        let far = to.device();
        let bytes = bytes::bytes(from, far.number);
        self.run(|memory| memory.device.write(far.at, &bytes));
    }

    fn copy(&self, to: SliceMut, from: Slice) {
        let (to, from) = (to.device(), from.device());
        self.run(|memory| memory.device.copy(to.at, from.at, to.bytes()));
    }

    fn cast(&self, to: SliceMut, from: Slice) {
        let (to, from) = (to.device(), from.device());
        if to.number == from.number {
            return self.copy(SliceMut::Far(to), Slice::Far(from));
        }
        let own = Cast { from: from.at, to: to.at, count: from.length as i64 };
        self.launch(&own.launch(from.number));
    }

    fn copy_columns(&self, to: SliceMut, from: Slice, columns: Columns) {
        let Columns { width, from: [row, first], to: [to_row, to_first] } = columns;
        let (to, from) = (to.device(), from.device());
        let size = from.number.size();
        let own = columns::Columns {
            from: from.at.after(first * size),
            to: to.at.after(to_first * size),
            rows: int(from.length / row),
            width: int(width),
            from_row: int(row),
            to_row: int(to_row),
        };
        self.launch(&own.launch(from.number));
    }

    fn zero(&self, to: SliceMut) {
        // Nothing is on the host, where it does not matter.
        if to.len() > 0 {
            let far = to.device();
            self.run(|memory| memory.device.zero(far.at, far.bytes()));
        }
    }

    fn memory(&self) -> Option<DeviceMemory> {
        let memory = self.memory.borrow();
        Some(DeviceMemory { peak: memory.peak, in_use: memory.device.used() })
    }

    fn attention_by(&self) -> Option<String> {
        Some(self.attending.borrow().told(&self.memory.borrow().device.fuser()))
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
        self.memory.borrow().fault.clone().map_or(Ok(()), |fault| Err(Fault::Device(fault)))
    }

    fn multiply(&self, out: SliceMut, product: Product) {
        let Product { left, right, onto, bias, eight } = product;
        if let Some(formats) = eight {
            return self.multiply_eight(out.device(), product, formats);
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
            epilogue: if bias.is_some() { Epilogue::Bias } else { Epilogue::None },
        };
        let at = Operands {
            left: left.data.device().at,
            right: right.data.device().at,
            out: out.at,
            bias: address(bias),
            aux: Address::NULL,
        };
        self.run(|memory| memory.device.multiply(product, at));
    }

    fn add(&self, x: SliceMut, other: Slice) {
        let x = x.device();
        self.residual(x, [None, Some(other)], x.length);
    }

    fn add_residual(&self, x: SliceMut, past: Slice, bias: Option<Slice>) {
        let x = x.device();
        let width = bias.map_or(x.length, |bias| bias.len());
        self.residual(x, [bias, Some(past)], width);
    }

    fn add_bias(&self, x: SliceMut, bias: Slice) {
        self.residual(x.device(), [Some(bias), None], bias.len());
    }

    fn bias_gradient(&self, gradient: Slice, bias: SliceMut) {
        self.column_sum(gradient.device(), bias.device());
    }

    fn norm(&self, norm: &Norm, x: Slice, vectors: [Option<Slice>; 2], out: SliceMut) -> Numbers {
        self.norm_forward(norm, x.device(), NormForward::default(), vectors, out.device())
    }

    fn adds_in_norms(&self) -> bool {
        true
    }

    fn norm_of_sum(&self, norm: &Norm, sum: Sum, vectors: [Option<Slice>; 2], out: SliceMut) -> Numbers {
        let (x, residual) = (sum.x.device(), sum.past.device().at);
        let added =
            NormForward { residual, added_bias: address(sum.bias), sum: x.at, ..NormForward::default() };
        self.norm_forward(norm, x, added, vectors, out.device())
    }

    fn norm_gradient(&self, norm: &Norm, gradient: NormGradient, to_input: SliceMut) {
        let own = NormBackward { gradient: to_input.device().at, ..norm_backward(norm, gradient) };
        self.launch(&own.input(self.number));
    }

    fn norm_vectors(&self, norm: &Norm, gradient: NormGradient, vectors: [Option<SliceMut>; 2]) {
        let own = norm_backward(norm, gradient);
        self.with_vectors(own, vectors, |own| self.launch(&own.vectors(self.number)));
    }

    fn makes_norm_gradients_at_once(&self, norm: &Norm) -> bool {
        let own = NormBackward { width: int(norm.width), ..NormBackward::default() };
        own.launch(self.number).len() == 1
    }

    fn norm_gradients(
        &self,
        norm: &Norm,
        gradient: NormGradient,
        vectors: [Option<SliceMut>; 2],
        to_input: SliceMut,
    ) {
        let own = NormBackward { gradient: to_input.device().at, ..norm_backward(norm, gradient) };
        self.with_vectors(own, vectors, |own| {
            own.launch(self.number).iter().for_each(|launch| self.launch(launch));
        });
    }

    fn rotate(&self, x: SliceMut, rotation: Rotation, positions: Positions) {
        let x = x.device();
        let [cosines, sines] = self.tables.borrow_mut().angles(self, &rotation);
        let Rotation { heads, rotated, turn, .. } = rotation;
        let mut at = x.at;
        for range in positions.of {
            let tokens = range.len() * positions.batch;
            let own = Rotary {
                x: at,
                cosines,
                sines,
                tokens: int(tokens),
                row: int(heads.row),
                first: int(heads.first),
                heads: int(heads.count),
                head_dim: int(heads.width),
                half: int(rotated / 2),
                batch: int(positions.batch),
                first_position: int(range.start),
                direction: if turn == Turn::There { 1.0 } else { -1.0 },
            };
            at = at.after(tokens * heads.row * x.number.size());
            self.launch(&own.launch(x.number));
        }
    }

    fn activate(&self, layer: &FeedForward, x: Slice, out: SliceMut) {
        let (out, (function, gated)) = (out.device(), activation(layer));
        let (rows, width) = (int(out.length / layer.width), int(layer.width));
        let own = Activation { x: x.device().at, out: out.at, rows, width, gated, ..Activation::default() };
        self.launch(&own.launch(function, Direction::Forward, out.number));
    }

    fn activation_gradient(&self, layer: &FeedForward, x: Slice, gradient: Slice, to_input: SliceMut) {
        let (gradient, (function, gated)) = (gradient.device(), activation(layer));
        let own = Activation {
            x: x.device().at,
            bias: Address::NULL,
            out_gradient: gradient.at,
            out: to_input.device().at,
            rows: int(gradient.length / layer.width),
            width: int(layer.width),
            gated,
        };
        self.launch(&own.launch(function, Direction::Backward, gradient.number));
    }

    fn look_up(&self, rows: Rows, table: Slice, entries: &Words, out: SliceMut) {
        let table = table.device();
        let own = LookUp {
            table: table.at,
            entries: entries.device(),
            out: out.device().at,
            tokens: int(entries.len()),
            width: int(rows.width),
            first: int(rows.first),
            rows: int(table.length / rows.width),
            batch: 1,
            ..LookUp::default()
        };
        self.launch(&own.launch(table.number));
    }

    fn look_up_gradient(&self, rows: Rows, table: SliceMut, entries: &Words, gradient: Slice) {
        let (table, gradient, keys) = (table.device(), gradient.device(), entries.device());
        let (tokens, buckets) = (entries.len(), table.length / rows.width);
        let sort = Sort {
            keys,
            count: int(tokens),
            buckets: int(buckets),
            first: int(rows.first),
            share: SORTED,
            ..Sort::default()
        };
        let (_counts, counts) = self.scratch(sort.blocks() as usize * buckets);
        let (_starts, starts) = self.scratch(buckets + 1);
        let (_order, order) = self.scratch(tokens);
        Sort { counts, starts, order, ..sort }.launches().iter().for_each(|launch| self.launch(launch));
        let own = TableGradient {
            gradient: gradient.at,
            entries: keys,
            order,
            starts,
            table: table.at,
            tokens: int(tokens),
            width: int(rows.width),
            first: int(rows.first),
            rows: int(buckets),
        };
        self.launch(&own.launch(gradient.number));
    }

    /// Positions are looked up as entries of their table.
    fn add_positions(&self, x: SliceMut, width: usize, table: Slice, positions: Positions) {
        let (x, table) = (x.device(), table.device());
        let entries = self.tables.borrow_mut().positions(self, positions);
        let (tokens, rows) = (x.length / width, table.length / width);
        let looked_up = self.any(x.length, x.number);
        let own = LookUp {
            table: table.at,
            entries,
            out: looked_up.slice().device().at,
            tokens: int(tokens),
            width: int(width),
            rows: int(rows),
            batch: 1,
            ..LookUp::default()
        };
        self.launch(&own.launch(table.number));
        self.residual(x, [None, Some(looked_up.slice())], width);
    }

    /// Tokens are sorted by their positions as they are.
    fn positions_gradient(&self, gradient: Slice, width: usize, table: SliceMut, positions: Positions) {
        let (gradient, table) = (gradient.device(), table.device());
        let (tokens, rows) = (gradient.length / width, table.length / width);
        let mut tables = self.tables.borrow_mut();
        let entries = tables.positions(self, positions);
        let [order, starts] = tables.sorted_positions(self, positions, rows);
        let own = TableGradient {
            gradient: gradient.at,
            entries,
            order,
            starts,
            table: table.at,
            tokens: int(tokens),
            width: int(width),
            first: 0,
            rows: int(rows),
        };
        self.launch(&own.launch(gradient.number));
    }

    fn loss(&self, columns: &cross_entropy::Columns, logits: Slice, targets: &Words) -> Numbers {
        let (logits, tokens, targets) = (logits.device(), targets.len(), targets.device());
        let (three, at) = self.scratch(3 * tokens);
        let [maximum, sum, target] = [0, 1, 2].map(|place| at.after(4 * place * tokens));
        let own = CrossEntropy { targets, maximum, sum, target, ..cross_entropy_of(columns, logits, tokens) };
        let fastest = own.statistics(logits.number).pop().expect("the simple version does all");
        self.launch(&fastest);
        three
    }

    fn loss_gradient(&self, columns: &cross_entropy::Columns, logits: SliceMut, tokens: LossTokens) {
        let LossTokens { targets, three, weight } = tokens;
        let (logits, count, at) = (logits.device(), targets.len(), three.device().at);
        let targets = targets.device();
        let own = CrossEntropy {
            targets,
            maximum: at,
            sum: at.after(4 * count),
            scale: weight,
            ..cross_entropy_of(columns, logits, count)
        };
        let fastest = own.gradient(logits.number).pop().expect("the simple version does all");
        self.launch(&fastest);
    }

    fn squares(&self, all: &[Slice]) -> Vec<f64> {
        let sums: Vec<(SquareSum, Number)> = all
            .iter()
            .map(|own| own.device())
            .map(|far| {
                (
                    SquareSum { x: far.at, count: far.length as i64, scale: 1.0, ..SquareSum::default() },
                    far.number,
                )
            })
            .collect();
        let blocks = |(sum, number): &(SquareSum, Number)| sum.blocks(*number) as usize;
        let count: usize = sums.iter().map(blocks).sum();
        let partial = self.far(2 * count, Number::F32);
        let _partial = Numbers::far(partial);
        let mut first = 0;
        for own @ (sum, number) in &sums {
            let sum = SquareSum { partial: partial.at.after(8 * first), ..*sum };
            self.launch(&sum.launch(*number));
            first += blocks(own);
        }
        let mut parts = self.read_doubles(partial.at, count).into_iter();
        sums.iter().map(|own| parts.by_ref().take(blocks(own)).sum()).collect()
    }

    fn select(&self, stream: usize) -> usize {
        self.memory.borrow_mut().select(stream)
    }

    fn moment(&self) -> Option<Moment> {
        self.memory.borrow_mut().moment()
    }

    fn wait(&self, moment: &Moment) {
        self.run(|memory| memory.device.wait(moment));
    }

    fn join_streams(&self) {
        self.memory.borrow_mut().join();
    }

    fn read_until(&self, numbers: Slice, moment: &Moment) {
        self.memory.borrow_mut().read_until(numbers.device().at, moment);
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
