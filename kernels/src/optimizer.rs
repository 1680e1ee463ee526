//! Optimizers over slices of weights.

mod layer_wise;

pub use layer_wise::{Lamb, Lars, Squares};

use crate::lanes::wide;
use crate::threads::Threads;

/// Adam with decoupled weight decay (Loshchilov & Hutter 2017, arXiv 1711.05101), as PyTorch's AdamW computes it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// β₁.
    pub beta1: f32,
    /// β₂.
    pub beta2: f32,
    /// ε.
    pub epsilon: f32,
}

/// SGD with momentum: v = μ v + g, w −= η v, as PyTorch's SGD computes it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Momentum {
    /// μ.
    pub momentum: f32,
}

/// The scalars of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepSize {
    /// Learning rate, η.
    pub rate: f32,
    /// Weight decay, λ.
    pub decay: f32,
    /// Factor of the gradients.
    pub gradient_scale: f32,
    /// Number of the step, from 1.
    pub step: u32,
}

impl AdamW {
    /// m = β₁ m + (1 − β₁) g; v = β₂ v + (1 − β₂) g²; w −= η λ w + η m̂ / (√v̂ + ε), m̂ = m/(1 − β₁ᵗ), v̂ = v/(1 − β₂ᵗ).
    pub fn update(
        &self,
        weights: &mut [f32],
        gradients: &[f32],
        [first, second]: [&mut [f32]; 2],
        size: StepSize,
        threads: Threads,
    ) {
        threads.parts([weights, first, second], |start, [weights, first, second]| {
            let gradients = &gradients[start..start + weights.len()];
            self.update_part(weights, gradients, [first, second], size);
        });
    }

    fn update_part(
        &self,
        weights: &mut [f32],
        gradients: &[f32],
        [first, second]: [&mut [f32]; 2],
        size: StepSize,
    ) {
        let AdamW { beta1, beta2, epsilon } = *self;
        let step = size.step as i32;
        let correction1 = (1.0 - f64::from(beta1).powi(step)) as f32;
        let correction2 = (1.0 - f64::from(beta2).powi(step)).sqrt() as f32;
        let (kept, rate) = (1.0 - size.rate * size.decay, size.rate / correction1);
        wide(|| {
            let moments = first.iter_mut().zip(second.iter_mut());
            for ((weight, gradient), (m, v)) in weights.iter_mut().zip(gradients).zip(moments) {
                let gradient = *gradient * size.gradient_scale;
                *m = beta1 * *m + (1.0 - beta1) * gradient;
                *v = beta2 * *v + (1.0 - beta2) * gradient * gradient;
                *weight = *weight * kept - rate * *m / (v.sqrt() / correction2 + epsilon);
            }
        });
    }
}

impl Momentum {
    /// g += λ w; v = μ v + g; w −= η v.
    pub fn update(&self, weights: &mut [f32], gradients: &[f32], velocity: &mut [f32], size: StepSize) {
        wide(|| {
            for ((weight, gradient), velocity) in weights.iter_mut().zip(gradients).zip(velocity) {
                let gradient = *gradient * size.gradient_scale + size.decay * *weight;
                *velocity = self.momentum * *velocity + gradient;
                *weight -= size.rate * *velocity;
            }
        });
    }
}

/// w −= η (g + λ w).
pub fn descend(weights: &mut [f32], gradients: &[f32], size: StepSize) {
    wide(|| {
        for (weight, gradient) in weights.iter_mut().zip(gradients) {
            *weight -= size.rate * (*gradient * size.gradient_scale + size.decay * *weight);
        }
    });
}
