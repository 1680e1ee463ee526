#!/usr/bin/env python3
"""The most memory that each command of the program takes on the largest presets that it takes, as rows of a table in Markdown.

usage: peak_memory.py PROGRAM [WORD]        WORD: only commands that contain it, with those that write what they read

The system counts it: resident memory of the process and of those it waits for, the largest of them (getrusage, Linux).
A command that needs more than LIMIT seconds of processor time is ended, and its row says so.
"""

import os
import resource
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

LIMIT = 900
TRACES = Path(__file__).resolve().parents[2] / "traces"
QUESTION = "--model kimi-k2 --cluster meta-llama3 --seq 4096 --global-batch 16384"
FLEET = """
[defaults]
model = "llama-3-70b"
seq = 8192
global_batch = 128
max_gpus = 256

[[job]]
name = "sweep"
copies = 12
steps = 20000

[[job]]
name = "last"
model = "llama-3-405b"
tokens = 1e10
after = ["sweep"]
"""
MACHINE_FLEET = """
[[job]]
name = "small"
model = "gpt2"
seq = 32
global_batch = 1
steps = 2
"""

# Commands by the order in which they need each other's files. What is in capitals is a folder or file of this repository.
COMMANDS = [
    f"plan {QUESTION} --out plan.toml",
    "plan --model megatron-1t --cluster selene --seq 2048 --global-batch 3072 --out dense.toml",
    "plan --model llama-3-405b --cluster frontier --seq 8192 --global-batch 2048",
    "simulate plan.toml",
    "simulate dense.toml",
    "simulate dense.toml --trace step.json",
    "plan --model gpt3-175b --cluster dgx-a100:8 --seq 2048 --global-batch 64 --out small.toml",
    "simulate small.toml --chakra chakra",
    "replay chakra --plan small.toml",
    "predict TRACES/published/training.csv",
    "predict --inference TRACES/published/inference/serving.csv",
    "predict --kernels TRACES/published/inference/gemm.csv",
    "fit TRACES/published/training.csv",
    "what-if --model llama-3-405b --cluster dgx-h100:256 --seq 8192 --global-batch 1024 --vary gpus=512,1024,2048",
    "what-if --plan dense.toml --vary job.global_batch=1536,3072",
    "network --cluster frontier --collective all_reduce --bytes 8..8G",
    "network --cluster dgx-a100:16 --collective all_reduce --algorithm ring --by-steps --bytes 1M..64M",
    "kernel --gpu b200-sxm --gemm 65536,65536,65536",
    "serve --model kimi-k2 --cluster dgx-h200:4 --tensor 32 --rate 10 --requests 2000",
    "serve-plan --model kimi-k2 --cluster dgx-h200:8 --rate 10",
    "fleet fleet.toml --cluster dgx-h100:64",
    "fleet-online TRACES/published/multi_job/pollux_workload_6.csv"
    " --throughputs TRACES/published/multi_job/pollux_throughputs.csv --nodes dgx-a100:16x4",
    "rl --model llama-3-405b --cluster dgx-h100:128 --prompts 512 --rollouts 16 --response 4096",
    "export dense.toml --to megatron-lm --out dense.sh",
    "import dense.sh --from megatron-lm --cluster dgx-a100:256",
    "stragglers dense.toml --jitter 0.05 --samples 20",
    "goodput dense.toml --tokens 1T",
    "show models",
    "show clusters",
    "doctor",
    "schema plan",
    "man",
    "completions bash",
    "run machine.toml --steps 2 --save checkpoint --save-every 2 --metrics run.jsonl",
    "curves run.jsonl",
    "compare TRACES/formats/tests/data/two-steps.sqlite --plan machine.toml",
    "profile TRACES/formats/tests/data/two-steps.sqlite --precision bf16 --gpu a100-80gb-sxm",
    "generate --checkpoint checkpoint --prompt-tokens 1,2,3 --tokens 4",
    "serve-bench --model gpt2 --input 32 --output 4 --batch 2 --max-tokens 64",
    "calibrate --plan machine.toml --out machine",
    "validate machine.toml --steps 3",
    "fleet-run machine-fleet.toml --out machine-fleet --profile machine",
]


def run(program: Path, command: str) -> tuple[int, float, float]:
    """Exit code, most resident memory in MiB, processor time in seconds."""
    arguments = shlex.split(command.replace("TRACES", str(TRACES)))
    limit = lambda: resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT))
    with open("said", "wb") as said:
        process = subprocess.Popen(
            [program, *arguments], stdin=subprocess.DEVNULL, stdout=said, stderr=said, preexec_fn=limit
        )
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, used.ru_maxrss / 1024, used.ru_utime + used.ru_stime


def main() -> int:
    program = Path(sys.argv[1]).resolve()
    word = sys.argv[2] if len(sys.argv) > 2 else ""
    print("| command | exit code | MiB | processor seconds |\n| --- | --: | --: | --: |")
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("fleet.toml").write_text(FLEET)
        Path("machine-fleet.toml").write_text(MACHINE_FLEET)
        machine = "plan --model gpt2 --cluster h100-one-gpu --stack trainwright --precision fp32 --seq 64 --global-batch 2"
        subprocess.run([program, *shlex.split(machine), "--out", "machine.toml"], capture_output=True, check=True)
        for command in COMMANDS:
            if word not in command and "--out" not in command and "--chakra" not in command:
                continue
            code, memory, seconds = run(program, command)
            print(f"| `{command.replace('TRACES/', '')}` | {code} | {memory:,.0f} | {seconds:,.1f} |", flush=True)
            if code not in (0, 3):
                failed += 1
                print(Path("said").read_text(errors="replace")[-400:], file=sys.stderr, flush=True)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
