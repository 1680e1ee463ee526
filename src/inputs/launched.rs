//! What a launcher says in the environment: which process this is, and where the others are.

use crate::error::CliError;
use std::env;
use std::num::NonZeroUsize;
use std::time::Duration;
use trainwright_executor::Rendezvous;

/// How long processes wait for each other at the start.
const PATIENCE: Duration = Duration::from_secs(120);

/// torchrun's port where nothing else is said.
const PORT: &str = "29500";

/// A number under the names of torchrun, Open MPI and Slurm.
const RANK: [&str; 3] = ["RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"];
const WORLD: [&str; 3] = ["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS"];
const LOCAL: [&str; 2] = ["LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"];

/// This process's place among the launched ones.
///
/// # Errors
/// `Argument` if the environment does not say it.
pub fn place() -> Result<Rendezvous, CliError> {
    let needed = |names: &[&str]| {
        number(names)?.ok_or_else(|| refuse("missing", format!("a launcher sets {}", names.join(" or "))))
    };
    let (rank, world) = (needed(&RANK)?, needed(&WORLD)?);
    let said = |name: &str, otherwise: &str| env::var(name).unwrap_or_else(|_| otherwise.into());
    let master = format!("{}:{}", said("MASTER_ADDR", "127.0.0.1"), said("MASTER_PORT", PORT));
    Ok(Rendezvous { rank, world, master, patience: PATIENCE })
}

/// Threads for all ranks together, as if they were all on this host: those of them that are share its cores.
///
/// # Errors
/// `Argument` if the environment says nonsense.
pub fn threads(world: usize) -> Result<NonZeroUsize, CliError> {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let local = number(&LOCAL)?.unwrap_or(world).max(1);
    Ok(NonZeroUsize::new((cores / local).max(1) * world).unwrap_or(NonZeroUsize::MIN))
}

fn number(names: &[&str]) -> Result<Option<usize>, CliError> {
    let said = names.iter().find_map(|name| Some((name, env::var(name).ok()?)));
    said.map(|(name, text)| text.parse().map_err(|_| refuse(&text, format!("{name} is a whole number"))))
        .transpose()
}

fn refuse(value: &str, allowed: String) -> CliError {
    CliError::Argument { argument: "--transport tcp".into(), value: value.into(), allowed }
}
