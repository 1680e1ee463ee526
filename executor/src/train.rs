//! A run: a thread for each rank, step by step, and what they report.

use crate::beside::Beside;
use crate::checkpoint::{Beginning, Inventory, Saver, prepare, sweep};
use crate::collective::{Communicator, Members};
use crate::device::{Device, Here, Numbers, Opening};
use crate::error::{Fault, RunError};
use crate::instruction::instructions;
use crate::near::{Near, Offers};
use crate::parameters::{Layer, ParameterName, parameters};
use crate::processes::{read_end, read_message, written_end, written_message};
use crate::rank::{Rank, Shared, StepEnd};
use crate::reach::{Reach, Way};
use crate::record::{Record, Recorder};
use crate::settings::{Settings, Start};
use crate::sizes::Sizes;
use crate::state::{LayerState, State};
use crate::supported;
use crate::timeline::{label, timeline};
use crate::tokens::{Loader, Tokens};
use crate::transport::{Mailboxes, Route, Tag, Transport};
use crate::update::Optimizer;
use crate::watch::{Patience, Watch, Watched};
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;
use trainwright_kernels::Threads;
use trainwright_kernels::cuda::Number;
use trainwright_spec::lower::lower_every_rank;
use trainwright_spec::plan::Plan;
use trainwright_spec::precision::Precision;
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
    /// The steps before it, if they were asked for.
    pub earlier: Vec<Timeline>,
    /// The weights at the end, if they were asked for.
    pub weights: Option<WholeWeights>,
    /// How ranks that compute on GPUs communicated along each axis; empty for others.
    pub ways: BTreeMap<Axis, Way>,
}

/// What a rank says to who started it.
enum Message {
    /// It has done a step.
    Step(StepMessage),
    /// It has ended.
    End { rank: usize, end: Box<Result<RankEnd, RunError>> },
}

/// What a rank says of a step.
pub(crate) struct StepMessage {
    pub rank: usize,
    pub step: usize,
    pub end: StepEnd,
}

/// What a rank leaves.
pub(crate) struct RankEnd {
    /// Of each step that was kept; the last one is the last step's.
    pub records: Vec<Record>,
    pub resident: Vec<(MemoryKind, usize)>,
    /// None of a rank in another process.
    pub state: Option<State>,
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
    Ok(outcome(run_plan(plan, tokens, settings, progress)?, settings))
}

/// What is told of a run.
pub(crate) fn outcome(Ran { program, reach, steps, ends }: Ran, settings: &Settings) -> Outcome {
    let ways = reach.ways(&program);
    let resident: Vec<Vec<(MemoryKind, usize)>> = ends.iter().map(|end| end.resident.clone()).collect();
    let weights = settings.return_weights.then(|| whole_weights(&ends));
    let mut timelines: Vec<Timeline> =
        records_by_step(ends).iter().map(|records| timeline(&program, records, &resident)).collect();
    let last = timelines.pop().expect("a run has a step");
    Outcome { steps, timeline: last, earlier: timelines, weights, ways }
}

/// A run before anyone has made sense of it.
pub(crate) struct Ran {
    pub program: Program,
    pub reach: Reach,
    pub steps: Vec<StepReport>,
    /// Of every rank; where ranks are processes, of rank 0's run alone.
    pub ends: Vec<RankEnd>,
}

/// The ranks of a process, and the way to all others.
pub(crate) struct Ranks {
    pub own: Vec<usize>,
    /// The number of this process's rank among those of its machine, where ranks are processes.
    pub local: Option<usize>,
    pub transport: Arc<dyn Transport>,
    /// From when on times are counted.
    pub began: Instant,
}

impl Ranks {
    /// Whether rank 0 is among them, which hears of all others.
    fn lead(&self) -> bool {
        self.own.contains(&0)
    }
}

/// As `train`: every rank is a thread of this process.
pub(crate) fn run_plan(
    plan: &Plan,
    tokens: &Tokens,
    settings: &Settings,
    progress: &mut dyn FnMut(&StepReport),
) -> Result<Ran, RunError> {
    let plan = settings.device.own_stack(plan)?;
    supported::check(&plan)?;
    let ranks = plan.mesh.ranks();
    let transport = Arc::new(Mailboxes::new(ranks));
    let here = Ranks { own: (0..ranks).collect(), local: None, transport, began: Instant::now() };
    run_ranks(plan, tokens, settings, here, progress)
}

