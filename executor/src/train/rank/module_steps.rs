//! A step of a module: a piece of forward or backward, or one of those that the program lists.

use super::Rank;
use crate::device::Device;
use crate::device::tensor::Tensor;
use crate::error::Fault;
use crate::train::frame::Frame;
use crate::train::groups::place_of;
use crate::train::instruction::{ModuleStep, has_product};
use crate::train::module_collectives::ModuleCollective;
use crate::train::modules::{Among, Step, operator, stepwise};
use crate::train::run_context::RunContext;
use crate::train::sizes::Sizes;
use crate::train::state::State;
use trainwright_spec::program::{Does, Op, Pass, Work};

impl Rank<'_> {
    /// A step of a module, and what stands before its first and behind its last one.
    pub(super) fn module(&mut self, op: &Op, step: ModuleStep, frame: &mut Frame) -> Result<(), Fault> {
        let ModuleStep { place, does, .. } = step;
        match op.pass {
            Pass::Forward if step.begins && step.keeps.input => frame.kept(place).input = frame.flow.clone(),
            Pass::Recompute if step.begins => {
                if let Some(input) = frame.kept(place).input.clone() {
                    frame.flow = Some(input);
                }
            }
            _ => {}
        }
        match (does, op.work) {
            _ if step.in_steps => self.in_steps(op, step, frame)?,
            (Does::Move(value), Work::Collective { kind, axis, .. }) => {
                let members = self.groups[place_of(axis)].as_ref().expect("a collective has a group");
                let collective =
                    ModuleCollective { device: &*self.device, kind, members, place, value, pass: op.pass };
                collective.perform(&mut self.communicator, frame)?;
            }
            _ => self.compute(op.pass, step, frame),
        }
        if self.sizes.rounds && step.ends {
            frame.flow.iter_mut().chain(&mut frame.gradient).for_each(Tensor::round_to_bf16);
        }
        if op.pass == Pass::Recompute
            && step.ends
            && let Some(behind) = step.refills
        {
            let output = frame.flow.clone();
            frame.kept(behind).input = output;
        }
        if step.gives_up {
            frame.give_up(place);
        }
        Ok(())
    }

    /// A step of a module whose steps the program lists.
    fn in_steps(&mut self, op: &Op, own: ModuleStep, frame: &mut Frame) -> Result<(), Fault> {
        let module = stepwise(own.place.1).expect("unknown modules are refused before a run");
        let mut step = step(&self.sizes, self.shared, &mut self.state, &*self.device, (op.pass, own), frame);
        if own.begins {
            module.begin(&mut step, op.pass);
        }
        let among = match op.work {
            Work::Collective { kind, axis, .. } => {
                let members = self.groups[place_of(axis)].as_ref().expect("a collective has a group");
                Some(Among { kind, axis, members, communicator: &mut self.communicator })
            }
            _ => None,
        };
        module.run(&mut step, op.pass, own.does, among)?;
        if own.ends {
            module.end(&mut step, op.pass);
        }
        Ok(())
    }

    /// A module that runs in one piece, or the gradient of its weights.
    fn compute(&mut self, pass: Pass, own: ModuleStep, frame: &mut Frame) {
        let operator = operator(own.place.1).expect("unknown modules are refused before a run");
        let mut step = step(&self.sizes, self.shared, &mut self.state, &*self.device, (pass, own), frame);
        match (own.does, pass) {
            (Does::Run, Pass::Forward | Pass::Recompute) => {
                let input = step.frame.take_flow();
                let output = operator.forward(&mut step, input);
                step.frame.flow = Some(output);
            }
            (Does::Run, _) => {
                let gradient = step.frame.take_gradient();
                // The gradients of its weights may be the business of a later step or call.
                if !own.ends || has_product(own.place.1) {
                    step.kept().output_gradient = Some(gradient.clone());
                }
                step.frame.gradient = operator.backward(&mut step, gradient);
            }
            (Does::WeightGradient, _) => operator.weight_gradient(&mut step),
            (Does::VectorGradient, _) => operator.vector_gradient(&mut step),
            // The kernels write in the layout that the next one reads, and products quantise their operands.
            (Does::Arrange | Does::Quantise, _) => {}
            (other, _) => unreachable!("{other:?} is a step of a module that runs in steps"),
        }
    }
}

/// What a module's step works on, of a rank and a frame.
fn step<'r>(
    sizes: &'r Sizes,
    shared: &'r RunContext,
    state: &'r mut State,
    device: &'r dyn Device,
    (pass, own): (Pass, ModuleStep),
    frame: &'r mut Frame,
) -> Step<'r> {
    let ModuleStep { place, mut keeps, adds_in_norm, .. } = own;
    // What runs again is kept then.
    keeps.rest |= pass == Pass::Recompute;
    Step { sizes, model: &shared.plan.model, state, frame, place, keeps, adds_in_norm, device }
}
