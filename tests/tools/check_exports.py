"""Checks exported plans with the tools themselves, over a grid of models and plans.

    pip install torch accelerate deepspeed tyro tomli pyyaml omegaconf tokenizers einops
    pip install torchdata torch_checkpointing 'datasets<4.8' spmd_types==0.2.3 safetensors tensorboard wandb pillow
    for package in torchtitan==0.2.2 torchtitan==0.3.0 megatron-core==0.19.2 megatron-bridge==0.6.2 maxtext==0.2.5 \\
        nemo_toolkit==2.4.0; do
        pip download --no-deps --only-binary=:all: --python-version 3.12 $package
    done
    for wheel in *.whl; do name=${wheel%-py3*}; python -m zipfile -e $wheel WHEELS/${name%-cp312*}; done
    python tests/tools/check_exports.py --program target/release/trainwright --wheels WHEELS [plan.toml ...]

WHEELS is a folder with the wheels, unpacked into folders of their names and versions; they are not installed, since they
want GPU libraries that a parser does not need, or each other's other versions. Without plans the grid below is checked. Each
tool runs in a process of its own. A cell of the table that is printed says how far it went:

    built     the tool read the file, and its model, built on the meta device, has our layers and parameters
    read      the tool, or a reader of its field tables, read the file and it says what the plan says
    refused   the program refused to write it, with exit code 2 and a reason
    skipped   a package is not there
    FAILED    the tool refuses the file, or it says something else than the plan

The exit code is 1 if a cell failed.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import tomllib
except ImportError:
    import tomli as tomllib

from export_checks import TOOLS, Facts, Read

# Model, cluster, mesh (tensor, pipeline, data, context, expert), microbatches, schedule, virtual stages, sharding,
# recomputation, changes of the plan.
GRID = [
    ("gpt2", "dgx-a100:1", (2, 2, 2, 1, 1), 4, "1f1b", 1, "zero1", "none", {}),
    ("gpt3-175b", "dgx-a100:16", (8, 16, 1, 1, 1), 32, "1f1b", 1, "none", "selective", {}),
    ("gpt3-175b", "dgx-a100:16", (8, 8, 2, 1, 1), 32, "interleaved", 3, "zero1", "full", {}),
    ("llama-2-7b", "dgx-h100:1", (1, 1, 8, 1, 1), 4, "1f1b", 1, "fsdp", "none", {"stack": "pytorch-eager"}),
    ("llama-2-70b", "dgx-h100:4", (8, 4, 1, 1, 1), 16, "1f1b", 1, "zero1", "none", {}),
    ("llama-3-8b", "dgx-h100:2", (1, 1, 16, 1, 1), 2, "1f1b", 1, "fsdp", "full", {"stack": "pytorch-eager"}),
    ("llama-3-8b", "dgx-h100:2", (2, 1, 2, 4, 1), 2, "1f1b", 1, "zero1", "none", {"context_scheme": "all-gather"}),
    ("llama-3-8b", "dgx-h100:4", (2, 6, 2, 1, 1), 12, "1f1b", 1, "none", "none", {"cluster_nodes": 3}),
    ("llama-3-70b", "dgx-h100:8", (4, 4, 4, 1, 1), 16, "1f1b", 1, "zero1", "full", {}),
    ("llama-3-70b", "dgx-h100:8", (8, 1, 8, 1, 1), 2, "1f1b", 1, "hsdp", "full", {"shard": 4, "stack": "torchtitan"}),
    ("llama-3-405b", "dgx-h100:64", (8, 16, 4, 1, 1), 32, "1f1b", 1, "zero1", "full", {}),
    ("llama-3.2-1b", "dgx-h100:1", (1, 1, 8, 1, 1), 2, "1f1b", 1, "fsdp", "none", {"stack": "pytorch-eager"}),
    ("mistral-7b", "dgx-h100:1", (2, 1, 4, 1, 1), 4, "1f1b", 1, "zero1", "none", {}),
    ("mixtral-8x7b", "dgx-h100:4", (2, 2, 8, 1, 8), 8, "1f1b", 1, "zero1", "none", {}),
    ("qwen3-8b", "dgx-h100:1", (1, 1, 8, 1, 1), 2, "1f1b", 1, "fsdp", "none", {"stack": "pytorch-eager"}),
    ("qwen3-30b-a3b", "dgx-h100:2", (1, 1, 16, 1, 8), 2, "1f1b", 1, "fsdp", "none", {"stack": "torchtitan"}),
    ("deepseek-v2", "dgx-h100:16", (1, 4, 32, 1, 8), 8, "1f1b", 1, "zero1", "full", {}),
    ("deepseek-v3", "dgx-h100:32", (1, 8, 32, 1, 32), 16, "1f1b", 1, "zero1", "full", {}),
    ("gemma-2-27b", "dgx-h100:2", (4, 1, 4, 1, 1), 4, "1f1b", 1, "zero1", "none", {}),
    ("gpt-oss-20b", "dgx-h100:1", (1, 1, 8, 1, 8), 2, "1f1b", 1, "zero1", "none", {}),
    ("llama-3-8b", "dgx-h100:2", (2, 1, 8, 1, 1), 2, "1f1b", 1, "zero1", "none", {"optimizer": "muon"}),
]
SEQUENCES = {"gpt2": 1024, "gpt3-175b": 2048}


def plan_text(row, layers):
    """A plan's file with the names of the catalog."""
    model, cluster, (tensor, pipeline, data, context, expert), microbatches, schedule, virtual, sharding, recompute, changes = row
    stages = pipeline * virtual
    counts = [layers // stages + (stage < layers % stages) for stage in range(stages)]
    mesh = {"tensor": tensor, "pipeline": pipeline, "data": data}
    mesh |= {"context": context} if context > 1 else {}
    mesh |= {"expert": expert} if expert > 1 else {}
    mesh |= {"shard": changes["shard"]} if "shard" in changes else {}
    if "cluster_nodes" in changes:
        cluster = f"{cluster.split(':')[0]}:{changes['cluster_nodes']}"
    table = {
        "model": json.dumps(model),
        "cluster": json.dumps(cluster),
        "stack": json.dumps(changes.get("stack", "megatron-core")),
        "job": f'{{ sequence = {SEQUENCES.get(model, 4096)}, global_batch = {data * microbatches}, precision = "bf16", '
        f'optimizer = "{changes.get("optimizer", "adamw")}", gradient_clipping = true }}',
        "mesh": "{ " + ", ".join(f"{axis} = {ranks}" for axis, ranks in mesh.items()) + " }",
        "micro_batch": 1,
        "schedule": json.dumps(schedule),
        "virtual_stages": virtual,
        "sequence_parallel": json.dumps(tensor > 1),
        "data_sharding": json.dumps(sharding),
        "stages": json.dumps([f"{count} {recompute}" for count in counts]),
    }
    if "context_scheme" in changes:
        table["context_scheme"] = json.dumps(changes["context_scheme"])
    return "".join(f"{key} = {value}\n" for key, value in table.items())


def catalog():
    """Layers of the catalog's models, and their exact number of parameters where it is published; tests count ours."""
    models = {}
    for path in (Path(__file__).parents[2] / "spec" / "catalog" / "models").glob("*.toml"):
        entry = tomllib.loads(path.read_text())
        config = entry["config"]
        layers = next((config[key] for key in ("num_hidden_layers", "n_layer", "num_layers") if key in config), None)
        models[path.stem] = {
            "layers": layers,
            "parameters": entry.get("published_parameters"),
            "router_bias": config["model_type"] == "deepseek_v3",
            "config": config,
        }
    return models


def versions(wheels):
    """Those of the installed packages, and of the unpacked wheels by their names."""
    from importlib import metadata

    found = {}
    for name in ("accelerate", "deepspeed", "torch"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "is not installed"
    for folder in sorted(Path(wheels).glob("*-*")) if wheels else []:
        name, _, version = folder.name.partition("-")
        found[f"{name} {version}"] = ""
    return found


def check_tool(program, tool, plans, wheels, models):
    """Exports each plan to one tool; prints a line of JSON for each."""
    check, name = TOOLS[tool]
    for path in plans:
        facts = Facts(tomllib.loads(Path(path).read_text()), models)
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / name
            command = [program, "export", path, "--to", tool, "--out", str(out), "--quiet"]
            ran = subprocess.run(command, capture_output=True, text=True)
            if ran.returncode == 2:
                cell, why = "refused", ran.stderr.strip()
            elif ran.returncode != 0:
                cell, why = "FAILED", ran.stderr.strip()
            else:
                try:
                    cell, why = check(out, facts, wheels) or "read", ""
                except Read as error:
                    cell, why = "read", str(error)
                except ModuleNotFoundError as error:
                    cell, why = "skipped", str(error)
                except (Exception, SystemExit) as error:
                    cell, why = "FAILED", f"{type(error).__name__}: {error}"
        print("RESULT " + json.dumps([path, cell, why]), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default="trainwright")
    parser.add_argument("--wheels")
    parser.add_argument("--only", help="one tool, in this process")
    parser.add_argument("plans", nargs="*")
    given = parser.parse_args()
    models = catalog()
    if given.only:
        return check_tool(given.program, given.only, given.plans, given.wheels, models)
    with tempfile.TemporaryDirectory() as folder:
        plans = given.plans
        for number, row in enumerate([] if plans else GRID):
            path = Path(folder) / f"{number + 1:02}-{row[0]}.toml"
            path.write_text(plan_text(row, models[row[0]]["layers"]))
            plans.append(str(path))
        table, reasons = {path: {} for path in plans}, []
        for tool in TOOLS:
            command = [sys.executable, __file__, "--program", given.program, "--only", tool]
            command += ["--wheels", given.wheels] if given.wheels else []
            ran = subprocess.run(command + plans, capture_output=True, text=True)
            for line in ran.stdout.splitlines():
                if line.startswith("RESULT "):
                    path, cell, why = json.loads(line.removeprefix("RESULT "))
                    table[path][tool] = cell
                    if why:
                        reasons.append(f"{Path(path).stem} {tool}: {cell}, {why}")
            for path in plans:
                if tool not in table[path]:
                    table[path][tool] = "FAILED"
                    reasons.append(f"{Path(path).stem} {tool}: FAILED, {ran.stderr.strip()[-300:]}")
        print("| plan | " + " | ".join(TOOLS) + " |")
        print("| --- " * (len(TOOLS) + 1) + "|")
        for path in plans:
            print(f"| {Path(path).stem} | " + " | ".join(table[path][tool] for tool in TOOLS) + " |")
    print()
    for line in reasons:
        print(line)
    print()
    for name, version in versions(given.wheels).items():
        print(f"{name} {version}".strip())
    cells = [cell for row in table.values() for cell in row.values()]
    print(", ".join(f"{cells.count(kind)} {kind}" for kind in ("built", "read", "refused", "skipped", "FAILED")))
    return 1 if "FAILED" in cells else 0


if __name__ == "__main__":
    sys.exit(main())
