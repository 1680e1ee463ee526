"""Training on a GPU: the losses of plans beside those of the CPU, and tokens per second beside PyTorch's.

    cargo build --release --features cuda
    python3 tests/tools/gpu_run.py parity FOLDER            # losses of a grid of plans; needs no PyTorch
    python3 tests/tools/gpu_run.py speed FOLDER             # GPT-2 124M and 1.5B and LLaMA 1B in bf16, beside PyTorch
    python3 tests/tools/gpu_run.py validation FOLDER        # their forecasts from measured ops, beside what they take
    python3 tests/tools/gpu_run.py parity FOLDER --device emulated --steps 2 --plans 3    # without a GPU

On a machine with several GPUs ranks have one each, and plans of several ranks run a second time with all ranks on the first
GPU; one more runs as processes that find each other over TCP. Each line says how ranks communicated.

Each prints a line for each case and writes parity.csv, speed.csv or validation.csv into FOLDER; the last one leaves the measured ops of each shape
there too, as `calibrate` does. It exits with 1 where losses differ by more
than their tolerance, with 2 where the device cannot be used. No new case is begun after --seconds.

PyTorch trains the same shape with torch.compile, its fused attention and its fused AdamW, under bf16 autocast with f32 weights,
one process after the other on the same GPU; medians of the seconds of the steps after the first ones, which compile.
"""

import argparse
import csv
import json
import math
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import typing

HERE = pathlib.Path(__file__)

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


GRID = [
    Shape(),
    Shape(precision="bf16"),
    Shape(tensor=2),
    Shape(tensor=2, splits=True),
    Shape(pipeline=2),
    Shape(data=2),
    Shape(data=2, sharding="zero1"),
    Shape(data=2, sharding="zero3"),
    Shape(data=4, sharding="zero2"),
    Shape(tensor=2, pipeline=2, splits=True),
    Shape(tensor=2, pipeline=2, data=2, splits=True, sharding="zero1"),
    Shape(tensor=2, pipeline=2, data=2, splits=True, sharding="zero1", precision="bf16"),
    Shape(pipeline=4, data=2, precision="bf16"),
    Shape(optimizer="momentum"),
    Shape(optimizer="adam"),
    Shape(tensor=2, splits=True, optimizer="lamb"),
    Shape(data=2, sharding="zero1", optimizer="lars"),
    Shape(context=2),
    Shape(context=4, precision="bf16"),
    Shape(context=2, context_scheme="ulysses"),
    Shape(context=2, tensor=2, context_scheme="all-gather"),
    Shape(tensor=4, tensor_scheme="2d"),
    Shape(tensor=4, tensor_scheme="2d", precision="bf16"),
    Shape(data=2, expert=2),
    Shape(data=4, expert=4, dispatcher="all-gather"),
    Shape(data=8, sharding="zero1", offload="optimizer"),
    Shape(tensor=2, pipeline=2, data=2, offload="activations"),
    Shape(precision="fp8"),
]
# The one that runs as processes too, where there are GPUs for all of them.
PROCESSES = Shape(data=2, sharding="zero1")
# Relative, of each step's loss: f32 sums in another order; bf16 activations and weights.
TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2, "fp8": 2e-2}
# One GPU is a file of its own: nodes of the catalog have more, or none that computes in bf16.
ONE_GPU = """nodes = 1
[node]
gpu = "h100-80gb-sxm"
gpus = 1
interconnect = "pcie4"
"""
CLUSTERS = {2: "h100-pcie-pair:1", 4: "perlmutter-a100:1", 8: "dgx-h100:1"}

# Name, configuration, sequences of a microbatch.
SHAPES = [
    ("gpt-2 124M", {**GPT, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50304}, 16),
    ("gpt-2 1.5B", {**GPT, "n_embd": 1600, "n_head": 25, "n_layer": 48, "n_positions": 1024, "vocab_size": 50304}, 8),
    ("llama 1B", {**LLAMA, "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 8,
                  "num_hidden_layers": 16, "intermediate_size": 8192, "vocab_size": 128256, "tie_word_embeddings": True,
                  "max_position_embeddings": 1024}, 4),
]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["parity", "speed", "validation"])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--trainwright", default=str(HERE.parents[2] / "target/release/trainwright"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--plans", type=int, default=len(GRID), help="of the grid, the first so many")
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no new case is begun")
    parser.add_argument("--torch-child", type=int, default=-1, help=argparse.SUPPRESS)
    return parser.parse_args()


