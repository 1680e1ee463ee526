//! The arguments of every command. Where one takes a name, the names come from the registry that knows them.

mod data;
mod fleet;
mod fleet_online;
mod fleet_run;
mod generate;
mod kernel;
mod load;
mod logs;
mod measure;
mod network;
mod optimizer;
mod profiles;
mod reports;
mod rl;
mod serve;
mod serve_bench;
mod serve_plan;
mod tools;
mod training;
mod what_if;

pub use data::DataArguments;
pub use fleet::{FleetArguments, ScheduleFiles};
pub use fleet_online::FleetOnlineArguments;
pub use fleet_run::FleetRunArguments;
pub use generate::{GenerateArguments, SampleArguments};
pub use kernel::KernelArguments;
pub use load::LoadArguments;
pub use logs::{CurvesArguments, LogArguments};
pub use measure::{CalibrateArguments, TransportChoice, ValidateArguments};
pub use network::{ForcedArguments, GroupArguments, NetworkArguments, Sizes};
pub use optimizer::OptimizerArguments;
pub use profiles::{ProfileArguments, ReplayArguments, StragglersArguments, TraceArguments};
pub use reports::{
    CompareArguments, CompletionsArguments, DoctorArguments, GoodputArguments, ManArguments, RELIABILITY,
    SchemaArguments,
};
pub use rl::{RlArguments, RlMode};
pub use serve::ServeArguments;
pub use serve_bench::ServeBenchArguments;
pub use serve_plan::{Least, ServePlanArguments};
pub use tools::{ExportArguments, ImportArguments};
pub use training::{AttentionChoice, RunArguments, Switch};
pub use what_if::{Asked, WhatIfArguments};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use trainwright_planner::KEPT;
use trainwright_spec::adapters::BaseFormat;
use trainwright_spec::catalog;
use trainwright_spec::data::DATA_SCHEMES;
use trainwright_spec::optimizer::OPTIMIZERS;
use trainwright_spec::plan::Recompute;
use trainwright_spec::precision::Precision;
use trainwright_spec::schedule::SCHEDULES;
use trainwright_spec::sourced::parse_quantity;
use trainwright_spec::units::Bytes;

/// The most of anything that an argument may count, as in plans.
const MOST: usize = 10_000_000;

const AFTER_HELP: &str = "\
Exit codes: 0 done, 1 a file could not be written, 2 bad input, 3 no plan: nothing fits in the GPUs' memory, no choice is
left, or the time was too short.

Examples:
  trainwright plan --model llama-3-70b --cluster dgx-h100:16 --seq 8192 --global-batch 512
  trainwright plan --model my/config.json --cluster my-cluster.toml --seq 4096 --global-batch 1024 --out plan.toml
  trainwright simulate plan.toml --trace step.json
  trainwright network --cluster dgx-h100:4 --collective all_reduce --bytes 8..8G --png busbw.png
  trainwright show models";

