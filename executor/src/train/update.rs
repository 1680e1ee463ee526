//! The update at the end of a step: gradients are reduced, clipped by their norm, and applied by the optimizer.

use crate::comm::collective::{Combine, Communicator};
use crate::comm::members::Members;
use crate::comm::routes::Route;
use crate::device::{Device, Numbers, OptimizerStep, Rule, Slice, SliceMut, StepBegin, Updated};
use crate::error::Fault;
use crate::train::layer_collectives::{gather_weights, reduce_gradients};
use crate::train::optimizer::Optimizer;
use crate::train::parameters::{Layer, Parameter, ParameterName, Sharing};
use crate::train::run_context::RunContext;
use crate::train::settings::Settings;
use crate::train::sizes::Sizes;
use crate::train::state::{LayerState, Owned, State};
use trainwright_kernels::cuda::Number;
use trainwright_kernels::optimizer::{AdamW, Lamb, Lars, Momentum, Squares};
use trainwright_spec::program::{Axis, UpdateStep, Work};

/// η of LARS (You et al. 2017, arXiv 1708.03888, section 5).
const TRUST: f32 = 0.001;

/// Name of a number that may be NaN.
pub(crate) const THE_NORM: &str = "the norm of the gradients";

/// The update of one step on one rank.
pub(crate) struct Update<'a> {
    pub device: &'a dyn Device,
    pub settings: &'a Settings,
    pub sizes: &'a Sizes,
    pub optimizer: Optimizer,
    /// Number of the step, from 1.
    pub step: usize,
    /// The sum of the squares of the gradients so far: of dense weights, and of experts on other ranks than those.
    squares: [f64; 2],
    /// `squares` on the device, if it stays there until the norm is made of it.
    kept: Option<Numbers>,
    /// Whether norm and factor stay on the device: the host steps for none of its weights.
    keeps: bool,
    /// The factor that clips the gradients, once it is known.
    scale: Option<f32>,
    /// Whether gradients are clipped.
    clips: bool,
    /// By layer and parameter: the squares from which a layer-wise optimizer makes its ratios, if they are summed over ranks.
    ratios: Option<Vec<Squares>>,
}

impl<'a> Update<'a> {
    /// Before its first op.
    pub fn new(device: &'a dyn Device, shared: &'a RunContext, sizes: &'a Sizes, step: usize) -> Self {
        let RunContext { plan, settings, optimizer, .. } = *shared;
        let keeps = device.keeps() && plan.offload.optimizer.is_none();
        let clips = plan.job.gradient_clipping;
        let (squares, kept, scale, ratios) = ([0.0; 2], None, None, None);
        Self { device, settings, sizes, optimizer, step, squares, kept, keeps, scale, clips, ratios }
    }

    /// What the device needs before the step; `losses` is how many sums of losses this rank makes in it.
    pub fn begin(&self, losses: usize) -> StepBegin {
        StepBegin {
            rule: self.rule(),
            rate: self.settings.learning_rate.at(self.step),
            step: self.step,
            losses,
        }
    }

    /// Whether the norm stays on the device until the end of the step.
    pub fn keeps(&self) -> bool {
        self.keeps
    }

