//! A run that passes batches of sequences through the ranks, one after the other, as its caller makes them.
//!
//! ```text
//! caller ─ Batch ─► rank 0 ─► every rank: a pass over the new tokens ─► rank 0 ─ chosen tokens ─► caller
//! ```

use super::generate::{check_start, no_data};
use super::{host_memory, run_ranks};
use crate::comm::local_ranks::LocalRanks;
use crate::comm::transport::Mailboxes;
use crate::error::{Fault, RunError};
use crate::train::generation::Serving;
use crate::train::generation::batch::{Batch, BatchFeed, ChosenToken, SchedulerEnd};
use crate::train::generation::layout::layout;
use crate::train::generation::memory::{GenerationMemory, LargestPass, memory};
use crate::train::settings::Settings;
use crate::train::supported;
use std::sync::Arc;
use std::time::Instant;
use trainwright_spec::plan::Plan;

/// The ranks of a run, which wait for batches.
pub struct BatchRunner {
    ranks: SchedulerEnd,
}

impl BatchRunner {
    /// Runs a batch. Returns the tokens behind those of its parts that sample, in their order.
    ///
    /// # Errors
    /// `Rank` if the ranks have stopped: `serve_batches` then says why.
    ///
    /// # Panics
    /// On a rank, which then stops, if a sequence does not go on behind the tokens that it has had.
    pub fn run(&mut self, batch: Batch) -> Result<Vec<ChosenToken>, RunError> {
        let stopped = || RunError::Rank { rank: 0, step: 0, op: "serving".into(), fault: Fault::Aborted };
        self.ranks.batches.send(batch).map_err(|_| stopped())?;
        self.ranks.chosen.recv().map_err(|_| stopped())
    }
}

/// Starts a plan's ranks, which are threads, and lets `drive` pass batches through them until it returns. `settings` has the
/// weights to start with and what the batches need; `state` gets the memory that it will take, before anything is allocated.
///
/// # Errors
/// `Refused`, `Memory`, `Data` and `Checkpoint` before anything runs; `Rank` if a rank cannot go on; those of `drive`.
pub fn serve_batches<R, E: From<RunError>>(
    plan: &Plan,
    settings: &Settings,
    state: &mut dyn FnMut(&GenerationMemory),
    drive: impl FnOnce(&mut BatchRunner) -> Result<R, E>,
) -> Result<R, E> {
    let serving = settings.serving.as_ref().expect("a serving is asked for");
    let plan = checked(plan, settings, serving)?;
    let ranks = plan.mesh.ranks();
    let Serving { tokens, sequences, cached, weights, .. } = *serving;
    let needed = memory(&plan, LargestPass { weights, cached, tokens, sampled: sequences }, 0..ranks);
    state(&needed);
    host_memory::check_bytes(needed.total(), 0..ranks)?;
    let (feed, scheduler) = BatchFeed::new();
    let serving = Some(Serving { feed: feed.clone(), ..serving.clone() });
    let settings = &Settings { serving, ..settings.clone() };
    let here = LocalRanks {
        ranks: (0..ranks).collect(),
        local_rank: None,
        transport: Arc::new(Mailboxes::new(ranks)),
        began: Instant::now(),
    };
    std::thread::scope(|scope| {
        let tokens = no_data(&plan);
        let ran = scope.spawn(move || {
            let ran = run_ranks(plan, &tokens, settings, here, &mut |_| {}).map(drop);
            // If rank 0 has never begun, nobody else ends the driver's wait.
            drop(feed.take());
            ran
        });
        let driven = {
            let mut runner = BatchRunner { ranks: scheduler };
            drive(&mut runner)
        };
        // Why the ranks stopped says more than that they have.
        ran.join().expect("a rank's panics are caught in it")?;
        driven
    })
}

/// The layout of the passes, if the executor has everything that they need.
fn checked(plan: &Plan, settings: &Settings, serving: &Serving) -> Result<Plan, RunError> {
    check_start(settings)?;
    if plan.mesh.data > 1 {
        let allowed = "a scheduler has one replica: serve with `data = 1`".into();
        let (key, value) = ("mesh.data".into(), plan.mesh.data.to_string());
        return Err(RunError::Refused { key, value, allowed });
    }
    let plan = settings.device.with_executor_stack(&layout(plan, serving.longest)?)?;
    supported::check_forward(&plan)?;
    settings.check_positions(serving.longest)?;
    Ok(plan)
}
