//! Arguments of the commands that measure this machine.

use super::{count, one_of};
use clap::{Args, ValueEnum};
use trainwright_executor::{DEVICES, DeviceKind};

/// How the ranks of a run reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TransportChoice {
    /// They are threads of one process
    Threads,
    /// Each is a process, and each two have a TCP connection
    Tcp,
    /// Each is a process that MPI started; only of a program with the feature `mpi`
    Mpi,
}

/// Arguments of `calibrate`.
#[derive(Debug, Args)]
pub struct CalibrateArguments {
    /// Write the profile into this folder: a cluster for each number of threads of a rank, and a table of ops; of GPUs the
    /// machine as a cluster, tables of kernels and of launches and copies, and the network's where there are several
    #[arg(long, value_name = "DIR", default_value = "machine")]
    pub out: String,
    /// Measure the shapes of this plan too; may be given several times
    #[arg(long, value_name = "FILE")]
    pub plan: Vec<String>,
    /// What to measure; of a device other than the cores kernels over a grid of shapes, launches, copies and collectives, and
    /// every op of the plans, as it is in their steps
    #[arg(long, default_value = "cpu", value_parser = one_of(&DEVICES, |kind| kind.name))]
    pub device: DeviceKind,
    /// Measure attention's gradients as `run --deterministic` makes them
    #[arg(long)]
    pub deterministic: bool,
}

/// Arguments of `validate`.
#[derive(Debug, Args)]
pub struct ValidateArguments {
    /// The plan's TOML file, `-` is standard input; of several plans a table is made
    #[arg(required = true)]
    pub plan: Vec<String>,
    /// Steps to measure
    #[arg(long, value_name = "N", default_value = "20", value_parser = count, allow_negative_numbers = true)]
    pub steps: usize,
    /// Forecast with what `calibrate` wrote into this folder instead of measuring first
    #[arg(long, value_name = "DIR")]
    pub profile: Option<String>,
    /// How ranks reach each other, as for `run`; over TCP the plan's cluster says what joins the hosts
    #[arg(long, value_enum, default_value = "threads")]
    pub transport: TransportChoice,
    /// The hosts and what joins them, instead of the plan's cluster: a name or a TOML file
    #[arg(long)]
    pub cluster: Option<String>,
    /// The hosts are emulated on this machine: they share its cores
    #[arg(long)]
    pub emulated: bool,
    /// What ranks compute on, as for `run`; the forecast is for the plan's cluster with the times of this device
    #[arg(long, default_value = "cpu", value_parser = one_of(&DEVICES, |kind| kind.name))]
    pub device: DeviceKind,
    /// Make attention's gradients as `run --deterministic` does
    #[arg(long)]
    pub deterministic: bool,
    /// Measure the machine and run the plan this number of times in turn, for machines that others use
    #[arg(long, value_name = "N", default_value = "1", value_parser = count, allow_negative_numbers = true)]
    pub rounds: usize,
    /// Write a page with tables, pictures and both timelines of one plan
    #[arg(long, value_name = "FILE")]
    pub report: Option<String>,
    /// Write the table of all plans as Markdown
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
