//! A run that generates instead of training: the same ranks, transports and checkpoints, and forward passes alone.

use super::processes::{check_place, connected};
use super::{host_memory, run_ranks};
use crate::comm::local_ranks::LocalRanks;
use crate::comm::transport::{Mailboxes, Rendezvous};
use crate::error::RunError;
use crate::train::data::tokens::Tokens;
use crate::train::generation::layout::layout;
use crate::train::generation::memory::{GenerationMemory, LargestPass, memory};
use crate::train::generation::weight_format::WeightFormat;
use crate::train::generation::{Completion, Generation};
use crate::train::settings::{Settings, Start};
use crate::train::supported;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;
use trainwright_spec::plan::Plan;

/// The tokens behind each prompt, by the ranks of a plan, which are threads. `settings` has the weights to start with and what to
/// generate; `state` gets the memory that it will take, before anything is allocated.
///
/// # Errors
/// `Refused`, `Memory`, `Data` and `Checkpoint` before anything runs; `Rank` if a rank cannot go on.
pub fn generate(
    plan: &Plan,
    settings: &Settings,
    state: &mut dyn FnMut(&GenerationMemory),
) -> Result<Vec<Completion>, RunError> {
    let plan = checked(plan, settings)?;
    let ranks = plan.mesh.ranks();
    check_memory(&plan, settings, 0..ranks, state)?;
    let transport = Arc::new(Mailboxes::new(ranks));
    let here = LocalRanks { ranks: (0..ranks).collect(), local_rank: None, transport, began: Instant::now() };
    run(plan, settings, here)
}

/// As `generate`, as this process's rank of several. The completions are rank 0's: the others have none.
///
/// # Errors
/// As `generate`; `Rendezvous` if the processes do not find each other.
pub fn generate_in_processes(
    place: &Rendezvous,
    plan: &Plan,
    settings: &Settings,
    state: &mut dyn FnMut(&GenerationMemory),
) -> Result<Option<Vec<Completion>>, RunError> {
    let plan = checked(plan, settings)?;
    check_place(place, &plan)?;
    check_memory(&plan, settings, place.ranks_of_host(), state)?;
    let here = connected(place, &plan, &no_data(&plan), settings)?;
    let transport = Arc::clone(&here.transport);
    let completions = run(plan, settings, here).inspect_err(|_| transport.abort())?;
    Ok((place.rank == 0).then_some(completions))
}

fn run(plan: Plan, settings: &Settings, here: LocalRanks) -> Result<Vec<Completion>, RunError> {
    let tokens = no_data(&plan);
    let ran = run_ranks(plan, &tokens, settings, here, &mut |_| {})?;
    let completions = ran.ends.into_iter().filter_map(|end| end.here).flat_map(|end| end.completions);
    Ok(completions.map(|(_, completion)| completion).collect())
}

/// The tokens of one batch, which nobody reads.
pub(super) fn no_data(plan: &Plan) -> Tokens {
    Tokens::synthetic(plan.model.vocab, plan.job.tokens() + 1, 0)
}

/// The layout of the passes, if the executor has everything that they need.
fn checked(plan: &Plan, settings: &Settings) -> Result<Plan, RunError> {
    let generation = wanted(settings);
    check_start(settings)?;
    let vocabulary = plan.model.vocab;
    for (number, prompt) in generation.prompts.iter().enumerate() {
        let problem = match prompt.iter().find(|token| **token as usize >= vocabulary) {
            _ if prompt.is_empty() => "has no token: give it one to begin with".to_string(),
            Some(token) => {
                format!("has the token {token}, which is not in the model's vocabulary of {vocabulary}")
            }
            None => continue,
        };
        return Err(RunError::Data(format!("prompt {} {problem}", number + 1)));
    }
    if let Some(stop) = generation.stop.filter(|stop| *stop as usize >= vocabulary) {
        let what = format!(
            "the token {stop}, which is to end texts, is not in the model's vocabulary of {vocabulary}"
        );
        return Err(RunError::Data(what));
    }
    let plan = settings.device.with_executor_stack(&layout(plan, generation.longest())?)?;
    supported::check_forward(&plan)?;
    settings.check_positions(generation.longest())?;
    Ok(plan)
}

/// Refuses devices and weights that do not generate.
pub(super) fn check_start(settings: &Settings) -> Result<(), RunError> {
    if settings.device.runs_cuda_kernels {
        let allowed = "it generates on processors: leave --device out".into();
        return Err(RunError::Refused { key: "device".into(), value: settings.device.name.into(), allowed });
    }
    let format = settings.weights_to_read().unwrap_or_default();
    if settings.start == Start::Anew && format != WeightFormat::Fp32 {
        let allowed = "new weights are not rounded: begin with a checkpoint".into();
        return Err(RunError::Refused { key: "weights".into(), value: format.name().into(), allowed });
    }
    Ok(())
}

fn check_memory(
    plan: &Plan,
    settings: &Settings,
    ranks: Range<usize>,
    state: &mut dyn FnMut(&GenerationMemory),
) -> Result<(), RunError> {
    let generation = wanted(settings);
    let prompt = generation.prompts.iter().map(Vec::len).max().unwrap_or(0);
    let (weights, cached) = (generation.weights, generation.longest());
    let needed = memory(plan, LargestPass { weights, cached, tokens: prompt, sampled: 1 }, ranks.clone());
    state(&needed);
    host_memory::check_bytes(needed.total(), ranks)
}

fn wanted(settings: &Settings) -> &Generation {
    settings.generation.as_ref().expect("a generation is asked for")
}
