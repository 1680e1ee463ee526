//! A run as the threads of its ranks share it, and their supervision until all have ended or none makes progress.

use super::messages::{Ends, Message, RankEnd, StepMessage};
use crate::comm::heartbeat::{Heartbeats, Watchdog};
use crate::comm::local_peers::Offers;
use crate::comm::local_ranks::LocalRanks;
use crate::comm::routes::Routes;
use crate::error::{Fault, RunError};
use crate::train::checkpoint::{Beginning, Inventory, prepare, sweep};
use crate::train::data::loader::{BatchShape, EpochOrders, Loader, Order};
use crate::train::data::tokens::Tokens;
use crate::train::generation::layout::check_positions;
use crate::train::optimizer::Optimizer;
use crate::train::parameters::{Layer, parameters};
use crate::train::program_routes::{nccl_groups, nccl_pairs};
use crate::train::settings::Settings;
use crate::train::sizes::Sizes;
use crate::train::supported;
use crate::train::timeline::label;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use trainwright_kernels::cuda::DeviceError;
use trainwright_lower::lower_every_rank;
use trainwright_spec::model::Mask;
use trainwright_spec::plan::Plan;
use trainwright_spec::precision::Precision;
use trainwright_spec::program::Program;

/// What the ranks' threads read. They share it: one that hangs outlives the run.
pub(super) struct Run {
    pub plan: Plan,
    pub program: Program,
    /// The plan and the program of samples, if those of the steps split sequences.
    pub sample_program: Option<(Plan, Program)>,
    pub settings: Settings,
    pub tokens: Tokens,
    /// The order of the sequences, which this process's ranks share.
    pub orders: Arc<EpochOrders>,
    pub optimizer: Optimizer,
    pub beginning: Beginning,
    pub inventory: Inventory,
    pub heartbeats: Heartbeats,
    pub here: LocalRanks,
    pub routes: Routes,
    /// Buffers and events that ranks on the same GPUs share.
    pub offers: Offers,
    /// Whether the statuses of this process's ranks are no longer sent.
    pub ends_heartbeats: AtomicBool,
}

impl Run {
    /// Refuses what cannot be run.
    pub fn new(plan: Plan, tokens: &Tokens, settings: &Settings, here: LocalRanks) -> Result<Self, RunError> {
        supported::check_on(settings.device, &plan)?;
        supported::check_settings(settings)?;
        (settings.device.require)()?;
        if plan.job.precision == Precision::Fp8 {
            let local = |rank: &usize| here.local_rank.unwrap_or(*rank);
            here.ranks.iter().map(local).try_for_each(settings.device.require_fp8)?;
        }
        let beginning = Beginning::open(&plan, tokens, settings)?;
        let longest = longest_sequence(&plan, settings);
        [&beginning.limit, &settings.position_limit]
            .into_iter()
            .flatten()
            .try_for_each(|limit| limit.check(longest))?;
        let orders = Arc::default();
        loader(&plan, settings, tokens, &beginning, &orders)?;
        check_validation(&plan, tokens, settings)?;
        check_sample(&plan, settings)?;
        // Rank 0 writes all files.
        if let Some(saving) = settings.saving.as_ref().filter(|_| here.leads()) {
            prepare(&saving.folder, beginning.step)?;
        }
        let program = lower_every_rank(&plan);
        let ranks = program.ranks.len();
        let routes = Routes::of(&here, ranks, program.groups.len() + 1, settings.device)?;
        let has_groups = here.ranks.iter().any(|rank| !nccl_groups(&routes, &program, *rank).is_empty());
        let sends = |(from, to): &(usize, usize)| here.ranks.contains(from) || here.ranks.contains(to);
        if has_groups || nccl_pairs(&routes, &program).iter().any(sends) {
            (settings.device.require_nccl)()?;
        }
        let splits = settings.sample.is_some() && plan.sequence_parallel;
        let sample_program = splits.then(|| {
            let plan = Plan { sequence_parallel: false, ..plan.clone() };
            let program = lower_every_rank(&plan);
            (plan, program)
        });
        let mut inventory = Inventory::default();
        for rank in 0..ranks {
            let sizes = Sizes::of(&plan, rank).aligned(settings.device.alignment);
            let layers = program.layers_of(&program.ranks[rank]);
            let copies_embedding = !layers.contains(&Layer::Embedding);
            for layer in layers {
                let parameters = parameters(&plan.model, layer, &sizes, copies_embedding);
                inventory.add(rank, layer, parameters);
            }
        }
        Ok(Self {
            optimizer: Optimizer::of_name(&plan.job.optimizer).expect("a checked plan has a known optimizer"),
            plan,
            program,
            sample_program,
            settings: settings.clone(),
            tokens: tokens.clone(),
            orders,
            beginning,
            inventory,
            heartbeats: Heartbeats::new(ranks, settings.fault),
            here,
            routes,
            offers: Offers::new(ranks),
            ends_heartbeats: AtomicBool::new(false),
        })
    }

