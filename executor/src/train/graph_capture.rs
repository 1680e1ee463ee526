//! Graph capture: if steps repeat, one launch of a CUDA graph replays them.
//!
//! A step is recorded while its launches are enqueued, and the next one too. If both are equal, launch by launch with all
//! arguments, a graph is made of them and replaces the ops; otherwise the run goes on without. NCCL wants a collective recorded
//! by all its members or by none, so all ranks first agree that their steps repeat. `obstacle` names what never repeats.

use crate::comm::collective::Communicator;
use crate::comm::members::Members;
use crate::comm::routes::{Route, Routes};
use crate::device::Device;
use crate::error::Fault;
use crate::train::program_routes::routes_by_axis;
use crate::train::run_context::RunContext;
use crate::train::settings::Records;
use std::fmt;
use trainwright_spec::model::Mlp;
use trainwright_spec::program::Axis;

/// Whether a graph replaced the ops.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GraphUse {
    /// From that step on.
    From(usize),
    /// Why it did not.
    No(String),
}

impl fmt::Display for GraphUse {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        match self {
            GraphUse::From(step) => write!(formatter, "from step {step}"),
            GraphUse::No(reason) => write!(formatter, "no, because {reason}"),
        }
    }
}

/// The graph of a rank's steps, or the search for one.
pub(crate) struct GraphCapture {
    /// All ranks.
    members: Members,
    state: State,
}

enum State {
    Never(String),
    /// How many steps were recorded, none equal to the one before it.
    Watches(usize),
    /// The graph is ready; the first step that it replayed.
    Ready(Option<usize>),
}

/// Steps that are recorded before a run goes on without a graph. The first ones may still ask for memory.
const RECORDINGS: usize = 4;

impl GraphCapture {
    /// That of a rank; `None` if it computes on no GPU.
    pub fn of(shared: &RunContext, routes: &Routes, rank: usize) -> Option<Self> {
        routes.gpu(rank)?;
        let ranks = shared.program.ranks.len();
        // Behind the groups of the program, that of checkpoints and that of the GPUs' names.
        let members =
            Members { group: shared.program.groups.len() + 2, ranks: (0..ranks).collect(), place: rank };
        let state =
            obstacle(shared, routes).map_or(State::Watches(0), |obstacle| State::Never(obstacle.into()));
        Some(Self { members, state })
    }

    /// Whether the graph can replay the next step.
    pub fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready(_))
    }

    /// Whether a step is to be recorded. The first one still allocates memory and makes tables.
    pub fn records(&self, is_first: bool) -> bool {
        matches!(self.state, State::Watches(_)) && !is_first
    }

    /// The graph has replayed a step.
    pub fn replayed(&mut self, step: usize) {
        if let State::Ready(first) = &mut self.state {
            first.get_or_insert(step);
        }
    }

    /// After a step that was recorded: makes a graph if it was equal to the one before, on all ranks.
    pub fn capture(&mut self, device: &dyn Device, communicator: &mut Communicator) -> Result<(), Fault> {
        let State::Watches(recordings) = &mut self.state else { return Ok(()) };
        *recordings += 1;
        let is_last = *recordings == RECORDINGS;
        let repeats = match device.repeats() {
            Ok(true) => Ok(()),
            Ok(false) => Err("the launches on the GPU differ from step to step".into()),
            Err(obstacle) => Err(obstacle),
        };
        let other = "another rank has none";
        if !communicator.all_agree(&self.members, repeats.is_ok())? {
            if is_last {
                self.state = State::Never(repeats.err().unwrap_or_else(|| other.into()));
            }
            return Ok(());
        }
        let made = device.make_ready().map_err(|error| error.to_string());
        self.state = match communicator.all_agree(&self.members, made.is_ok())? {
            true => State::Ready(None),
            // It is not tried again: what failed may have left members of a group at different collectives.
            false => State::Never(made.err().unwrap_or_else(|| other.into())),
        };
        Ok(())
    }

    /// For the run's outcome.
    pub fn used(&self) -> GraphUse {
        match &self.state {
            State::Never(reason) => GraphUse::No(reason.clone()),
            State::Ready(Some(step)) => GraphUse::From(*step),
            _ => GraphUse::No("the run ends too soon: its last step is timed op by op, too".into()),
        }
    }
}

