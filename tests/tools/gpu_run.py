"""Training on a GPU, part by part; tests/gpu.sh calls the parts in an order, each with its seconds. Only Python's standard library.

    python3 tests/tools/gpu_run.py PART FOLDER [--device emulated]

first: GPT-2 124M with our attention, with cuDNN's and with a graph: losses beside the CPU's, tokens per second, ops of the last step.
large: LLaMA 1B and GPT-2 1.5B, tokens per second.
warm: PyTorch compiles what `torch` needs; may run beside anything that is not timed.
torch: PyTorch trains the three models with torch.compile, fused attention (its own choice, and cuDNN's if that is another) and its
fused AdamW, under bf16 autocast with f32 weights; medians of the seconds of the steps after the first ones. A model that is not
compiled as a whole in time is compiled block by block; the row says which.
parity: losses of a grid of plans of small models beside the CPU's. On a machine with several GPUs ranks have one each, and plans of
several ranks run a second time with all ranks on the first GPU; two plans run as processes too, which find each other over TCP, and
by NCCL on one GPU if it can. Each line says how ranks communicated.
forecasts: forecasts of the three models beside runs, and the calibration of the machine.
deterministic: cuDNN's attention with and without the same bits in every run.
reference: the CPU's losses that `first` reads (minutes; needs no GPU: --device cuda names the large shapes).

Each part writes its rows into CSV files in FOLDER and prints a line as soon as a case is known. PART.log has what failing programs
said. After --seconds what still runs is stopped: such a row says `stopped` and is neither right nor wrong. A part exits with 1 if
something is wrong: one of our programs fails, losses in fp32 differ by more than their tolerance, or in bf16 or fp8 by more than
between two seeds.
"""

import argparse
import pathlib
import sys

from gpu import determinism, first, forecasts, parity, plans, speed, torch_rival, work

HERE = pathlib.Path(__file__)
# What is done, in how many steps on a GPU, and on an emulated one.
PARTS = {
    "first": (first.part, 24, 3),
    "large": (speed.large, 16, 3),
    "warm": (speed.warm, 2, 2),
    "torch": (speed.part, 24, 3),
    "parity": (parity.part, 20, 2),
    "forecasts": (forecasts.part, 8, 1),
    "deterministic": (determinism.part, 16, 3),
    "reference": (first.reference, 24, 3),
    # The other program of `torch`, started by it.
    "rival": (torch_rival.train, 24, 3),
}
# The first plans of parity's grid that are run on a GPU, and on an emulated one.
PLANS = (12, 5)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=PARTS)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--trainwright", default=str(HERE.parents[2] / "target/release/trainwright"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, help="of each run; each part has its own default")
    parser.add_argument("--plans", type=int, help=f"the first plans of parity's grid, which has {len(plans.GRID)}")
    parser.add_argument("--seconds", type=float, default=1e6, help="after which what runs is stopped")
    parser.add_argument("--model", help="of rival")
    parser.add_argument("--compile", choices=["whole", "blocks"], default="whole", help="of rival")
    return parser.parse_args()


def main():
    args = arguments()
    args.folder.mkdir(parents=True, exist_ok=True)
    part, *steps = PARTS[args.what]
    is_emulated = args.device != "cuda"
    args.steps = args.steps or steps[is_emulated]
    args.plans = args.plans or PLANS[is_emulated]
    work.log = args.folder / f"{args.what}.log"
    work.log.unlink(missing_ok=True)
    sys.exit(1 if part(args, work.Clock(args.seconds)) else 0)


if __name__ == "__main__":
    main()
