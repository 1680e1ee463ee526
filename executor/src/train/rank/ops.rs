//! What an op of the program does on a rank: it moves something, updates weights, or is a step of a module.

use super::Rank;
use crate::comm::members::Members;
use crate::comm::transport::{Envelope, Tag};
use crate::device::stream_of;
use crate::error::Fault;
use crate::train::frame::Frame;
use crate::train::groups::place_of;
use crate::train::instruction::Instruction;
use crate::train::layer_collectives::{gather_weights, reduce_gradients};
use crate::train::parameters::Layer;
use crate::train::update::Update;
use trainwright_spec::program::{
    Axis, Channel, CopyDirection, LayerSpan, MemoryKind, Op, State as Moved, Task, Work,
};
use trainwright_spec::schedule::Action;

impl<'a> Rank<'a> {
    fn members(&self, axis: Axis) -> Option<&Members> {
        self.groups[place_of(axis)].as_ref()
    }

    pub(super) fn update(&mut self, op: &Op, update: &mut Update) -> Result<(), Fault> {
        let step = match op.task {
            Task::Update(step) => step,
            Task::UpdateOffloaded { stage, layers: span } => {
                let layers = self.span(stage, span).to_vec();
                return self.update_offloaded(layers, update);
            }
            _ => return Ok(()),
        };
        let members = match op.work {
            Work::Collective { axis, .. } => self.members(axis).cloned(),
            _ => None,
        };
        update.run(step, &op.work, members.as_ref(), &mut self.communicator, &mut self.state)
    }

    /// Neighbouring layers of a stage.
    fn span(&self, stage: usize, LayerSpan { first, count }: LayerSpan) -> &'a [Layer] {
        &self.shared.program.stages[stage].layers[first..first + count]
    }

    /// Gives up gathered weights that an op is the last to need.
    fn give_up_weights(&mut self, op: &Op, layers: &[Layer]) {
        if op.frees.iter().any(|freed| freed.kind == MemoryKind::Weights) {
            for read in layers.iter().flat_map(|layer| self.state.read_by(*layer)).collect::<Vec<_>>() {
                self.state.layer_mut(read).weights.free_full();
            }
        }
    }

    /// Updates layers whose moments may be on a drive.
    fn update_offloaded(&mut self, layers: Vec<Layer>, update: &mut Update) -> Result<(), Fault> {
        for layer in &layers {
            let layer = self.state.layer_mut(*layer);
            let stored = std::mem::take(&mut layer.stored);
            self.offload_store.load_moments(layer.moments.iter_mut().flatten(), stored)?;
        }
        update.optimize(&mut self.state, |layer| layers.contains(&layer))?;
        for layer in &layers {
            let layer = self.state.layer_mut(*layer);
            layer.stored = self.offload_store.store_moments(layer.moments.iter_mut().flatten())?;
        }
        Ok(())
    }

    pub(super) fn instruction(
        &mut self,
        instruction: &Instruction,
        action: Action,
        frame: &mut Frame,
    ) -> Result<(), Fault> {
        let op = instruction.op;
        match (op.work, instruction.module) {
            (Work::Send { channel, to, .. }, _) => {
                let message = match channel {
                    Channel::Activation(_) => frame.take_flow(),
                    Channel::Gradient(_) => frame.take_gradient(),
                };
                let envelope = self.envelope(self.program.pipeline_rank, to, channel, action);
                self.communicator.send(&*self.device, envelope, message);
            }
            (Work::Receive { channel, from, .. }, _) => {
                let envelope = self.envelope(from, self.program.pipeline_rank, channel, action);
                let message = self.communicator.receive(&*self.device, envelope, self.sizes.hidden)?;
                match channel {
                    Channel::Activation(_) => frame.flow = Some(message),
                    Channel::Gradient(_) => frame.gradient = Some(message),
                }
            }
            (_, Some(module)) => {
                self.module(op, module, frame)?;
                self.give_up_weights(op, &[module.place.0]);
            }
            (Work::Copy { direction, .. }, None) => {
                self.move_kept(op.task, direction, action.stage, frame)?
            }
            (work, None) => {
                self.move_layers(op, &work, action.stage)?;
                if let Task::Layers(_, span) = op.task {
                    self.give_up_weights(op, self.span(action.stage, span));
                }
            }
        }
        Ok(())
    }

    /// Takes what some layers of a stage keep to where it is offloaded, or brings it back.
    fn move_kept(
        &mut self,
        task: Task,
        direction: CopyDirection,
        stage: usize,
        frame: &mut Frame,
    ) -> Result<(), Fault> {
        let Task::Kept(span) = task else { return Ok(()) };
        for layer in self.span(stage, span) {
            for kept in frame.kept_of(*layer) {
                match direction {
                    CopyDirection::ToHost => {
                        kept.offloaded = self.offload_store.store_tensors(kept.tensors())?
                    }
                    CopyDirection::FromHost => {
                        let offloaded = std::mem::take(&mut kept.offloaded);
                        self.offload_store.load_tensors(kept.tensors(), offloaded)?
                    }
                }
            }
        }
        Ok(())
    }

    /// Moves the weights or gradients of some layers of a stage.
    fn move_layers(&mut self, op: &Op, work: &Work, stage: usize) -> Result<(), Fault> {
        let (Task::Layers(moved, span), Work::Collective { kind, axis, .. }) = (op.task, work) else {
            return Ok(());
        };
        let members = self.members(*axis).cloned().expect("a collective has a group");
        for layer in self.span(stage, span) {
            if moved == Moved::Gradients {
                let layer = self.state.layer_mut(*layer);
                reduce_gradients(&*self.device, &mut self.communicator, &members, (*kind, *axis), layer)?;
                continue;
            }
            for read in self.state.read_by(*layer) {
                let layer = self.state.layer_mut(read);
                gather_weights(&*self.device, &mut self.communicator, &members, *axis, layer)?;
            }
        }
        Ok(())
    }

    /// The rank at a place of this rank's pipeline.
    pub(super) fn rank_at(&self, place: usize) -> usize {
        self.shared.program.ranks[self.program.pipeline[place]].rank
    }

    /// The way between two ranks of this rank's pipeline.
    fn envelope(&self, from: usize, to: usize, channel: Channel, action: Action) -> Envelope {
        let [from, to] = [from, to].map(|place| self.rank_at(place));
        Envelope { from, to, tag: Tag::Stage(channel, action.microbatch) }
    }

    /// The device's stream for an op.
    pub(super) fn stream_of(&self, op: &Op) -> usize {
        let rank = self.program.rank;
        let ends = match op.work {
            Work::Send { to, .. } => Some((rank, self.rank_at(to))),
            Work::Receive { from, .. } => Some((self.rank_at(from), rank)),
            _ => None,
        };
        ends.and_then(|ends| self.communicator.stream(ends)).unwrap_or_else(|| stream_of(op.stream))
    }
}
