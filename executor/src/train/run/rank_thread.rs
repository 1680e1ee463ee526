//! The thread of a rank: it loads the state, trains step by step, saves, and reports its end.

use super::messages::{LocalEnd, Message, RankEnd, SampleEnd, StepMessage};
use super::stopping::Stopping;
use super::supervise::{Run, loader, validation_loader};
use crate::comm::collective::{Communicator, OnGpu};
use crate::comm::heartbeat::BeatingTransport;
use crate::comm::local_peers::{LocalPeers, Offers};
use crate::comm::nccl_pairs::NcclPairs;
use crate::device::{CurrentDevice, Device, Numbers, Opening};
use crate::error::{Fault, RunError};
use crate::train::checkpoint::Saver;
use crate::train::graph_capture::GraphCapture;
use crate::train::groups::members;
use crate::train::instruction::instructions;
use crate::train::offload_store::OffloadStore;
use crate::train::parameters::{Layer, Parameter};
use crate::train::program_routes::{nccl_groups, nccl_pairs};
use crate::train::rank::{OtherProgram, Rank, ValidationEnd};
use crate::train::record::Recorder;
use crate::train::run_context::RunContext;
use crate::train::settings::{Settings, Start};
use crate::train::sizes::Sizes;
use crate::train::state::{LayerState, Making, State};
use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::mpsc::Sender;
use std::time::Instant;
use trainwright_kernels::Threads;
use trainwright_kernels::cuda::Number;
use trainwright_spec::precision::Precision;
use trainwright_spec::program::MemoryKind;

impl Run {
    /// A rank's thread. Whatever stops it stops all.
    pub fn rank(&self, rank: usize, reports: &Sender<Message>) {
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
        self.heartbeats.rank(rank).end();
        let _ = reports.send(Message::End { rank, end: Box::new(end) });
    }

    fn train(&self, rank: usize, reports: &Sender<Message>) -> Result<RankEnd, Fault> {
        let heartbeat = self.heartbeats.rank(rank);
        let transport = BeatingTransport { transport: &*self.here.transport, heartbeat };
        let shared = RunContext {
            plan: &self.plan,
            program: &self.program,
            settings: &self.settings,
            optimizer: self.optimizer,
            transport: &transport,
        };
        let threads = Threads::new(self.settings.threads.get() / self.program.ranks.len());
        let rounds = self.plan.job.precision.base() == Precision::Bf16;
        let number = if rounds { Number::Bf16 } else { Number::F32 };
        let local = self.here.local_rank.unwrap_or(rank);
        let Settings { attention, deterministic, .. } = self.settings;
        let opening = Opening { local, threads, number, attention, deterministic };
        let device = (self.settings.device.open)(opening)?;
        device.stop_when(heartbeat.stop_flag());
        let _here = CurrentDevice::set(Rc::clone(&device));
        let mut ends = EndsOffers(&self.offers, false);
        let mut worker = self.new_rank(rank, &shared, (Rc::clone(&device), threads))?;
        self.load_state(&mut worker)?;
        for group in nccl_groups(&self.routes, &self.program, rank) {
            worker.communicator.enter(&*device, &members(&self.program, group, rank))?;
        }
        worker.communicator.enter_pairs(&*device)?;
        let saver = self.settings.saving.as_ref().map(|saving| Saver {
            plan: &self.plan,
            tokens: &self.tokens,
            beginning: &self.beginning,
            saving,
            inventory: &self.inventory,
            transport: &transport,
            heartbeat,
            device: &*device,
            group: self.program.groups.len(),
            moments: self.optimizer.moments(),
        });
        let resident = resident(&worker.state);
        if let Some(generation) = &self.settings.generation {
            heartbeat.begin_step(1);
            let completions = worker.generate(generation)?;
            ends.1 = true;
            let here = LocalEnd { completions, ..LocalEnd::default() };
            return Ok(RankEnd { records: Vec::new(), resident, here: Some(here) });
        }
        if let Some(serving) = &self.settings.serving {
            worker.serve(serving)?;
            ends.1 = true;
            return Ok(RankEnd { records: Vec::new(), resident, here: Some(LocalEnd::default()) });
        }
        let of_samples =
            self.sample_program.as_ref().map(|(plan, program)| RunContext { plan, program, ..shared });
        let mut other = of_samples.as_ref().map(|shared| {
            let program = &shared.program.ranks[rank];
            OtherProgram { shared, program, instructions: instructions(shared.program, program) }
        });
        let (mut step, mut last) = (self.beginning.step, self.settings.steps);
        // Only a run that saves ends early: of another one nothing would be left.
        let mut stopping = saver
            .as_ref()
            .map(|_| Stopping::new(&self.settings.stop, &transport, [rank, self.program.ranks.len()]));
        while step < last {
            step += 1;
            heartbeat.begin_step(step);
            stopping.iter_mut().for_each(Stopping::begin_step);
            if heartbeat.spoils_weights() {
                worker.state.layers_mut().for_each(|(_, layer)| {
                    layer.owned(|owned| device.write(owned.weights.part(0..1), &[f32::NAN]));
                });
            }
            let mut end = worker.step(step, step == self.beginning.step + 1)?;
            if let Some(stopping) = &stopping
                && stopping.ends()?
            {
                last = step;
            }
            if let Some(saver) = saver.as_ref().filter(|saver| saver.is_due(step, last)) {
                saver.save(rank, step, &mut worker.state, &mut worker.offload_store)?;
            }
            if self.settings.validation.as_ref().is_some_and(|validation| validation.is_due(step, last)) {
                let began = Instant::now();
                let loss = worker.validate(step)?;
                end.validation = Some(ValidationEnd { loss, seconds: began.elapsed().as_secs_f64() });
            }
            let mut sample = None;
            if let Some(wanted) = self.settings.sample.as_ref().filter(|sample| sample.is_due(step, last)) {
                let began = Instant::now();
                let tokens = worker.sample(wanted, other.as_mut())?;
                sample = (rank == 0).then(|| SampleEnd { tokens, seconds: began.elapsed().as_secs_f64() });
            }
            // There is no receiver only if the run has failed elsewhere.
            let _ = reports.send(Message::Step(StepMessage { rank, step, end, sample }));
        }
        let mut records = worker.recorder.earlier;
        records.push(worker.recorder.record);
        let state = self.settings.return_weights.then_some(worker.state).map(|mut state| {
            state.bring_back(&*device, heartbeat);
            state
        });
        // Buffers on a device are freed before the device, and the device when no other rank reads there.
        device.rest();
        device.check()?;
        ends.1 = true;
        let here = LocalEnd {
            state,
            graph: worker.graph_capture.map(|graph_capture| graph_capture.used()),
            device_memory: device.memory(),
            attention: device.attention_by(),
            deterministic: device.is_deterministic(),
            completions: Vec::new(),
        };
        Ok(RankEnd { records, resident, here: Some(here) })
    }

