//! A batch script for Slurm that runs Megatron-LM on the plan's nodes.

use super::coverage::Coverage;
use super::megatron::arguments;
use super::megatron_lm::line;
use super::{ExportedFile, Exporter};
use trainwright_spec::plan::Plan;

/// Slurm.
pub struct Slurm;

impl Exporter for Slurm {
    fn name(&self) -> &'static str {
        "slurm"
    }

    fn summary(&self) -> &'static str {
        "a batch script that runs Megatron-LM on the plan's nodes"
    }

    fn source(&self) -> &'static str {
        "sbatch and srun manual pages, Slurm 24.05; torchrun of PyTorch 2; Megatron-LM as for megatron-lm"
    }

    fn files(&self, plan: &Plan, coverage: &mut Coverage) -> Vec<ExportedFile> {
        coverage.express(&["cluster"]);
        let (nodes, gpus) = (plan.cluster.nodes, plan.cluster.node.gpus.value);
        let lines: Vec<String> =
            arguments(plan, coverage).0.iter().map(|argument| format!("  {}", line(argument))).collect();
        let text = format!(
            "#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={gpus}
#SBATCH --exclusive

set -euo pipefail

# Megatron-LM's folder, and what the plan does not say: data, tokenizer, learning rate, checkpoints.
: \"${{MEGATRON:?the folder of Megatron-LM}}\"
: \"${{DATA_ARGUMENTS:=--mock-data --tokenizer-type NullTokenizer --train-iters 100 --lr 3e-4}}\"

# Communication of the tensor axis is put in line before the products that it runs beside.
export CUDA_DEVICE_MAX_CONNECTIONS=1

ARGUMENTS=(
{arguments}
)

head=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)
srun torchrun --nnodes {nodes} --nproc-per-node {gpus} --rdzv-backend c10d \\
  --rdzv-id \"$SLURM_JOB_ID\" --rdzv-endpoint \"$head:29500\" \\
  \"$MEGATRON/pretrain_gpt.py\" \"${{ARGUMENTS[@]}}\" $DATA_ARGUMENTS
",
            name = plan.model.name.replace(|letter: char| !letter.is_ascii_alphanumeric(), "-"),
            arguments = lines.join("\n"),
        );
        vec![ExportedFile { name: "train.sbatch".into(), text }]
    }
}
