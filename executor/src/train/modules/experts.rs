//! The router of a mixture of experts, and the products of its experts, each over the rows of the tokens that visit it.

use super::few_rows::{multiply_experts, multiply_rows};
use super::linear::Linear;
use super::operator::{Operator, Step};
use super::token_routing::{Choices, Chosen, Routing};
use crate::device::tensor::Tensor;
use crate::device::{Device, ExpertPass, ExpertProducts, Matrix, Product, SliceMut};
use crate::train::parameters::ParameterName;
use std::rc::Rc;
use trainwright_kernels::Onto;
use trainwright_kernels::cuda::Number;
use trainwright_spec::program::Module;

/// The experts' scores of each token; backward their gradients, which the choice leaves.
#[derive(Debug, Default)]
struct Scores(Option<Tensor>);

/// Where each expert's rows begin, and where the last one's end.
#[derive(Debug, Default)]
struct Groups(Vec<usize>);

/// Scores are a linear function of a token, which itself flows on.
pub(super) struct Router;

/// The experts with the highest scores, each weighed by the softmax over the scores of those (Jiang et al. 2024, Mixtral of
/// Experts, arXiv 2401.04088, section 2.1). Of equal scores the first one's expert is chosen.
pub(super) struct TopK;

/// A matrix for each expert.
pub(super) struct Grouped;

impl Operator for Router {
    fn forward(&self, step: &mut Step, input: Tensor) -> Tensor {
        if step.frame.generates() {
            let scores = multiply_rows(step, (step.place.0, ParameterName::Router), &input, None);
            step.kept().module_state::<Scores>().0 = Some(scores);
            return input;
        }
        let weights = step.read(ParameterName::Router).expect("a router has a weight");
        let count = weights.len() / input.width();
        // The choice sees scores in 32 bits.
        let mut scores = Tensor::of(step.device.any(input.rows() * count, Number::F32), count);
        let right = Matrix::rows(weights, input.width()).transposed();
        let left = Matrix::rows(input.slice(), input.width());
        multiply(step.device, scores.slice_mut(), Onto::Replace, [left, right]);
        step.kept().module_state::<Scores>().0 = Some(scores);
        input
    }

    /// Adds what comes through the scores.
    fn backward(&self, step: &mut Step, mut gradient: Tensor) -> Option<Tensor> {
        let scores = step
            .kept()
            .module_state::<Scores>()
            .0
            .take()
            .expect("the choice leaves the gradient of the scores");
        let weights = step.read(ParameterName::Router).expect("a router has a weight");
        let right = Matrix::rows(weights, gradient.width());
        let left = Matrix::rows(scores.slice(), scores.width());
        multiply(step.device, gradient.slice_mut(), Onto::Add, [left, right]);
        step.kept().output_gradient = Some(scores);
        Some(gradient)
    }

    fn weight_gradient(&self, step: &mut Step) {
        Linear.weight_gradient(step);
    }
}

impl Operator for TopK {
    fn reads_input(&self) -> bool {
        false
    }

    fn forward(&self, step: &mut Step, input: Tensor) -> Tensor {
        let per_token = step.experts().per_token;
        let router = (step.place.0, Module::Router);
        let scores =
            step.frame.kept(router).module_state::<Scores>().0.take().expect("the router scores before");
        let (experts, gates) = step.device.choose(scores.slice(), scores.width(), per_token);
        step.kept().module_state::<Chosen>().choices = Some(Rc::new(Choices { per_token, experts, gates }));
        input
    }

    /// ∂l = g (∂g − Σ g ∂g) for the scores l of the chosen, g their softmax. The gradients of the gates are the host's.
    fn backward(&self, step: &mut Step, gradient: Tensor) -> Option<Tensor> {
        let count = step.experts().count;
        let chosen = step.kept().module_state::<Chosen>();
        let to_gates = chosen.to_gates.take().expect("dispatch leaves the gradient of the gates");
        let choices = chosen.choices.take().expect("forward chose");
        let k = choices.per_token;
        let mut to_scores = Tensor::zeros(gradient.rows(), count);
        for (token, row) in to_scores.data_mut().chunks_exact_mut(count).enumerate() {
            let picked = token * k..(token + 1) * k;
            let (gates, to_gates) = (&choices.gates[picked.clone()], &to_gates.data()[picked.clone()]);
            let mean: f32 = gates.iter().zip(to_gates).map(|(gate, to_gate)| gate * to_gate).sum();
            for ((expert, gate), to_gate) in choices.experts[picked].iter().zip(gates).zip(to_gates) {
                row[*expert as usize] = gate * (to_gate - mean);
            }
        }
        let to_scores = to_scores.onto(step.device);
        step.frame.kept((step.place.0, Module::Router)).module_state::<Scores>().0 = Some(to_scores);
        Some(gradient)
    }
}

impl Operator for Grouped {
    fn forward(&self, step: &mut Step, input: Tensor) -> Tensor {
        let groups = groups(step);
        if step.frame.generates() {
            return multiply_experts(step, name(step), &input, &groups);
        }
        let weights = step.read(name(step)).expect("experts have weights");
        let (inputs, outputs) = (input.width(), weights.len() / (groups.len() - 1) / input.width());
        let mut output = Tensor::any_on(step.device, input.rows(), outputs);
        let (left, starts) = (input.slice(), &groups[..]);
        let products =
            ExpertProducts { pass: ExpertPass::Forward, left, right: weights, starts, inputs, outputs };
        step.device.multiply_experts(output.slice_mut(), products);
        step.kept().module_state::<Groups>().0 = groups;
        output
    }

    fn backward(&self, step: &mut Step, gradient: Tensor) -> Option<Tensor> {
        let groups = step.kept().module_state::<Groups>().0.clone();
        let weights = step.read(name(step)).expect("experts have weights");
        let (outputs, inputs) = (gradient.width(), weights.len() / (groups.len() - 1) / gradient.width());
        let mut to_input = Tensor::any_on(step.device, gradient.rows(), inputs);
        let (left, starts) = (gradient.slice(), &groups[..]);
        let products =
            ExpertProducts { pass: ExpertPass::Backward, left, right: weights, starts, inputs, outputs };
        step.device.multiply_experts(to_input.slice_mut(), products);
        Some(to_input)
    }

    fn weight_gradient(&self, step: &mut Step) {
        let groups = step.kept().module_state::<Groups>().0.clone();
        let gradient = step.frame.output_gradient(step.place);
        let input = step.kept_input();
        let (outputs, inputs) = (gradient.width(), input.width());
        let (name, device) = (name(step), step.device);
        let sums = step.state.layer_mut(step.place.0).write(device, name).expect("experts have weights");
        let (left, right, starts) = (gradient.slice(), input.slice(), &groups[..]);
        let products = ExpertProducts { pass: ExpertPass::Weights, left, right, starts, inputs, outputs };
        device.multiply_experts(sums, products);
    }
}

fn multiply(device: &dyn Device, out: SliceMut, onto: Onto, [left, right]: [Matrix; 2]) {
    device.multiply(out, Product { left, right, onto, bias: None, fp8: None });
}

fn groups(step: &mut Step) -> Vec<usize> {
    let dispatch = (step.place.0, Module::Dispatch);
    let routing = step.frame.kept(dispatch).module_state::<Option<Routing>>();
    let routing = routing.as_ref().expect("tokens are dispatched before");
    routing.groups().to_vec()
}

fn name(step: &Step) -> ParameterName {
    match step.place.1 {
        Module::ExpertFc1 => ParameterName::ExpertFc1,
        _ => ParameterName::ExpertFc2,
    }
}
