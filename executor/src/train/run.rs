//! A run: a thread for each rank, their reports, and the outcome.
//!
//! ```text
//! train ─► Run (supervise.rs) ─► a thread for each rank here (rank_thread.rs), and for each in another process (remote_ranks.rs)
//!            └─ supervises ◄─ messages: steps and ends ─► reports (step_reports.rs) ─► Outcome
//! ```

pub(crate) mod generate;
pub(crate) mod host_memory;
mod messages;
pub(crate) mod processes;
mod rank_thread;
mod remote_ranks;
pub(crate) mod serve;
mod step_reports;
pub(crate) mod stopping;
mod supervise;

pub(crate) use messages::{is_report, valid_reports};
pub use step_reports::{StepReport, Waits};

use crate::comm::local_ranks::LocalRanks;
use crate::comm::routes::{Route, Routes};
use crate::comm::transport::{Envelope, Mailboxes, Tag};
use crate::device::DeviceMemory;
use crate::error::RunError;
use crate::train::data::tokens::Tokens;
use crate::train::graph_capture::GraphUse;
use crate::train::parameters::{Layer, ParameterName};
use crate::train::program_routes::routes_by_axis;
use crate::train::record::Record;
use crate::train::settings::Settings;
use crate::train::state::State;
use crate::train::supported;
use crate::train::timeline::timeline;
use messages::{RankEnd, Report};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::time::Instant;
use step_reports::Steps;
use supervise::{Run, first_cause};
use trainwright_spec::plan::Plan;
use trainwright_spec::program::{Axis, MemoryKind, Program};
use trainwright_timeline::timeline::Timeline;

/// All elements of each parameter, by layer and name.
pub type FullWeights = BTreeMap<(Layer, ParameterName), Vec<f32>>;

/// The outcome of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Each step.
    pub steps: Vec<StepReport>,
    /// The last step, op by op.
    pub timeline: Timeline,
    /// The steps before it, if they were asked for.
    pub earlier: Vec<Timeline>,
    /// The weights at the end, if they were asked for.
    pub weights: Option<FullWeights>,
    /// How ranks that compute on GPUs communicated along each axis; empty for others.
    pub routes: BTreeMap<Axis, Route>,
    /// Whether a graph replaced launches on rank 0's GPU; `None` if ranks compute on processors.
    pub graph: Option<GraphUse>,
    /// GPU memory of each rank of this process; empty if ranks compute on processors.
    pub device_memory: Vec<DeviceMemory>,
    /// Whose kernels did attention on rank 0, and why not others', for people; `None` if ranks compute on processors.
    pub attention: Option<String>,
    /// Whether rank 0's GPU gives the same bits in every run; `None` if ranks compute on processors.
    pub deterministic: Option<bool>,
}

/// Trains with a plan; `progress` gets each step.
///
/// # Errors
/// `Refused`, `Memory`, `Data` and `Checkpoint` before anything runs; `Rank` if a rank cannot go on, and `Checkpoint` if one cannot
/// be written. After a stall the rank that hangs keeps its thread: only the end of the process ends that.
pub fn train(
    plan: &Plan,
    tokens: &Tokens,
    settings: &Settings,
    progress: &mut dyn FnMut(&StepReport),
) -> Result<Outcome, RunError> {
    Ok(outcome(run_plan(plan, tokens, settings, progress)?, settings))
}

/// The outcome of a run.
pub(crate) fn outcome(Ran { program, routes, steps, ends }: Ran, settings: &Settings) -> Outcome {
    let routes = routes_by_axis(&routes, &program);
    let first = ends.first().and_then(|end| end.here.as_ref());
    let graph = first.and_then(|end| end.graph.clone());
    let attention = first.and_then(|end| end.attention.clone());
    let deterministic = first.and_then(|end| end.deterministic);
    let here = || ends.iter().filter_map(|end| end.here.as_ref());
    let device_memory = here().filter_map(|end| end.device_memory).collect();
    let weights = settings.return_weights.then(|| full_weights(here().filter_map(|end| end.state.as_ref())));
    let resident: Vec<Vec<(MemoryKind, usize)>> = ends.iter().map(|end| end.resident.clone()).collect();
    let mut timelines: Vec<Timeline> =
        records_by_step(ends).iter().map(|records| timeline(&program, records, &resident)).collect();
    let last = timelines.pop().expect("a run has a step");
    Outcome {
        steps,
        timeline: last,
        earlier: timelines,
        weights,
        routes,
        graph,
        device_memory,
        attention,
        deterministic,
    }
}

