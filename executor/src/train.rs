//! A run: a thread for each rank, step by step, and what they report.

use crate::beside::Beside;
use crate::collective::{Communicator, Members};
use crate::error::{Fault, RunError};
use crate::instruction::instructions;
use crate::parameters::{Layer, ParameterName};
use crate::rank::{Rank, Shared, StepEnd};
use crate::record::{Record, Recorder};
use crate::settings::Settings;
use crate::sizes::Sizes;
use crate::state::{LayerState, State};
use crate::supported;
use crate::timeline::{label, timeline};
use crate::tokens::{Loader, Tokens};
use crate::transport::Mailboxes;
use crate::update::Optimizer;
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;
use trainwright_kernels::Threads;
use trainwright_spec::lower::lower_every_rank;
use trainwright_spec::plan::Plan;
use trainwright_spec::program::{Axis, MemoryKind, Program};
use trainwright_traces::timeline::Timeline;

/// What is known of a step once all ranks have done it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepReport {
    /// Its number, from 1.
    pub step: usize,
    /// The mean loss of its tokens, before the update.
    pub loss: f64,
    /// The norm of the gradients before it was clipped; none if the job does not clip.
    pub gradient_norm: Option<f64>,
    /// Seconds since the step before.
    pub seconds: f64,
}

/// A parameter's layer and name, and all its elements.
pub type WholeWeights = BTreeMap<(Layer, ParameterName), Vec<f32>>;

/// What a run leaves.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Each step.
    pub steps: Vec<StepReport>,
    /// The last step, op by op.
    pub timeline: Timeline,
    /// The weights at the end, if they were asked for.
    pub weights: Option<WholeWeights>,
}

/// What a rank says to who started it.
struct Message {
    rank: usize,
    step: usize,
    end: StepEnd,
}

/// What a rank leaves.
struct RankEnd {
    record: Record,
    resident: Vec<(MemoryKind, usize)>,
    state: State,
}

/// Trains with a plan; `progress` hears of each step.
///
/// # Errors
/// `Refused` before anything runs; `Data` if the tokens do not suit; `Rank` if a rank cannot go on.
pub fn train(
    plan: &Plan,
    tokens: &Tokens,
    settings: &Settings,
    progress: &mut dyn FnMut(&StepReport),
) -> Result<Outcome, RunError> {
    let plan = supported::own_stack(plan)?;
    supported::check(&plan)?;
    loader(&plan, tokens, settings)?;
    let program = lower_every_rank(&plan);
    let ranks = program.ranks.len();
    let mailboxes = Mailboxes::new(ranks);
    let optimizer = Optimizer::of_name(&plan.job.optimizer).expect("a checked plan has a known optimizer");
    let shared = Shared { plan: &plan, program: &program, settings, optimizer, transport: &mailboxes };
    let run = Run {
        shared: &shared,
        tokens,
        began: Instant::now(),
        at: (0..ranks).map(|_| AtomicU64::new(0)).collect(),
        steps: (0..ranks).map(|_| AtomicUsize::new(1)).collect(),
    };
    let (sender, receiver) = channel();
    let (reports, ends) = std::thread::scope(|scope| {
        let spawn = |rank| {
            let (run, sender) = (&run, sender.clone());
            scope.spawn(move || run.rank(rank, &sender))
        };
        let threads: Vec<_> = (0..ranks).map(spawn).collect();
        drop(sender);
        let reports = listen(&shared, &receiver, progress);
        let ends: Vec<Result<RankEnd, RunError>> = threads
            .into_iter()
            .map(|thread| thread.join().expect("a rank's panics are caught in it"))
            .collect();
        (reports, ends)
    });
    let ends = first_cause(ends)?;
    let records: Vec<Record> = ends.iter().map(|end| end.record.clone()).collect();
    let resident: Vec<Vec<(MemoryKind, usize)>> = ends.iter().map(|end| end.resident.clone()).collect();
    let weights = settings.return_weights.then(|| whole_weights(&ends));
    Ok(Outcome { steps: reports, timeline: timeline(&program, &records, &resident), weights })
}