/// Why no step of a plan can be replayed by a graph, if that is known before.
fn obstacle(shared: &RunContext, routes: &Routes) -> Option<&'static str> {
    let (plan, settings) = (shared.plan, shared.settings);
    let by_axis = routes_by_axis(routes, shared.program);
    let among = |route| by_axis.iter().any(|(axis, taken)| *axis != Axis::Pipeline && *taken == route);
    let offload = &plan.offload;
    let places = [offload.optimizer, offload.activations, offload.gradients, offload.parameters];
    let has_experts = plan.model.blocks.iter().any(|run| matches!(run.block.mlp, Mlp::Experts(_)));
    let obstacles = [
        (!settings.graph, "it was turned off"),
        (settings.records == Records::EveryStep, "every step is timed op by op"),
        // A validation allocates memory between steps, and no GPU has shown that a captured step survives it.
        (settings.validation.is_some(), "held-out tokens are validated between steps"),
        (places.iter().any(Option::is_some), "what is offloaded goes through the host"),
        (plan.model.dropout, "each step drops out other elements"),
        (has_experts, "the host reads which experts tokens visit"),
        (shared.optimizer.is_layer_wise(), "the host reads the norms of tensors"),
        (plan.stages.len() > 1, "stages wait for each other's messages"),
        (among(Route::Device), "ranks share a GPU and wait for each other there"),
        (among(Route::Host), "ranks communicate through the host"),
        // The launch of a graph may block until another GPU's is done, whose collectives wait for this one's: NVIDIA recommends one
        // GPU per process. Source: NCCL user guide, "Using NCCL with CUDA Graphs", requirements and limitations.
        (
            among(Route::Nccl) && routes.has_several_gpus_in_a_process(),
            "several GPUs of one process communicate by NCCL: start a process for each GPU (`--transport tcp`)",
        ),
    ];
    obstacles.into_iter().find(|(is_there, _)| *is_there).map(|(_, obstacle)| obstacle)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::transport::Mailboxes;
    use crate::device::{CurrentDevice, DeviceKind, Opening};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::rc::Rc;
    use trainwright_kernels::cuda::Number;

    /// Whether each of two ranks has a graph after each of its steps, each of that many copies.
    fn graphs(copies: [&[usize]; 2]) -> [Vec<[bool; 2]>; 2] {
        let mailboxes = Mailboxes::new(2);
        let rank = |rank: usize| {
            let device =
                (DeviceKind::from_name("emulated-gpus").unwrap().open)(Opening::plain(rank)).unwrap();
            let _here = CurrentDevice::set(Rc::clone(&device));
            let [from, mut to] = [1.0, 2.0].map(|value| device.take(vec![value; 8], Number::F32));
            let members = Members { group: 3, ranks: vec![0, 1], place: rank };
            let mut graph_capture = GraphCapture { members, state: State::Watches(0) };
            let mut communicator = Communicator::new(&mailboxes);
            let step = |copies: &usize| {
                device.record();
                (0..*copies).for_each(|_| device.copy(to.slice_mut(), from.slice()));
                graph_capture.capture(&*device, &mut communicator).unwrap();
                // Without a graph there is nothing to do again.
                [catch_unwind(AssertUnwindSafe(|| device.replay())).is_ok(), graph_capture.is_ready()]
            };
            copies[rank].iter().map(step).collect()
        };
        let rank = &rank;
        std::thread::scope(|scope| {
            [0, 1].map(|number| scope.spawn(move || rank(number))).map(|thread| thread.join().unwrap())
        })
    }

    #[test]
    fn no_rank_records_a_graph_before_all_repeat() {
        if let Err(error) = (DeviceKind::from_name("emulated-gpus").unwrap().require)() {
            println!("skipped: {error}");
            return;
        }
        // The first rank repeats from its second step on, the other one from its third.
        let seen = graphs([&[1, 1, 1], &[1, 2, 2]]);
        let [none, ready] = [[false; 2], [true; 2]];
        assert_eq!(seen, [vec![none, none, ready], vec![none, none, ready]]);
        let never = graphs([&[1, 1, 1, 1], &[1, 2, 1, 2]]);
        assert_eq!(never, [vec![none; 4], vec![none; 4]]);
    }
}