    /// The norm of all gradients, once it has been summed.
    pub fn norm(&self) -> f64 {
        self.squares.iter().sum::<f64>().sqrt()
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
        if let Work::Collective { kind, axis, .. } = work {
            // A group of one has nothing to do.
            let Some(members) = members else { return Ok(()) };
            let mut each = |work: &mut dyn FnMut(&mut LayerState, &mut Communicator) -> Result<(), Fault>| {
                state.layers_mut().try_for_each(|(_, layer)| work(layer, communicator))
            };
            return match step {
                UpdateStep::ReduceGradients => each(&mut |layer, communicator| {
                    reduce_gradients(self.device, communicator, members, (*kind, *axis), layer)
                }),
                UpdateStep::GatherWeights => each(&mut |layer, communicator| {
                    gather_weights(self.device, communicator, members, *axis, layer)
                }),
                UpdateStep::SumReplicated => sum_replicated(self.device, communicator, members, state),
                UpdateStep::SumCopies => sum_where(self.device, communicator, members, state, |_| true),
                UpdateStep::SumEmbedding => {
                    let embedding = |owned: &Owned| owned.parameter.name == ParameterName::TokenEmbedding;
                    sum_where(self.device, communicator, members, state, embedding)
                }
                UpdateStep::SumNorm => self.sum_squares(communicator, members, *axis),
                UpdateStep::SumRatios => self.sum_ratios(communicator, members, *axis, state),
                step => unreachable!("{step:?} by {work:?} is refused before a run"),
            };
        }
        match (step, work) {
            (UpdateStep::SquareNorm, _) if self.keeps => self.kept = Some(self.kept_squares(state)),
            (UpdateStep::SquareNorm, _) => self.squares = self.local_squares(state),
            (UpdateStep::Clip, _) => match self.kept.take() {
                Some(kept) => self.device.clip(kept.slice(), self.settings.largest_gradient_norm as f32),
                None => drop(self.gradient_scale()?),
            },
            (UpdateStep::Optimize, _) => self.optimize(state, |_| true)?,
            // Products quantise their operands themselves.
            (UpdateStep::QuantiseWeights, _) => {}
            (step, work) => unreachable!("{step:?} by {work:?} is refused before a run"),
        }
        Ok(())
    }

    /// By how many ranks the squares of a parameter are counted; `None` if another rank counts them.
    fn counts(&self, parameter: &Parameter) -> Option<f64> {
        let copies = self.sizes.copies as f64;
        match (parameter.copied, parameter.replicated) {
            (true, _) => None,
            (false, true) => Some(copies * self.sizes.holders() as f64),
            (false, false) => Some(copies),
        }
    }

    /// This rank's share of Σ g²: what several ranks hold counts once.
    fn local_squares(&self, state: &State) -> [f64; 2] {
        let shards: Vec<_> = state.layers().flat_map(|(_, layer)| layer.gradient_shards()).collect();
        let gradients: Vec<_> = shards.iter().map(|(_, gradients)| *gradients).collect();
        let mut sums = [0.0; 2];
        for ((parameter, _), squares) in shards.iter().zip(self.device.squares(&gradients)) {
            sums[parameter.sharing as usize] += self.counts(parameter).map_or(0.0, |ranks| squares / ranks);
        }
        sums
    }

    /// The squares of `local_squares`, kept on the device.
    fn kept_squares(&self, state: &State) -> Numbers {
        let mut all: [Vec<(Slice, f32)>; 2] = Default::default();
        for (parameter, gradients) in state.layers().flat_map(|(_, layer)| layer.gradient_shards()) {
            if let Some(ranks) = self.counts(parameter) {
                all[parameter.sharing as usize].push((gradients, (1.0 / ranks) as f32));
            }
        }
        self.device.square_sums(all.each_ref().map(Vec::as_slice))
    }

    /// Sums the squares over the members of a group that hold different parts.
    fn sum_squares(
        &mut self,
        communicator: &mut Communicator,
        members: &Members,
        axis: Axis,
    ) -> Result<(), Fault> {
        let summed = [Sharing::Dense, Sharing::Routed].map(|sharing| divides(axis, sharing));
        if let Some(kept) = &mut self.kept {
            let part = match summed {
                [true, true] => 0..2,
                [true, false] => 0..1,
                [false, true] => 1..2,
                [false, false] => return Ok(()),
            };
            return communicator.sum(self.device, members, kept.slice_mut().part(part));
        }
        let mut squares = self.squares.map(|square| square as f32);
        communicator.all_reduce(members, &mut squares, Combine::Sum)?;
        for sharing in [Sharing::Dense, Sharing::Routed] {
            if divides(axis, sharing) {
                self.squares[sharing as usize] = f64::from(squares[sharing as usize]);
            }
        }
        Ok(())
    }