fn loader<'a>(plan: &Plan, tokens: &'a Tokens, settings: &Settings) -> Result<Loader<'a>, RunError> {
    let sizes = [plan.job.sequence, plan.job.global_batch, plan.model.vocab];
    Loader::new(tokens, sizes, settings.seed)
}

/// What the ranks' threads share beside what they read.
struct Run<'a> {
    shared: &'a Shared<'a>,
    tokens: &'a Tokens,
    began: Instant,
    /// By rank: call and op.
    at: Vec<AtomicU64>,
    /// By rank.
    steps: Vec<AtomicUsize>,
}

impl Run<'_> {
    /// A rank's thread. Whatever stops it stops all.
    fn rank(&self, rank: usize, reports: &Sender<Message>) -> Result<RankEnd, RunError> {
        let trained = catch_unwind(AssertUnwindSafe(|| self.train(rank, reports)));
        let fault = match trained {
            Ok(Ok(end)) => return Ok(end),
            Ok(Err(fault)) => fault,
            Err(panic) => Fault::Panic(text_of(&*panic)),
        };
        self.shared.transport.abort();
        let op = self.op_of(rank);
        Err(RunError::Rank { rank, step: self.steps[rank].load(Ordering::Relaxed), op, fault })
    }

    fn train(&self, rank: usize, reports: &Sender<Message>) -> Result<RankEnd, Fault> {
        let mut own = self.new_rank(rank)?;
        own.state.layers_mut().try_for_each(|(_, layer)| own.beside.stow_moments(layer))?;
        let resident = resident(&own.state);
        for step in 1..=self.shared.settings.steps {
            self.steps[rank].store(step, Ordering::Relaxed);
            let end = own.step(step)?;
            // Nobody listens any more only if the run has failed elsewhere.
            let _ = reports.send(Message { rank, step, end });
        }
        Ok(RankEnd { record: own.recorder.record, resident, state: own.state })
    }

    fn new_rank(&self, rank: usize) -> Result<Rank<'_>, Fault> {
        let shared = self.shared;
        let Shared { plan, program, settings, .. } = *shared;
        let own = &program.ranks[rank];
        let sizes = Sizes::of(plan, rank);
        let moments = shared.optimizer.moments();
        let layers = stage_layers(plan);
        let runs =
            |stage: &usize| plan.schedule().rank_of(*stage, plan.pipeline_shape()) == sizes.at.pipeline;
        let stages = (0..plan.schedule().copies() * layers.len()).filter(runs);
        let own_layers: BTreeSet<Layer> =
            stages.flat_map(|stage| layers[stage % layers.len()].clone()).collect();
        let copies_embedding = !own_layers.contains(&Layer::Embedding);
        let own_layers = own_layers.into_iter();
        let state = State::new(&plan.model, own_layers, &sizes, copies_embedding, [settings.seed, moments]);
        let groups = Axis::ALL
            .iter()
            .zip(own.groups)
            .map(|(_, group)| group.map(|group| members(program, group, rank)));
        Ok(Rank {
            beside: Beside::new(plan.offload)?,
            shared,
            program: own,
            instructions: instructions(program, own),
            groups: groups.collect(),
            communicator: Communicator::new(shared.transport),
            loader: loader(plan, self.tokens, settings).expect("the tokens suited before"),
            state,
            recorder: Recorder::new(self.began),
            threads: Threads::new(settings.threads.get() / program.ranks.len()),
            at: &self.at[rank],
            frames: BTreeMap::new(),
            handed: BTreeMap::new(),
            layers,
            sizes,
        })
    }

    /// What a rank is doing.
    fn op_of(&self, rank: usize) -> String {
        let at = self.at[rank].load(Ordering::Relaxed);
        let (call, op) = ((at >> 32) as usize, (at & 0xFFFF_FFFF) as usize);
        let program = self.shared.program;
        let call = program.ranks[rank].calls.get(call);
        let known = call.and_then(|call| {
            let segment = &program.segments[call.segment];
            let op = segment.ops.get(op)?;
            let action = call.action.map(|action| format!(" ({action})")).unwrap_or_default();
            Some(format!("{} {}{action}", label(op), op.pass.name()))
        });
        known.unwrap_or_else(|| "start".into())
    }
}

