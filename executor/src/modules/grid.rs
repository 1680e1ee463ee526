//! Products and norms on a grid of tensor ranks, each of which has a block of everything (SUMMA).
//!
//! Rank (i, j) has block (i, j) of inputs and outputs: the i-th part of the sequences, the j-th of the columns. Of a weight
//! it has the i-th part of its inputs and the j-th of its outputs; of an embedding the i-th part of its entries and the j-th
//! of its columns. In step l members l of rows and columns send their blocks, or have them summed.

use super::Step;
use super::linear::{bias, weight};
use super::norm::{kernel, names};
use super::stepwise::{Among, Stepwise};
use crate::collective::Combine;
use crate::error::Fault;
use crate::tensor::Tensor;
use trainwright_kernels::{Matrix, Onto, elementwise, multiply};
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::program::{Axis, Does, Grid, Module, Pass};

/// A product in work.
#[derive(Debug)]
pub(crate) struct Blocks {
    /// Forward the input, backward the output's gradient.
    own: Tensor,
    /// What came along the row.
    row: Vec<f32>,
    /// What came along the column.
    column: Vec<f32>,
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

impl Stepwise for GridLinear {
    fn begin(&self, step: &mut Step, pass: Pass) {
        let back = pass == Pass::Backward;
        let own = if back { step.frame.take_gradient() } else { step.frame.take_flow() };
        let phase = if back { Phase::InputGradient } else { Phase::Forward };
        let (row, column) = (Vec::new(), Vec::new());
        let blocks = Blocks { own, row, column, summand: None, result: None, phase, step: 0 };
        step.kept().blocks = Some(Box::new(blocks));
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
                let gradient = step.kept().blocks.as_ref().expect("the product has begun").own.clone();
                if let Some(name) = bias(step)
                    && let Some(bias) = step.state.layer_mut(step.place.0).gradients(name)
                {
                    elementwise::bias_gradient(gradient.data(), bias);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn end(&self, step: &mut Step, pass: Pass) {
        let blocks = step.kept().blocks.take().expect("the product has begun");
        let mut result = blocks.result.expect("the product has a result");
        if pass == Pass::Backward {
            step.frame.gradient = Some(result);
            return;
        }
        if let Some(bias) = bias(step).and_then(|name| step.weights(name)) {
            elementwise::add_bias(result.data_mut(), bias);
        }
        step.frame.flow = Some(result);
    }
}

fn blocks<'s>(step: &'s mut Step) -> &'s mut Blocks {
    step.kept().blocks.as_mut().expect("the product has begun")
}

/// The block of member `step` of a row or column goes to the others.
fn broadcast(step: &mut Step, head: bool, among: Among) -> Result<(), Fault> {
    let (phase, root) = (blocks(step).phase, blocks(step).step);
    let is_root = among.members.place == root;
    let along_row = among.axis == Axis::TensorRow;
    let own = match (is_root, along_row, phase, head) {
        (false, ..) => None,
        (_, false, ..) => {
            let (layer, name) = weight(step);
            Some(step.state.layer(layer).weights(name).expect("a product has a weight").to_vec())
        }
        (_, true, Phase::WeightGradient, false) => Some(step.kept_input().data().to_vec()),
        (_, true, ..) => Some(blocks(step).own.data().to_vec()),
    };
    let block = among.communicator.broadcast(among.members, root, own)?;
    let blocks = blocks(step);
    match along_row {
        true => blocks.row = block,
        false => blocks.column = block,
    }
    Ok(())
}

fn product(step: &mut Step, head: bool) {
    let threads = step.threads;
    let (layer, name) = weight(step);
    let elements = step.state.layer(layer).weights(name).expect("a product has a weight").len();
    let grid = step.sizes.grid_rows();
    let reads_input = blocks(step).phase == Phase::WeightGradient;
    let input = reads_input.then(|| step.kept_input());
    let blocks = blocks(step);
    if blocks.step == grid {
        // What is left of the weight's gradient is its addition to what there was.
        return;
    }
    let (rows, width) = (blocks.own.rows(), blocks.own.width());
    let own = Matrix::rows(blocks.own.data(), width);
    let inner = elements / width;
    let (form, made) = match (blocks.phase, head) {
        (Phase::Forward, false) => {
            let mut sum = blocks.result.take().unwrap_or_else(|| Tensor::zeros(rows, inner));
            let b = Matrix::rows(&blocks.column, width).transposed();
            multiply(sum.data_mut(), Onto::Add, Matrix::rows(&blocks.row, width), b, threads);
            (Form::Sum, sum)
        }
        (Phase::InputGradient, true) => {
            let mut sum = blocks.result.take().unwrap_or_else(|| Tensor::zeros(rows, inner));
            let b = Matrix::rows(&blocks.column, inner);
            multiply(sum.data_mut(), Onto::Add, Matrix::rows(&blocks.row, width), b, threads);
            (Form::Sum, sum)
        }
        (Phase::Forward, true) => {
            let mut part = Tensor::any(rows, inner);
            let b = Matrix::rows(&blocks.column, width).transposed();
            multiply(part.data_mut(), Onto::Replace, own, b, threads);
            (Form::Reduced, part)
        }
        (Phase::InputGradient, false) => {
            let mut part = Tensor::any(rows, inner);
            multiply(part.data_mut(), Onto::Replace, own, Matrix::rows(&blocks.column, inner), threads);
            (Form::Reduced, part)
        }
        (Phase::WeightGradient, head) => {
            let input = input.expect("the weight's gradient reads the input");
            let mut part = Tensor::any(width, inner);
            let (gradient, read) = match head {
                true => (Matrix::rows(&blocks.row, width), Matrix::rows(input.data(), inner)),
                false => (own, Matrix::rows(&blocks.row, inner)),
            };
            multiply(part.data_mut(), Onto::Replace, gradient.transposed(), read, threads);
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
    let grid = step.sizes.grid_rows();
    let own = blocks(step);
    let (root, phase) = (own.step, own.phase);
    let summand = own.summand.take().expect("a product comes before its reduction");
    let width = summand.width();
    let sum = among.communicator.reduce(among.members, root, summand.into_vec())?;
    match (sum, phase) {
        (Some(sum), Phase::WeightGradient) => {
            let (layer, name) = weight(step);
            let into = step.state.layer_mut(layer).gradients(name).expect("a product has a weight");
            elementwise::add(into, &sum);
        }
        (Some(sum), _) => blocks(step).result = Some(Tensor::of(sum, width)),
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

/// Two numbers of each token.
type Pairs = Vec<f32>;

impl Stepwise for GridNorm {
    fn begin(&self, _: &mut Step, _: Pass) {}

    fn run(&self, step: &mut Step, pass: Pass, does: Does, among: Option<Among>) -> Result<(), Fault> {
        match (does, among, pass) {
            (Does::Grid(Grid::SumStatistics), Some(among), _) => {
                let sums = &mut step.kept().sums;
                return among.communicator.all_reduce(among.members, sums, Combine::Sum);
            }
            (Does::Grid(_), _, Pass::Backward) => statistics_back(step),
            (Does::Grid(_), ..) => {
                let flow = step.frame.flow.as_ref().expect("the norm's input is there");
                let sums: Pairs = rows(flow)
                    .flat_map(|row| [row.iter().sum(), row.iter().map(|x| x * x).sum::<f32>()])
                    .collect();
                step.kept().sums = sums;
            }
            (Does::VectorGradient, ..) => vector_gradients(step),
            (_, _, Pass::Backward) => backward(step),
            _ => forward(step),
        }
        Ok(())
    }

    fn end(&self, _: &mut Step, _: Pass) {}
}

fn rows(tensor: &Tensor) -> impl Iterator<Item = &[f32]> {
    tensor.data().chunks_exact(tensor.width())
}

/// Mean and 1 / √(variance + ε) of each token from its sums.
fn forward(step: &mut Step) {
    let norm = kernel(step);
    let whole = step.sizes.whole_hidden as f32;
    let input = step.frame.take_flow();
    let sums = std::mem::take(&mut step.kept().sums);
    let statistics: Pairs = sums
        .chunks_exact(2)
        .flat_map(|sums| {
            let mean = if norm.centred { sums[0] / whole } else { 0.0 };
            let variance = sums[1] / whole - mean * mean;
            [mean, 1.0 / (variance + norm.epsilon as f32).sqrt()]
        })
        .collect();
    let mut output = normalised(&input, &statistics);
    let width = output.width();
    let [gain, bias] = names(step).map(|name| step.weights(name));
    for row in output.data_mut().chunks_exact_mut(width) {
        if let Some(gain) = gain {
            row.iter_mut().zip(gain).for_each(|(x, gain)| *x *= gain);
        }
        if let Some(bias) = bias {
            elementwise::add(row, bias);
        }
    }
    step.kept().deviations = statistics;
    if step.place.1 != Module::FinalNorm {
        step.frame.past = Some(input);
    }
    step.frame.flow = Some(output);
}

/// (x − mean) / deviation.
fn normalised(input: &Tensor, statistics: &[f32]) -> Tensor {
    let mut output = input.copy();
    let width = output.width();
    for (row, own) in output.data_mut().chunks_exact_mut(width).zip(statistics.chunks_exact(2)) {
        row.iter_mut().for_each(|x| *x = (*x - own[0]) * own[1]);
    }
    output
}

/// Σ g and Σ g x̂ of each token, g the output's gradient times the gain.
fn statistics_back(step: &mut Step) {
    let (gradient, hat) = scaled_and_normalised(step);
    let pairs = rows(&gradient).zip(rows(&hat));
    let sums =
        pairs.flat_map(|(g, x)| [g.iter().sum(), g.iter().zip(x).map(|(g, x)| g * x).sum::<f32>()]).collect();
    step.kept().sums = sums;
}

fn scaled_and_normalised(step: &mut Step) -> (Tensor, Tensor) {
    let mut gradient = step.frame.gradient.clone().expect("the output's gradient is there");
    let [gain, _] = names(step).map(|name| step.weights(name));
    let width = gradient.width();
    if let Some(gain) = gain {
        for row in gradient.data_mut().chunks_exact_mut(width) {
            row.iter_mut().zip(gain).for_each(|(g, gain)| *g *= gain);
        }
    }
    let input = step.kept_input();
    (gradient, normalised(&input, &step.kept().deviations))
}

/// ∂x = (g − [Σ g / h] − x̂ Σ g x̂ / h) / deviation, the bracket only where the norm is centred.
fn backward(step: &mut Step) {
    let centred = kernel(step).centred;
    let whole = step.sizes.whole_hidden as f32;
    let (mut gradient, hat) = scaled_and_normalised(step);
    let width = gradient.width();
    let kept = step.kept();
    let per_token = kept.sums.chunks_exact(2).zip(kept.deviations.chunks_exact(2));
    for ((row, x), (sums, own)) in gradient.data_mut().chunks_exact_mut(width).zip(rows(&hat)).zip(per_token)
    {
        let mean = if centred { sums[0] / whole } else { 0.0 };
        row.iter_mut().zip(x).for_each(|(g, x)| *g = (*g - mean - x * sums[1] / whole) * own[1]);
    }
    if let Some(past) = step.frame.past_gradient.take() {
        elementwise::add(gradient.data_mut(), past.data());
    }
    step.frame.gradient = Some(gradient);
}

fn vector_gradients(step: &mut Step) {
    let names = names(step);
    let gradient = step.frame.gradient.clone().expect("the output's gradient is there");
    let input = step.kept_input();
    let hat = normalised(&input, &step.kept().deviations);
    let layer = step.state.layer_mut(step.place.0);
    if let Some(gain) = layer.gradients(names[0]) {
        for (g, x) in rows(&gradient).zip(rows(&hat)) {
            gain.iter_mut().zip(g.iter().zip(x)).for_each(|(gain, (g, x))| *gain += g * x);
        }
    }
    if let Some(bias) = layer.gradients(names[1]) {
        elementwise::bias_gradient(gradient.data(), bias);
    }
}
