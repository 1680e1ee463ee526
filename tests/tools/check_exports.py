"""Checks exported plans with the parsers of the tools themselves.

    pip install torch accelerate deepspeed tyro tomli pyyaml omegaconf tokenizers
    pip install --no-deps torchtitan==0.2.2
    pip download --no-deps --only-binary=:all: --python-version 3.12 megatron-core==0.19.2 megatron-bridge==0.6.2 \\
        maxtext==0.2.5 nemo_toolkit==2.4.0
    for wheel in *.whl; do python -m zipfile -e $wheel WHEELS/${wheel%%-*}; done
    python tests/tools/check_exports.py --program target/release/trainwright --wheels WHEELS plan.toml ...

WHEELS is a folder with the wheels of megatron-core, megatron-bridge, maxtext and NeMo, unpacked; they are not installed, since
they want GPU libraries that a parser does not need, or another Python. torchtitan 0.2.2 is the last whose configuration is
TOML. A tool that is not there is reported and skipped; the exit code is 1 if any file was refused.
"""

import argparse
import ast
import os
import subprocess
import sys
import tempfile
import typing
from pathlib import Path

if not hasattr(typing, "override"):
    typing.override = lambda function: function


def megatron_lm(path, plan, wheels):
    sys.path.insert(0, str(find(wheels, "megatron_core")))
    from megatron.training.arguments import add_megatron_arguments
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout as Layout

    import shlex

    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    add_megatron_arguments(parser)
    arguments = parser.parse_args(shlex.split(path.read_text(), comments=True))
    assert arguments.tensor_model_parallel_size == plan["mesh"]["tensor"]
    assert arguments.global_batch_size == plan["job"]["global_batch"]
    assert arguments.bf16 == (plan["job"]["precision"] in ("bf16", "fp8"))
    if arguments.pipeline_model_parallel_layout:
        layout = Layout.from_str(arguments.pipeline_model_parallel_layout, plan["mesh"]["pipeline"])
        layout.validate_layer_layout(num_layers=arguments.num_layers, mtp_num_layers=None)


def megatron_bridge(path, plan, wheels):
    import yaml

    core = find(wheels, "megatron_core") / "megatron" / "core"
    bridge = find(wheels, "megatron_bridge") / "megatron" / "bridge"
    training = bridge / "training" / "config.py"
    common = find(wheels, "megatron_core") / "megatron" / "training" / "config"
    known = {
        "model": fields(core / "model_parallel_config.py", "ModelParallelConfig")
        | fields(core / "transformer" / "transformer_config.py", "TransformerConfig")
        | fields(bridge / "models" / "gpt_provider.py", "GPTModelProvider"),
        "ddp": fields(core / "distributed" / "distributed_data_parallel_config.py", "DistributedDataParallelConfig"),
        "optimizer": fields(core / "optimizer" / "optimizer_config.py", "OptimizerConfig"),
        "train": fields(training, "TrainingConfig") | fields(common / "training_config.py", "TrainingConfig"),
        "dataset": fields(training, "GPTDatasetConfig"),
    }
    container = fields(training, "ConfigContainer")
    table = yaml.safe_load(path.read_text())
    for section, values in table.items():
        assert section in container, f"ConfigContainer has no {section}"
        if section == "mixed_precision":
            source = (bridge / "training" / "mixed_precision.py").read_text()
            assert f"def {values}()" in source, f"no recipe {values}"
            continue
        unknown = set(values) - known[section]
        assert not unknown, f"{section} has no {unknown}"
    assert table["model"]["tensor_model_parallel_size"] == plan["mesh"]["tensor"]


def nemo(path, plan, wheels):
    """Each override is a field or an argument of what the recipe builds there."""
    root = find(wheels, "nemo_toolkit") / "nemo"
    core = find(wheels, "megatron_core") / "megatron" / "core"
    lightning = root / "lightning" / "pytorch"
    gpt = root / "collections" / "llm" / "gpt"
    transformer = fields(core / "transformer" / "transformer_config.py", "TransformerConfig")
    transformer |= fields(core / "model_parallel_config.py", "ModelParallelConfig")
    known = {
        "trainer": {"num_nodes", "devices"},
        "trainer.strategy": arguments_of(lightning / "strategies" / "megatron_strategy.py", "MegatronStrategy"),
        "trainer.strategy.ddp": fields(
            core / "distributed" / "distributed_data_parallel_config.py", "DistributedDataParallelConfig"
        ),
        "trainer.plugins": arguments_of(lightning / "plugins" / "mixed_precision.py", "MegatronMixedPrecision"),
        "model.config": transformer | fields(gpt / "model" / "base.py", "GPTConfig"),
        "data": arguments_of(gpt / "data" / "pre_training.py", "PreTrainingDataModule"),
        "optim.config": fields(core / "optimizer" / "optimizer_config.py", "OptimizerConfig"),
    }
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    for line in lines:
        section, _, field = line.partition("=")[0].rpartition(".")
        assert field in known.get(section, ()), f"{section} has no {field}"
    assert f"trainer.num_nodes={plan['cluster']['nodes']}" in lines


def deepspeed(path, plan, wheels):
    os.environ.setdefault("RANK", "0")
    from deepspeed.runtime.config import DeepSpeedConfig
    import json

    table = json.loads(path.read_text())
    # Its batch sizes are checked against the ranks of the running job, of which there is one.
    mesh = plan["mesh"]
    table["train_batch_size"] //= mesh["data"]
    table.pop("sequence_parallel_size", None)
    config = DeepSpeedConfig(table)
    assert config.gradient_accumulation_steps == table["gradient_accumulation_steps"]
    assert config.zero_config.stage == table["zero_optimization"]["stage"]
    assert config.bfloat16_config.enabled == (plan["job"]["precision"] in ("bf16", "fp8"))
    assert not config.zero_config.model_extra, config.zero_config.model_extra



