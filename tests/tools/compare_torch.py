"""Tokens per second of `trainwright run` beside PyTorch's on this machine's CPU, the same model, dtype and threads.

    pip install torch
    cargo build --release
    python3 tests/tools/compare_torch.py                    # GPT-2 small, one thread, then two, then two data ranks
    python3 tests/tools/compare_torch.py --layers 2 --rounds 5
    python3 tests/tools/compare_torch.py --cases 1x1 --processor-time     # on a machine that others use, too

Both train a GPT-2 in f32 with AdamW and gradients clipped to a norm of 1. They take turns, each a process of its own, so
that what else the machine does meets both; what is compared is the median of the seconds of all steps but the first of
each process. PyTorch runs eagerly with its fused attention and its fused AdamW; two data ranks are
DistributedDataParallel over gloo. With --processor-time a step counts the processor's seconds instead, which other
programs change less than the clock's: of ours, the difference of processes of n and of 1 steps over n - 1; for one
rank of one thread only, since threads that wait for each other use a processor too. PyTorch's matrix products are
MKL's, which on AMD processors uses AVX2 only; with --onednn its linear layers go through oneDNN, which uses what the
processor has.
"""

import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trainwright", default=str(HERE.parents[2] / "target/release/trainwright"))
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--vocabulary", type=int, default=50257)
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--batch", type=int, default=2, help="sequences of a step")
    parser.add_argument("--steps", type=int, default=4, help="of each process")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", default="1x1,1x2,2x1", help="RANKSxTHREADS of each rank, several with commas")
    parser.add_argument("--processor-time", action="store_true", help="seconds of the processor instead of the clock")
    parser.add_argument("--onednn", action="store_true", help="PyTorch's linear layers through oneDNN")
    parser.add_argument("--torch-child", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def configuration(args):
    return {
        "model_type": "gpt2", "n_embd": args.hidden, "n_head": args.hidden // 64, "n_layer": args.layers,
        "n_positions": args.sequence, "vocab_size": args.vocabulary, "activation_function": "gelu_new",
        "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
    }


def plan(args, ranks, folder):
    """A plan over `ranks` data ranks."""
    config, path = folder / "config.json", folder / f"plan-{ranks}.toml"
    config.write_text(json.dumps(configuration(args)))
    command = [args.trainwright, "plan", "--model", str(config), "--cluster",
               "dgx-2-one-gpu:1" if ranks == 1 else "h100-pcie-pair:1", "--seq", str(args.sequence),
               "--global-batch", str(args.batch), "--precision", "fp32", "--tensor", "1", "--pipeline", "1",
               "--micro-batch", str(args.batch // ranks), "--recompute", "none", "--data-sharding", "none",
               "--quiet", "--out", str(path)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return path


def own_seconds(args, path, ranks, threads):
    def command(steps):
        return [args.trainwright, "run", str(path), "--steps", str(steps), "--json", "--threads", str(ranks * threads)]

    if args.processor_time:
        used = [processor_seconds(command(steps)) for steps in (1, args.steps)]
        return [(used[1] - used[0]) / (args.steps - 1)]
    command = command(args.steps)
    steps = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["steps"]
    return [step["seconds"] for step in steps[1:]]


def processor_seconds(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def torch_seconds(args, ranks, threads):
    command = [sys.executable, str(HERE), *sys.argv[1:], "--torch-child", f"{ranks}x{threads}"]
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads))
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout)


def train_torch(rank, args, ranks, threads, folder):
    """One rank of PyTorch; rank 0 prints the seconds of its steps."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    torch.set_num_threads(threads)
    torch.manual_seed(rank)
    width, heads = args.hidden, args.hidden // 64

    def product(x, weight, bias=None):
        if not args.onednn:
            return F.linear(x, weight, bias)
        return F.linear(x.reshape(-1, x.shape[-1]).to_mkldnn(), weight, bias).to_dense().view(*x.shape[:-1], -1)

    def linear(layer, x):
        return product(x, layer.weight, layer.bias)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.c_fc, self.c_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            batch, sequence, _ = x.shape
            qkv = linear(self.c_attn, self.ln_1(x)).view(batch, sequence, 3, heads, -1).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], is_causal=True)
            x = x + linear(self.c_proj, y.transpose(1, 2).reshape(batch, sequence, width))
            return x + linear(self.c_out, F.gelu(linear(self.c_fc, self.ln_2(x)), approximate="tanh"))

    class Gpt2(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(args.vocabulary, width), nn.Embedding(args.sequence, width)
            self.blocks = nn.ModuleList(Block() for _ in range(args.layers))
            self.ln_f = nn.LayerNorm(width)
            for parameter in self.parameters():
                if parameter.dim() > 1:
                    nn.init.normal_(parameter, std=0.02)

        def forward(self, tokens, targets):
            x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
            for block in self.blocks:
                x = block(x)
            logits = product(self.ln_f(x), self.wte.weight)
            return F.cross_entropy(logits.view(-1, args.vocabulary), targets.reshape(-1))

    model = own = Gpt2()
    if ranks > 1:
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks)
        model = nn.parallel.DistributedDataParallel(own)
    optimizer = torch.optim.AdamW(own.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    seconds = []
    clock = time.process_time if args.processor_time else time.perf_counter
    for _ in range(args.steps):
        began = clock()
        tokens = torch.randint(args.vocabulary, (args.batch // ranks, args.sequence + 1))
        model(tokens[:, :-1], tokens[:, 1:]).backward()
        nn.utils.clip_grad_norm_(own.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(clock() - began)
    if rank == 0:
        print(json.dumps(seconds[1:]), flush=True)
    if ranks > 1:
        torch.distributed.destroy_process_group()


def child(args):
    ranks, threads = (int(part) for part in args.torch_child.split("x"))
    with tempfile.TemporaryDirectory() as folder:
        if ranks == 1:
            return train_torch(0, args, 1, threads, folder)
        import torch.multiprocessing as processes

        processes.spawn(train_torch, (args, ranks, threads, folder), nprocs=ranks)


def main():
    args = arguments()
    if args.torch_child:
        return child(args)
    if args.processor_time and args.cases != "1x1":
        sys.exit("--processor-time is for --cases 1x1: threads that wait for each other use a processor too")
    tokens = args.batch * args.sequence
    print(f"GPT-2, {args.layers} blocks of {args.hidden}, vocabulary {args.vocabulary}, f32; "
          f"{args.batch} sequences of {args.sequence} tokens a step; load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        for case in args.cases.split(","):
            ranks, threads = (int(part) for part in case.split("x"))
            path = plan(args, ranks, pathlib.Path(folder))
            own, torch = [], []
            for _ in range(args.rounds):
                own += own_seconds(args, path, ranks, threads)
                torch += torch_seconds(args, ranks, threads)
            rates = [tokens / statistics.median(seconds) for seconds in (own, torch)]
            best = [tokens / min(seconds) for seconds in (own, torch)]
            print(f"{ranks} rank(s) of {threads} thread(s): trainwright {rates[0]:,.0f} tokens/s, PyTorch {rates[1]:,.0f}: "
                  f"{rates[0] / rates[1]:.2f} times (best steps {best[0]:,.0f} and {best[1]:,.0f}: {best[0] / best[1]:.2f}); "
                  f"load {os.getloadavg()[0]:.1f}", flush=True)


if __name__ == "__main__":
    main()
