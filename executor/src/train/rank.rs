//! One rank's loop: it runs the calls of its program, op by op.
//!
//! A rank is one thread and runs its ops in the order of the calls and, inside a call, of the segment. That keeps every
//! order that the program asks for: an op waits only for earlier ones of its call, and sending never waits. On a device with
//! streams they are enqueued in that order, each on its stream; an op's stream waits there for the ops of other streams that the
//! op depends on. At the end of a step all streams wait for each other.

mod generation;
mod microbatches;
mod module_steps;
mod ops;
mod passes;
mod serving;
mod validation;

use crate::comm::collective::Communicator;
use crate::comm::heartbeat::Heartbeat;
use crate::comm::members::Members;
use crate::device::tensor::Tensor;
use crate::device::{COMPUTE, Device, StepNumbers};
use crate::error::Fault;
use crate::train::data::loader::Loader;
use crate::train::frame::{Frame, MicrobatchTokens};
use crate::train::graph_capture::GraphCapture;
use crate::train::instruction::Instruction;
use crate::train::offload_store::OffloadStore;
use crate::train::record::{Communication, Recorder};
use crate::train::run_context::RunContext;
use crate::train::settings::Records;
use crate::train::sizes::{Divides, Sizes};
use crate::train::state::State;
use crate::train::update::{THE_NORM, Update};
pub(crate) use generation::OtherProgram;
use microbatches::{StepDocuments, StepTokens};
use std::collections::BTreeMap;
use std::rc::Rc;
use trainwright_kernels::cuda::Event;
use trainwright_spec::program::{Call, Channel, RankProgram, Task, UpdateStep};
use trainwright_spec::schedule::{Action, ActionKind};

/// Name of a number that may be NaN.
const THE_LOSS: &str = "the loss";

/// A rank.
pub(crate) struct Rank<'a> {
    pub shared: &'a RunContext<'a>,
    pub program: &'a RankProgram,
    pub instructions: BTreeMap<usize, Vec<Instruction<'a>>>,
    pub sizes: Sizes,
    /// By place in `Axis::ALL`.
    pub groups: Vec<Option<Members>>,
    pub communicator: Communicator<'a>,
    pub loader: Loader<'a>,
    /// The batches of held-out tokens.
    pub validation_loader: Option<Loader<'a>>,
    pub state: State,
    pub offload_store: OffloadStore,
    pub recorder: Recorder,
    pub device: Rc<dyn Device>,
    /// Where it notes which op it runs.
    pub heartbeat: &'a Heartbeat,
    /// The microbatches between forward and the end of backward, by stage and number.
    pub frames: BTreeMap<(usize, usize), Frame>,
    /// The tokens of this step's microbatches, by stage and number, until forward begins.
    pub tokens: BTreeMap<(usize, usize), MicrobatchTokens>,
    /// The documents of this step's sequences, if they are kept apart.
    pub documents: Option<StepDocuments>,
    /// The sum of this step's z-losses so far.
    pub z_loss: f64,
    /// The tokens of the next step: the host makes them while the device computes.
    pub next_tokens: Option<StepTokens>,
    /// The CUDA graph of the steps; `None` on devices without graphs.
    pub graph_capture: Option<GraphCapture>,
    /// Activations and gradients that a stage left for another stage of the same rank, by channel and microbatch.
    pub left_tensors: BTreeMap<(Channel, usize), Tensor>,
}

/// The result of a step on a rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct StepEnd {
    /// The sum of the losses of the tokens that it saw last.
    pub loss: f64,
    /// The part of it that is z-loss.
    pub z_loss: f64,
    /// The norm of all gradients, if it was formed.
    pub gradient_norm: Option<f64>,
    /// What it spent in communication; `None` if the device's times of ops are not read after every step.
    pub communication: Option<Communication>,
    /// The loss of held-out tokens, if it was measured behind the step.
    pub validation: Option<ValidationEnd>,
}

/// The result of a validation on a rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ValidationEnd {
    /// The sum of the losses of the tokens that it saw last, by batch of the run's size.
    pub loss: f64,
    /// How long it took.
    pub seconds: f64,
}

/// What is noted of a call's ops.
#[derive(Debug, Clone, Copy)]
struct CallRecords<'c> {
    /// The calls that make losses.
    losses: &'c [usize],
    /// Whether the device times each op.
    is_timed: bool,
    /// Whether the ops are part of the step's record.
    is_recorded: bool,
}

