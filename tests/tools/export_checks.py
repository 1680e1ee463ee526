"""What each tool makes of an exported file; `check_exports.py` calls these.

A function of `TOOLS` gets the file, the facts that it must say and the folder of unpacked wheels. It returns `built` if the
tool's model has our layers and parameters, nothing if the file was read, and raises if the tool refuses it.
"""

import argparse
import ast
import json
import os
import shlex
import subprocess
import sys
import tempfile
import typing
from pathlib import Path

if not hasattr(typing, "override"):
    typing.override = lambda function: function


class Facts:
    """What every file must say that says it at all."""

    def __init__(self, plan, models):
        self.plan = plan
        mesh = plan["mesh"]
        self.tensor, self.pipeline, self.data = mesh["tensor"], mesh["pipeline"], mesh["data"]
        self.context, self.expert = mesh.get("context", 1), mesh.get("expert", 1)
        self.ranks = self.tensor * self.pipeline * self.data * self.context
        self.batch, self.sequence = plan["job"]["global_batch"], plan["job"]["sequence"]
        self.micro_batch = plan["micro_batch"]
        self.nodes = plan["cluster"]["nodes"] if isinstance(plan["cluster"], dict) else int(plan["cluster"].split(":")[1])
        model = plan["model"]
        name = model if isinstance(model, str) else model["name"]
        known = models.get(name, {})
        self.layers, self.parameters = known.get("layers"), known.get("parameters")
        self.router_bias = known.get("router_bias")
        # The Hugging Face configuration: how positions are rotated and scaled, and routers weigh experts.
        config = self.config = known.get("config", {})
        self.theta = config.get("rope_theta", 10000.0)
        scaling = config.get("rope_scaling", {})
        self.scaling = scaling.get("rope_type", scaling.get("type", "none")).replace("llama3", "llama")
        self.factor = scaling.get("factor")


def megatron_lm(path, facts, wheels):
    """Parses and validates the arguments as Megatron-LM does, then builds its GPT for one rank on the meta device."""
    import torch

    sys.path.insert(0, str(find(wheels, "megatron_core")))
    # Validation asks the device; none is needed.
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.get_device_properties = lambda *_: typing.cast(typing.Any, argparse.Namespace(major=9, minor=0))
    torch.cuda.current_device = lambda: "meta"
    torch.cuda.Stream = torch.cuda.Event = lambda *_, **__: None
    from megatron.training import arguments as megatron

    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    megatron.add_megatron_arguments(parser)
    words = shlex.split(path.read_text(), comments=True)
    if path.suffix == ".sbatch":
        words = shlex.split(path.read_text().split("ARGUMENTS=(")[1].split("\n)")[0], comments=True)
    given = parser.parse_args(words + ["--tokenizer-type", "NullTokenizer", "--lr", "1e-4", "--train-iters", "1"])
    given.rank, given.world_size = 0, facts.ranks
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "8" if given.use_megatron_fsdp else "1"
    # Transformer Engine fuses these; without it they are not there.
    given.apply_rope_fusion = given.gradient_accumulation_fusion = given.tp_comm_overlap = False
    given.transformer_impl = "local"
    given.no_persist_layer_norm = True
    sinks = given.softmax_type != "vanilla"
    megatron.validate_args(given)
    same(given.data_parallel_size, facts.data * 1, "data ranks")
    same(given.global_batch_size * given.seq_length, facts.batch * facts.sequence, "tokens a step")
    same(given.num_layers, facts.layers, "layers")
    if facts.config.get("model_type") in ("llama", "mistral", "mixtral", "qwen3", "qwen3_moe", "deepseek_v2", "deepseek_v3"):
        same(given.rotary_base, int(facts.theta), "base of rotary positions")
        same(given.use_rope_scaling, facts.scaling == "llama", "scaling of rotary positions as LLaMA 3.1's")
        assert facts.scaling != "llama" or given.rope_scaling_factor == facts.factor, given.rope_scaling_factor
        assert facts.scaling != "yarn" or given.rotary_scaling_factor == facts.factor, given.rotary_scaling_factor
        same(given.untie_embeddings_and_output_weights, not facts.config.get("tie_word_embeddings", False), "untied head")
        same(given.swiglu, True, "SwiGLU")
        same(given.window_size, window(facts.config), "window")
    same(given.moe_router_topk_scaling_factor, facts.config.get("routed_scaling_factor"), "factor of routed experts")
    same(bool(given.num_experts), given.moe_grouped_gemm, "grouped products of experts")
    given.tensor_model_parallel_size = given.pipeline_model_parallel_size = given.context_parallel_size = 1
    given.expert_model_parallel_size = given.expert_tensor_parallel_size = 1
    given.virtual_pipeline_model_parallel_size = given.num_layers_per_virtual_pipeline_stage = None
    given.pipeline_model_parallel_layout = None
    given.sequence_parallel = given.moe_grouped_gemm = False
    given.hierarchical_context_parallel_sizes = None
    given.cp_comm_type = [None]
    given.use_cpu_initialization, given.perform_initialization = True, False
    given.attention_backend = megatron.AttnBackend.unfused if hasattr(megatron, "AttnBackend") else given.attention_backend
    given.recompute_granularity = None
    given.overlap_p2p_comm = given.batch_p2p_comm = False
    # Multi-token prediction is beyond the plan's count.
    given.mtp_num_layers = None
    given.moe_token_dispatcher_type = "alltoall"
    if sinks:
        raise Read("attention sinks need Transformer Engine")
    if given.multi_latent_attention:
        raise Read("latent attention needs Transformer Engine")
    config = megatron.core_transformer_config_from_args(given)
    return built(megatron_parameters(config, given, facts), facts)


