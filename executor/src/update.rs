//! The end of a step: gradients of all ranks together, their norm, the optimizer.

use crate::collective::{Combine, Communicator, Members};
use crate::error::Fault;
use crate::layers::{gather_weights, reduce_gradients};
use crate::parameters::ParameterName;
use crate::settings::Settings;
use crate::sizes::Sizes;
use crate::state::{LayerState, Owned, State};
use trainwright_kernels::Threads;
use trainwright_kernels::norm::sum_of_squares;
use trainwright_kernels::optimizer::{AdamW, Momentum, StepSize, descend};
use trainwright_spec::program::{UpdateStep, Work};

/// The optimizers there are, by their names in jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Optimizer {
    AdamW,
    Momentum,
    Sgd,
}

impl Optimizer {
    /// The one of that name; none if the executor has not got it.
    pub fn of_name(name: &str) -> Option<Self> {
        match name {
            "adamw" => Some(Optimizer::AdamW),
            "momentum" => Some(Optimizer::Momentum),
            "sgd" => Some(Optimizer::Sgd),
            _ => None,
        }
    }

    /// Moments of each weight.
    pub fn moments(self) -> u64 {
        match self {
            Optimizer::AdamW => 2,
            Optimizer::Momentum => 1,
            Optimizer::Sgd => 0,
        }
    }
}

/// β₁ and β₂ of published language models (Brown et al. 2020, arXiv 2005.14165, appendix B).
const BETAS: [f32; 2] = [0.9, 0.95];
const MOMENTUM: Momentum = Momentum { momentum: 0.9 };

/// The update of one step on one rank.
pub(crate) struct Update<'a> {
    pub settings: &'a Settings,
    pub sizes: &'a Sizes,
    pub optimizer: Optimizer,
    /// Number of the step, from 1.
    pub step: usize,
    /// The sum of the squares of the gradients so far.
    pub squares: f64,
    /// What gradients are still to be multiplied by.
    pub scale: f32,
    /// For the optimizer.
    pub threads: Threads,
}

impl<'a> Update<'a> {
    /// Before its first op.
    pub fn new(settings: &'a Settings, sizes: &'a Sizes, optimizer: Optimizer, step: usize) -> Self {
        Self { settings, sizes, optimizer, step, squares: 0.0, scale: 1.0, threads: Threads::ONE }
    }

    /// Runs an op of the update.
    pub fn run(
        &mut self,
        step: UpdateStep,
        work: &Work,
        members: Option<&Members>,
        communicator: &mut Communicator,
        state: &mut State,
    ) -> Result<(), Fault> {
        let members = || members.expect("a collective has a group");
        match (step, work) {
            (UpdateStep::ReduceGradients, Work::Collective { kind, .. }) => {
                for (_, layer) in state.layers_mut() {
                    reduce_gradients(communicator, members(), *kind, layer)?;
                }
            }
            (UpdateStep::SumWhole, _) => sum_whole(communicator, members(), state)?,
            (UpdateStep::SumEmbedding, _) => sum_embedding(communicator, members(), state)?,
            (UpdateStep::SquareNorm, _) => self.squares = self.own_squares(state),
            (UpdateStep::SumNorm, _) => {
                let mut squares = [self.squares as f32];
                communicator.all_reduce(members(), &mut squares, Combine::Sum)?;
                self.squares = f64::from(squares[0]);
            }
            (UpdateStep::Clip, _) => {
                let norm = self.squares.sqrt();
                if !norm.is_finite() {
                    return Err(Fault::NotFinite { what: "the norm of the gradients" });
                }
                self.scale = (self.settings.largest_gradient_norm / norm).min(1.0) as f32;
            }
            (UpdateStep::Optimize, _) => state.layers_mut().for_each(|(_, layer)| self.optimize(layer)),
            (UpdateStep::GatherWeights, _) => {
                for (_, layer) in state.layers_mut() {
                    gather_weights(communicator, members(), layer)?;
                }
            }
            (step, work) => unreachable!("{step:?} by {work:?} is refused before a run"),
        }
        Ok(())
    }

    /// This rank's share of Σ g²: what several ranks hold counts once.
    fn own_squares(&self, state: &mut State) -> f64 {
        let mut sum = 0.0;
        for (_, layer) in state.layers_mut() {
            layer.owned(|owned| {
                let squares = sum_of_squares(owned.gradients, self.threads);
                sum += match (owned.parameter.copied, owned.parameter.replicated) {
                    (true, _) => 0.0,
                    (false, true) => squares / self.sizes.tensor as f64,
                    (false, false) => squares,
                };
            });
        }
        sum
    }

    fn optimize(&self, layer: &mut LayerState) {
        let rate = self.settings.learning_rate.at(self.step);
        let [beta1, beta2] = BETAS;
        let adam = AdamW { beta1, beta2, epsilon: self.settings.adam_epsilon };
        layer.owned(|Owned { parameter, weights, gradients, moments }| {
            let decay = if parameter.decays() { self.settings.weight_decay } else { 0.0 };
            let size = StepSize { rate, decay, gradient_scale: self.scale, step: self.step as u32 };
            match (self.optimizer, moments) {
                (Optimizer::AdamW, [first, second]) => {
                    adam.update(weights, gradients, [first, second], size, self.threads);
                }
                (Optimizer::Momentum, [velocity]) => MOMENTUM.update(weights, gradients, velocity, size),
                _ => descend(weights, gradients, size),
            }
        });
        layer.gradients.whole.fill(0.0);
        layer.gradients.own.iter_mut().for_each(|own| own.fill(0.0));
    }
}

/// Sums the gradients of what every tensor rank holds whole, as far as this rank updates it.
fn sum_whole(communicator: &mut Communicator, members: &Members, state: &mut State) -> Result<(), Fault> {
    let mut together = Vec::new();
    let visit = |state: &mut State, work: &mut dyn FnMut(&mut [f32])| {
        for (_, layer) in state.layers_mut() {
            layer.owned(|owned| {
                if owned.parameter.replicated {
                    work(owned.gradients);
                }
            });
        }
    };
    visit(state, &mut |gradients| together.extend_from_slice(gradients));
    communicator.all_reduce(members, &mut together, Combine::Sum)?;
    let mut at = 0;
    visit(state, &mut |gradients| {
        gradients.copy_from_slice(&together[at..at + gradients.len()]);
        at += gradients.len();
    });
    Ok(())
}

/// Sums the gradients of both copies of the tied embedding, of which their ranks update the same pieces.
fn sum_embedding(communicator: &mut Communicator, members: &Members, state: &mut State) -> Result<(), Fault> {
    let mut summed = Ok(());
    for (_, layer) in state.layers_mut() {
        layer.owned(|owned| {
            if owned.parameter.name == ParameterName::TokenEmbedding {
                summed = communicator.all_reduce(members, owned.gradients, Combine::Sum);
            }
        });
    }
    summed
}
