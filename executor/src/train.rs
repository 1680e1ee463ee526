//! A run: a thread for each rank, step by step, and what they report.

use crate::checkpoint::{Beginning, Inventory, Saver, prepare, sweep};
use crate::collective::{Communicator, Members};
use crate::error::{Fault, RunError};
use crate::instruction::instructions;
use crate::parameters::{Layer, ParameterName, parameters};
use crate::rank::{Rank, Shared, StepEnd};
use crate::record::{Record, Recorder};
use crate::settings::Settings;
use crate::sizes::Sizes;
use crate::state::{LayerState, State};
use crate::supported;
use crate::timeline::{label, timeline};
use crate::tokens::{Loader, Tokens};
use crate::transport::{Mailboxes, Transport};
use crate::update::Optimizer;
use crate::watch::{Patience, Watch, Watched};
use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
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
enum Message {
    /// It has done a step.
    Step { rank: usize, step: usize, end: StepEnd },
    /// It has ended.
    End { rank: usize, end: Box<Result<RankEnd, RunError>> },
}

/// What a rank leaves.
struct RankEnd {
    record: Record,
    resident: Vec<(MemoryKind, usize)>,
    state: State,
}

/// By rank.
type Ends = Vec<Result<RankEnd, RunError>>;

/// Trains with a plan; `progress` hears of each step.
///
/// # Errors
/// `Refused`, `Data` and `Checkpoint` before anything runs; `Rank` if a rank cannot go on, and `Checkpoint` if one cannot
/// be written. After a stall the rank that hangs keeps its thread: only the end of the process ends that.
pub fn train(
    plan: &Plan,
    tokens: &Tokens,
    settings: &Settings,
    progress: &mut dyn FnMut(&StepReport),
) -> Result<Outcome, RunError> {
    let run = Arc::new(Run::new(plan, tokens, settings)?);
    let (sender, receiver) = channel();
    let spawn = |rank: usize| {
        let (run, sender) = (Arc::clone(&run), sender.clone());
        let named = std::thread::Builder::new().name(format!("rank {rank}"));
        let thread = named.spawn(move || run.rank(rank, &sender));
        thread.map_err(|error| RunError::Threads(error.to_string()))
    };
    let ranks = 0..run.program.ranks.len();
    let threads: Vec<_> = ranks.map(spawn).collect::<Result<_, _>>().inspect_err(|_| run.stop())?;
    drop(sender);
    let (reports, ends) = run.listen(&receiver, progress)?;
    for thread in threads {
        thread.join().expect("a rank's panics are caught in it");
    }
    let ends = first_cause(ends)?;
    let records: Vec<Record> = ends.iter().map(|end| end.record.clone()).collect();
    let resident: Vec<Vec<(MemoryKind, usize)>> = ends.iter().map(|end| end.resident.clone()).collect();
    let weights = settings.return_weights.then(|| whole_weights(&ends));
    Ok(Outcome { steps: reports, timeline: timeline(&run.program, &records, &resident), weights })
}

/// The batches of a run from its beginning on.
fn loader<'a>(plan: &Plan, tokens: &'a Tokens, beginning: &Beginning) -> Result<Loader<'a>, RunError> {
    let sizes = [plan.job.sequence, plan.job.global_batch, plan.model.vocab];
    Loader::new(tokens, sizes, beginning.seed, [beginning.step, beginning.sequences])
}

/// What the ranks' threads read. They own it together: one that hangs outlives the run.
struct Run {
    plan: Plan,
    program: Program,
    settings: Settings,
    tokens: Tokens,
    optimizer: Optimizer,
    beginning: Beginning,
    inventory: Inventory,
    mailboxes: Mailboxes,
    watch: Watch,
    began: Instant,
}