def plan(args, folder, config, shape, sequence, batch, micro_batch):
    """The path of a plan."""
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "one-gpu.toml").write_text(ONE_GPU)
    path = folder / "plan.toml"
    command = [args.trainwright, "plan", "--model", str(folder / "config.json"), "--cluster",
               CLUSTERS.get(shape.ranks(), str(folder / "one-gpu.toml")), "--seq", str(sequence), "--global-batch", str(batch),
               "--precision", shape.precision, "--optimizer", shape.optimizer, "--stack", "trainwright",
               "--tensor", str(shape.tensor), "--pipeline", str(shape.pipeline), "--micro-batch", str(micro_batch),
               "--recompute", "none", "--sequence-parallel", str(shape.splits).lower(),
               "--data-sharding", shape.sharding, "--space", "whole", "--quiet", "--out", str(path)]
    # The planner takes the three options for all GPUs: with a fourth axis the data axis is what is left.
    if shape.context == 1:
        command += ["--data", str(shape.data)]
    for pin in shape.pins():
        command += ["--pin", pin]
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode != 0:
        sys.exit(f"no plan for {shape}: {made.stdout}{made.stderr}")
    return path


def run(args, path, device, count, place="", processes=1):
    """What a run says of itself, as JSON; the program's words where it stops."""
    command = [args.trainwright, "run", str(path), "--device", device, "--steps", str(count), "--json",
               "--learning-rate", "0.003"]
    environment = {**os.environ, **({"CUDA_VISIBLE_DEVICES": place} if place else {})}
    if processes > 1:
        command += ["--transport", "tcp"]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        environment |= {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1",
                        "MASTER_PORT": port}
    ranks = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              env={**environment, **({"RANK": str(rank), "LOCAL_RANK": str(rank)} if processes > 1 else {})})
             for rank in range(processes)]
    said = [rank.communicate() for rank in ranks]
    if any(rank.returncode == 2 for rank in ranks):
        print(said[0][1].strip(), file=sys.stderr)
        sys.exit(2)
    if any(rank.returncode != 0 for rank in ranks):
        return said[0][1].strip()
    return json.loads(said[0][0])


def steps(args, path, device, count):
    """Every step of a run; the program's words where it stops."""
    ran = run(args, path, device, count)
    return ran if isinstance(ran, str) else ran["steps"]


def gpus():
    try:
        listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True)
    except OSError:
        return 1
    return max(1, len(listed.stdout.splitlines()))


def multiplies_eight():
    """Whether all GPUs multiply numbers of 8 bits: from compute capability 8.9 on."""
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        listed = subprocess.run(query, capture_output=True, text=True).stdout.split()
    except OSError:
        return True
    return all(tuple(map(int, own.split("."))) >= (8, 9) for own in listed)


def parity(args, folder):
    began, wrong, rows = time.monotonic(), 0, []
    several = gpus() > 1 and args.device == "cuda"
    for shape in GRID[:args.plans]:
        if shape.precision == "fp8" and args.device == "cuda" and not multiplies_eight():
            print(f"{shape}: left out, as not all GPUs have such products")
            continue
        ranks = shape.ranks()
        # Where the ranks are: the GPUs they see, and whether they are processes.
        places = [("", 1)] + ([("0", 1)] if several and ranks > 1 else [])
        if shape == PROCESSES and gpus() >= ranks:
            places.append(("", ranks))
        for name in shape.models():
            if time.monotonic() - began > args.seconds:
                print(f"stopped after {args.seconds:.0f} s")
                return rows, wrong
            # A grid of tensor ranks divides the sequences of a microbatch.
            path = plan(args, folder, TOYS[name], shape, 64, 8, 2 if shape.tensor_scheme == "2d" else 1)
            expected = steps(args, path, "cpu", args.steps)
            for place, processes in places:
                own = run(args, path, args.device, args.steps, place, processes)
                label = f"{name}: {shape}{', one GPU' if place else ''}{', processes' if processes > 1 else ''}"
                if isinstance(own, str) or isinstance(expected, str):
                    wrong += 1
                    print(f"{label:76} WRONG: {own if isinstance(own, str) else expected}")
                    continue
                ways, attention = own.get("communication", {}), own.get("attention", "")
                own = own["steps"]
                error = max(abs(a["loss"] / b["loss"] - 1) for a, b in zip(own, expected))
                right = error <= TOLERANCE[shape.precision]
                # Ranks of one process on one GPU have no need of the host, but for what modules send step by step.
                stepwise = shape.context > 1 or shape.expert > 1 or shape.tensor_scheme != "1d"
                if (place or not several) and processes == 1 and not stepwise:
                    right = right and "through the host" not in ways.values()
                wrong += not right
                said = ", ".join(f"{axis} {way}" for axis, way in ways.items())
                rows.append([label, args.steps, f"{error:.3e}", TOLERANCE[shape.precision], own[-1]["loss"], expected[-1]["loss"], said, attention])
                print(f"{label:76} {error:9.2e} {'' if right else 'WRONG '}{said}", flush=True)
    return rows, wrong


