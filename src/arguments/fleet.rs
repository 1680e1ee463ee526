//! The arguments of `fleet`.

use super::serve_plan::price;
use clap::Args;
use clap::builder::PossibleValuesParser;
use trainwright_fleet::objective::Objective;

/// Arguments of `fleet`.
#[derive(Debug, Args)]
pub struct FleetArguments {
    /// The TOML file of jobs; `-` is standard input
    pub jobs: String,
    /// A cluster or nodes of the catalog (`selene`, `dgx-h100:4`), or a TOML file
    #[arg(long, value_name = "NAME")]
    pub cluster: String,
    /// What is to be least: the end of the last job, the sum of weight times end, dollars, or lateness
    #[arg(long, value_name = "OBJECTIVE", default_value = "makespan", value_parser = objectives())]
    pub objective: String,
    /// Stop the search for schedules after this number of seconds; without it, the answer does not depend on the machine
    #[arg(long, value_name = "SECONDS", value_parser = super::seconds, allow_negative_numbers = true)]
    pub time_limit: Option<f64>,
    /// Multiply the steps of the search
    #[arg(long, value_name = "FACTOR", default_value = "1", value_parser = effort)]
    pub effort: f64,
    /// Plan with the duration that each job keeps with this probability, instead of its expected one: 0.9
    #[arg(long, value_name = "FRACTION", value_parser = super::probability, allow_negative_numbers = true)]
    pub risk: Option<f64>,
    /// Nodes of a job need not be successive
    #[arg(long)]
    pub any_nodes: bool,
    /// US dollars for a GPU and hour [default: the catalog's list price of the node, or of its GPU]
    #[arg(long, value_name = "USD", value_parser = price)]
    pub price: Option<f64>,
    /// Calibration of the forecasts [default: that of the cluster's file, else published]
    #[arg(long, value_name = "NAME")]
    pub calibration: Option<String>,
    /// Let jobs stop and go on on other GPUs, from their checkpoints, where that is better
    #[arg(long, group = "moves", conflicts_with_all = ["out", "what_if", "observed"])]
    pub preempt: bool,
    /// A log of what happened so far, a CSV: time_s,event,name,value; schedules again from its last time on
    #[arg(long, value_name = "FILE", group = "moves", conflicts_with_all = ["out", "what_if"])]
    pub observed: Option<String>,
    /// Seconds that a job loses which goes on on other GPUs [default: 120 to start, and what `goodput` has for its checkpoint,
    /// written and read; with a table of speeds 120]
    #[arg(long, value_name = "SECONDS", requires = "moves", value_parser = clap::value_parser!(u64).range(..=86_400))]
    pub restart: Option<u64>,
    /// Say what one more node of each kind brings, one less, and each of the tightest deadlines if it were not there
    #[arg(long)]
    pub what_if: bool,
    /// Write the plan of each job, its batch script for Slurm, and submit.sh with their dependencies to this folder
    #[arg(long, value_name = "DIR")]
    pub out: Option<String>,
    #[command(flatten)]
    pub pictures: ScheduleFiles,
    /// Print the answer as JSON
    #[arg(long)]
    pub json: bool,
}

/// Where pictures of a schedule go.
#[derive(Debug, Args)]
pub struct ScheduleFiles {
    /// Draw the schedule as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<String>,
    /// The same as PNG
    #[arg(long, value_name = "FILE")]
    png: Option<String>,
    /// Write a page with the schedule, which can be zoomed, and its tables; it opens in any browser, without a network
    #[arg(long, value_name = "FILE.html")]
    report: Option<String>,
}

impl ScheduleFiles {
    /// SVG, PNG and page, each with its argument.
    pub fn files(&self) -> [(&'static str, &Option<String>); 3] {
        [("--svg", &self.svg), ("--png", &self.png), ("--report", &self.report)]
    }
}

impl FleetArguments {
    /// What is to be least.
    pub fn objective(&self) -> Objective {
        objective(&self.objective)
    }
}

/// The objective of a name that the parser has accepted.
pub(super) fn objective(given: &str) -> Objective {
    let of_name = Objective::ALL.iter().find(|(name, _)| *name == given);
    of_name.map_or(Objective::Makespan, |(_, objective)| *objective)
}

pub(super) fn objectives() -> PossibleValuesParser {
    PossibleValuesParser::new(Objective::ALL.map(|(name, _)| name))
}

fn effort(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(factor) if (1e-3..=1e4).contains(&factor) => Ok(factor),
        _ => Err("a number from 1e-3 to 1e4 should stand here".into()),
    }
}