impl Run {
    /// Refuses what cannot be run.
    fn new(plan: &Plan, tokens: &Tokens, settings: &Settings) -> Result<Self, RunError> {
        let plan = supported::own_stack(plan)?;
        supported::check(&plan)?;
        let beginning = Beginning::open(&plan, tokens, settings)?;
        loader(&plan, tokens, &beginning)?;
        if let Some(saving) = &settings.saving {
            prepare(&saving.folder, beginning.step)?;
        }
        let program = lower_every_rank(&plan);
        let ranks = program.ranks.len();
        let mut inventory = Inventory::default();
        for rank in 0..ranks {
            let sizes = Sizes::of(&plan, rank);
            for layer in layers_of(&plan, &sizes) {
                let parameters = parameters(&plan.model, layer, &sizes, ends_apart(&plan));
                inventory.add(rank, layer, parameters, sizes.shard_place());
            }
        }
        Ok(Self {
            optimizer: Optimizer::of_name(&plan.job.optimizer).expect("a checked plan has a known optimizer"),
            plan,
            program,
            settings: settings.clone(),
            tokens: tokens.clone(),
            beginning,
            inventory,
            mailboxes: Mailboxes::new(ranks),
            watch: Watch::new(ranks, settings.fault),
            began: Instant::now(),
        })
    }

    /// Stops every rank.
    fn stop(&self) {
        self.watch.stop();
        self.mailboxes.abort();
    }

    /// A rank's thread. Whatever stops it stops all.
    fn rank(&self, rank: usize, reports: &Sender<Message>) {
        let trained = catch_unwind(AssertUnwindSafe(|| self.train(rank, reports)));
        let fault = match trained {
            Ok(Ok(end)) => Ok(end),
            Ok(Err(fault)) => Err(fault),
            Err(panic) => Err(Fault::Panic(text_of(&*panic))),
        };
        let end = fault.map_err(|fault| {
            self.stop();
            match fault {
                Fault::Checkpoint(error) => RunError::Checkpoint(error),
                fault => self.error_of(rank, fault),
            }
        });
        self.watch.rank(rank).end();
        let _ = reports.send(Message::End { rank, end: Box::new(end) });
    }

    fn train(&self, rank: usize, reports: &Sender<Message>) -> Result<RankEnd, Fault> {
        let pulse = self.watch.rank(rank);
        let transport = Watched { transport: &self.mailboxes, pulse };
        let shared = Shared {
            plan: &self.plan,
            program: &self.program,
            settings: &self.settings,
            optimizer: self.optimizer,
            transport: &transport,
        };
        let mut own = self.new_rank(rank, &shared);
        let moments = self.optimizer.moments();
        own.state
            .load(|layer, parameter| self.beginning.load(&self.plan.model, layer, parameter, moments))?;
        let saver = self.settings.saving.as_ref().map(|saving| Saver {
            plan: &self.plan,
            tokens: &self.tokens,
            beginning: &self.beginning,
            saving,
            inventory: &self.inventory,
            transport: &transport,
            pulse,
            group: self.program.groups.len(),
            moments,
        });
        let resident = resident(&own.state);
        let last = self.settings.steps;
        for step in self.beginning.step + 1..=last {
            pulse.begin_step(step);
            if pulse.spoils_weights() {
                own.state
                    .layers_mut()
                    .for_each(|(_, layer)| layer.owned(|owned| owned.weights[0] = f32::NAN));
            }
            let end = own.step(step)?;
            if let Some(saver) = saver.as_ref().filter(|saver| saver.is_due(step, last)) {
                saver.save(rank, step, &mut own.state)?;
            }
            // Nobody listens any more only if the run has failed elsewhere.
            let _ = reports.send(Message::Step { rank, step, end });
        }
        Ok(RankEnd { record: own.recorder.record, resident, state: own.state })
    }

