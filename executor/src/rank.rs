//! One rank's loop: it runs the calls of its program, op by op.
//!
//! A rank is one thread and runs its ops in the order of the calls and, inside a call, of the segment. That keeps every
//! order that the program asks for: an op waits only for earlier ones of its call, and sending never waits. A device with
//! streams is told them in that order, each on its stream; an op's stream waits there for the ops of other streams that the op
//! comes behind. At the end of a step all streams wait for each other.

use crate::beside::Beside;
use crate::collective::{Communicator, Members};
use crate::device::{COMPUTE, Device, StepNumbers, stream_of};
use crate::error::Fault;
use crate::frame::{Frame, MicrobatchTokens, Place};
use crate::instruction::{Instruction, ModuleStep, has_product};
use crate::layers::{gather_weights, reduce_gradients};
use crate::modules::{Among, Step, operator, stepwise};
use crate::moves::Move;
use crate::parameters::Layer;
use crate::record::Recorder;
use crate::settings::{Records, Settings};
use crate::sizes::{Divides, Sizes};
use crate::state::State;
use crate::steady::Steady;
use crate::tensor::Tensor;
use crate::tokens::{Batch, Loader};
use crate::transport::{Route, Tag, Transport};
use crate::update::{Optimizer, THE_NORM, Update};
use crate::watch::Pulse;
use std::collections::BTreeMap;
use std::rc::Rc;
use trainwright_kernels::cuda::Moment;
use trainwright_spec::plan::Plan;
use trainwright_spec::program::{
    Axis, Channel, CopyDirection, Does, MemoryKind, Module, Op, Pass, Program, RankProgram, State as Moved,
    Task, UpdateStep, Work,
};
use trainwright_spec::schedule::{Action, ActionKind};

/// What may be no number.
const THE_LOSS: &str = "the loss";

/// What all ranks of a run share.
pub(crate) struct Shared<'a> {
    pub plan: &'a Plan,
    pub program: &'a Program,
    pub settings: &'a Settings,
    pub optimizer: Optimizer,
    pub transport: &'a dyn Transport,
}

/// A rank.
pub(crate) struct Rank<'a> {
    pub shared: &'a Shared<'a>,
    pub program: &'a RankProgram,
    pub instructions: BTreeMap<usize, Vec<Instruction<'a>>>,
    pub sizes: Sizes,
    /// By place in `Axis::ALL`.
    pub groups: Vec<Option<Members>>,
    pub communicator: Communicator<'a>,
    pub loader: Loader<'a>,
    pub state: State,
    pub beside: Beside,
    pub recorder: Recorder,
    pub device: Rc<dyn Device>,
    /// Where it says what it is at.
    pub pulse: &'a Pulse,
    /// The microbatches between forward and the end of backward, by stage and number.
    pub frames: BTreeMap<(usize, usize), Frame>,
    /// The tokens of this step's microbatches, by stage and number, until forward begins.
    pub tokens: BTreeMap<(usize, usize), MicrobatchTokens>,
    /// Whether steps are told by a graph; none where that is no question.
    pub steady: Option<Steady>,
    /// By stage, in the order of forward.
    pub layers: Vec<Vec<Layer>>,
    /// What goes from a stage to another one of the same rank.
    pub handed: BTreeMap<(Channel, usize), Tensor>,
}

/// What a rank knows of a step at its end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct StepEnd {
    /// The sum of the losses of the tokens that it saw last.
    pub loss: f64,
    /// The norm of all gradients, if it was formed.
    pub gradient_norm: Option<f64>,
}