def torchtitan(path, plan, wheels):
    from torchtitan.config import ConfigManager

    config = ConfigManager().parse_args([f"--job.config_file={path}"])
    assert config.parallelism.tensor_parallel_degree == plan["mesh"]["tensor"]
    assert config.training.seq_len == plan["job"]["sequence"]
    parts = config.parallelism.module_fqns_per_model_part
    if parts:
        layers = sum(name.startswith("layers.") for part in parts for name in part)
        assert layers == sum(run["count"] for run in plan["model"]["blocks"])


def torch_pipelining(path, plan, wheels):
    import csv
    from torch.distributed.pipelining.schedules import _Action, _validate_schedule

    with open(path, newline="") as file:
        order = {rank: [_Action.from_str(cell) for cell in row] for rank, row in enumerate(csv.reader(file))}
    mesh, job = plan["mesh"], plan["job"]
    microbatches = job["global_batch"] // mesh["data"] // plan["micro_batch"]
    _validate_schedule(order, mesh["pipeline"], len(plan["stages"]), microbatches)


def accelerate_fsdp(path, plan, wheels):
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.utils.dataclasses import FullyShardedDataParallelPlugin
    import inspect

    config = load_config_from_file(str(path))
    assert config.num_machines == plan["cluster"]["nodes"]
    known = inspect.signature(FullyShardedDataParallelPlugin.__init__).parameters
    aliases = {
        "auto_wrap_policy", "reshard_after_forward", "version", "offload_params",
        "activation_checkpointing", "state_dict_type", "cpu_ram_efficient_loading",
    }
    for key in config.fsdp_config:
        name = key.removeprefix("fsdp_")
        assert name in known or name in aliases, key
    import accelerate.commands.launch as launch

    source = inspect.getsource(launch)
    for key in config.parallelism_config:
        assert key in source, key


def maxtext(path, plan, wheels):
    import yaml

    folder = find(wheels, "maxtext") / "maxtext" / "configs"
    base = yaml.safe_load((folder / "base.yml").read_text())
    table = yaml.safe_load(path.read_text())
    unknown = set(table) - set(base) - {"base_config"}
    assert not unknown, unknown
    name = table.get("model_name")
    assert name is None or (folder / "models" / f"{name}.yml").exists(), name
    degrees = 1
    for key, value in table.items():
        degrees *= value if key.startswith(("ici_", "dcn_")) else 1
    mesh = plan["mesh"]
    assert degrees == mesh["tensor"] * mesh["pipeline"] * mesh["data"] * mesh.get("context", 1), degrees


def slurm(path, plan, wheels):
    subprocess.run(["bash", "-n", str(path)], check=True)
    text = path.read_text()
    assert f"#SBATCH --nodes={plan['cluster']['nodes']}\n" in text


def find(wheels, name):
    found = sorted(Path(wheels or ".").glob(f"{name}*")) if wheels else []
    if not found:
        raise ModuleNotFoundError(f"no unpacked wheel of {name}")
    return found[-1]


def versions():
    """Those of the installed packages, and of the unpacked wheels by their names."""
    from importlib import metadata

    found = {}
    for name in ("accelerate", "deepspeed", "torch", "torchtitan"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "is not installed"
    return found


def fields(path, name):
    """The fields of a dataclass, without importing what it needs."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return {line.target.id for line in node.body if isinstance(line, ast.AnnAssign)}
    raise AssertionError(f"{path} has no {name}")


def arguments_of(path, name):
    """The arguments of a class's constructor, without importing what it needs."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef) and node.name == name:
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                    return {argument.arg for argument in method.args.args + method.args.kwonlyargs}
    raise AssertionError(f"{path} has no {name}")


TOOLS = {
    "megatron-lm": megatron_lm,
    "megatron-bridge": megatron_bridge,
    "nemo": nemo,
    "deepspeed": deepspeed,
    "torchtitan": torchtitan,
    "torch-pipelining": torch_pipelining,
    "accelerate-fsdp": accelerate_fsdp,
    "maxtext": maxtext,
    "slurm": slurm,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default="trainwright")
    parser.add_argument("--wheels")
    parser.add_argument("plans", nargs="+")
    arguments = parser.parse_args()
    try:
        import tomllib
    except ImportError:
        import tomli as tomllib
    passed = failed = skipped = 0
    for plan_path in arguments.plans:
        plan = tomllib.loads(Path(plan_path).read_text())
        for tool, check in TOOLS.items():
            with tempfile.TemporaryDirectory() as folder:
                # torchtitan goes by the ending.
                path = Path(folder) / f"{tool}.toml"
                command = [arguments.program, "export", plan_path, "--to", tool, "--out", str(path)]
                subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
                try:
                    check(path, plan, arguments.wheels)
                    passed += 1
                    print(f"{plan_path} {tool}: read")
                except ModuleNotFoundError as error:
                    skipped += 1
                    print(f"{plan_path} {tool}: skipped, {error}")
                except (Exception, SystemExit) as error:
                    failed += 1
                    print(f"{plan_path} {tool}: REFUSED, {type(error).__name__}: {error}")
    for name, version in sorted(versions().items()):
        print(f"{name} {version}")
    print(f"{passed} read, {failed} refused, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