def speed(args, folder):
    began, rows = time.monotonic(), []
    for index, (name, config, batch) in enumerate(SHAPES):
        if time.monotonic() - began > args.seconds:
            print(f"stopped after {args.seconds:.0f} s")
            break
        path = plan(args, folder, config, Shape(precision="bf16"), 1024, batch, batch)
        own = run(args, path, args.device, args.steps)
        attention = "" if isinstance(own, str) else own.get("attention", "")
        # The last step is recorded op by op, which waits for each.
        own = own if isinstance(own, str) else [step["seconds"] for step in own["steps"][3:-1]]
        child = [sys.executable, str(HERE), "speed", str(args.folder), "--steps", str(args.steps), "--torch-child", str(index)]
        torch = subprocess.run(child, capture_output=True, text=True)
        torch = json.loads(torch.stdout.splitlines()[-1]) if torch.returncode == 0 else torch.stderr.strip()[-300:]
        rates = [x if isinstance(x, str) else batch * 1024 / statistics.median(x) for x in (own, torch)]
        shown = [x if isinstance(x, str) else f"{x:,.0f}" for x in rates]
        ratio = f"{rates[0] / rates[1]:.2f}" if all(isinstance(x, float) for x in rates) else "-"
        rows.append([name, batch, *shown, ratio, attention])
        print(f"{name:12} {batch} x 1024 tokens: trainwright {shown[0]} tokens/s, PyTorch {shown[1]}: {ratio} (attention: {attention})", flush=True)
    return rows, 0


def validation(args, folder):
    began, wrong, rows = time.monotonic(), 0, []
    shapes = [(name, config, 1024, batch) for name, config, batch in SHAPES]
    if args.device != "cuda":
        shapes = [(name, TOYS[name], 64, 2) for name in ("gpt", "llama")]
    for name, config, sequence, batch in shapes:
        if time.monotonic() - began > args.seconds:
            print(f"stopped after {args.seconds:.0f} s")
            break
        path = plan(args, folder, config, Shape(precision="bf16"), sequence, batch, batch)
        own = args.folder / f"profile-{name.replace(' ', '-')}"
        device = ["--device", args.device]
        measured = subprocess.run([args.trainwright, "calibrate", *device, "--plan", str(path), "--out", str(own)], capture_output=True, text=True)
        command = [args.trainwright, "validate", str(path), *device, "--profile", str(own), "--steps", str(args.steps), "--json"]
        compared = subprocess.run(command, capture_output=True, text=True)
        failed = [ran for ran in (measured, compared) if ran.returncode != 0]
        if failed:
            wrong += 1
            print(f"{name:12} WRONG: {failed[0].stderr.strip()[-300:]}", flush=True)
            continue
        found = json.loads(compared.stdout)
        step, memory = found["step_time_s"], found["peak_memory_bytes"]
        errors = [pair["forecast"] / pair["measured"] - 1 if pair["measured"] else math.nan for pair in (step, memory)]
        rows.append([name, batch, step["forecast"], step["measured"], f"{errors[0]:.4f}", memory["forecast"], memory["measured"], f"{errors[1]:.4f}"])
        print(f"{name:12} {batch} x {sequence} tokens: {1e3 * step['forecast']:.2f} ms forecast, {1e3 * step['measured']:.2f} ms measured: "
              f"{100 * errors[0]:+.1f} %, memory {100 * errors[1]:+.1f} %", flush=True)
    return rows, wrong