/// What a run leaves before its records are made a timeline.
pub(crate) struct Ran {
    pub program: Program,
    pub routes: Routes,
    pub steps: Vec<StepReport>,
    /// Of every rank; in rank 0's process alone if ranks are processes.
    pub ends: Vec<RankEnd>,
}

/// As `train`: every rank is a thread of this process.
pub(crate) fn run_plan(
    plan: &Plan,
    tokens: &Tokens,
    settings: &Settings,
    progress: &mut dyn FnMut(&StepReport),
) -> Result<Ran, RunError> {
    let plan = settings.device.with_executor_stack(plan)?;
    supported::check(&plan)?;
    let ranks = plan.mesh.ranks();
    host_memory::check(&plan, settings, 0..ranks)?;
    let transport = Arc::new(Mailboxes::new(ranks));
    let here = LocalRanks { ranks: (0..ranks).collect(), local_rank: None, transport, began: Instant::now() };
    run_ranks(plan, tokens, settings, here, progress)
}

/// Runs this process's ranks of a plan that was checked.
pub(crate) fn run_ranks(
    plan: Plan,
    tokens: &Tokens,
    settings: &Settings,
    here: LocalRanks,
    progress: &mut dyn FnMut(&StepReport),
) -> Result<Ran, RunError> {
    let run = Arc::new(Run::new(plan, tokens, settings, here)?);
    let leads = run.here.leads();
    let (sender, receiver) = channel();
    let spawn = |rank: usize| {
        let (run, sender, is_here) = (Arc::clone(&run), sender.clone(), run.here.ranks.contains(&rank));
        let named = std::thread::Builder::new().name(format!("rank {rank}"));
        let thread = named
            .spawn(move || if is_here { run.rank(rank, &sender) } else { run.follow_remote(rank, &sender) });
        thread.map_err(|error| RunError::Threads(error.to_string()))
    };
    // The leader has a thread for each rank of another process too, which receives its reports.
    let followed = (0..run.program.ranks.len()).filter(|rank| leads || run.here.ranks.contains(rank));
    let threads: Vec<_> = followed.map(spawn).collect::<Result<_, _>>().inspect_err(|_| run.stop())?;
    drop(sender);
    let heartbeats = run.heartbeat_threads()?;
    let mut steps = Steps::of(&run);
    let ends = run.supervise(&receiver, threads.len(), &mut |message| match leads {
        true => steps.add(message, progress),
        false => run.report_to_leader(message),
    })?;
    for thread in threads {
        thread.join().expect("a rank's panics are caught in it");
    }
    let ends = first_cause(ends)?;
    if !leads {
        for (rank, end) in run.here.ranks.iter().zip(&ends) {
            let envelope = Envelope { from: *rank, to: 0, tag: Tag::Report };
            run.here.transport.send_bytes(envelope, Report::end_to_bytes(end));
        }
    }
    run.ends_heartbeats.store(true, Ordering::Relaxed);
    for heartbeat in heartbeats {
        heartbeat.thread().unpark();
        heartbeat.join().expect("a thread that only sends does not panic");
    }
    let steps = steps.reports;
    let run = Arc::into_inner(run).expect("the threads that shared it have ended");
    Ok(Ran { steps, ends, program: run.program, routes: run.routes })
}

/// Every rank's record of each step.
fn records_by_step(ends: Vec<RankEnd>) -> Vec<Vec<Record>> {
    let steps = ends.iter().map(|end| end.records.len()).min().unwrap_or(0);
    let mut by_step: Vec<Vec<Record>> = (0..steps).map(|_| Vec::new()).collect();
    for end in ends {
        by_step.iter_mut().zip(end.records).for_each(|(step, record)| step.push(record));
    }
    by_step
}

fn full_weights<'a>(states: impl Iterator<Item = &'a State>) -> FullWeights {
    let mut full = FullWeights::new();
    for (layer, state) in states.flat_map(State::layers) {
        for (index, parameter) in state.parameters.iter().enumerate() {
            let [rows, columns] = parameter.full_shape;
            let key = (parameter.home(layer), parameter.name);
            state.put(index, full.entry(key).or_insert_with(|| vec![0.0; rows * columns]));
        }
    }
    full
}