    /// The factor by which gradients are multiplied so that their norm is within its bound.
    fn gradient_scale(&mut self) -> Result<f32, Fault> {
        if let Some(scale) = self.scale {
            return Ok(scale);
        }
        // The device knows better.
        if self.keeps || !self.clips {
            return Ok(1.0);
        }
        let norm = self.norm();
        if !norm.is_finite() {
            return Err(Fault::NotFinite { what: THE_NORM });
        }
        let bounded = (self.settings.largest_gradient_norm / norm).min(1.0) as f32;
        self.device.scale_gradients(bounded);
        Ok(*self.scale.insert(bounded))
    }

    fn optimizer_step(&mut self) -> Result<OptimizerStep, Fault> {
        let gradient_scale = self.gradient_scale()?;
        let rate = self.settings.learning_rate.at(self.step);
        Ok(OptimizerStep { rule: self.rule(), rate, gradient_scale, number: self.step as u32 })
    }

    /// What the optimizer changes: the weights; if weights are rounded, the f32 master weights and their rounded copy.
    fn updated<'o>(&self, owned: Owned<'o>) -> Updated<'o> {
        let Owned { parameter, weights, gradients, moments } = owned;
        let is_scaled = parameter.decays();
        let decays = is_scaled && (self.settings.decays_embeddings || !parameter.name.is_embedding());
        let decay = if decays { self.settings.weight_decay } else { 0.0 };
        let tensor = Updated { weights, gradients, moments, rounded: None, decay, is_scaled };
        if !self.sizes.rounds {
            return tensor;
        }
        let (master, moments) = tensor.moments.split_last_mut().expect("rounded weights have a master");
        Updated { weights: master.slice_mut(), moments, rounded: Some(tensor.weights), ..tensor }
    }

    /// The first half of a layer-wise optimizer's step: the sums of squares of this rank's part of each tensor and of its update.
    /// Ranks that hold the same elements count an equal share each.
    fn prepare(&mut self, state: &mut State) -> Result<Vec<Squares>, Fault> {
        let step = self.optimizer_step()?;
        let mut tensors = Vec::new();
        for (_, layer) in state.layers_mut() {
            tensors.extend(layer.all_owned().map(|owned| self.updated(owned)));
        }
        let mut all = self.device.prepare(&step, &mut tensors);
        let parameters = state.layers().flat_map(|(_, layer)| &layer.parameters);
        for (squares, _) in all.iter_mut().zip(parameters).filter(|(_, parameter)| parameter.replicated) {
            squares.weights /= self.sizes.holders() as f64;
            squares.update /= self.sizes.holders() as f64;
        }
        Ok(all)
    }

    fn sum_ratios(
        &mut self,
        communicator: &mut Communicator,
        members: &Members,
        axis: Axis,
        state: &mut State,
    ) -> Result<(), Fault> {
        let mut ratios = match self.ratios.take() {
            Some(ratios) => ratios,
            None => self.prepare(state)?,
        };
        let mut sums: Vec<f32> =
            ratios.iter().flat_map(|ratio| [ratio.weights as f32, ratio.update as f32]).collect();
        communicator.all_reduce(members, &mut sums, Combine::Sum)?;
        let parameters = state.layers().flat_map(|(_, layer)| &layer.parameters);
        for ((ratio, parameter), sums) in ratios.iter_mut().zip(parameters).zip(sums.chunks_exact(2)) {
            if divides(axis, parameter.sharing) {
                *ratio = Squares { weights: f64::from(sums[0]), update: f64::from(sums[1]) };
            }
        }
        self.ratios = Some(ratios);
        Ok(())
    }

    fn rule(&self) -> Rule {
        let ([beta1, beta2], epsilon) = (self.settings.betas, self.settings.adam_epsilon);
        let adam = AdamW { beta1, beta2, epsilon };
        match self.optimizer {
            Optimizer::AdamW => Rule::AdamW(adam),
            Optimizer::Adam => Rule::Adam(adam),
            Optimizer::Lamb => Rule::Lamb(Lamb { beta1, beta2, epsilon }),
            Optimizer::Lars => Rule::Lars(Lars { momentum: beta1, trust: TRUST }),
            Optimizer::Momentum => Rule::Momentum(Momentum { momentum: beta1 }),
            Optimizer::Sgd => Rule::Sgd,
        }
    }

    /// New weights and moments of some layers.
    pub fn optimize(&mut self, state: &mut State, is_meant: impl Fn(Layer) -> bool) -> Result<(), Fault> {
        let step = self.optimizer_step()?;
        let (mut tensors, mut squares, mut number) = (Vec::new(), Vec::new(), 0);
        for (name, layer) in state.layers_mut() {
            let of_layer = number..number + layer.parameters.len();
            number = of_layer.end;
            if is_meant(name) {
                squares.extend(self.ratios.iter().flat_map(|ratios| &ratios[of_layer.clone()]).copied());
                tensors.extend(layer.all_owned().map(|owned| self.updated(owned)));
            }
        }
        self.device.optimize(&step, &mut tensors, self.ratios.is_some().then_some(&squares));
        for (_, layer) in state.layers_mut().filter(|(name, _)| is_meant(*name)) {
            for numbers in [Some(&mut layer.gradients.full), layer.gradients.shard.as_mut()] {
                numbers.into_iter().for_each(|numbers| self.device.zero(numbers.slice_mut()));
            }
        }
        Ok(())
    }
}