/// Forecasts how a model trains on a cluster, and finds the plan that trains it fastest.
#[derive(Debug, Parser)]
#[command(name = "trainwright", version, after_help = AFTER_HELP, max_term_width = 110)]
pub struct Arguments {
    /// No progress bar and no remarks: on standard error errors only
    #[arg(long, global = true, display_order = 1000)]
    pub quiet: bool,
    /// Write tables as text, Markdown or CSV (all tables of an answer, and nothing else), or the answer as `--json` does
    #[arg(long, global = true, display_order = 999, value_name = "FORMAT", value_parser = ["text", "md", "csv", "json"])]
    pub format: Option<String>,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Find the fastest plan that fits, and say why it is
    Plan(Box<PlanArguments>),
    /// Simulate one step of a plan, op by op
    Simulate(SimulateArguments),
    /// Forecast every run of a table, and compare with what was measured
    Predict(PredictArguments),
    /// Correct hardware and software by measured runs, and show what that is worth on sources it has not seen
    Fit(FitArguments),
    /// Train with a plan on this machine
    Run(Box<RunArguments>),
    /// Go on from prompts with the weights of a checkpoint
    Generate(Box<GenerateArguments>),
    /// Draw the losses of trainings by step, and compare them
    Curves(CurvesArguments),
    /// Measure this machine: what ops and exchanges of ranks on its cores take
    Calibrate(CalibrateArguments),
    /// Forecast a plan on this machine, run it, and compare both op by op
    Validate(ValidateArguments),
    /// Ask what would be if an input were another: sweeps, costs, GPUs needed, what fits
    WhatIf(Box<WhatIfArguments>),
    /// Forecast a collective by size, as nccl-tests prints it, and compare with measurements
    Network(Box<NetworkArguments>),
    /// Forecast a kernel of an inference library, and say what bounds it
    Kernel(Box<KernelArguments>),
    /// Simulate an inference engine: requests through its scheduler, their times, its throughput and memory
    Serve(Box<ServeArguments>),
    /// Find the instances of a model that serve a rate of requests within limits of latency on the fewest GPUs
    ServePlan(Box<ServePlanArguments>),
    /// Schedule several jobs on one cluster: the plan, the GPUs and the start of each
    Fleet(Box<FleetArguments>),
    /// Run jobs that arrive over time on one cluster under online policies, by measured speeds
    FleetOnline(Box<FleetOnlineArguments>),
    /// Carry several trainings out on this machine's cores as scheduled, and compare with the forecast
    FleetRun(FleetRunArguments),
    /// Forecast a step of reinforcement learning (GRPO, PPO and relatives), and find the layouts and GPUs of its phases
    Rl(Box<RlArguments>),
    /// Serve requests with a model on this machine's cores, scheduled as an inference engine does
    ServeBench(Box<ServeBenchArguments>),
    /// Write a plan as another tool reads it
    Export(ExportArguments),
    /// Read a plan out of what another tool reads
    Import(ImportArguments),
    /// Compare a measured step, a trace of PyTorch's profiler or Nsight Systems, with its forecast
    Compare(CompareArguments),
    /// Make a profile of a GPU out of a trace: the times of its kernels by shape
    Profile(ProfileArguments),
    /// Simulate what Chakra execution traces say
    Replay(ReplayArguments),
    /// Say what slow GPUs and jitter make of a plan's step, and who waits for whom
    Stragglers(StragglersArguments),
    /// Say what failures and checkpoints leave of a plan's speed
    Goodput(GoodputArguments),
    /// List what the catalog has, or print one entry of it with its sources
    Show(ShowArguments),
    /// Say what this build can do on this machine: cores, memory, GPUs, libraries
    Doctor(DoctorArguments),
    /// Print the JSON Schema of what a command prints with --json
    Schema(SchemaArguments),
    /// Print a script that completes arguments in a shell
    Completions(CompletionsArguments),
    /// Print the manual page
    Man(ManArguments),
}

/// Arguments of `plan`.
#[derive(Debug, Args)]
pub struct PlanArguments {
    /// The question.
    #[command(flatten)]
    pub question: QuestionArguments,
    /// Write the best plan to this TOML file; `-` is standard output, which then carries nothing else
    #[arg(long, value_name = "FILE")]
    pub out: Option<String>,
    /// Write the catalog's entries into the plan's file too, which then needs no catalog; without it they are names
    #[arg(long)]
    pub inline: bool,
    /// Pictures of the best plan's pipeline.
    #[command(flatten)]
    pub pictures: PictureArguments,
    /// Write a page with timeline, memory and the comparison of plans; it opens in any browser, without a network
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<String>,
    /// Stop after this number of seconds with the best plans so far, as Ctrl-C does; 0 stops with the first plan
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true)]
    pub time_limit: Option<f64>,
    /// Use every node. Without it, `--space auto` leaves nodes unused where a plan with fewer is faster
    #[arg(long)]
    pub all_nodes: bool,
    /// How many plans to list, 5 at most
    #[arg(long, value_name = "N", default_value = "5", value_parser = plans, allow_negative_numbers = true)]
    pub top: usize,
    /// Say which bandwidth or memory would make another plan the fastest
    #[arg(long)]
    pub sensitivity: bool,
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

