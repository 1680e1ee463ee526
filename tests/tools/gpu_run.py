"""Training on a GPU: the losses of plans beside those of the CPU, and tokens per second beside PyTorch's.

    cargo build --release --features cuda
    python3 tests/tools/gpu_run.py parity FOLDER            # losses of a grid of plans; needs no PyTorch
    python3 tests/tools/gpu_run.py warm FOLDER              # PyTorch compiles what `speed` needs; may run beside `parity`
    python3 tests/tools/gpu_run.py calibrate FOLDER         # what the GPU and the ops of three models take: FOLDER/measured
    python3 tests/tools/gpu_run.py speed FOLDER             # GPT-2 124M and 1.5B and LLaMA 1B in bf16, beside PyTorch
    python3 tests/tools/gpu_run.py validation FOLDER        # their forecasts from FOLDER/measured, beside what they take
    python3 tests/tools/gpu_run.py parity FOLDER --device emulated --steps 2 --plans 3    # without a GPU

parity: on a machine with several GPUs ranks have one each, and plans of several ranks run a second time with all ranks on the
first GPU; two plans run as processes too, which find each other over TCP. Each line says how ranks communicated.

speed: PyTorch trains the same shape with torch.compile, fused attention (its own choice, and cuDNN's where that is another)
and its fused AdamW, under bf16 autocast with f32 weights, one program after the other on the same GPU; medians of the seconds
of the steps after the first ones. Where the whole model is not compiled in time each block is; the row says which.

Each writes a row into parity.csv, speed.csv, validation.csv or torch.csv in FOLDER and prints a line as soon as a case is known.
What a failing program said is in parity.log and so on. After --seconds what still runs is stopped: such a row says `stopped` and is neither right nor wrong. They exit with 1 where losses
differ by more than their tolerance, or where one of our programs fails.
"""

import argparse
import pathlib
import sys

from gpu import parity, plans, speed, torch_rival, validation, work

HERE = pathlib.Path(__file__)
# What is done, and in how many steps.
PARTS = {
    "parity": (parity.part, 20),
    "warm": (speed.warm, 2),
    "calibrate": (validation.calibrate, 8),
    "speed": (speed.part, 24),
    "validation": (validation.part, 8),
    # The other program of `speed`, started by it.
    "torch": (torch_rival.train, 24),
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=PARTS)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--trainwright", default=str(HERE.parents[2] / "target/release/trainwright"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, help="of each run; each part has its own default")
    parser.add_argument("--plans", type=int, default=len(plans.GRID), help="of parity's grid, the first so many")
    parser.add_argument("--seconds", type=float, default=1e6, help="after which what runs is stopped")
    parser.add_argument("--model", help="of torch")
    parser.add_argument("--compile", choices=["whole", "blocks"], default="whole", help="of torch")
    return parser.parse_args()


def main():
    args = arguments()
    args.folder.mkdir(parents=True, exist_ok=True)
    part, usual = PARTS[args.what]
    args.steps = args.steps or usual
    work.log = args.folder / f"{args.what}.log"
    work.log.unlink(missing_ok=True)
    sys.exit(1 if part(args, work.Clock(args.seconds)) else 0)


if __name__ == "__main__":
    main()
