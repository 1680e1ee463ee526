//! Arguments of `compare`, `goodput`, `doctor`, `schema`, `completions` and `man`.

use super::{CalibrationArgument, MOST, TraceArguments};
use clap::Args;
use clap::builder::PossibleValuesParser;
use clap_complete::Shell;
use trainwright_spec::catalog;
use trainwright_whatif::input::amount;

/// Arguments of `compare`.
#[derive(Debug, Args)]
pub struct CompareArguments {
    /// The measured step.
    #[command(flatten)]
    pub measured: TraceArguments,
    /// The plan that ran, as TOML
    #[arg(long)]
    pub plan: String,
    #[command(flatten)]
    pub calibration: CalibrationArgument,
    /// The rank that was traced
    #[arg(long, value_name = "RANK", default_value = "0", value_parser = rank)]
    pub rank: usize,
    /// Write a page with the comparison and the forecast's timeline and memory; it opens in any browser, without a network
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<String>,
}

/// How often what fails, and where checkpoints go, if nothing is said.
pub const RELIABILITY: &str = "llama-3";

/// Arguments of `goodput`.
#[derive(Debug, Args)]
pub struct GoodputArguments {
    /// The plan's TOML file; `-` is standard input
    pub plan: String,
    #[command(flatten)]
    pub calibration: CalibrationArgument,
    /// How often what fails (see `show reliabilities`)
    #[arg(long, default_value = RELIABILITY, value_parser = reliabilities())]
    pub reliability: String,
    /// How long it takes to train so many tokens, such as 15T
    #[arg(long, value_name = "TOKENS", value_parser = amount)]
    pub tokens: Option<f64>,
    /// Print the answer as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArguments {
    /// Print the answer as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `schema`.
#[derive(Debug, Args)]
pub struct SchemaArguments {
    /// The command [default: lists those that have JSON]
    #[arg(value_name = "COMMAND")]
    pub of: Option<String>,
}

/// Arguments of `completions`.
#[derive(Debug, Args)]
pub struct CompletionsArguments {
    /// For which shell
    #[arg(value_enum)]
    pub shell: Shell,
}

/// Arguments of `man`.
#[derive(Debug, Args)]
pub struct ManArguments {
    /// Of which command, instead of all
    pub command: Option<String>,
}

fn rank(text: &str) -> Result<usize, String> {
    super::within(text, 0, MOST)
}

fn reliabilities() -> PossibleValuesParser {
    PossibleValuesParser::new(catalog::names("reliabilities"))
}