/// The layers of each stage in the order of forward.
fn stage_layers(plan: &Plan) -> Vec<Vec<Layer>> {
    let stages = plan.stage_blocks();
    let layers = |(stage, blocks): (usize, &Vec<_>)| {
        let embedding = (stage == 0).then_some(Layer::Embedding);
        let head = (stage + 1 == stages.len()).then_some(Layer::Head);
        let blocks = blocks.iter().map(|(index, ..): &(usize, _, _)| Layer::Block(*index));
        embedding.into_iter().chain(blocks).chain(head).collect()
    };
    stages.iter().enumerate().map(layers).collect()
}

fn members(program: &Program, group: usize, rank: usize) -> Members {
    let ranks = program.groups[group].ranks.clone();
    let place = ranks.iter().position(|member| *member == rank).expect("a rank is in its groups");
    Members { group, ranks, place }
}

fn resident(state: &State) -> Vec<(MemoryKind, usize)> {
    let sum =
        |size: fn(&LayerState) -> usize| 4 * state.layers().map(|(_, layer)| size(layer)).sum::<usize>();
    vec![
        (MemoryKind::Weights, sum(|layer| layer.weights.length())),
        (MemoryKind::Gradients, sum(|layer| layer.gradients.length())),
        (MemoryKind::Optimizer, sum(|layer| layer.moments.iter().flatten().map(Vec::len).sum())),
    ]
}

/// Puts the ranks' messages of each step together, until every rank has ended.
fn listen(
    shared: &Shared,
    receiver: &Receiver<Message>,
    progress: &mut dyn FnMut(&StepReport),
) -> Vec<StepReport> {
    let plan = shared.plan;
    let ranks = shared.program.ranks.len();
    let mut waiting: BTreeMap<usize, BTreeMap<usize, StepEnd>> = BTreeMap::new();
    let mut reports = Vec::new();
    let mut before = Instant::now();
    for Message { rank, step, end } in receiver {
        let known = waiting.entry(step).or_default();
        known.insert(rank, end);
        if known.len() < ranks {
            continue;
        }
        let ends = waiting.remove(&step).expect("it was just completed");
        // All ranks with other columns of the same logits know the same losses.
        let own = ends.iter().filter(|(rank, _)| Sizes::of(plan, **rank).column() == 0);
        let loss = own.map(|(_, end)| end.loss).sum::<f64>() / plan.job.tokens() as f64;
        let now = Instant::now();
        let report = StepReport {
            step,
            loss,
            gradient_norm: ends[&0].gradient_norm,
            seconds: (now - before).as_secs_f64(),
        };
        before = now;
        progress(&report);
        reports.push(report);
    }
    reports
}

/// What the ranks leave, or why the first of them stopped that was not stopped by another.
fn first_cause(ends: Vec<Result<RankEnd, RunError>>) -> Result<Vec<RankEnd>, RunError> {
    let mut own = Vec::new();
    let mut follows = None;
    for end in ends {
        match end {
            Ok(end) => own.push(end),
            Err(error @ RunError::Rank { fault: Fault::Aborted, .. }) => follows = Some(error),
            Err(error) => return Err(error),
        }
    }
    follows.map_or(Ok(own), Err)
}

fn whole_weights(ends: &[RankEnd]) -> WholeWeights {
    let mut whole = WholeWeights::new();
    for (layer, state) in ends.iter().flat_map(|end| end.state.layers()) {
        for (index, parameter) in state.parameters.iter().enumerate() {
            let [rows, columns] = parameter.whole;
            let key = (parameter.home(layer), parameter.name);
            state.put(index, whole.entry(key).or_insert_with(|| vec![0.0; rows * columns]));
        }
    }
    whole
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".into())
}