/// Pictures of a pipeline.
#[derive(Debug, Clone, Args)]
pub struct PictureArguments {
    /// Write a picture of the pipeline, as PNG if FILE ends in .png and else as SVG; `-` is standard output, which then
    /// carries nothing else
    #[arg(long, value_name = "FILE")]
    pub picture: Option<String>,
    /// Write it as SVG
    #[arg(long, value_name = "FILE")]
    pub svg: Option<String>,
    /// Write it as PNG
    #[arg(long, value_name = "FILE")]
    pub png: Option<String>,
}

/// The question to the planner.
#[derive(Debug, Clone, Args)]
pub struct QuestionArguments {
    /// A preset (see `show models`); or a Hugging Face config.json: a path with a `/` or ending in .json, or `-`; or a folder with one,
    /// whose safetensors files are checked against it
    #[arg(long)]
    pub model: String,
    /// Read a key of config.json from another (`hidden_size=d_model`), or as a number, true or false; `model_type=FAMILY` takes it for
    /// that family, `model_type=decoder` for a plain decoder; may be repeated
    #[arg(long, value_name = "KEY=KEY", value_parser = pair)]
    pub map: Vec<(String, String)>,
    /// A cluster or nodes of the catalog (`selene`, `dgx-h100:16`), or a TOML file, or `-`
    #[arg(long)]
    pub cluster: String,
    /// Tokens in a sequence
    #[arg(long, value_name = "TOKENS", value_parser = count, allow_negative_numbers = true)]
    pub seq: usize,
    /// Sequences in a step, over all GPUs
    #[arg(long, value_name = "SEQUENCES", value_parser = count, allow_negative_numbers = true)]
    pub global_batch: usize,
    /// Number format of the matrix products [default: bf16, or fp16 on GPUs without it]
    #[arg(long, value_parser = one_of(&Precision::ALL, Precision::name))]
    pub precision: Option<Precision>,
    /// Optimizer (see `show optimizers`)
    #[arg(long, default_value = "adamw", value_parser = optimizers())]
    pub optimizer: String,
    /// Software that would run the plan (see `show stacks`)
    #[arg(long, default_value = "megatron-core", value_parser = stacks())]
    pub stack: String,
    /// Train adapters of this rank (LoRA) beside the model's weights, which are frozen
    #[arg(long, value_name = "RANK")]
    pub lora: Option<usize>,
    /// Matrices that have adapters: query, key, value, qkv, output, gate, up, fc1, down, head, with commas, or `all` of the blocks
    #[arg(long, value_name = "MATRICES", default_value = "all", requires = "lora")]
    pub lora_targets: String,
    /// How frozen matrices are stored: full, int8 or nf4 (QLoRA)
    #[arg(long, value_parser = one_of(&BaseFormat::ALL, BaseFormat::name), default_value = "full", requires = "lora")]
    pub base_format: BaseFormat,
    /// Let each rank update its weights without waiting for the norm of all gradients
    #[arg(long)]
    pub no_gradient_clipping: bool,
    /// Measured times: of the network, as `network --write-profile` writes them, or of kernels, a .csv; may be repeated
    #[arg(long, value_name = "FILE")]
    pub profile: Vec<String>,
    /// Calibration of the forecast: a name of the catalog, or a TOML file as `fit` writes it. `none` takes every number from
    /// its source, a ceiling on speed [default: that of the cluster's file, else published]
    // Not `CalibrationArgument`: `what-if` has these arguments as an option, and such groups do not nest.
    #[arg(long, value_name = "NAME")]
    pub calibration: Option<String>,
}

/// How hardware and software are corrected by measured runs.
#[derive(Debug, Clone, Args)]
pub struct CalibrationArgument {
    /// Calibration of the forecast: a name of the catalog, or a TOML file as `fit` writes it. `none` takes every number from
    /// its source, a ceiling on speed [default: that of the plan's file, else published]
    #[arg(long, value_name = "NAME")]
    pub calibration: Option<String>,
}