def train_torch(args):
    """Prints the seconds of PyTorch's steps."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    _, config, batch = SHAPES[args.torch_child]
    is_gpt = config["model_type"] == "gpt2"
    width, layers = (config["n_embd"], config["n_layer"]) if is_gpt else (config["hidden_size"], config["num_hidden_layers"])
    heads = config["n_head"] if is_gpt else config["num_attention_heads"]
    kv_heads = heads if is_gpt else config["num_key_value_heads"]
    inner = 4 * width if is_gpt else config["intermediate_size"]
    head = width // heads
    sequence, vocabulary = 1024, config["vocab_size"]
    norm = nn.LayerNorm if is_gpt else nn.RMSNorm
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")

    def turned(x, cosine, sine):
        low, high = x.chunk(2, -1)
        return torch.cat([low * cosine - high * sine, high * cosine + low * sine], -1).to(x.dtype)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = norm(width), norm(width)
            self.qkv = nn.Linear(width, (heads + 2 * kv_heads) * head, bias=is_gpt)
            self.projection = nn.Linear(width, width, bias=is_gpt)
            self.fc1 = nn.Linear(width, inner if is_gpt else 2 * inner, bias=is_gpt)
            self.fc2 = nn.Linear(inner, width, bias=is_gpt)

        def forward(self, x, cosine, sine):
            rows = self.qkv(self.first(x)).view(*x.shape[:2], -1, head).transpose(1, 2)
            q, k, v = rows.split([heads, kv_heads, kv_heads], 1)
            if not is_gpt:
                q, k = turned(q, cosine, sine), turned(k, cosine, sine)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=kv_heads != heads)
            x = x + self.projection(y.transpose(1, 2).reshape(x.shape))
            z = self.fc1(self.second(x))
            if is_gpt:
                return x + self.fc2(F.gelu(z, approximate="tanh"))
            gate, up = z.chunk(2, -1)
            return x + self.fc2(F.silu(gate) * up)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(vocabulary, width)
            self.positions = nn.Embedding(sequence, width) if is_gpt else None
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.last = norm(width)
            angles = torch.outer(torch.arange(sequence).float(), 10000.0 ** (-torch.arange(0, head, 2).float() / head))
            self.register_buffer("cosine", angles.cos())
            self.register_buffer("sine", angles.sin())
            for parameter in self.parameters():
                if parameter.dim() > 1:
                    nn.init.normal_(parameter, std=0.02)

        def forward(self, tokens, targets):
            x = self.tokens(tokens)
            if is_gpt:
                x = x + self.positions.weight[: tokens.shape[1]]
            for block in self.blocks:
                x = block(x, self.cosine, self.sine)
            logits = F.linear(self.last(x), self.tokens.weight)
            return F.cross_entropy(logits.view(-1, vocabulary), targets.reshape(-1))

    model = Model().cuda()
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    seconds = []
    for _ in range(args.steps):
        tokens = torch.randint(vocabulary, (batch, sequence + 1), device="cuda")
        torch.cuda.synchronize()
        began = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    print(json.dumps(seconds[3:]))


def main():
    args = arguments()
    if args.torch_child >= 0:
        return train_torch(args)
    args.folder.mkdir(parents=True, exist_ok=True)
    head = {
        "parity": ["plan", "steps", "largest relative difference of a loss", "tolerance", f"last loss ({args.device})", "last loss (cpu)", "communication", "attention"],
        "speed": ["model", "sequences", "trainwright tokens/s", "PyTorch tokens/s", "ratio", "attention"],
        "validation": ["model", "sequences", "forecast s", "measured s", "error", "forecast bytes", "measured bytes", "error of memory"],
    }[args.what]
    with tempfile.TemporaryDirectory() as folder:
        part = {"parity": parity, "speed": speed, "validation": validation}[args.what]
        rows, wrong = part(args, pathlib.Path(folder))
    with open(args.folder / f"{args.what}.csv", "w", newline="") as file:
        csv.writer(file).writerows([head, *rows])
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