    /// Stops every rank.
    pub fn stop(&self) {
        self.ends_heartbeats.store(true, Ordering::Relaxed);
        self.heartbeats.stop();
        self.offers.end();
        self.here.transport.abort();
    }

    /// Collects reports until all of `ranks` ranks have ended or none makes progress.
    pub fn supervise(
        &self,
        receiver: &Receiver<Message>,
        ranks: usize,
        on_step: &mut dyn FnMut(StepMessage),
    ) -> Result<Ends, RunError> {
        let mut ends = BTreeMap::new();
        let mut watchdog = match self.here.leads() {
            true => Watchdog::new(self.settings.patience),
            false => Watchdog::of_follower(self.settings.patience),
        };
        while ends.len() < ranks {
            match receiver.recv_timeout(watchdog.interval()) {
                Ok(Message::Step(message)) => on_step(message),
                Ok(Message::End { rank, end }) => drop(ends.insert(rank, *end)),
                Err(_) => {
                    let transport = &*self.here.transport;
                    self.heartbeats.take_statuses(transport);
                    let (limit, silence) = (self.settings.patience, watchdog.silence());
                    let silent =
                        self.heartbeats.silent(transport, silence).map(|rank| (rank, Fault::Silent(silence)));
                    let stalls = watchdog.is_over(&self.heartbeats);
                    let stalled = stalls.then(|| (self.heartbeats.culprit(), Fault::Stalled(limit)));
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

    pub fn error_of(&self, rank: usize, fault: Fault) -> RunError {
        RunError::Rank { rank, step: self.heartbeats.rank(rank).step(), op: self.op_of(rank), fault }
    }

    /// What a rank is doing.
    fn op_of(&self, rank: usize) -> String {
        let (call, op) = self.heartbeats.rank(rank).at();
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

/// Tokens of the longest sequence that a run passes through the model, of a training or a sample of it.
fn longest_sequence(plan: &Plan, settings: &Settings) -> usize {
    let of_sample = settings.sample.as_ref().map_or(0, |sample| sample.prompt.len() + sample.tokens.get());
    plan.job.sequence.max(of_sample)
}

/// The batches of a run from its beginning on.
pub(super) fn loader<'a>(
    plan: &Plan,
    settings: &Settings,
    tokens: &'a Tokens,
    beginning: &Beginning,
    orders: &Arc<EpochOrders>,
) -> Result<Loader<'a>, RunError> {
    let order = (Order::Shuffled, beginning.seed);
    Loader::new(
        tokens,
        shape(plan, settings),
        order,
        [beginning.step, beginning.sequences],
        Arc::clone(orders),
    )
}

/// The batches of held-out tokens, always the same ones; `None` if there is no validation.
pub(super) fn validation_loader<'a>(
    plan: &Plan,
    settings: &'a Settings,
) -> Option<Result<Loader<'a>, RunError>> {
    let validation = settings.validation.as_ref()?;
    Some(Loader::new(
        &validation.tokens,
        shape(plan, settings),
        (Order::Sequential, 0),
        [0, 0],
        Arc::default(),
    ))
}

fn shape(plan: &Plan, settings: &Settings) -> BatchShape {
    let (sequence, global_batch) = (plan.job.sequence, plan.job.global_batch);
    let document_mask = settings.document_mask;
    BatchShape { sequence, global_batch, vocabulary: plan.model.vocab, document_mask }
}

/// Refuses held-out tokens that make no batch, or that another tokenizer made.
fn check_validation(plan: &Plan, tokens: &Tokens, settings: &Settings) -> Result<(), RunError> {
    let of_validation = |error: RunError| match error {
        RunError::Data(reason) => RunError::Data(format!("{reason} (validation data)")),
        error => error,
    };
    let (Some(validation), Some(loader)) = (&settings.validation, validation_loader(plan, settings)) else {
        return Ok(());
    };
    let (sequences, batch) = (loader.map_err(of_validation)?.sequences(), plan.job.global_batch);
    if sequences < batch {
        let what = format!("{sequences} sequences of validation data are fewer than the {batch} of a step");
        return Err(RunError::Data(what));
    }
    match validation.tokens.tokenizer().name() == tokens.tokenizer().name() {
        true => Ok(()),
        false => Err(RunError::Data("the validation data has another tokenizer than the data".into())),
    }
}

/// Refuses samples that the ranks of a plan cannot make.
fn check_sample(plan: &Plan, settings: &Settings) -> Result<(), RunError> {
    let Some(sample) = &settings.sample else { return Ok(()) };
    let refuse = |key: &str, value: &str, allowed: &str| {
        let allowed = format!("samples need {allowed}: leave them out, or generate from its checkpoints");
        Err(RunError::Refused { key: key.into(), value: value.into(), allowed })
    };
    let (prompt, vocabulary) = (&sample.prompt, plan.model.vocab);
    if prompt.is_empty() || prompt.iter().any(|token| *token as usize >= vocabulary) {
        let what =
            format!("the prompt of samples must have tokens, of the model's vocabulary of {vocabulary}");
        return Err(RunError::Data(what));
    }
    check_positions(&plan.model, prompt.len() + sample.tokens.get())?;
    if settings.device.runs_cuda_kernels {
        return refuse("device", settings.device.name, "ranks on processors");
    }
    if plan.mesh.context > 1 {
        return refuse("mesh.context", &plan.mesh.context.to_string(), "one context rank");
    }
    if plan.mesh.tensor_rows > 1 {
        return refuse("tensor_scheme", &plan.tensor_scheme, "`1d` tensor ranks");
    }
    if plan.job.precision == Precision::Fp8 {
        return refuse("job.precision", "fp8", "operands in 16 bits or more");
    }
    if (Plan { sequence_parallel: false, ..plan.clone() }).check("plan").is_err() {
        return refuse("sequence_parallel", "true", "a plan that could go without sequence parallelism");
    }
    match plan.model.blocks.iter().any(|run| run.block.attention.mask == Mask::Full) {
        true => refuse("model.blocks.attention.mask", "full", "causal attention"),
        false => Ok(()),
    }
}

/// What the ranks leave, or why the first of them stopped that was not stopped by another.
pub(super) fn first_cause(ends: Ends) -> Result<Vec<RankEnd>, RunError> {
    let mut ended = Vec::new();
    let mut cause: Option<RunError> = None;
    for end in ends {
        match end {
            Ok(end) => ended.push(end),
            Err(error) => {
                let said = cause.as_ref().map_or(0, weight);
                if weight(&error) > said {
                    cause = Some(error);
                }
            }
        }
    }
    cause.map_or(Ok(ended), Err)
}

/// How much an error says of why a run ends: a rank that only stopped because of another one says the least.
fn weight(error: &RunError) -> u8 {
    match error {
        RunError::Rank { fault: Fault::Aborted, .. } => 1,
        // NCCL on other ranks notices a rank that fails, maybe before that one has said why.
        RunError::Rank { fault: Fault::Device(DeviceError::Communicator(_)), .. } => 2,
        RunError::Rank { fault: Fault::Lost { .. }, .. } => 3,
        _ => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_that_says_the_most_of_the_cause_is_the_run_s() {
        let of =
            |fault: &Fault| RunError::Rank { rank: 1, step: 2, op: "start".into(), fault: fault.clone() };
        let (aborted, lost) = (Fault::Aborted, Fault::Lost { rank: 0, how: "closed".into() });
        let by_nccl = Fault::Device(DeviceError::Communicator("remote process exited".into()));
        let [panic, other_panic] = ["first", "second"].map(|text| Fault::Panic(text.into()));
        let check = |faults: [&Fault; 3], expected: &Fault| {
            let ends = faults.map(|fault| Err(of(fault)));
            assert_eq!(first_cause(ends.into()).err(), Some(of(expected)));
        };
        check([&aborted, &by_nccl, &panic], &panic);
        check([&by_nccl, &lost, &aborted], &lost);
        check([&aborted, &aborted, &by_nccl], &by_nccl);
        check([&panic, &aborted, &other_panic], &panic);
        assert!(first_cause(Vec::new()).is_ok());
    }
}