impl CalibrationArgument {
    /// What was given.
    pub fn given(&self) -> Option<&str> {
        self.calibration.as_deref()
    }
}

/// Choices that the planner must keep.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Choices that you make for the planner")]
pub struct PinArguments {
    /// GPUs that share each layer
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub tensor: Option<usize>,
    /// Pipeline ranks, which hold successive layers
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub pipeline: Option<usize>,
    /// Copies of the model, each with its part of the batch
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub data: Option<usize>,
    /// Stages on each pipeline rank
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub virtual_stages: Option<usize>,
    /// Sequences in a microbatch
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub micro_batch: Option<usize>,
    /// Pipeline schedule (see `show schedules`)
    #[arg(long, value_parser = schedules())]
    pub schedule: Option<String>,
    /// Whether norms and dropouts are split along the sequence
    #[arg(long, value_name = "true|false")]
    pub sequence_parallel: Option<bool>,
    /// What data-parallel ranks split (see `show data-schemes`)
    #[arg(long, value_parser = data_schemes())]
    pub data_sharding: Option<String>,
    /// What every block computes again in backward: full, selective, none, or pieces as in selective(norm+activation)
    #[arg(long, value_name = "CHOICE")]
    pub recompute: Option<Recompute>,
    /// How much is tried where nothing is pinned
    #[arg(long, value_enum, default_value = "auto")]
    pub space: Space,
    /// Keep any choice at a value; several of one key leave the choice among them (keys: see `show choices`)
    #[arg(long, value_name = "KEY=VALUE", value_parser = pin)]
    pub pin: Vec<(String, String)>,
    /// Keep any choice from a value
    #[arg(long, value_name = "KEY=VALUE", value_parser = pin)]
    pub forbid: Vec<(String, String)>,
    /// Pins and prohibitions in a TOML file: tables `pin` and `forbid` of keys with a value or a list of them
    #[arg(long, value_name = "FILE")]
    pub choices: Option<String>,
}

/// How the errors of forecasts count.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "How errors of forecasts count")]
pub struct RiskArguments {
    /// Largest probability that a plan exceeds a GPU's memory, by the errors of similar measured runs
    #[arg(long, value_name = "PROBABILITY", default_value = "0.05", value_parser = probability, allow_negative_numbers = true)]
    pub memory_risk: f64,
    /// Memory of each GPU that plans leave free by their forecast, instead of a probability: 4GiB
    #[arg(long, value_name = "BYTES", value_parser = memory, conflicts_with = "memory_risk", allow_hyphen_values = true)]
    pub memory_reserve: Option<Bytes>,
    /// Order plans by the time that this fraction of steps stays below, instead of by their expected time: 0.9
    #[arg(long, value_name = "FRACTION", value_parser = probability, allow_negative_numbers = true)]
    pub risk: Option<f64>,
}

/// How much is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Space {
    /// What suits the model: core, expert parallelism for mixtures, context parallelism for long sequences, fully sharded data
    /// parallelism; offload where nothing else fits
    Auto,
    /// Tensor, pipeline and data parallelism; GPipe, 1F1B and interleaved schedules; the optimizer sharded or not
    Core,
    /// Context and expert parallelism and every data-parallel scheme too
    Usual,
    /// Every tensor grid, schedule and offload too
    Whole,
}

