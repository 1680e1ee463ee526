//! Arguments of `run`.

use super::data::DataArguments;
use super::generate::SampleArguments;
use super::logs::LogArguments;
use super::optimizer::OptimizerArguments;
use super::{TransportChoice, count, one_of};
use clap::{Args, ValueEnum};
use std::num::NonZeroUsize;
use trainwright_executor::{DEVICES, DeviceKind, Drill, DrillKind};

/// Arguments of `run`.
#[derive(Debug, Args)]
pub struct RunArguments {
    /// The plan's TOML file; `-` is standard input
    pub plan: String,
    /// The number of the last step; a resumed run counts on
    #[arg(long, value_name = "N", default_value = "10", value_parser = count, allow_negative_numbers = true)]
    pub steps: usize,
    #[command(flatten)]
    pub data: DataArguments,
    /// Decides the initial weights and the order of the data [default: 0, or that of the resumed run]
    #[arg(long, value_name = "N", conflicts_with = "resume")]
    pub seed: Option<u64>,
    /// Begin with the weights of a Hugging Face folder: config.json and model.safetensors
    #[arg(long, value_name = "FOLDER", conflicts_with = "resume")]
    pub from: Option<String>,
    /// Go on with the last complete checkpoint of this folder, under any plan of the same model
    #[arg(long, value_name = "DIR")]
    pub resume: Option<String>,
    /// Write checkpoints to this folder, the last step's and those of `--save-every`
    #[arg(long, value_name = "DIR")]
    pub save: Option<String>,
    /// Steps from one checkpoint to the next
    #[arg(long, value_name = "N", requires = "save")]
    pub save_every: Option<NonZeroUsize>,
    /// How many checkpoints to keep, the last ones
    #[arg(long, value_name = "N", default_value = "2", requires = "save")]
    pub keep: NonZeroUsize,
    #[command(flatten)]
    pub sample: SampleArguments,
    #[command(flatten)]
    pub optimizer: OptimizerArguments,
    /// What ranks compute on: the cores of this machine, NVIDIA GPUs, or the GPUs' kernels emulated on the cores, which is
    /// very slow and shows whether a plan does on GPUs what it does on cores
    #[arg(long, default_value = "cpu", value_parser = one_of(&DEVICES, |kind| kind.name))]
    pub device: DeviceKind,
    /// Whether GPUs run repeatable steps as one CUDA graph, where possible: with a GPU for each rank and nothing in a step
    /// that goes through the host
    #[arg(long, value_enum, default_value_t = Switch::On)]
    pub graph: Switch,
    /// Whose kernels do attention on GPUs: ours, or cuDNN's fused ones for what they can do of a plan in bf16 [default: cuDNN's
    /// where it is there; ours on emulated GPUs]
    #[arg(long, value_enum)]
    pub attention: Option<AttentionChoice>,
    /// Ask cuDNN for gradients of attention with the same bits in every run, which takes longer; all other kernels have them
    #[arg(long)]
    pub deterministic: bool,
    /// Threads for the kernels of all ranks together [default: as many as the machine has cores]
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZeroUsize>,
    /// Give up when nothing has happened on any rank for so long
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = count, allow_negative_numbers = true)]
    pub patience: usize,
    /// Start the run again from its last checkpoint, up to N times, after a rank has died, hung or lost a connection; the run
    /// is then a process of its own
    #[arg(long, value_name = "N", default_value = "0", requires = "save_every")]
    pub restarts: usize,
    /// After the same rank has ended two attempts in succession, go on without it: with the planner's plan for the ranks
    /// that are left, at least MIN of them [default MIN: 1]
    #[arg(long, value_name = "MIN", num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    #[arg(requires_all = ["launch", "restarts"])]
    pub elastic: Option<NonZeroUsize>,
    /// Start a process on this machine for each rank, with a new TRAINWRIGHT_TOKEN
    #[arg(long, conflicts_with = "transport")]
    pub launch: bool,
    /// Make a fault: death, stall or nan, on a rank, in a step, before an op of it (`death:1:3:20`)
    #[arg(long, value_name = "KIND:RANK:STEP:OP", value_parser = drill)]
    pub drill: Option<Drill>,
    /// How ranks reach each other: as threads of this process, or each in a separate process that a launcher starts
    /// with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (the names of MPI's launchers and Slurm are known too); left
    /// out: as processes where an MPI launcher started several
    #[arg(long, value_enum)]
    pub transport: Option<TransportChoice>,
    /// Write a trace of the last step for ui.perfetto.dev
    #[arg(long, value_name = "FILE")]
    pub trace: Option<String>,
    /// Steps from one printed line to the next; steps with a validation and the last one are printed too
    #[arg(long, value_name = "N", default_value = "1")]
    pub log_interval: NonZeroUsize,
    #[command(flatten)]
    pub logs: LogArguments,
    /// A folder that `calibrate` wrote on this machine: forecast a step, and say if the run is slower, and who waits for whom
    #[arg(long, value_name = "DIR")]
    pub profile: Option<String>,
    /// Print the steps as JSON at the end
    #[arg(long)]
    pub json: bool,
}

/// Whether something is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// Yes
    On,
    /// No
    Off,
}

/// Whose kernels do attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AttentionChoice {
    /// Ours
    Own,
    /// cuDNN's
    Cudnn,
}

fn drill(text: &str) -> Result<Drill, String> {
    let parse = || {
        let mut parts = text.split(':');
        let kind = match parts.next()? {
            "death" => DrillKind::Death,
            "stall" => DrillKind::Stall,
            "nan" => DrillKind::NotANumber,
            _ => return None,
        };
        let [rank, step, op] = [(); 3].map(|()| parts.next().map_or(Some(0), |part| part.parse().ok()));
        let drill = Drill { kind, rank: rank?, step: step?.max(1), op: op? };
        parts.next().is_none().then_some(drill)
    };
    parse().ok_or_else(|| "it must be like `death:1:3:20`; there are death, stall and nan".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drills_are_kind_rank_step_and_op() {
        let expected = Drill { kind: DrillKind::Stall, rank: 1, step: 3, op: 20 };
        assert_eq!(drill("stall:1:3:20"), Ok(expected));
        assert_eq!(drill("death"), Ok(Drill { kind: DrillKind::Death, rank: 0, step: 1, op: 0 }));
        for bad in ["", "fire:1", "death:x", "nan:1:2:3:4"] {
            assert!(drill(bad).is_err(), "{bad}");
        }
    }
}