    fn new_rank<'a>(&'a self, rank: usize, shared: &'a Shared<'a>) -> Rank<'a> {
        let Shared { plan, program, settings, .. } = *shared;
        let own = &program.ranks[rank];
        let sizes = Sizes::of(plan, rank);
        let moments = shared.optimizer.moments();
        let own_layers = layers_of(plan, &sizes).into_iter();
        let seed_and_moments = [self.beginning.seed, moments];
        let state = State::new(&plan.model, own_layers, &sizes, ends_apart(plan), seed_and_moments);
        let groups = Axis::ALL
            .iter()
            .zip(own.groups)
            .map(|(_, group)| group.map(|group| members(program, group, rank)));
        Rank {
            shared,
            program: own,
            instructions: instructions(program, own),
            groups: groups.collect(),
            communicator: Communicator::new(shared.transport),
            loader: loader(plan, &self.tokens, &self.beginning).expect("the tokens suited before"),
            state,
            recorder: Recorder::new(self.began),
            threads: Threads::new(settings.threads.get() / program.ranks.len()),
            pulse: self.watch.rank(rank),
            frames: BTreeMap::new(),
            handed: BTreeMap::new(),
            layers: stage_layers(plan),
            sizes,
        }
    }

    /// Puts the ranks' messages of each step together, until every rank has ended or none does anything.
    fn listen(
        &self,
        receiver: &Receiver<Message>,
        progress: &mut dyn FnMut(&StepReport),
    ) -> Result<(Vec<StepReport>, Ends), RunError> {
        let ranks = self.program.ranks.len();
        let mut steps =
            Steps { run: self, waiting: BTreeMap::new(), before: Instant::now(), reports: Vec::new() };
        let mut ends = BTreeMap::new();
        let mut patience = Patience::new(self.settings.patience);
        while ends.len() < ranks {
            match receiver.recv_timeout(patience.interval()) {
                Ok(Message::Step { rank, step, end }) => steps.add(rank, step, end, progress),
                Ok(Message::End { rank, end }) => drop(ends.insert(rank, *end)),
                Err(_) if patience.is_over(&self.watch) => {
                    return Err(self.stalled(ends.into_values().collect()));
                }
                Err(_) => {}
            }
        }
        Ok((steps.reports, ends.into_values().collect()))
    }

    /// Why the run ends where nothing happens any more. What another rank said before is the cause.
    fn stalled(&self, ends: Ends) -> RunError {
        let stalled = self.error_of(self.watch.culprit(), Fault::Stalled(self.settings.patience));
        self.stop();
        if let Some(saving) = &self.settings.saving {
            // A checkpoint that the rank was writing goes; if it cannot, the next run removes it.
            let _ = sweep(&saving.folder);
        }
        first_cause(ends).err().unwrap_or(stalled)
    }

    fn error_of(&self, rank: usize, fault: Fault) -> RunError {
        RunError::Rank { rank, step: self.watch.rank(rank).step(), op: self.op_of(rank), fault }
    }

    /// What a rank is doing.
    fn op_of(&self, rank: usize) -> String {
        let (call, op) = self.watch.rank(rank).at();
        let program = &self.program;
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

/// The layers that a rank holds.
fn layers_of(plan: &Plan, sizes: &Sizes) -> Vec<Layer> {
    let layers = stage_layers(plan);
    let runs = |stage: &usize| plan.schedule().rank_of(*stage, plan.pipeline_shape()) == sizes.at.pipeline;
    (0..layers.len()).filter(runs).flat_map(|stage| layers[stage].clone()).collect()
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

/// Whether the first and the last stage are on different ranks.
fn ends_apart(plan: &Plan) -> bool {
    let shape = plan.pipeline_shape();
    plan.schedule().rank_of(0, shape) != plan.schedule().rank_of(shape.stages() - 1, shape)
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

/// The steps of which not all ranks have reported.
struct Steps<'a> {
    run: &'a Run,
    waiting: BTreeMap<usize, BTreeMap<usize, StepEnd>>,
    before: Instant,
    reports: Vec<StepReport>,
}

impl Steps<'_> {
    fn add(&mut self, rank: usize, step: usize, end: StepEnd, progress: &mut dyn FnMut(&StepReport)) {
        let plan = &self.run.plan;
        let known = self.waiting.entry(step).or_default();
        known.insert(rank, end);
        if known.len() < self.run.program.ranks.len() {
            return;
        }
        let ends = self.waiting.remove(&step).expect("it was just completed");
        // All tensor ranks know the same losses.
        let own = ends.iter().filter(|(rank, _)| plan.mesh.coordinates(**rank).tensor == 0);
        let loss = own.map(|(_, end)| end.loss).sum::<f64>() / plan.job.tokens() as f64;
        let now = Instant::now();
        let report = StepReport {
            step,
            loss,
            gradient_norm: ends[&0].gradient_norm,
            seconds: (now - self.before).as_secs_f64(),
        };
        self.before = now;
        progress(&report);
        self.reports.push(report);
    }
}

/// What the ranks leave, or why the first of them stopped that was not stopped by another.
fn first_cause(ends: Ends) -> Result<Vec<RankEnd>, RunError> {
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
