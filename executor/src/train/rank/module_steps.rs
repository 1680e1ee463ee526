//! A step of a module: one piece of forward or backward, or one of the steps that the program lists.

use super::Rank;
use crate::device::Device;
use crate::device::tensor::Tensor;
use crate::error::Fault;
use crate::train::frame::Frame;
use crate::train::groups::place_of;
use crate::train::instruction::ModuleInstruction;
use crate::train::module_collectives::ModuleCollective;
use crate::train::modules::{Among, Step, operator, reads_input, stepwise};
use crate::train::run_context::RunContext;
use crate::train::sizes::Sizes;
use crate::train::state::State;
use trainwright_spec::program::{Does, ModuleStep, Op, Pass, Work};

impl Rank<'_> {
    /// A step of a module, with what comes before the first step of its run and after the last one.
    pub(super) fn module(
        &mut self,
        op: &Op,
        module: ModuleInstruction,
        frame: &mut Frame,
    ) -> Result<(), Fault> {
        let ModuleInstruction { place, step, .. } = module;
        match op.pass {
            Pass::Forward
                if step.first && step.keeps_input && reads_input(step.module) && !frame.generates() =>
            {
                frame.kept(place).input = frame.flow.clone();
            }
            Pass::Recompute if step.first => {
                if let Some(input) = frame.kept(place).input.clone() {
                    frame.flow = Some(input);
                }
            }
            _ => {}
        }
        match (step.does, op.work) {
            _ if module.stepwise => self.stepwise(op, module, frame)?,
            (Does::Move(value), Work::Collective { kind, axis, .. }) => {
                let members = self.groups[place_of(axis)].as_ref().expect("a collective has a group");
                let collective =
                    ModuleCollective { device: &*self.device, kind, members, place, value, pass: op.pass };
                collective.perform(&mut self.communicator, frame)?;
            }
            _ => self.compute(op.pass, module, frame),
        }
        if self.sizes.rounds && step.last {
            frame.flow.iter_mut().chain(&mut frame.gradient).for_each(Tensor::round_to_bf16);
        }
        if step.last
            && let Some(reader) = step.refills.filter(|reader| reads_input(*reader))
        {
            let output = frame.flow.clone();
            frame.kept((place.0, reader)).input = output;
        }
        if step.releases {
            frame.give_up(place);
        }
        Ok(())
    }

    /// A step of a module whose steps the program lists.
    fn stepwise(&mut self, op: &Op, module: ModuleInstruction, frame: &mut Frame) -> Result<(), Fault> {
        let ModuleStep { first, last, does, .. } = module.step;
        let steps = stepwise(module.step.module).expect("unknown modules are refused before a run");
        let mut step = step(&self.sizes, self.shared, &mut self.state, &*self.device, module, frame);
        if first {
            steps.begin(&mut step, op.pass);
        }
        let among = match op.work {
            Work::Collective { kind, axis, .. } => {
                let members = self.groups[place_of(axis)].as_ref().expect("a collective has a group");
                Some(Among { kind, axis, members, communicator: &mut self.communicator })
            }
            _ => None,
        };
        steps.run(&mut step, op.pass, does, among)?;
        if last {
            steps.end(&mut step, op.pass);
        }
        Ok(())
    }

    /// A module that runs in one piece, or the gradient of its weights.
    fn compute(&mut self, pass: Pass, module: ModuleInstruction, frame: &mut Frame) {
        let operator = operator(module.step.module).expect("unknown modules are refused before a run");
        let mut step = step(&self.sizes, self.shared, &mut self.state, &*self.device, module, frame);
        match (module.step.does, pass) {
            (Does::Run, Pass::Forward | Pass::Recompute) => {
                let input = step.frame.take_flow();
                let output = operator.forward(&mut step, input);
                step.frame.flow = Some(output);
            }
            (Does::Run, _) => {
                let gradient = step.frame.take_gradient();
                // A later step or a later call makes the gradients of its weights.
                if !module.step.releases {
                    step.kept().output_gradient = Some(gradient.clone());
                }
                step.frame.gradient = operator.backward(&mut step, gradient);
            }
            (Does::WeightGradient, _) => operator.weight_gradient(&mut step),
            (Does::VectorGradient, _) => operator.vector_gradient(&mut step),
            // The kernels write in the layout that the next one reads, and products quantise their operands.
            (Does::Arrange | Does::Quantise, _) => {}
            (other, _) => unreachable!("{other:?} is a step of a module that runs step by step"),
        }
    }
}

/// The operands of a module's step: those of the rank and those of the frame.
fn step<'r>(
    sizes: &'r Sizes,
    shared: &'r RunContext,
    state: &'r mut State,
    device: &'r dyn Device,
    module: ModuleInstruction,
    frame: &'r mut Frame,
) -> Step<'r> {
    let ModuleInstruction { place, step, adds_in_norm, .. } = module;
    let keeps = step.keeps && !frame.generates();
    Step { sizes, model: &shared.plan.model, state, frame, place, keeps, adds_in_norm, device }
}
