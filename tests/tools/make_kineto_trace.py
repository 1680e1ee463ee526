"""Makes a small trace of PyTorch's profiler on CPUs: two ranks train a block of a transformer for two steps.

    pip install torch
    python tests/tools/make_kineto_trace.py traces/tests/tools/data/block-2-ranks.json

The trace of rank 0 is written without the call stacks and addresses that nobody reads.
"""

import json
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile, schedule

HIDDEN, HEADS, TOKENS = 128, 4, 64
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


def train(rank, store, path):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    block = Block()
    optimizer = torch.optim.AdamW(block.parameters(), lr=1e-3)
    steps = schedule(wait=0, warmup=1, active=2, repeat=1)
    write = (lambda profiler: profiler.export_chrome_trace(path)) if rank == 0 else None
    with profile(activities=[ProfilerActivity.CPU], schedule=steps, on_trace_ready=write) as profiler:
        for _ in range(3):
            loss = block(torch.randn(2, TOKENS, HIDDEN)).square().mean()
            loss.backward()
            for parameter in block.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    dist.destroy_process_group()


def main():
    with tempfile.TemporaryDirectory() as folder:
        raw = os.path.join(folder, "trace.json")
        torch.multiprocessing.spawn(train, (os.path.join(folder, "store"), raw), nprocs=2)
        trace = json.load(open(raw))
    trace = {key: value for key, value in trace.items() if key in KEPT}
    events = []
    for event in trace["traceEvents"]:
        if event.get("ph") == "X":
            events.append({key: event[key] for key in ("ph", "cat", "name", "pid", "tid", "ts", "dur")})
    trace["traceEvents"] = events
    with open(sys.argv[1], "w") as out:
        out.write(json.dumps(trace, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