/// Runs this process's ranks of a plan that was checked.
pub(crate) fn run_ranks(
    plan: Plan,
    tokens: &Tokens,
    settings: &Settings,
    here: Ranks,
    progress: &mut dyn FnMut(&StepReport),
) -> Result<Ran, RunError> {
    let run = Arc::new(Run::new(plan, tokens, settings, here)?);
    let leads = run.here.lead();
    let (sender, receiver) = channel();
    let spawn = |rank: usize| {
        let (run, sender, own) = (Arc::clone(&run), sender.clone(), run.here.own.contains(&rank));
        let named = std::thread::Builder::new().name(format!("rank {rank}"));
        let thread = named.spawn(move || if own { run.rank(rank, &sender) } else { run.hear(rank, &sender) });
        thread.map_err(|error| RunError::Threads(error.to_string()))
    };
    // The leader has a thread for each rank of another process too, which hears what that one says.
    let heard = (0..run.program.ranks.len()).filter(|rank| leads || run.here.own.contains(rank));
    let threads: Vec<_> = heard.map(spawn).collect::<Result<_, _>>().inspect_err(|_| run.stop())?;
    drop(sender);
    let speakers = run.speakers()?;
    let mut steps = Steps::of(&run);
    let ends = run.listen(&receiver, threads.len(), &mut |message| match leads {
        true => steps.add(message, progress),
        false => run.pass_on(message),
    })?;
    for thread in threads {
        thread.join().expect("a rank's panics are caught in it");
    }
    let ends = first_cause(ends)?;
    if !leads {
        for (rank, end) in run.here.own.iter().zip(&ends) {
            run.here.transport.send(Route { from: *rank, to: 0, tag: Tag::Report }, written_end(end));
        }
    }
    run.silent.store(true, Ordering::Relaxed);
    for speaker in speakers {
        speaker.thread().unpark();
        speaker.join().expect("who only speaks does not panic");
    }
    let steps = steps.reports;
    let run = Arc::into_inner(run).expect("the threads that shared it have ended");
    Ok(Ran { steps, ends, program: run.program, reach: run.reach })
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
    watch: Watch,
    here: Ranks,
    reach: Reach,
    /// What ranks that share GPUs tell each other.
    offers: Offers,
    /// Whether ranks of other processes need not hear any more how those here are.
    silent: AtomicBool,
}

impl Run {
    /// Refuses what cannot be run.
    fn new(plan: Plan, tokens: &Tokens, settings: &Settings, here: Ranks) -> Result<Self, RunError> {
        (settings.device.check)(&plan)?;
        (settings.device.require)()?;
        if settings.saving.is_some() || settings.start != Start::Anew {
            supported::check_checkpoints(&plan)?;
        }
        let beginning = Beginning::open(&plan, tokens, settings)?;
        loader(&plan, tokens, &beginning)?;
        if let Some(saving) = &settings.saving {
            prepare(&saving.folder, beginning.step)?;
        }
        let program = lower_every_rank(&plan);
        let ranks = program.ranks.len();
        let reach = Reach::of(&here, &program, settings.device)?;
        if here.own.iter().any(|rank| !reach.nccl_groups(&program, *rank).is_empty()) {
            (settings.device.require_nccl)()?;
        }
        let mut inventory = Inventory::default();
        for rank in 0..ranks {
            let sizes = Sizes::of(&plan, rank).aligned(settings.device.alignment);
            let own = layers_of(&plan, &sizes);
            let copies_embedding = !own.contains(&Layer::Embedding);
            for layer in own {
                let parameters = parameters(&plan.model, layer, &sizes, copies_embedding);
                inventory.add(rank, layer, parameters);
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
            watch: Watch::new(ranks, settings.fault),
            here,
            reach,
            offers: Offers::new(ranks),
            silent: AtomicBool::new(false),
        })
    }

