"""The first minute on a GPU: GPT-2 124M trains by our attention, by cuDNN's and by a graph, with the CPU's losses and its speed.

The CPU's losses of the small steps are in cpu_losses.csv. They take minutes on any machine:

    python3 tests/tools/gpu_run.py reference FOLDER && cp FOLDER/cpu_losses.csv tests/tools/gpu
"""

import csv
import pathlib
import tempfile

from gpu import drift, plans, training
from gpu.work import NotDone, Stopped, Table

REFERENCE = pathlib.Path(__file__).with_name("cpu_losses.csv")
COLUMNS = ["step", "bf16", "bf16 with another seed", "fp32"]
# The text of the small steps, each byte of which is a token. With this rate and warm-up its losses fall from step to step; a larger
# rate makes them jump, and the jumps make a difference of one rounding large.
TEXT = "".join(f"The square of {number} is {number * number}.\n" for number in range(2000))
LEARNING_RATE, WARM_UP = 1e-4, 8
# Name and options of each run, in the order in which they are tried.
RUNS = [
    ("own attention", ["--attention", "own", "--graph", "off"]),
    ("cuDNN's attention", ["--attention", "cudnn", "--graph", "off"]),
    ("a graph", []),
]


def reference(args, clock):
    """Writes the CPU's losses into FOLDER/cpu_losses.csv. How much failed: a program that fails raises."""
    table = Table(args.folder / REFERENCE.name, COLUMNS)
    for step, row in enumerate(zip(*on_cpu(args, clock)), 1):
        table.add([step, *row], f"step {step}: {row[0]:.4f}")
    return 0


def on_cpu(args, clock):
    """Losses in bf16, in bf16 with another seed, and in fp32."""
    case = plans.compared(args.device)
    with tempfile.TemporaryDirectory() as folder:
        paths = {precision: case.make(args, pathlib.Path(folder) / precision, clock, precision) for precision in ("bf16", "fp32")}
        learns = learning(pathlib.Path(folder))
        return [training.losses(args, paths[precision], args.steps, clock, ["--seed", seed, *learns])
                for precision, seed in [("bf16", 0), ("bf16", 1), ("fp32", 0)]]


def learning(folder):
    """Options of the runs whose losses are compared; the text is written into a folder."""
    (folder / "text").write_text(TEXT)
    return ["--data", folder / "text", "--learning-rate", LEARNING_RATE, "--warmup", WARM_UP]


def expected_losses(args, clock):
    """As `on_cpu`: those that were made before, or on the spot for a stand-in."""
    if args.device != "cuda":
        return on_cpu(args, clock)
    with open(REFERENCE, newline="") as file:
        rows = list(csv.DictReader(file))[:args.steps]
    return [[float(row[column]) for row in rows] for column in COLUMNS[1:]]


def part(args, clock):
    """How many runs are wrong."""
    small, large = plans.compared(args.device), plans.measured(args.device)[0]
    compared = Table(args.folder / "first-losses.csv", ["run", "step", "loss", "loss on the CPU"])
    timed = Table(args.folder / "first.csv", training.HEAD)
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        try:
            expected, other_seed, in_fp32 = expected_losses(args, clock)
            paths = [case.make(args, pathlib.Path(folder) / str(case.length), clock) for case in (small, large)]
        except (NotDone, ValueError, OSError) as error:
            print(f"first: {error}", flush=True)
            return not isinstance(error, Stopped)
        scale = drift.Scale.of(expected, in_fp32, other_seed)
        for name, options in RUNS:
            own = [*options, *learning(pathlib.Path(folder))]
            wrong += compare(args, compared, small, paths[0], name, own, expected, scale, clock)
            wrong += training.measure(args, timed, large, paths[1], name, clock, options)
    return wrong


def compare(args, table, case, path, name, options, expected, scale, clock):
    """One run of the small steps beside the CPU's losses. Whether it is wrong."""
    def first(loss):
        print(f"{case}, {name}: step 1: loss {loss:.4f}, on the CPU {expected[0]:.4f}", flush=True)

    try:
        ran = training.train(args, path, case.tokens(), len(expected), clock, options, first)
        found = drift.drift(ran.losses, expected)
    except (NotDone, ValueError) as error:
        result = "stopped" if isinstance(error, Stopped) else "WRONG"
        print(f"{case}, {name}: {result}: {error}", flush=True)
        return result == "WRONG"
    for step, (loss, other) in enumerate(zip(ran.losses, expected), 1):
        table.add([name, step, loss, other])
    result = drift.result("bf16", found, scale)
    print(f"{case}, {name}: {result}: losses drift by {found:.1e} in {len(expected)} steps; {scale}\n"
          f"    attention: {ran.attention}; graph: {ran.graph}", flush=True)
    return result == "WRONG"
