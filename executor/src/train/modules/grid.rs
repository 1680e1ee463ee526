//! Products and norms on a grid of tensor ranks, each of which has a block of everything (SUMMA).
//!
//! Rank (i, j) has block (i, j) of inputs and outputs: the i-th part of the sequences, the j-th of the columns. Of a weight
//! it has the i-th part of its inputs and the j-th of its outputs; of an embedding the i-th part of its entries and the j-th
//! of its columns. In step l members l of rows and columns send their blocks, or have them summed.

use super::linear::{bias, weight};
use super::norm::{kernel, names};
use super::operator::Step;
use super::stepwise::{Among, Stepwise};
use crate::comm::collective::Combine;
use crate::device::tensor::Tensor;
use crate::device::{Device, Matrix, NormGradient, Numbers, Product, Slice};
use crate::error::Fault;
use trainwright_kernels::Onto;
use trainwright_kernels::cuda::Number;
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::program::{Axis, Does, Grid, Module, Pass};

/// A product in work.
#[derive(Debug)]
struct Blocks {
    /// Forward the input, backward the output's gradient.
    operand: Tensor,
    /// What came along the row.
    row: Numbers,
    /// What came along the column.
    column: Numbers,
    /// A summand that is to be reduced.
    summand: Option<Tensor>,
    result: Option<Tensor>,
    phase: Phase,
    step: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Forward,
    InputGradient,
    WeightGradient,
}

/// C += A B, where both operands travel; or a summand of C, which is reduced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Sum,
    Reduced,
}

pub(super) struct GridLinear;

pub(super) struct GridNorm;

/// What a norm keeps between its steps, and for backward.
#[derive(Debug, Default)]
struct GridNormKept {
    /// Sums over the columns of each token.
    sums: Vec<f32>,
    /// Means and 1 / √(variance + ε) of the rows.
    left: Numbers,
}

impl Stepwise for GridLinear {
    fn begin(&self, step: &mut Step, pass: Pass) {
        let back = pass == Pass::Backward;
        let operand = if back { step.frame.take_gradient() } else { step.frame.take_flow() };
        let phase = if back { Phase::InputGradient } else { Phase::Forward };
        let (row, column) = (Numbers::default(), Numbers::default());
        let blocks = Blocks { operand, row, column, summand: None, result: None, phase, step: 0 };
        *step.kept().module_state() = Some(blocks);
    }