def megatron_parameters(config, given, facts):
    import torch
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_layer_local_spec
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    if not torch.distributed.is_initialized():
        store = tempfile.NamedTemporaryFile(delete=False).name
        torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
        parallel_state.initialize_model_parallel()
    if given.num_experts:
        spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization=given.normalization)
    else:
        spec = get_gpt_layer_local_spec(
            qk_layernorm=given.qk_layernorm,
            multi_latent_attention=given.multi_latent_attention,
            normalization=given.normalization,
        )
    with torch.device("meta"):
        model = GPTModel(
            config=config,
            transformer_layer_spec=spec,
            vocab_size=given.vocab_size,
            max_sequence_length=given.max_position_embeddings,
            position_embedding_type=given.position_embedding_type,
            rotary_percent=given.rotary_percent,
            share_embeddings_and_output_weights=not given.untie_embeddings_and_output_weights,
        )
    same(len(model.decoder.layers), given.num_layers, "layers of the model")
    return weights(model, facts)


def megatron_bridge(path, facts, wheels):
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
        "checkpoint": fields(training, "CheckpointConfig") | fields(common / "training_config.py", "CheckpointConfig"),
        "dist": fields(training, "DistributedInitConfig") | fields(common / "common_config.py", "DistributedInitConfig"),
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
    model = table["model"]
    same(model["tensor_model_parallel_size"], facts.tensor, "tensor ranks")
    same(model["pipeline_model_parallel_size"], facts.pipeline, "pipeline ranks")
    same(table["train"]["global_batch_size"] * model["seq_length"], facts.batch * facts.sequence, "tokens a step")


def nemo(path, facts, wheels):
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
    assert f"trainer.num_nodes={facts.nodes}" in lines
    assert f"data.global_batch_size={facts.batch}" in lines


