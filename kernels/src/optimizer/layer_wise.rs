//! Optimizers that scale the step of each tensor by its norm over that of its update. Both norms are known only once all of
//! a tensor's parts have been seen, so a step has two halves.

use super::StepSize;
use crate::lanes::{dot, wide};
use crate::real::Real;

/// LAMB (You et al. 2019, arXiv 1904.00962, algorithm 2): Adam's step with weight decay, u, as long as the tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lamb {
    /// β₁.
    pub beta1: f32,
    /// β₂.
    pub beta2: f32,
    /// ε.
    pub epsilon: f32,
}

/// LARS (You, Gitman & Ginsburg 2017, arXiv 1708.03888, algorithm 1): SGD with momentum whose rate is that of the tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lars {
    /// μ.
    pub momentum: f32,
    /// η, the trust coefficient.
    pub trust: f32,
}

/// Squares that a part of a tensor adds to its norm and to that of its update.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Squares {
    /// Of the tensor.
    pub weights: f64,
    /// Of the update.
    pub update: f64,
}

impl Lamb {
    /// m = β₁ m + (1 − β₁) g; v = β₂ v + (1 − β₂) g²; u = m̂ / (√v̂ + ε) + λ w, which takes the place of the gradients.
    pub fn prepare(
        &self,
        weights: &[f32],
        gradients: &mut [f32],
        [first, second]: [&mut [f32]; 2],
        size: StepSize,
    ) -> Squares {
        let Lamb { beta1, beta2, epsilon } = *self;
        let corrections = [beta1, beta2].map(|beta| (1.0 - f64::from(beta).powi(size.step as i32)) as f32);
        wide(|| {
            let moments = first.iter_mut().zip(second.iter_mut());
            for ((weight, gradient), (m, v)) in weights.iter().zip(gradients.iter_mut()).zip(moments) {
                let g = *gradient * size.gradient_scale;
                *m = beta1 * *m + (1.0 - beta1) * g;
                *v = beta2 * *v + (1.0 - beta2) * g * g;
                let step = *m / corrections[0] / ((*v / corrections[1]).sqrt() + epsilon);
                *gradient = step + size.decay * *weight;
            }
        });
        squares(weights, gradients)
    }

    /// ‖w‖/‖u‖; 1 where either is 0.
    pub fn ratio(tensor: Squares) -> f32 {
        if tensor.weights > 0.0 && tensor.update > 0.0 {
            (tensor.weights / tensor.update).sqrt() as f32
        } else {
            1.0
        }
    }

    /// w −= η r u, r the ratio.
    pub fn apply(&self, weights: &mut [f32], updates: &[f32], size: StepSize, tensor: Squares) {
        let rate = size.rate * Self::ratio(tensor);
        wide(|| weights.iter_mut().zip(updates).for_each(|(weight, update)| *weight -= rate * update));
    }
}

impl Lars {
    /// Scales the gradients.
    pub fn prepare(&self, weights: &[f32], gradients: &mut [f32], size: StepSize) -> Squares {
        wide(|| gradients.iter_mut().for_each(|gradient| *gradient *= size.gradient_scale));
        squares(weights, gradients)
    }

    /// λ_w = trust ‖w‖ / (‖g‖ + λ ‖w‖); 1 where either norm is 0.
    pub fn ratio(&self, tensor: Squares, decay: f32) -> f32 {
        let [weight_norm, norm] = [tensor.weights, tensor.update].map(f64::sqrt);
        if weight_norm > 0.0 && norm > 0.0 {
            (f64::from(self.trust) * weight_norm / (norm + f64::from(decay) * weight_norm)) as f32
        } else {
            1.0
        }
    }

    /// v = μ v + η λ_w (g + λ w), w −= v.
    pub fn apply(
        &self,
        weights: &mut [f32],
        gradients: &[f32],
        velocity: &mut [f32],
        size: StepSize,
        tensor: Squares,
    ) {
        let rate = size.rate * self.ratio(tensor, size.decay);
        wide(|| {
            for ((weight, gradient), velocity) in weights.iter_mut().zip(gradients).zip(velocity) {
                *velocity = self.momentum * *velocity + rate * (*gradient + size.decay * *weight);
                *weight -= *velocity;
            }
        });
    }
}

fn squares(weights: &[f32], update: &[f32]) -> Squares {
    let sum = |x: &[f32]| x.chunks(4096).map(|block| wide(|| dot(block, block)).wide()).sum();
    Squares { weights: sum(weights), update: sum(update) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: StepSize = StepSize { rate: 0.1, decay: 0.5, gradient_scale: 1.0, step: 1 };

    #[test]
    fn a_step_of_lamb_is_as_long_as_the_tensor() {
        // First step: m̂ = g, v̂ = g², so u = (±1) + 0.5 w = (1 + 1.5, −1 + 2) = (2.5, 1); ‖w‖ = 5, ‖u‖² = 7.25.
        let lamb = Lamb { beta1: 0.9, beta2: 0.99, epsilon: 0.0 };
        let (mut weights, mut gradients) = ([3.0, 4.0], [7.0, -2.0]);
        let (mut m, mut v) = ([0.0; 2], [0.0; 2]);
        let squares = lamb.prepare(&weights, &mut gradients, [&mut m, &mut v], SIZE);
        assert!((squares.weights - 25.0).abs() < 1e-6 && (squares.update - 7.25).abs() < 1e-4, "{squares:?}");
        lamb.apply(&mut weights, &gradients, SIZE, squares);
        let ratio = 5.0 / 7.25f32.sqrt();
        assert!((weights[0] - (3.0 - 0.25 * ratio)).abs() < 1e-4, "{weights:?}");
        assert!((weights[1] - (4.0 - 0.1 * ratio)).abs() < 1e-4, "{weights:?}");
    }

    #[test]
    fn the_rate_of_lars_is_that_of_the_tensor() {
        // ‖w‖ = 5, ‖g‖ = 10: 0.01 · 5 / (10 + 0.5 · 5) = 0.004; v = 0.1 · 0.004 · (g + w/2) = 0.0004 (7.5, 10).
        let lars = Lars { momentum: 0.9, trust: 0.01 };
        let (mut weights, mut gradients, mut velocity) = ([3.0, 4.0], [6.0, 8.0], [0.0; 2]);
        let squares = lars.prepare(&weights, &mut gradients, SIZE);
        lars.apply(&mut weights, &gradients, &mut velocity, SIZE, squares);
        assert!((velocity[0] - 0.003).abs() < 1e-7 && (velocity[1] - 0.004).abs() < 1e-7, "{velocity:?}");
        assert!((weights[0] - 2.997).abs() < 1e-6 && (weights[1] - 3.996).abs() < 1e-6, "{weights:?}");
    }
}