    fn run(&self, step: &mut Step, _: Pass, does: Does, among: Option<Among>) -> Result<(), Fault> {
        let head = step.place.1 == Module::Logits;
        match (does, among) {
            (Does::Grid(_), Some(among)) if among.kind == CollectiveKind::Broadcast => {
                broadcast(step, head, among)
            }
            (Does::Grid(_), Some(among)) => reduce(step, among),
            (Does::Grid(_) | Does::WeightGradient, _) => {
                product(step, head);
                Ok(())
            }
            (Does::VectorGradient, _) => {
                let gradient = blocks(step).operand.clone();
                if let Some(name) = bias(step)
                    && let Some(bias) = step.state.layer_mut(step.place.0).write(step.device, name)
                {
                    step.device.bias_gradient(gradient.slice(), bias);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn end(&self, step: &mut Step, pass: Pass) {
        let blocks = step.kept().module_state::<Option<Blocks>>().take().expect("the product has begun");
        let mut result = narrow(step.device, blocks.result.expect("the product has a result"));
        if pass == Pass::Backward {
            step.frame.gradient = Some(result);
            return;
        }
        if let Some(bias) = bias(step).and_then(|name| step.read(name)) {
            step.device.add_bias(result.slice_mut(), bias);
        }
        step.frame.flow = Some(result);
    }
}

fn blocks<'s>(step: &'s mut Step) -> &'s mut Blocks {
    step.kept().module_state::<Option<Blocks>>().as_mut().expect("the product has begun")
}

/// What was summed in 32 bits, as modules have it.
fn narrow(device: &dyn Device, sum: Tensor) -> Tensor {
    match sum.slice() {
        Slice::Device(on_device) if on_device.number != device.number() => {
            let mut rounded = Tensor::any_on(device, sum.rows(), sum.width());
            device.cast(rounded.slice_mut(), sum.slice());
            rounded
        }
        _ => sum,
    }
}

/// Room for a sum.
fn wide(device: &dyn Device, rows: usize, width: usize) -> Tensor {
    Tensor::of(device.any(rows * width, Number::F32), width)
}

/// The block of member `step` of a row or column goes to the others.
fn broadcast(step: &mut Step, head: bool, among: Among) -> Result<(), Fault> {
    let (phase, root) = (blocks(step).phase, blocks(step).step);
    let is_root = among.members.place == root;
    let along_row = among.axis == Axis::TensorRow;
    let device = step.device;
    let numbers = |slice: Slice| device.read(slice).into_owned();
    let block = match (is_root, along_row, phase, head) {
        (false, ..) => None,
        (_, false, ..) => {
            let (layer, name) = weight(step);
            Some(numbers(step.state.layer(layer).read(name).expect("a product has a weight")))
        }
        (_, true, Phase::WeightGradient, false) => Some(numbers(step.kept_input().slice())),
        (_, true, ..) => Some(numbers(blocks(step).operand.slice())),
    };
    let block = among.communicator.broadcast(among.members, root, block)?;
    let block = device.take(block, device.number());
    let blocks = blocks(step);
    match along_row {
        true => blocks.row = block,
        false => blocks.column = block,
    }
    Ok(())
}

fn product(step: &mut Step, head: bool) {
    let device = step.device;
    let (layer, name) = weight(step);
    let elements = step.state.layer(layer).read(name).expect("a product has a weight").len();
    let grid = step.sizes.grid_rows();
    let reads_input = blocks(step).phase == Phase::WeightGradient;
    let input = reads_input.then(|| step.kept_input());
    let blocks = blocks(step);
    if blocks.step == grid {
        // What is left of the weight's gradient is its addition to what there was.
        return;
    }
    let (rows, width) = (blocks.operand.rows(), blocks.operand.width());
    let operand = Matrix::rows(blocks.operand.slice(), width);
    let (row, column) = (blocks.row.slice(), blocks.column.slice());
    let inner = elements / width;
    let multiply = |out: &mut Tensor, onto: Onto, left: Matrix, right: Matrix| {
        device.multiply(out.slice_mut(), Product { left, right, onto, bias: None, fp8: None });
    };
    let zeros = || {
        let mut sum = wide(device, rows, inner);
        device.zero(sum.slice_mut());
        sum
    };
    let (form, made) = match (blocks.phase, head) {
        (Phase::Forward, false) => {
            let mut sum = blocks.result.take().unwrap_or_else(zeros);
            let right = Matrix::rows(column, width).transposed();
            multiply(&mut sum, Onto::Add, Matrix::rows(row, width), right);
            (Form::Sum, sum)
        }
        (Phase::InputGradient, true) => {
            let mut sum = blocks.result.take().unwrap_or_else(zeros);
            multiply(&mut sum, Onto::Add, Matrix::rows(row, width), Matrix::rows(column, inner));
            (Form::Sum, sum)
        }
        (Phase::Forward, true) => {
            let mut part = wide(device, rows, inner);
            multiply(&mut part, Onto::Replace, operand, Matrix::rows(column, width).transposed());
            (Form::Reduced, part)
        }
        (Phase::InputGradient, false) => {
            let mut part = wide(device, rows, inner);
            multiply(&mut part, Onto::Replace, operand, Matrix::rows(column, inner));
            (Form::Reduced, part)
        }
        (Phase::WeightGradient, head) => {
            let input = input.expect("the weight's gradient reads the input");
            let mut part = wide(device, width, inner);
            let (gradient, read) = match head {
                true => (Matrix::rows(row, width), Matrix::rows(input.slice(), inner)),
                false => (operand, Matrix::rows(row, inner)),
            };
            multiply(&mut part, Onto::Replace, gradient.transposed(), read);
            (Form::Reduced, part)
        }
    };
    match form {
        Form::Sum => {
            blocks.result = Some(made);
            blocks.next(grid);
        }
        Form::Reduced => blocks.summand = Some(made),
    }
}

/// The summands of member `step`'s block become its result.
fn reduce(step: &mut Step, among: Among) -> Result<(), Fault> {
    let (grid, device) = (step.sizes.grid_rows(), step.device);
    let product = blocks(step);
    let (root, phase) = (product.step, product.phase);
    let summand = product.summand.take().expect("a product comes before its reduction");
    let width = summand.width();
    let sum = among.communicator.reduce(among.members, root, summand.into_vec())?;
    match (sum, phase) {
        (Some(sum), Phase::WeightGradient) => {
            let (layer, name) = weight(step);
            let sum = device.take(sum, Number::F32);
            let into = step.state.layer_mut(layer).write(device, name).expect("a product has a weight");
            device.add(into, sum.slice());
        }
        (Some(sum), _) => blocks(step).result = Some(Tensor::take_to(device, sum, width)),
        (None, _) => {}
    }
    blocks(step).next(grid);
    Ok(())
}

impl Blocks {
    /// After a step; the input's gradient is followed by the weight's.
    fn next(&mut self, grid: usize) {
        self.step += 1;
        if self.step == grid && self.phase == Phase::InputGradient {
            (self.phase, self.step) = (Phase::WeightGradient, 0);
        }
    }
}

impl Stepwise for GridNorm {
    fn begin(&self, _: &mut Step, _: Pass) {}

    fn run(&self, step: &mut Step, pass: Pass, does: Does, among: Option<Among>) -> Result<(), Fault> {
        match (does, among, pass) {
            (Does::Grid(Grid::SumStatistics), Some(among), _) => {
                let sums = &mut step.kept().module_state::<GridNormKept>().sums;
                return among.communicator.all_reduce(among.members, sums, Combine::Sum);
            }
            (Does::Grid(_), _, Pass::Backward) => statistics_back(step),
            (Does::Grid(_), ..) => {
                let flow = step.frame.flow.as_ref().expect("the norm's input is there");
                let sums = step.device.row_sums(&kernel(step), flow.slice());
                step.kept().module_state::<GridNormKept>().sums = sums;
            }
            (Does::VectorGradient, ..) => vector_gradients(step),
            (_, _, Pass::Backward) => backward(step),
            _ => forward(step),
        }
        Ok(())
    }

    fn end(&self, _: &mut Step, _: Pass) {}
}

/// Mean and 1 / √(variance + ε) of each token from its sums.
fn forward(step: &mut Step) {
    let (norm, device) = (kernel(step), step.device);
    let columns = step.sizes.full_hidden as f32;
    let input = step.frame.take_flow();
    let sums = std::mem::take(&mut step.kept().module_state::<GridNormKept>().sums);
    let mean = |sums: &[f32]| if norm.centred { sums[0] / columns } else { 0.0 };
    let scale = |sums: &[f32]| {
        let mean = mean(sums);
        let variance = sums[1] / columns - mean * mean;
        1.0 / (variance + norm.epsilon as f32).sqrt()
    };
    let pairs = || sums.chunks_exact(2);
    let left = device.take(pairs().map(mean).chain(pairs().map(scale)).collect(), Number::F32);
    let mut output = Tensor::any_on(device, input.rows(), input.width());
    let vectors = names(step).map(|name| step.read(name));
    device.scale_rows(&norm, input.slice(), left.slice(), vectors, output.slice_mut());
    step.kept().module_state::<GridNormKept>().left = left;
    if step.place.1 != Module::FinalNorm {
        step.frame.past = Some(input);
    }
    step.frame.flow = Some(output);
}

/// The sums that the input's gradient needs of complete rows.
fn statistics_back(step: &mut Step) {
    let (norm, device) = (kernel(step), step.device);
    let input = step.kept_input();
    let left = std::mem::take(&mut step.kept().module_state::<GridNormKept>().left);
    let gradient = step.frame.gradient.as_ref().expect("the output's gradient is there").slice();
    let gain = step.read(names(step)[0]);
    let read = NormGradient { x: input.slice(), gain, left: left.slice(), gradient };
    let sums = device.gradient_sums(&norm, read);
    *step.kept().module_state() = GridNormKept { sums, left };
}

/// What comes through the norm is added to what went past the sublayer.
fn backward(step: &mut Step) {
    let (norm, device) = (kernel(step), step.device);
    let input = step.kept_input();
    let GridNormKept { sums, left } = std::mem::take(step.kept().module_state());
    let gradient = step.frame.take_gradient();
    let zeros = || Tensor::zeros_on(device, input.rows(), input.width());
    let mut sum = step.frame.past_gradient.take().unwrap_or_else(zeros);
    let gain = step.read(names(step)[0]);
    let read = NormGradient { x: input.slice(), gain, left: left.slice(), gradient: gradient.slice() };
    device.scale_gradient(&norm, read, (&sums, step.sizes.full_hidden), sum.slice_mut());
    step.kept().module_state::<GridNormKept>().left = left;
    step.frame.gradient = Some(sum);
}

fn vector_gradients(step: &mut Step) {
    let (norm, device, names) = (kernel(step), step.device, names(step));
    let gradient = step.frame.gradient.clone().expect("the output's gradient is there");
    let input = step.kept_input();
    let left = step.frame.kept(step.place).module_state::<GridNormKept>().left.slice();
    let vectors = step.state.layer_mut(step.place.0).write_both(device, names);
    let read = NormGradient { x: input.slice(), gain: None, left, gradient: gradient.slice() };
    device.part_vectors(&norm, read, vectors);
}
