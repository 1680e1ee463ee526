//! A batch script for Slurm that runs Megatron-LM on the plan's nodes.

use super::coverage::Coverage;
use super::megatron::arguments;
use super::megatron_lm::line;
use super::{ExportedFile, Exporter, Request};

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

    fn reader(&self) -> Option<&'static str> {
        Some("megatron-lm")
    }

    fn settings(&self) -> &'static [&'static str] {
        &["partition", "account", "time", "mem", "cpus-per-task"]
    }

    fn files(&self, request: &Request, coverage: &mut Coverage) -> Vec<ExportedFile> {
        let plan = request.plan;
        coverage.express(&["cluster"]);
        let (nodes, gpus) = (plan.cluster.nodes, plan.cluster.node.gpus.value);
        let lines: Vec<String> =
            arguments(request, coverage).0.iter().map(|argument| format!("  {}", line(argument))).collect();
        let text = format!(
            "#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={gpus}
#SBATCH --exclusive
{site}

set -euo pipefail

# Megatron-LM's folder, and what the plan does not say: data, tokenizer, learning rate, checkpoints.
: \"${{MEGATRON:?the folder of Megatron-LM}}\"
: \"${{DATA_ARGUMENTS:=--mock-data --tokenizer-type NullTokenizer --train-iters 100 --lr 3e-4}}\"

{connections}

ARGUMENTS=(
{arguments}
)

head=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)
# Without the number of cores the only task of a node would be bound to one.
srun --cpus-per-task={cores} torchrun --nnodes {nodes} --nproc-per-node {gpus} --rdzv-backend c10d \\
  --rdzv-id \"$SLURM_JOB_ID\" --rdzv-endpoint \"$head:29500\" \\
  \"$MEGATRON/pretrain_gpt.py\" \"${{ARGUMENTS[@]}}\" $DATA_ARGUMENTS
",
            name = plan.model.name.replace(|letter: char| !letter.is_ascii_alphanumeric(), "-"),
            site = site(request),
            connections = connections(&lines),
            cores = request
                .settings
                .get("cpus-per-task")
                .map_or("\"$SLURM_CPUS_ON_NODE\"".into(), |cores| cores.to_string()),
            arguments = lines.join("\n"),
        );
        vec![ExportedFile { name: "train.sbatch".into(), text }]
    }
}

/// How many queues a GPU has: Megatron-LM wants one, but for FSDP several.
fn connections(lines: &[String]) -> &'static str {
    match lines.iter().any(|line| line.contains("--use-megatron-fsdp")) {
        true => "unset CUDA_DEVICE_MAX_CONNECTIONS",
        false => {
            "# Communication of the tensor axis is put in line before the products that it runs beside.
export CUDA_DEVICE_MAX_CONNECTIONS=1"
        }
    }
}

/// What the site decides: settings, or a day, all memory of a node, and its usual partition.
fn site(request: &Request) -> String {
    let given = |key: &str| request.settings.get(key).map(String::as_str);
    let mut lines = vec![
        format!("#SBATCH --time={}", given("time").unwrap_or("1-00:00:00")),
        format!("#SBATCH --mem={}", given("mem").unwrap_or("0")),
    ];
    if let Some(cores) = given("cpus-per-task") {
        lines.push(format!("#SBATCH --cpus-per-task={cores}"));
    }
    for key in ["partition", "account"] {
        if let Some(value) = given(key) {
            lines.push(format!("#SBATCH --{key}={value}"));
        }
    }
    if given("partition").is_none() {
        lines.push(
            "# The site's usual partition; sbatch --partition and --time replace what stands here.".into(),
        );
    }
    lines.join("\n")
}