    /// Stops every rank.
    fn stop(&self) {
        self.silent.store(true, Ordering::Relaxed);
        self.watch.stop();
        self.offers.end();
        self.here.transport.abort();
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

    /// For each rank elsewhere a thread that tells it now and then how the rank here is, whatever that is doing.
    fn speakers(self: &Arc<Self>) -> Result<Vec<JoinHandle<()>>, RunError> {
        let Some(own) = self.here.own.first().copied() else { return Ok(Vec::new()) };
        let elsewhere =
            (0..self.program.ranks.len()).filter(|rank| self.here.transport.heard(*rank).is_some());
        let speaker = |to: usize| {
            let run = Arc::clone(self);
            let interval = Patience::new(run.settings.patience).interval();
            let speak = move || {
                while !run.silent.load(Ordering::Relaxed) {
                    run.here.transport.say(to, &run.watch.rank(own).sign());
                    std::thread::park_timeout(interval);
                }
                // That it has ended, so that nobody takes it for one that hangs.
                run.here.transport.say(to, &run.watch.rank(own).sign());
            };
            let thread = std::thread::Builder::new().name(format!("signs for rank {to}")).spawn(speak);
            thread.map_err(|error| RunError::Threads(error.to_string()))
        };
        elsewhere.map(speaker).collect::<Result<_, _>>().inspect_err(|_| self.stop())
    }

    /// Hears what a rank in another process says, as if it ran here.
    fn hear(&self, rank: usize, reports: &Sender<Message>) {
        let end = self.heard(rank, reports).map_err(|fault| self.error_of(rank, fault));
        self.watch.rank(rank).end();
        let _ = reports.send(Message::End { rank, end: Box::new(end) });
    }

    fn heard(&self, rank: usize, reports: &Sender<Message>) -> Result<RankEnd, Fault> {
        let transport = &self.here.transport;
        let route = Route { from: rank, to: 0, tag: Tag::Report };
        for _ in self.beginning.step + 1..=self.settings.steps {
            let message = read_message(rank, &transport.receive(route)?).ok_or(Fault::Lost { rank })?;
            let _ = reports.send(Message::Step(message));
        }
        read_end(&transport.receive(route)?).ok_or(Fault::Lost { rank })
    }

    /// Tells rank 0, which is elsewhere, of a step.
    fn pass_on(&self, message: StepMessage) {
        let route = Route { from: message.rank, to: 0, tag: Tag::Report };
        self.here.transport.send(route, written_message(&message));
    }

    fn train(&self, rank: usize, reports: &Sender<Message>) -> Result<RankEnd, Fault> {
        let pulse = self.watch.rank(rank);
        let transport = Watched { transport: &*self.here.transport, pulse };
        let shared = Shared {
            plan: &self.plan,
            program: &self.program,
            settings: &self.settings,
            optimizer: self.optimizer,
            transport: &transport,
        };
        let threads = Threads::new(self.settings.threads.get() / self.program.ranks.len());
        let number = if self.plan.job.precision == Precision::Bf16 { Number::Bf16 } else { Number::F32 };
        let local = self.here.local.unwrap_or(rank);
        let device = (self.settings.device.open)(Opening { local, threads, number })?;
        let _here = Here::is(Rc::clone(&device));
        let mut ends = EndsOffers(&self.offers, false);
        let mut own = self.new_rank(rank, &shared, Rc::clone(&device))?;
        let moments = self.optimizer.moments();
        own.state
            .load(|layer, parameter| self.beginning.load(&self.plan.model, layer, parameter, moments))?;
        own.state.layers_mut().try_for_each(|(_, layer)| own.beside.stow_moments(layer))?;
        own.state.bring_to(&*device, &self.plan.offload);
        for group in self.reach.nccl_groups(&self.program, rank) {
            own.communicator.enter(&*device, &members(&self.program, group, rank))?;
        }
        let saver = self.settings.saving.as_ref().map(|saving| Saver {
            plan: &self.plan,
            tokens: &self.tokens,
            beginning: &self.beginning,
            saving,
            inventory: &self.inventory,
            transport: &transport,
            pulse,
            device: &*device,
            group: self.program.groups.len(),
            moments,
        });
        let resident = resident(&own.state);
        let last = self.settings.steps;
        for step in self.beginning.step + 1..=last {
            pulse.begin_step(step);
            if pulse.spoils_weights() {
                own.state.layers_mut().for_each(|(_, layer)| {
                    layer.owned(|owned| device.write(owned.weights.part(0..1), &[f32::NAN]));
                });
            }
            let end = own.step(step)?;
            if let Some(saver) = saver.as_ref().filter(|saver| saver.is_due(step, last)) {
                saver.save(rank, step, &mut own.state)?;
            }
            // Nobody listens any more only if the run has failed elsewhere.
            let _ = reports.send(Message::Step(StepMessage { rank, step, end }));
        }
        let mut records = own.recorder.earlier;
        records.push(own.recorder.record);
        own.state.bring_back(&*device);
        device.check()?;
        ends.1 = true;
        Ok(RankEnd { records, resident, state: Some(own.state) })
    }

    fn new_rank<'a>(
        &'a self,
        rank: usize,
        shared: &'a Shared<'a>,
        device: Rc<dyn Device>,
    ) -> Result<Rank<'a>, Fault> {
        let Shared { plan, program, settings, .. } = *shared;
        let own = &program.ranks[rank];
        let sizes = Sizes::of(plan, rank).aligned(settings.device.alignment);
        let moments = shared.optimizer.moments();
        let own_layers = layers_of(plan, &sizes);
        let copies_embedding = !own_layers.contains(&Layer::Embedding);
        let pulse = self.watch.rank(rank);
        // The initial weights of a large layer take a while.
        let own_layers = own_layers.into_iter().inspect(|_| pulse.beat());
        let seed_and_moments = [self.beginning.seed, moments];
        let state = State::new(&plan.model, own_layers, &sizes, copies_embedding, seed_and_moments);
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
            communicator: match self.reach.0[rank].gpu {
                None => Communicator::new(shared.transport),
                Some(_) => Communicator::new(shared.transport)
                    .with_near(&self.reach, Near::new(&self.offers, self.watch.rank(rank))),
            },
            loader: loader(plan, &self.tokens, &self.beginning).expect("the tokens suited before"),
            state,
            recorder: Recorder::new(self.here.began, settings.records),
            device,
            pulse: self.watch.rank(rank),
            frames: BTreeMap::new(),
            handed: BTreeMap::new(),
            layers: stage_layers(plan),
            sizes,
        })
    }

    /// Hears of steps until so many ranks have ended or none does anything.
    fn listen(
        &self,
        receiver: &Receiver<Message>,
        ranks: usize,
        hears: &mut dyn FnMut(StepMessage),
    ) -> Result<Ends, RunError> {
        let mut ends = BTreeMap::new();
        let mut patience = match self.here.lead() {
            true => Patience::new(self.settings.patience),
            false => Patience::of_follower(self.settings.patience),
        };
        while ends.len() < ranks {
            match receiver.recv_timeout(patience.interval()) {
                Ok(Message::Step(message)) => hears(message),
                Ok(Message::End { rank, end }) => drop(ends.insert(rank, *end)),
                Err(_) => {
                    let transport = &*self.here.transport;
                    self.watch.hear(transport);
                    let (limit, silence) = (self.settings.patience, patience.silence());
                    let silent = self.watch.silent(transport, silence);
                    let silent = silent.map(|rank| (rank, Fault::Silent(silence)));
                    let stalls = patience.is_over(&self.watch);
                    let stalled = stalls.then(|| (self.watch.culprit(), Fault::Stalled(limit)));
                    if let Some((rank, fault)) = silent.or(stalled) {
                        return Err(self.given_up(rank, fault, ends.into_values().collect()));
                    }
                }
            }
        }
        Ok(ends.into_values().collect())
    }

    /// Why the run ends where a rank holds it up. What another rank said before is the cause.
    fn given_up(&self, rank: usize, fault: Fault, ends: Ends) -> RunError {
        let stalled = self.error_of(rank, fault);
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

/// Lets nobody wait for a rank any more whose memory is about to go. Who has done all its steps is waited for by none.
struct EndsOffers<'a>(&'a Offers, bool);

