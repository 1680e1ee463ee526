//! What a run is given beside its plan.

use std::num::NonZeroUsize;

/// How to train.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Steps of the optimizer.
    pub steps: usize,
    /// From which initial weights and the order of the data are made.
    pub seed: u64,
    /// How large steps are.
    pub learning_rate: LearningRate,
    /// Weight decay of matrices; vectors do not decay.
    pub weight_decay: f32,
    /// ε of Adam.
    pub adam_epsilon: f32,
    /// The bound of the gradients' norm, where the job clips it.
    pub largest_gradient_norm: f64,
    /// Threads for the kernels of all ranks together.
    pub threads: NonZeroUsize,
    /// Whether the outcome has the weights.
    pub return_weights: bool,
    /// Which steps the outcome tells op by op.
    pub records: Records,
}

/// Which steps of a run are recorded to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Records {
    /// The last one.
    #[default]
    LastStep,
    /// All of them.
    EveryStep,
}

/// A learning rate that rises linearly and then stays.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LearningRate {
    /// Where it stays.
    pub peak: f32,
    /// Steps until then.
    pub warmup: usize,
}

impl LearningRate {
    /// In step 1, 2, ….
    pub fn at(&self, step: usize) -> f32 {
        match step < self.warmup {
            true => self.peak * step as f32 / self.warmup as f32,
            false => self.peak,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::LearningRate;

    #[test]
    fn the_rate_rises_to_its_peak() {
        let rate = LearningRate { peak: 1.0, warmup: 4 };
        assert_eq!([1, 2, 3, 4, 5].map(|step| rate.at(step)), [0.25, 0.5, 0.75, 1.0, 1.0]);
        assert_eq!(LearningRate { peak: 1.0, warmup: 0 }.at(1), 1.0);
    }
}
