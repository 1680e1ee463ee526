"""The models and plans that are trained, and the GPUs of this machine."""

import json
import pathlib
import re
import subprocess
import typing

from gpu.work import call

ROOT = pathlib.Path(__file__).resolve().parents[3]

GPT = {"model_type": "gpt2", "activation_function": "gelu_new", "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
LLAMA = {"model_type": "llama", "hidden_act": "silu"}
TOYS = {
    "gpt": {**GPT, "n_embd": 64, "n_head": 4, "n_layer": 4, "n_positions": 64, "vocab_size": 257},
    "llama": {**LLAMA, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 4,
              "intermediate_size": 160, "vocab_size": 257, "tie_word_embeddings": False, "max_position_embeddings": 64},
    "mixtral": {"model_type": "mixtral", "hidden_act": "silu", "hidden_size": 64, "num_attention_heads": 4,
                "num_key_value_heads": 2, "num_hidden_layers": 4, "intermediate_size": 96, "vocab_size": 257,
                "tie_word_embeddings": False, "max_position_embeddings": 64, "num_local_experts": 4,
                "num_experts_per_tok": 2, "sliding_window": None},
}
# Of the same on an emulated GPU, which takes tenths of a second for a step of 32 tokens.
SMALLER = {"gpt": {"n_embd": 32, "n_positions": 16, "vocab_size": 128},
           "llama": {"hidden_size": 32, "intermediate_size": 32, "vocab_size": 128, "max_position_embeddings": 16},
           "mixtral": {"hidden_size": 32, "intermediate_size": 32, "vocab_size": 128, "max_position_embeddings": 16}}
# The measured models: name, configuration, sequences of 1024 tokens, all of them in one microbatch. The first one is small.
SHAPES = [
    ("gpt-2 124M", {**GPT, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50304}, 16),
    ("gpt-2 1.5B", {**GPT, "n_embd": 1600, "n_head": 25, "n_layer": 48, "n_positions": 1024, "vocab_size": 50304}, 8),
    ("llama 1B", {**LLAMA, "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 8,
                  "num_hidden_layers": 16, "intermediate_size": 8192, "vocab_size": 128256, "tie_word_embeddings": True,
                  "max_position_embeddings": 1024}, 4),
]


class Shape(typing.NamedTuple):
    """The choices of a plan."""
    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    # Whether sequences are split among tensor ranks.
    splits: bool = False
    # What data ranks divide.
    sharding: str = "none"
    precision: str = "fp32"
    optimizer: str = "adamw"
    # Ranks that share each sequence, and how.
    context: int = 1
    context_scheme: str = "ring"
    # Data ranks that share the experts, and how tokens come to them.
    expert: int = 1
    dispatcher: str = "all-to-all"
    tensor_scheme: str = "1d"
    offload: str = "none"

    def ranks(self):
        return self.tensor * self.pipeline * self.data * self.context

    def models(self):
        return ["gpt", "llama"] if self.expert == 1 else ["mixtral"]

    def pins(self):
        """Those of the choices that the planner has no option for."""
        pins = {"context": self.context, "context-scheme": self.context_scheme, "expert": self.expert,
                "dispatcher": self.dispatcher, "tensor-scheme": self.tensor_scheme, "offload": self.offload}
        needless = {"context-scheme": self.context == 1, "dispatcher": self.expert == 1}
        return [f"{key}={value}" for key, value in pins.items() if not needless.get(key)]

    def __str__(self):
        own = [f"{name} {value}" for name, value in self._asdict().items()
               if name in ("tensor", "pipeline", "data", "precision") or value != self._field_defaults[name]]
        return ", ".join(own)


# What is newest comes early: a part that runs out of time has then seen some of everything.
GRID = [
    Shape(),
    Shape(precision="bf16"),
    Shape(precision="fp8"),
    Shape(data=2, sharding="zero1"),
    Shape(pipeline=2),
    Shape(data=8, sharding="zero1", offload="optimizer"),
    Shape(tensor=2, pipeline=2, data=2, offload="activations"),
    Shape(tensor=2, splits=True),
    Shape(pipeline=4),
    Shape(tensor=2, pipeline=2, data=2, splits=True, sharding="zero1", precision="bf16"),
    Shape(data=2, expert=2),
    Shape(context=2),
    Shape(tensor=4, tensor_scheme="2d"),
    Shape(tensor=2),
    Shape(data=2),
    Shape(data=2, sharding="zero3"),
    Shape(data=4, sharding="zero2"),
    Shape(tensor=2, pipeline=2, splits=True),
    Shape(tensor=2, pipeline=2, data=2, splits=True, sharding="zero1"),
    Shape(pipeline=4, precision="bf16"),
    Shape(pipeline=4, data=2, precision="bf16"),
    Shape(optimizer="momentum"),
    Shape(optimizer="adam"),
    Shape(tensor=2, splits=True, optimizer="lamb"),
    Shape(data=2, sharding="zero1", optimizer="lars"),
    Shape(context=4, precision="bf16"),
    Shape(context=2, context_scheme="ulysses"),
    Shape(context=2, tensor=2, context_scheme="all-gather"),
    Shape(tensor=4, tensor_scheme="2d", precision="bf16"),
    Shape(data=4, expert=4, dispatcher="all-gather"),
]
# Of what is measured.
MEASURED = Shape(precision="bf16")
# Those that run as processes too, which find each other over TCP.
PROCESSES = [Shape(data=2, sharding="zero1"), Shape(pipeline=2)]

# One GPU is a file of its own: nodes of the catalog have more, or none that computes in bf16.
ONE_GPU = """nodes = 1
[node]
gpu = "{gpu}"
gpus = 1
interconnect = "pcie4"
"""
CLUSTERS = {2: "h100-pcie-pair:1", 4: "perlmutter-a100:1", 8: "dgx-h100:1"}


def of_driver(what):
    """What nvidia-smi says of each GPU; nothing where it is not there."""
    try:
        told = subprocess.run(["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader"], capture_output=True, text=True)
    except OSError:
        return []
    return [line.strip() for line in told.stdout.splitlines() if line.strip()] if told.returncode == 0 else []


def gpus():
    """How many this machine has."""
    return max(1, len(of_driver("name")))


def gpu():
    """The catalog's name of the first GPU; an H100's where it has none, so that a peak is known."""
    known = dict(re.findall(r'^"(.+)" = "(.+)"$', (ROOT / "spec/catalog/drivers.toml").read_text(), re.MULTILINE))
    return next((known[name] for name in of_driver("name") if name in known), "h100-80gb-sxm")


def multiplies_fp8():
    """Whether all GPUs multiply fp8: from compute capability 8.9 on."""
    return all(tuple(map(int, own.split("."))) >= (8, 9) for own in of_driver("compute_cap"))


class Case(typing.NamedTuple):
    """A model and the tokens of a step, all of which are one microbatch."""
    name: str
    config: dict
    sequences: int
    length: int

    def tokens(self):
        return self.sequences * self.length

    def __str__(self):
        return f"{self.name}, {self.sequences} x {self.length} tokens"

    def make(self, args, folder, clock, precision="bf16"):
        """The path of its plan for one GPU. Raises Failed or Stopped."""
        shape = MEASURED._replace(precision=precision)
        return make(args.trainwright, folder, self.config, shape, self.length, self.sequences, self.sequences, clock)


def toys(device):
    """The models of parity by name."""
    return TOYS if device == "cuda" else {name: {**config, **SMALLER[name]} for name, config in TOYS.items()}


def measured(device):
    """The measured cases, the small one first; stand-ins if the GPU is emulated."""
    if device == "cuda":
        return [Case(name, config, sequences, 1024) for name, config, sequences in SHAPES]
    return [Case(f"{name} stand-in", toys(device)[name], 2, 16) for name in ("gpt", "llama")]


def compared(device):
    """The small model with so few tokens in a step that a CPU can train it too."""
    first = measured(device)[0]
    return first._replace(sequences=2, length=256) if device == "cuda" else first


def make(trainwright, folder, config, shape, sequence, batch, micro_batch, clock):
    """The path of a plan, in a folder of its own. Raises Failed with the planner's words, or Stopped."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "one-gpu.toml").write_text(ONE_GPU.format(gpu=gpu()))
    path = folder / "plan.toml"
    command = [trainwright, "plan", "--model", folder / "config.json", "--cluster",
               CLUSTERS.get(shape.ranks(), folder / "one-gpu.toml"), "--seq", sequence, "--global-batch", batch,
               "--precision", shape.precision, "--optimizer", shape.optimizer, "--stack", "trainwright",
               "--tensor", shape.tensor, "--pipeline", shape.pipeline, "--micro-batch", micro_batch,
               "--recompute", "none", "--sequence-parallel", str(shape.splits).lower(),
               "--data-sharding", shape.sharding, "--space", "whole", "--quiet", "--out", path]
    # The planner takes the three options for all GPUs: with a fourth axis the data axis is what is left.
    if shape.context == 1:
        command += ["--data", shape.data]
    for pin in shape.pins():
        command += ["--pin", pin]
    call(command, clock)
    return path
