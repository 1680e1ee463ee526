//! Arguments of the commands that lead to other tools and from them.

use super::{count, stacks};
use clap::Args;
use clap::builder::PossibleValuesParser;
use trainwright_formats::export::EXPORTERS;
use trainwright_formats::import::IMPORTERS;

/// Arguments of `export`.
#[derive(Debug, Args)]
pub struct ExportArguments {
    /// The plan's TOML file; `-` is standard input
    pub plan: String,
    /// The tool that reads it (see `show exporters`)
    #[arg(long, value_parser = exporters())]
    pub to: String,
    /// Write it to this file, and further files of the tool to the same folder; `-` is standard output
    #[arg(long, value_name = "FILE", default_value = "-")]
    pub out: String,
    /// The config.json of the plan's model, for what a plan does not say: scaling of rotary positions, soft limits, …
    #[arg(long, value_name = "FILE")]
    pub model: Option<String>,
    /// A setting of the tool that no plan has: for slurm partition, account, time, mem, cpus-per-task
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Write it even if it would train something else than the plan; the file then says so
    #[arg(long)]
    pub lossy: bool,
}

/// Arguments of `import`.
#[derive(Debug, Args)]
pub struct ImportArguments {
    /// The tool's arguments or configuration; `-` is standard input
    pub file: String,
    /// The tool that reads it (see `show importers`)
    #[arg(long, value_parser = importers())]
    pub from: String,
    /// On what it runs: a cluster or nodes of the catalog (`selene`, `dgx-h100:16`), or a TOML file
    #[arg(long)]
    pub cluster: String,
    /// The model, if not what the file says: a preset, or a Hugging Face config.json
    #[arg(long)]
    pub model: Option<String>,
    /// Tokens in a sequence, if not what the file says
    #[arg(long, value_name = "TOKENS", value_parser = count, allow_negative_numbers = true)]
    pub seq: Option<usize>,
    /// The CSV of a pipeline schedule that torchtitan's configuration names
    #[arg(long, value_name = "FILE")]
    pub schedule_csv: Option<String>,
    /// A key or argument of the file with a value that replaces or completes it: `--set train_batch_size=64`
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Software that runs it (see `show stacks`) [default: the tool's]
    #[arg(long, value_parser = stacks())]
    pub stack: Option<String>,
    /// Write the plan to this TOML file; `-` is standard output
    #[arg(long, value_name = "FILE", default_value = "-")]
    pub out: String,
    /// Write the catalog's entries into the plan's file too, which then needs no catalog; without it they are names
    #[arg(long)]
    pub inline: bool,
}

fn exporters() -> PossibleValuesParser {
    PossibleValuesParser::new(EXPORTERS.iter().map(|exporter| exporter.name()))
}

fn importers() -> PossibleValuesParser {
    PossibleValuesParser::new(IMPORTERS.iter().map(|importer| importer.name()))
}
