"""Makes a small trace of PyTorch's profiler on CPUs: two data-parallel ranks train a GPT for two steps.

    pip install torch
    python tests/tools/make_kineto_trace.py traces/formats/tests/data/gpt-2-ranks.json.gz

Each rank has one thread. The ranks train some times over, and the trace of rank 0 with the shortest steps is kept: what else
the machine did meanwhile is in it the least. It is written without the call stacks and addresses that nobody reads. The
plan of the same training is examples/measured/gpt-2-ranks.toml.
"""

import gzip
import json
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

LAYERS, HIDDEN, HEADS, TOKENS, VOCABULARY = 2, 128, 4, 64, 512
SEQUENCES_OF_A_RANK = 2
ROUNDS = 20
KEPT_OF_OPERATORS = ("External id", "Input Dims", "Input type", "Concrete Inputs")
KEPT = {"traceEvents", "schemaVersion", "distributedInfo"}


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(HIDDEN)
        self.qkv = torch.nn.Linear(HIDDEN, 3 * HIDDEN)
        self.out = torch.nn.Linear(HIDDEN, HIDDEN)
        self.mlp = torch.nn.Sequential(
            torch.nn.LayerNorm(HIDDEN),
            torch.nn.Linear(HIDDEN, 4 * HIDDEN),
            torch.nn.GELU(),
            torch.nn.Linear(4 * HIDDEN, HIDDEN),
        )

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(x.shape))
        return x + self.mlp(x)


class Gpt(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(VOCABULARY, HIDDEN)
        self.positions = torch.nn.Embedding(TOKENS, HIDDEN)
        self.blocks = torch.nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = torch.nn.LayerNorm(HIDDEN)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions.weight
        return F.linear(self.norm(self.blocks(x)), self.tokens.weight)


def train(rank, store, path):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    model = DistributedDataParallel(Gpt())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for round in range(ROUNDS):
        steps = schedule(wait=0, warmup=1, active=2, repeat=1)
        write = lambda profiler: profiler.export_chrome_trace(f"{path}.{round}")
        with profile(
            activities=[ProfilerActivity.CPU],
            schedule=steps,
            on_trace_ready=write if rank == 0 else None,
            record_shapes=True,
        ) as profiler:
            for _ in range(3):
                tokens = torch.randint(VOCABULARY, (SEQUENCES_OF_A_RANK, TOKENS + 1))
                logits = model(tokens[:, :-1])
                F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
                optimizer.step()
                optimizer.zero_grad()
                profiler.step()
    dist.destroy_process_group()


def length(trace):
    """Of its steps, in microseconds."""
    marks = [event for event in trace["traceEvents"] if event.get("name", "").startswith("ProfilerStep#")]
    return sum(mark["dur"] for mark in marks)


def main():
    with tempfile.TemporaryDirectory() as folder:
        raw = os.path.join(folder, "trace.json")
        torch.multiprocessing.spawn(train, (os.path.join(folder, "store"), raw), nprocs=2)
        trace = min((json.load(open(f"{raw}.{round}")) for round in range(ROUNDS)), key=length)
    trace = {key: value for key, value in trace.items() if key in KEPT}
    events = []
    for event in trace["traceEvents"]:
        if event.get("ph") == "X":
            kept = {key: event[key] for key in ("ph", "cat", "name", "pid", "tid", "ts", "dur")}
            arguments = event.get("args", {})
            if event["cat"] == "cpu_op" and "Input Dims" in arguments:
                kept["args"] = {key: arguments[key] for key in KEPT_OF_OPERATORS if key in arguments}
            events.append(kept)
    trace["traceEvents"] = events
    text = json.dumps(trace, separators=(",", ":")) + "\n"
    with open(sys.argv[1], "wb") as out:
        out.write(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