impl Rank<'_> {
    /// Runs a step, counted from 1; it may be the first of the run.
    pub fn step(&mut self, step: usize, is_first: bool) -> Result<StepEnd, Fault> {
        let shared = self.shared;
        let device = Rc::clone(&self.device);
        // A step that is told op by op has the device's own times.
        let told = step == shared.settings.steps || shared.settings.records == Records::EveryStep;
        if told {
            device.finish();
        }
        self.recorder.begin(told.then_some(&*device));
        let sizes = self.sizes.clone();
        let losses = self.losses();
        let mut update = Update::new(&*device, shared, &sizes, step);
        self.bring_tokens(step);
        device.begin_step(update.begin(losses.len()));
        device.join_streams();
        let mut loss = 0.0;
        match &mut self.steady {
            Some(steady) if steady.is_ready() && !told && !self.pulse.drills() => {
                self.pulse.begin_op(0, 0)?;
                device.replay();
                steady.told(step);
            }
            Some(steady) if steady.watches(is_first) && !told => {
                device.record();
                loss = self.tell(step, &mut update, &losses, told)?;
                let steady = self.steady.as_mut().expect("it watches");
                steady.judge(&*device, &mut self.communicator)?;
            }
            _ => loss = self.tell(step, &mut update, &losses, told)?,
        }
        device.join_streams();
        self.recorder.retime(&device.marks());
        let kept = device.end_step();
        device.check()?;
        loss += self.kept_loss(&losses, &kept)?;
        let norm = if update.keeps() { self.kept_norm(&kept)? } else { update.norm() };
        Ok(StepEnd { loss, gradient_norm: shared.plan.job.gradient_clipping.then_some(norm) })
    }

    /// Tells the device a step op by op; the sum of the losses that it does not keep. `losses` are the calls that make some.
    fn tell(&mut self, step: usize, update: &mut Update, losses: &[usize], told: bool) -> Result<f64, Fault> {
        let device = Rc::clone(&self.device);
        let mut loss = 0.0;
        for (number, call) in self.program.calls.iter().enumerate() {
            let instructions = self.instructions.remove(&call.segment).expect("every segment is compiled");
            let mut frame =
                call.action.map(|action| self.frame(action, step)).unwrap_or_else(|| Frame::new(None));
            let mut ended: Vec<Option<Moment>> = vec![None; instructions.len()];
            for (index, instruction) in instructions.iter().enumerate() {
                self.pulse.begin_op(number, index)?;
                let start = self.recorder.start();
                device.select(self.stream_of(instruction.op));
                instruction.waits.iter().filter_map(|op| ended[*op].as_ref()).for_each(|op| device.wait(op));
                if told {
                    device.mark();
                }
                match call.action {
                    Some(action) => self.instruction(instruction, action, &mut frame)?,
                    None => self.update(instruction.op, update)?,
                }
                if instruction.is_awaited {
                    ended[index] = device.moment();
                }
                if told {
                    device.mark();
                }
                device.check()?;
                self.recorder.ended(number, index, start, state_bytes(&self.sizes, &self.state));
            }
            let number = losses.iter().position(|call| *call == number);
            let last = instructions.last().map_or(COMPUTE, |instruction| self.stream_of(instruction.op));
            // The sum of the losses comes behind what ranks put together on another stream.
            let put_together = if number.is_some() && last != COMPUTE { device.moment() } else { None };
            device.select(COMPUTE);
            put_together.iter().for_each(|moment| device.wait(moment));
            self.instructions.insert(call.segment, instructions);
            if let Some(action) = call.action {
                loss += self.end_of_call(action, number, frame)?;
            }
        }
        self.communicator.end_step(&*device)?;
        Ok(loss)
    }

    /// Brings the tokens of all microbatches that stages of this rank read.
    fn bring_tokens(&mut self, step: usize) {
        let reads = |action: &Action| {
            let (first, last) = self.ends(action.stage);
            action.kind == ActionKind::Forward && (first || last)
        };
        let actions = self.program.calls.iter().filter_map(|call| call.action);
        let actions: Vec<Action> = actions.filter(reads).collect();
        let sizes = &self.sizes;
        let mut all = Vec::new();
        for action in &actions {
            let first = sizes.first_sequence(action.microbatch);
            let batch = self.loader.batch(step - 1, first, sizes.micro_batch());
            let Batch { inputs, targets } = own_tokens(sizes, &batch);
            all.extend([inputs, targets]);
        }
        let mut brought = self.device.bring(all).into_iter();
        let mut next = || brought.next().expect("all were brought");
        self.tokens = actions
            .iter()
            .map(|action| {
                let tokens = MicrobatchTokens { inputs: next(), targets: next() };
                ((action.stage, action.microbatch), tokens)
            })
            .collect();
    }

    /// The calls that make losses.
    fn losses(&self) -> Vec<usize> {
        let makes = |action: &Action| action.kind == ActionKind::Forward && self.ends(action.stage).1;
        let calls = self.program.calls.iter().enumerate();
        calls.filter(|(_, call)| call.action.as_ref().is_some_and(makes)).map(|(number, _)| number).collect()
    }

    /// The sum of the losses that the device has kept. What is no number went wrong in the call that made it.
    fn kept_loss(&self, calls: &[usize], kept: &StepNumbers) -> Result<f64, Fault> {
        if let Some((call, _)) = calls.iter().zip(&kept.losses).find(|(_, loss)| !loss.is_finite()) {
            let ops = self.shared.program.segments[self.program.calls[*call].segment].ops.len();
            self.pulse.was_at(*call, ops - 1);
            return Err(Fault::NotFinite { what: THE_LOSS });
        }
        Ok(kept.losses.iter().sum())
    }

    /// The norm that the device has kept, as `kept_loss`.
    fn kept_norm(&self, kept: &StepNumbers) -> Result<f64, Fault> {
        if kept.norm.is_finite() {
            return Ok(kept.norm);
        }
        for (number, call) in self.program.calls.iter().enumerate() {
            let mut ops = self.shared.program.segments[call.segment].ops.iter();
            if let Some(op) = ops.position(|op| op.task == Task::Update(UpdateStep::Clip)) {
                self.pulse.was_at(number, op);
            }
        }
        Err(Fault::NotFinite { what: THE_NORM })
    }

    /// Whether a stage is the first one of its copy, and the last one.
    fn ends(&self, stage: usize) -> (bool, bool) {
        let stages = self.shared.plan.stages.len();
        (stage.is_multiple_of(stages), (stage + 1).is_multiple_of(stages))
    }

    /// Whether this rank runs the stage of that number too.
    fn runs(&self, stage: usize) -> bool {
        let plan = self.shared.plan;
        plan.schedule().rank_of(stage, plan.pipeline_shape()) == self.sizes.at.pipeline
    }

    /// The frame of an action of a step with what comes from another stage of this rank.
    fn frame(&mut self, action: Action, step: usize) -> Frame {
        let Action { stage, kind, microbatch } = action;
        let (first, last) = self.ends(stage);
        if kind != ActionKind::Forward {
            let mut frame = self.frames.remove(&(stage, microbatch)).expect("forward comes before backward");
            if kind.is_input_gradient() {
                // The loss has no gradient but 1.
                let begins = last.then(|| Tensor::zeros(0, 1));
                frame.gradient =
                    begins.or_else(|| self.handed.remove(&(Channel::Gradient(stage + 1), microbatch)));
            }
            return frame;
        }
        let sizes = &self.sizes;
        let mut frame = Frame::new(self.tokens.remove(&(stage, microbatch)));
        frame.masks = self.loader.masks(step - 1, sizes.first_sequence(microbatch));
        frame.flow = match first {
            true => {
                let rows = sizes.micro_batch() * sizes.own_sequence();
                Some(Tensor::any_on(&*self.device, rows, sizes.hidden))
            }
            false => self.handed.remove(&(Channel::Activation(stage - 1), microbatch)),
        };
        frame
    }

    /// Keeps what later calls need; returns the loss of the microbatch if the call made it and the device does not keep it.
    fn end_of_call(&mut self, action: Action, number: Option<usize>, mut frame: Frame) -> Result<f64, Fault> {
        let Action { stage, kind, microbatch } = action;
        let (first, last) = self.ends(stage);
        let mut loss = 0.0;
        match kind {
            ActionKind::Forward if last => {
                frame.flow = None;
                let three = &frame.kept((Layer::Head, Module::Loss)).losses;
                let number = number.expect("it is one of the calls that make losses");
                loss = self.device.sum_losses(number, three.slice()).unwrap_or(0.0);
                if !loss.is_finite() {
                    return Err(Fault::NotFinite { what: THE_LOSS });
                }
            }
            ActionKind::Forward if self.runs(stage + 1) => {
                self.handed.insert((Channel::Activation(stage), microbatch), frame.take_flow());
            }
            ActionKind::Backward | ActionKind::Input if !first && self.runs(stage - 1) => {
                self.handed.insert((Channel::Gradient(stage), microbatch), frame.take_gradient());
            }
            _ => {}
        }
        if matches!(kind, ActionKind::Forward | ActionKind::Input) {
            self.frames.insert((stage, microbatch), frame);
        }
        Ok(loss)
    }

    fn members(&self, axis: Axis) -> Option<&Members> {
        let at = Axis::ALL.iter().position(|other| *other == axis)?;
        self.groups[at].as_ref()
    }

    fn update(&mut self, op: &Op, update: &mut Update) -> Result<(), Fault> {
        let step = match op.task {
            Task::Update(step) => step,
            Task::UpdateBeside { stage, layers: span } => {
                let layers = &self.layers[stage % self.layers.len()][span.first..span.first + span.count];
                return self.update_beside(layers.to_vec(), update);
            }
            _ => return Ok(()),
        };
        let members = match op.work {
            Work::Collective { axis, .. } => self.members(axis).cloned(),
            _ => None,
        };
        update.run(step, &op.work, members.as_ref(), &mut self.communicator, &mut self.state)
    }

    /// Gives up gathered weights that an op is the last to need.
    fn give_up_weights(&mut self, op: &Op, layers: &[Layer]) {
        if op.frees.iter().any(|freed| freed.kind == MemoryKind::Weights) {
            for read in layers.iter().flat_map(|layer| self.state.read_by(*layer)).collect::<Vec<_>>() {
                self.state.layer_mut(read).weights.give_up_whole();
            }
        }
    }

    /// Updates layers whose moments may be on a drive.
    fn update_beside(&mut self, layers: Vec<Layer>, update: &mut Update) -> Result<(), Fault> {
        for layer in &layers {
            self.beside.bring_moments(self.state.layer_mut(*layer))?;
        }
        update.optimize(&mut self.state, |layer| layers.contains(&layer))?;
        for layer in &layers {
            self.beside.stow_moments(self.state.layer_mut(*layer))?;
        }
        Ok(())
    }

    fn instruction(
        &mut self,
        instruction: &Instruction,
        action: Action,
        frame: &mut Frame,
    ) -> Result<(), Fault> {
        let op = instruction.op;
        match (op.work, instruction.step) {
            (Work::Send { channel, to, .. }, _) => {
                let message = match channel {
                    Channel::Activation(_) => frame.take_flow(),
                    Channel::Gradient(_) => frame.take_gradient(),
                };
                let route = self.route(self.program.pipeline_rank, to, channel, action);
                self.communicator.send(&*self.device, route, message);
            }
            (Work::Receive { channel, from, .. }, _) => {
                let route = self.route(from, self.program.pipeline_rank, channel, action);
                let message = self.communicator.receive(&*self.device, route, self.sizes.hidden)?;
                match channel {
                    Channel::Activation(_) => frame.flow = Some(message),
                    Channel::Gradient(_) => frame.gradient = Some(message),
                }
            }
            (_, Some(step)) => {
                self.module(op, step, frame)?;
                self.give_up_weights(op, &[step.place.0]);
            }
            (Work::Copy { direction, .. }, None) => {
                self.move_kept(op.task, direction, action.stage, frame)?
            }
            (work, None) => {
                self.move_layers(op, &work, action.stage)?;
                if let Task::Layers(_, span) = op.task {
                    let layers = &self.layers[action.stage % self.layers.len()];
                    let moved = layers[span.first..span.first + span.count].to_vec();
                    self.give_up_weights(op, &moved);
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
        let layers = &self.layers[stage % self.layers.len()];
        for layer in &layers[span.first..span.first + span.count] {
            for kept in frame.kept_of(*layer) {
                match direction {
                    CopyDirection::ToHost => self.beside.stow_kept(kept)?,
                    CopyDirection::FromHost => self.beside.bring_kept(kept)?,
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
        let layers = &self.layers[stage % self.layers.len()];
        for layer in &layers[span.first..span.first + span.count] {
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
    fn rank_at(&self, place: usize) -> usize {
        self.shared.program.ranks[self.program.pipeline[place]].rank
    }

    /// The way between two ranks of this rank's pipeline.
    fn route(&self, from: usize, to: usize, channel: Channel, action: Action) -> Route {
        let [from, to] = [from, to].map(|place| self.rank_at(place));
        Route { from, to, tag: Tag::Stage(channel, action.microbatch) }
    }

    /// The device's stream for an op.
    fn stream_of(&self, op: &Op) -> usize {
        let own = self.program.rank;
        let ends = match op.work {
            Work::Send { to, .. } => Some((own, self.rank_at(to))),
            Work::Receive { from, .. } => Some((self.rank_at(from), own)),
            _ => None,
        };
        ends.and_then(|ends| self.communicator.stream(ends)).unwrap_or_else(|| stream_of(op.stream))
    }

    /// A step of a module, and what stands before its first and behind its last one.
    fn module(&mut self, op: &Op, step: ModuleStep, frame: &mut Frame) -> Result<(), Fault> {
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
                let at = Axis::ALL.iter().position(|other| *other == axis).expect("every axis is listed");
                let members = self.groups[at].as_ref().expect("a collective has a group");
                let moving = Move { device: &*self.device, kind, members, place, value, pass: op.pass };
                moving.perform(&mut self.communicator, frame)?;
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
        let mut keeps = own.keeps;
        // What runs again is kept then.
        keeps.rest |= op.pass == Pass::Recompute;
        let mut step = Step {
            sizes: &self.sizes,
            model: &self.shared.plan.model,
            state: &mut self.state,
            frame,
            place: own.place,
            keeps,
            adds_in_norm: false,
            device: &*self.device,
        };
        if own.begins {
            module.begin(&mut step, op.pass);
        }
        let among = match op.work {
            Work::Collective { kind, axis, .. } => {
                let at = Axis::ALL.iter().position(|other| *other == axis).expect("every axis is listed");
                let members = self.groups[at].as_ref().expect("a collective has a group");
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

    fn compute(&mut self, pass: Pass, own: ModuleStep, frame: &mut Frame) {
        let operator = operator(own.place.1).expect("unknown modules are refused before a run");
        let mut keeps = own.keeps;
        // What runs again is kept then.
        keeps.rest |= pass == Pass::Recompute;
        let mut step = Step {
            sizes: &self.sizes,
            model: &self.shared.plan.model,
            state: &mut self.state,
            frame,
            place: own.place,
            keeps,
            adds_in_norm: own.adds_in_norm,
            device: &*self.device,
        };
        match (own.does, pass) {
            (Does::Run, Pass::Forward | Pass::Recompute) => {
                let input = step.frame.take_flow();
                let output = operator.forward(&mut step, input);
                step.frame.flow = Some(output);
            }
            (Does::Run, _) => {
                let gradient = step.frame.take_gradient();
                if !own.ends {
                    step.kept().output_gradient = Some(gradient.clone());
                }
                keep_for_weight(&mut step, own.place, &gradient);
                step.frame.gradient = operator.backward(&mut step, gradient);
            }
            (Does::WeightGradient, _) => operator.weight_gradient(&mut step),
            (Does::VectorGradient, _) => operator.vector_gradient(&mut step),
            // The kernels write in the layout that the next one reads, and products make their operands.
            (Does::Arrange | Does::Quantise, _) => {}
            (other, _) => unreachable!("{other:?} is a step of a module that runs in steps"),
        }
    }
}

/// The tokens of a batch that a rank has. On a grid it looks up the sequences of all rows, one row's behind the other's.
fn own_tokens(sizes: &Sizes, batch: &Batch) -> Batch {
    let of = |all: &[u32], row: usize| -> Vec<u32> {
        let positions = sizes.own_positions().iter().cloned().flatten();
        let first = positions.map(|position| position * sizes.micro_batch() + row * sizes.batch);
        first.flat_map(|first| all[first..first + sizes.batch].to_vec()).collect()
    };
    let rows = sizes.micro_batch() / sizes.batch;
    let own = if sizes.is_grid() { sizes.row() } else { 0 };
    Batch {
        inputs: (0..rows).flat_map(|row| of(&batch.inputs, row)).collect(),
        targets: of(&batch.targets, own),
    }
}

/// What weights and gradients take, where that changes in a step.
fn state_bytes(sizes: &Sizes, state: &State) -> [usize; 2] {
    match sizes.divides {
        Divides::State => [0, 0],
        _ => state.layers().fold([0, 0], |[weights, gradients], (_, layer)| {
            [weights + layer.weights.bytes(), gradients + layer.gradients.bytes()]
        }),
    }
}

/// A product's weight may be the business of a later call.
fn keep_for_weight(step: &mut Step, place: Place, gradient: &Tensor) {
    if has_product(place.1) {
        step.kept().output_gradient = Some(gradient.clone());
    }
}