/// Arguments of `simulate`.
#[derive(Debug, Args)]
pub struct SimulateArguments {
    /// The plan's TOML file; `-` is standard input
    pub plan: String,
    /// Measured times instead of the plan's: of the network, as `network --write-profile` writes them, or of kernels, a
    /// .csv; may be repeated
    #[arg(long, value_name = "FILE")]
    pub profile: Vec<String>,
    /// Tokens of each expert, a CSV with the columns layer,expert,tokens, instead of the plan's load
    #[arg(long, value_name = "FILE")]
    pub expert_load: Option<String>,
    #[command(flatten)]
    pub calibration: CalibrationArgument,
    /// A schedule as torch.distributed.pipelining writes it, a CSV, instead of the plan's
    #[arg(long, value_name = "FILE")]
    pub schedule_csv: Option<String>,
    /// Software to run the plan instead of the plan's: what other kernels would bring (see `show stacks`)
    #[arg(long, value_parser = stacks())]
    pub stack: Option<String>,
    /// List the ops of the first rank by their time, too
    #[arg(long, conflicts_with = "json")]
    pub ops: bool,
    /// Write a trace for ui.perfetto.dev; `-` is standard output, which then carries nothing else
    #[arg(long, value_name = "FILE")]
    pub trace: Option<String>,
    /// Pictures of the pipeline.
    #[command(flatten)]
    pub pictures: PictureArguments,
    /// Write Chakra execution traces to this folder, a file for each rank, or for each kind of rank if they are many
    #[arg(long, value_name = "FOLDER")]
    pub chakra: Option<String>,
    /// Write a page with timeline and memory; it opens in any browser, without a network
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<String>,
    /// Print the forecast as JSON
    #[arg(long)]
    pub json: bool,
    /// Columns of the drawing [default: those of the terminal, 100 without one]
    #[arg(long, value_name = "COLUMNS", value_parser = columns, allow_negative_numbers = true)]
    pub width: Option<usize>,
}

/// Arguments of `predict`.
#[derive(Debug, Args)]
pub struct PredictArguments {
    /// A CSV with a row for each run: model, hardware, plan and batch; `-` is standard input
    #[arg(required_unless_present_any = ["kernels", "inference"])]
    pub cases: Option<String>,
    /// Instead, CSVs with a row for each measured kernel of an inference library, or collective
    #[arg(long, value_name = "TABLE", num_args = 1.., conflicts_with = "cases")]
    pub kernels: Vec<String>,
    /// Instead, CSVs with a row for each measured serving run: model, GPU, engine, layout, load
    #[arg(long, value_name = "TABLE", num_args = 1.., conflicts_with_all = ["cases", "kernels"])]
    pub inference: Vec<String>,
    /// Write the table with its forecasts to this CSV; `-` is standard output, which then carries nothing else
    #[arg(long, value_name = "FILE")]
    pub out: Option<String>,
    /// Correct hardware and software: a calibration of the catalog, or a TOML file as `fit` writes it
    #[arg(long, value_name = "NAME", default_value = "published")]
    pub calibration: String,
    /// Write the scoreboard into this folder: a page, pictures, and the forecasts that they are made of. `statements.csv` and
    /// `peers.csv` in the folder of CASES get sections of their own
    #[arg(long, value_name = "FOLDER")]
    pub scoreboard: Option<String>,
    /// Print the summary of the errors as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `fit`.
#[derive(Debug, Args)]
pub struct FitArguments {
    /// A CSV as `predict` reads it, with measured step times; `-` is standard input
    #[arg(required_unless_present_any = ["kernels", "inference"])]
    pub measurements: Option<String>,
    /// Instead, CSVs as `predict --kernels` reads them; `--out` is then a folder with a file for each library
    #[arg(long, value_name = "TABLE", num_args = 1.., conflicts_with_all = ["measurements", "quality"])]
    pub kernels: Vec<String>,
    /// Instead, CSVs as `predict --inference` reads them; `--out` is then the file of the ranges of serving forecasts
    #[arg(long, value_name = "TABLE", num_args = 1.., conflicts_with_all = ["measurements", "quality", "kernels"])]
    pub inference: Vec<String>,
    /// What the written files name as their source
    #[arg(long, value_name = "TEXT", conflicts_with = "measurements")]
    pub source: Option<String>,
    /// Write the calibration to this TOML file; `-` is standard output, which then carries nothing else
    #[arg(long, value_name = "FILE")]
    pub out: Option<String>,
    /// Qualities of the rows that count, between commas; rows without a quality do
    #[arg(long, value_name = "A,B,C", default_value = "A")]
    pub quality: String,
    /// Print the factors and errors as JSON
    #[arg(long, conflicts_with_all = ["kernels", "inference"])]
    pub json: bool,
}

/// Arguments of `show`.
#[derive(Debug, Args)]
pub struct ShowArguments {
    /// Which list
    #[arg(value_enum)]
    pub list: List,
    /// Print this entry instead, as TOML with its sources
    pub name: Option<String>,
}

/// The lists of `show`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum List {
    /// Presets of models
    Models,
    /// GPUs
    Gpus,
    /// Clusters that exist or existed
    Clusters,
    /// Nodes, for `--cluster NODE:COUNT`
    Nodes,
    /// Choices that a plan makes, for `plan --pin` and `--forbid`
    Choices,
    /// Pipeline schedules
    Schedules,
    /// Ways to share a layer among the ranks of the tensor axis
    TensorSchemes,
    /// Ways to share attention among the ranks of the context axis
    #[value(alias = "context")]
    ContextSchemes,
    /// Data-parallel schemes
    DataSchemes,
    /// Training software
    Stacks,
    /// Inference engines
    Engines,
    /// Software between the phases of a reinforcement-learning loop
    Controllers,
    /// Optimizers
    Optimizers,
    /// Ways to bring tokens to their experts
    Dispatchers,
    /// Links between the GPUs of a node
    Interconnects,
    /// Network cards
    Nics,
    /// Patterns of the network between nodes
    Fabrics,
    /// Group operations
    Collectives,
    /// Ways to do a collective, for `network --algorithm`
    Algorithms,
    /// Versions of NCCL
    Nccl,
    /// Tools that `export` writes for
    Exporters,
    /// Tools that `import` reads from
    Importers,
    /// Failures and checkpoints of clusters, for `goodput`
    Reliabilities,
}

