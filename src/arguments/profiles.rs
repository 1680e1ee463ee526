//! Arguments of `profile`, `replay` and `stragglers`.

use super::{CalibrationArgument, MOST, one_of, within};
use clap::Args;
use trainwright_spec::precision::Precision;
use trainwright_whatif::stragglers::{SlowPart, SlowRank};

/// The most samples of `stragglers`.
const MOST_SAMPLES: usize = 100_000;

/// Nothing is slower by a larger factor.
const SLOWEST: f64 = 1000.0;

/// A step that was measured.
#[derive(Debug, Clone, Args)]
pub struct TraceArguments {
    /// A trace of one rank: JSON of PyTorch's profiler, or an SQLite export of Nsight Systems; either may be gzipped; `-`
    /// is standard input
    pub trace: String,
    /// The GPU, as CUDA numbers them, where an export of Nsight Systems has several
    #[arg(long, value_name = "N")]
    pub device: Option<u32>,
    /// Number format of the products, which Nsight Systems does not record
    #[arg(long, value_parser = one_of(&Precision::ALL, Precision::name))]
    pub precision: Option<Precision>,
}

/// Arguments of `profile`.
#[derive(Debug, Args)]
pub struct ProfileArguments {
    /// The measured step.
    #[command(flatten)]
    pub measured: TraceArguments,
    /// The name of the GPU that was traced, as in the cluster that it is for (see `show gpus`)
    #[arg(long, value_name = "NAME")]
    pub gpu: String,
    /// Write the profile to this CSV, for `--profile`; `-` is standard output
    #[arg(long, value_name = "FILE", default_value = "-")]
    pub out: String,
}

/// Arguments of `replay`.
#[derive(Debug, Args)]
pub struct ReplayArguments {
    /// The traces, a file for each rank, or the folder with them
    #[arg(required = true)]
    pub traces: Vec<String>,
    /// On what they run: a cluster or nodes of the catalog (`selene`, `dgx-h100:16`), or a TOML file, or `-`
    #[arg(long, required_unless_present = "plan", conflicts_with = "plan")]
    pub cluster: Option<String>,
    /// A plan on whose cluster they run
    #[arg(long, value_name = "FILE")]
    pub plan: Option<String>,
    #[command(flatten)]
    pub calibration: CalibrationArgument,
    /// The ranks of each group, JSON: {"0": [0, 1], …} [default: groups.json in the traces' folder]
    #[arg(long, value_name = "FILE")]
    pub groups: Option<String>,
    /// Measured times: of the network, as `network --write-profile` writes them; may be repeated
    #[arg(long, value_name = "FILE")]
    pub profile: Vec<String>,
    /// Write a trace for ui.perfetto.dev; `-` is standard output, which then carries nothing else
    #[arg(long, value_name = "FILE")]
    pub trace: Option<String>,
    /// Print the answer as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `stragglers`.
#[derive(Debug, Args)]
pub struct StragglersArguments {
    /// The plan's TOML file; `-` is standard input
    pub plan: String,
    #[command(flatten)]
    pub calibration: CalibrationArgument,
    /// Jitter of every op on every GPU: 0.05 makes two thirds of them less than 5 % longer or shorter
    #[arg(long, value_name = "SIGMA", default_value = "0", value_parser = sigma)]
    pub jitter: f64,
    /// Jitter of collectives and messages
    #[arg(long, value_name = "SIGMA", default_value = "0", value_parser = sigma)]
    pub network_jitter: f64,
    /// Jitter of GPUs, drawn for each step
    #[arg(long, value_name = "SIGMA", default_value = "0", value_parser = sigma)]
    pub gpu_jitter: f64,
    /// A part of all GPUs that takes longer, others in each step: 0.005x1.1 makes one in 200 10 % slower
    #[arg(long, value_name = "SHARExFACTOR", value_parser = slow_part)]
    pub slow: Option<SlowPart>,
    /// A rank that always takes longer: 12=1.3; may be repeated
    #[arg(long, value_name = "RANK=FACTOR", value_parser = slow_rank)]
    pub slow_rank: Vec<SlowRank>,
    /// Steps to simulate
    #[arg(long, value_name = "N", default_value = "200", value_parser = samples)]
    pub samples: usize,
    /// Decides what is drawn
    #[arg(long, value_name = "N", default_value = "0")]
    pub seed: u64,
    /// Write the step time of every sample to this CSV; `-` is standard output, which then carries nothing else
    #[arg(long, value_name = "FILE")]
    pub csv: Option<String>,
    /// Print the answer as JSON
    #[arg(long)]
    pub json: bool,
}

fn sigma(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|sigma: &f64| (0.0..=2.0).contains(sigma));
    number.ok_or_else(|| "it must be a number from 0 to 2".into())
}

fn samples(text: &str) -> Result<usize, String> {
    within(text, 1, MOST_SAMPLES)
}

fn slowness(text: &str) -> Option<f64> {
    text.parse().ok().filter(|factor: &f64| (1.0..=SLOWEST).contains(factor))
}

fn slow_part(text: &str) -> Result<SlowPart, String> {
    let read = || {
        let (share, factor) = text.split_once('x')?;
        let share = share.parse().ok().filter(|share: &f64| (0.0..=1.0).contains(share))?;
        Some(SlowPart { share, slowness: slowness(factor)? })
    };
    read().ok_or_else(|| "it must be a share from 0 to 1 and a factor of 1 or more, as 0.005x1.1".into())
}

fn slow_rank(text: &str) -> Result<SlowRank, String> {
    let read = || {
        let (rank, factor) = text.split_once('=')?;
        let rank = rank.parse().ok().filter(|rank| *rank <= MOST)?;
        Some(SlowRank { rank, slowness: slowness(factor)? })
    };
    read().ok_or_else(|| "it must be a rank and a factor of 1 or more, as 12=1.3".into())
}