impl Drop for EndsOffers<'_> {
    fn drop(&mut self) {
        if !self.1 {
            self.0.end();
        }
    }
}

/// The layers that a rank holds.
fn layers_of(plan: &Plan, sizes: &Sizes) -> BTreeSet<Layer> {
    let layers = stage_layers(plan);
    let runs = |stage: &usize| plan.schedule().rank_of(*stage, plan.pipeline_shape()) == sizes.at.pipeline;
    let stages = (0..plan.schedule().copies() * layers.len()).filter(runs);
    stages.flat_map(|stage| layers[stage % layers.len()].clone()).collect()
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
    let sum = |size: fn(&LayerState) -> usize| state.layers().map(|(_, layer)| size(layer)).sum::<usize>();
    vec![
        (MemoryKind::Weights, sum(|layer| layer.weights.bytes())),
        (MemoryKind::Gradients, sum(|layer| layer.gradients.bytes())),
        (MemoryKind::Optimizer, sum(|layer| layer.moments.iter().flatten().map(Numbers::bytes).sum())),
    ]
}

/// The steps of which not all ranks have reported.
struct Steps<'a> {
    plan: &'a Plan,
    ranks: usize,
    waiting: BTreeMap<usize, BTreeMap<usize, StepEnd>>,
    before: Instant,
    reports: Vec<StepReport>,
}

impl<'a> Steps<'a> {
    fn of(run: &'a Run) -> Self {
        let (plan, ranks) = (&run.plan, run.program.ranks.len());
        Self { plan, ranks, waiting: BTreeMap::new(), before: Instant::now(), reports: Vec::new() }
    }

    fn add(&mut self, message: StepMessage, progress: &mut dyn FnMut(&StepReport)) {
        let StepMessage { rank, step, end } = message;
        let plan = self.plan;
        let known = self.waiting.entry(step).or_default();
        known.insert(rank, end);
        if known.len() < self.ranks {
            return;
        }
        let ends = self.waiting.remove(&step).expect("it was just completed");
        // All ranks with other columns of the same logits know the same losses.
        let own = ends.iter().filter(|(rank, _)| Sizes::of(plan, **rank).column() == 0);
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
            Err(error @ RunError::Rank { fault: Fault::Aborted | Fault::Lost { .. }, .. }) => {
                follows.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    follows.map_or(Ok(own), Err)
}

fn whole_weights(ends: &[RankEnd]) -> WholeWeights {
    let mut whole = WholeWeights::new();
    for (layer, state) in ends.iter().flat_map(|end| end.state.iter().flat_map(State::layers)) {
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
