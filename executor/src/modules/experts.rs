//! The router of a mixture of experts, and the products of its experts, each over the rows of the tokens that visit it.

use super::linear::Linear;
use super::route::Choices;
use super::{Operator, Step};
use crate::parameters::ParameterName;
use crate::tensor::Tensor;
use std::rc::Rc;
use trainwright_kernels::{Matrix, Onto, multiply};
use trainwright_spec::program::Module;

/// Scores are a linear function of a token, which itself flows on.
pub(super) struct Router;

/// The experts with the highest scores, each weighed by the softmax over the scores of those (Jiang et al. 2024, Mixtral of
/// Experts, arXiv 2401.04088, section 2.1). Of equal scores the first one's expert is chosen.
pub(super) struct TopK;

/// A matrix for each expert.
pub(super) struct Grouped;

impl Operator for Router {
    fn forward(&self, step: &mut Step, input: Tensor) -> Tensor {
        let weights = step.weights(ParameterName::Router).expect("a router has a weight");
        let mut scores = Tensor::any(input.rows(), weights.len() / input.width());
        let by_row = Matrix::rows(weights, input.width()).transposed();
        let rows = Matrix::rows(input.data(), input.width());
        multiply(scores.data_mut(), Onto::Replace, rows, by_row, step.threads);
        step.kept().scores = Some(scores);
        input
    }

    /// Adds what comes through the scores.
    fn backward(&self, step: &mut Step, mut gradient: Tensor) -> Option<Tensor> {
        let scores = step.kept().scores.take().expect("the choice leaves the gradient of the scores");
        let weights = step.weights(ParameterName::Router).expect("a router has a weight");
        let width = gradient.width();
        let rows = Matrix::rows(scores.data(), scores.width());
        multiply(gradient.data_mut(), Onto::Add, rows, Matrix::rows(weights, width), step.threads);
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
        let scores = step.frame.kept(router).scores.take().expect("the router scores before");
        let mut choices = Choices { per_token, experts: Vec::new(), gates: Vec::new() };
        let mut order: Vec<usize> = Vec::new();
        for row in scores.data().chunks_exact(scores.width()) {
            order.clear();
            order.extend(0..row.len());
            // Stable: of equal scores the first one's expert comes first.
            order.sort_by(|one, other| row[*other].total_cmp(&row[*one]));
            let chosen = &order[..per_token];
            let exponentials = chosen.iter().map(|expert| (row[*expert] - row[chosen[0]]).exp());
            let sum: f32 = exponentials.clone().sum();
            choices.experts.extend(chosen.iter().map(|expert| *expert as u32));
            choices.gates.extend(exponentials.map(|e| e / sum));
        }
        step.kept().choices = Some(Rc::new(choices));
        input
    }

    /// ∂l = g (∂g − Σ g ∂g) for the scores l of the chosen, g their softmax.
    fn backward(&self, step: &mut Step, gradient: Tensor) -> Option<Tensor> {
        let count = step.experts().count;
        let kept = step.kept();
        let to_gates = kept.scores.take().expect("dispatch leaves the gradient of the gates");
        let choices = kept.choices.take().expect("forward chose");
        let k = choices.per_token;
        let mut to_scores = Tensor::zeros(gradient.rows(), count);
        for (token, row) in to_scores.data_mut().chunks_exact_mut(count).enumerate() {
            let own = token * k..(token + 1) * k;
            let (gates, to_gates) = (&choices.gates[own.clone()], &to_gates.data()[own.clone()]);
            let mean: f32 = gates.iter().zip(to_gates).map(|(gate, to_gate)| gate * to_gate).sum();
            for ((expert, gate), to_gate) in choices.experts[own].iter().zip(gates).zip(to_gates) {
                row[*expert as usize] = gate * (to_gate - mean);
            }
        }
        step.frame.kept((step.place.0, Module::Router)).scores = Some(to_scores);
        Some(gradient)
    }
}

impl Operator for Grouped {
    fn forward(&self, step: &mut Step, input: Tensor) -> Tensor {
        let groups = groups(step);
        let weights = step.weights(name(step)).expect("experts have weights");
        let each = weights.len() / (groups.len() - 1);
        let (inputs, outputs) = (input.width(), each / input.width());
        let mut output = Tensor::any(input.rows(), outputs);
        for (expert, rows) in groups.windows(2).enumerate() {
            let own = Matrix::rows(&input.data()[rows[0] * inputs..rows[1] * inputs], inputs);
            let weight = Matrix::rows(&weights[expert * each..(expert + 1) * each], inputs).transposed();
            let into = &mut output.data_mut()[rows[0] * outputs..rows[1] * outputs];
            multiply(into, Onto::Replace, own, weight, step.threads);
        }
        step.kept().groups = groups;
        output
    }

    fn backward(&self, step: &mut Step, gradient: Tensor) -> Option<Tensor> {
        let groups = step.kept().groups.clone();
        let weights = step.weights(name(step)).expect("experts have weights");
        let each = weights.len() / (groups.len() - 1);
        let (outputs, inputs) = (gradient.width(), each / gradient.width());
        let mut to_input = Tensor::any(gradient.rows(), inputs);
        for (expert, rows) in groups.windows(2).enumerate() {
            let own = Matrix::rows(&gradient.data()[rows[0] * outputs..rows[1] * outputs], outputs);
            let weight = Matrix::rows(&weights[expert * each..(expert + 1) * each], inputs);
            let into = &mut to_input.data_mut()[rows[0] * inputs..rows[1] * inputs];
            multiply(into, Onto::Replace, own, weight, step.threads);
        }
        Some(to_input)
    }

    fn weight_gradient(&self, step: &mut Step) {
        let groups = step.kept().groups.clone();
        let gradient = step.frame.output_gradient(step.place);
        let input = step.kept_input();
        let (outputs, inputs) = (gradient.width(), input.width());
        let name = name(step);
        let into = step.state.layer_mut(step.place.0).gradients(name).expect("experts have weights");
        for (rows, into) in groups.windows(2).zip(into.chunks_exact_mut(outputs * inputs)) {
            if rows[0] == rows[1] {
                continue;
            }
            let own = Matrix::rows(&gradient.data()[rows[0] * outputs..rows[1] * outputs], outputs);
            let read = Matrix::rows(&input.data()[rows[0] * inputs..rows[1] * inputs], inputs);
            multiply(into, Onto::Add, own.transposed(), read, step.threads);
        }
    }
}

fn groups(step: &mut Step) -> Vec<usize> {
    let dispatch = (step.place.0, Module::Dispatch);
    let routing = step.frame.kept(dispatch).routing.as_ref().expect("tokens are dispatched before");
    routing.groups().to_vec()
}

fn name(step: &Step) -> ParameterName {
    match step.place.1 {
        Module::ExpertFc1 => ParameterName::ExpertFc1,
        _ => ParameterName::ExpertFc2,
    }
}