    /// Loads what a checkpoint has of the state, and puts everything where it belongs: on the device, or offloaded.
    fn load_state(&self, worker: &mut Rank) -> Result<(), Fault> {
        let (heartbeat, moments) = (worker.heartbeat, self.optimizer.moments());
        let load = |layer, parameter: &Parameter| {
            heartbeat.beat();
            self.beginning.load(&self.plan.model, layer, parameter, moments)
        };
        match self.settings.weights_to_read() {
            None => worker.state.load(load)?,
            Some(format) => worker
                .state
                .load_packed(load, |parameter, loaded, local| format.pack(parameter, loaded, local))?,
        }
        for (_, layer) in worker.state.layers_mut() {
            heartbeat.beat();
            layer.stored = worker.offload_store.store_moments(layer.moments.iter_mut().flatten())?;
        }
        worker.state.bring_to(&*worker.device, &self.plan.offload, heartbeat);
        Ok(())
    }

    fn new_rank<'a>(
        &'a self,
        rank: usize,
        shared: &'a RunContext<'a>,
        (device, threads): (Rc<dyn Device>, Threads),
    ) -> Result<Rank<'a>, Fault> {
        let RunContext { plan, program, settings, .. } = *shared;
        let of_rank = &program.ranks[rank];
        let sizes = Sizes::of(plan, rank).aligned(settings.device.alignment);
        let layers = program.layers_of(of_rank);
        let copies_embedding = !layers.contains(&Layer::Embedding);
        let heartbeat = self.heartbeats.rank(rank);
        let (seed, moments) = (self.beginning.seed, shared.optimizer.moments());
        // Of what is generated with, a file has all weights.
        let blank = settings.weights_to_read().is_some() && settings.start != Start::Anew;
        let making = Making { seed, blank, moments, threads, heartbeat };
        let state = State::new(&plan.model, layers.into_iter(), &sizes, copies_embedding, making);
        Ok(Rank {
            offload_store: OffloadStore::new(plan.offload)?,
            shared,
            program: of_rank,
            instructions: instructions(program, of_rank),
            groups: of_rank
                .groups
                .iter()
                .map(|group| group.map(|group| members(program, group, rank)))
                .collect(),
            communicator: match self.routes.gpu(rank) {
                None => Communicator::new(shared.transport),
                Some(_) => {
                    let local_peers = LocalPeers::new(&self.offers, heartbeat);
                    // Behind the groups of the program and those of all ranks.
                    let (all, first) = (nccl_pairs(&self.routes, program), program.groups.len() + 3);
                    let pairs = NcclPairs::new(shared.transport, &all, rank, first);
                    Communicator::new(shared.transport).on_gpu(OnGpu {
                        routes: &self.routes,
                        local_peers,
                        pairs,
                    })
                }
            },
            loader: loader(plan, settings, &self.tokens, &self.beginning, &self.orders)
                .map_err(data_fault)?,
            validation_loader: validation_loader(plan, settings).transpose().map_err(data_fault)?,
            state,
            recorder: Recorder::new(self.here.began, settings.records),
            device,
            heartbeat,
            frames: BTreeMap::new(),
            tokens: BTreeMap::new(),
            documents: None,
            z_loss: 0.0,
            next_tokens: None,
            graph_capture: GraphCapture::of(shared, &self.routes, rank),
            left_tensors: BTreeMap::new(),
            sizes,
        })
    }
}

/// The tokens suited before: their file has changed.
fn data_fault(error: RunError) -> Fault {
    Fault::Data(error.to_string())
}

/// Ends all waiting for a rank whose memory is about to be freed. After its last step nobody waits for it.
struct EndsOffers<'a>(&'a Offers, bool);

impl Drop for EndsOffers<'_> {
    fn drop(&mut self) {
        if !self.1 {
            self.0.end();
        }
    }
}

fn resident(state: &State) -> Vec<(MemoryKind, usize)> {
    let sum = |size: fn(&LayerState) -> usize| state.layers().map(|(_, layer)| size(layer)).sum::<usize>();
    vec![
        (MemoryKind::Weights, sum(LayerState::weight_bytes)),
        (MemoryKind::Gradients, sum(|layer| layer.gradients.bytes())),
        (MemoryKind::Optimizer, sum(|layer| layer.moments.iter().flatten().map(Numbers::bytes).sum())),
    ]
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".into())
}
