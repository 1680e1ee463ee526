//! The arguments of `fleet-online`.

use clap::builder::PossibleValuesParser;
use clap::{ArgGroup, Args};
use trainwright_fleet::instance::{NodeKind, User};
use trainwright_fleet::policies::POLICIES;

/// The most GPUs of all nodes together.
const MOST_GPUS: usize = 100_000;

/// Arguments of `fleet-online`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("where").required(true).args(["nodes", "cluster"])))]
pub struct FleetOnlineArguments {
    /// The trace, a CSV: job,arrival_s,profile,gpus,steps and, if wanted, min_gpus,max_gpus,weight,restart_s,user; `-`
    /// is standard input
    pub trace: String,
    /// Measured speeds, a CSV: profile,gpus,steps_per_s and, for several kinds of nodes, node and nodes
    #[arg(long, value_name = "FILE")]
    pub throughputs: String,
    /// The nodes, as name:count x GPUs: `v100:9x4`; several kinds after each other
    #[arg(long, value_name = "NAME:COUNTxGPUS", value_delimiter = ',', value_parser = nodes)]
    pub nodes: Vec<NodeKind>,
    /// Instead of these, a cluster or nodes of the catalog (`dgx-a100:4`), or a TOML file
    #[arg(long, value_name = "NAME")]
    pub cluster: Option<String>,
    /// The policy
    #[arg(long, value_name = "POLICY", default_value = "all", value_parser = policies())]
    pub policy: String,
    /// The most GPUs that the jobs of a user of the trace hold at any time, as name:GPUs: `ann:16`; several after each other
    #[arg(long, value_name = "USER:GPUS", value_delimiter = ',', value_parser = quota)]
    pub quota: Vec<User>,
    /// Seconds from one decision to the next
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = round, allow_negative_numbers = true)]
    pub round: f64,
    /// Seconds that a job holds GPUs without a step after each change of them, where the trace does not say its own
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = restart, allow_negative_numbers = true)]
    pub restart: f64,
    /// Print the answer as JSON, with start and end of each job
    #[arg(long)]
    pub json: bool,
}

fn policies() -> PossibleValuesParser {
    PossibleValuesParser::new(["all"].into_iter().chain(POLICIES.iter().map(|policy| policy.name())))
}

fn nodes(text: &str) -> Result<NodeKind, String> {
    let parsed = || {
        let (name, size) = text.split_once(':')?;
        let (count, gpus) = size.split_once('x')?;
        let number =
            |text: &str| text.parse::<usize>().ok().filter(|number| (1..=MOST_GPUS).contains(number));
        let (nodes, gpus) = (number(count)?, number(gpus)?);
        let allowed = !name.is_empty() && !name.contains(char::is_control) && nodes * gpus <= MOST_GPUS;
        allowed.then(|| NodeKind { name: name.into(), nodes, gpus })
    };
    parsed().ok_or_else(|| {
        format!("it must be a name, a count and GPUs, as v100:9x4, with at most {MOST_GPUS} GPUs")
    })
}

fn quota(text: &str) -> Result<User, String> {
    let parsed = || {
        let (name, gpus) = text.rsplit_once(':')?;
        let gpus = gpus.parse::<usize>().ok().filter(|gpus| (1..=MOST_GPUS).contains(gpus))?;
        (!name.is_empty()).then(|| User { name: name.into(), max_gpus: Some(gpus) })
    };
    parsed().ok_or_else(|| format!("it must be a user and GPUs from 1 to {MOST_GPUS}, as ann:16"))
}

fn round(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| (1.0..=86_400.0).contains(number));
    number.ok_or_else(|| "it must be a number from 1 to 86400".into())
}

fn restart(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| (0.0..=86_400.0).contains(number));
    number.ok_or_else(|| "it must be a number from 0 to 86400".into())
}