/// Sums the gradients of the parameters that every tensor rank holds in full, as far as this rank updates them.
fn sum_replicated(
    device: &dyn Device,
    communicator: &mut Communicator,
    members: &Members,
    state: &mut State,
) -> Result<(), Fault> {
    let mut together = Vec::new();
    let visit = |state: &mut State, work: &mut dyn FnMut(SliceMut)| {
        for (_, layer) in state.layers_mut() {
            layer.owned(|owned| {
                if owned.parameter.replicated {
                    work(owned.gradients);
                }
            });
        }
    };
    if communicator.route(members) != Route::Host {
        return sum_together(device, communicator, members, |work| visit(state, work));
    }
    visit(state, &mut |gradients| together.extend_from_slice(&device.read(gradients.as_slice())));
    communicator.all_reduce(members, &mut together, Combine::Sum)?;
    let mut at = 0;
    visit(state, &mut |gradients| {
        let length = gradients.len();
        device.write(gradients, &together[at..at + length]);
        at += length;
    });
    Ok(())
}

/// Sums the slices that `visit` shows in one message, on the device.
fn sum_together(
    device: &dyn Device,
    communicator: &mut Communicator,
    members: &Members,
    mut visit: impl FnMut(&mut dyn FnMut(SliceMut)),
) -> Result<(), Fault> {
    let mut length = 0;
    visit(&mut |numbers| length += numbers.len());
    let mut together = device.any(length, Number::F32);
    let mut at = 0;
    visit(&mut |numbers| {
        device.copy(together.slice_mut().part(at..at + numbers.len()), numbers.as_slice());
        at += numbers.len();
    });
    communicator.sum(device, members, together.slice_mut())?;
    at = 0;
    visit(&mut |numbers| {
        let from = together.slice().part(at..at + numbers.len());
        at += numbers.len();
        device.copy(numbers, from);
    });
    Ok(())
}

/// Whether the members of an axis have different parts of the weights that some ranks share.
fn divides(axis: Axis, sharing: Sharing) -> bool {
    match axis {
        Axis::Pipeline => true,
        Axis::ExpertTensor | Axis::Expert | Axis::ExpertData => sharing == Sharing::Routed,
        _ => sharing == Sharing::Dense,
    }
}

/// Sums the gradients of some parameters of which each member has all elements, or the same shard.
fn sum_where(
    device: &dyn Device,
    communicator: &mut Communicator,
    members: &Members,
    state: &mut State,
    is_summed: impl Fn(&Owned) -> bool,
) -> Result<(), Fault> {
    let mut summed = Ok(());
    for (_, layer) in state.layers_mut() {
        layer.owned(|owned| {
            if summed.is_ok() && is_summed(&owned) {
                summed = communicator.sum(device, members, owned.gradients);
            }
        });
    }
    summed
}