/// `key=value`.
fn pair(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(key, value)| !key.is_empty() && !value.is_empty());
    let (key, value) = pair.ok_or("it must read like hidden_size=d_model")?;
    Ok((key.into(), value.into()))
}

fn pin(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(key, value)| !key.is_empty() && !value.is_empty());
    let (key, value) = pair.ok_or("it must read like tensor=8")?;
    Ok((key.into(), value.into()))
}

fn seconds(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| (0.0..=1e6).contains(number));
    number.ok_or_else(|| "it must be a number from 0 to 1000000".into())
}

fn probability(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| *number > 0.0 && *number < 1.0);
    number.ok_or_else(|| "it must be a number between 0 and 1".into())
}

fn memory(text: &str) -> Result<Bytes, String> {
    parse_quantity(text)
}

/// No more than the planner ranks.
fn plans(text: &str) -> Result<usize, String> {
    within(text, 1, KEPT)
}

fn count(text: &str) -> Result<usize, String> {
    within(text, 1, MOST)
}

/// A rate of the optimizer.
fn rate(text: &str) -> Result<f32, String> {
    let number = text.parse().ok().filter(|rate: &f32| (0.0..=1000.0).contains(rate));
    number.ok_or_else(|| "it must be a number from 0 to 1000".into())
}

/// A drawing that is narrower shows nothing, a wider one is a slip of the pen.
fn columns(text: &str) -> Result<usize, String> {
    within(text, 40, 10_000)
}

fn within(text: &str, least: usize, most: usize) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("it must be a whole number from {least} to {most}"))
}

fn one_of<T: Copy + Send + Sync>(
    all: &'static [T],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(all.iter().map(move |value| name(*value))).map(move |text| {
        let named = all.iter().find(|value| name(**value) == text);
        *named.expect("the names that are accepted are those of the values")
    })
}

fn optimizers() -> PossibleValuesParser {
    PossibleValuesParser::new(OPTIMIZERS.iter().map(|optimizer| optimizer.name()))
}

fn schedules() -> PossibleValuesParser {
    PossibleValuesParser::new(SCHEDULES.iter().map(|schedule| schedule.name()))
}

fn data_schemes() -> PossibleValuesParser {
    PossibleValuesParser::new(DATA_SCHEMES.iter().map(|scheme| scheme.name()))
}

fn stacks() -> PossibleValuesParser {
    PossibleValuesParser::new(catalog::names("stacks"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
    }
}
