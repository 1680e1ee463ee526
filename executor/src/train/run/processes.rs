//! A run whose ranks are processes: one rank here, the others wherever they are.

use super::{Outcome, StepReport, outcome, run_ranks};
use crate::comm::local_ranks::LocalRanks;
use crate::comm::transport::Rendezvous;
use crate::error::RunError;
use crate::train::data::tokens::Tokens;
use crate::train::settings::Settings;
use crate::train::supported;
use std::sync::Arc;
use std::time::Instant;
use trainwright_spec::plan::Plan;

/// Trains as the rank of a run that this process is; `progress` gets each step on rank 0. The outcome is rank 0's:
/// the others have none.
///
/// # Errors
/// As `train`; `Rendezvous` if the processes do not find each other.
pub fn train_in_processes(
    place: &Rendezvous,
    plan: &Plan,
    tokens: &Tokens,
    settings: &Settings,
    progress: &mut dyn FnMut(&StepReport),
) -> Result<Option<Outcome>, RunError> {
    let plan = settings.device.own_stack(plan)?;
    supported::check(&plan)?;
    let ranks = plan.mesh.ranks();
    if place.world != ranks || place.rank >= ranks {
        let allowed = format!("this is process {} of {}, and each runs one rank", place.rank, place.world);
        return Err(RunError::Refused { key: "mesh".into(), value: format!("{ranks} ranks"), allowed });
    }
    let transport = place.connect(fingerprint(&plan, tokens, settings))?;
    place.barrier(&*transport).map_err(|fault| RunError::Rendezvous {
        rank: place.rank,
        master: place.via.to_string(),
        reason: fault.to_string(),
    })?;
    let here = LocalRanks {
        ranks: vec![place.rank],
        local_rank: Some(place.local_rank.unwrap_or(place.rank)),
        transport: Arc::clone(&transport),
        // Nearly the same instant in all processes: all leave the barrier now.
        began: Instant::now(),
    };
    // So that the others need not find out by waiting that this process ends before its rank has begun.
    let ran = run_ranks(plan, tokens, settings, here, progress).inspect_err(|_| transport.abort())?;
    drop(transport);
    Ok((place.rank == 0).then(|| outcome(ran, settings)))
}

/// A number that two runs share only if they do the same.
///
/// Source: Fowler, Noll & Vo, FNV-1a with 64 bits.
fn fingerprint(plan: &Plan, tokens: &Tokens, settings: &Settings) -> u64 {
    let settings = (settings.steps, settings.seed, settings.learning_rate, settings.weight_decay);
    let text = format!("{}{}{settings:?}", plan.to_toml(), tokens.count());
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}