def deepspeed(path, facts, wheels):
    os.environ.setdefault("RANK", "0")
    from deepspeed.runtime.config import DeepSpeedConfig

    table = json.loads(path.read_text())
    # Its batch sizes are checked against the ranks of the running job, of which there is one.
    same(table["train_batch_size"], facts.batch, "sequences a step")
    table["train_batch_size"] //= facts.data
    table.pop("sequence_parallel_size", None)
    config = DeepSpeedConfig(table)
    same(config.gradient_accumulation_steps, facts.batch // facts.data // facts.micro_batch, "steps")
    same(config.zero_config.stage, table["zero_optimization"]["stage"], "ZeRO's stage")
    assert config.zero_config.reduce_bucket_size > 1e5, "buckets smaller than a message is worth"
    assert not config.zero_config.model_extra, config.zero_config.model_extra


def torchtitan(path, facts, wheels):
    import torch

    sys.path.insert(0, str(find(wheels, "torchtitan-0.2")))
    from torchtitan.config import ConfigManager
    from torchtitan.protocols.train_spec import get_train_spec

    config = ConfigManager().parse_args([f"--job.config_file={path}"])
    titan(config, facts)
    spec = get_train_spec(config.model.name)
    arguments = spec.model_args[config.model.flavor]
    arguments.update_from_config(config)
    with torch.device("meta"):
        model = spec.model_cls(arguments)
    same(len(model.layers), facts.layers, "layers of the model")
    return built(weights(model, facts), facts)


def torchtitan_python(path, facts, wheels):
    import torch

    sys.path.insert(0, str(find(wheels, "torchtitan-0.3")))
    sys.path.insert(0, str(path.parent))
    from torchtitan.config import ConfigManager

    sys.modules.pop(path.stem, None)
    config = ConfigManager().parse_args(["--module", path.stem, "--config", "plan"])
    titan(config, facts)
    for rope in (layer.attention.rope for layer in config.model_spec.model.layers):
        same((rope.scaling, rope.theta), (facts.scaling, facts.theta), "scaling and base of rotary positions")
        assert rope.scaling != "llama" or rope.scaling_factor == facts.factor, rope.scaling_factor
        assert rope.scaling != "yarn" or rope.rope_factor == facts.factor, rope.rope_factor
    if hasattr(config.model_spec.model, "mtp_layers"):
        config.model_spec.model.mtp_layers = []
    with torch.device("meta"):
        model = config.model_spec.model.build()
    same(len(model.layers), facts.layers, "layers of the model")
    return built(weights(model, facts), facts)


def titan(config, facts):
    parallelism = config.parallelism
    same(parallelism.tensor_parallel_degree, facts.tensor, "tensor ranks")
    same(config.training.seq_len, facts.sequence, "tokens in a sequence")
    same(config.training.global_batch_size, facts.batch, "sequences a step")
    ranks = (
        parallelism.data_parallel_replicate_degree
        * parallelism.data_parallel_shard_degree
        * parallelism.tensor_parallel_degree
        * parallelism.pipeline_parallel_degree
        * parallelism.context_parallel_degree
    )
    same(ranks, facts.ranks, "ranks")
    parts = parallelism.module_fqns_per_model_part
    if parts:
        same(sum(name.startswith("layers.") for part in parts for name in part), facts.layers, "layers of the stages")


def torch_pipelining(path, facts, wheels):
    import csv
    from torch.distributed.pipelining.schedules import _Action, _validate_schedule

    with open(path, newline="") as file:
        order = {rank: [_Action.from_str(cell) for cell in row] for rank, row in enumerate(csv.reader(file))}
    microbatches = facts.batch // facts.data // facts.micro_batch
    _validate_schedule(order, facts.pipeline, len(facts.plan["stages"]), microbatches)


def accelerate_fsdp(path, facts, wheels):
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.utils.dataclasses import FullyShardedDataParallelPlugin
    import inspect

    config = load_config_from_file(str(path))
    same(config.num_machines, facts.nodes, "machines")
    same(config.num_processes, facts.ranks, "processes")
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
    product = 1
    for key, value in config.parallelism_config.items():
        assert key in source, key
        product *= value if key.endswith("_size") else 1
    same(product, facts.ranks, "product of the degrees")


def maxtext(path, facts, wheels):
    import yaml

    folder = find(wheels, "maxtext") / "maxtext" / "configs"
    base = yaml.safe_load((folder / "base.yml").read_text())
    table = yaml.safe_load(path.read_text())
    unknown = set(table) - set(base) - {"base_config"}
    assert not unknown, unknown
    name = table.get("model_name")
    assert name is None or (folder / "models" / f"{name}.yml").exists(), name
    model = base | (yaml.safe_load((folder / "models" / f"{name}.yml").read_text()) if name else {}) | table
    layers = model["base_num_decoder_layers"]
    # A layer of Gemma 2 there is one with a window and one without.
    same(layers * (2 if model["decoder_block"] == "gemma2" else 1), facts.layers, "layers")
    degrees = 1
    for key, value in table.items():
        degrees *= value if key.startswith(("ici_", "dcn_")) else 1
    same(degrees, facts.ranks, "product of the degrees")
    sequences = table["per_device_batch_size"] * facts.ranks * table["gradient_accumulation_steps"]
    same(round(sequences), facts.batch, "sequences a step")
    if facts.pipeline > 1:
        piped = model["num_layers_per_pipeline_stage"] * facts.pipeline * model["num_pipeline_repeats"]
        same(piped, table.get("pipeline_parallel_layers", layers), "layers of the stages")


def slurm(path, facts, wheels):
    subprocess.run(["bash", "-n", str(path)], check=True)
    text = path.read_text()
    assert f"#SBATCH --nodes={facts.nodes}\n" in text
    for line in ("#SBATCH --time=", "#SBATCH --mem=", "srun --cpus-per-task="):
        assert line in text, line


def window(config):
    """Keys before a query's, and after it."""
    size = config.get("sliding_window") if config["model_type"] == "mistral" else None
    return (size - 1, 0) if size else None


class Read(Exception):
    """The file was read; the model cannot be built here."""


def same(found, expected, what):
    assert found == expected, f"{what}: {found}, the plan has {expected}"


def weights(model, facts):
    """Parameters, and the correction biases of routers that have them, which are buffers there."""
    biases = [buffer for name, buffer in model.named_buffers() if "expert_bias" in name and facts.router_bias]
    return sum(tensor.numel() for tensor in [*model.parameters(), *biases])


def built(parameters, facts):
    """The parameters are ours."""
    if facts.parameters is None:
        raise Read(f"{parameters} parameters there; no exact number is published")
    same(parameters, facts.parameters, "parameters")
    return "built"


def find(wheels, name):
    found = sorted(Path(wheels or ".").glob(f"{name}*")) if wheels else []
    if not found:
        raise ModuleNotFoundError(f"no unpacked wheel of {name}")
    return found[-1]


def fields(path, name):
    """The fields of a dataclass, without importing what it needs."""
    if not path.exists():
        return set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return {line.target.id for line in node.body if isinstance(line, ast.AnnAssign)}
    return set()


def arguments_of(path, name):
    """The arguments of a class's constructor, without importing what it needs."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef) and node.name == name:
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                    return {argument.arg for argument in method.args.args + method.args.kwonlyargs}
    raise AssertionError(f"{path} has no {name}")


# The function and the name of the file that is written.
TOOLS = {
    "megatron-lm": (megatron_lm, "megatron-lm.args"),
    "megatron-bridge": (megatron_bridge, "bridge.yaml"),
    "nemo": (nemo, "nemo.overrides"),
    "deepspeed": (deepspeed, "deepspeed.json"),
    # torchtitan goes by the ending.
    "torchtitan": (torchtitan, "torchtitan.toml"),
    "torchtitan-python": (torchtitan_python, "torchtitan_plan.py"),
    "torch-pipelining": (torch_pipelining, "schedule.csv"),
    "accelerate-fsdp": (accelerate_fsdp, "accelerate.yaml"),
    "maxtext": (maxtext, "maxtext.yml"),
    "slurm": (slurm, "train.sbatch"),
}