impl Rank<'_> {
    /// Runs a step, counted from 1; it may be the first of the run.
    pub fn step(&mut self, step: usize, is_first: bool) -> Result<StepEnd, Fault> {
        let shared = self.shared;
        let device = Rc::clone(&self.device);
        // The device times the ops of a step only if they are enqueued one by one.
        let is_timed = step == shared.settings.steps || shared.settings.records == Records::EveryStep;
        if is_timed {
            device.finish();
        }
        self.recorder.begin(is_timed.then_some(&*device));
        let sizes = self.sizes.clone();
        let losses = self.losses();
        let mut update = Update::new(&*device, shared, &sizes, step);
        self.upload_tokens(step)?;
        self.z_loss = 0.0;
        device.begin_step(update.begin(losses.len()));
        device.join_streams();
        let mut loss = 0.0;
        match &mut self.graph_capture {
            Some(graph_capture) if graph_capture.is_ready() && !is_timed && !self.heartbeat.drills() => {
                self.heartbeat.begin_op(0, 0)?;
                device.replay();
                graph_capture.replayed(step);
            }
            Some(graph_capture) if graph_capture.records(is_first) && !is_timed => {
                device.record();
                loss = self.enqueue(step, &mut update, &losses, is_timed)?;
                let graph_capture = self.graph_capture.as_mut().expect("it records");
                graph_capture.capture(&*device, &mut self.communicator)?;
            }
            _ => loss = self.enqueue(step, &mut update, &losses, is_timed)?,
        }
        if step < shared.settings.steps {
            self.next_tokens = Some(self.make_tokens(step + 1)?);
        }
        device.join_streams();
        self.recorder.retime(&device.marks());
        let kept = device.end_step();
        device.check()?;
        loss += self.kept_loss(&losses, &kept)?;
        let norm = if update.keeps() { self.kept_norm(&kept)? } else { update.norm() };
        let gradient_norm = shared.plan.job.gradient_clipping.then_some(norm);
        let communication = (!shared.settings.device.runs_cuda_kernels)
            .then(|| self.recorder.record.communication(shared.program, self.program));
        Ok(StepEnd { loss, z_loss: self.z_loss, gradient_norm, communication, validation: None })
    }

    /// Enqueues a step op by op. Returns the sum of the losses that the device does not keep. `losses` are the calls that make some.
    fn enqueue(
        &mut self,
        step: usize,
        update: &mut Update,
        losses: &[usize],
        is_timed: bool,
    ) -> Result<f64, Fault> {
        let records = CallRecords { losses, is_timed, is_recorded: true };
        let mut loss = 0.0;
        for (number, call) in self.program.calls.iter().enumerate() {
            let frame =
                call.action.map(|action| self.frame(action, step)).unwrap_or_else(|| Frame::new(None));
            loss += self.enqueue_call((number, call), frame, update, records)?;
        }
        let device = Rc::clone(&self.device);
        self.communicator.end_step(&*device)?;
        Ok(loss)
    }

    /// Enqueues the ops of a call. Returns the sum of its losses if the device does not keep it.
    fn enqueue_call(
        &mut self,
        (number, call): (usize, &Call),
        mut frame: Frame,
        update: &mut Update,
        CallRecords { losses, is_timed, is_recorded }: CallRecords,
    ) -> Result<f64, Fault> {
        let device = Rc::clone(&self.device);
        let instructions = self.instructions.remove(&call.segment).expect("every segment is compiled");
        let mut ended: Vec<Option<Event>> = vec![None; instructions.len()];
        for (index, instruction) in instructions.iter().enumerate() {
            self.heartbeat.begin_op(number, index)?;
            let start = self.recorder.start();
            device.select(self.stream_of(instruction.op));
            instruction.waits.iter().filter_map(|op| ended[*op].as_ref()).for_each(|op| device.wait(op));
            if is_timed {
                device.mark();
            }
            match call.action {
                Some(action) => self.instruction(instruction, action, &mut frame)?,
                None => self.update(instruction.op, update)?,
            }
            if instruction.is_awaited {
                ended[index] = device.record_event();
            }
            if is_timed {
                device.mark();
            }
            device.check()?;
            if is_recorded {
                self.recorder.ended(number, index, start, state_bytes(&self.sizes, &self.state));
            }
        }
        let number = losses.iter().position(|call| *call == number);
        let last = instructions.last().map_or(COMPUTE, |instruction| self.stream_of(instruction.op));
        // The sum of the losses comes behind what ranks put together on another stream.
        let put_together = if number.is_some() && last != COMPUTE { device.record_event() } else { None };
        device.select(COMPUTE);
        put_together.iter().for_each(|event| device.wait(event));
        self.instructions.insert(call.segment, instructions);
        call.action.map_or(Ok(0.0), |action| self.end_of_call(action, number, frame))
    }

    /// The calls that make losses.
    fn losses(&self) -> Vec<usize> {
        let stages = &self.shared.program.stages;
        let makes = |action: &Action| action.kind == ActionKind::Forward && stages[action.stage].is_last();
        let calls = self.program.calls.iter().enumerate();
        calls.filter(|(_, call)| call.action.as_ref().is_some_and(makes)).map(|(number, _)| number).collect()
    }

    /// The sum of the losses that the device has kept. A NaN is a fault of the call that made it.
    fn kept_loss(&self, calls: &[usize], kept: &StepNumbers) -> Result<f64, Fault> {
        if let Some((call, _)) = calls.iter().zip(&kept.losses).find(|(_, loss)| !loss.is_finite()) {
            let ops = self.shared.program.segments[self.program.calls[*call].segment].ops.len();
            self.heartbeat.was_at(*call, ops - 1);
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
                self.heartbeat.was_at(number, op);
            }
        }
        Err(Fault::NotFinite { what: THE_NORM })
    }
}

/// Bytes of weights and of gradients, if they change during a step.
fn state_bytes(sizes: &Sizes, state: &State) -> [usize; 2] {
    match sizes.divides {
        Divides::State => [0, 0],
        _ => state.layers().fold([0, 0], |[weights, gradients], (_, layer)| {
            [weights + layer.weights.bytes(), gradients + layer.gradients.bytes()]
        }),
    }
}
