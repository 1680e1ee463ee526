//! The arguments of `fleet-run`.

use super::fleet::{ScheduleFiles, objective, objectives};
use clap::Args;
use std::num::NonZeroUsize;
use trainwright_fleet::objective::Objective;

/// Arguments of `fleet-run`.
#[derive(Debug, Args)]
pub struct FleetRunArguments {
    /// The TOML file of jobs, as for `fleet`, with the arguments of each job's `run`
    pub jobs: String,
    /// The folder of the fleet: plans, checkpoints, output and the log; the same command goes on with what is there
    #[arg(long, value_name = "DIR", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub out: String,
    /// A folder that `calibrate` wrote on this machine [default: measure it first, a minute or two]
    #[arg(long, value_name = "DIR")]
    pub profile: Option<String>,
    /// Cores for all jobs together [default: as many as the machine has]
    #[arg(long, value_name = "N")]
    pub cores: Option<NonZeroUsize>,
    /// What is to be least: the end of the last job, the sum of weight times end, the cores' time (`cost`), or lateness
    #[arg(long, value_name = "OBJECTIVE", default_value = "makespan", value_parser = objectives())]
    pub objective: String,
    /// Seconds that a job loses which moves to other cores: it saves, ends, and its checkpoint is loaded again
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(..=86_400))]
    pub restart: u64,
    /// How often a job that failed is begun again from its last checkpoint
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub retries: usize,
    /// Seconds from one checkpoint of a job to the next, by its forecast
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub save_interval: u64,
    #[command(flatten)]
    pub pictures: ScheduleFiles,
    /// Print the answer as JSON
    #[arg(long)]
    pub json: bool,
}

impl FleetRunArguments {
    /// What is to be least.
    pub fn objective(&self) -> Objective {
        objective(&self.objective)
    }
}
