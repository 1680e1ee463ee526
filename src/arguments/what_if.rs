//! Arguments of `what-if`.

use super::{PinArguments, QuestionArguments, RiskArguments};
use clap::{Args, ValueEnum};
use trainwright_spec::catalog;
use trainwright_whatif::input::{INPUTS, amount};

/// Arguments of `what-if`.
#[derive(Debug, Args)]
#[command(after_help = inputs())]
#[command(mut_arg("model", |arg| arg.required(false).required_unless_present("plan")))]
#[command(mut_arg("cluster", |arg| arg.required(false).required_unless_present("plan")))]
#[command(mut_arg("seq", |arg| arg.required(false).required_unless_present("plan")))]
#[command(mut_arg("global_batch", |arg| arg.required(false).required_unless_present("plan")))]
pub struct WhatIfArguments {
    /// The question
    #[arg(value_enum, default_value = "sweep", value_name = "QUESTION")]
    pub asked: Asked,
    /// The question at each point.
    #[command(flatten)]
    pub question: Option<QuestionArguments>,
    /// Simulate this plan at each point, with the choices that it has, instead of planning anew
    #[arg(long, value_name = "FILE", conflicts_with = "QuestionArguments")]
    pub plan: Option<String>,
    /// An input and its values: nodes=8,16,..2048, nic-bandwidth=x1,x2; several make all combinations
    #[arg(long = "vary", value_name = "INPUT=VALUES")]
    pub vary: Vec<String>,
    /// Tokens of the whole run: 15T
    #[arg(long, value_parser = amount, allow_negative_numbers = true)]
    pub tokens: Option<f64>,
    /// Days that the run may take
    #[arg(long, value_parser = amount, conflicts_with_all = ["start", "by"], allow_negative_numbers = true)]
    pub days: Option<f64>,
    /// Day on which the run starts: 2026-12-01
    #[arg(long, value_name = "DATE", requires = "by")]
    pub start: Option<String>,
    /// Day on which it must have ended
    #[arg(long, value_name = "DATE", requires = "start")]
    pub by: Option<String>,
    /// US dollars for a GPU and hour [default: the catalog's list price of the node, or of its GPU]
    #[arg(long, value_parser = amount, value_name = "USD", allow_negative_numbers = true)]
    pub price: Option<f64>,
    /// What the facility draws over what its GPUs draw [default: 1.1, as LLaMA's authors count]
    #[arg(long, allow_negative_numbers = true)]
    pub pue: Option<f64>,
    /// Budget of compute-optimal in model FLOPs, instead of the cluster for some days
    #[arg(long, value_parser = amount, allow_negative_numbers = true)]
    pub flops: Option<f64>,
    /// Scaling law of compute-optimal
    #[arg(long, default_value = "chinchilla-refitted", value_parser = clap::builder::PossibleValuesParser::new(catalog::names("scaling-laws")))]
    pub law: String,
    /// The most GPUs of gpus-needed, strong-scaling and weak-scaling
    #[arg(long, value_name = "GPUS", default_value = "100000", value_parser = super::count, allow_negative_numbers = true)]
    pub up_to: usize,
    /// End after this number of seconds: searches get even parts of it and end with the best plans so far, which then depend on the
    /// machine's speed
    #[arg(long, value_name = "SECONDS", value_parser = some_seconds, allow_negative_numbers = true)]
    pub time_limit: Option<f64>,
    /// The input along which speed is drawn [default: the first whose values are numbers]
    #[arg(long, value_name = "INPUT")]
    pub across: Option<String>,
    /// Write all rows with all columns; `-` is standard output, which then carries nothing else
    #[arg(long, value_name = "FILE")]
    pub csv: Option<String>,
    /// Write a picture; `-` is standard output
    #[arg(long, value_name = "FILE")]
    pub svg: Option<String>,
    /// Write the picture as PNG
    #[arg(long, value_name = "FILE")]
    pub png: Option<String>,
    /// Write a page with table, pictures, and the fastest plan's timeline; it opens in any browser, without a network
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<String>,
    /// Print the answer as JSON
    #[arg(long)]
    pub json: bool,
    /// Choices that are made already.
    #[command(flatten)]
    pub pins: PinArguments,
    /// How the errors of forecasts count.
    #[command(flatten)]
    pub risk: RiskArguments,
}

/// The questions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Asked {
    /// All combinations of what is varied
    Sweep,
    /// Which of several clusters to rent: --vary cluster=… --tokens …
    Rent,
    /// The fewest nodes that train --tokens in --days, or from --start --by a date
    GpusNeeded,
    /// The largest model of the same shape that fits
    LargestModel,
    /// The longest sequence that fits, with as many tokens in a step
    LongestSequence,
    /// What a faster network, more memory or the next GPU would bring
    Upgrades,
    /// The same batch on more and more GPUs
    StrongScaling,
    /// The batch grows with the GPUs
    WeakScaling,
    /// Model size and tokens for --flops, or for the cluster for --days
    ComputeOptimal,
}

/// Seconds in which something can be planned.
fn some_seconds(text: &str) -> Result<f64, String> {
    let seconds = super::seconds(text).ok().filter(|seconds| *seconds > 0.0);
    seconds.ok_or_else(|| "it must be a number above 0, at most 1000000".into())
}

/// Every input that has a name, in one column.
fn inputs() -> String {
    let width = INPUTS.iter().map(|input| input.name.len()).max().unwrap_or(0);
    let lines = INPUTS
        .iter()
        .map(|input| format!("  {:width$}  {}", input.name, input.summary).trim_end().to_string());
    format!(
        "Inputs for --vary (and every key of cluster, job, model and stack by its path, as cluster.node.nics.count; \
         with --plan every key of the plan):\n{}",
        lines.collect::<Vec<_>>().join("\n")
    )
}
